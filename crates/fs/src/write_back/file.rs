//! Write-back of whole files, for fsync, sync and unmount: the pages that are dirty at the call, then the
//! size.

use crate::write_back::group::{Written, write_back_blocks};
use crate::write_back::into_pm::absorb;
use crate::write_back::lazy::write_back_lazy;
use crate::write_back::lazy_look::MOST_PAGES;
use std::collections::BTreeSet;
use std::time::Duration;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_placement::Home;
use terrace_runtime::interleave;
use terrace_runtime::planted::{Mistake, planted};
use terrace_store::attempt::run::{large_record, run_attempts};
use terrace_store::change::dirty::settle;
use terrace_store::change::staged::Staged;
use terrace_store::change::tail::stage_raised;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::slot::{load, log_slot};
use terrace_store::moving::errors::writing_back;
use terrace_store::store::Store;
use terrace_store::types::Wait;
use terrace_wal::Error;

/// Rounds without an installed block after which pages in flight by other threads are copied again instead of
/// waited for.
const MOST_IDLE: u32 = 50;

/// Further such rounds after which the pages are settled. A round without pages in flight by other threads
/// counts as `MOST_TRIES` rounds.
const MOST_TRIES: u32 = 8;

/// The longest single wait for the rounds of other threads.
const WAIT: Duration = Duration::from_millis(10);

/// Raises the durable size to the first dirty page behind it, or to the visible size: the bytes before are on
/// media already.
pub(crate) fn raise_durable(store: &Store, ino: Ino, wait: Wait) -> FsResult<()> {
    let mut op = writing_back(wait);
    run_attempts(store, &mut op, large_record(store), |reservation, op| {
        let claim = store.persistent.blocks().claim(1 + op.extra_blocks, op.purpose)?;
        let _guard = store.inodes.locks().write(ino);
        let inode = match load(store, ino) {
            Err(FsError::Stale) => return Ok(()),
            inode => inode?,
        };
        let Some(pending) = inode.pending else { return Ok(()) };
        let durable = inode.durable_size();
        let first = store.dram.cache().next_dirty(ino, FileBlock(durable / BLOCK_SIZE), FileBlock(u64::MAX));
        let size = first.map_or(pending.size, |block| pending.size.min(block.0 * BLOCK_SIZE)).max(durable);
        if size == durable && pending.mtime_ns.is_none() {
            settle(store, &inode, &inode.slot, pending.size, 0);
            return Ok(());
        }
        let mut staged = Staged::new(store, Some(claim), true);
        stage_raised(store, op, &inode, size, &mut staged)?;
        let mut slot = inode.slot;
        slot.size = size.into();
        slot.blocks = slot.blocks.get().saturating_add_signed(staged.blocks_delta).into();
        inode.log_pending_times(&mut slot);
        log_slot(&mut staged.tx, inode.place, &inode.slot, &slot);
        staged.commit(reservation)?;
        settle(store, &inode, &slot, pending.size, 0);
        Ok(())
    })
}

/// Blocks of a file from which a group is taken that is to hold `block`, and their home: behind the durable end those before
/// it go first.
pub(crate) fn blocks_with(store: &Store, ino: Ino, block: FileBlock) -> FsResult<(Home, Vec<FileBlock>)> {
    let _guard = store.inodes.locks().read(ino);
    let inode = match load(store, ino) {
        Err(FsError::Stale | FsError::Engine(Error::PageBelow(_))) => return Ok((Home::Block, Vec::new())),
        inode => inode?,
    };
    let durable_block = FileBlock(inode.durable_size() / BLOCK_SIZE);
    let end = FileBlock(u64::MAX);
    let from = match store.dram.cache().next_dirty(ino, durable_block, block) {
        Some(first) if block > durable_block => first,
        _ => block,
    };
    let cache = store.dram.cache();
    if cache.dirty_pages_of(Home::Pm) == 0 {
        return Ok((Home::Block, cache.dirty_blocks(ino, from, end, store.mode.group_blocks as usize)));
    }
    let home_of = |block: &FileBlock| cache.home_of(inode.page_key(*block));
    let first = cache.next_dirty(ino, from, end);
    let home = first.as_ref().and_then(home_of).unwrap_or(Home::Block);
    let most = match home {
        Home::Block => store.mode.group_blocks as usize,
        Home::Pm => MOST_PAGES as usize,
    };
    let mut blocks = cache.dirty_blocks(ino, from, end, most);
    blocks.truncate(blocks.iter().take_while(|block| home_of(block) == Some(home)).count());
    Ok((home, blocks))
}

