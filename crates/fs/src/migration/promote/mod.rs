//! Promotion by policy: which blocks come up.

pub(crate) mod cursor;
pub(crate) mod into_dram;
pub(crate) mod on_touch;
pub(crate) mod read_dominated;
