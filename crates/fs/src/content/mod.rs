//! File content: writes, reads, truncation, preallocation, as system calls mean them.

pub mod access_time;
mod dram_page;
pub mod fallocate;
pub mod intents;
pub mod mapping;
pub mod punch;
pub mod read;
pub mod seek;
pub mod truncate;
pub mod write;
pub mod write_dram;
pub mod write_pm;
pub mod write_whole_block;