/// Writes back pages for PM. After an error pages for devices are tried even so (C29).
fn lazy_round(
    store: &Store,
    ino: Ino,
    left: &mut BTreeSet<FileBlock>,
    all: bool,
    wait: Wait,
    failed: &mut Option<FsError>,
) -> FsResult<Written> {
    let lazy = lazy_of(store, ino, left)?;
    // A thread that may not wait asks no device (L2).
    if wait != Wait::Allowed && lazy.len() < left.len() {
        return Err(FsError::WouldBlock);
    }
    if lazy.is_empty() {
        return Ok(Written::default());
    }
    let mut written = write_back_lazy(store, ino, &lazy, all, wait)?;
    if let Some((last, error)) = written.failed.take() {
        failed.get_or_insert(error);
        lazy.iter().filter(|block| **block <= last).for_each(|block| {
            left.remove(block);
        });
    }
    Ok(written)
}

/// The first blocks among `blocks` whose dirty pages have their home in PM, as many as a group has.
fn lazy_of(store: &Store, ino: Ino, blocks: &BTreeSet<FileBlock>) -> FsResult<Vec<FileBlock>> {
    if store.dram.cache().dirty_pages_of(Home::Pm) == 0 {
        return Ok(Vec::new());
    }
    let _guard = store.inodes.locks().read(ino);
    let inode = match load(store, ino) {
        Err(FsError::Stale | FsError::Engine(Error::PageBelow(_))) => return Ok(Vec::new()),
        inode => inode?,
    };
    let is_lazy = |block: &&FileBlock| store.dram.cache().home_of(inode.page_key(**block)) == Some(Home::Pm);
    Ok(blocks.iter().filter(is_lazy).take(MOST_PAGES as usize).copied().collect())
}

/// Why a write-back of a file failed: the home whose pages failed, if only one has.
pub(crate) type Failed = (Option<Home>, FsError);

/// Makes the present content and size of a file durable. Later writes may be covered or not, so the call ends
/// however fast a writer appends.
pub(crate) fn write_back_file(store: &Store, ino: Ino, wait: Wait) -> Result<(), Failed> {
    let mut failed = None;
    write_back_pages(store, ino, wait, &mut failed).map_err(|error| (None, error))?;
    failed.map_or(Ok(()), |error| Err((Some(Home::Pm), error)))
}

