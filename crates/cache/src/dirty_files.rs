//! The index of dirty blocks: of each file its dirty blocks in order, each with the time since when it is dirty; and how
//! blocks are written between syncs ([`sync_states`](crate::sync_states)).
//!
//! Lock order: the lock of a shard of the index is innermost.

use crate::file_choices::FileChoices;
use crate::header::{Lines, PageKey};
use crate::sync_state::{Appended, Judged, LineCosts, SyncAges, SyncState, WrittenLines};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use terrace_format::{FileBlock, Ino};
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const SHARDS: usize = 16;

/// States that are dropped beyond the limit, so that not each write drops states.
const DROPPED_MORE: u64 = 16;

/// Most states that a write drops: an excess goes in portions.
const MOST_DROPPED: u64 = 256;

/// Most files of a shard with sums of appends: beyond that all sums go, and the files are judged by their next syncs.
const MOST_APPENDED: usize = 256;

/// The dirty blocks of one file, with the time since when each block is dirty.
pub(crate) struct File {
    pub(crate) generation: u32,
    pub(crate) blocks: BTreeMap<FileBlock, u64>,
    /// No block is older.
    pub(crate) oldest_ns: u64,
    /// Writes between syncs, of blocks with and without a page.
    pub(crate) states: BTreeMap<FileBlock, SyncState>,
    /// Blocks with writes since the last sync, and blocks whose states were dropped; a block may be in the list twice.
    pub(crate) since_sync: SmallVec<[FileBlock; 6]>,
}

impl File {
    fn new(generation: u32, now_ns: u64) -> File {
        File {
            generation,
            blocks: BTreeMap::new(),
            oldest_ns: now_ns,
            states: BTreeMap::new(),
            since_sync: SmallVec::new(),
        }
    }

    fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.states.is_empty()
    }

    /// Drops blocks without a state from the list when there are many: constant work for each state.
    fn tidy(&mut self) {
        if self.since_sync.len() > 2 * self.states.len() + FEW {
            self.since_sync.sort_unstable();
            self.since_sync.dedup();
            self.since_sync.retain(|block| self.states.contains_key(block));
        }
    }
}

/// Blocks without a state that are not worth the search for them.
const FEW: usize = 16;

/// A shard of the index.
#[derive(Default)]
pub(crate) struct Shard {
    /// Boxed: entries come and go with syncs, and a new entry takes memory that is still in the processor's cache.
    pub(crate) files: FxHashMap<Ino, Box<File>>,
    /// Direct writes behind the ends of files, to blocks without a state.
    appended: FxHashMap<Ino, Appended>,
    /// Blocks in the order of writes, each with the number of its place. A state knows its place; a place that no state knows
    /// counts for nothing, and there are never many. A block that was written since goes to the end when its place is the first.
    order: VecDeque<(PageKey, u64)>,
    /// Places that were given.
    places: u64,
    /// States of all files.
    states: usize,
}

/// The index of dirty blocks by file.
pub(crate) struct DirtyFiles {
    pub(crate) shards: Vec<Mutex<Shard>>,
    /// States of each shard.
    states: Vec<AtomicU64>,
    /// Most states of blocks without a page.
    most_states: AtomicU64,
    /// Whether a block was made eager: the descriptors of blocks have that choice.
    has_eager: AtomicBool,
    /// The last syncs of files.
    pub(crate) choices: FileChoices,
}

impl DirtyFiles {
    pub(crate) fn new() -> DirtyFiles {
        DirtyFiles {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            states: (0..SHARDS).map(|_| AtomicU64::new(0)).collect(),
            most_states: AtomicU64::new(0),
            has_eager: AtomicBool::new(false),
            choices: FileChoices::new(),
        }
    }

    pub(crate) fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    pub(crate) fn add(&self, key: PageKey, now_ns: u64) {
        let mut shard = self.shard(key.ino).lock();
        let file = shard.file(key, now_ns);
        assert_eq!(file.generation, key.generation, "dirty pages of a file that is gone");
        if file.blocks.is_empty() {
            file.oldest_ns = now_ns;
        }
        file.blocks.insert(key.block, now_ns);
        self.count_states(key.ino, &shard);
    }

