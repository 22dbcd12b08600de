//! The installation of write-back in place (M5): the extent gets the checksums of the new copies and stays where it is,
//! and the PM entries of unchanged blocks go, in one transaction for each piece.

use crate::change::cold::stage_overwritten;
use crate::change::new_extent::NewExtent;
use crate::change::record_room::record_of_drop;
use crate::change::shards::lock_shards;
use crate::change::staged::Staged;
use crate::error::{FsError, FsResult};
use crate::lookup::cold_extents::cold_extents;
use crate::moving::candidate::{Candidate, Copied};
use crate::moving::copied::follows;
use crate::moving::dram_copies::{copies_for_dram, held_in_dram, keep_copies};
use crate::moving::install_pieces::{Install, install_pieces};
use crate::moving::look_at::refuse;
use crate::moving::unmap::{load_same, stage_unmap, unchanged};
use crate::operation::need::Attempt;
use crate::operation::op::Op;
use crate::store::Store;
use crate::types::BlockRange;
use smallvec::SmallVec;
use terrace_format::FileBlock;
use terrace_format::keys::ColdExtent;
use terrace_runtime::sync::atomic::Ordering;
use terrace_wal::{Error, Reservation};

/// Installs written blocks that are unchanged: drops their PM entries and sets the new checksums. Returns
/// their number.
pub(crate) fn install_in_place(store: &Store, copied: &[Copied<'_>], trouble: &mut Option<FsError>) -> u64 {
    let mut in_place = InPlaceGroup { store, freed: 0 };
    for of_inode in copied.chunk_by(|a, b| a.candidate.ino == b.candidate.ino) {
        if let Err(error) = install_pieces(store, &mut in_place, of_inode) {
            trouble.get_or_insert(error);
        }
    }
    in_place.freed
}

/// A write-back in place to install: an extent gets new checksums and stays at its location.
struct InPlaceGroup<'s> {
    store: &'s Store,
    freed: u64,
}

impl<'c> Install for InPlaceGroup<'c> {
    type Item = Copied<'c>;
    const BETWEEN: &'static str = "in-place:between-pieces";

