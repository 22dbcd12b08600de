//! A cursor over read-dominated files.

use crate::migration::Migration;
use terrace_format::{FileBlock, Ino};

/// Places of the table of files looked at in one step.
const PLACES: usize = 256;

/// Where the last step stopped.
#[derive(Default)]
pub(crate) struct Cursor {
    place: usize,
    pub(crate) file: Option<(Ino, u32, FileBlock)>,
    pub(crate) not_before_ns: u64,
}

/// The next read-dominated file, if one is among the next places of the table.
pub(crate) fn next_read_dominated(
    migration: &Migration,
    cursor: &mut Cursor,
) -> Option<(Ino, u32, FileBlock)> {
    for _ in 0..PLACES.min(migration.store.steering.file_histories().places()) {
        cursor.place = (cursor.place + 1) % migration.store.steering.file_histories().places();
        if let Some((ino, generation)) = migration
            .store
            .steering
            .file_histories()
            .read_dominated_at(cursor.place, migration.store.steering.parameters().read_times)
        {
            return Some((ino, generation, FileBlock(0)));
        }
    }
    None
}
