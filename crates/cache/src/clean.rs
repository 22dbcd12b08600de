//! Clean pages: copies of cold blocks, in two segments, so that a scan does not drop what was asked for twice; and
//! pages read ahead, with a lifetime ([AC-BPFS] section 3.2).

use crate::header::{Header, List, PageKey};
use crate::page::Page;
use crate::shard::Shard;
use crate::{BlockCache, Found};
use terrace_format::{BLOCK_SIZE, Ino};
use terrace_runtime::sync::atomic::Ordering;

/// How often clean pages are looked at for buffers that are kept for few of them: a second.
const TIDY_NS: u64 = 1_000_000_000;

/// The lists of clean pages.
const CLEAN: [List; 3] = [List::Ahead, List::Once, List::Again];

impl Shard {
    fn clean(&self) -> usize {
        CLEAN.iter().map(|list| self.length(*list)).sum()
    }

    /// What is dropped next.
    fn victim(&self, most: usize, now_ns: u64) -> Option<u32> {
        let ahead = self.oldest(List::Ahead);
        if let Some(expired) = ahead.filter(|at| self.header(*at).time_ns <= now_ns) {
            return Some(expired);
        }
        if self.clean() <= most {
            return None;
        }
        self.oldest(List::Once).or(ahead).or_else(|| self.oldest(List::Again))
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
        let list = if header.list == List::Ahead { List::Once } else { List::Again };
        shard.move_to(at, list);
        // What was asked for twice keeps three quarters at most: the rest is for what comes.
        while shard.length(List::Again) > (self.pages_per_shard * 3 / 4).max(1) {
            let Some(oldest) = shard.oldest(List::Again) else { break };
            shard.move_to(oldest, List::Once);
        }
        Some(Found { page: shard.page(at)?.clone(), touches })
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
        let list = if asked { List::Once } else { List::Ahead };
        let mut header = Header::new(key, list, version, now_ns + self.lifetime_ns);
        header.touches = u16::from(asked);
        shard.add(header, page);
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
