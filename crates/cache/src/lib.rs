//! Pages of file blocks in DRAM: clean pages, which are copies of cold blocks, and dirty pages for lower
//! tiers (design 8). A block has one header. Clean pages stay by the frequency of their uses, pages read
//! ahead have a lifetime, and dirty pages are written back in the order of their last write.
//!
//! Invariants: a clean page is used only if its version equals the present version of its (inode, block)
//! (design S6). Clean pages stay within the budget; after the budget is lowered, pages are dropped in pieces.
//! A dirty page leaves the cache only by a call for this page, whatever the budget. Lock order: a shard's
//! lock and a lock of the index of dirty blocks are innermost, and never held together.
#![forbid(unsafe_code)]

mod clean;
mod dirty;
mod frequency;
mod header;
mod page;
mod shard;
#[cfg(test)]
mod tests;

pub use dirty::{DirtyPage, Installed};
pub use header::{Home, Lines, PageKey};
pub use page::Page;

use shard::Shard;
use terrace_format::BLOCK_SIZE;
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicU64, AtomicUsize};

/// A clean page that was found.
pub struct Found {
    /// The page.
    pub page: Page,
    /// Uses of the block, this one included.
    pub touches: u32,
}

/// Most shards, and the fewest pages of one: a piece of a prefetch must find room in its shard beside others.
const SHARDS: usize = 16;
const LEAST_PAGES: usize = 32 * TOGETHER as usize;

/// A cache of at least this budget has all its shards. Its budget can be raised as if it had been made with
/// the larger budget.
pub const LEAST_ADJUSTABLE_BYTES: u64 = (SHARDS * LEAST_PAGES) as u64 * BLOCK_SIZE;

/// Consecutive blocks of a file that lie in the same shard. The more they are, the fewer locks a prefetch
/// takes.
const TOGETHER: u64 = 32;

/// The block cache.
pub struct BlockCache {
    shards: Vec<Mutex<Shard>>,
    files: dirty::Files,
    /// The budget of each shard.
    pages_per_shard: AtomicUsize,
    lifetime_ns: u64,
    clean_pages: AtomicU64,
    dirty_count: AtomicU64,
    versions: AtomicU64,
}

impl BlockCache {
    /// A cache of at most `budget_bytes` of clean pages; pages read ahead live `lifetime_ns` unless they are
    /// asked for. The limit of dirty pages is the writers' business.
    pub fn new(budget_bytes: u64, lifetime_ns: u64) -> BlockCache {
        let pages = (budget_bytes / BLOCK_SIZE) as usize;
        let shards = (pages / LEAST_PAGES).clamp(1, SHARDS);
        let pages_per_shard = pages / shards;
        BlockCache {
            shards: (0..shards).map(|_| Mutex::new(Shard::new(pages_per_shard))).collect(),
            files: dirty::Files::new(),
            pages_per_shard: AtomicUsize::new(pages_per_shard),
            lifetime_ns,
            clean_pages: AtomicU64::new(0),
            dirty_count: AtomicU64::new(0),
            versions: AtomicU64::new(1),
        }
    }

    fn shard(&self, key: &PageKey) -> &Mutex<Shard> {
        let mix = (key.ino.0.wrapping_mul(31) ^ (key.block.0 / TOGETHER)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mix >> 60) as usize % self.shards.len()]
    }
}
