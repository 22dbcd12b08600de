//! A policy without one of its predictors, to measure the worth of each predictor (docs/evaluation.md, row
//! regret).
//!
//! Mounts do not offer it; benches and tests wrap a policy, and change the parameters alike.

use crate::{Observation, Parameters, Policy, VictimOrder};

/// The part that is left out of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ablation {
    /// No part: the policy is whole.
    #[default]
    Nothing,
    /// The synchronicity predictor: every file counts as asynchronous, so that the write size alone decides.
    SynchronicityAsync,
    /// The synchronicity predictor: every file counts as synchronous, so that every write has its home in PM.
    SynchronicitySync,
    /// The write size predictor: no write is large.
    WriteSize,
    /// The read frequency predictor: no file is read-dominated.
    ReadFrequency,
    /// Temperature: the least recently used blocks are demoted, without regard to files.
    Temperature,
}

impl Ablation {
    /// The policy without it.
    pub fn of(self, policy: Box<dyn Policy>) -> Box<dyn Policy> {
        if self == Ablation::Nothing { policy } else { Box::new(Ablated { policy, without: self }) }
    }

    /// The parameters without it.
    pub fn parameters(self, parameters: Parameters) -> Parameters {
        match self {
            Ablation::SynchronicityAsync => Parameters { sync_blocks: 0, ..parameters },
            Ablation::SynchronicitySync => Parameters { sync_blocks: u32::MAX, ..parameters },
            Ablation::WriteSize => Parameters { large_min: u64::MAX, ..parameters },
            _ => parameters,
        }
    }
}

struct Ablated {
    without: Ablation,
    policy: Box<dyn Policy>,
}

impl Policy for Ablated {
    fn name(&self) -> &'static str {
        self.policy.name()
    }
    fn blocks_to_demote(&self, seen: &Observation) -> u64 {
        self.policy.blocks_to_demote(seen)
    }
    fn promotes(&self, touches: u32) -> bool {
        self.policy.promotes(touches)
    }
    fn threshold_percent(&self, seen: &Observation) -> Option<u8> {
        self.policy.threshold_percent(seen)
    }
    fn victims(&self) -> VictimOrder {
        match self.without {
            Ablation::Temperature => VictimOrder::LeastRecentlyUsed,
            _ => self.policy.victims(),
        }
    }
    fn steers_writes(&self) -> bool {
        self.policy.steers_writes()
    }
    fn follows_reads(&self) -> bool {
        self.without != Ablation::ReadFrequency && self.policy.follows_reads()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::{Room, WriteSeen, write_home};
    use crate::policies::Predictive;
    use crate::synchronicity::Synchronicity;
    use crate::write_size::{Before, Entry};
    use crate::{Home, Parameters};

    /// Homes of a stream of 1 MiB writes that is never synced, and of one that is synced after each.
    fn homes(without: Ablation) -> [Home; 2] {
        let parameters = without.parameters(Parameters::default());
        let home = |synced: bool| {
            let (mut state, mut entry) = (Synchronicity::default(), Entry::default());
            for _ in 0..20 {
                state.wrote(256, &parameters);
                entry = Entry::after(Before::Continues(entry), 1 << 20, &parameters);
                if synced {
                    state.synced(&parameters);
                }
            }
            let seen = WriteSeen { durable: false, synchronicity: state, entry, room: Room::Some };
            write_home(&seen, &parameters)
        };
        [home(false), home(true)]
    }

    #[test]
    fn each_leaves_out_one_thing() {
        let policy = |without: Ablation| without.of(Box::new(Predictive::new(&Parameters::PUBLISHED)));
        let all = policy(Ablation::Nothing);
        assert!(all.follows_reads() && all.victims() == VictimOrder::ColdFiles);
        assert!(!policy(Ablation::ReadFrequency).follows_reads());
        assert_eq!(policy(Ablation::Temperature).victims(), VictimOrder::LeastRecentlyUsed);
        assert!(policy(Ablation::Temperature).follows_reads() && policy(Ablation::WriteSize).steers_writes());
        assert_eq!(homes(Ablation::Nothing), [Home::Block, Home::Pm]);
        assert_eq!(homes(Ablation::SynchronicityAsync), [Home::Block, Home::Block]);
        assert_eq!(homes(Ablation::SynchronicitySync), [Home::Pm, Home::Pm]);
        assert_eq!(homes(Ablation::WriteSize), [Home::Pm, Home::Pm]);
    }
}
