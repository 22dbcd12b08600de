//! Reads (design 6, S1): dirty pages, PM, then cold blocks through the page cache, holes as zeros.

use crate::content::access_time::{atime_due, touch_atime};
use smallvec::SmallVec;
use terrace_cache::{DirtyPage, Page};
use terrace_format::inode::flag;
use terrace_format::keys::ColdExtent;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_map::{Cursor, Mapping};
use terrace_placement::Home;
use terrace_runtime::planted::{Mistake, planted};
use terrace_store::attempt::provide::provide;
use terrace_store::error::FsResult;
use terrace_store::inode::slot::fill_to_read;
use terrace_store::lookup::below::read_below;
use terrace_store::lookup::cold_extents::cold_extents;
use terrace_store::lookup::cold_read::{cached_page, cold_page, known_page};
use terrace_store::lookup::data_checksum::read_data;
use terrace_store::lookup::intents::intents_of;
use terrace_store::lookup::lines::{Shadow, lines_of};
use terrace_store::lookup::newest::{dirty_page, is_dirty_in};
use terrace_store::lookup::partial_shadow::read_shadow;
use terrace_store::operation::need::{Attempt, Fail};
use terrace_store::operation::op::Op;
use terrace_store::steering::learn::expect_use;
use terrace_store::steering::learn::note_read;
use terrace_store::store::Store;
use terrace_store::types::inode::{Inode, expect_regular};
use terrace_store::types::{BlockRange, Wait};

/// Blocks looked up at once.
const RUN: usize = 64;

/// Reads up to `into.len()` bytes; fewer at the end of the file. With `Wait::Never` it returns
/// `WouldBlock` when a lower tier has to be read.
///
/// # Errors
/// EISDIR, EINVAL, EIO when a medium fails or a cold block's checksum is wrong.
pub fn read(store: &Store, ino: Ino, offset: u64, into: &mut [u8], wait: Wait) -> FsResult<usize> {
    read_into(store, ino, offset, into, true, wait)
}

/// As [`read`]. Without `touch` (O_NOATIME) the access time stays.
///
/// # Errors
/// As [`read`].
pub fn read_into(
    store: &Store,
    ino: Ino,
    offset: u64,
    into: &mut [u8],
    touch: bool,
    wait: Wait,
) -> FsResult<usize> {
    expect_use(store, ino);
    let mut op = Op::reading(wait);
    let mut provided = 0;
    loop {
        match try_read(store, &mut op, ino, offset, into) {
            Ok((count, atime_due)) => {
                if atime_due && touch {
                    touch_atime(store, ino);
                }
                return Ok(count);
            }
            Err(Fail::Error(error)) => return Err(error),
            Err(Fail::Need(need)) => provide(store, &mut op, need, &mut provided)?,
        }
    }
}

fn try_read(store: &Store, op: &mut Op, ino: Ino, offset: u64, into: &mut [u8]) -> Attempt<(usize, bool)> {
    let guard = store.inodes.locks().read(ino);
    let mut inode = Inode::empty(ino);
    fill_to_read(store, &mut inode)?;
    expect_regular(&inode)?;
    let count = (inode.size().saturating_sub(offset)).min(into.len() as u64) as usize;
    let atime_due = atime_due(store, &inode);
    if count == 0 {
        return Ok((0, atime_due));
    }
    let into = &mut into[..count];
    let first = FileBlock(offset / BLOCK_SIZE);
    let end = FileBlock((offset + count as u64).div_ceil(BLOCK_SIZE));
    if end.0 == first.0 + 1
        && let Some(dram_bytes) = read_one(store, op, (&guard, &inode), offset, first, into)?
    {
        if dram_bytes > 0 {
            found_in_dram(store, &inode, (first, end));
        }
        note_read(store, &inode, count as u64, dram_bytes);
        return Ok((count, atime_due));
    }
    let intents = intents_of(store, &inode)?;
    op.dram_bytes = 0;
    let mut at = first;
    while at < end {
        let run = ((end.0 - at.0) as usize).min(RUN);
        let mut mappings: SmallVec<[Option<Mapping>; RUN]> = SmallVec::new();
        mappings.resize(run, None);
        store.persistent.map().lookup_run_with(&guard, &inode.map(), at, &mut mappings)?;
        read_run(store, op, &inode, offset, into, (at, end), &mappings, &intents)?;
        at = at.plus(run as u64);
    }
    if op.dram_bytes > 0 {
        found_in_dram(store, &inode, (first, end));
    }
    note_read(store, &inode, count as u64, op.dram_bytes);
    Ok((count, atime_due))
}

