//! Writes: the ladder from a write's home to the writer that serves it.
//!
//! `steering::choose_home` has the conditions in order. A writer that meets dirty bytes before the write, or a full tier,
//! hands back here.

use crate::content::mapping::expect_pages;
use crate::content::write_dram::{write_buffered, write_lazy};
use crate::content::write_pm::{Rest, write_pm};
use crate::content::write_whole_block::{WholeBlock, write_whole_block};
use crate::sync::barrier;
use crate::write_back::file::keep_in_pm;
use crate::write_back::rounds::tail_round;
use terrace_format::address::MAX_FILE_SIZE;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_placement::Home;
use terrace_runtime::interleave;
use terrace_runtime::planted::{Mistake, planted};
use terrace_store::attempt::log_space::wait_for_log;
use terrace_store::attempt::with_pages::with_pages;
use terrace_store::change::record_room::atomic_blocks;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::attributes::getattr;
use terrace_store::inode::load::load_regular;
use terrace_store::pressure::buffer::{has_buffer, has_lazy_writes};
use terrace_store::pressure::pm_space::{is_pm_short, wait_for_demotion};
use terrace_store::steering::choose_home::{ask_home, lazy_run};
use terrace_store::steering::learn::expect_use;
use terrace_store::store::Store;
use terrace_store::types::segment::Segment;
use terrace_store::types::{BLOCK, Wait, WriteFlags};
use terrace_wal::Error;

/// As [`write`]; a synchronous write is durable on return.
///
/// # Errors
/// As [`write`]; EIO when PM has failed.
pub fn write_durably(
    store: &Store,
    ino: Ino,
    offset: u64,
    data: &[u8],
    flags: WriteFlags,
    wait: Wait,
) -> FsResult<usize> {
    let written = write(store, ino, offset, data, flags, wait)?;
    if flags.sync {
        barrier(store)?;
    }
    Ok(written)
}

/// Writes `data` at `offset` and gives the bytes written: all of them, or the pieces before the one that
/// failed, or that would have to wait when the caller may not (the rest is for a waiting thread, L2). A request of
/// up to the atomic write size (min(1 MiB, what a quarter lane records)) is one piece, all or nothing
/// after a crash under data=atomic.
///
/// # Errors
/// EFBIG beyond 16 TiB, ENOSPC when no tier can take it, EISDIR and EINVAL for other inodes, EIO; `WouldBlock`
/// when the caller may not wait.
pub fn write(
    store: &Store,
    ino: Ino,
    offset: u64,
    data: &[u8],
    flags: WriteFlags,
    wait: Wait,
) -> FsResult<usize> {
    // As on Linux, a write is cut at the largest file size.
    let room = MAX_FILE_SIZE.saturating_sub(offset);
    if room == 0 && !data.is_empty() {
        return Err(FsError::TooLarge);
    }
    let data = &data[..data.len().min(room.try_into().unwrap_or(usize::MAX))];
    expect_use(store, ino);
    if flags.pages {
        expect_pages(store, ino, wait)?;
    }
    wait_for_log(store, data.len() as u64, wait)?;
    let whole = Segment { offset, length: data.len() as u64, data: Some(data) };
    let mut home = None;
    if is_pm_short(store) {
        home = Some(with_pages(store, wait, || ask_home(store, ino, &whole, flags))?);
        if home == Some(Home::Pm) {
            wait_for_demotion(store, wait)?;
        }
    }
    let end = offset + data.len() as u64;
    if planted(Mistake::SizeBeforeBlocks) && getattr(store, ino)?.size < end {
        wrong::raise_size_first(store, ino, end, wait)?;
    }
    if home != Some(Home::Block) && data.len() == BLOCK && offset.is_multiple_of(BLOCK_SIZE) {
        match write_whole_block(store, ino, FileBlock(offset / BLOCK_SIZE), data, flags)? {
            WholeBlock::Written => return Ok(data.len()),
            WholeBlock::Redirect(chosen) => home = Some(chosen),
            WholeBlock::NotTried => {}
        }
    }
    let home = home.map_or_else(|| with_pages(store, wait, || ask_home(store, ino, &whole, flags)), Ok)?;
    if home == Home::Block {
        return write_below(store, ino, offset, data, flags, wait);
    }
    if has_lazy_writes(store) && !flags.sync {
        return write_by_blocks(store, ino, offset, data, flags, wait);
    }
    write_direct(store, ino, offset, data, flags, wait)
}

/// Writes lazy runs of blocks into DRAM and direct runs into PM, each direct run as one request (C32). A lazy run that finds no
/// room in DRAM goes the direct way, behind the pages before it.
fn write_by_blocks(
    store: &Store,
    ino: Ino,
    offset: u64,
    data: &[u8],
    flags: WriteFlags,
    wait: Wait,
) -> FsResult<usize> {
    let (mut done, mut settled) = (0, 0);
    while done < data.len() {
        let (at, rest) = (offset + done as u64, &data[done..]);
        match write_run(store, ino, at, rest, flags, wait) {
            Ok(0) if settled < MOST_SETTLED => settled += 1,
            Ok(0) if done == 0 => return write_below(store, ino, at, rest, flags, wait),
            Ok(0) => break,
            Err(_) if done > 0 => break,
            written => done += written?,
        }
    }
    Ok(done)
}

/// How often a writer settles the pages before its bytes, while others take the room in DRAM that this makes.
const MOST_SETTLED: u32 = 1000;

