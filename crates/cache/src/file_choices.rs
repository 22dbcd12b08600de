//! The last sync of each file, and the choice of that sync for most blocks: a fixed table, as files come and go faster than
//! blocks are judged. Files with the same place share the time; the choice is of the file that was synced last.

use terrace_format::Ino;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

/// Places. A power of two.
const PLACES: usize = 4096;

/// The last sync of the files of a place.
#[derive(Default)]
struct Place {
    /// Its time; 0: none.
    synced_ns: AtomicU64,
    /// Inode, generation and choice of the file: [`word_of`].
    choice: AtomicU64,
}

/// The table.
pub(crate) struct FileChoices {
    places: Vec<Place>,
}

/// A file with its choice in the lowest bit. A generation is told from the next 2³¹.
fn word_of(ino: Ino, generation: u32, is_eager: bool) -> u64 {
    ino.0 << 32 | u64::from(generation << 1) | u64::from(is_eager)
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
        let place = self.place(ino);
        place.synced_ns.store(now_ns.max(1), Ordering::Relaxed);
        if let Some(is_eager) = is_eager {
            place.choice.store(word_of(ino, generation, is_eager), Ordering::Relaxed);
        }
    }

    /// The last sync of a file, or of another file of its place.
    pub(crate) fn synced_ns(&self, ino: Ino) -> Option<u64> {
        Some(self.place(ino).synced_ns.load(Ordering::Relaxed)).filter(|at| *at > 0)
    }

    /// Whether most blocks of the last sync of a file are eager; `None`: another file was synced since, or none.
    pub(crate) fn is_eager(&self, ino: Ino, generation: u32) -> Option<bool> {
        let word = self.place(ino).choice.load(Ordering::Relaxed);
        [false, true].into_iter().find(|is_eager| word == word_of(ino, generation, *is_eager))
    }
}
