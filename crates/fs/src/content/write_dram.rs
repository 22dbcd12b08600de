//! Writes into DRAM: those whose home is a block tier (design 5, 8), and lazy ones, whose home is PM ([HiNFS] section 3.3).
//!
//! Space for the write-back is reserved before the write is accepted: device blocks, or promised PM blocks and room in the
//! map. Write-back never lacks it. Without room for a page for a block tier the writer waits, on a thread that may; a lazy
//! write goes the direct way.

use crate::content::dram_page::{Prepared, Written, expect_map_room, prepare};
use crate::sync::fsync;
use crate::write_back::room::{admit_lazy, wait_for_dirty_room, wait_for_lazy_room};
use terrace_cache::{Lines, Page};
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_placement::Home;
use terrace_runtime::interleave;
use terrace_runtime::planted::{Mistake, planted};
use terrace_store::attempt::provide::provide;
use terrace_store::attempt::run::{reserve_record, run_attempts};
use terrace_store::change::dirty::placed;
use terrace_store::change::record_room::atomic_blocks;
use terrace_store::change::staged::kill_set_id;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::capability::expect_no_capability;
use terrace_store::inode::load::load_regular;
use terrace_store::inode::slot::{log_slot, wall_now};
use terrace_store::operation::need::{Attempt, Fail};
use terrace_store::operation::op::Op;
use terrace_store::parts::dram::lazy_counts::PageCounts;
use terrace_store::parts::dram::lazy_writes::LazyAblation;
use terrace_store::steering::learn::{note_lines, note_waiting_write};
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
    let most = PIECE.min(store.dram.write_back().limit_pages / 2).max(1);
    let done = by_pieces(offset, data, most, |segment| buffer_piece(store, wait, ino, segment, flags))?;
    if flags.sync {
        fsync(store, ino, wait)?;
    }
    Ok(done)
}

/// Writes into pages whose home is PM (C31); gives the bytes taken: the rest finds no room, and goes the direct way.
///
/// # Errors
/// EIO where an edge line cannot be read; `WouldBlock`. A piece that fails takes nothing.
pub(crate) fn write_lazy(
    store: &Store,
    ino: Ino,
    offset: u64,
    data: &[u8],
    flags: WriteFlags,
    wait: Wait,
) -> FsResult<usize> {
    assert!(!flags.sync, "a write that is synced is not lazy (C28)");
    let limit = (store.dram.write_back().lazy_limit_pages / 2).max(1);
    let most = PIECE.min(limit).min(atomic_blocks(store));
    by_pieces(offset, data, most, |segment| lazy_piece(store, wait, ino, segment, flags))
}

