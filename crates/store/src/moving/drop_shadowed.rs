//! Gives up the cold copies under PM blocks, when lower tiers lack room (P1).

use crate::change::shards::{lock_shards, stage_device_free};
use crate::change::staged::Staged;
use crate::error::{FsError, FsResult};
use crate::lookup::cold_extents::cold_extents;
use crate::moving::candidate::Candidate;
use crate::moving::errors::concerns_all_files;
use crate::moving::look_at::refuse;
use crate::moving::pieces::by_pieces;
use crate::moving::unmap::{load_same, unchanged};
use crate::operation::need::Attempt;
use crate::store::Store;
use crate::types::BlockRange;
use terrace_catalog::{DeviceRun, cold_map};
use terrace_format::inode::flag;

/// Frees the cold copies beneath some candidates; returns how many device blocks became free. What lies beneath a
/// partial block is needed.
pub(crate) fn drop_shadowed(store: &Store, candidates: &[Candidate<'_>]) -> FsResult<u64> {
    let mut count = 0;
    for whole in candidates.split(|candidate| !candidate.lines.is_full()) {
        for file in whole.chunk_by(|a, b| a.ino == b.ino) {
            match by_pieces(store, file, |reservation, piece| drop_piece(store, reservation, piece)) {
                Ok(dropped) => count += dropped,
                Err(error) if error.concerns_one_file() && !concerns_all_files(store, &error) => {
                    hold_back(store, file, &error)
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(count)
}

/// Damage of a file keeps its blocks where they are, and no others (I8).
pub(crate) fn hold_back(store: &Store, candidates: &[Candidate<'_>], error: &FsError) {
    tracing::debug!("blocks of inode {} stay in PM: {error}", candidates.first().map_or(0, |c| c.ino.0));
    candidates.iter().for_each(|candidate| refuse(store, candidate.pm));
}

fn drop_piece(
    store: &Store,
    reservation: terrace_wal::Reservation<'_>,
    piece: &[Candidate<'_>],
) -> Attempt<u64> {
    let range = BlockRange::new(piece[0].block, piece[0].block.plus(piece.len() as u64));
    let _guard = store.inodes.locks().write(piece[0].ino);
    let Some(inode) = load_same(store, &piece[0])? else { return Ok(0) };
    if !inode.slot.has(flag::HAS_COLD) || unchanged(store, &inode, piece.iter())?.contains(&false) {
        return Ok(0);
    }
    let extents = cold_extents(store, inode.ino, range)?;
    if extents.is_empty() {
        return Ok(0);
    }
    // A PM block that is about to lose its cold copy is not clean.
    piece.iter().for_each(|c| store.persistent.blocks().descriptor(c.pm).set_clean(false));
    let mut shards = lock_shards(store, inode.ino, extents.iter().map(DeviceRun::from));
    let mut staged = Staged::new(store, None, false);
    store.dram.cold_versions().bump(inode.ino, range);
    for gone in extents.iter().filter_map(|extent| extent.slice(range.first, range.end)) {
        store.dram.cache().remove_range(inode.ino, inode.slot.generation.get(), gone.first, gone.end());
    }
    let mut freed = Vec::new();
    cold_map::cut(&mut shards, &mut staged.tx, inode.ino, range.first, range.end, &mut freed)?;
    let mut count = 0;
    for (device, start, length) in freed {
        count += length;
        stage_device_free(store, DeviceRun { device, start, length }, &mut shards, &mut staged)?;
    }
    staged.unlink_emptied(&mut shards)?;
    staged.commit(reservation)?;
    Ok(count)
}
