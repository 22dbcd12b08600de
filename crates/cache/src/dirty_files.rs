//! The index of dirty blocks: of each file its dirty blocks in order, each with the time since when it is dirty; and how
//! blocks are written between syncs ([`sync_states`](crate::sync_states)).
//!
//! Lock order: the lock of a shard of the index is innermost.

use crate::header::PageKey;
use crate::sync_state::SyncState;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use terrace_format::{FileBlock, Ino};
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const SHARDS: usize = 16;

/// Places for times of syncs.
const SYNCED: usize = 1024;

/// The dirty blocks of one file, with the time since when each block is dirty.
pub(crate) struct File {
    pub(crate) generation: u32,
    pub(crate) blocks: BTreeMap<FileBlock, u64>,
    /// No block is older.
    pub(crate) oldest_ns: u64,
    /// Writes between syncs, of blocks with and without a page.
    pub(crate) states: BTreeMap<FileBlock, SyncState>,
    /// Blocks written since the last sync; also blocks whose state was dropped since, and those twice if written again.
    pub(crate) since_sync: Vec<FileBlock>,
    /// The last sync.
    pub(crate) synced_ns: Option<u64>,
    /// The choice of the last sync for most of its blocks; `None` before the first.
    pub(crate) is_eager: Option<bool>,
}

impl File {
    fn new(generation: u32, now_ns: u64) -> File {
        File {
            generation,
            blocks: BTreeMap::new(),
            oldest_ns: now_ns,
            states: BTreeMap::new(),
            since_sync: Vec::new(),
            synced_ns: None,
            is_eager: None,
        }
    }

    fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.states.is_empty()
    }

    /// Drops the states with a last write at `cutoff_ns` or before; gives their number.
    fn drop_states_before(&mut self, cutoff_ns: u64) -> u64 {
        let before = self.states.len();
        self.states.retain(|_, state| state.last_ns > cutoff_ns);
        if self.since_sync.len() > 2 * self.states.len() {
            let states = &self.states;
            self.since_sync.retain(|block| states.contains_key(block));
        }
        (before - self.states.len()) as u64
    }

    fn state_times(&self) -> impl Iterator<Item = u64> {
        self.states.values().map(|state| state.last_ns)
    }
}

/// The index of dirty blocks by file.
pub(crate) struct DirtyFiles {
    pub(crate) shards: Vec<Mutex<FxHashMap<Ino, File>>>,
    /// States of each shard.
    states: Vec<AtomicU64>,
    /// Most states of blocks without a page.
    most_states: AtomicU64,
    /// Whether states were dropped, as there were too many.
    has_dropped: AtomicBool,
    /// The last sync of the files of a place; 0: none.
    synced_ns: Vec<AtomicU64>,
}

