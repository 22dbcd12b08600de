//! A cursor over read-dominated files.

use terrace_format::{FileBlock, Ino};
use terrace_store::store::Store;

/// Entries of the table of files looked at in a step.
const PLACES: usize = 256;

/// The position at which the last step stopped.
#[derive(Default)]
pub(crate) struct Cursor {
    place: usize,
    pub(crate) file: Option<(Ino, u32, FileBlock)>,
    pub(crate) not_before_ns: u64,
}

/// The next read-dominated file, if the next entries of the table have one.
pub(crate) fn next_read_dominated(store: &Store, cursor: &mut Cursor) -> Option<(Ino, u32, FileBlock)> {
    for _ in 0..PLACES.min(store.steering.file_histories().places()) {
        cursor.place = (cursor.place + 1) % store.steering.file_histories().places();
        if let Some((ino, generation)) = store
            .steering
            .file_histories()
            .read_dominated_at(cursor.place, store.steering.parameters().read_times)
        {
            return Some((ino, generation, FileBlock(0)));
        }
    }
    None
}