    pub(crate) fn remove(&self, key: PageKey) {
        let files = &mut self.shard(key.ino).lock().files;
        if let Some(file) = files.get_mut(&key.ino).filter(|file| file.generation == key.generation) {
            file.blocks.remove(&key.block);
            if file.is_empty() {
                files.remove(&key.ino);
            }
        }
    }

    /// Limits the number of states of all shards together.
    pub(crate) fn limit_states(&self, most: u64) {
        self.most_states.store(most, Ordering::Relaxed);
    }

    /// The number of states.
    pub(crate) fn states(&self) -> u64 {
        self.states.iter().map(|states| states.load(Ordering::Relaxed)).sum()
    }

    /// Places in the orders of all shards, for tests.
    #[cfg(test)]
    pub(crate) fn places(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().order.len()).sum()
    }

    /// Files with sums of appends, for tests.
    #[cfg(test)]
    pub(crate) fn appended(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().appended.len()).sum()
    }

    /// Notes a write of some lines of blocks of a file, to PM if `is_direct`, and drops the oldest states beyond the limit.
    /// `pages`: blocks with a page, whose states do not count.
    pub(crate) fn note_lines(
        &self,
        first: PageKey,
        written: impl Iterator<Item = (FileBlock, WrittenLines)>,
        (is_direct, now_ns): (bool, u64),
        pages: impl FnOnce() -> u64,
    ) {
        let most = self.most_states.load(Ordering::Relaxed);
        if most == 0 {
            return;
        }
        let mut shard = self.shard(first.ino).lock();
        let added = shard.note_lines(first, written, (is_direct, now_ns));
        self.count_states(first.ino, &shard);
        drop(shard);
        if added > 0 {
            let all = self.states();
            if all > most {
                let excess = all.saturating_sub(most + pages());
                if excess > 0 {
                    self.drop_oldest(excess.min(MOST_DROPPED) + DROPPED_MORE);
                }
            }
        }
    }

    /// Drops some states, of the shard that has most: a single file may have nearly all.
    fn drop_oldest(&self, wanted: u64) {
        let count = |shard: &usize| self.states[*shard].load(Ordering::Relaxed);
        let fullest = (0..SHARDS).max_by_key(count).unwrap_or(0);
        let mut shard = self.shards[fullest].lock();
        let is_empty = (0..wanted).any(|_| !shard.drop_oldest());
        assert!(!is_empty || shard.states == 0, "{} states without a place", shard.states);
        self.states[fullest].store(shard.states as u64, Ordering::Relaxed);
    }

    /// Tells all the number of states of a shard, which is locked.
    fn count_states(&self, ino: Ino, shard: &Shard) {
        self.states[ino.0 as usize % SHARDS].store(shard.states as u64, Ordering::Relaxed);
    }

    /// Whether a block was made eager since the mount.
    #[inline]
    pub(crate) fn has_eager(&self) -> bool {
        self.has_eager.load(Ordering::Relaxed)
    }

    /// As [`Shard::judge`], of a locked shard.
    pub(crate) fn judge(
        &self,
        shard: &mut Shard,
        of: (Ino, u32),
        (blocks, dirty): (&[FileBlock], &[Lines]),
        costs: (LineCosts, SyncAges, u64),
        judged: &mut Judged,
    ) {
        shard.judge(of, (blocks, dirty), costs, judged);
        self.count_states(of.0, shard);
        if !self.has_eager() && judged.new.iter().any(|(_, is_eager)| *is_eager) {
            self.has_eager.store(true, Ordering::Relaxed);
        }
    }
}

impl Shard {
    /// The entry of a file; that of an earlier file of the inode without dirty pages goes.
    fn file(&mut self, key: PageKey, now_ns: u64) -> &mut File {
        let gone = self.files.get(&key.ino).filter(|file| file.generation != key.generation);
        if let Some(gone) = gone.filter(|file| file.blocks.is_empty()) {
            self.states -= gone.states.len();
            self.files.remove(&key.ino);
        }
        self.files.entry(key.ino).or_insert_with(|| Box::new(File::new(key.generation, now_ns)))
    }