/// As [`write_back_file`]; the error of pages for PM is left in `failed`, and the size is not raised then.
fn write_back_pages(store: &Store, ino: Ino, wait: Wait, failed: &mut Option<FsError>) -> FsResult<()> {
    let (size, mut left) = {
        let _guard = store.inodes.locks().read(ino);
        let inode = match load(store, ino) {
            Err(FsError::Stale | FsError::Engine(Error::PageBelow(_))) => return Ok(()),
            inode => inode?,
        };
        let Some(pending) = inode.pending else { return Ok(()) };
        let all = store.dram.cache().dirty_blocks(ino, FileBlock(0), FileBlock(u64::MAX), usize::MAX);
        (pending.size, all.into_iter().collect::<BTreeSet<FileBlock>>())
    };
    let mut idle = 0;
    while !left.is_empty() {
        let all = idle > MOST_IDLE || interleave::active();
        let into_pm = lazy_round(store, ino, &mut left, all, wait, failed)?;
        into_pm.blocks.iter().for_each(|block| {
            left.remove(block);
        });
        let below = match store.dram.cache().dirty_pages_of(Home::Block) {
            0 => Ok(Written::default()),
            _ => write_back_blocks(store, ino, &left.iter().copied().collect::<Vec<FileBlock>>(), all),
        };
        let written = below.map(|below| Written {
            others: below.others + into_pm.others,
            blocks: [below.blocks, into_pm.blocks].concat(),
            failed: None,
        });
        if matches!(written, Err(FsError::Engine(Error::NoSpace(_)))) {
            // The reserved device blocks are free but still under I/O pins of readers of their old content:
            // the pages are settled (I9).
            keep_in_pm(store, ino, wait)?;
            break;
        }
        let written = written?;
        if planted(Mistake::SyncSkipsInFlight) && written.others > 0 {
            break;
        }
        written.blocks.iter().for_each(|block| {
            left.remove(block);
        });
        // Others have written some back, or dropped them. A look at all pages in each turn would cost more than their stores.
        if written.blocks.is_empty() {
            left.retain(|block| is_dirty(store, ino, *block));
        }
        idle = match (written.blocks.is_empty(), written.others) {
            (false, _) => 0,
            (true, 0) => idle + MOST_TRIES,
            (true, _) => idle + 1,
        };
        if idle > MOST_IDLE + MOST_TRIES {
            // Other threads keep changing the pages that must be installed first: the pages are settled (I9).
            keep_in_pm(store, ino, wait)?;
            break;
        }
        if written.others > 0 && written.blocks.is_empty() {
            if wait != Wait::Allowed {
                return Err(FsError::WouldBlock);
            }
            store.dram.write_back().wait_round(WAIT);
        } else if written.blocks.is_empty() {
            left.extend(first_behind_end(store, ino)?);
        }
    }
    match failed {
        Some(_) => Ok(()),
        None => raise_to(store, ino, size, wait),
    }
}

/// Raises the durable size to `size`, or to the visible size if the file became shorter. The pages that were
/// dirty when `size` was read are written. A page that a later write dirties behind the durable end stops the
/// raise there and is settled: each round gets past the pages that are dirty at its begin.
fn raise_to(store: &Store, ino: Ino, size: u64, wait: Wait) -> FsResult<()> {
    if short_of(store, ino, size)?.is_some() {
        raise_durable(store, ino, wait)?;
    }
    let end = FileBlock(size.div_ceil(BLOCK_SIZE));
    while let Some(durable) = short_of(store, ino, size)? {
        let behind = store.dram.cache().dirty_blocks(ino, FileBlock(durable / BLOCK_SIZE), end, usize::MAX);
        absorb(store, ino, &behind, wait)?;
        interleave::point("raise:absorbed");
        raise_durable(store, ino, wait)?;
    }
    Ok(())
}

fn is_dirty(store: &Store, ino: Ino, block: FileBlock) -> bool {
    store.dram.cache().next_dirty(ino, block, block.plus(1)).is_some()
}

/// The first dirty block behind the durable end: no later block can become durable before it.
fn first_behind_end(store: &Store, ino: Ino) -> FsResult<Option<FileBlock>> {
    let _guard = store.inodes.locks().read(ino);
    match load(store, ino) {
        Err(FsError::Stale | FsError::Engine(Error::PageBelow(_))) => Ok(None),
        inode => {
            let from = FileBlock(inode?.durable_size() / BLOCK_SIZE);
            Ok(store.dram.cache().next_dirty(ino, from, FileBlock(u64::MAX)))
        }
    }
}

/// The durable size, while some of the first `size` bytes are behind it.
fn short_of(store: &Store, ino: Ino, size: u64) -> FsResult<Option<u64>> {
    let _guard = store.inodes.locks().read(ino);
    let inode = match load(store, ino) {
        Err(FsError::Stale | FsError::Engine(Error::PageBelow(_))) => return Ok(None),
        inode => inode?,
    };
    let durable = inode.durable_size();
    Ok(inode.pending.filter(|pending| durable < pending.size.min(size)).map(|_| durable))
}

/// Puts the dirty pages of a file into PM, in the order of its blocks: for what no lower tier takes.
pub fn keep_in_pm(store: &Store, ino: Ino, wait: Wait) -> FsResult<()> {
    absorb(
        store,
        ino,
        &store.dram.cache().dirty_blocks(ino, FileBlock(0), FileBlock(u64::MAX), usize::MAX),
        wait,
    )?;
    raise_durable(store, ino, wait)
}
