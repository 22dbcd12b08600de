//! The parts of a mounted pool's state, each with its own locks and private fields.
//!
//! A part knows no other part. Functions over several of them stand in the rooms above and get a
//! [`Store`](crate::store::store::Store), which holds them all.

pub(crate) mod devices;
pub(crate) mod dram;
pub(crate) mod inodes;
pub(crate) mod mode;
pub(crate) mod persistent;
pub(crate) mod pressure;
pub(crate) mod steering;
