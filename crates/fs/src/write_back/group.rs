//! Write-back: dirty pages go to a lower tier in groups, and become clean.
//!
//! A group is copied under the shared inode lock, written to its device as one sequential run, or into the
//! holes there are, flushed (M1), and then installed in one transaction per piece: the cold extent with its
//! checksums goes in, PM entries of its blocks go out, the durable size rises over the installed blocks
//! (design S3, S5). A page that was dropped or settled meanwhile is skipped, as its birth tells. A page that
//! was written again stays dirty above its installed copy. Blocks behind the durable end are installed in
//! their order, so that a crash leaves the file shorter and never with a hole. Any number of write-backs of a
//! file may be under way: the checks of the commit suffice.

use crate::write_back::group_install::install_written;
use crate::write_back::group_pages::{FlushedDevices, Group, Placed};
use smallvec::SmallVec;
use terrace_cache::DirtyPage;
use terrace_catalog::DeviceRun;
use terrace_format::checksum::crc32c;
use terrace_format::device::SummaryEntry;
use terrace_format::{BLOCK_SIZE, DeviceId, FileBlock, Ino, TierId};
use terrace_media::FlushMark;
use terrace_placement::Home;
use terrace_runtime::pause;
use terrace_runtime::planted::{Mistake, planted};
use terrace_store::change::new_extent::DeviceCopy;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::slot::load;
use terrace_store::inode::tier_pin::pin_of;
use terrace_store::moving::destination::{Destination, choices_for};
use terrace_store::moving::device_run::{Part, avoid_failed, summaries};
use terrace_store::moving::outbox::send_parts;
use terrace_store::store::Store;
use terrace_wal::{Error, NoSpace};

/// The result of a round of write-back.
#[derive(Debug, Default)]
pub struct Written {
    /// The blocks whose content is durable after the round, ascending.
    pub blocks: Vec<FileBlock>,
    /// Pages that other threads have in flight.
    pub others: usize,
    /// Why some page up to a block was not written; those up to this block were tried.
    pub failed: Option<(FileBlock, FsError)>,
}

/// Writes back a group of these blocks, from the first on. `all`: pages that other threads have in flight
/// too. Called without locks.
pub(crate) fn write_back_blocks(
    store: &Store,
    ino: Ino,
    blocks: &[FileBlock],
    all: bool,
) -> FsResult<Written> {
    let mut written = Written::default();
    let Some(group) = look_at_dirty(store, ino, blocks, all, &mut written.others)? else {
        return Ok(written);
    };
    if planted(Mistake::CleanBeforeWritten) {
        wrong::clean_early(store, &group);
    }
    let mut rest: &[DirtyPage] = &group.pages;
    let mut copies = Vec::with_capacity(rest.len());
    let mut devices: SmallVec<[(DeviceId, FlushMark); 4]> = SmallVec::new();
    let mut result = Ok(());
    while !rest.is_empty() {
        match write_pages(store, &group, rest, &mut devices, &mut copies) {
            Ok(count) => rest = &rest[count..],
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    pause::at_unlocked("writeback:copied");
    let flushed = match result.and_then(|()| flush_written(store, &devices)) {
        Ok(flushed) => flushed,
        Err(error) => {
            copies.iter().for_each(|copy| store.devices.space().release_to_reservation(copy.place));
            return Err(error);
        }
    };
    pause::at_unlocked("writeback:flushed");
    let placed = group.pages.iter().zip(copies);
    let placed: Vec<Placed> = placed.map(|(page, copy)| Placed::new(page.clone(), copy, &flushed)).collect();
    install_written(store, &group, &placed, &mut written.blocks)?;
    Ok(written)
}

/// Copies of dirty pages, marked as under way.
fn look_at_dirty<'s>(
    store: &'s Store,
    ino: Ino,
    blocks: &[FileBlock],
    all: bool,
    others: &mut usize,
) -> FsResult<Option<Group<'s>>> {
    let _guard = store.inodes.locks().read(ino);
    let inode = match load(store, ino) {
        // Whose page lies below has no dirty pages.
        Err(FsError::Stale | FsError::Engine(Error::PageBelow(_))) => return Ok(None),
        inode => inode?,
    };
    let generation = inode.slot.generation.get();
    let to = match pin_of(store, &inode) {
        Ok(Some(tier)) if tier > 0 => Destination::Rather(TierId(tier)),
        _ => Destination::Any,
    };
    let mut group = Group { store, ino, generation, size: inode.size(), to, pages: Vec::new() };
    let durable_block = FileBlock(inode.durable_size() / BLOCK_SIZE);
    let is_held = store.dram.write_back().is_one_late(store.clock.monotonic_ns());
    for block in blocks {
        let Some(page) = store.dram.cache().dirty(inode.page_key(*block)) else { continue };
        // A group has one home. Behind the durable end a page with another home goes first (C28).
        if page.home != Home::Block {
            if *block >= durable_block {
                break;
            }
            continue;
        }
        if page.in_flight && !all {
            *others += 1;
            // Past the durable end, later blocks cannot be installed before this page, which may be in flight
            // on a device that hangs.
            if is_held && *block >= durable_block {
                break;
            }
            continue;
        }
        group.pages.push(page);
        if group.pages.len() as u64 == store.mode.group_blocks {
            break;
        }
    }
    if group.pages.is_empty() {
        return Ok(None);
    }
    store.dram.cache().mark_in_flight(&group.pages, true);
    Ok(Some(group))
}

