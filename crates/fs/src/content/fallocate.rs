//! fallocate, SEEK_DATA and SEEK_HOLE.
//!
//! Allocated ranges take unwritten cold extents where a lower tier has room (a large preallocation should not
//! take PM), else unwritten PM blocks, which migration demotes later. Both read as zeros. A range larger than
//! one record holds is allocated in several transactions, the size last (docs/semantics.md).

use crate::content::punch::punch;
use smallvec::SmallVec;
use terrace_blocks::Target;
use terrace_catalog::DeviceRun;
use terrace_format::address::MAX_FILE_SIZE;
use terrace_format::inode::flag;
use terrace_format::keys::MAX_EXTENT_BLOCKS;
use terrace_format::table::Owner;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_map::Mapping;
use terrace_runtime::interleave;
use terrace_runtime::planted::{Mistake, planted};
use terrace_store::attempt::run::{large_record, run_attempts};
use terrace_store::change::cold::stage_cold_extents;
use terrace_store::change::dirty::dirty_without_place;
use terrace_store::change::finish::finish_change;
use terrace_store::change::new_extent::NewExtent;
use terrace_store::change::shards::lock_shards;
use terrace_store::change::staged::Staged;
use terrace_store::change::tail::stage_raised;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::load::load_regular;
use terrace_store::inode::slot::next_mapped;
use terrace_store::lookup::cold_extents::cold_extents;
use terrace_store::lookup::intents::refuse_intents;
use terrace_store::moving::device_run::allocate;
use terrace_store::operation::need::Attempt;
use terrace_store::operation::op::Op;
use terrace_store::operation::progress::{Progress, TURN_ENTRIES, TURN_PIECES, all_turns};
use terrace_store::pressure::pm_space::{capacity, wait_for_scan};
use terrace_store::store::Store;
use terrace_store::types::inode::Inode;
use terrace_store::types::{Allocate, BlockRange, Wait};
use terrace_wal::{Error, NoSpace};

/// PM blocks allocated in one transaction.
const PM_STEP: u64 = 16;

/// Allocates or deallocates a range.
///
/// # Errors
/// EINVAL for an empty range, EFBIG, ENOSPC, EISDIR, ENODEV never; EIO.
pub fn fallocate(
    store: &Store,
    ino: Ino,
    offset: u64,
    length: u64,
    mode: Allocate,
    wait: Wait,
) -> FsResult<()> {
    all_turns(|progress| fallocate_turn(store, ino, (offset, length), mode, progress, wait))
}

/// A turn of [`fallocate`] of a range: offset and length.
///
/// # Errors
/// As [`fallocate`]; `Unfinished`.
pub fn fallocate_turn(
    store: &Store,
    ino: Ino,
    (offset, length): (u64, u64),
    mode: Allocate,
    progress: &mut Progress,
    wait: Wait,
) -> FsResult<()> {
    if length == 0 {
        return Err(FsError::Invalid);
    }
    let end = offset.checked_add(length).filter(|end| *end <= MAX_FILE_SIZE).ok_or(FsError::TooLarge)?;
    if mode == Allocate::PunchHole {
        return punch(store, ino, offset, length, progress, wait);
    }
    let range = BlockRange::new(FileBlock(offset / BLOCK_SIZE), FileBlock(end.div_ceil(BLOCK_SIZE)));
    if !progress.begun {
        wait_for_scan(store, wait)?;
        refuse_hopeless(store, range)?;
        (progress.begun, progress.at) = (true, range.first);
    }
    let mut op = Op::new(wait).in_turns();
    let mut left = TURN_ENTRIES;
    while left > 0 {
        if progress.at >= range.end {
            return if mode == Allocate::Extend { extend(store, ino, end, wait) } else { Ok(()) };
        }
        let rest = BlockRange::new(progress.at, range.end);
        // An attempt that ends with a need takes nothing from the turn. If it did, the next turn would begin
        // with the same fruitless search for space, for ever.
        (progress.at, left) = run_attempts(store, &mut op, large_record(store), |reservation, op| {
            let mut left = left;
            let at = allocate_piece(store, reservation, op, ino, rest, &mut left)?;
            Ok((at, left))
        })?;
        left = left.saturating_sub(TURN_ENTRIES / TURN_PIECES);
        interleave::point("fallocate:between-pieces");
    }
    Err(FsError::Unfinished)
}

/// ENOSPC before anything is allocated, when the range cannot fit at all.
fn refuse_hopeless(store: &Store, range: BlockRange) -> FsResult<()> {
    if range.count() > capacity(store) {
        return Err(NoSpace::Tier.into());
    }
    Ok(())
}

/// Raises the size to `end` if it is lower.
pub fn extend(store: &Store, ino: Ino, end: u64, wait: Wait) -> FsResult<()> {
    let mut op = Op::new(wait);
    run_attempts(store, &mut op, large_record(store), |reservation, op| {
        // The old last block rarely needs zeros in a new one.
        let claim = store.persistent.blocks().claim(op.extra_blocks, op.purpose)?;
        let _guard = store.inodes.locks().write(ino);
        let inode = load_regular(store, ino)?;
        let mut slot = inode.slot;
        let mut staged = Staged::new(store, Some(claim), true);
        if inode.size() < end && inode.size() > inode.durable_size() {
            // Behind what is only in DRAM: durable when that is.
            staged.visible = Some(end);
        } else if inode.size() < end {
            stage_raised(store, op, &inode, end, &mut staged)?;
            slot.size = end.into();
        }
        finish_change(store, reservation, &inode, slot, staged)?;
        Ok(())
    })
}

