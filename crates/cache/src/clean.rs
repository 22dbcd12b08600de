//! Clean pages: copies of cold blocks, in two segments: a few that came lately, and those that stay, which only what is
//! asked for more often displaces ([TinyLFU], `frequency.rs`), so that neither a scan nor a loop does; and pages read ahead,
//! with a lifetime ([AC-BPFS] section 3.2).

use crate::header::{Header, List, PageKey};
use crate::page::Page;
use crate::shard::Shard;
use crate::{BlockCache, Found, TOGETHER};
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_runtime::sync::atomic::Ordering;

/// How often clean pages are looked at for buffers that are kept for few of them: a second.
const TIDY_NS: u64 = 1_000_000_000;

/// The part of the pages that came lately: one in so many.
const LATELY: usize = 8;
/// How much more often a page that came lately must have been asked for. Of pages that are asked for alike, in turns, those
/// that stay should not change: counts of one lead may be of the moment.
const LEAD: u8 = 1;
/// Pages read ahead that make pages go which are to stay: one in so many.
const AHEAD: usize = 4;

/// The lists of clean pages.
const CLEAN: [List; 3] = [List::Ahead, List::Late, List::Stays];

impl Shard {
    fn clean(&self) -> usize {
        CLEAN.iter().map(|list| self.length(*list)).sum()
    }

    /// What is dropped next. Pages that came lately ([`List::Late`]) are few; the oldest of them goes, or, if it was asked
    /// for more often, takes the place of the oldest of those that stay ([`List::Stays`]).
    fn victim(&mut self, most: usize, now_ns: u64) -> Option<u32> {
        let ahead = self.oldest(List::Ahead);
        if let Some(expired) = ahead.filter(|at| self.header(*at).time_ns <= now_ns) {
            return Some(expired);
        }
        if self.clean() <= most {
            return None;
        }
        let (few, ahead_most) = (most / LATELY, most / AHEAD);
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
        if header.list == List::Dirty {
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

    /// Whether there is a clean page of this version that somebody asked for, not one that was read ahead; not a touch.
    pub fn holds(&self, key: PageKey, version: u64) -> bool {
        let shard = self.shard(&key).lock();
        shard.find(key).map(|at| shard.header(at)).is_some_and(|header| {
            matches!(header.list, List::Late | List::Stays) && header.version == version
        })
    }

    /// Adds a clean page; `asked` says whether somebody wanted it (one read ahead was not). A dirty page is newer and
    /// stays.
    pub fn insert(&self, key: PageKey, version: u64, page: Page, asked: bool, now_ns: u64) {
        if self.pages_per_shard == 0 {
            return;
        }
        let mut shard = self.shard(&key).lock();
        match shard.find(key) {
            Some(at) if shard.header(at).list == List::Dirty => return,
            Some(at) => self.drop_clean(&mut shard, at),
            None => {}
        }
        let list = if asked { List::Late } else { List::Ahead };
        let mut header = Header::new(key, list, version, now_ns + self.lifetime_ns);
        header.touches = u16::from(asked);
        if asked {
            shard.frequency.count(&key);
        }
        shard.add(header, Some(page));
        self.clean_pages.fetch_add(1, Ordering::Relaxed);
        self.shrink(&mut shard, now_ns);
    }

    pub(crate) fn drop_clean(&self, shard: &mut Shard, at: u32) {
        shard.remove(at);
        self.clean_pages.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn shrink(&self, shard: &mut Shard, now_ns: u64) {
        while let Some(victim) = shard.victim(self.pages_per_shard, now_ns) {
            self.drop_clean(shard, victim);
        }
    }

    /// Drops a clean page (its block has come into PM).
    pub fn remove(&self, key: PageKey) {
        let mut shard = self.shard(&key).lock();
        if let Some(at) = shard.find(key).filter(|at| shard.header(*at).list != List::Dirty) {
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
            // One lock for those that stay together.
            let end = (first / TOGETHER + 1).saturating_mul(TOGETHER).min(to.0);
            let key = |block| PageKey { ino, generation, block: FileBlock(block) };
            let mut shard = self.shard(&key(first)).lock();
            for block in first..end {
                if let Some(at) = shard.find(key(block)).filter(|at| shard.header(*at).list != List::Dirty) {
                    self.drop_clean(&mut shard, at);
                }
            }
            first = end;
        }
    }

    /// Gives a clean page the content that its block has from `version` on; not a touch. Where there is none, nothing.
    pub fn renew(&self, key: PageKey, version: u64, page: Page) {
        let mut shard = self.shard(&key).lock();
        let Some(at) = shard.find(key).filter(|at| shard.header(*at).list != List::Dirty) else { return };
        shard.header_mut(at).version = version;
        if let Some(place) = shard.page_mut(at) {
            *place = page;
        }
    }

    /// Takes a clean page of version `from` over into version `to`, of which the content is the same; not a touch.
    pub fn carry(&self, key: PageKey, from: u64, to: u64) {
        let mut shard = self.shard(&key).lock();
        let Some(at) = shard.find(key) else { return };
        let header = shard.header_mut(at);
        if header.list != List::Dirty && header.version == from {
            header.version = to;
        }
    }

    /// Drops pages whose lifetime has ended; called now and then from background work. What is left of a buffer whose
    /// other pages have gone gets one of its own, once a second.
    pub fn expire(&self, now_ns: u64) {
        let due_ns = self.tidy_at_ns.load(Ordering::Relaxed);
        let tidies = now_ns >= due_ns;
        if tidies {
            self.tidy_at_ns.store(now_ns.saturating_add(TIDY_NS), Ordering::Relaxed);
        }
        for shard in &self.shards {
            self.shrink(&mut shard.lock(), now_ns);
        }
        for shard in self.shards.iter().filter(|_| tidies) {
            shard.lock().tidy();
        }
    }

    /// Most bytes of clean pages that it keeps.
    pub fn budget_bytes(&self) -> u64 {
        (self.pages_per_shard * self.shards.len()) as u64 * BLOCK_SIZE
    }

    /// Bytes of clean pages.
    pub fn bytes(&self) -> u64 {
        self.clean_pages.load(Ordering::Relaxed) * BLOCK_SIZE
    }

    /// Clean pages of one file, for `terrace where`.
    pub fn count_file(&self, ino: Ino, generation: u32) -> u64 {
        let mine = |header: &&Header| {
            let key = header.key();
            header.list != List::Dirty && (key.ino, key.generation) == (ino, generation)
        };
        self.shards.iter().map(|shard| shard.lock().headers().filter(mine).count() as u64).sum()
    }
}