impl DirtyFiles {
    pub(crate) fn new() -> DirtyFiles {
        DirtyFiles {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            states: (0..SHARDS).map(|_| AtomicU64::new(0)).collect(),
            most_states: AtomicU64::new(0),
            has_dropped: AtomicBool::new(false),
            synced_ns: (0..SYNCED).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    pub(crate) fn shard(&self, ino: Ino) -> &Mutex<FxHashMap<Ino, File>> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    pub(crate) fn add(&self, key: PageKey, now_ns: u64) {
        let mut files = self.shard(key.ino).lock();
        self.drop_gone(&mut files, key);
        let file = files.entry(key.ino).or_insert_with(|| File::new(key.generation, now_ns));
        assert_eq!(file.generation, key.generation, "dirty pages of a file that is gone");
        if file.blocks.is_empty() {
            file.oldest_ns = now_ns;
        }
        file.blocks.insert(key.block, now_ns);
    }

    pub(crate) fn remove(&self, key: PageKey) {
        let mut files = self.shard(key.ino).lock();
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

    /// Changes the states of a file, and drops the oldest states beyond the limit. `pages`: blocks with a page, whose states do
    /// not count.
    pub(crate) fn with_states(&self, key: PageKey, pages: u64, now_ns: u64, change: impl FnOnce(&mut File)) {
        let most = self.most_states.load(Ordering::Relaxed);
        if most == 0 {
            return;
        }
        let count = &self.states[key.ino.0 as usize % SHARDS];
        let mut files = self.shard(key.ino).lock();
        self.drop_gone(&mut files, key);
        let file = files.entry(key.ino).or_insert_with(|| File::new(key.generation, now_ns));
        let before = file.states.len();
        change(file);
        let added = (file.states.len() - before) as u64;
        // Under the lock: whoever drops them takes them from the count.
        count.fetch_add(added, Ordering::Relaxed);
        drop(files);
        if added > 0 {
            let (all, most) = (self.states(), most + pages);
            if all > most {
                self.drop_oldest(all - most + most / 4);
            }
        }
    }

    /// Drops about as many states as told, of the shard that has most: a single file may have nearly all.
    fn drop_oldest(&self, wanted: u64) {
        let count = |shard: &usize| self.states[*shard].load(Ordering::Relaxed);
        let fullest = (0..SHARDS).max_by_key(count).unwrap_or(0);
        let mut files = self.shards[fullest].lock();
        let gone = drop_oldest(&mut files, wanted);
        self.states[fullest].fetch_sub(gone, Ordering::Relaxed);
        drop(files);
        self.has_dropped.store(true, Ordering::Relaxed);
    }

    /// Whether states were dropped, as there were too many.
    #[inline]
    pub(crate) fn has_dropped(&self) -> bool {
        self.has_dropped.load(Ordering::Relaxed)
    }

    /// Notes a sync of a file.
    pub(crate) fn note_synced(&self, ino: Ino, now_ns: u64) {
        self.synced_ns[ino.0 as usize % SYNCED].store(now_ns.max(1), Ordering::Relaxed);
    }

    /// The last sync of a file, or of another file of its place.
    pub(crate) fn synced_ns(&self, ino: Ino) -> Option<u64> {
        Some(self.synced_ns[ino.0 as usize % SYNCED].load(Ordering::Relaxed)).filter(|at| *at > 0)
    }

    /// Drops the states of an earlier file of an inode.
    fn drop_gone(&self, files: &mut FxHashMap<Ino, File>, key: PageKey) {
        let gone = files.get(&key.ino).filter(|file| file.generation != key.generation);
        if let Some(file) = gone.filter(|file| file.blocks.is_empty()) {
            let states = file.states.len() as u64;
            self.states[key.ino.0 as usize % SHARDS].fetch_sub(states, Ordering::Relaxed);
            files.remove(&key.ino);
        }
    }

    /// Forgets the states of a file.
    pub(crate) fn forget_states(&self, ino: Ino) {
        // Most mounts have none: a removal takes no lock for them.
        if self.states[ino.0 as usize % SHARDS].load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut files = self.shard(ino).lock();
        if let Some(file) = files.get_mut(&ino) {
            let gone = file.states.len() as u64;
            self.states[ino.0 as usize % SHARDS].fetch_sub(gone, Ordering::Relaxed);
            file.states.clear();
            file.since_sync.clear();
            if file.is_empty() {
                files.remove(&ino);
            }
        }
    }
}

/// Drops the states with the earliest last writes, as many as wanted, but at most half of them. Gives their number.
fn drop_oldest(files: &mut FxHashMap<Ino, File>, wanted: u64) -> u64 {
    let mut times: Vec<u64> = files.values().flat_map(File::state_times).collect();
    if times.is_empty() {
        return 0;
    }
    let drop = (wanted as usize).min(times.len() / 2).max(1);
    let (_, cutoff, _) = times.select_nth_unstable(drop - 1);
    let cutoff = *cutoff;
    let gone = files.values_mut().map(|file| file.drop_states_before(cutoff)).sum();
    files.retain(|_, file| !file.is_empty());
    gone
}
