//! Promotion by policy: which blocks come up.

pub mod cursor;
pub mod into_dram;
pub mod on_touch;
pub mod read_dominated;
