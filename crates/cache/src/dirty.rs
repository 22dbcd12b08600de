//! Dirty pages: content that no medium has before write-back.
//!
//! The caller holds the inode's lock: exclusively to add, change or drop pages, shared to look at them.
//! [`DirtyFiles`](crate::dirty_files::DirtyFiles) finds a file's dirty pages in the order of its blocks; the lists
//! [`List::Dirty`] and [`List::Lazy`] of each shard, one for each home, have them by their last write ([HiNFS] section 4.1).
//! Each dirty page has a *birth* and a *version*. A copy
//! of an older version may still be installed below a page that was written since. A copy with a different
//! birth may not: its page was dropped (truncated, punched, settled), or a newer copy was installed.

use crate::block_cache::BlockCache;
use crate::dirty_files::{File, PORTION};
use crate::header::{Header, Lines, List, PageKey};
use crate::page::Page;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_placement::Home;
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

/// A copy of a dirty page, as of the moment of the copy.
#[derive(Clone)]
pub struct DirtyPage {
    /// The block.
    pub key: PageKey,
    /// The content, in the lines of `valid`; later writes do not change it.
    pub page: Page,
    /// Lines that the page has. For the others the content on media counts; they are zeros here.
    pub valid: Lines,
    /// Valid lines that the medium of the home has not yet.
    pub dirty: Lines,
    /// The birth of the page.
    pub birth: u64,
    /// The version of the content.
    pub version: u64,
    /// The home of the page.
    pub home: Home,
    /// Whether a write-back of the page was under way already.
    pub in_flight: bool,
}

