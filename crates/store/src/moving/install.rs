//! Installing what was copied: cold extents go in and the PM entries whose version is unchanged go out in one
//! transaction per piece (design S3, M2): what follows one another in a file and on the device is one extent, and several
//! extents of a file are one piece. Blocks that changed meanwhile are skipped and the extent is cut around them.

use crate::change::cold::stage_cold_extents;
use crate::change::give_back::give_back_unless_named;
use crate::change::new_extent::NewExtent;
use crate::change::record_room::record_of_drop;
use crate::change::shards::lock_shards;
use crate::change::staged::Staged;
use crate::error::{FsError, FsResult};
use crate::inode::slot::log_slot;
use crate::lookup::cold_extents::cold_extents;
use crate::moving::candidate::Copied;
use crate::moving::copied::{OF_SLOT, extent_of, follows, piece_of, place_of, range_of};
use crate::moving::dram_copies::{copies_for_dram, held_in_dram, keep_copies};
use crate::moving::errors::{concerns_all_files, install_limit};
use crate::moving::install_pieces::{Install, install_pieces};
use crate::moving::look_at::refuse;
use crate::moving::unmap::{load_same, stage_unmap, unchanged};
use crate::operation::need::Attempt;
use crate::operation::op::Op;
use crate::pressure::processor::offer_processor;
use crate::store::Store;
use smallvec::SmallVec;
use terrace_catalog::DeviceRun;
use terrace_format::inode::flag;
use terrace_runtime::sync::atomic::Ordering;
use terrace_wal::{Error, Reservation};

/// Installs copied blocks; returns how many PM blocks were freed. Damage of one file goes to `trouble`.
pub fn install(store: &Store, copied: Vec<Copied<'_>>, trouble: &mut Option<FsError>) -> FsResult<u64> {
    let mut freed = 0;
    let mut failed = None;
    let mut rest = copied.as_slice();
    while !rest.is_empty() {
        let (piece, tail) = rest.split_at(piece_of(rest, install_limit(store)));
        rest = tail;
        if failed.is_some() {
            release_places(store, piece);
            continue;
        }
        let mut demotion = Demotion { store, freed: 0 };
        let installed = install_pieces(store, &mut demotion, piece);
        freed += if installed.is_ok() { demotion.freed } else { 0 };
        match installed {
            Ok(()) => {}
            Err(error) if concerns_all_files(store, &error) => failed = Some(error),
            Err(error) => {
                piece.iter().for_each(|copied| refuse(store, copied.candidate.pm));
                trouble.get_or_insert(error);
            }
        }
    }
    match failed {
        Some(FsError::Engine(Error::NoSpace(_))) if freed > 0 => Ok(freed),
        None => Ok(freed),
        Some(error) => Err(error),
    }
}

fn release_places(store: &Store, piece: &[Copied<'_>]) {
    give_back_unless_named(store, || {
        piece.iter().for_each(|copied| store.devices.space().release_claim(copied.location.place()));
    });
}

/// A demotion to install: several extents of a file in one transaction, which drops their PM entries.
struct Demotion<'s> {
    store: &'s Store,
    freed: u64,
}

impl<'c> Install for Demotion<'c> {
    type Item = Copied<'c>;
    const BETWEEN: &'static str = "demotion:between-pieces";

    fn begin(&self) {
        offer_processor(self.store);
    }

    fn piece(&self, rest: &[Copied<'c>], limit: usize) -> usize {
        piece_of(rest, limit)
    }

    fn install_first(
        &self,
        reservation: Reservation<'_>,
        _op: &mut Op,
        piece: &[Copied<'c>],
    ) -> Attempt<(usize, usize)> {
        install_first(self.store, reservation, piece)
    }

    fn taken(&mut self, skipped: &[Copied<'c>], installed: &[Copied<'c>]) {
        release_places(self.store, skipped);
        let moved = self.store.pressure.moved();
        moved.skipped.fetch_add(skipped.len() as u64, Ordering::Relaxed);
        moved.left.fetch_add(installed.len() as u64, Ordering::Relaxed);
        self.freed += installed.len() as u64;
    }

    fn failed(&mut self, left: &[Copied<'c>]) {
        release_places(self.store, left);
    }

    /// `Refused` means that a page cannot take so many adjacent entries: a smaller piece may fit.
    fn may_succeed_smaller(&self, error: &FsError) -> bool {
        matches!(error, FsError::Engine(Error::NoSpace(_) | Error::Refused(_)))
    }
}

/// Skips changed blocks and installs the unchanged ones that follow: (skipped, installed).
fn install_first(
    store: &Store,
    reservation: Reservation<'_>,
    piece: &[Copied<'_>],
) -> Attempt<(usize, usize)> {
    let first = &piece[0].candidate;
    let _guard = store.inodes.locks().write(first.ino);
    let Some(inode) = load_same(store, first)? else { return Ok((piece.len(), 0)) };
    let unchanged = unchanged(store, &inode, piece.iter().map(|copied| &copied.candidate))?;
    let skipped = unchanged.iter().take_while(|same| !**same).count();
    let count = unchanged[skipped..].iter().take_while(|same| **same).count();
    if count == 0 {
        return Ok((piece.len(), 0));
    }
    let part = &piece[skipped..skipped + count];
    let mut places: SmallVec<[DeviceRun; 16]> = SmallVec::new();
    for run in part.chunk_by(follows) {
        let range = range_of(run);
        if inode.slot.has(flag::HAS_COLD) {
            places.extend(cold_extents(store, inode.ino, range)?.iter().map(DeviceRun::from));
        }
        places.push(place_of(run));
    }
    let mut shards = lock_shards(store, inode.ino, places);
    let mut staged = Staged::new(store, None, false);
    // The catalog first, all of it: when it lacks room the attempt ends, and a block that was released in it would
    // look as if it had changed.
    let extents: Vec<NewExtent> = part.chunk_by(follows).map(extent_of).collect();
    stage_cold_extents(store, inode.ino, &extents, &mut shards, &mut staged)?;
    let of_drop = record_of_drop(store, extents.len(), part.len());
    let (bytes, limit) = (staged.tx.record_size() + of_drop + OF_SLOT, store.persistent.wal().max_record());
    if bytes > limit && count > 1 {
        return Err(Error::RecordTooLarge { bytes, limit }.into());
    }
    stage_unmap(&inode, part.iter().map(|copied| &copied.candidate), &mut staged)?;
    staged.unlink_emptied(&mut shards)?;
    let mut slot = inode.slot;
    slot.flags = (slot.flags.get() | flag::HAS_COLD).into();
    log_slot(&mut staged.tx, inode.place, &inode.slot, &slot);
    // Last: an attempt that fails makes no copy in DRAM stale.
    let held = held_in_dram(store, &inode, part.iter());
    part.chunk_by(follows).for_each(|run| store.dram.cold_versions().bump(inode.ino, range_of(run)));
    let copies = copies_for_dram(store, &inode, part.iter(), &held);
    staged.commit(reservation)?;
    keep_copies(store, &inode, copies);
    Ok((skipped, count))
}
