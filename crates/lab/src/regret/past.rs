//! A second reference beside the optimum: a replacement that knows only the past, but has no limits of an
//! engine. PM and DRAM are one memory, movements are free and take no time, and the resident blocks are
//! chosen by [`Worth`], learnt from the trace so far. It is no bound: better predictions are possible.

use super::list::Bag;
use super::optimum::Prices;
use super::setup::{Setup, transfer_ns};
use super::steps::{Act, Step, Steps};
use super::worth::{Random, TOGETHER, Worth};

/// Blocks in a random sample: more than in a sample of victims.rs.
const SAMPLED_BLOCKS: usize = 64;

struct Memory<'a> {
    steps: &'a Steps,
    setup: Setup,
    prices: Prices,
    kept: Bag,
    worth: Worth,
    random: Random,
    /// The next victim, which follows the last victim in its file, and the worth up to which it goes.
    follows: (u32, f32),
    waited_ns: u64,
}

/// Wait of the thread in the measured part.
pub(crate) fn waited_ns(steps: &Steps, setup: Setup) -> u64 {
    let mut memory = Memory {
        steps,
        setup,
        prices: Prices::of(&setup),
        kept: Bag::new(steps.blocks()),
        worth: Worth::new(&setup, steps.blocks()),
        random: Random::new(),
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
        self.worth.note(step.act, ids);
        for id in ids {
            match step.act {
                Act::Drop => self.kept.remove(*id),
                _ => self.kept.put(*id),
            }
        }
        while self.kept.len() as u64 > self.setup.pm_blocks + self.setup.dram_blocks {
            self.forget_one();
        }
        self.worth.learn();
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

    fn forget_one(&mut self) {
        let (next, most) = self.follows;
        if self.kept.holds(next) && self.worth.of_block(next) <= most {
            return self.forget(next, most);
        }
        let mut least: Option<(f32, u32)> = None;
        for _ in 0..SAMPLED_BLOCKS {
            let Some(id) = self.kept.at(self.random.below(self.kept.len())) else { return };
            let worth = self.worth.of_block(id);
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
