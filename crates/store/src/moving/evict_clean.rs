//! Demotion of clean blocks: a transaction drops the PM entries, and no device is written (S2).

use crate::change::staged::Staged;
use crate::error::{FsError, FsResult};
use crate::lookup::cold_extents::cold_extents;
use crate::moving::candidate::Candidate;
use crate::moving::errors::concerns_all_files;
use crate::moving::look_at::refuse;
use crate::moving::pieces::by_pieces;
use crate::moving::unmap::{is_clean, is_readable, load_same, stage_unmap, unchanged};
use crate::operation::need::Attempt;
use crate::store::Store;
use crate::types::BlockRange;
use terrace_runtime::sync::atomic::Ordering;

/// Gives up PM copies whose cold copy is still good; no write (design S2). Rechecked under the lock.
pub(crate) fn evict_clean(
    store: &Store,
    candidates: Vec<Candidate<'_>>,
    trouble: &mut Option<FsError>,
) -> FsResult<u64> {
    let mut evicted = 0;
    for of_inode in candidates.chunk_by(|a, b| a.ino == b.ino) {
        match by_pieces(store, of_inode, |reservation, piece| evict_piece(store, reservation, piece)) {
            Ok(count) => evicted += count,
            Err(error) if concerns_all_files(store, &error) => return Err(error),
            Err(error) => {
                of_inode.iter().for_each(|candidate| refuse(store, candidate.pm));
                trouble.get_or_insert(error);
            }
        }
    }
    store.pressure.moved().evicted_clean.fetch_add(evicted, Ordering::Relaxed);
    Ok(evicted)
}

fn evict_piece(
    store: &Store,
    reservation: terrace_wal::Reservation<'_>,
    piece: &[Candidate<'_>],
) -> Attempt<u64> {
    let _guard = store.inodes.locks().write(piece[0].ino);
    let Some(inode) = load_same(store, &piece[0])? else { return Ok(0) };
    let same = unchanged(store, &inode, piece.iter())?;
    let clean = piece.iter().all(|c| is_clean(store, &inode, c.block, c.pm));
    let range = BlockRange::new(piece[0].block, piece[0].block.plus(piece.len() as u64));
    let cold = cold_extents(store, inode.ino, range)?;
    let written = cold.iter().filter(|extent| !extent.unwritten && is_readable(store, extent.device));
    let inside = written.filter_map(|extent| extent.slice(range.first, range.end));
    let covered: u64 = inside.map(|extent| u64::from(extent.length)).sum();
    if clean && covered < range.count() {
        // Not below after all, or where it may not be had from: they are written the next time, or nothing would ever
        // move.
        piece.iter().for_each(|c| store.persistent.blocks().descriptor(c.pm).set_clean(false));
        return Ok(0);
    }
    if !clean || same.iter().any(|same| !same) {
        return Ok(0);
    }
    let mut staged = Staged::new(store, None, false);
    stage_unmap(&inode, piece.iter(), &mut staged)?;
    staged.commit(reservation)?;
    store.pressure.moved().left.fetch_add(piece.len() as u64, Ordering::Relaxed);
    Ok(piece.len() as u64)
}