fn found_in_dram(store: &Store, inode: &Inode, (first, end): (FileBlock, FileBlock)) {
    let file_end = FileBlock(inode.size().div_ceil(BLOCK_SIZE));
    store.dram.read_ahead().found(inode.ino, BlockRange::new(first, end), file_end);
}

/// Reads inside a block that lies in PM, or has a dirty or a clean page. Returns the bytes that came from DRAM. `None` if
/// the general way must look further.
fn read_one(
    store: &Store,
    op: &mut Op,
    (cursor, inode): (&Cursor, &Inode),
    offset: u64,
    block: FileBlock,
    into: &mut [u8],
) -> Attempt<Option<u64>> {
    if inode.slot.has(flag::HAS_INTENT) {
        return Ok(None);
    }
    if inode.pending.is_some() {
        let dram_bytes = read_one_dirty(store, op, inode, offset, block, into)?;
        // Behind the durable end media hold nothing that counts (S5).
        if dram_bytes.is_some() || (block.0 + 1) * BLOCK_SIZE > inode.durable_size() {
            return Ok(dram_bytes);
        }
    }
    match store.persistent.map().lookup_with(cursor, &inode.map(), block)? {
        Some(mapping) if !mapping.unwritten && lines_of(store, inode.ino, block, mapping)?.is_full() => {
            if let Some(tick) = store.steering.stamp() {
                store.persistent.blocks().descriptor(mapping.block).touch_read(tick);
            }
            read_data(store, mapping.block, offset % BLOCK_SIZE, into)?;
            store.devices.io().pm.read(into.len());
            Ok(Some(0))
        }
        // The cold map need not be read: a clean page is valid under its version, which each change of the
        // cold map raises (S6).
        None if inode.slot.has(flag::HAS_COLD) => {
            let Some(page) = cached_page(store, inode, block) else { return Ok(None) };
            let skip = (offset % BLOCK_SIZE) as usize;
            into.copy_from_slice(&page.bytes()[skip..skip + into.len()]);
            Ok(Some(into.len() as u64))
        }
        _ => Ok(None),
    }
}

/// Reads inside a block with a dirty page, else nothing. Most reads meet none: out of their way.
#[cold]
#[inline(never)]
fn read_one_dirty(
    store: &Store,
    op: &mut Op,
    inode: &Inode,
    offset: u64,
    block: FileBlock,
    into: &mut [u8],
) -> Attempt<Option<u64>> {
    let Some(dirty) = dirty_page(store, inode, block) else { return Ok(None) };
    op.dram_bytes = 0;
    read_dirty(store, op, inode, &dirty, (offset % BLOCK_SIZE) as usize, into)?;
    Ok(Some(op.dram_bytes))
}

/// Copies one run of blocks to where they belong in the caller's buffer.
#[allow(clippy::too_many_arguments)]
fn read_run(
    store: &Store,
    op: &mut Op,
    inode: &Inode,
    offset: u64,
    into: &mut [u8],
    (first, until): (FileBlock, FileBlock),
    mappings: &[Option<Mapping>],
    intents: &[BlockRange],
) -> Attempt<()> {
    let stamp = store.steering.stamp();
    let gone = |block: FileBlock| intents.iter().any(|range| range.first <= block && block < range.end);
    let mut cold = None;
    let mut index = 0;
    while index < mappings.len() {
        let block = first.plus(index as u64);
        let start = (block.0 * BLOCK_SIZE).max(offset);
        let mut length = 1;
        if let Some(dirty) = dirty_page(store, inode, block) {
            let target = part(into, offset, block, 1);
            let skip = (start - block.0 * BLOCK_SIZE) as usize;
            read_dirty(store, op, inode, &dirty, skip, target)?;
            index += 1;
            continue;
        }
        match mappings[index] {
            Some(mapping) if !mapping.unwritten && !gone(block) => {
                if let Some(tick) = stamp {
                    store.persistent.blocks().descriptor(mapping.block).touch_read(tick);
                }
                let lines = lines_of(store, inode.ino, block, mapping)?;
                if !lines.is_full() {
                    let target = part(into, offset, block, 1);
                    let skip = (start - block.0 * BLOCK_SIZE) as usize;
                    let shadow = Shadow { block, until, pm: mapping.block, lines };
                    read_shadow(store, op, inode, &shadow, skip, target)?;
                    if inode.pending.is_some() {
                        zero_past(into, offset, (block, 1), inode.durable_size());
                    }
                    index += 1;
                    continue;
                }
                // Consecutive PM blocks are one copy.
                while let Some(Some(next)) = mappings.get(index + length) {
                    let follows = next.block.0 == mapping.block.0 + length as u64;
                    let after = block.plus(length as u64);
                    let is_gone = gone(after) && !planted(Mistake::RunAcrossIntent);
                    let ends = !follows || next.unwritten || is_gone || is_dirty_in(store, inode, after);
                    if ends || !lines_of(store, inode.ino, after, *next)?.is_full() {
                        break;
                    }
                    if let Some(tick) = stamp {
                        store.persistent.blocks().descriptor(next.block).touch_read(tick);
                    }
                    length += 1;
                }
                let target = part(into, offset, block, length);
                let skip = start - block.0 * BLOCK_SIZE;
                read_data(store, mapping.block, skip, target)?;
                store.devices.io().pm.read(target.len());
            }
            None if inode.slot.has(flag::HAS_COLD) && !gone(block) => {
                let target = part(into, offset, block, 1);
                let run = BlockRange::new(first, first.plus(mappings.len() as u64));
                match cold_or_hole(store, op, inode, (block, until), run, &mut cold)? {
                    Some(page) => {
                        let skip = (start - block.0 * BLOCK_SIZE) as usize;
                        target.copy_from_slice(&page.bytes()[skip..skip + target.len()]);
                        op.dram_bytes += target.len() as u64;
                    }
                    None => target.fill(0),
                }
            }
            _ => part(into, offset, block, 1).fill(0),
        }
        if inode.pending.is_some() {
            zero_past(into, offset, (block, length), inode.durable_size());
        }
        index += length;
    }
    Ok(())
}

