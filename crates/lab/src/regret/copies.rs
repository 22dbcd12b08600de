//! Clean copies in PM and DRAM beyond those of the engine ([`Copies`]): a demoted block stays in PM as a
//! clean block. Clean blocks count as free and are dropped without a write, in the order of their worth. The
//! worth of a copy is learnt from the trace so far (terrace_placement::density).

use super::machine::Machine;
use super::steps::{Act, Step};
use terrace_placement::density::Class;

/// The rule for clean copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copies {
    /// As in the engine: a demoted block leaves PM, promotions stop when PM gets short, and DRAM keeps pages
    /// by the number of their requests.
    Engine,
    /// A demoted block stays in PM until a block of more worth needs the space. DRAM as in the engine.
    Pm,
    /// DRAM keeps pages by worth too. A copy that leaves PM goes to DRAM; a copy that leaves DRAM goes to PM
    /// if it is worth more than the least copy there.
    Both,
}

/// The memory of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    Pm = 0,
    Dram = 1,
}

/// Copies in a random sample; the copy of least worth in the sample goes.
const SAMPLE: usize = 32;
/// The factor of worth by which a copy must exceed the copy that it displaces.
const MARGIN: f32 = 1.1;
/// Blocks that follow a victim in its file go too, while their worth is at most this factor of the victim's:
/// requests wait once for each run of missed blocks, so long runs cost less.
const TOGETHER: f32 = 1.05;
/// Uses of blocks between two times of learning; the ages of every `SAMPLED`-th block are learnt from.
const LEARNT_AFTER: u64 = 8192;
const SAMPLED: usize = 8;

impl Machine<'_> {
    pub(super) fn keeps_copies(&self) -> bool {
        self.copies != Copies::Engine
    }

    fn worth(&self, id: u32) -> f32 {
        match self.uses[id as usize] {
            (0, _) => 0.0,
            (last, class) => self.density.of(class, self.used - last),
        }
    }

    /// Learns from the blocks of a step.
    pub(super) fn learn(&mut self, step: &Step) {
        if !self.keeps_copies() {
            return;
        }
        let steps = self.steps;
        let ids = steps.ids(step);
        let read = step.act == Act::Read;
        for id in ids {
            self.used += 1;
            let (last, class) = self.uses[*id as usize];
            let age = (last > 0).then_some(self.used - last);
            if let Some(age) = age {
                self.density.used(class, age, read);
            }
            self.uses[*id as usize] = match step.act {
                Act::Drop => (0, Class::default()),
                _ => (self.used, Class::of(read, ids.len() as u64, age)),
            };
        }
        if self.used >= self.learnt_at + LEARNT_AFTER {
            self.learnt_at = self.used;
            let waiting = self.uses.iter().step_by(SAMPLED).filter(|(last, _)| *last > 0);
            let waiting = waiting.map(|(last, class)| (*class, self.used + 1 - last));
            self.density.learn(waiting, SAMPLED as f32);
        }
    }

    fn draw(&mut self, bound: usize) -> usize {
        // xorshift64: the same in every run.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % bound.max(1) as u64) as usize
    }

    /// A copy of little worth: the successor of the last victim, or the least of a random sample.
    fn least(&mut self, memory: Memory) -> Option<(f32, u32)> {
        let (next, most) = self.follows[memory as usize];
        if self.kept[memory as usize].holds(next) && self.worth(next) <= most {
            return Some((self.worth(next), next));
        }
        let mut least: Option<(f32, u32)> = None;
        for _ in 0..SAMPLE {
            let at = self.draw(self.kept[memory as usize].len());
            let id = self.kept[memory as usize].at(at)?;
            let worth = self.worth(id);
            if least.is_none_or(|it| worth < it.0) {
                least = Some((worth, id));
            }
        }
        least
    }

    /// Notes that a copy goes: the next block of its file is the next candidate.
    fn goes(&mut self, memory: Memory, (worth, id): (f32, u32)) {
        let file_of = |id: u32| self.steps.places.get(id as usize).map(|(file, _)| *file);
        let (_, most) = self.follows[memory as usize];
        let went_on = self.follows[memory as usize].0 == id;
        let next = if file_of(id + 1) == file_of(id) { id + 1 } else { self.nothing() };
        self.follows[memory as usize] = (next, if went_on { most } else { worth * TOGETHER });
    }

    /// A number that no block has; every [`super::list::Bag`] accepts it.
    fn nothing(&self) -> u32 {
        self.steps.blocks() as u32
    }

    /// Whether PM has a block without content.
    pub(super) fn has_empty_place(&self) -> bool {
        (self.in_pm.len() as u64) < self.setup.pm_blocks
    }

    /// Drops a clean copy from PM, to make room.
    pub(super) fn give_up(&mut self) {
        if let Some(victim) = self.least(Memory::Pm) {
            self.replace(victim);
        }
    }

    fn replace(&mut self, victim: (f32, u32)) {
        self.goes(Memory::Pm, victim);
        self.leave_pm(victim.1);
        if self.copies == Copies::Both {
            self.kept[Memory::Dram as usize].put(victim.1);
            self.shrink_dram(false);
        } else if self.belongs_in_dram(victim.1) {
            self.keep_clean(victim.1);
        }
    }

    /// Makes room in PM for a copy if PM has room, or a copy of less worth can be dropped; whether there is
    /// room.
    pub(super) fn displaces(&mut self, id: u32) -> bool {
        if self.has_empty_place() {
            return true;
        }
        let worth = self.worth(id);
        match self.least(Memory::Pm) {
            Some(rival) if rival.0 * MARGIN < worth => {
                self.replace(rival);
                true
            }
            _ => false,
        }
    }

    /// Promotes a cold block into PM; there must be room.
    pub(super) fn raise(&mut self, id: u32) {
        self.drop_clean(id);
        self.enter_pm(id);
        self.waits.blocks_raised += 1;
        match self.keeps_copies() {
            true => self.kept[Memory::Pm as usize].put(id),
            false => self.pace.raised += 1,
        }
    }

    /// Keeps a copy in DRAM by worth.
    pub(super) fn keep_in_dram(&mut self, id: u32) {
        self.kept[Memory::Dram as usize].put(id);
        self.shrink_dram(true);
    }

    fn shrink_dram(&mut self, upwards: bool) {
        while self.kept[Memory::Dram as usize].len() as u64 > self.setup.clean_blocks() {
            let Some(victim) = self.least(Memory::Dram) else { break };
            self.goes(Memory::Dram, victim);
            self.kept[Memory::Dram as usize].remove(victim.1);
            let place = self.places[victim.1 as usize];
            if upwards && place.below && !place.pm && self.makes_way(victim.0) {
                self.raise(victim.1);
            }
        }
    }

    /// As [`Self::displaces`] for a copy of this worth, but a dropped copy does not go to DRAM.
    fn makes_way(&mut self, worth: f32) -> bool {
        if self.has_empty_place() {
            return true;
        }
        match self.least(Memory::Pm) {
            Some(rival) if rival.0 * MARGIN < worth => {
                self.goes(Memory::Pm, rival);
                self.leave_pm(rival.1);
                true
            }
            _ => false,
        }
    }
}

/// The last use of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum LastUse {
    #[default]
    None = 0,
    Read = 1,
    Written = 2,
}
