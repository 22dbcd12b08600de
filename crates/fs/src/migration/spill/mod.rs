//! Spilling: a lower tier that is nearly full gives its coldest files to slower tiers.

pub(crate) mod state;
pub(crate) mod step;
