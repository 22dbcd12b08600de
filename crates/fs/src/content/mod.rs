//! File content: writes, reads, truncation, preallocation, as system calls mean them.

pub(crate) mod access_time;
pub(crate) mod fallocate;
pub(crate) mod intents;
pub(crate) mod punch;
pub(crate) mod read;
pub(crate) mod seek;
pub(crate) mod truncate;
pub(crate) mod write;
pub(crate) mod write_dram;
pub(crate) mod write_pm;
pub(crate) mod write_whole_block;
