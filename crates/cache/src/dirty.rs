//! Dirty pages: content that no medium has before write-back.
//!
//! The caller holds the inode's lock: exclusively to add, change or drop pages, shared to look at them.
//! [`DirtyFiles`](crate::dirty_files::DirtyFiles) finds a file's dirty pages in the order of its blocks; the list [`List::Dirty`] of each shard
//! has them by their last write ([HiNFS] section 3.3). Each dirty page has a *birth* and a *version*. A copy
//! of an older version may still be installed below a page that was written since. A copy with a different
//! birth may not: its page was dropped (truncated, punched, settled), or a newer copy was installed.

use crate::block_cache::BlockCache;
use crate::header::{Header, Home, Lines, List, PageKey};
use crate::page::Page;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::atomic::Ordering;

/// A copy of a dirty page, as of the moment of the copy.
#[derive(Clone)]
pub struct DirtyPage {
    /// The block.
    pub key: PageKey,
    /// The content; later writes do not change it.
    pub page: Page,
    /// The birth of the page.
    pub birth: u64,
    /// The version of the content.
    pub version: u64,
    /// The home of the page.
    pub home: Home,
    /// Whether a write-back of the page was under way already.
    pub in_flight: bool,
}

/// The state of a dirty page after its copy was installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Installed {
    /// It is clean.
    Clean,
    /// It was written since, and stays dirty.
    Dirty,
}

