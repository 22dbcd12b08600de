//! Copies in PM and DRAM: a block enters PM, a clean copy enters DRAM, and a copy of less worth makes room.
//!
//! Clean copies beyond those of the engine ([`Copies`]): a demoted block stays in PM as a clean block. Clean
//! blocks count as free and are dropped without a write, in the order of their worth.

use super::blocks::Memory;
use super::candidates::Copies;
use super::machine::Machine;
use super::victims::Victim;

/// The factor of worth by which a copy must exceed the copy that it displaces.
const MARGIN: f32 = 1.1;

impl Machine<'_> {
    /// Stores a block in PM. When all of PM has content, a clean copy is dropped.
    pub(super) fn enter_pm(&mut self, id: u32) {
        let tick = self.tick();
        if !self.blocks.in_pm().holds(id)
            && self.blocks.empty_pm() == 0
            && let Some(victim) = self.least(Memory::Pm)
        {
            self.replace(victim);
        }
        self.blocks.put_in_pm(id, tick);
    }

    /// Promotes a cold block into PM; there must be room.
    pub(super) fn promote(&mut self, id: u32) {
        self.blocks.drop_clean(id);
        self.enter_pm(id);
        self.waits.blocks_raised += 1;
        match self.keeps_copies() {
            true => self.blocks.kept_mut(Memory::Pm).put(id),
            false => self.work.pace.promoted += 1,
        }
    }

    /// Keeps a clean copy in DRAM.
    pub(super) fn keep_clean(&mut self, id: u32) {
        if self.copies == Copies::Both {
            self.blocks.kept_mut(Memory::Dram).put(id);
            return self.shrink_dram(true);
        }
        self.blocks.cache(id, self.now_ns);
    }

    /// Notes that a dirty page was written back.
    pub(super) fn written_back(&mut self, id: u32) {
        if self.blocks.clean_dirty(id) {
            self.keep_clean(id);
        }
    }

    /// Makes room in PM for a copy if PM has room, or a copy of less worth can be dropped; whether there is
    /// room.
    pub(super) fn displaces(&mut self, id: u32) -> bool {
        if self.blocks.empty_pm() > 0 {
            return true;
        }
        let rival = self.rival(self.worth.of_block(id));
        rival.into_iter().for_each(|rival| self.replace(rival));
        rival.is_some()
    }

    /// As [`Self::displaces`] for a copy of this worth, but a dropped copy does not go to DRAM.
    fn makes_way(&mut self, worth: f32) -> bool {
        if self.blocks.empty_pm() > 0 {
            return true;
        }
        let rival = self.rival(worth);
        if let Some(rival) = rival {
            self.victims.goes(Memory::Pm, rival, self.steps);
            self.blocks.leave_pm(rival.1);
        }
        rival.is_some()
    }

    /// The copy in PM that a copy of this worth displaces.
    fn rival(&mut self, worth: f32) -> Option<Victim> {
        self.least(Memory::Pm).filter(|rival| rival.0 * MARGIN < worth)
    }

    fn least(&mut self, memory: Memory) -> Option<Victim> {
        self.victims.least(memory, self.blocks.kept(memory), &self.worth)
    }

    /// Drops a clean copy from PM.
    fn replace(&mut self, victim: Victim) {
        self.victims.goes(Memory::Pm, victim, self.steps);
        self.blocks.leave_pm(victim.1);
        if self.copies == Copies::Both {
            self.blocks.kept_mut(Memory::Dram).put(victim.1);
            self.shrink_dram(false);
        } else if self.belongs_in_dram(victim.1) {
            self.keep_clean(victim.1);
        }
    }

    /// Drops the copies for which DRAM has no room; `promotes`: a copy of more worth than the least copy in PM
    /// goes there.
    fn shrink_dram(&mut self, promotes: bool) {
        while self.blocks.kept(Memory::Dram).len() as u64 > self.setup.clean_blocks() {
            let Some(victim) = self.least(Memory::Dram) else { break };
            self.victims.goes(Memory::Dram, victim, self.steps);
            self.blocks.kept_mut(Memory::Dram).remove(victim.1);
            if promotes && self.blocks.location(victim.1).is_cold() && self.makes_way(victim.0) {
                self.promote(victim.1);
            }
        }
    }
}
