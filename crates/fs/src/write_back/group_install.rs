//! The installation of a group that was written back and flushed: extents go in, PM entries go out, and the durable size
//! rises (design S3, S5).
//!
//! Invariants: a page is installed only if it is the page that was copied (its birth); behind the durable end blocks are
//! installed in their order (C28). Locks: the inode's, then the catalog shards of the runs (L1).

use crate::write_back::group_pages::{Group, Placed};
use smallvec::SmallVec;
use std::iter::repeat_n;
use terrace_cache::Installed;
use terrace_catalog::DeviceRun;
use terrace_format::inode::flag;
use terrace_format::keys::ColdExtent;
use terrace_format::{BLOCK_SIZE, FileBlock, PmBlock};
use terrace_map::Mapping;
use terrace_runtime::planted::{Mistake, planted};
use terrace_store::change::cold::stage_cold_extents;
use terrace_store::change::dirty::settle;
use terrace_store::change::give_back::give_back_unless_named;
use terrace_store::change::new_extent::{NewExtent, adjoins};
use terrace_store::change::shards::lock_shards;
use terrace_store::change::staged::Staged;
use terrace_store::change::tail::stage_raised;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::slot::{check_owner, load, log_slot};
use terrace_store::lookup::cold_extents::cold_extents;
use terrace_store::lookup::intents::refuse_intents;
use terrace_store::moving::install_pieces::{Install, install_pieces};
use terrace_store::operation::need::Attempt;
use terrace_store::operation::op::Op;
use terrace_store::store::Store;
use terrace_store::types::BlockRange;
use terrace_store::types::inode::Inode;
use terrace_wal::Reservation;

/// Installs what was written and flushed; `done` gets the blocks.
pub(super) fn install_written(
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
        placed.iter().for_each(|placed| store.devices.space().release_to_reservation(placed.at.get().place));
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
    let claim = store.persistent.blocks().claim(1 + op.extra_blocks, op.purpose)?;
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
    let extent = NewExtent::written(range.first, part.iter().map(|placed| &placed.at));
    let run = DeviceRun::from(extent.get());
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
    store.persistent.map().lookup_run(&inode.map(), range.first, &mut mappings)?;
    let mut released: SmallVec<[PmBlock; 32]> = SmallVec::new();
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
            released.push(mapping.block);
        }
        staged.change_map(inode, first, repeat_n(None, run.len()))?;
    }
    // After all of them: a block that was released in an attempt without room looks as if it had changed.
    released.into_iter().for_each(|block| staged.release(block));
    Ok(())
}

/// True when `b` continues `a` in the file and on the device.
fn follows(a: &Placed, b: &Placed) -> bool {
    b.copy.key.block == a.copy.key.block.plus(1) && adjoins(a.at.get().place, b.at.get().place)
}
