//! The catalog: all metadata but inodes and the maps of PM blocks, in B+trees in PM (design 4.3).
//!
//! The key space (inode, kind, sub-key) is divided by inode number into shards (chunk keys by chunk
//! number), each a tree with its own lock. Leaf edits are logged byte for byte; splits, compactions
//! and merges copy pages: the new ones are streamed unlogged to claimed blocks, and the record holds
//! only the parent's changed bytes and the block table's entries (T4, T6, T7).
//! Invariants: a page's cells ascend; in an inner page the first key is empty and key `i` is a lower
//! bound of child `i`'s keys and above all of child `i - 1`'s; a child's level is its parent's minus
//! one, so every descent ends; a leaf may be empty (its last cell was removed by a transaction that
//! did not unlink it, or room was made for keys to come). A damaged page gives `Error::Corrupt`, never
//! a panic or an endless loop (I11).
//! Lock order (L1): shards by number, after inodes and before orphan lists and the allocator. Making
//! room reserves and claims before it locks.
//! Called by space, store, fs, migration and engine.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod aside;
pub mod below;
mod catalog;
mod change;
pub mod chunks;
pub mod cold_map;
pub mod dentry;
mod divide;
pub mod edit;
pub mod intent;
mod node;
mod parts;
mod reader;
mod scan;
mod shards;
mod shrink;
mod split;
pub mod symlink;
mod touched;
pub mod xattr;

pub use aside::{IoPin, PageCopy};
pub use catalog::Catalog;
pub use change::STRUCTURAL_RECORD_BYTES;
pub use chunks::DeviceRun;
pub use edit::{Edit, Freed, Shortage};
pub use reader::Reader;
pub use shards::{ShardRead, ShardsWrite};
