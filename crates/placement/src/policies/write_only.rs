//! `write-only`: the earlier form of the same policy, [Ziggurat] sections 4 and 5: writes alone decide.
//!
//! Reads change only the threshold: no file is read-dominated, so neither a demotion nor a promotion follows
//! the reads of a file. A cold block is promoted on its second touch, as under the other policies.

use super::predictive::Predictive;
use super::row::{PolicyKind, PolicyRow, Threshold};
use crate::{Observation, Parameters, Policy, VictimOrder};

impl PolicyKind {
    /// The earlier form of `predictive`, which looks at writes only [Ziggurat].
    pub const WRITE_ONLY: PolicyKind = PolicyKind(4);
}

pub(super) const ROW: PolicyRow = PolicyRow {
    kind: PolicyKind::WRITE_ONLY,
    name: "write-only",
    sentence: "The same for writes alone",
    threshold: Threshold::Parameters,
    make: |_, parameters| Box::new(WriteOnly::new(parameters)),
};

/// The policy of [Ziggurat].
#[derive(Debug)]
pub struct WriteOnly {
    like: Predictive,
}

impl WriteOnly {
    /// With the parameters of a mount.
    pub fn new(parameters: &Parameters) -> WriteOnly {
        WriteOnly { like: Predictive::new(parameters) }
    }
}

impl Policy for WriteOnly {
    fn name(&self) -> &'static str {
        ROW.name
    }
    fn blocks_to_demote(&self, seen: &Observation) -> u64 {
        self.like.blocks_to_demote(seen)
    }
    fn promotes(&self, touches: u32) -> bool {
        self.like.promotes(touches)
    }
    fn threshold_percent(&self, seen: &Observation) -> Option<u8> {
        self.like.threshold_percent(seen)
    }
    fn victims(&self) -> VictimOrder {
        VictimOrder::WriteColdFiles
    }
    fn steers_writes(&self) -> bool {
        true
    }
}
