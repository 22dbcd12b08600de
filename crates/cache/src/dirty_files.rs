//! The index of dirty blocks: of each file its dirty blocks in order, each with the time since when it is dirty; and how
//! blocks are written between syncs ([`sync_states`](crate::sync_states)).
//!
//! Lock order: the lock of a shard of the index is innermost.

use crate::file_choices::FileChoices;
use crate::header::{Lines, PageKey};
use crate::state_table::StateTable;
use crate::sync_state::{AppendedLines, Judged, LineCosts, SyncAges, WrittenLines};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use terrace_format::{FileBlock, Ino};
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const SHARDS: usize = 16;

/// States that are dropped beyond the limit, so that not each write drops states.
const DROPPED_MORE: u64 = 16;

/// Most states that a write drops: an excess goes in portions.
const MOST_DROPPED: u64 = 256;

/// Most states that are judged or settled while the lock of a shard is held.
pub(crate) const PORTION: usize = 256;

/// The dirty blocks of one file, with the time since when each block is dirty.
pub(crate) struct File {
    pub(crate) generation: u32,
    pub(crate) blocks: BTreeMap<FileBlock, u64>,
    /// No block is older.
    pub(crate) oldest_ns: u64,
}

/// A shard of the index, on lines of its own in the processors' caches.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Shard {
    pub(crate) files: FxHashMap<Ino, File>,
    /// Writes between syncs, of blocks with and without a page.
    pub(crate) states: StateTable,
}

/// The index of dirty blocks by file.
pub(crate) struct DirtyFiles {
    pub(crate) shards: Vec<Mutex<Shard>>,
    /// States of each shard.
    states: Vec<AtomicU64>,
    /// Most states of blocks without a page.
    most_states: AtomicU64,
    /// The shard that is compared with the fullest when states are dropped.
    next_victim: AtomicU64,
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
            next_victim: AtomicU64::new(0),
            has_eager: AtomicBool::new(false),
            choices: FileChoices::new(),
        }
    }

    pub(crate) fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    pub(crate) fn add(&self, key: PageKey, now_ns: u64) {
        let mut shard = self.shard(key.ino).lock();
        let new = || File { generation: key.generation, blocks: BTreeMap::new(), oldest_ns: now_ns };
        let file = shard.files.entry(key.ino).or_insert_with(new);
        assert_eq!(file.generation, key.generation, "dirty pages of a file that is gone");
        file.blocks.insert(key.block, now_ns);
    }

    pub(crate) fn remove(&self, key: PageKey) {
        let mut shard = self.shard(key.ino).lock();
        let Shard { files, states } = &mut *shard;
        let Some(file) = files.get_mut(&key.ino).filter(|file| file.generation == key.generation) else {
            return;
        };
        file.blocks.remove(&key.block);
        if file.blocks.is_empty() {
            files.remove(&key.ino);
            if states.is_closed(key.ino) {
                drop(shard);
                self.settle(key.ino);
            }
        }
    }

    /// Settles the writes of a closed file, in portions: all files of a shard share its lock.
    fn settle(&self, ino: Ino) {
        loop {
            let mut shard = self.shard(ino).lock();
            let has_more = shard.states.settle(ino, PORTION, &self.choices);
            self.count_states(ino, &shard);
            if !has_more {
                break;
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

    /// Files with sums of appends, for tests.
    #[cfg(test)]
    pub(crate) fn appended(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().states.appended()).sum()
    }

    /// Bytes of states, for tests.
    #[cfg(test)]
    pub(crate) fn state_bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().states.bytes()).sum()
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
        let added = shard.states.note_lines(first, written, (is_direct, now_ns), &self.choices);
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

    /// Notes an append to a file, straight to PM. False: blocks of the file may have states, and [`Self::note_lines`] is to be
    /// called.
    pub(crate) fn note_append(&self, key: PageKey, write: AppendedLines, now_ns: u64) -> bool {
        if self.choices.may_have_states(key.ino) {
            return false;
        }
        if self.most_states.load(Ordering::Relaxed) > 0 {
            self.shard(key.ino).lock().states.note_append(key, write, now_ns, &self.choices);
        }
        true
    }

    /// As [`StateTable::note_close`].
    pub(crate) fn note_close(&self, ino: Ino) {
        if self.choices.may_have_notes(ino) {
            let mut shard = self.shard(ino).lock();
            let has_dirty = shard.files.contains_key(&ino);
            if shard.states.note_close(ino, has_dirty, &self.choices) {
                drop(shard);
                self.settle(ino);
            }
        }
    }

    /// Drops some states: of the fullest shard, because a single file may have nearly all, or of another in turn, whichever
    /// has the earlier last write in a sample.
    fn drop_oldest(&self, wanted: u64) {
        let count = |shard: &usize| self.states[*shard].load(Ordering::Relaxed);
        let fullest = (0..SHARDS).max_by_key(count).unwrap_or(0);
        let next = self.next_victim.fetch_add(1, Ordering::Relaxed) as usize % SHARDS;
        let oldest =
            |shard: usize| self.shards[shard].lock().states.oldest().map_or(u64::MAX, |(_, last_ns)| last_ns);
        let victim = if oldest(next) < oldest(fullest) { next } else { fullest };
        let mut shard = self.shards[victim].lock();
        for _ in 0..wanted {
            if !shard.states.drop_oldest(&self.choices) {
                break;
            }
        }
        self.states[victim].store(shard.states.len() as u64, Ordering::Relaxed);
    }

    /// Tells all the number of states of a shard, which is locked.
    fn count_states(&self, ino: Ino, shard: &Shard) {
        let (states, now) = (&self.states[ino.0 as usize % SHARDS], shard.states.len() as u64);
        // All shards' numbers share lines of the processors' caches, and most syncs change none.
        if states.load(Ordering::Relaxed) != now {
            states.store(now, Ordering::Relaxed);
        }
    }

    /// Whether a block was made eager since the mount.
    #[inline]
    pub(crate) fn has_eager(&self) -> bool {
        self.has_eager.load(Ordering::Relaxed)
    }

    /// As [`StateTable::judge`], of a locked shard.
    pub(crate) fn judge(
        &self,
        shard: &mut Shard,
        of: (Ino, u32),
        (blocks, dirty): (&[FileBlock], &[Lines]),
        costs: (LineCosts, SyncAges, u64),
        judged: &mut Judged,
    ) {
        shard.states.judge(of, (blocks, dirty), costs, (judged, &self.choices));
        self.count_states(of.0, shard);
        if !self.has_eager() && judged.new.iter().any(|(_, is_eager)| *is_eager) {
            self.has_eager.store(true, Ordering::Relaxed);
        }
    }
}
