//! The last sync of each file, and the choice of that sync for most blocks: a fixed table, as files come and go faster than
//! blocks are judged. A place is of the file that was synced last there; of the others nothing is known but whether some have
//! blocks that syncs made lazy.

use terrace_format::Ino;
use terrace_runtime::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Places: 512 KiB. A power of two, and a multiple of the shards of the index: all files of a place are in one shard.
const PLACES: usize = 1 << 14;

/// The last sync at a place: half a line of the processor's cache.
#[derive(Default)]
#[repr(align(32))]
struct Place {
    /// Its time.
    synced_ns: AtomicU64,
    /// Inode, generation and choice of the file: [`word_of`]; 0: no file was synced.
    file: AtomicU64,
    /// Blocks with a state, and those of them that a sync made lazy, of all files of the place.
    states: AtomicU32,
    lazy_states: AtomicU32,
    /// Files of the place with sums of appends.
    appended: AtomicU32,
}

/// The last sync of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastSync {
    pub(crate) synced_ns: u64,
    /// Whether most blocks of the sync are eager; `None`: no sync of the file had blocks to judge.
    pub(crate) is_eager: Option<bool>,
}

/// The table. Words of a place are read and written without a lock: a mixture of two syncs is a hint as any.
pub(crate) struct FileChoices {
    places: Vec<Place>,
}

/// Inode numbers have 31 bits; of a generation as many count.
fn word_of(ino: Ino, generation: u32, is_eager: Option<bool>) -> u64 {
    let choice = is_eager.map_or(0, |is_eager| 1 + u64::from(is_eager));
    ino.0 << 33 | u64::from(generation & 0x7fff_ffff) << 2 | choice
}

impl FileChoices {
    pub(crate) fn new() -> FileChoices {
        FileChoices { places: (0..PLACES).map(|_| Place::default()).collect() }
    }

    fn place(&self, ino: Ino) -> &Place {
        &self.places[ino.0 as usize % PLACES]
    }

    /// Notes the time of a sync of a file, and the choice of the sync. `None`: the sync had no blocks to judge.
    pub(crate) fn note(&self, ino: Ino, generation: u32, now_ns: u64, is_eager: Option<bool>) {
        let before = self.last(ino, generation).and_then(|last| last.is_eager);
        let place = self.place(ino);
        place.synced_ns.store(now_ns, Ordering::Relaxed);
        place.file.store(word_of(ino, generation, is_eager.or(before)), Ordering::Relaxed);
    }

    /// Counts a state that was added or removed. The caller holds the lock of the file's shard.
    pub(crate) fn count_state(&self, ino: Ino, is_added: bool) {
        count(&self.place(ino).states, !is_added, is_added);
    }

    /// Counts a state that a sync made lazy, or that is so no more. The caller holds the lock of the file's shard.
    pub(crate) fn count_lazy(&self, ino: Ino, was_lazy: bool, is_lazy: bool) {
        count(&self.place(ino).lazy_states, was_lazy, is_lazy);
    }

    /// Counts sums of appends that were begun or are gone. The caller holds the lock of the file's shard.
    pub(crate) fn count_appended(&self, ino: Ino, is_added: bool) {
        count(&self.place(ino).appended, !is_added, is_added);
    }

    /// Whether a file may have writes since its last sync that are noted.
    #[inline]
    pub(crate) fn may_have_notes(&self, ino: Ino) -> bool {
        self.may_have_states(ino) || self.place(ino).appended.load(Ordering::Relaxed) > 0
    }

    /// Whether blocks of a file may have states.
    #[inline]
    pub(crate) fn may_have_states(&self, ino: Ino) -> bool {
        self.place(ino).states.load(Ordering::Relaxed) > 0
    }

    /// Whether a file may have blocks that syncs made lazy.
    #[inline]
    pub(crate) fn may_have_lazy(&self, ino: Ino) -> bool {
        self.place(ino).lazy_states.load(Ordering::Relaxed) > 0
    }

    /// The last sync of a file. `None`: no sync, or a later sync of another file with the same place.
    pub(crate) fn last(&self, ino: Ino, generation: u32) -> Option<LastSync> {
        let place = self.place(ino);
        let word = place.file.load(Ordering::Relaxed);
        if word == 0 || word >> 2 != word_of(ino, generation, None) >> 2 {
            return None;
        }
        let is_eager = [None, Some(false), Some(true)][(word & 3).min(2) as usize];
        Some(LastSync { synced_ns: place.synced_ns.load(Ordering::Relaxed), is_eager })
    }
}

/// Changes a count by a thing that was counted before, or is from now on. One thread at a time changes a count.
fn count(things: &AtomicU32, was: bool, is: bool) {
    let before = things.load(Ordering::Relaxed);
    assert!(before >= u32::from(was), "notes of a file were not counted");
    if was != is {
        things.store(before + u32::from(is) - u32::from(was), Ordering::Relaxed);
    }
}