/// A dropped dirty page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropped {
    /// Its home.
    pub home: Home,
    /// Its lines that no medium had.
    pub dirty: Lines,
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
        self.dirty_pages_of(Home::Block) + self.dirty_pages_of(Home::Pm)
    }

    /// Number of dirty pages of a home.
    pub fn dirty_pages_of(&self, home: Home) -> u64 {
        self.counter(home).load(Ordering::Acquire)
    }

    fn counter(&self, home: Home) -> &AtomicU64 {
        match home {
            Home::Block => &self.dirty_count,
            Home::Pm => &self.lazy_count,
        }
    }

    /// A dirty page.
    pub fn dirty(&self, key: PageKey) -> Option<DirtyPage> {
        let shard = self.shard(&key).lock();
        let at = shard.find(key)?;
        let header = shard.header(at);
        if !header.list.is_dirty() {
            return None;
        }
        let page = shard.page(at)?.clone();
        let Header { birth, version, valid, dirty, .. } = *header;
        let (home, in_flight) = (header.home(), header.is_in_flight());
        assert!(valid.contains(dirty), "a page of inode {} has lines {dirty:?} of {valid:?}", key.ino);
        Some(DirtyPage { key, page, valid, dirty, birth, version, home, in_flight })
    }

    /// Birth and version of the page now: they decide whether a copy may still be installed.
    pub fn state_of(&self, key: PageKey) -> Option<(u64, u64)> {
        let shard = self.shard(&key).lock();
        let at = shard.find(key).filter(|at| shard.header(*at).list.is_dirty())?;
        Some((shard.header(at).birth, shard.header(at).version))
    }

    /// The home of a dirty page; `None` when the block has no dirty page.
    pub fn home_of(&self, key: PageKey) -> Option<Home> {
        let shard = self.shard(&key).lock();
        shard.find(key).map(|at| shard.header(at)).filter(|header| header.list.is_dirty()).map(Header::home)
    }

    /// Whether a page is dirty and can be written back to PM now: nobody else does.
    pub fn waits_for_pm(&self, key: PageKey) -> bool {
        let shard = self.shard(&key).lock();
        let header = shard.find(key).map(|at| shard.header(at));
        header.is_some_and(|header| header.list == List::Lazy && !header.is_in_flight())
    }

    /// The lines that a dirty page has; `None` when the block has no dirty page.
    pub fn lines_of(&self, key: PageKey) -> Option<Lines> {
        let shard = self.shard(&key).lock();
        shard
            .find(key)
            .map(|at| shard.header(at))
            .filter(|header| header.list.is_dirty())
            .map(|header| header.valid)
    }

    /// Changes a dirty page, and gives its dirty lines before; `None` when the block has no dirty page. `change` writes the lines `dirty`, and those that the page
    /// had not it writes whole; the page has the lines `valid` from now on, of which those not written are zeros. With `reborn` the page is given a new birth: copies taken until now are not installed any
    /// more.
    pub fn change_dirty(
        &self,
        key: PageKey,
        (valid, dirty): (Lines, Lines),
        reborn: bool,
        now_ns: u64,
        change: impl FnOnce(&mut [u8; BLOCK_SIZE as usize]),
    ) -> Option<Lines> {
        assert!(valid.contains(dirty), "lines {dirty:?} of a page are dirty, {valid:?} known");
        let mut shard = self.shard(&key).lock();
        let at = shard.find(key).filter(|at| shard.header(*at).list.is_dirty())?;
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
        let before = header.dirty;
        (header.dirty, header.valid) = (before.union(dirty), header.valid.union(valid));
        header.time_ns = now_ns;
        let list = header.list;
        shard.move_to(at, list);
        Some(before)
    }

    /// Adds a dirty page, which has the lines `valid` of its block, `dirty` of them not on a medium. A clean page of the
    /// block is dropped.
    pub fn add_dirty(
        &self,
        key: PageKey,
        home: Home,
        (valid, dirty): (Lines, Lines),
        page: Page,
        now_ns: u64,
    ) {
        assert!(valid.contains(dirty), "lines {dirty:?} of a page with lines {valid:?} are dirty");
        let version = self.next_version();
        {
            let mut shard = self.shard(&key).lock();
            if let Some(at) = shard.find(key) {
                assert!(!shard.header(at).list.is_dirty(), "a block has one dirty page");
                self.drop_clean(&mut shard, at);
            }
            let mut header = Header::new(key, List::of_home(home), version, now_ns);
            (header.birth, header.valid, header.dirty) = (version, valid, dirty);
            shard.add(header, Some(page));
        }
        self.files.add(key, now_ns);
        self.counter(home).fetch_add(1, Ordering::AcqRel);
    }

    /// Drops a dirty page; `None` when the block has no dirty page.
    pub fn drop_dirty(&self, key: PageKey) -> Option<Dropped> {
        let dropped = {
            let mut shard = self.shard(&key).lock();
            let at = shard.find(key).filter(|at| shard.header(*at).list.is_dirty())?;
            let header = shard.header(at);
            let dropped = Dropped { home: header.home(), dirty: header.dirty };
            shard.remove(at);
            dropped
        };
        self.files.remove(key);
        self.counter(dropped.home).fetch_sub(1, Ordering::AcqRel);
        Some(dropped)
    }

    /// Notes that a copy of a whole page was installed in the cold map. `clean_version` is the version of the block from now
    /// on.
    pub fn installed(&self, copy: &DirtyPage, clean_version: u64, now_ns: u64) -> Installed {
        let is_whole = copy.home == Home::Block && copy.valid == Lines::ALL;
        assert!(is_whole, "lines {:?} of a page are installed below (S5)", copy.valid);
        self.settle_copy(copy, Some(clean_version), now_ns)
    }

    /// Notes that the dirty lines of a copy are in PM, and its size is durable there. The page leaves
    /// DRAM: PM is read in place.
    pub fn installed_in_pm(&self, copy: &DirtyPage, now_ns: u64) -> Installed {
        assert!(copy.home == Home::Pm, "a page with another home is in PM and still dirty");
        self.settle_copy(copy, None, now_ns)
    }

    fn settle_copy(&self, copy: &DirtyPage, clean_version: Option<u64>, now_ns: u64) -> Installed {
        {
            let mut shard = self.shard(&copy.key).lock();
            let Some(at) = shard.find(copy.key).filter(|at| shard.header(*at).birth == copy.birth) else {
                return Installed::Clean;
            };
            if shard.header(at).version != copy.version && !planted(Mistake::LaterWriteForgotten) {
                // Copies taken before this one are older than the medium now.
                let birth = self.next_version();
                let header = shard.header_mut(at);
                if !planted(Mistake::OlderCopyInstalled) {
                    header.birth = birth;
                    header.set_in_flight(false);
                }
                drop(shard);
                // Bytes that the copy lacks were written after it was taken, so the page's age as a dirty
                // page begins anew.
                if let Some(file) = self.files.shard(copy.key.ino).lock().files.get_mut(&copy.key.ino) {
                    file.blocks.insert(copy.key.block, now_ns);
                }
                return Installed::Dirty;
            }
            shard.remove(at);
            if let Some(version) = clean_version
                && self.most_pages() > 0
            {
                let mut header = Header::new(copy.key, List::Late, version, now_ns);
                header.touches = 1;
                self.add_clean(&mut shard, header, copy.page.alone(), now_ns);
            }
        }
        self.files.remove(copy.key);
        self.counter(copy.home).fetch_sub(1, Ordering::AcqRel);
        Installed::Clean
    }

    /// Marks a page as being written back, if it is not yet and is still the page of the copy.
    pub fn begin_write_back(&self, copy: &DirtyPage) -> bool {
        let mut shard = self.shard(&copy.key).lock();
        let Some(at) = shard.find(copy.key) else { return false };
        let header = shard.header_mut(at);
        let is_free = header.list.is_dirty() && header.birth == copy.birth && !header.is_in_flight();
        if is_free {
            header.set_in_flight(true);
        }
        is_free
    }

    /// Marks pages as being written back, or as no longer so.
    pub fn mark_in_flight(&self, copies: &[DirtyPage], in_flight: bool) {
        for copy in copies {
            let mut shard = self.shard(&copy.key).lock();
            if let Some(at) = shard.find(copy.key)
                && shard.header(at).list.is_dirty()
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
        self.files.shard(ino).lock().files.get(&ino)?.blocks.range(from..to).next().map(|(block, _)| *block)
    }

    /// The first dirty block of a file from `from` on whose page has a home and is dirty since `since_ns` or before.
    pub fn first_of_home(
        &self,
        ino: Ino,
        home: Home,
        mut from: FileBlock,
        since_ns: u64,
    ) -> Option<FileBlock> {
        loop {
            let (generation, blocks): (u32, Vec<(FileBlock, u64)>) = {
                let shard = self.files.shard(ino).lock();
                let file = shard.files.get(&ino)?;
                (
                    file.generation,
                    file.blocks.range(from..).take(PORTION).map(|(at, ns)| (*at, *ns)).collect(),
                )
            };
            let due = blocks.iter().filter(|(_, dirty_ns)| *dirty_ns <= since_ns).map(|(block, _)| *block);
            let has_home =
                |block: &FileBlock| self.home_of(PageKey { ino, generation, block: *block }) == Some(home);
            if let Some(block) = due.into_iter().find(has_home) {
                return Some(block);
            }
            from = blocks.last()?.0.plus(1);
        }
    }

    /// The dirty blocks of a file in `from..to`, ascending, at most `most`.
    pub fn dirty_blocks(&self, ino: Ino, from: FileBlock, to: FileBlock, most: usize) -> Vec<FileBlock> {
        let shard = self.files.shard(ino).lock();
        let file = shard.files.get(&ino).filter(|_| from < to);
        file.into_iter().flat_map(|file| file.blocks.range(from..to)).take(most).map(|(at, _)| *at).collect()
    }

    /// The last dirty blocks of a file before `to`, descending, at most `most`.
    pub fn dirty_blocks_before(&self, ino: Ino, to: FileBlock, most: usize) -> Vec<FileBlock> {
        let shard = self.files.shard(ino).lock();
        let blocks = shard.files.get(&ino).into_iter().flat_map(|file| file.blocks.range(..to).rev());
        blocks.take(most).map(|(block, _)| *block).collect()
    }

    /// The number of dirty blocks of a file.
    pub fn count_dirty(&self, ino: Ino) -> u64 {
        self.files.shard(ino).lock().files.get(&ino).map_or(0, |file| file.blocks.len() as u64)
    }

    /// The files that have dirty pages, by number.
    pub fn dirty_files(&self) -> Vec<Ino> {
        let mut found: Vec<Ino> = Vec::new();
        for shard in &self.files.shards {
            let shard = shard.lock();
            let dirty = shard.files.iter().filter(|(_, file)| !file.blocks.is_empty());
            found.extend(dirty.map(|(ino, _)| *ino));
        }
        found.sort_unstable();
        found
    }

    /// The files with a page that is dirty since `cutoff_ns` or before, and the first such block of each, the oldest
    /// first.
    pub fn aged(&self, cutoff_ns: u64) -> Vec<(Ino, FileBlock)> {
        let mut found = Vec::new();
        for shard in &self.files.shards {
            let is_due = |file: &File| file.oldest_ns <= cutoff_ns && !file.blocks.is_empty();
            for (ino, file) in shard.lock().files.iter_mut().filter(|(_, file)| is_due(file)) {
                file.oldest_ns = file.blocks.values().copied().min().unwrap_or(u64::MAX);
                let first = file.blocks.iter().find(|(_, since)| **since <= cutoff_ns);
                found.extend(first.map(|(block, _)| (file.oldest_ns, *ino, *block)));
            }
        }
        found.sort_unstable();
        found.into_iter().map(|(_, ino, block)| (ino, block)).collect()
    }

    /// The dirty block of a home that was written least recently, of those that `wanted` accepts and nobody writes back.
    pub fn least_recently_written(&self, home: Home, wanted: impl Fn(Ino) -> bool) -> Option<PageKey> {
        const LOOKED_AT: usize = 64;
        let mut best: Option<(u64, u64, PageKey)> = None;
        for shard in &self.shards {
            let shard = shard.lock();
            let mut at = shard.oldest(List::of_home(home));
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
            for list in [List::Dirty, List::Lazy] {
                let mut at = shard.oldest(list);
                while let Some(place) = at {
                    count += u64::from(shard.header(place).is_in_flight());
                    at = shard.younger(place);
                }
            }
        }
        count
    }

    /// A version that no page has yet: those of dirty pages written later are higher.
    pub fn next_version(&self) -> u64 {
        self.versions.fetch_add(1, Ordering::AcqRel)
    }
}
