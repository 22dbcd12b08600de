//! Write-back: dirty pages go to a lower tier in groups, and become clean.
//!
//! A group is copied under the shared inode lock, written to its device as one sequential run, or into the
//! holes there are, flushed (M1), and then installed in one transaction per piece: the cold extent with its
//! checksums goes in, PM entries of its blocks go out, the durable size rises over the installed blocks
//! (design S3, S5). A page that was dropped or settled meanwhile is skipped, as its birth tells. A page that
//! was written again stays dirty above its installed copy. Blocks behind the durable end are installed in
//! their order, so that a crash leaves the file shorter and never with a hole. Any number of write-backs of a
//! file may be under way: the checks of the commit suffice.

use smallvec::SmallVec;
use terrace_cache::{DirtyPage, Installed};
use terrace_catalog::DeviceRun;
use terrace_format::checksum::crc32c;
use terrace_format::device::SummaryEntry;
use terrace_format::inode::flag;
use terrace_format::keys::ColdExtent;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino, TierId};
use terrace_map::Mapping;
use terrace_runtime::pause;
use terrace_runtime::planted::{Mistake, planted};
use terrace_store::change::cold::stage_cold_extents;
use terrace_store::change::dirty::settle;
use terrace_store::change::give_back::give_back_unless_named;
use terrace_store::change::prune::stage_prune;
use terrace_store::change::shards::lock_shards;
use terrace_store::change::staged::Staged;
use terrace_store::change::tail::stage_raised;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::slot::{check_owner, load, log_slot};
use terrace_store::inode::tier_pin::pin_of;
use terrace_store::lookup::cold_extents::cold_extents;
use terrace_store::lookup::intents::refuse_intents;
use terrace_store::moving::destination::{Destination, choices_for};
use terrace_store::moving::device_run::{Part, avoid_failed, summaries};
use terrace_store::moving::install_pieces::{Install, install_pieces};
use terrace_store::moving::outbox::send_parts;
use terrace_store::operation::need::Attempt;
use terrace_store::operation::op::Op;
use terrace_store::store::Store;
use terrace_store::types::BlockRange;
use terrace_store::types::inode::Inode;
use terrace_wal::{Error, NoSpace, Reservation};

/// Dirty pages of one file, as they were when they were looked at.
struct Group<'a> {
    store: &'a Store,
    ino: Ino,
    generation: u32,
    /// The visible size then.
    size: u64,
    /// Where the file should lie.
    to: Destination,
    pages: Vec<DirtyPage>,
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        self.store.dram.cache().mark_in_flight(&self.pages, false);
    }
}

/// A copy with its device block and its checksum.
struct Placed {
    copy: DirtyPage,
    place: DeviceRun,
    crc: u32,
}