/// Space for some blocks, before any lock: on a lower tier if any has room, else in PM (I9).
fn claim_room<'s>(store: &'s Store, op: &Op, blocks: u64) -> Attempt<Staged<'s>> {
    match allocate(store, blocks.min(MAX_EXTENT_BLOCKS.into())) {
        Ok(run) => {
            let mut staged = Staged::new(store, None, false);
            staged.device_claimed = Some(run);
            return Ok(staged);
        }
        Err(FsError::Engine(Error::NoSpace(_))) => {}
        Err(error) => return Err(error.into()),
    }
    let mut count = blocks.min(PM_STEP) as usize;
    loop {
        match store.persistent.blocks().claim(count, op.purpose) {
            Err(Error::NoSpace(_)) if count > 1 => count /= 2,
            claim => return Ok(Staged::new(store, Some(claim?), false)),
        }
    }
}

/// Allocates the first gap of a range, as much as one transaction takes, within `left` entries looked at; gives where to
/// go on.
fn allocate_piece(
    store: &Store,
    reservation: terrace_wal::Reservation<'_>,
    op: &mut Op,
    ino: Ino,
    range: BlockRange,
    left: &mut usize,
) -> Attempt<FileBlock> {
    // The gap is looked for before blocks are claimed: on a full pool the range may be allocated already, and
    // then needs none.
    let missing = {
        let _guard = store.inodes.locks().read(ino);
        let inode = load_regular(store, ino)?;
        refuse_intents(store, &inode, range)?;
        first_gap(store, &inode, range, MAX_EXTENT_BLOCKS.into(), left)?
    };
    if missing.is_empty() {
        return Ok(missing.first);
    }
    let mut staged = claim_room(store, op, missing.count())?;
    interleave::point("fallocate:claimed");
    let room = staged.device_claimed.map_or(staged.claimed() as u64, |run| run.length);
    let _guard = store.inodes.locks().write(ino);
    let inode = load_regular(store, ino)?;
    refuse_intents(store, &inode, range)?;
    let range = BlockRange::new(missing.first, range.end);
    let gap = first_gap(store, &inode, range, room, left)?;
    if gap.is_empty() {
        return Ok(gap.first);
    }
    staged.blocks_delta += gap.count() as i64;
    staged.placed += dirty_without_place(store, &inode, gap)? as i64;
    match staged.device_claimed {
        Some(run) => allocate_below(store, reservation, &inode, gap, run, staged),
        None => allocate_pm(store, reservation, &inode, gap, staged),
    }
}

/// An unwritten extent of as much of the claimed run as the gap takes.
fn allocate_below(
    store: &Store,
    reservation: terrace_wal::Reservation<'_>,
    inode: &Inode,
    gap: BlockRange,
    claimed: DeviceRun,
    mut staged: Staged<'_>,
) -> Attempt<FileBlock> {
    let length = gap.count();
    let run = DeviceRun { length, ..claimed };
    let spare = DeviceRun { start: run.start.plus(length), length: claimed.length - length, ..run };
    staged.device_claimed = Some(run);
    if spare.length > 0 && !planted(Mistake::SpareClaimKept) {
        store.devices.space().release_claim(spare);
    }
    let extent = NewExtent::unwritten(gap.first, run);
    let mut shards = lock_shards(store, inode.ino, [run]);
    store.dram.cold_versions().bump(inode.ino, gap);
    stage_cold_extents(store, inode.ino, &[extent], &mut shards, &mut staged)?;
    let mut slot = inode.slot;
    slot.flags = (slot.flags.get() | flag::HAS_COLD).into();
    finish_change(store, reservation, inode, slot, staged)?;
    Ok(gap.end)
}

/// Unwritten PM blocks.
fn allocate_pm(
    store: &Store,
    reservation: terrace_wal::Reservation<'_>,
    inode: &Inode,
    gap: BlockRange,
    mut staged: Staged<'_>,
) -> Attempt<FileBlock> {
    let (ino, first, count) = (inode.ino, gap.first, gap.count());
    let mut mappings: SmallVec<[Option<Mapping>; 16]> = SmallVec::new();
    for at in (first.0..first.0 + count).map(FileBlock) {
        let block = staged.take(Target::File { ino, block: at })?;
        staged.own(block, Owner::File { ino, block: at, unwritten: true });
        mappings.push(Some(Mapping { block, unwritten: true }));
    }
    staged.change_map(inode, first, mappings)?;
    finish_change(store, reservation, inode, inode.slot, staged)?;
    Ok(gap.end)
}

/// The first unallocated blocks of a range, at most `most`. An empty result says how far the search came: all
/// blocks before it are allocated. `left` limits the map entries and extents that the search may visit.
fn first_gap(
    store: &Store,
    inode: &Inode,
    range: BlockRange,
    most: u64,
    left: &mut usize,
) -> Attempt<BlockRange> {
    let mut at = range.first;
    while at < range.end && *left > 0 {
        *left -= 1;
        let window = BlockRange::new(at, at.plus(most).min(range.end));
        let mapped = next_mapped(store, inode, window.first, window.end)?;
        let cold = match inode.slot.has(flag::HAS_COLD) {
            true => cold_extents(store, inode.ino, window)?.into_iter().next(),
            false => None,
        };
        let first_cold = cold.as_ref().map(|extent| extent.first);
        let first_used = [mapped.map(|(block, _)| block), first_cold].into_iter().flatten().min();
        match first_used {
            None => return Ok(window),
            Some(used) if used > at => return Ok(BlockRange::new(at, used)),
            Some(_) => {
                at = at.plus(1);
                if let Some(extent) = cold.filter(|extent| extent.first < at) {
                    at = at.max(extent.end());
                }
            }
        }
    }
    Ok(BlockRange::new(at, at))
}