    /// Notes a write; gives the number of new states.
    fn note_lines(
        &mut self,
        first: PageKey,
        written: impl Iterator<Item = (FileBlock, WrittenLines)>,
        (is_direct, now_ns): (bool, u64),
    ) -> u64 {
        let mut added = 0;
        for (block, write) in written {
            let key = PageKey { block, ..first };
            if is_direct && write.is_append && self.state(key).is_none() {
                self.note_append(key, write, now_ns);
                continue;
            }
            let place = self.places;
            let file = self.file(key, now_ns);
            let before = file.states.len();
            let state = file.states.entry(block).or_insert_with(|| SyncState::new(place));
            if state.written == 0 {
                file.since_sync.push(block);
            }
            state.note(write, is_direct, now_ns);
            let is_new = file.states.len() > before;
            file.tidy();
            if is_new {
                added += 1;
                self.states += 1;
                self.give_place(key);
            }
        }
        added
    }

    /// The state of a block.
    pub(crate) fn state(&self, key: PageKey) -> Option<&SyncState> {
        let file = self.files.get(&key.ino).filter(|file| file.generation == key.generation)?;
        file.states.get(&key.block)
    }

    fn note_append(&mut self, key: PageKey, write: WrittenLines, now_ns: u64) {
        if self.appended.len() >= MOST_APPENDED && !self.appended.contains_key(&key.ino) {
            self.appended.clear();
        }
        let appended = self.appended.entry(key.ino).or_insert_with(|| Appended::new(key.generation));
        if appended.generation != key.generation {
            *appended = Appended::new(key.generation);
        }
        appended.note(key.block, write, now_ns);
    }

    /// Puts a block at the end of the order; its state has the number of the place.
    fn give_place(&mut self, key: PageKey) {
        self.order.push_back((key, self.places));
        self.places += 1;
        if self.order.len() > 2 * self.states + FEW {
            let order = std::mem::take(&mut self.order);
            let is_known =
                |(key, place): &(PageKey, u64)| self.state(*key).is_some_and(|state| state.place == *place);
            self.order = order.into_iter().filter(is_known).collect();
            assert_eq!(self.order.len(), self.states, "places of states");
        }
    }

    /// Judges the blocks of a sync, by the dirty lines of each. Eager blocks lose their states: flags of PM blocks keep the
    /// choice.
    fn judge(
        &mut self,
        (ino, generation): (Ino, u32),
        (blocks, dirty): (&[FileBlock], &[Lines]),
        costs: (LineCosts, SyncAges, u64),
        judged: &mut Judged,
    ) {
        if let Some(appended) = self.appended.remove(&ino).filter(|sums| sums.generation == generation) {
            appended.judge(costs, &mut judged.verdicts);
        }
        let Some(file) = self.files.get_mut(&ino).filter(|file| file.generation == generation) else {
            return;
        };
        for (index, block) in blocks.iter().enumerate() {
            // A block without writes is in the list a second time.
            let Some(state) = file.states.get_mut(block).filter(|state| state.written > 0) else { continue };
            let was_lazy = state.is_lazy;
            let dirty = dirty.get(index).copied().unwrap_or_default();
            let is_eager = state.judge(dirty, costs, &mut judged.verdicts);
            if is_eager {
                file.states.remove(block);
                self.states -= 1;
            }
            if is_eager || !was_lazy {
                judged.new.push((*block, is_eager));
            }
        }
        if file.is_empty() {
            self.files.remove(&ino);
        }
    }

    /// Drops the state with the earliest last write. False: there is none.
    fn drop_oldest(&mut self) -> bool {
        while let Some((key, place)) = self.order.pop_front() {
            let Some(file) = self.files.get_mut(&key.ino).filter(|file| file.generation == key.generation)
            else {
                continue;
            };
            let Some(state) = file.states.get_mut(&key.block).filter(|state| state.place == place) else {
                continue;
            };
            if std::mem::take(&mut state.is_touched) {
                state.place = self.places;
                self.give_place(key);
                continue;
            }
            file.states.remove(&key.block);
            self.states -= 1;
            if file.is_empty() {
                self.files.remove(&key.ino);
            }
            return true;
        }
        false
    }
}
