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
//! Called by fs, migration and check.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod aside;
pub mod below;
pub mod chunk_space;
pub mod chunks;
pub mod cold_map;
pub mod dentry;
pub mod edit;
pub mod intent;
mod node;
mod parts;
mod shrink;
mod split;
pub mod symlink;
pub mod tree;
pub mod xattr;

pub use aside::PageCopy;
pub use chunk_space::{ChunkSpace, Pin, SpaceTotals};
pub use chunks::DeviceRun;
pub use edit::{Edit, Freed, Shortage};
pub use split::STRUCTURAL_RECORD_BYTES;
pub use tree::{Catalog, Reader, ShardRead, ShardsWrite};
