//! Spills: a nearly full lower tier relocates its coldest files to slower tiers.

pub mod state;
pub mod step;
