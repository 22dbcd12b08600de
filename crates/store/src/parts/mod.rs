//! The parts of a mounted pool's state, each with its own locks and private fields.
//!
//! A part knows no other part. Functions over several parts stand in the other modules of the crate and take
//! the [`Store`](crate::store::Store), which holds all parts.

pub mod devices;
pub mod dram;
pub mod inodes;
pub mod mode;
pub mod persistent;
pub mod pressure;
pub mod steering;
