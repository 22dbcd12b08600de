//! DRAM copies of cold blocks: what was read from a lower tier, and its prefetched neighbours with a
//! lifetime ([AC-BPFS] section 3.2). Only clean pages: nothing here is ever the only copy.
//!
//! Invariants: a page is used only if its version equals the present one of its (inode, 2 MiB) region
//! (design S6); a page nobody asked for is dropped when its lifetime ends; all pages together stay
//! within the budget.
//! Lock order: each shard's lock is innermost.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_media::block::{AlignedBlock, Buffer};
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

/// A page inside a buffer that one device read filled.
#[derive(Clone)]
pub struct Page {
    buffer: Arc<Buffer>,
    index: usize,
}

impl Page {
    /// The `index`-th block of a buffer; `None` beyond its end.
    pub fn new(buffer: Arc<Buffer>, index: usize) -> Option<Page> {
        (index < buffer.len()).then_some(Page { buffer, index })
    }
    /// The block's bytes.
    pub fn bytes(&self) -> &[u8; BLOCK_SIZE as usize] {
        const EMPTY: &AlignedBlock = &AlignedBlock([0; BLOCK_SIZE as usize]);
        &self.buffer.get(self.index).unwrap_or(EMPTY).0
    }
}

/// Which block of which file, in which life of the inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageKey {
    /// The file.
    pub ino: Ino,
    /// Its generation.
    pub generation: u32,
    /// The block.
    pub block: FileBlock,
}

/// A page that was found.
pub struct Found {
    /// The page.
    pub page: Page,
    /// How often the block was asked for, this time included.
    pub touches: u32,
}

struct Entry {
    page: Page,
    version: u64,
    expires_ns: u64,
    touches: u32,
    serial: u64,
}

#[derive(Default)]
struct Shard {
    pages: HashMap<PageKey, Entry>,
    /// Insertion and use order; an entry counts only if its serial is the page's present one.
    order: VecDeque<(PageKey, u64)>,
    serial: u64,
}

const SHARDS: usize = 16;

/// The cache of clean pages.
pub struct PageCache {
    shards: Vec<Mutex<Shard>>,
    pages_per_shard: usize,
    lifetime_ns: u64,
    pages: AtomicU64,
}

impl PageCache {
    /// A cache of at most `budget_bytes`; pages nobody asked for live `lifetime_ns`.
    pub fn new(budget_bytes: u64, lifetime_ns: u64) -> PageCache {
        let pages_per_shard = (budget_bytes / BLOCK_SIZE) as usize / SHARDS;
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        PageCache { shards, pages_per_shard, lifetime_ns, pages: AtomicU64::new(0) }
    }

    fn shard(&self, key: &PageKey) -> &Mutex<Shard> {
        // Runs of 32 blocks stay together, so that a prefetch takes few locks.
        let mix = (key.ino.0.wrapping_mul(31) ^ (key.block.0 >> 5)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mix >> 60) as usize % SHARDS]
    }

    /// Finds a page of this version and counts the touch. An older version is dropped.
    pub fn get(&self, key: PageKey, version: u64, now_ns: u64) -> Option<Found> {
        let mut shard = self.shard(&key).lock();
        let entry = shard.pages.get_mut(&key)?;
        if entry.version != version || (entry.touches == 0 && entry.expires_ns <= now_ns) {
            shard.pages.remove(&key);
            self.pages.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        entry.touches += 1;
        let found = Found { page: entry.page.clone(), touches: entry.touches };
        Some(found)
    }

    /// Adds a page; `asked` says whether somebody wanted it (a prefetched neighbour was not).
    pub fn insert(&self, key: PageKey, version: u64, page: Page, asked: bool, now_ns: u64) {
        if self.pages_per_shard == 0 {
            return;
        }
        let mut shard = self.shard(&key).lock();
        shard.serial += 1;
        let serial = shard.serial;
        let touches = u32::from(asked);
        let expires_ns = now_ns + self.lifetime_ns;
        let entry = Entry { page, version, expires_ns, touches, serial };
        if shard.pages.insert(key, entry).is_none() {
            self.pages.fetch_add(1, Ordering::Relaxed);
        }
        shard.order.push_back((key, serial));
        self.shrink(&mut shard, now_ns);
    }

    fn shrink(&self, shard: &mut Shard, now_ns: u64) {
        while let Some((key, serial)) = shard.order.front().copied() {
            let Some(entry) = shard.pages.get(&key).filter(|entry| entry.serial == serial) else {
                shard.order.pop_front();
                continue;
            };
            let expired = entry.touches == 0 && entry.expires_ns <= now_ns;
            if !expired && shard.pages.len() <= self.pages_per_shard {
                return;
            }
            shard.order.pop_front();
            shard.pages.remove(&key);
            self.pages.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Drops a page (its block has come into PM).
    pub fn remove(&self, key: PageKey) {
        if self.shard(&key).lock().pages.remove(&key).is_some() {
            self.pages.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Drops expired pages; called now and then from background work.
    pub fn expire(&self, now_ns: u64) {
        for shard in &self.shards {
            self.shrink(&mut shard.lock(), now_ns);
        }
    }

    /// Bytes of all pages.
    pub fn bytes(&self) -> u64 {
        self.pages.load(Ordering::Relaxed) * BLOCK_SIZE
    }

    /// Pages of one file among `blocks`, for `terrace where`.
    pub fn count_file(&self, ino: Ino, generation: u32) -> u64 {
        let mine = |key: &&PageKey| key.ino == ino && key.generation == generation;
        self.shards.iter().map(|shard| shard.lock().pages.keys().filter(mine).count() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(block: u64) -> PageKey {
        PageKey { ino: Ino(2), generation: 1, block: FileBlock(block) }
    }

    fn page(byte: u8) -> Option<Page> {
        Page::new(Arc::new(vec![AlignedBlock([byte; 4096])]), 0)
    }

    #[test]
    fn versions_touches_lifetime_and_budget() -> Result<(), &'static str> {
        let cache = PageCache::new(16 * 4096 * 4, 100);
        cache.insert(key(1), 7, page(1).ok_or("page")?, true, 0);
        cache.insert(key(2), 7, page(2).ok_or("page")?, false, 0);
        assert_eq!(cache.get(key(1), 7, 1000).map(|f| (f.touches, f.page.bytes()[0])), Some((2, 1)));
        assert!(cache.get(key(2), 7, 1000).is_none(), "prefetched page outlived its lifetime");
        assert!(cache.get(key(1), 8, 0).is_none(), "older version was used");
        for block in 0..1000 {
            cache.insert(key(block * 32), 1, page(0).ok_or("page")?, true, 0);
        }
        assert!(cache.bytes() <= 16 * 4096 * 4);
        Ok(())
    }
}
