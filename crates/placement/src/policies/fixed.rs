//! `static`: only requested movements run, and demotion for a write that finds PM full: that demotion runs
//! under every policy.

use super::row::{PolicyKind, PolicyRow, Threshold};
use crate::{Observation, Policy};

impl PolicyKind {
    /// Migrates only on request, and when PM is full.
    pub const STATIC: PolicyKind = PolicyKind(1);
}

pub(super) const ROW: PolicyRow = PolicyRow {
    kind: PolicyKind::STATIC,
    name: "static",
    sentence: "Moves nothing before the fast tier is full; then what there is no room for goes down, least recently used first",
    threshold: Threshold::None,
    make: |_, _| Box::new(Static),
};

/// Migrates nothing of its own accord.
#[derive(Debug)]
pub struct Static;

impl Policy for Static {
    fn name(&self) -> &'static str {
        ROW.name
    }
    fn blocks_to_demote(&self, _seen: &Observation) -> u64 {
        0
    }
    fn promotes(&self, _touches: u32) -> bool {
        false
    }
    fn threshold_percent(&self, _seen: &Observation) -> Option<u8> {
        None
    }
}
