//! SEEK_DATA and SEEK_HOLE.
//!
//! A turn looks at a bounded number of mappings and extents under the shared inode lock.

use terrace_catalog::cold_map;
use terrace_format::inode::flag;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_store::attempt::with_pages::reading;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::load::load_regular_to_read;
use terrace_store::inode::slot::{check_owner, next_mapped};
use terrace_store::lookup::intents::intents_of;
use terrace_store::operation::progress::{Progress, TURN_ENTRIES, all_turns};
use terrace_store::store::Store;
use terrace_store::types::inode::Inode;
use terrace_store::types::{BlockRange, Seek, Wait};

/// The next data or hole at or after an offset.
///
/// # Errors
/// ENXIO at or past the end (and for data, when none follows), EISDIR, EIO.
pub fn seek(store: &Store, ino: Ino, offset: u64, what: Seek) -> FsResult<u64> {
    all_turns(|progress| seek_turn(store, ino, offset, what, progress, Wait::Allowed))
}

/// A turn of [`seek`]; it waits for metadata on a lower tier only if it may.
///
/// # Errors
/// As [`seek`]; `WouldBlock`, `Unfinished`.
pub fn seek_turn(
    store: &Store,
    ino: Ino,
    offset: u64,
    what: Seek,
    progress: &mut Progress,
    wait: Wait,
) -> FsResult<u64> {
    if !progress.begun {
        (progress.begun, progress.at) = (true, FileBlock(offset / BLOCK_SIZE));
    }
    // The position survives the fetch of a metadata page, so that each entry is visited once.
    let at = &mut progress.at;
    reading(store, wait, || seek_on_media(store, ino, offset, at, what))
}

/// Goes on at `at`. The blocks before `at` hold no match.
fn seek_on_media(store: &Store, ino: Ino, offset: u64, at: &mut FileBlock, what: Seek) -> FsResult<u64> {
    let _guard = store.inodes.locks().read(ino);
    let inode = load_regular_to_read(store, ino)?;
    let size = inode.size();
    if offset >= size {
        return Err(FsError::NoDataThere);
    }
    let intents = intents_of(store, &inode)?;
    let end = FileBlock(size.div_ceil(BLOCK_SIZE));
    match what {
        Seek::Data => match next_data(store, &inode, at, end, &intents)? {
            None => Err(FsError::NoDataThere),
            Some(block) => Ok(offset.max(block.0 * BLOCK_SIZE)),
        },
        Seek::Hole => {
            skip_data(store, &inode, at, end, &intents)?;
            Ok(offset.max(at.0 * BLOCK_SIZE).min(size))
        }
    }
}

/// The first block from `at` that holds data. Moves `at` to where the next turn goes on when it looked at enough.
fn next_data(
    store: &Store,
    inode: &Inode,
    at: &mut FileBlock,
    end: FileBlock,
    intents: &[BlockRange],
) -> FsResult<Option<FileBlock>> {
    let dirty = match inode.pending {
        Some(_) => store.dram.cache().next_dirty(inode.ino, *at, end),
        None => None,
    };
    let end = dirty.unwrap_or(end);
    // The blocks before `seen` hold no data; `best` is the first block with data, if it is known.
    let (mut best, mut seen, mut finished) = (dirty, end, true);
    let (mut from, mut left) = (*at, TURN_ENTRIES);
    while let Some((block, mapping)) = next_mapped(store, inode, from, end)? {
        let gone = intents.iter().find(|r| r.first <= block && block < r.end);
        if !mapping.unwritten && gone.is_none() {
            (best, seen) = (Some(block), block);
            break;
        }
        from = gone.map_or(block.plus(1), |range| range.end);
        left -= 1;
        if left == 0 && from < end {
            (best, seen, finished) = (None, from, false);
            break;
        }
    }
    if inode.slot.has(flag::HAS_COLD) {
        let (limit, mut left) = (seen, TURN_ENTRIES);
        let shard = store.persistent.catalog().read(store.persistent.catalog().shard_of(inode.ino.0));
        cold_map::scan(shard.reader(), inode.ino, *at, limit, |extent| {
            let mut block = extent.first.max(*at);
            for range in intents {
                if range.first <= block && block < range.end {
                    block = range.end;
                }
            }
            // Unwritten blocks shadowed by written ones were found in PM above.
            if !extent.unwritten && block < extent.end() && block < limit {
                (best, seen, finished) = (Some(block), block, true);
                return std::ops::ControlFlow::Break(());
            }
            left -= 1;
            if left > 0 || extent.end() >= limit {
                return std::ops::ControlFlow::Continue(());
            }
            (best, seen, finished) = (None, extent.end(), false);
            std::ops::ControlFlow::Break(())
        })?;
    }
    if finished {
        return Ok(best);
    }
    *at = seen;
    Err(FsError::Unfinished)
}

