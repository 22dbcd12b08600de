//! `predictive`: the placement and migration policy of [TPFS], sections 4 and 5.
//!
//! Deviations, on purpose. Files are cold by the last use of their blocks: by the last write alone, blocks
//! promoted for their reads were the first to be demoted. And a cold block is promoted on its second touch,
//! as under `anticache`, not only as part of a read-dominated file; the publication leaves such blocks to its
//! page cache.

use super::row::{PolicyKind, PolicyRow, Threshold};
use crate::threshold::Utilisation;
use crate::{Observation, Parameters, Policy, VictimOrder};

impl PolicyKind {
    /// Predictors, temperature and thresholds that follow reads and writes [TPFS].
    pub const PREDICTIVE: PolicyKind = PolicyKind(3);
}

pub(super) const ROW: PolicyRow = PolicyRow {
    kind: PolicyKind::PREDICTIVE,
    name: "predictive",
    sentence: "Predictors steer writes, write-cold and read-hot data moves",
    threshold: Threshold::Parameters,
    make: |_, parameters| Box::new(Predictive::new(parameters)),
};

/// The policy of [TPFS].
#[derive(Debug)]
pub struct Predictive {
    utilisation: Utilisation,
    touches: u32,
}

impl Predictive {
    /// With the parameters of a mount.
    pub fn new(parameters: &Parameters) -> Predictive {
        Predictive { utilisation: parameters.utilisation, touches: parameters.touches }
    }
}

impl Policy for Predictive {
    fn name(&self) -> &'static str {
        ROW.name
    }
    fn blocks_to_demote(&self, seen: &Observation) -> u64 {
        super::room::above(self.utilisation.percent(seen.pm_read_bytes, seen.pm_written_bytes), seen)
    }
    fn promotes(&self, touches: u32) -> bool {
        touches >= self.touches
    }
    fn threshold_percent(&self, seen: &Observation) -> Option<u8> {
        Some(self.utilisation.percent(seen.pm_read_bytes, seen.pm_written_bytes))
    }
    fn victims(&self) -> VictimOrder {
        VictimOrder::ColdFiles
    }
    fn steers_writes(&self) -> bool {
        true
    }
    fn follows_reads(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demotes_sooner_the_more_is_written() {
        let policy = Predictive::new(&Parameters::PUBLISHED);
        let seen = |read: u64, written: u64| Observation {
            total_blocks: 1000,
            free_blocks: 250,
            pm_read_bytes: read << 20,
            pm_written_bytes: written << 20,
            ..Observation::default()
        };
        for (read, written, threshold, blocks) in [(0, 900, 50, 250), (9, 9, 70, 50), (900, 9, 90, 0)] {
            let seen = seen(read, written);
            assert_eq!(
                (policy.threshold_percent(&seen), policy.blocks_to_demote(&seen)),
                (Some(threshold), blocks)
            );
        }
    }
}
