//! Relocation: reads a cold copy with its checksum, writes it to free space of the target, flushes, then
//! exchanges the cold extents in a transaction per piece (design 7: the same mechanism as demotion, through
//! DRAM).
//!
//! M1: the old device blocks are given up only after the new copy was flushed, and are used again only after
//! the record that names the new location is persisted (`Staged::commit`). M3: no inode lock is held while
//! copying. S6: an I/O pin keeps the device blocks from being used again, so a file block with the same
//! location and checksum is unchanged: location and checksum serve as its version. Blocks with a PM copy are
//! left out: the newest content is there, and what lies below it may be stale (S2).

use crate::attempt::with_pages::with_pages;
use crate::change::cold::stage_cold_extents;
use crate::change::give_back::give_back_unless_named;
use crate::change::shards::lock_shards;
use crate::change::staged::Staged;
use crate::error::{FsError, FsResult};
use crate::inode::tier_pin::pin_of;
use crate::lookup::cold_extents::cold_extents;
use crate::lookup::intents::intents_of;
use crate::lookup::newest::is_hidden;
use crate::moving::destination::Destination;
use crate::moving::device_run::{parts_for, settle_parts};
use crate::moving::errors::concerns_all_files;
use crate::moving::file_id::{FileId, load_file};
use crate::moving::install_pieces::{Install, install_pieces};
use crate::moving::outbox::write_items;
use crate::operation::need::Attempt;
use crate::operation::op::Op;
use crate::pressure::processor::offer_processor;
use crate::store::Store;
use crate::types::inode::Inode;
use crate::types::{BlockRange, FILE_END, MOST_BAD, Wait};
use std::ops::ControlFlow;
use terrace_catalog::{DeviceRun, cold_map};
use terrace_format::checksum::crc32c;
use terrace_format::device::SummaryEntry;
use terrace_format::inode::flag;
use terrace_format::keys::ColdExtent;
use terrace_format::{Corrupt, DeviceBlock, DeviceId, FileBlock, TierId};
use terrace_media::block::AlignedBlock;
use terrace_runtime::interleave;
use terrace_runtime::planted::Mistake;
use terrace_runtime::sync::atomic::Ordering;
use terrace_space::Pin;
use terrace_wal::Reservation;

/// Blocks read at once: a user's read waits behind no more than these.
const READ_PIECE: usize = 128;

/// A block on a lower tier that is to be relocated.
pub struct Moving {
    file: FileId,
    block: FileBlock,
    from: (DeviceId, DeviceBlock),
    crc: u32,
    unwritten: bool,
    /// Why its content cannot be read. Such a block stays where it is.
    lost: Option<FsError>,
}

/// Blocks to move and the pins on where they are. The pins end with it.
#[derive(Default)]
pub struct MovingGroup {
    /// The blocks, sorted by file and block.
    pub blocks: Vec<Moving>,
    pins: Vec<Pin>,
}

/// A block with its new location.
struct Moved {
    moving: Moving,
    place: DeviceRun,
}

/// Adds blocks of a file, from `from` on, that lie below PM where `to` does not want them, until the group has
/// `most`. Gives where to go on; `None` at the end of the file, or when it is gone.
///
/// # Errors
/// EIO when the maps cannot be read.
pub fn collect_below(
    store: &Store,
    file: FileId,
    from: FileBlock,
    most: usize,
    to: Destination,
    group: &mut MovingGroup,
) -> FsResult<Option<FileBlock>> {
    with_pages(store, Wait::Allowed, || collect_in_pm(store, file, from, most, to, group))
}

