//! The parts of a mounted pool's state, each with its own locks and private fields.
//!
//! A part knows no other part. Functions over several of them stand in the rooms above and get a
//! [`Store`](crate::store::Store), which holds them all.

pub mod devices;
pub mod dram;
pub mod inodes;
pub mod mode;
pub mod persistent;
pub mod pressure;
pub mod steering;
