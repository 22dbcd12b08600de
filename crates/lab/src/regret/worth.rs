//! The worth of copies, learnt from the trace so far (terrace_placement::density), and the random numbers of
//! the samples from which victims are chosen.

use super::setup::{Setup, transfer_ns};
use super::steps::Act;
use terrace_placement::density::{Class, Density};

/// Uses of blocks between two times of learning; the ages of every `SAMPLED`-th block are learnt from.
const LEARNT_AFTER_USES: u64 = 8192;
const SAMPLED: usize = 8;
/// Blocks that follow a victim in its file go too, while their worth is at most this factor of the victim's:
/// requests wait once for each run of missed blocks, so long runs cost less.
pub(super) const TOGETHER: f32 = 1.05;

/// The worth of each block.
pub(super) struct Worth {
    density: Density,
    /// Uses of blocks so far, and their number at the last learning.
    used: u64,
    learnt_at: u64,
    /// The last use of each block; 0: none.
    uses: Vec<(u64, Class)>,
}

impl Worth {
    pub fn new(setup: &Setup, blocks: usize) -> Worth {
        let device = setup.device;
        Worth {
            density: Density::new(device.read_latency_ns, transfer_ns(1, device.read_bytes_per_s)),
            used: 0,
            learnt_at: 0,
            uses: vec![(0, Class::default()); blocks],
        }
    }

    pub fn of_block(&self, id: u32) -> f32 {
        match self.uses[id as usize] {
            (0, _) => 0.0,
            (last, class) => self.density.of(class, self.used - last),
        }
    }

    /// Notes the uses of a step.
    pub fn note(&mut self, act: Act, ids: &[u32]) {
        let read = act == Act::Read;
        for id in ids {
            self.used += 1;
            let (last, class) = self.uses[*id as usize];
            let age = (last > 0).then_some(self.used - last);
            if let Some(age) = age {
                self.density.used(class, age, read);
            }
            self.uses[*id as usize] = match act {
                Act::Drop => (0, Class::default()),
                _ => (self.used, Class::of(read, ids.len() as u64, age)),
            };
        }
    }

    /// Learns from the noted uses when enough are new.
    pub fn learn(&mut self) {
        if self.used >= self.learnt_at + LEARNT_AFTER_USES {
            self.learnt_at = self.used;
            let waiting = self.uses.iter().step_by(SAMPLED).filter(|(last, _)| *last > 0);
            let waiting = waiting.map(|(last, class)| (*class, self.used + 1 - last));
            self.density.learn(waiting, SAMPLED as f32);
        }
    }
}

/// Random numbers by xorshift64: the same in every run.
pub(super) struct Random(u64);

impl Random {
    pub fn new() -> Random {
        Random(0x9e37_79b9)
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }
}