/// As [`collect_below`]; `PageBelow`, with nothing added, where extents lie below themselves.
fn collect_in_pm(
    store: &Store,
    file: FileId,
    from: FileBlock,
    most: usize,
    to: Destination,
    group: &mut MovingGroup,
) -> FsResult<Option<FileBlock>> {
    let _guard = store.inodes.locks().read(file.ino);
    let Some(inode) = load_file(store, file)? else { return Ok(None) };
    if !inode.slot.has(flag::HAS_COLD) {
        return Ok(None);
    }
    if stays(store, &inode, to)? {
        return Ok(None);
    }
    let intents = intents_of(store, &inode)?;
    let gone = |block: FileBlock| intents.iter().any(|range| range.first <= block && block < range.end);
    let mut extents = Vec::new();
    let mut next = None;
    let mut room = most.saturating_sub(group.blocks.len());
    {
        let shard = store.persistent.catalog().read(store.persistent.catalog().shard_of(file.ino.0));
        let end = FILE_END;
        cold_map::scan(shard.reader(), file.ino, from, end, |extent| {
            let Some(extent) = extent.slice(from, end) else { return ControlFlow::Continue(()) };
            if tier_of(store, extent.device).is_some_and(|tier| !to.takes_from(tier)) {
                return ControlFlow::Continue(());
            }
            if room == 0 {
                next = Some(extent.first);
                return ControlFlow::Break(());
            }
            let part = extent.slice(extent.first, extent.first.plus(room as u64));
            let taken = part.as_ref().map_or(0, |part| part.length as usize);
            room -= taken;
            if taken < extent.length as usize {
                next = Some(extent.first.plus(taken as u64));
            }
            extents.extend(part);
            if next.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
    }
    // Few pins: each is looked at by every allocation.
    let runs = extents.iter().map(DeviceRun::from).collect::<Vec<_>>();
    for run in runs.chunk_by(|a, b| a.device == b.device && b.start == a.start.plus(a.length)) {
        let length = run.iter().map(|run| run.length).sum();
        let whole = run.first().map(|first| DeviceRun { length, ..*first });
        group.pins.extend(whole.map(|whole| store.devices.space().pin(whole)));
    }
    for extent in extents {
        for index in 0..u64::from(extent.length) {
            let block = extent.first.plus(index);
            if gone(block) || is_hidden(store, &inode, block)? {
                continue;
            }
            group.blocks.push(Moving {
                file,
                block,
                from: (extent.device, extent.start.plus(index)),
                crc: extent.crcs.get(index as usize).copied().unwrap_or(0),
                unwritten: extent.unwritten,
                lost: None,
            });
        }
    }
    Ok(next)
}

/// Whether a spill leaves a file at its location because it is pinned. The caller holds the inode lock.
fn stays(store: &Store, inode: &Inode, to: Destination) -> FsResult<bool> {
    Ok(matches!(to, Destination::Below(_)) && pin_of(store, inode)?.is_some())
}

/// Counts relocated blocks.
fn note_moved_below(store: &Store, blocks: u64, to: Destination) {
    store.pressure.moved().relocated.fetch_add(blocks, Ordering::Relaxed);
    if let (Destination::Below(_), 1..) = (to, blocks) {
        store.pressure.moved().note_spill(blocks, store.clock.monotonic_ns());
    }
}

/// The tier of a device.
pub fn tier_of(store: &Store, device: DeviceId) -> Option<TierId> {
    store.devices.list().get(usize::from(device.0)).map(|device| device.tier)
}

/// Relocates a group. Returns the number of blocks that reached the target. Blocks that changed meanwhile are
/// left out; damage of a block goes to `trouble` and does not hold back the rest (I8).
///
/// # Errors
/// ENOSPC when the target has no room (what was moved before stays so), EIO when it fails.
pub fn move_between(
    store: &Store,
    group: MovingGroup,
    to: Destination,
    trouble: &mut Option<FsError>,
) -> FsResult<u64> {
    let MovingGroup { blocks, pins } = group;
    let (unwritten, written): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|moving| moving.unwritten);
    let mut moved = 0;
    for mut rest in [unwritten, written] {
        while !rest.is_empty() {
            let (placed, left) = place(store, rest, to)?;
            let mut lost = placed.iter().filter_map(|moved| moved.moving.lost.as_ref());
            // A block that changed meanwhile is not lost: its newer content lies elsewhere.
            if let Some(lost) = lost.find(|lost| !matches!(lost, FsError::Stale)) {
                trouble.get_or_insert_with(|| lost.clone());
            }
            interleave::point("between:flushed");
            moved += exchange(store, placed, to, trouble)?;
            rest = left;
        }
    }
    drop(pins);
    Ok(moved)
}

/// Writes as many blocks as one device of the target has room for, and flushes it. Returns them and what is left.
fn place(store: &Store, mut blocks: Vec<Moving>, to: Destination) -> FsResult<(Vec<Moved>, Vec<Moving>)> {
    let (unwritten, count) = (blocks.iter().any(|moving| moving.unwritten), blocks.len());
    let is_like = |moving: &Moving| moving.unwritten == unwritten;
    assert!(blocks.iter().all(is_like), "written blocks among {count} unwritten ones are not copied (M1)");
    let parts = parts_for(store, blocks.len(), unwritten, to)?;
    let left = blocks.split_off(parts.iter().map(|part| part.data).sum());
    let written = match unwritten {
        true => Ok(Vec::new()),
        false => {
            write_items(store, &mut blocks, &parts, Mistake::MoveWithoutFlush, |slice, into, entries| {
                read_moving(store, slice, into, entries);
            })
        }
    };
    settle_parts(store, &parts, written)?;
    let places = parts.iter().flat_map(|part| part.places());
    let moved = blocks.into_iter().zip(places).map(|(moving, place)| Moved { moving, place });
    Ok((moved.collect(), left))
}

/// Reads blocks from their tier, neighbours there at once, and compares their checksums.
fn read_moving(
    store: &Store,
    slice: &mut [Moving],
    into: &mut [AlignedBlock],
    entries: &mut Vec<SummaryEntry>,
) {
    let lsn = store.persistent.wal().next_lsn();
    let neighbours = |a: &Moving, b: &Moving| b.from == (a.from.0, a.from.1.plus(1)) && a.file == b.file;
    let mut at = 0;
    for run in slice.chunk_by_mut(neighbours).flat_map(|run| run.chunks_mut(READ_PIECE)) {
        offer_processor(store);
        let part = into.get_mut(at..at + run.len()).unwrap_or(&mut []);
        at += run.len();
        let Some((device, start)) = run.first().map(|moving| moving.from) else { continue };
        let read = store.devices.medium(device).and_then(|medium| medium.read(start, part));
        let mut failures = 0;
        for (moving, content) in run.iter_mut().zip(part.iter_mut()) {
            let mut read = read.clone();
            // A sector that cannot be read holds back no other.
            if read.is_err() && failures < MOST_BAD {
                let medium = store.devices.medium(device);
                read = medium.and_then(|medium| medium.read(moving.from.1, std::slice::from_mut(content)));
                failures += usize::from(read.is_err());
            }
            let found = crc32c(&content.0);
            let mut crc = moving.crc;
            if let Err(error) = read {
                moving.lost = Some(error.into());
            } else if found != crc {
                moving.lost = damage_of(store, moving, found);
            }
            if moving.lost.is_some() || found != crc {
                // Not installed; what is written in its stead must not look like its content.
                moving.lost.get_or_insert(FsError::Stale);
                crc = !found;
            }
            let FileId { ino, generation } = moving.file;
            entries.push(SummaryEntry { ino, generation, block: moving.block, crc, lsn });
        }
    }
}

/// Judges a wrong checksum: it is damage, unless the block was changed while it was read.
fn damage_of(store: &Store, moving: &Moving, found: u32) -> Option<FsError> {
    let same = with_pages(store, Wait::Allowed, || {
        let _guard = store.inodes.locks().read(moving.file.ino);
        load_file(store, moving.file)?.map_or(Ok(false), |inode| is_there(store, &inode, moving))
    });
    match same {
        Ok(false) => None,
        Err(error) => Some(error),
        Ok(true) => {
            let (device, start) = moving.from;
            let whose = format_args!("inode {} file block {}", moving.file.ino, moving.block);
            store.devices.note_damage(device, start, whose);
            let site = format!("{} block {start}", store.devices.name(device));
            Some(Corrupt::new(site, format!("CRC {:#x}", moving.crc), format!("{found:#x}")).into())
        }
    }
}

/// Whether a block is still where and what it was, with nothing above it. The caller holds the inode's lock.
fn is_there(store: &Store, inode: &Inode, moving: &Moving) -> FsResult<bool> {
    let extents = cold_extents(store, inode.ino, BlockRange::new(moving.block, moving.block.plus(1)))?;
    Ok(!is_hidden(store, inode, moving.block)?
        && extents.first().is_some_and(|extent| covers(extent, moving)))
}

/// Installs the new locations of unchanged blocks. Returns their number. Damage of a file goes to `trouble`.
fn exchange(
    store: &Store,
    placed: Vec<Moved>,
    to: Destination,
    trouble: &mut Option<FsError>,
) -> FsResult<u64> {
    let mut relocation = Relocation { store, to, moved: 0 };
    let mut failed = None;
    for run in placed.chunk_by(follows) {
        if failed.is_some() {
            release_moved(store, run);
            continue;
        }
        match install_pieces(store, &mut relocation, run) {
            Err(error) if error.concerns_one_file() && !concerns_all_files(store, &error) => {
                trouble.get_or_insert(error);
            }
            installed => failed = installed.err(),
        }
    }
    failed.map_or(Ok(relocation.moved), Err)
}

/// A relocation to install: an extent replaces another extent.
struct Relocation<'s> {
    store: &'s Store,
    to: Destination,
    moved: u64,
}

