//! Clean pages: copies of cold blocks, in three lists. New pages enter the short list [`List::Late`]. Only a
//! page that was asked for more often displaces a page of [`List::Stays`] ([TinyLFU], `frequency.rs`), so
//! neither a scan nor a loop empties that list. Pages read ahead have a list of their own, and a lifetime
//! ([AC-BPFS] section 3.2).

use crate::block_cache::{BLOCKS_PER_SHARD, BlockCache};
use crate::header::{Header, List, PageKey};
use crate::page::Page;
use crate::shard::Shard;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_media::PageMemory;
use terrace_media::page_memory::trim_allocator;
use terrace_runtime::sync::atomic::Ordering;

/// Most pages that an insertion drops, under a lock for which other threads wait. One page would do to keep
/// to the budget. A lowered budget needs more, and so do expired pages read ahead.
const DROPPED_BY_INSERTION: usize = 32;
/// Pages of a shard that [`BlockCache::give_back`] drops at most: a millisecond.
const DROPPED_AT_ONCE: usize = 1024;
/// Memory of dropped pages that is kept for new pages.
const KEPT_BYTES: u64 = 4 << 20;

/// [`List::Late`] has one page in so many.
const LATE_SHARE_DIVISOR: usize = 8;
/// The lead in uses that a late page needs to displace a page of [`List::Stays`]. Pages that are asked for in
/// turns have nearly equal counts; without a lead such pages displace each other without end.
const LEAD: u8 = 1;
/// Pages read ahead may displace pages of [`List::Stays`] up to one page in so many.
const AHEAD_SHARE_DIVISOR: usize = 4;

/// A clean page that was found.
pub struct Found {
    /// The page.
    pub page: Page,
    /// Uses of the block, this one included.
    pub touches: u32,
}

impl Shard {
    /// The page to drop next. [`List::Late`] is short. Its oldest page is dropped, unless it was asked for
    /// more often than the oldest page of [`List::Stays`]: then it takes the place of that page, which is
    /// dropped.
    fn victim(&mut self, most: usize, now_ns: u64) -> Option<u32> {
        let ahead = self.oldest(List::Ahead);
        if let Some(expired) = ahead.filter(|at| self.header(*at).time_ns <= now_ns) {
            return Some(expired);
        }
        if self.clean() <= most {
            return None;
        }
        let (few, ahead_most) = (most / LATE_SHARE_DIVISOR, most / AHEAD_SHARE_DIVISOR);
        let stay_most = most - few - self.length(List::Ahead).min(ahead_most);
        while self.length(List::Late) > few {
            let Some(late) = self.oldest(List::Late) else { break };
            let rival = self.oldest(List::Stays).filter(|_| self.length(List::Stays) >= stay_most);
            let Some(rival) = rival else {
                self.move_to(late, List::Stays);
                continue;
            };
            let often = |at: u32| self.frequency.of(&self.header(at).key());
            if often(late) <= often(rival) + LEAD {
                return Some(late);
            }
            self.move_to(late, List::Stays);
            return Some(rival);
        }
        let ahead = ahead.filter(|_| self.length(List::Ahead) > ahead_most || self.length(List::Stays) == 0);
        ahead.or_else(|| self.oldest(List::Stays)).or_else(|| self.oldest(List::Late))
    }
}

impl BlockCache {
    /// Finds a clean page of this version and counts the touch. An older version is dropped.
    pub fn get(&self, key: PageKey, version: u64, now_ns: u64) -> Option<Found> {
        let mut shard = self.shard(&key).lock();
        let at = shard.find(key)?;
        let header = *shard.header(at);
        if header.list.is_dirty() {
            return None;
        }
        if header.version != version || header.list == List::Ahead && header.time_ns <= now_ns {
            self.drop_clean(&mut shard, at);
            return None;
        }
        let touches = u32::from(header.touches) + 1;
        shard.header_mut(at).touches = header.touches.saturating_add(1);
        let list = if header.list == List::Ahead { List::Late } else { header.list };
        shard.move_to(at, list);
        shard.frequency.count(&key);
        Some(Found { page: shard.page(at)?.clone(), touches })
    }

    /// Whether the cache has a clean page of this version that was asked for. A page read ahead does not
    /// count. This look is no touch.
    pub fn holds(&self, key: PageKey, version: u64) -> bool {
        let shard = self.shard(&key).lock();
        shard.find(key).map(|at| shard.header(at)).is_some_and(|header| {
            matches!(header.list, List::Late | List::Stays) && header.version == version
        })
    }

    /// Adds a clean page; `asked` says whether somebody wanted it (one read ahead was not). A dirty page is newer and
    /// stays.
    pub fn insert(&self, key: PageKey, version: u64, page: Page, asked: bool, now_ns: u64) {
        if self.most_pages() == 0 {
            return;
        }
        // The page gets memory of its own: a page that shares a buffer would keep the whole buffer in memory.
        let page = page.alone();
        let mut shard = self.shard(&key).lock();
        match shard.find(key) {
            Some(at) if shard.header(at).list.is_dirty() => return,
            Some(at) => self.drop_clean(&mut shard, at),
            None => {}
        }
        let list = if asked { List::Late } else { List::Ahead };
        let mut header = Header::new(key, list, version, now_ns + self.lifetime_ns);
        header.touches = u16::from(asked);
        if asked {
            shard.frequency.count(&key);
        }
        self.add_clean(&mut shard, header, page, now_ns);
    }

