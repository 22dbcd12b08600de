//! Bytes that changes take in a record, in the worst case: operations are cut by them, and lanes reserved (T7).

use crate::store::Store;
use terrace_format::BLOCK_SIZE;

/// Record bytes of a table entry that is a write of its own.
pub(crate) const OF_ENTRY: usize = 24;

/// Record bytes per written block besides those of the map, in the worst case: new and old table entry.
const OF_WRITTEN: usize = 2 * OF_ENTRY;

/// Record bytes per block of a removal of unknown shape besides those of the map: its owner, and a share of slot, intent,
/// catalog and emptied map pages.
const OF_REMOVED: usize = 112;

/// Record bytes per block that movement drops from PM besides those of the map: its owner, and a share of emptied map
/// pages.
const OF_DROPPED: usize = 48;

/// Record bytes besides: header, slot, data checks.
const RECORD_FIXED: usize = 512;

/// Most blocks of one write transaction: what a quarter lane records and the map takes, at most 1 MiB (design I4).
pub fn atomic_blocks(store: &Store) -> u64 {
    let map = store.persistent.map().record();
    let room = store.persistent.wal().max_record() - RECORD_FIXED - map.run;
    let fit = room / (OF_WRITTEN + map.block);
    assert!(fit > 0, "a quarter of a lane records a block (T7)");
    (fit.min(map.most_blocks) as u64).min((1 << 20) / BLOCK_SIZE)
}

/// Record bytes for new content of `blocks` blocks, in the worst case.
pub fn record_of(store: &Store, blocks: usize) -> usize {
    let map = store.persistent.map().record();
    RECORD_FIXED + OF_WRITTEN * (blocks + 1) + map.bytes(1, blocks + 1)
}

/// As [`record_of`], of blocks that do not follow one another in the file.
pub fn record_of_scattered(store: &Store, blocks: usize) -> usize {
    let map = store.persistent.map().record();
    RECORD_FIXED + OF_WRITTEN * (blocks + 1) + map.bytes(blocks + 1, blocks + 1)
}

/// PM blocks that a record of `bytes` bytes removes at most, with their cold extents.
pub(crate) fn removed_blocks(store: &Store, bytes: usize) -> usize {
    bytes / (OF_REMOVED + store.persistent.map().record().bytes(1, 1))
}

/// Record bytes for `blocks` blocks in `runs` runs that movement drops from PM. More than a record has where the map takes
/// no so many runs at once.
pub(crate) fn record_of_drop(store: &Store, runs: usize, blocks: usize) -> usize {
    let map = store.persistent.map().record();
    if runs > map.most_blocks {
        return usize::MAX / 2;
    }
    OF_DROPPED * blocks + map.bytes(runs, blocks)
}