impl BlockCache {
    /// Bytes of dirty pages.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_pages() * BLOCK_SIZE
    }

    /// Number of dirty pages.
    pub fn dirty_pages(&self) -> u64 {
        self.dirty_count.load(Ordering::Acquire)
    }

    /// A dirty page.
    pub fn dirty(&self, key: PageKey) -> Option<DirtyPage> {
        let shard = self.shard(&key).lock();
        let at = shard.find(key)?;
        let header = shard.header(at);
        if header.list != List::Dirty {
            return None;
        }
        let page = shard.page(at)?.clone();
        let (birth, version, home) = (header.birth, header.version, header.home());
        Some(DirtyPage { key, page, birth, version, home, in_flight: header.is_in_flight() })
    }

    /// Birth and version of the page now: they decide whether a copy may still be installed.
    pub fn state_of(&self, key: PageKey) -> Option<(u64, u64)> {
        let shard = self.shard(&key).lock();
        let at = shard.find(key).filter(|at| shard.header(*at).list == List::Dirty)?;
        Some((shard.header(at).birth, shard.header(at).version))
    }

    /// Changes a dirty page; false when the block has no dirty page. `lines` are the lines that `change`
    /// writes. With `reborn` the page is given a new birth: copies taken until now are not installed any
    /// more.
    pub fn change_dirty(
        &self,
        key: PageKey,
        lines: Lines,
        reborn: bool,
        now_ns: u64,
        change: impl FnOnce(&mut [u8; BLOCK_SIZE as usize]),
    ) -> bool {
        let mut shard = self.shard(&key).lock();
        let Some(at) = shard.find(key).filter(|at| shard.header(*at).list == List::Dirty) else {
            return false;
        };
        if let Some(page) = shard.page_mut(at) {
            change(page.bytes_mut());
        }
        let version = self.next_version();
        let header = shard.header_mut(at);
        header.version = version;
        if reborn {
            header.birth = version;
            header.set_in_flight(false);
        }
        header.dirty = header.dirty.union(lines);
        header.time_ns = now_ns;
        shard.move_to(at, List::Dirty);
        true
    }

    /// Adds a dirty page, which holds the whole block. A clean page of the block is dropped.
    pub fn add_dirty(&self, key: PageKey, home: Home, lines: Lines, page: Page, now_ns: u64) {
        let version = self.next_version();
        {
            let mut shard = self.shard(&key).lock();
            if let Some(at) = shard.find(key) {
                assert!(shard.header(at).list != List::Dirty, "a block has one dirty page");
                self.drop_clean(&mut shard, at);
            }
            let mut header = Header::new(key, List::Dirty, version, now_ns);
            (header.birth, header.dirty) = (version, lines);
            header.set_home(home);
            shard.add(header, Some(page));
        }
        self.files.add(key, now_ns);
        self.dirty_count.fetch_add(1, Ordering::AcqRel);
    }

    /// Drops a dirty page; false when the block has no dirty page.
    pub fn drop_dirty(&self, key: PageKey) -> bool {
        {
            let mut shard = self.shard(&key).lock();
            let Some(at) = shard.find(key).filter(|at| shard.header(*at).list == List::Dirty) else {
                return false;
            };
            shard.remove(at);
        }
        self.files.remove(key);
        self.dirty_count.fetch_sub(1, Ordering::AcqRel);
        true
    }

    /// Notes that a copy was installed in the cold map. `clean_version` is the version of the block from now
    /// on.
    pub fn installed(&self, copy: &DirtyPage, clean_version: u64, now_ns: u64) -> Installed {
        {
            let mut shard = self.shard(&copy.key).lock();
            let Some(at) = shard.find(copy.key).filter(|at| shard.header(*at).birth == copy.birth) else {
                return Installed::Clean;
            };
            if shard.header(at).version != copy.version {
                // Copies taken before this one are older than the cold copy now.
                let birth = self.next_version();
                let header = shard.header_mut(at);
                if !planted(Mistake::OlderCopyInstalled) {
                    header.birth = birth;
                    header.set_in_flight(false);
                }
                drop(shard);
                // Bytes that the copy lacks were written after it was taken, so the page's age as a dirty
                // page begins anew.
                if let Some(file) = self.files.shard(copy.key.ino).lock().get_mut(&copy.key.ino) {
                    file.blocks.insert(copy.key.block, now_ns);
                }
                return Installed::Dirty;
            }
            shard.remove(at);
            if self.most_pages() > 0 {
                let mut header = Header::new(copy.key, List::Late, clean_version, now_ns);
                header.touches = 1;
                self.add_clean(&mut shard, header, copy.page.alone(), now_ns);
            }
        }
        self.files.remove(copy.key);
        self.dirty_count.fetch_sub(1, Ordering::AcqRel);
        Installed::Clean
    }

    /// Marks pages as being written back, or as no longer so.
    pub fn mark_in_flight(&self, copies: &[DirtyPage], in_flight: bool) {
        for copy in copies {
            let mut shard = self.shard(&copy.key).lock();
            if let Some(at) = shard.find(copy.key)
                && shard.header(at).list == List::Dirty
                && shard.header(at).birth == copy.birth
            {
                shard.header_mut(at).set_in_flight(in_flight);
            }
        }
    }

    /// The first dirty block of a file in `from..to`.
    pub fn next_dirty(&self, ino: Ino, from: FileBlock, to: FileBlock) -> Option<FileBlock> {
        if from >= to {
            return None;
        }
        self.files.shard(ino).lock().get(&ino)?.blocks.range(from..to).next().map(|(block, _)| *block)
    }

    /// The dirty blocks of a file in `from..to`, ascending, at most `most`.
    pub fn dirty_blocks(&self, ino: Ino, from: FileBlock, to: FileBlock, most: usize) -> Vec<FileBlock> {
        let files = self.files.shard(ino).lock();
        match files.get(&ino) {
            Some(file) if from < to => {
                file.blocks.range(from..to).take(most).map(|(block, _)| *block).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The number of dirty blocks of a file.
    pub fn count_dirty(&self, ino: Ino) -> u64 {
        self.files.shard(ino).lock().get(&ino).map_or(0, |file| file.blocks.len() as u64)
    }

    /// The files that have dirty pages, by number.
    pub fn dirty_files(&self) -> Vec<Ino> {
        let mut found: Vec<Ino> = Vec::new();
        self.files.shards.iter().for_each(|shard| found.extend(shard.lock().keys()));
        found.sort_unstable();
        found
    }

    /// The files with a page that is dirty since `cutoff_ns` or before, and the first such block of each, the oldest
    /// first.
    pub fn aged(&self, cutoff_ns: u64) -> Vec<(Ino, FileBlock)> {
        let mut found = Vec::new();
        for shard in &self.files.shards {
            for (ino, file) in shard.lock().iter_mut().filter(|(_, file)| file.oldest_ns <= cutoff_ns) {
                file.oldest_ns = file.blocks.values().copied().min().unwrap_or(u64::MAX);
                let first = file.blocks.iter().find(|(_, since)| **since <= cutoff_ns);
                found.extend(first.map(|(block, _)| (file.oldest_ns, *ino, *block)));
            }
        }
        found.sort_unstable();
        found.into_iter().map(|(_, ino, block)| (ino, block)).collect()
    }

    /// The dirty block that was written least recently, of those that `wanted` accepts and nobody writes back.
    pub fn least_recently_written(&self, wanted: impl Fn(Ino) -> bool) -> Option<PageKey> {
        const LOOKED_AT: usize = 64;
        let mut best: Option<(u64, u64, PageKey)> = None;
        for shard in &self.shards {
            let shard = shard.lock();
            let mut at = shard.oldest(List::Dirty);
            for _ in 0..LOOKED_AT {
                let Some(place) = at else { break };
                let header = shard.header(place);
                let key = header.key();
                if !header.is_in_flight() && wanted(key.ino) {
                    let found = (header.time_ns, header.version, key);
                    best = Some(best.map_or(found, |best| best.min(found)));
                    break;
                }
                at = shard.younger(place);
            }
        }
        best.map(|(_, _, key)| key)
    }

    /// Dirty pages of which a write-back is under way.
    pub fn in_flight_pages(&self) -> u64 {
        let mut count = 0;
        for shard in &self.shards {
            let shard = shard.lock();
            let mut at = shard.oldest(List::Dirty);
            while let Some(place) = at {
                count += u64::from(shard.header(place).is_in_flight());
                at = shard.younger(place);
            }
        }
        count
    }

    /// A version that no page has yet: those of dirty pages written later are higher.
    pub fn next_version(&self) -> u64 {
        self.versions.fetch_add(1, Ordering::AcqRel)
    }
}
