//! `anticache`: LRU over PM blocks, demoting down to a threshold ([AC-BPFS] section 3.1: polled every
//! 10 ms, threshold 80 % of PM).
//!
//! Deviations, on purpose. Blocks that will arrive while a group is demoted count as present
//! (policies/room.rs: `above`). The publication promotes every block read from disk; by default a block is
//! promoted on its second touch, so a scan does not replace the content of PM (design 6).

use super::row::{PolicyKind, PolicyRow, Threshold};
use crate::{Observation, Policy};

impl PolicyKind {
    /// Demotes the least recently used blocks above a threshold of PM use [AC-BPFS].
    pub const ANTICACHE: PolicyKind = PolicyKind(2);
}

pub(super) const ROW: PolicyRow = PolicyRow {
    kind: PolicyKind::ANTICACHE,
    name: "anticache",
    sentence: "Least recently used blocks go down above a threshold",
    threshold: Threshold::Given,
    make: |threshold_percent, parameters| {
        Box::new(AntiCache { threshold_percent, touches: parameters.touches })
    },
};

/// The anti-caching policy.
#[derive(Debug)]
pub struct AntiCache {
    /// Demote while PM use is above this.
    pub threshold_percent: u8,
    /// Promote on this touch; the publication's rule is the first.
    pub touches: u32,
}

impl Policy for AntiCache {
    fn name(&self) -> &'static str {
        ROW.name
    }
    fn blocks_to_demote(&self, seen: &Observation) -> u64 {
        super::room::above(self.threshold_percent, seen)
    }
    fn promotes(&self, touches: u32) -> bool {
        touches >= self.touches
    }
    fn threshold_percent(&self, _seen: &Observation) -> Option<u8> {
        Some(self.threshold_percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evicts_down_to_the_threshold() {
        let policy = AntiCache { threshold_percent: 80, touches: 2 };
        let seen = |free| Observation { total_blocks: 1000, free_blocks: free, ..Observation::default() };
        assert_eq!(policy.blocks_to_demote(&seen(200)), 0);
        assert_eq!(policy.blocks_to_demote(&seen(150)), 50);
        let growing = |free, arriving_blocks| Observation { arriving_blocks, ..seen(free) };
        assert_eq!(policy.blocks_to_demote(&growing(600, 300)), 0);
        assert_eq!(policy.blocks_to_demote(&growing(600, 475)), 0, "there is room for it");
        assert_eq!(policy.blocks_to_demote(&growing(600, 500)), 25);
        assert_eq!(policy.blocks_to_demote(&growing(600, 5000)), 200, "the last fifth stays");
        assert_eq!(policy.blocks_to_demote(&growing(900, 5000)), 0);
        assert!(!policy.promotes(1) && policy.promotes(2));
    }
}
