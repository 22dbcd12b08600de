//! Promotion by policy: the choice of promoted blocks.

pub mod cursor;
pub mod into_dram;
pub mod on_touch;
pub mod read_dominated;
