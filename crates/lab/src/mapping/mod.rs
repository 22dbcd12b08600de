//! File maps without a file system: a pool whose blocks of content are never touched, so that the map of a file of 4 GiB
//! fits into a little memory. Rows hashfs-5 to hashfs-11 count and time single operations of the map here.
//!
//! Every map makes its changes in the same transactions, with the same block table and log, and each insertion includes
//! the allocation of its blocks. An operation is what the engine does for it, without inode, data and locks of files.

pub(crate) mod access;
pub(crate) mod cold_pool;
pub(crate) mod contestant;
pub(crate) mod engine_pool;
pub(crate) mod files;
pub(crate) mod level_hash;
pub(crate) mod page_cache;
pub(crate) mod picks;
pub(crate) mod pool;
pub(crate) mod stopwatch;
