//! Installing what was copied: cold extents go in and the PM entries whose version is unchanged go out in one
//! transaction per piece (design S3, M2): what follows one another in a file and on the device is one extent, and several
//! extents of a file are one piece. Blocks that changed meanwhile are skipped and the extent is cut around them.

use crate::attempt::run::{large_record, run_attempts};
use crate::change::shards::{lock_shards, stage_device_free};
use crate::change::staged::Staged;
use crate::error::{FsError, FsResult};
use crate::inode::slot::log_slot;
use crate::lookup::cold_extents::cold_extents;
use crate::moving::candidate::Copied;
use crate::moving::copied::{OF_SLOT, OF_UNMAP, adjoins, extent_of, follows, piece_of, place_of, range_of};
use crate::moving::dram_copies::{copies_for_dram, held_in_dram, keep_copies};
use crate::moving::errors::{concerns_all_files, demoting, install_limit};
use crate::moving::look_at::refuse;
use crate::moving::unmap::{load_same, stage_unmap, unchanged};
use crate::operation::need::Attempt;
use crate::operation::op::Op;
use crate::pressure::processor::offer_processor;
use crate::store::Store;
use smallvec::SmallVec;
use terrace_catalog::{DeviceRun, chunks, cold_map};
use terrace_format::inode::flag;
use terrace_runtime::interleave;
use terrace_runtime::sync::atomic::Ordering;
use terrace_wal::Error;

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
        match install_piece(store, piece) {
            Ok(count) => freed += count,
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
    // A record that failed on the way may be valid: what it names must not be handed out again.
    if store.persistent.wal().is_stopped() {
        return;
    }
    piece.iter().for_each(|copied| store.devices.space().release_claim(copied.place));
}

/// Installs the unchanged part of a piece, in as many transactions as it has gaps.
fn install_piece(store: &Store, piece: &[Copied<'_>]) -> FsResult<u64> {
    let (mut freed, mut halved) = (0, 0);
    let mut rest = piece;
    while !rest.is_empty() {
        interleave::point("demotion:between-pieces");
        offer_processor(store);
        let mut op = Op { halved, ..demoting() };
        let mut tried = 0;
        let done = run_attempts(store, &mut op, large_record(store), |reservation, op| {
            tried = piece_of(rest, (install_limit(store) >> op.halved).max(1));
            install_first(store, reservation, &rest[..tried])
        });
        halved = op.halved;
        match done {
            // Fewer need less room in catalog pages, and what they free serves the others. Refused: more entries that
            // follow one another than a page takes.
            Err(FsError::Engine(Error::NoSpace(_) | Error::Refused(_))) if tried > 1 => halved += 1,
            Ok((skipped, installed)) => {
                let (gone, tail) = rest.split_at(skipped);
                release_places(store, gone);
                store.pressure.moved().skipped.fetch_add(skipped as u64, Ordering::Relaxed);
                freed += installed as u64;
                store.pressure.moved().left.fetch_add(installed as u64, Ordering::Relaxed);
                rest = &tail[installed..];
            }
            Err(error) => {
                release_places(store, rest);
                return Err(error);
            }
        }
    }
    Ok(freed)
}

/// Skips changed blocks and installs the unchanged ones that follow: (skipped, installed).
fn install_first(
    store: &Store,
    reservation: terrace_wal::Reservation<'_>,
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
    for run in part.chunk_by(follows) {
        let mut freed = Vec::new();
        cold_map::install(&mut shards, &mut staged.tx, inode.ino, &extent_of(run), &mut freed)?;
        for (device, start, length) in freed {
            let old = DeviceRun { device, start, length };
            stage_device_free(store, old, &mut shards, &mut staged)?;
        }
    }
    for side_by_side in part.chunk_by(|a, b| adjoins(a.place, b.place)) {
        chunks::mark(&mut shards, &mut staged.tx, place_of(side_by_side), true)?;
    }
    let (bytes, limit) =
        (staged.tx.record_size() + part.len() * OF_UNMAP + OF_SLOT, store.persistent.wal().max_record());
    if bytes > limit && count > 1 {
        return Err(Error::RecordTooLarge { bytes, limit }.into());
    }
    for run in part.chunk_by(follows) {
        stage_unmap(store, &inode, run.iter().map(|copied| &copied.candidate), &mut staged)?;
    }
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