impl Install for Relocation<'_> {
    type Item = Moved;
    const BETWEEN: &'static str = "between:between-pieces";

    fn install_first(
        &self,
        reservation: Reservation<'_>,
        _op: &mut Op,
        piece: &[Moved],
    ) -> Attempt<(usize, usize)> {
        exchange_first(self.store, reservation, piece, self.to)
    }

    fn taken(&mut self, skipped: &[Moved], installed: &[Moved]) {
        release_moved(self.store, skipped);
        self.store.pressure.moved().skipped.fetch_add(skipped.len() as u64, Ordering::Relaxed);
        self.moved += installed.len() as u64;
        note_moved_below(self.store, installed.len() as u64, self.to);
    }

    fn failed(&mut self, left: &[Moved]) {
        release_moved(self.store, left);
    }
}

fn release_moved(store: &Store, blocks: &[Moved]) {
    give_back_unless_named(store, || {
        blocks.iter().for_each(|moved| store.devices.space().release_claim(moved.place));
    });
}

/// Skips changed blocks and installs the unchanged ones that follow: (skipped, installed).
fn exchange_first(
    store: &Store,
    reservation: Reservation<'_>,
    piece: &[Moved],
    to: Destination,
) -> Attempt<(usize, usize)> {
    let Some(first) = piece.first() else { return Ok((0, 0)) };
    let file = first.moving.file;
    let _guard = store.inodes.locks().write(file.ino);
    let Some(inode) = load_file(store, file)? else { return Ok((piece.len(), 0)) };
    // The file was pinned meanwhile: the tier pin looks for the file's blocks afterwards, and must find all
    // of them.
    if stays(store, &inode, to)? {
        return Ok((piece.len(), 0));
    }
    let intents = intents_of(store, &inode)?;
    let range = BlockRange::new(first.moving.block, first.moving.block.plus(piece.len() as u64));
    let old = cold_extents(store, file.ino, range)?;
    let same = |moved: &&Moved| {
        let moving = &moved.moving;
        let gone = intents.iter().any(|range| range.first <= moving.block && moving.block < range.end);
        moving.lost.is_none() && !gone && old.iter().any(|extent| covers(extent, moving))
    };
    let skipped = piece.iter().take_while(|moved| !same(moved)).count();
    let part = &piece[skipped..];
    let count = part.iter().take_while(same).count();
    let Some(start) = part.first().filter(|_| count > 0) else { return Ok((piece.len(), 0)) };
    let crcs = part[..count].iter().map(|moved| moved.moving.crc);
    let extent = ColdExtent {
        first: start.moving.block,
        length: count as u32,
        device: start.place.device,
        start: start.place.start,
        unwritten: start.moving.unwritten,
        crcs: if start.moving.unwritten { Vec::new() } else { crcs.collect() },
    };
    let run = DeviceRun { length: count as u64, ..start.place };
    let mut shards = lock_shards(store, file.ino, old.iter().map(DeviceRun::from).chain([run]));
    let mut staged = Staged::new(store, None, false);
    stage_cold_extents(store, file.ino, std::slice::from_ref(&extent), &mut shards, &mut staged)?;
    staged.unlink_emptied(&mut shards)?;
    let range = BlockRange::new(extent.first, extent.end());
    let before = store.dram.cold_versions().of_range(file.ino, range);
    store.dram.cold_versions().bump(file.ino, range);
    staged.commit(reservation)?;
    // The location changed, the content did not: clean pages in DRAM stay valid.
    let after = store.dram.cold_versions().of_range(file.ino, range);
    for (index, (before, after)) in (0..).zip(before.into_iter().zip(after)) {
        store.dram.cache().carry(inode.page_key(range.first.plus(index)), before, after);
    }
    Ok((skipped, count))
}

/// Whether an extent says of a block what was known of it.
fn covers(extent: &ColdExtent, moving: &Moving) -> bool {
    let Some(index) = moving.block.0.checked_sub(extent.first.0) else { return false };
    let crc = if extent.unwritten { Some(0) } else { extent.crcs.get(index as usize).copied() };
    index < u64::from(extent.length)
        && (extent.device, extent.start.plus(index)) == moving.from
        && extent.unwritten == moving.unwritten
        && crc == Some(moving.crc)
}

/// True when `b` continues `a` in the file and on the device.
fn follows(a: &Moved, b: &Moved) -> bool {
    a.moving.file == b.moving.file
        && b.moving.block == a.moving.block.plus(1)
        && b.place.device == a.place.device
        && b.place.start == a.place.start.plus(1)
}