/// Moves `at` behind the data that it stands in: by extents below, by runs in PM, as far as one turn goes.
fn skip_data(
    store: &Store,
    inode: &Inode,
    at: &mut FileBlock,
    end: FileBlock,
    intents: &[BlockRange],
) -> FsResult<()> {
    let mut left = TURN_ENTRIES;
    while left > 0 {
        let before = *at;
        if inode.slot.has(flag::HAS_COLD) {
            skip_cold(store, inode, at, end, intents, &mut left)?;
        }
        skip_mapped(store, inode, at, end, intents, &mut left)?;
        while *at < end
            && left > 0
            && inode.pending.is_some()
            && store.dram.cache().next_dirty(inode.ino, *at, at.plus(1)).is_some()
        {
            *at = at.plus(1);
            left -= 1;
        }
        if *at == before {
            return Ok(());
        }
    }
    Err(FsError::Unfinished)
}

fn skip_cold(
    store: &Store,
    inode: &Inode,
    at: &mut FileBlock,
    end: FileBlock,
    intents: &[BlockRange],
    left: &mut usize,
) -> FsResult<()> {
    let shard = store.persistent.catalog().read(store.persistent.catalog().shard_of(inode.ino.0));
    cold_map::scan(shard.reader(), inode.ino, *at, end, |extent| {
        let until = extent.end().min(end).min(next_intent(intents, *at));
        if extent.unwritten || extent.first > *at || until <= *at || *left == 0 {
            return std::ops::ControlFlow::Break(());
        }
        (*at, *left) = (until, *left - 1);
        std::ops::ControlFlow::Continue(())
    })?;
    Ok(())
}

fn skip_mapped(
    store: &Store,
    inode: &Inode,
    at: &mut FileBlock,
    end: FileBlock,
    intents: &[BlockRange],
    left: &mut usize,
) -> FsResult<()> {
    let end = end.min(next_intent(intents, *at));
    while *at < end && *left > 0 {
        let mut run = [None; MAPPED_RUN as usize];
        let run = &mut run[..(end.0 - at.0).min(MAPPED_RUN) as usize];
        store.persistent.map().lookup_run(&inode.map(), *at, run)?;
        *left = left.saturating_sub(run.len());
        for mapping in run {
            let Some(mapping) = mapping.filter(|mapping| !mapping.unwritten) else { return Ok(()) };
            check_owner(store, inode, *at, mapping.block)?;
            *at = at.plus(1);
        }
    }
    Ok(())
}

/// PM blocks looked up at once.
const MAPPED_RUN: u64 = 64;

/// The begin of the next range of an intent at or behind `at`; `at` itself inside such a range.
fn next_intent(intents: &[BlockRange], at: FileBlock) -> FileBlock {
    let ahead = intents.iter().filter(|range| range.end > at).map(|range| range.first.max(at));
    ahead.min().unwrap_or(FileBlock(u64::MAX))
}