    pub(crate) fn add_clean(&self, shard: &mut Shard, header: Header, page: Page, now_ns: u64) {
        shard.add(header, Some(page));
        self.clean_pages.fetch_add(1, Ordering::Relaxed);
        self.shrink(shard, DROPPED_BY_INSERTION, now_ns);
        shard.frequency.grow_to(shard.clean());
    }

    pub(crate) fn drop_clean(&self, shard: &mut Shard, at: u32) {
        shard.remove(at);
        self.clean_pages.fetch_sub(1, Ordering::Relaxed);
    }

    /// Drops what has expired or is beyond the budget, at most so many pages; true when there may be more.
    fn shrink(&self, shard: &mut Shard, at_once: usize, now_ns: u64) -> bool {
        let most = self.most_pages();
        for _ in 0..at_once {
            let Some(victim) = shard.victim(most, now_ns) else { return false };
            self.drop_clean(shard, victim);
        }
        true
    }

    /// The budget of a shard.
    pub(crate) fn most_pages(&self) -> usize {
        self.pages_per_shard.load(Ordering::Relaxed)
    }

    /// Drops a clean page (its block has come into PM).
    pub fn remove(&self, key: PageKey) {
        let mut shard = self.shard(&key).lock();
        if let Some(at) = shard.find(key).filter(|at| !shard.header(*at).list.is_dirty()) {
            self.drop_clean(&mut shard, at);
        }
    }

    /// Drops the clean pages of some blocks: the file has them no more. Left to age they would stay for long, because what
    /// is asked for as seldom as they were displaces nothing.
    pub fn remove_range(&self, ino: Ino, generation: u32, from: FileBlock, to: FileBlock) {
        if self.bytes() == 0 {
            return;
        }
        let mut first = from.0;
        while first < to.0 {
            // Blocks of the same shard are dropped under one lock.
            let end = (first / BLOCKS_PER_SHARD + 1).saturating_mul(BLOCKS_PER_SHARD).min(to.0);
            let key = |block| PageKey { ino, generation, block: FileBlock(block) };
            let mut shard = self.shard(&key(first)).lock();
            for block in first..end {
                if let Some(at) = shard.find(key(block)).filter(|at| !shard.header(*at).list.is_dirty()) {
                    self.drop_clean(&mut shard, at);
                }
            }
            first = end;
        }
    }

    /// Replaces a clean page, if there is one, by the content that its block has from `version` on; no touch.
    pub fn renew(&self, key: PageKey, version: u64, page: Page) {
        let mut shard = self.shard(&key).lock();
        let Some(at) = shard.find(key).filter(|at| !shard.header(*at).list.is_dirty()) else { return };
        shard.header_mut(at).version = version;
        if let Some(place) = shard.page_mut(at) {
            *place = page;
        }
    }

    /// Raises a clean page from version `from` to version `to`, whose content is equal; no touch.
    pub fn carry(&self, key: PageKey, from: u64, to: u64) {
        let mut shard = self.shard(&key).lock();
        let Some(at) = shard.find(key) else { return };
        let header = shard.header_mut(at);
        if !header.list.is_dirty() && header.version == from {
            header.version = to;
        }
    }

    /// Drops a piece of the pages whose lifetime has ended or that are beyond the budget, and gives memory that no page has
    /// to the system; called now and then from background work. True when there is more to do at once.
    pub fn give_back(&self, now_ns: u64) -> bool {
        let (mut more, mut compacted) = (false, false);
        for shard in &self.shards {
            let mut shard = shard.lock();
            if self.shrink(&mut shard, DROPPED_AT_ONCE, now_ns) {
                more = true;
            } else {
                compacted |= shard.compact();
            }
        }
        if compacted {
            trim_allocator();
        }
        // Surplus memory that is left now is released by the next call. The result speaks of this cache
        // alone, because other caches share the page memory.
        PageMemory::of_process().release(KEPT_BYTES);
        more
    }

    /// Most bytes of clean pages that it keeps.
    pub fn budget_bytes(&self) -> u64 {
        (self.most_pages() * self.shards.len()) as u64 * BLOCK_SIZE
    }

    /// Changes that, for a cache that was made with [`crate::LEAST_ADJUSTABLE_BYTES`] or more. Pages beyond a lower one go by
    /// [`Self::give_back`] and, some with each, by insertions. Dirty pages stay.
    pub fn set_budget(&self, bytes: u64) {
        self.pages_per_shard.store((bytes / BLOCK_SIZE) as usize / self.shards.len(), Ordering::Relaxed);
    }

    /// Bytes of memory that clean pages have, and that dropped ones have had and nobody else has taken yet.
    pub fn held_bytes(&self) -> u64 {
        self.bytes() + PageMemory::of_process().ready_bytes()
    }

    /// Bytes of clean pages.
    pub fn bytes(&self) -> u64 {
        self.clean_pages.load(Ordering::Relaxed) * BLOCK_SIZE
    }

    /// Clean pages of one file, for `terrace where`.
    pub fn count_file(&self, ino: Ino, generation: u32) -> u64 {
        let mine = |header: &&Header| {
            let key = header.key();
            !header.list.is_dirty() && (key.ino, key.generation) == (ino, generation)
        };
        self.shards.iter().map(|shard| shard.lock().headers().filter(mine).count() as u64).sum()
    }
}