/// Writes the first run; 0: pages before the run were settled, and the write is to be tried again.
fn write_run(
    store: &Store,
    ino: Ino,
    offset: u64,
    data: &[u8],
    flags: WriteFlags,
    wait: Wait,
) -> FsResult<usize> {
    let (length, is_lazy) = with_pages(store, wait, || first_run(store, ino, offset, data.len(), flags))?;
    let run = &data[..length];
    interleave::point("write:chosen");
    let taken = if is_lazy { write_lazy(store, ino, offset, run, flags, wait)? } else { 0 };
    if taken > 0 {
        return Ok(taken);
    }
    match write_pm(store, ino, offset, run, flags, wait) {
        // A large file would hold its writer up for all its pages.
        Ok((0, Rest::DirtyBytesBefore)) if wait == Wait::Allowed && tail_round(store, ino) => Ok(0),
        Ok((0, Rest::DirtyBytesBefore)) => match settle_before(store, ino, wait) {
            Err(error) if error.can_fall_back_to_pm() && has_buffer(store) => {
                write_below(store, ino, offset, run, flags, wait)
            }
            settled => settled.map(|()| 0),
        },
        written => or_into_dram(store, ino, offset, run, flags, wait, written.map(|(done, _)| done)),
    }
}

/// Puts the pages that wait before a write into PM.
fn settle_before(store: &Store, ino: Ino, wait: Wait) -> FsResult<()> {
    if store.dram.volatile_sizes().get(ino).is_none() || store.persistent.wal().is_stopped() {
        return Ok(());
    }
    if wait != Wait::Allowed {
        return Err(FsError::WouldBlock);
    }
    keep_in_pm(store, ino, wait)
}

/// The length of the first run of a write in bytes, and whether the run is lazy.
fn first_run(
    store: &Store,
    ino: Ino,
    offset: u64,
    length: usize,
    flags: WriteFlags,
) -> FsResult<(usize, bool)> {
    let _guard = store.inodes.locks().read(ino);
    let inode = load_regular(store, ino)?;
    let mut blocks = Segment { offset, length: length as u64, data: None }.blocks();
    // A request has no larger parts in any case (C13).
    blocks.end = blocks.end.min(blocks.first.plus(atomic_blocks(store)));
    let most = (blocks.end.0 * BLOCK_SIZE - offset) as usize;
    let whole = Segment { offset, length: length.min(most) as u64, data: None };
    let (count, is_lazy) = lazy_run(store, &inode, &whole, flags);
    let end = (blocks.first.0 + count) * BLOCK_SIZE;
    Ok((length.min((end - offset) as usize), is_lazy))
}

/// Writes into PM.
fn write_direct(
    store: &Store,
    ino: Ino,
    offset: u64,
    data: &[u8],
    flags: WriteFlags,
    wait: Wait,
) -> FsResult<usize> {
    match write_pm(store, ino, offset, data, flags, wait) {
        Ok((done, Rest::DirtyBytesBefore)) => {
            // Since the home was chosen, other writers have dirtied pages before this write: it goes to DRAM
            // behind them.
            match write_below(store, ino, offset + done as u64, &data[done..], flags, wait) {
                Err(_) if done > 0 => Ok(done),
                written => Ok(done + written?),
            }
        }
        written => or_into_dram(store, ino, offset, data, flags, wait, written.map(|(done, _)| done)),
    }
}

/// The result of a write into PM; into DRAM for a lower tier if PM is full, which is not a full file system (I9), even if
/// damage hides the free PM blocks.
fn or_into_dram(
    store: &Store,
    ino: Ino,
    offset: u64,
    data: &[u8],
    flags: WriteFlags,
    wait: Wait,
    written: FsResult<usize>,
) -> FsResult<usize> {
    match written {
        Err(full @ (FsError::Engine(Error::NoSpace(_)) | FsError::SpaceHidden(_))) if has_buffer(store) => {
            let taken = write_buffered(store, ino, offset, data, flags, wait);
            taken.map_err(|error| if error.can_fall_back_to_pm() { full } else { error })
        }
        written => written,
    }
}

/// Writes into DRAM; into PM what neither DRAM nor the lower tiers take now, after what lies before it in the file, as
/// far as PM has room.
fn write_below(
    store: &Store,
    ino: Ino,
    offset: u64,
    data: &[u8],
    flags: WriteFlags,
    wait: Wait,
) -> FsResult<usize> {
    let refused = match write_buffered(store, ino, offset, data, flags, wait) {
        Err(error) if error.can_fall_back_to_pm() => error,
        taken => return taken,
    };
    for _ in 0..MOST_BEHIND {
        match settle_before(store, ino, wait) {
            Err(FsError::WouldBlock) if wait != Wait::Allowed => return Err(FsError::WouldBlock),
            // The error is ignored: dirty pages may stay behind the bytes of this write, which does not
            // depend on them.
            Err(_) => {
                tracing::debug!("inode {ino}: not all that waits in DRAM fits into persistent memory");
            }
            Ok(()) => {}
        }
        let (done, rest) = write_pm(store, ino, offset, data, flags, wait)?;
        if rest == Rest::Done || done > 0 {
            return Ok(done);
        }
    }
    Err(refused)
}

/// How often a writer settles the dirty pages before its bytes, if other writers dirty new ones meanwhile.
const MOST_BEHIND: u32 = 3;

/// Planted mistakes of this file.
mod wrong {
    use crate::content::fallocate::extend;
    use terrace_format::Ino;
    use terrace_store::error::FsResult;
    use terrace_store::store::Store;
    use terrace_store::types::Wait;

    /// `size-before-blocks`.
    pub(super) fn raise_size_first(store: &Store, ino: Ino, end: u64, wait: Wait) -> FsResult<()> {
        extend(store, ino, end, wait)
    }
}
