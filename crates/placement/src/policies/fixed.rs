//! `static`: only requested movements run, and demotion for a write that finds PM full: that demotion runs
//! under every policy.

use crate::{Observation, Policy};

/// Migrates nothing of its own accord.
#[derive(Debug)]
pub struct Static;

impl Policy for Static {
    fn name(&self) -> &'static str {
        "static"
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