/// Writes the first pages, as many as a single device has room for, with group summaries, and adds their copies. Returns
/// their number.
fn write_pages(
    store: &Store,
    group: &Group<'_>,
    pages: &[DirtyPage],
    devices: &mut SmallVec<[(DeviceId, FlushMark); 4]>,
    copies: &mut Vec<DeviceCopy>,
) -> FsResult<usize> {
    let runs = claim_reserved(store, (pages.len() + summaries(pages.len())) as u64, group.to)?;
    let mut left = pages.len();
    let parts: Vec<Part> = Part::of(runs, &mut left, false).collect();
    let (pages, _) = pages.split_at(pages.len() - left);
    let written = write_reserved(store, group, pages, &parts, devices);
    for part in &parts {
        part.free_of(written.is_ok()).for_each(|free| store.devices.space().release_to_reservation(free));
    }
    if let (Err(error), Some(part)) = (&written, parts.first()) {
        avoid_failed(store, part.run.device, error);
    }
    copies.extend(written?);
    Ok(pages.len())
}

fn write_reserved(
    store: &Store,
    group: &Group<'_>,
    pages: &[DirtyPage],
    parts: &[Part],
    devices: &mut SmallVec<[(DeviceId, FlushMark); 4]>,
) -> FsResult<Vec<DeviceCopy>> {
    let Some(first) = parts.first() else { return Ok(Vec::new()) };
    let device = store.devices.device(first.run.device)?;
    // Asked before the first write that the flush is to cover (M1).
    devices.push((first.run.device, device.flush_mark()));
    let mut pages: Vec<&DirtyPage> = pages.iter().collect();
    send_parts(store, device, &mut pages, parts, |slice, into, entries| {
        let lsn = store.persistent.wal().next_lsn();
        for (copy, target) in slice.iter().zip(into) {
            target.0 = *copy.page.bytes();
            let (ino, generation, block) = (group.ino, group.generation, copy.key.block);
            entries.push(SummaryEntry { ino, generation, block, crc: crc32c(&target.0), lsn });
        }
    })
}

/// Space out of what was reserved when the writes were accepted, on the first lower tier of `to` that has any; on a
/// device that failed a moment ago only when no other has.
fn claim_reserved(store: &Store, blocks: u64, to: Destination) -> FsResult<Vec<DeviceRun>> {
    for devices in choices_for(store, to) {
        let runs = store.devices.space().allocate_runs(&devices, blocks, true)?;
        if !runs.is_empty() {
            return Ok(runs);
        }
    }
    Err(NoSpace::Tier.into())
}

/// Flushes each device that a group was written to, once. Returns the proof of each.
fn flush_written(store: &Store, devices: &[(DeviceId, FlushMark)]) -> FsResult<FlushedDevices> {
    let mut done = FlushedDevices::new();
    for (id, mark) in devices {
        if done.iter().any(|(flushed, _)| flushed == id) {
            continue;
        }
        let device = store.devices.device(*id)?;
        if let Some(left_out) = device.flush_left_out(Mistake::WriteBackWithoutFlush) {
            done.push((*id, left_out));
            continue;
        }
        // The mark of the first of its runs covers all of them.
        let flushed = device.flush(*mark).map_err(FsError::from);
        let flushed = flushed.inspect_err(|error| {
            avoid_failed(store, *id, error);
        })?;
        done.push((*id, flushed));
    }
    Ok(done)
}

/// Planted mistakes of this file.
mod wrong {
    use super::{Group, Store};
    use terrace_cache::Installed;

    /// `clean-before-written`.
    pub(super) fn clean_early(store: &Store, group: &Group<'_>) {
        let now = store.clock.monotonic_ns();
        for copy in &group.pages {
            let version = store.dram.cold_versions().get(group.ino, copy.key.block);
            let _: Installed = store.dram.cache().installed(copy, version, now);
        }
    }
}
