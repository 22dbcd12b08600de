//! Free space of lower tiers, the volatile part: claims, holes, promises, I/O pins.
//!
//! The persistent part is a bitmap of used blocks for each chunk ([`terrace_catalog::chunks`]). A claim becomes permanent
//! with the transaction that marks it used, or is released. Bitmaps are loaded lazily.
//! Invariants:
//! 1. A block is free for a claim when its bitmap says so, no claim holds it and no I/O pin covers it.
//! 2. Promised blocks are free until a claim out of the promise takes them.
//! 3. A free reported late, for a record that a load has already seen, frees no new claim.
//!
//! Lock order: the space lock is an allocator lock (after catalog shards); loading and allocating take
//! shard locks one at a time and are called without locks.
//! Called by store, fs, migration and engine.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod accounts;
mod chunk;
mod chunk_space;
mod device_space;
mod fill;
mod io_pins;
mod load;
mod lower_space;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod model;
mod reservation;

pub use accounts::ChunkAccounts;
pub use chunk_space::{ChunkSpace, Pin, SpaceTotals};
