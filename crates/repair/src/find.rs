//! Finds the structures that survive: by their trees, and by the block table and the devices where a tree is damaged.
//!
//! Invariant: a found page or block has one owner; a second pointer to it counts as damage.

mod below;
pub(crate) mod cells;
pub(crate) mod clustered;
pub(crate) mod cuckoo;
mod extents;
pub(crate) mod inode_pages;
pub(crate) mod maps;
mod radix;
mod shared_table;
pub(crate) mod summaries;
pub(crate) mod unreached;
