//! File maps: which PM block holds block b of file i (design 4.4).
//!
//! [`FileMap`] is the contract; [`RadixTree`] is its first implementation and also maps the inode file
//! ([`InodeFileMap`]).
//! Invariants: every change is logged in the caller's transaction (T1); every block number read from the
//! medium is checked; nothing read from a damaged medium panics or loops.
//! Lock order: the caller holds the inode's lock (L1), which is the lock of the words of its map. Where files share words
//! (`cuckoo`) their locks come after the catalog's shards and before the allocator.
//! Called by store and engine.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod clustered;
pub mod cuckoo;
pub mod cursor;
pub mod extent;
pub mod file_map;
pub mod hashfs;
mod hashfs_search;
pub mod inode_file;
pub mod map_inode;
pub mod map_row;
pub mod radix_tree;
pub mod registry;

mod hidden;
mod log_words;
mod pages;
mod presence_change;
mod radix;
mod radix_change;
mod radix_prune;
mod radix_read;
mod recent;

pub use clustered::ClusteredMap;
pub use cuckoo::CuckooMap;
pub use cursor::Cursor;
pub use extent::ExtentTree;
pub use file_map::{FileMap, MapInode, Mapping};
pub use inode_file::InodeFileMap;
pub use map_row::MapRow;
pub use radix_tree::RadixTree;
pub use registry::MAPS;
