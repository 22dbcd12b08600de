//! The last sync of each file, and the choice of that sync for most blocks: a fixed table, as files come and go faster than
//! blocks are judged. A place is of the file that was synced last there; of the others nothing is known.

use terrace_format::Ino;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

/// Places: 256 KiB. A power of two.
const PLACES: usize = 1 << 14;

/// The last sync at a place.
#[derive(Default)]
struct Place {
    /// Its time.
    synced_ns: AtomicU64,
    /// Inode, generation and choice of the file: [`word_of`]; 0: no file was synced.
    file: AtomicU64,
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
