//! A second reference beside the optimum: a replacement that knows only the past, but has no limits of an
//! engine. PM and DRAM are one memory, movements are free and take no time, and the resident blocks are
//! chosen by [`Density`], learnt from the trace so far. It is no bound: better predictions are possible.

use super::list::Bag;
use super::machine::{Setup, transfer_ns};
use super::optimum::Prices;
use super::steps::{Act, Step, Steps};
use terrace_placement::density::{Class, Density};

/// The constants of copies.rs, except for a larger sample.
const SAMPLE: u64 = 64;
const TOGETHER: f32 = 1.05;
const LEARNT_AFTER: u64 = 8192;
const SAMPLED: usize = 8;

struct Memory<'a> {
    steps: &'a Steps,
    setup: Setup,
    prices: Prices,
    kept: Bag,
    density: Density,
    /// Uses of blocks so far, and their number at the last learning.
    used: u64,
    learnt_at: u64,
    /// The last use of each block; 0: none.
    uses: Vec<(u64, Class)>,
    random: u64,
    /// The next victim, which follows the last victim in its file, and the worth up to which it goes.
    follows: (u32, f32),
    waited_ns: u64,
}

/// Wait of the thread in the measured part.
pub(crate) fn waited_ns(steps: &Steps, setup: Setup) -> u64 {
    let device = setup.device;
    let mut memory = Memory {
        steps,
        setup,
        prices: Prices::of(&setup),
        kept: Bag::new(steps.blocks()),
        density: Density::new(device.read_latency_ns, transfer_ns(1, device.read_bytes_per_s)),
        used: 0,
        learnt_at: 0,
        uses: vec![(0, Class::default()); steps.blocks()],
        random: 0x9e37_79b9,
        follows: (steps.blocks() as u32, 0.0),
        waited_ns: 0,
    };
    for (index, step) in steps.list.iter().enumerate() {
        if index == steps.measured_from {
            memory.kept = Bag::new(steps.blocks());
            memory.waited_ns = 0;
        }
        memory.step(step);
    }
    memory.waited_ns
}

impl Memory<'_> {
    fn step(&mut self, step: &Step) {
        let steps = self.steps;
        let ids = steps.ids(step);
        self.waited_ns += match step.act {
            Act::Read => self.read_ns(ids),
            Act::Write { sync } => self.prices.write_ns(ids.len() as u64, sync),
            _ => 0,
        };
        for id in ids {
            self.used += 1;
            let (last, class) = self.uses[*id as usize];
            let age = (last > 0).then_some(self.used - last);
            if let Some(age) = age {
                self.density.used(class, age, step.act == Act::Read);
            }
            if step.act == Act::Drop {
                self.kept.remove(*id);
                self.uses[*id as usize] = (0, Class::default());
            } else {
                let class = Class::of(step.act == Act::Read, ids.len() as u64, age);
                self.uses[*id as usize] = (self.used, class);
                self.kept.put(*id);
            }
        }
        while self.kept.len() as u64 > self.setup.pm_blocks + self.setup.dram_blocks {
            self.forget_one();
        }
        if self.used >= self.learnt_at + LEARNT_AFTER {
            self.learnt_at = self.used;
            let waiting = self.uses.iter().step_by(SAMPLED).filter(|(last, _)| *last > 0);
            let waiting = waiting.map(|(last, class)| (*class, self.used + 1 - last));
            self.density.learn(waiting, SAMPLED as f32);
        }
    }

    fn read_ns(&self, ids: &[u32]) -> u64 {
        let device = self.setup.device;
        // Blocks since the last missed block; at the beginning a number that never reads through.
        let (mut hits, mut runs, mut transferred, mut since) = (0, 0, 0, u64::MAX);
        for id in ids {
            since = since.saturating_add(1);
            if self.kept.holds(*id) {
                hits += 1;
                continue;
            }
            match self.setup.reads_through(since - 1) {
                true => transferred += since,
                false => (transferred, runs) = (transferred + 1, runs + 1),
            }
            since = 0;
        }
        let bus_ns = transfer_ns(transferred, device.read_bytes_per_s);
        self.prices.read_ns(hits) + runs * device.read_latency_ns + bus_ns
    }

    fn worth(&self, id: u32) -> f32 {
        let (last, class) = self.uses[id as usize];
        self.density.of(class, self.used - last)
    }

    fn forget_one(&mut self) {
        let (next, most) = self.follows;
        if self.kept.holds(next) && self.worth(next) <= most {
            return self.forget(next, most);
        }
        let mut least: Option<(f32, u32)> = None;
        for _ in 0..SAMPLE {
            // xorshift64: the same in every run.
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            let at = self.random % (self.kept.len() as u64).max(1);
            let Some(id) = self.kept.at(at as usize) else { return };
            let worth = self.worth(id);
            if least.is_none_or(|it| worth < it.0) {
                least = Some((worth, id));
            }
        }
        least.into_iter().for_each(|(worth, id)| self.forget(id, worth * TOGETHER));
    }

    fn forget(&mut self, id: u32, most: f32) {
        self.kept.remove(id);
        let file_of = |id: u32| self.steps.places.get(id as usize).map(|(file, _)| *file);
        let next = if file_of(id + 1) == file_of(id) { id + 1 } else { self.steps.blocks() as u32 };
        self.follows = (next, most);
    }
}