/// The result of a round of write-back.
#[derive(Debug, Default)]
pub struct Written {
    /// The blocks whose content is durable after the round, ascending.
    pub blocks: Vec<FileBlock>,
    /// Pages that other threads have in flight.
    pub others: usize,
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
        clean_early(store, &group);
    }
    let mut rest: &[DirtyPage] = &group.pages;
    let mut placed = Vec::with_capacity(rest.len());
    let mut devices: SmallVec<[(DeviceRun, u64); 4]> = SmallVec::new();
    let mut result = Ok(());
    while !rest.is_empty() {
        match write_pages(store, &group, rest, &mut devices, &mut placed) {
            Ok(count) => rest = &rest[count..],
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    pause::at_unlocked("writeback:copied");
    let flushed = result.and_then(|()| flush_written(store, &devices));
    if let Err(error) = flushed {
        placed.iter().for_each(|placed| store.devices.space().release_to_reservation(placed.place));
        return Err(error);
    }
    pause::at_unlocked("writeback:flushed");
    install_written(store, &group, &placed, &mut written.blocks)?;
    Ok(written)
}

/// A planted mistake.
fn clean_early(store: &Store, group: &Group<'_>) {
    let now = store.clock.monotonic_ns();
    for copy in &group.pages {
        let version = store.dram.cold_versions().get(group.ino, copy.key.block);
        let _: Installed = store.dram.cache().installed(copy, version, now);
    }
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

/// Writes the first pages, as many as a single device has room for, with group summaries. Returns their
/// number.
fn write_pages(
    store: &Store,
    group: &Group<'_>,
    pages: &[DirtyPage],
    devices: &mut SmallVec<[(DeviceRun, u64); 4]>,
    placed: &mut Vec<Placed>,
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
    let places = parts.iter().flat_map(|part| part.places());
    for ((copy, crc), place) in pages.iter().zip(written?).zip(places) {
        placed.push(Placed { copy: copy.clone(), place, crc });
    }
    Ok(pages.len())
}

fn write_reserved(
    store: &Store,
    group: &Group<'_>,
    pages: &[DirtyPage],
    parts: &[Part],
    devices: &mut SmallVec<[(DeviceRun, u64); 4]>,
) -> FsResult<Vec<u32>> {
    let Some(first) = parts.first() else { return Ok(Vec::new()) };
    let device = store.devices.device(first.run.device)?;
    // Asked before the first write that the flush is to cover (M1).
    devices.push((first.run, device.failed_flushes()));
    let mut copies: Vec<&DirtyPage> = pages.iter().collect();
    send_parts(store, device, &mut copies, parts, |slice, into, entries| {
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

/// Flushes each device that a group was written to, once.
fn flush_written(store: &Store, runs: &[(DeviceRun, u64)]) -> FsResult<()> {
    if planted(Mistake::WriteBackWithoutFlush) {
        return Ok(());
    }
    let mut done: SmallVec<[_; 4]> = SmallVec::new();
    for (run, failed_before) in runs {
        if !done.contains(&run.device) {
            // The first of its runs: the oldest count covers them all.
            let flushed = store.devices.device(run.device)?.flush(*failed_before).map_err(FsError::from);
            flushed.inspect_err(|error| {
                avoid_failed(store, run.device, error);
            })?;
            done.push(run.device);
        }
    }
    Ok(())
}

/// Installs what was written and flushed; `done` gets the blocks.
fn install_written(
    store: &Store,
    group: &Group<'_>,
    placed: &[Placed],
    done: &mut Vec<FileBlock>,
) -> FsResult<()> {
    let mut written = WrittenGroup { store, group, done };
    let mut failed = None;
    for run in placed.chunk_by(follows) {
        match failed {
            Some(_) => give_back(store, run),
            None => failed = install_pieces(store, &mut written, run).err(),
        }
    }
    failed.map_or(Ok(()), Err)
}

/// A write-back to install: an extent, and the durable size that it allows.
struct WrittenGroup<'s, 'g> {
    store: &'s Store,
    group: &'g Group<'s>,
    done: &'g mut Vec<FileBlock>,
}

impl Install for WrittenGroup<'_, '_> {
    type Item = Placed;
    const BETWEEN: &'static str = "writeback:between-pieces";

    fn install_first(
        &self,
        reservation: Reservation<'_>,
        op: &mut Op,
        piece: &[Placed],
    ) -> Attempt<(usize, usize)> {
        install_first_written(self.store, reservation, op, self.group, piece)
    }

    fn taken(&mut self, skipped: &[Placed], installed: &[Placed]) {
        give_back(self.store, skipped);
        self.done.extend(installed.iter().map(|placed| placed.copy.key.block));
    }

    fn failed(&mut self, left: &[Placed]) {
        give_back(self.store, left);
    }
}

fn give_back(store: &Store, placed: &[Placed]) {
    give_back_unless_named(store, || {
        placed.iter().for_each(|placed| store.devices.space().release_to_reservation(placed.place));
    });
}

/// Skips pages that were dropped meanwhile and installs those that follow: (skipped, installed).
fn install_first_written(
    store: &Store,
    reservation: Reservation<'_>,
    op: &mut Op,
    group: &Group<'_>,
    piece: &[Placed],
) -> Attempt<(usize, usize)> {
    // The old last block may need zeros in a new one.
    let claim = store.persistent.blocks().claim(1 + op.extra, op.purpose)?;
    let _guard = store.inodes.locks().write(group.ino);
    let inode = match load(store, group.ino) {
        Ok(inode) if inode.slot.generation.get() == group.generation => inode,
        Ok(_) | Err(FsError::Stale) => return Ok((piece.len(), 0)),
        Err(error) => return Err(error.into()),
    };
    let state = |placed: &Placed| store.dram.cache().state_of(placed.copy.key);
    let alive = |placed: &&Placed| {
        let careless = planted(Mistake::WriteBackIgnoresVersion) || planted(Mistake::CleanBeforeWritten);
        careless || state(placed).is_some_and(|(birth, _)| birth == placed.copy.birth)
    };
    let skipped = piece.iter().take_while(|placed| !alive(placed)).count();
    let part = &piece[skipped..];
    let part = &part[..part.iter().take_while(alive).count()];
    let durable_block = FileBlock(inode.durable_size() / BLOCK_SIZE);
    let Some(first) = part.first().map(|placed| placed.copy.key.block) else {
        return Ok((piece.len(), 0));
    };
    let range = BlockRange::new(first, first.plus(part.len() as u64));
    // A page between the durable end and these blocks became dirty meanwhile, and must become durable first.
    if range.end > durable_block && store.dram.cache().next_dirty(inode.ino, durable_block, first).is_some() {
        return Ok((piece.len(), 0));
    }
    refuse_intents(store, &inode, range)?;
    let rewritten = |placed: &&Placed| state(placed).is_none_or(|(_, now)| now != placed.copy.version);
    let again = part.iter().filter(rewritten).count() as u64;
    // Pages written again since the copy stay dirty and need a new space reservation.
    if !store.devices.space().reserve_now(again) {
        return Ok((piece.len(), 0));
    }
    let mut staged = Staged::new(store, Some(claim), true);
    let committed = commit_written(store, reservation, op, group, &inode, part, range, &mut staged);
    if committed.is_err() {
        store.devices.space().unreserve(again);
    }
    committed?;
    Ok((skipped, part.len()))
}

#[allow(clippy::too_many_arguments)] // the commit of `install_first`, split off for its length
fn commit_written<'a>(
    store: &'a Store,
    reservation: Reservation<'_>,
    op: &mut Op,
    group: &Group<'_>,
    inode: &Inode,
    part: &[Placed],
    range: BlockRange,
    staged: &mut Staged<'a>,
) -> Attempt<()> {
    let place = part[0].place;
    let run = DeviceRun { length: part.len() as u64, ..place };
    let extent = ColdExtent {
        first: range.first,
        length: part.len() as u32,
        device: place.device,
        start: place.start,
        unwritten: false,
        crcs: part.iter().map(|placed| placed.crc).collect(),
    };
    let size = size_with(store, inode, group, part, range);
    let old_last = FileBlock(inode.durable_size() / BLOCK_SIZE);
    if size > inode.durable_size() && !(range.first <= old_last && old_last < range.end) {
        stage_raised(store, op, inode, size, staged)?;
    }
    let old = match inode.slot.has(flag::HAS_COLD) {
        true => cold_extents(store, inode.ino, range)?,
        false => Vec::new(),
    };
    unmap_written(store, inode, range, &old, staged)?;
    let mut shards = lock_shards(store, inode.ino, old.iter().map(DeviceRun::from).chain([run]));
    store.dram.cold_versions().bump(inode.ino, range);
    stage_cold_extents(store, inode.ino, &[extent], &mut shards, staged)?;
    staged.unlink_emptied(&mut shards)?;
    let mut slot = inode.slot;
    slot.flags = (slot.flags.get() | flag::HAS_COLD).into();
    slot.size = size.into();
    slot.blocks = slot.blocks.get().saturating_add_signed(staged.blocks_delta).into();
    inode.log_pending_times(&mut slot);
    log_slot(&mut staged.tx, inode.place, &inode.slot, &slot);
    staged.commit(reservation)?;
    let now = store.clock.monotonic_ns();
    for Placed { copy, .. } in part {
        let version = store.dram.cold_versions().get(inode.ino, copy.key.block);
        let _: Installed = store.dram.cache().installed(copy, version, now);
    }
    settle(store, inode, &slot, inode.size(), staged.blocks_delta);
    Ok(())
}

/// The durable size once a part is installed: the visible one, as far as no dirty page is left before it.
fn size_with(store: &Store, inode: &Inode, group: &Group<'_>, part: &[Placed], range: BlockRange) -> u64 {
    let durable = inode.durable_size();
    let mut size = inode.size();
    let mut at = FileBlock(durable / BLOCK_SIZE);
    while let Some(block) = store.dram.cache().next_dirty(inode.ino, at, FileBlock(u64::MAX)) {
        if block < range.first || block >= range.end {
            size = size.min(block.0 * BLOCK_SIZE);
            break;
        }
        let placed = &part[(block.0 - range.first.0) as usize];
        if store.dram.cache().state_of(placed.copy.key).is_none_or(|(_, now)| now != placed.copy.version) {
            // Its copy is what the file was then.
            size = size.min(group.size);
        }
        at = block.plus(1);
    }
    size.max(durable)
}

/// Drops the PM entries of a range, and counts its newly allocated blocks in `staged`. `old`: the cold
/// extents of the range.
fn unmap_written(
    store: &Store,
    inode: &Inode,
    range: BlockRange,
    old: &[ColdExtent],
    staged: &mut Staged<'_>,
) -> Attempt<()> {
    let below = |block: u64| old.iter().any(|extent| extent.first.0 <= block && block < extent.end().0);
    let count = range.count() as usize;
    let mut mappings: SmallVec<[Option<Mapping>; 32]> = SmallVec::from_elem(None, count);
    store.persistent.map().lookup_run(None, &inode.map(), range.first, &mut mappings)?;
    let mut index = 0;
    for run in mappings.chunk_by(|a, b| a.is_some() == b.is_some()) {
        let first = range.first.plus(index as u64);
        index += run.len();
        if run[0].is_none() {
            let blocks = first.0..first.0 + run.len() as u64;
            staged.blocks_delta += blocks.filter(|block| !below(*block)).count() as i64;
            continue;
        }
        for (block, mapping) in (first.0..).map(FileBlock).zip(run.iter().flatten()) {
            check_owner(store, inode, block, mapping.block)?;
            staged.release(mapping.block);
        }
        let none: SmallVec<[Option<Mapping>; 32]> = SmallVec::from_elem(None, run.len());
        store.persistent.map().set(&mut staged.tx, &inode.map(), first, &none)?;
        stage_prune(store, inode, BlockRange::new(first, first.plus(run.len() as u64)), staged)?;
    }
    Ok(())
}

/// True when `b` continues `a` in the file and on the device.
fn follows(a: &Placed, b: &Placed) -> bool {
    b.copy.key.block == a.copy.key.block.plus(1)
        && b.place.device == a.place.device
        && b.place.start == a.place.start.plus(1)
}
