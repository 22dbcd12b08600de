//! Writes into DRAM: those whose home is a block tier (design 5, 8).
//!
//! A page that is made here holds its whole block; bytes past the visible end of the file are zeros. What a partial write lacks is
//! read before (PM under the lock, cold blocks without one). Device space for the write-back is reserved before the
//! write is accepted, so that write-back never lacks it; beyond the dirty limit the writer waits, on a thread that may.

use crate::sync::fsync;
use crate::write_back::steps::wait_for_dirty_room;
use smallvec::SmallVec;
use terrace_cache::{Lines, Page};
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_placement::Home;
use terrace_runtime::interleave;
use terrace_runtime::planted::{Mistake, planted};
use terrace_store::attempt::provide::provide;
use terrace_store::attempt::run::run_attempts;
use terrace_store::change::dirty::placed;
use terrace_store::change::staged::kill_set_id;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::capability::expect_no_capability;
use terrace_store::inode::load::load_regular;
use terrace_store::inode::slot::{log_slot, wall_now};
use terrace_store::lookup::below::read_below;
use terrace_store::operation::need::{Attempt, Fail};
use terrace_store::operation::op::Op;
use terrace_store::steering::learn::note_write;
use terrace_store::store::Store;
use terrace_store::types::inode::{Inode, Pending};
use terrace_store::types::segment::Segment;
use terrace_store::types::{LINE, Wait, WriteFlags};
use terrace_wal::{Error, NoSpace, Reservation};

/// Record room for an inode's mode.
const SET_ID_RECORD: usize = 256;

/// Blocks accepted at once.
const PIECE: u64 = 256;

/// Writes into dirty pages; gives the bytes taken, as [`write`] does. ENOSPC: neither the devices nor DRAM have
/// room; PM may.
pub(crate) fn write_buffered(
    store: &Store,
    ino: Ino,
    offset: u64,
    data: &[u8],
    flags: WriteFlags,
    wait: Wait,
) -> FsResult<usize> {
    // A request thread does not wait for the flush that follows.
    if flags.sync && wait != Wait::Allowed {
        return Err(FsError::WouldBlock);
    }
    let mut op = Op::new(wait);
    let mut done = 0;
    while done < data.len() {
        let at = offset + done as u64;
        let most = PIECE.min(store.dram.write_back().limit_pages / 2).max(1) * BLOCK_SIZE;
        let rest = &data[done..];
        let piece = &rest[..rest.len().min((most - at % BLOCK_SIZE) as usize)];
        if done > 0 {
            interleave::point("write:between-pieces");
        }
        let segment = Segment { offset: at, length: piece.len() as u64, data: Some(piece) };
        match buffer_piece(store, &mut op, ino, segment, flags) {
            Err(_) if done > 0 => break,
            taken => taken?,
        }
        done += piece.len();
    }
    if flags.sync {
        fsync(store, ino, true, wait)?;
    }
    Ok(done)
}

fn buffer_piece(
    store: &Store,
    op: &mut Op,
    ino: Ino,
    segment: Segment<'_>,
    flags: WriteFlags,
) -> FsResult<()> {
    let blocks = segment.blocks();
    if blocks.end.0 > MAX_FILE_BLOCK.0 + 1 {
        return Err(FsError::TooLarge);
    }
    if !store.devices.space().reserve(blocks.count())? {
        return Err(NoSpace::Tier.into());
    }
    let taken = take_piece(store, op, ino, &segment, flags);
    store.devices.space().unreserve(blocks.count() - taken.as_ref().map_or(0, |new| *new));
    store.dram.write_back().wake_if_due(store.dram.cache().dirty_pages());
    if planted(Mistake::SizeWithTheWrite) {
        wrong::commit_visible_size(store, ino)?;
    }
    taken.map(|_| ())
}

/// Takes a piece into DRAM. Returns the number of new dirty pages. A failure leaves no trace.
fn take_piece(
    store: &Store,
    op: &mut Op,
    ino: Ino,
    segment: &Segment<'_>,
    flags: WriteFlags,
) -> FsResult<u64> {
    let pages = segment.blocks().count();
    if flags.kill_set_id {
        let _room = wait_for_dirty_room(store, pages, op.wait)?;
        return run_attempts(store, op, SET_ID_RECORD, |reservation, op| {
            try_buffer(store, op, ino, segment, flags, Some(reservation))
        });
    }
    let mut provided = 0;
    loop {
        let room = wait_for_dirty_room(store, pages, op.wait)?;
        match try_buffer(store, op, ino, segment, flags, None) {
            Ok(new) => return Ok(new),
            Err(Fail::Error(error)) => return Err(error),
            Err(Fail::Need(need)) => {
                // The admitted room is given back before the wait for a device, so that no other writer waits
                // for it.
                drop(room);
                provide(store, op, need, &mut provided)?;
            }
        }
    }
}