/// Reads a block with a dirty page from byte `skip` on: a copy for each run of lines of the page, or of the media below it
/// (S1).
fn read_dirty(
    store: &Store,
    op: &mut Op,
    inode: &Inode,
    dirty: &DirtyPage,
    skip: usize,
    target: &mut [u8],
) -> Attempt<()> {
    for (part, is_valid) in dirty.valid.cut(skip, skip + target.len()) {
        let target = &mut target[part.start - skip..part.end - skip];
        let is_below = planted(Mistake::LazyReadBelow) && dirty.home == Home::Pm;
        if is_valid && !is_below {
            target.copy_from_slice(&dirty.page.bytes()[part]);
            // Pages for PM are no copies of a lower tier.
            op.dram_bytes += if dirty.home == Home::Block { target.len() as u64 } else { 0 };
        } else {
            read_below(store, op, inode, dirty.key.block, part.start, target)?;
        }
    }
    Ok(())
}

/// The content of a block that is not in PM, `None` of a hole. `cold` gets the extents of the run when they
/// are first needed: their decoding takes longer than the rest of a read from DRAM. The caller holds the
/// inode lock.
fn cold_or_hole(
    store: &Store,
    op: &mut Op,
    inode: &Inode,
    (block, until): (FileBlock, FileBlock),
    run: BlockRange,
    cold: &mut Option<Vec<ColdExtent>>,
) -> Attempt<Option<Page>> {
    if let Some(page) = known_page(store, op, inode, block) {
        return Ok(Some(page));
    }
    if cold.is_none() {
        *cold = Some(cold_extents(store, inode.ino, run)?);
    }
    let extents = cold.as_deref().unwrap_or(&[]);
    let is_written = |e: &ColdExtent| e.first <= block && block < e.end() && !e.unwritten;
    if !extents.iter().any(is_written) {
        return Ok(None);
    }
    cold_page(store, op, inode, block, until).map(Some)
}

/// Zeros what was read from media behind the durable end, where they hold nothing that counts (S5).
fn zero_past(into: &mut [u8], offset: u64, (block, length): (FileBlock, usize), durable: u64) {
    if (block.0 + length as u64) * BLOCK_SIZE > durable {
        let target = part(into, offset, block, length);
        let start = (block.0 * BLOCK_SIZE).max(offset);
        let keep = (durable.saturating_sub(start) as usize).min(target.len());
        target[keep..].fill(0);
    }
}

/// The part of the caller's buffer that `length` blocks from `block` fill.
fn part(into: &mut [u8], offset: u64, block: FileBlock, length: usize) -> &mut [u8] {
    let start = (block.0 * BLOCK_SIZE).max(offset) - offset;
    let end = ((block.0 + length as u64) * BLOCK_SIZE - offset).min(into.len() as u64);
    &mut into[start as usize..end as usize]
}
