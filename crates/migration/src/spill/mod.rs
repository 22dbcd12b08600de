//! Spilling: a lower tier that is nearly full gives its coldest files to slower tiers.

pub mod state;
pub mod step;
