//! The choice of the clean copy that goes next, in PM and in DRAM: the least worth of a random sample, then
//! the copies that follow it in its file.

use super::blocks::Memory;
use super::list::Bag;
use super::steps::Steps;
use super::worth::{Random, TOGETHER, Worth};

/// Copies in a random sample; the copy of least worth in the sample goes.
const SAMPLED_COPIES: usize = 32;

/// A copy that goes: its worth and its block.
pub(super) type Victim = (f32, u32);

/// The order of victims.
pub(super) struct Victims {
    /// By [`Memory`]: the next victim, and the worth up to which it goes.
    follows: [(u32, f32); 2],
    random: Random,
}

impl Victims {
    pub fn new(steps: &Steps) -> Victims {
        Victims { follows: [(no_block(steps), 0.0); 2], random: Random::new() }
    }

    /// A copy of little worth: the successor of the last victim, or the least of a random sample.
    pub fn least(&mut self, memory: Memory, kept: &Bag, worth: &Worth) -> Option<Victim> {
        let (next, most) = self.follows[memory as usize];
        if kept.holds(next) && worth.of_block(next) <= most {
            return Some((worth.of_block(next), next));
        }
        let mut least: Option<Victim> = None;
        for _ in 0..SAMPLED_COPIES {
            let id = kept.at(self.random.below(kept.len()))?;
            let worth = worth.of_block(id);
            if least.is_none_or(|it| worth < it.0) {
                least = Some((worth, id));
            }
        }
        least
    }

    /// Notes that a copy goes: the next block of its file is the next candidate.
    pub fn goes(&mut self, memory: Memory, (worth, id): Victim, steps: &Steps) {
        let file_of = |id: u32| steps.places.get(id as usize).map(|(file, _)| *file);
        let (expected, most) = self.follows[memory as usize];
        let next = if file_of(id + 1) == file_of(id) { id + 1 } else { no_block(steps) };
        self.follows[memory as usize] = (next, if expected == id { most } else { worth * TOGETHER });
    }
}

/// A number that no block has; every [`Bag`] accepts it.
fn no_block(steps: &Steps) -> u32 {
    steps.blocks() as u32
}
