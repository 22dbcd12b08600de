//! The block cache: shards of pages, the index of dirty blocks, and counters.
//!
//! Lock order: a shard's lock and a lock of the index are innermost, and never held together.

use crate::dirty_files::DirtyFiles;
use crate::header::PageKey;
use crate::shard::Shard;
use terrace_format::BLOCK_SIZE;
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicU64, AtomicUsize};

/// Most shards.
const SHARDS_MAX: usize = 16;
/// The fewest pages of a shard: a piece of a prefetch must find room in its shard beside others.
const SHARD_PAGES_MIN: usize = 32 * BLOCKS_PER_SHARD as usize;

/// A cache of at least this budget has all its shards. Its budget can be raised as if it had been made with
/// the larger budget.
pub const LEAST_ADJUSTABLE_BYTES: u64 = (SHARDS_MAX * SHARD_PAGES_MIN) as u64 * BLOCK_SIZE;

/// Consecutive blocks of a file that lie in the same shard. The more they are, the fewer locks a prefetch
/// takes.
pub(crate) const BLOCKS_PER_SHARD: u64 = 32;

/// The block cache.
pub struct BlockCache {
    pub(crate) shards: Vec<Mutex<Shard>>,
    pub(crate) files: DirtyFiles,
    /// The budget of each shard.
    pub(crate) pages_per_shard: AtomicUsize,
    pub(crate) lifetime_ns: u64,
    pub(crate) clean_pages: AtomicU64,
    /// Dirty pages with a home below PM.
    pub(crate) dirty_count: AtomicU64,
    /// Dirty pages with home PM.
    pub(crate) lazy_count: AtomicU64,
    pub(crate) versions: AtomicU64,
}

impl BlockCache {
    /// A cache of at most `budget_bytes` of clean pages; pages read ahead live `lifetime_ns` unless they are
    /// asked for. The limit of dirty pages is the writers' business.
    pub fn new(budget_bytes: u64, lifetime_ns: u64) -> BlockCache {
        let pages = (budget_bytes / BLOCK_SIZE) as usize;
        let shards = (pages / SHARD_PAGES_MIN).clamp(1, SHARDS_MAX);
        let pages_per_shard = pages / shards;
        assert!(shards * pages_per_shard <= pages, "{shards} shards take more than {pages} pages");
        BlockCache {
            shards: (0..shards).map(|_| Mutex::new(Shard::new(pages_per_shard))).collect(),
            files: DirtyFiles::new(),
            pages_per_shard: AtomicUsize::new(pages_per_shard),
            lifetime_ns,
            clean_pages: AtomicU64::new(0),
            dirty_count: AtomicU64::new(0),
            lazy_count: AtomicU64::new(0),
            versions: AtomicU64::new(1),
        }
    }

    pub(crate) fn shard(&self, key: &PageKey) -> &Mutex<Shard> {
        let mix = (key.ino.0.wrapping_mul(31) ^ (key.block.0 / BLOCKS_PER_SHARD))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mix >> 60) as usize % self.shards.len()]
    }
}