/// An attempt of [`take_piece`]; `reservation` is for the mode that loses its set-id bits.
fn try_buffer(
    store: &Store,
    op: &mut Op,
    ino: Ino,
    segment: &Segment<'_>,
    flags: WriteFlags,
    reservation: Option<Reservation<'_>>,
) -> Attempt<u64> {
    if store.mode.read_only {
        return Err(FsError::ReadOnly.into());
    }
    // A stopped log commits no write-back, so bytes accepted now would be lost.
    if store.persistent.wal().is_stopped() {
        return Err(Error::Stopped.into());
    }
    let _guard = store.inodes.locks().write(ino);
    let inode = load_regular(store, ino)?;
    if flags.kill_set_id {
        expect_no_capability(store, &inode)?;
    }
    let range = segment.blocks();
    let mut pages = Vec::with_capacity(range.count() as usize);
    let mut new_blocks = 0;
    let placed = placed(store, &inode, range)?;
    for block in (range.first.0..range.end.0).map(FileBlock) {
        let (from, to, _) = part_of(segment, block);
        let prepared = prepare(store, op, &inode, block, (from, to))?;
        let is_new = matches!(prepared, Prepared::New(_));
        new_blocks += u64::from(is_new && !placed[(block.0 - range.first.0) as usize]);
        pages.push(prepared);
    }
    if let Some(reservation) = reservation {
        drop_set_id(store, reservation, &inode)?;
    }
    let now = store.clock.monotonic_ns();
    let mut count = 0;
    for (block, page) in (range.first.0..).map(FileBlock).zip(pages) {
        let (from, to, data) = part_of(segment, block);
        let (key, lines) = (inode.page_key(block), Lines::touched(from, to));
        match page {
            Prepared::Present(edges) => {
                let change = |bytes: &mut [u8; BLOCK_SIZE as usize]| {
                    edges.iter().for_each(|(at, line)| bytes[*at..at + LINE].copy_from_slice(line));
                    bytes[from..to].copy_from_slice(data);
                };
                store.dram.cache().change_dirty(key, lines, false, now, change);
            }
            Prepared::New(mut page) => {
                page.bytes_mut()[from..to].copy_from_slice(data);
                store.dram.cache().add_dirty(key, Home::Block, (Lines::ALL, lines), page, now);
                count += 1;
            }
        }
    }
    let before = inode.pending.map_or(0, |pending| pending.new_blocks);
    let pending = Pending {
        generation: inode.slot.generation.get(),
        size: inode.size().max(segment.offset + segment.length),
        mtime_ns: Some(wall_now(store)),
        new_blocks: before + new_blocks,
    };
    store.dram.volatile_sizes().set(ino, pending);
    note_write(store, &inode, range, segment.length, flags, Home::Block);
    Ok(count)
}

/// A page to write into.
enum Prepared {
    /// A new page with the content on media, if the write leaves some of it.
    New(Page),
    /// The present dirty page, with the edge lines of the write that it has not: the first byte of each, and its bytes.
    Present(SmallVec<[(usize, [u8; LINE]); 2]>),
}

fn prepare(
    store: &Store,
    op: &mut Op,
    inode: &Inode,
    block: FileBlock,
    (from, to): (usize, usize),
) -> Attempt<Prepared> {
    let present = inode.pending.and_then(|_| store.dram.cache().lines_of(inode.page_key(block)));
    let Some(valid) = present else {
        let mut page = Page::zeroed();
        if to - from < BLOCK_SIZE as usize {
            read_below(store, op, inode, block, 0, page.bytes_mut())?;
        }
        return Ok(Prepared::New(page));
    };
    let mut edges = SmallVec::new();
    for at in [from / LINE * LINE, to / LINE * LINE] {
        let is_cut = at < to && (at < from || at + LINE > to);
        let is_known =
            valid.contains(Lines::touched(at, at + 1)) || edges.iter().any(|(known, _)| *known == at);
        if is_cut && !is_known {
            let mut line = [0; LINE];
            read_below(store, op, inode, block, at, &mut line)?;
            edges.push((at, line));
        }
    }
    Ok(Prepared::Present(edges))
}

/// Removes set-id bits in a transaction, when there are any. The caller holds the inode's exclusive lock and
/// has every need of the write, because a failed write keeps the bits (C9).
fn drop_set_id(store: &Store, reservation: Reservation<'_>, inode: &Inode) -> Attempt<()> {
    let mut slot = inode.slot;
    kill_set_id(&mut slot);
    if slot.mode != inode.slot.mode {
        let mut tx = terrace_wal::Tx::new();
        log_slot(&mut tx, inode.place, &inode.slot, &slot);
        store.persistent.wal().commit(reservation, &tx)?;
    }
    Ok(())
}

/// The part of a block that a segment writes: first byte, end, and its data.
fn part_of<'a>(segment: &Segment<'a>, block: FileBlock) -> (usize, usize, &'a [u8]) {
    let start = block.0 * BLOCK_SIZE;
    let from = segment.offset.max(start);
    let to = (segment.offset + segment.length).min(start + BLOCK_SIZE);
    let data = segment.data.unwrap_or_default();
    let data = &data[(from - segment.offset) as usize..(to - segment.offset) as usize];
    ((from - start) as usize, (to - start) as usize, data)
}

/// Planted mistakes of this file.
mod wrong {
    use super::{FsResult, Ino, Op, Store, Wait, load_regular, log_slot, run_attempts};

    /// `size-with-the-write`: commits the visible size before the dirty pages are written
    /// back.
    pub(super) fn commit_visible_size(store: &Store, ino: Ino) -> FsResult<()> {
        let mut op = Op::reclaiming(Wait::Allowed);
        run_attempts(store, &mut op, 256, |reservation, _| {
            let _guard = store.inodes.locks().write(ino);
            let inode = load_regular(store, ino)?;
            let mut slot = inode.slot;
            slot.size = inode.size().into();
            let mut tx = terrace_wal::Tx::new();
            log_slot(&mut tx, inode.place, &inode.slot, &slot);
            store.persistent.wal().commit(reservation, &tx)?;
            Ok(())
        })
    }
}