/// Writes pieces of at most `most` blocks until `write` takes one no more; gives the bytes taken. An error behind a taken
/// piece is dropped.
fn by_pieces<'a>(
    offset: u64,
    data: &'a [u8],
    most: u64,
    mut write: impl FnMut(Segment<'a>) -> FsResult<bool>,
) -> FsResult<usize> {
    let mut done = 0;
    while done < data.len() {
        let at = offset + done as u64;
        let rest = &data[done..];
        let piece = &rest[..rest.len().min((most * BLOCK_SIZE - at % BLOCK_SIZE) as usize)];
        if done > 0 {
            interleave::point("write:between-pieces");
        }
        let segment = Segment { offset: at, length: piece.len() as u64, data: Some(piece) };
        if segment.blocks().end.0 > MAX_FILE_BLOCK.0 + 1 {
            return if done > 0 { Ok(done) } else { Err(FsError::TooLarge) };
        }
        match write(segment) {
            Ok(true) => done += piece.len(),
            Ok(false) => break,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

fn buffer_piece(
    store: &Store,
    wait: Wait,
    ino: Ino,
    segment: Segment<'_>,
    flags: WriteFlags,
) -> FsResult<bool> {
    let blocks = segment.blocks().count();
    if !store.devices.space().reserve(blocks)? {
        return Err(NoSpace::Tier.into());
    }
    let taken = take_piece(store, wait, ino, &segment, flags, Home::Block);
    store.devices.space().unreserve(blocks - new_pages(&taken));
    taken_into_dram(store, ino)?;
    Ok(taken?.is_some())
}

/// False: the piece finds no room, or would be written back by a read of a device.
fn lazy_piece(
    store: &Store,
    wait: Wait,
    ino: Ino,
    segment: Segment<'_>,
    flags: WriteFlags,
) -> FsResult<bool> {
    let taken = take_piece(store, wait, ino, &segment, flags, Home::Pm);
    taken_into_dram(store, ino)?;
    match taken {
        Err(FsError::Engine(Error::NoSpace(_)) | FsError::SpaceHidden(_)) => Ok(false),
        taken => Ok(taken?.is_some()),
    }
}

fn new_pages(taken: &FsResult<Option<u64>>) -> u64 {
    taken.as_ref().map_or(0, |new| new.unwrap_or(0))
}

fn taken_into_dram(store: &Store, ino: Ino) -> FsResult<()> {
    let cache = store.dram.cache();
    store.dram.write_back().wake_if_due(cache.dirty_pages(), cache.dirty_pages_of(Home::Pm));
    if planted(Mistake::SizeWithTheWrite) {
        wrong::commit_visible_size(store, ino)?;
    }
    Ok(())
}

/// Takes a piece into DRAM. Returns the number of new dirty pages; `None`, without a trace, when a lazy piece has to go the direct
/// way. A failure leaves no trace.
///
/// No room, reservation or promise is held while an attempt's needs are provided: a device may hang.
fn take_piece(
    store: &Store,
    wait: Wait,
    ino: Ino,
    segment: &Segment<'_>,
    flags: WriteFlags,
    home: Home,
) -> FsResult<Option<u64>> {
    let pages = segment.blocks().count();
    let admit = || match home {
        Home::Block => wait_for_dirty_room(store, pages, wait).map(Some),
        Home::Pm if store.dram.lazy_writes().options().ablation == LazyAblation::PastFull => {
            Ok(admit_lazy(store, pages))
        }
        Home::Pm => Ok(wait_for_lazy_room(store, pages, wait)),
    };
    let (mut op, mut provided) = (Op::new(wait), 0);
    loop {
        let Some(room) = admit()? else { return Ok(None) };
        let reservation = match flags.kill_set_id {
            true => Some(reserve_record(store, &op, SET_ID_RECORD)?),
            false => None,
        };
        let tried = match home {
            Home::Block => try_buffer(store, &mut op, ino, segment, (flags, home, pages), reservation),
            Home::Pm => promised(store, pages, |most| {
                try_buffer(store, &mut op, ino, segment, (flags, home, most), reservation)
            }),
        };
        match tried {
            Ok(new) => return Ok(new),
            Err(Fail::Error(error)) => return Err(error),
            Err(Fail::Need(need)) => {
                drop(room);
                provide(store, &mut op, need, &mut provided)?;
            }
        }
    }
}

/// An attempt with a promise for each page, or for none: pages that are there have theirs. New pages keep their promises.
fn promised(
    store: &Store,
    pages: u64,
    attempt: impl FnOnce(u64) -> Attempt<Option<u64>>,
) -> Attempt<Option<u64>> {
    let promises = store.persistent.blocks().promises();
    let given = match promises.give(pages as usize) {
        Err(Error::NoSpace(_)) => 0,
        done => done.map(|()| pages)?,
    };
    let tried = attempt(given);
    let kept = tried.as_ref().map_or(0, |new| new.unwrap_or(0));
    promises.take_back((given - kept) as usize);
    tried
}

/// An attempt of [`take_piece`]; `reservation` is for the mode that loses its set-id bits.
fn try_buffer(
    store: &Store,
    op: &mut Op,
    ino: Ino,
    segment: &Segment<'_>,
    (flags, home, most): (WriteFlags, Home, u64),
    reservation: Option<Reservation<'_>>,
) -> Attempt<Option<u64>> {
    if store.mode.read_only {
        return Err(FsError::ReadOnly.into());
    }
    // A stopped log commits no write-back, so bytes accepted now would be lost.
    if store.persistent.wal().is_stopped() {
        return Err(Error::Stopped.into());
    }
    // Write-back goes on to store lines of the file.
    let _guard = store.inodes.locks().write_into_dram(ino);
    if home == Home::Pm && store.dram.mapped_files().has(ino) {
        return Ok(None);
    }
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
        let Some(prepared) = prepare(store, op, &inode, block, (from, to), home)? else { return Ok(None) };
        new_blocks += u64::from(prepared.is_new() && !placed[(block.0 - range.first.0) as usize]);
        pages.push(prepared);
    }
    if pages.iter().filter(|page| page.is_new()).count() as u64 > most {
        return Ok(None);
    }
    if home == Home::Pm {
        expect_map_room(store, &inode, range)?;
    }
    if let Some(reservation) = reservation {
        drop_set_id(store, reservation, &inode)?;
    }
    let count = put_pages(store, &inode, segment, pages, home);
    let before = inode.pending.map_or(0, |pending| pending.new_blocks);
    let pending = Pending {
        generation: inode.slot.generation.get(),
        size: inode.size().max(segment.offset + segment.length),
        mtime_ns: Some(wall_now(store)),
        new_blocks: before + new_blocks,
    };
    store.dram.volatile_sizes().set(ino, pending);
    note_waiting_write(store, &inode, range, segment.length, flags, home);
    if home == Home::Pm {
        note_lines(store, &inode, segment, flags, false);
    }
    Ok(Some(count))
}

/// Writes into prepared pages; gives the number of new ones.
fn put_pages(store: &Store, inode: &Inode, segment: &Segment<'_>, pages: Vec<Prepared>, home: Home) -> u64 {
    let now = store.clock.monotonic_ns();
    let mut counts = PageCounts::default();
    for (block, page) in (segment.blocks().first.0..).map(FileBlock).zip(pages) {
        let (from, to, data) = part_of(segment, block);
        let key = inode.page_key(block);
        let Prepared { page, edges, valid, dirty } = page;
        let change = |bytes: &mut [u8; BLOCK_SIZE as usize]| {
            edges.iter().for_each(|(at, line)| bytes[*at..at + LINE].copy_from_slice(line));
            bytes[from..to].copy_from_slice(data);
        };
        let written = Lines::touched(from, to);
        let page = match page {
            Written::Present => {
                let before = store.dram.cache().change_dirty(key, (valid, dirty), false, now, change);
                counts.count(before, written);
                continue;
            }
            Written::New => match <&[u8; BLOCK_SIZE as usize]>::try_from(data) {
                Ok(whole) => Page::copy(whole),
                Err(_) => changed(Page::zeroed(), change),
            },
            Written::Filled(page) => changed(page, change),
        };
        store.dram.cache().add_dirty(key, home, (valid, dirty), page, now);
        counts.count(None, written);
    }
    if home == Home::Pm {
        store.dram.lazy_writes().counts().add_writes(inode.ino, counts);
    }
    counts.misses
}

fn changed(mut page: Page, change: impl FnOnce(&mut [u8; BLOCK_SIZE as usize])) -> Page {
    change(page.bytes_mut());
    page
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