    fn install_first(
        &self,
        reservation: Reservation<'_>,
        _op: &mut Op,
        piece: &[Copied<'c>],
    ) -> Attempt<(usize, usize)> {
        let (taken, installed) = install_checksums(self.store, reservation, piece)?;
        Ok((taken - installed, installed))
    }

    /// Only the lengths of the two slices are right: skipped blocks lie among the installed ones. No device
    /// block is given back.
    fn taken(&mut self, skipped: &[Copied<'c>], installed: &[Copied<'c>]) {
        let moved = self.store.pressure.moved();
        moved.left.fetch_add(installed.len() as u64, Ordering::Relaxed);
        moved.skipped.fetch_add(skipped.len() as u64, Ordering::Relaxed);
        self.freed += installed.len() as u64;
    }

    fn failed(&mut self, left: &[Copied<'c>]) {
        left.iter().for_each(|copied| refuse(self.store, copied.candidate.pm));
    }

    /// As in a demotion: `Refused` means that a page cannot take the parts of an unwritten extent that many written blocks
    /// cut.
    fn may_succeed_smaller(&self, error: &FsError) -> bool {
        matches!(error, FsError::Engine(Error::NoSpace(_) | Error::Refused(_)))
    }
}

/// Takes the leading blocks of a piece that lie in the same extent, puts the checksums of the unchanged ones
/// into it and drops their PM entries. Returns the number of blocks taken and the number of blocks installed.
fn install_checksums(
    store: &Store,
    reservation: Reservation<'_>,
    piece: &[Copied<'_>],
) -> Attempt<(usize, usize)> {
    let first = &piece[0].candidate;
    let _guard = store.inodes.locks().write(first.ino);
    let Some(inode) = load_same(store, first)? else { return Ok((1, 0)) };
    let found = cold_extents(store, first.ino, BlockRange::new(first.block, first.block.plus(1)))?;
    let Some(extent) = found.into_iter().next() else { return Ok((1, 0)) };
    let is_in = |c: &Candidate<'_>| c.ino == first.ino && extent.first <= c.block && c.block < extent.end();
    let taken = piece.iter().take_while(|copied| is_in(&copied.candidate)).count();
    let piece = &piece[..taken];
    let unchanged = unchanged(store, &inode, piece.iter().map(|copied| &copied.candidate))?;
    let mut part: SmallVec<[&Copied<'_>; 32]> = SmallVec::new();
    for (copied, _) in piece.iter().zip(unchanged).filter(|(_, same)| *same) {
        let (at, place) = (copied.candidate.block.0 - extent.first.0, copied.location.place());
        // Moved to another tier meanwhile: the copy there is an older one.
        if (extent.device, extent.start.plus(at)) == (place.device, place.start) {
            part.push(copied);
        }
    }
    if part.is_empty() {
        return Ok((taken, 0));
    }
    let is_sorted = part.is_sorted_by(|a, b| a.candidate.block < b.candidate.block);
    assert!(is_sorted, "blocks of inode {} are not in order: extents would leave some out (M5)", first.ino);
    let extents = written_extents(store, extent, &part)?;
    let mut shards = lock_shards(store, first.ino, []);
    let mut staged = Staged::new(store, None, false);
    // The catalog comes first, as in `install_first`.
    stage_overwritten(store, first.ino, &extents, &mut shards, &mut staged)?;
    let runs = part.chunk_by(|a, b| follows(a, b)).count();
    let bytes = staged.tx.record_size() + record_of_drop(store, runs, part.len());
    let limit = store.persistent.wal().max_record();
    if bytes > limit && part.len() > 1 {
        return Err(Error::RecordTooLarge { bytes, limit }.into());
    }
    stage_unmap(&inode, part.iter().map(|copied| &copied.candidate), &mut staged)?;
    staged.unlink_emptied(&mut shards)?;
    let held = held_in_dram(store, &inode, part.iter().copied());
    for Copied { candidate, .. } in &part {
        store.dram.cold_versions().bump(first.ino, BlockRange::new(candidate.block, candidate.block.plus(1)));
    }
    let copies = copies_for_dram(store, &inode, part.iter().copied(), &held);
    staged.commit(reservation)?;
    keep_copies(store, &inode, copies);
    Ok((taken, part.len()))
}

/// The extents to install after blocks were written over `extent`. A written extent is installed again, with
/// its new checksums. Of an unwritten extent only the new blocks become written, each run joined with the
/// written extents beside it, so that a file that is filled in any order ends with few extents. The caller
/// holds the inode lock and no shard.
fn written_extents(store: &Store, extent: ColdExtent, part: &[&Copied<'_>]) -> FsResult<Vec<NewExtent>> {
    if !extent.unwritten {
        let copies = part.iter().filter_map(|copied| Some((copied.candidate.block, copied.location.copy()?)));
        return Ok(vec![NewExtent::overwritten(extent, copies)]);
    }
    let mut written: Vec<NewExtent> = Vec::new();
    for run in part.chunk_by(|a, b| follows(a, b)) {
        let block = run[0].candidate.block;
        let mut new = NewExtent::written(block, run.iter().filter_map(|copied| copied.location.copy()));
        let around = BlockRange::new(FileBlock(block.0.saturating_sub(1)), new.get().end().plus(1));
        let beside = cold_extents(store, run[0].candidate.ino, around)?;
        for beside in beside.into_iter().filter(|extent| !extent.unwritten) {
            new = new.joined(&beside).unwrap_or(new);
        }
        match written.last().and_then(|last| new.joined(last.get())) {
            Some(both) => *written.last_mut().unwrap_or(&mut new) = both,
            None if written.last().is_some_and(|last| last.get().end() > new.get().first) => {
                // The beginning of this extent is joined with the last one already: only the rest is added.
                let end = written.last().map_or(block, |last| last.get().end());
                written.extend(new.from(end));
            }
            None => written.push(new),
        }
    }
    Ok(written)
}
