//! Write-back in place (M5): a few scattered blocks of a large cold extent are written over their cold
//! copies, so that the extent stays whole for sequential readers. All other blocks go to free space, dense
//! overwrites as groups of their own. docs/decisions/0016 has the reasons.
//!
//! Only the cold copy of a block that PM holds whole may be overwritten. No reader needs such a copy (S2), so
//! a crash may leave it torn as long as the PM block stays: the checksum of the copy changes in the
//! transaction that drops the PM entry, after the flush. Invariants:
//! - The PM block that hides a copy is persisted before the first write over the copy, so it survives the
//!   same crash that tears the copy.
//! - The device blocks have an exclusive I/O pin from a look under the inode lock to the end: they are not
//!   used again meanwhile, no reader that needs them is under way, and no second writer has them. A later
//!   read of neighbouring blocks may pass over them, but does not judge their checksums (`is_stale`).
//! - A block that changed meanwhile stays in PM, whole; its cold copy matches no checksum until the block is
//!   demoted again.
//!
//! Few blocks are written in place at once, and none while PM is short: a group is faster than many small
//! writes.

use crate::attempt::with_pages::{reading, with_pages};
use crate::change::shards::lock_shards;
use crate::change::staged::Staged;
use crate::error::{FsError, FsResult};
use crate::inode::slot::load;
use crate::lookup::cold_extents::cold_extents;
use crate::moving::candidate::{Candidate, Copied};
use crate::moving::complete_partial::copy_content;
use crate::moving::copied::{OF_UNMAP, follows};
use crate::moving::destination::Destination;
use crate::moving::device_run::{Part, avoid_failed};
use crate::moving::dram_copies::{copies_for_dram, held_in_dram, keep_copies};
use crate::moving::install_pieces::{Install, install_pieces};
use crate::moving::look_at::{look_at, refuse};
use crate::moving::unmap::{load_same, stage_unmap, unchanged};
use crate::moving::victim::Victim;
use crate::moving::write_candidates::write_blocks;
use crate::operation::need::Attempt;
use crate::operation::op::Op;
use crate::pressure::pm_space::is_short_of_pm;
use crate::store::Store;
use crate::types::{BlockRange, Wait};
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap};
use terrace_catalog::{DeviceRun, cold_map};
use terrace_format::inode::flag;
use terrace_format::keys::{ColdExtent, MAX_EXTENT_BLOCKS};
use terrace_format::{BLOCK_SIZE, DeviceId, FileBlock, Ino};
use terrace_runtime::sync::atomic::Ordering;
use terrace_space::Pin;
use terrace_wal::{Error, Reservation};

/// Most device writes for one group.
const MOST: usize = 32;

/// Where candidates may be written.
#[derive(Default)]
struct Places {
    of: HashMap<(Ino, FileBlock), DeviceRun>,
    _pins: Vec<Pin>,
}

/// Writes candidates in place where that is allowed and worth it. Returns the number of PM blocks freed, and
/// the remaining candidates.
pub(crate) fn write_in_place<'a>(
    store: &'a Store,
    candidates: Vec<Candidate<'a>>,
    to: Destination,
    trouble: &mut Option<FsError>,
) -> (u64, Vec<Candidate<'a>>) {
    if store.devices.list().is_empty() || is_short_of_pm(store) {
        return (0, candidates);
    }
    // The look-up does not wait for a device: the group counts as in flight, and other workers that make room
    // may wait for it.
    let places = with_pages(store, Wait::Never, || places_below(store, &candidates, to));
    // An error is left to the general way of demotion, which meets it again if it lasts.
    let Some(places) = places.ok().filter(|places| !places.of.is_empty()) else { return (0, candidates) };
    write_to_places(store, candidates, &places, trouble)
}

/// Writes whole PM blocks over their cold copies, even if they are many or not scattered: on a full pool the
/// freed PM blocks count more than speed. Returns the number of PM blocks freed.
pub(crate) fn write_all_in_place(
    store: &Store,
    candidates: Vec<Candidate<'_>>,
    trouble: &mut Option<FsError>,
) -> u64 {
    match reading(store, Wait::Allowed, || all_places_below(store, &candidates)) {
        Ok(places) if places.of.is_empty() => 0,
        Ok(places) => write_to_places(store, candidates, &places, trouble).0,
        Err(error) => {
            trouble.get_or_insert(error);
            0
        }
    }
}

/// Writes candidates over their cold copies. Returns the number of PM blocks freed, and the candidates that
/// have no such location.
fn write_to_places<'a>(
    store: &'a Store,
    candidates: Vec<Candidate<'a>>,
    places: &Places,
    trouble: &mut Option<FsError>,
) -> (u64, Vec<Candidate<'a>>) {
    let mut of_device: BTreeMap<DeviceId, (Vec<Candidate<'a>>, Vec<DeviceRun>)> = BTreeMap::new();
    let mut rest = Vec::new();
    let mut scratch = [0; BLOCK_SIZE as usize];
    for candidate in candidates {
        match places.of.get(&(candidate.ino, candidate.block)) {
            Some(place) => {
                // A block that cannot be copied must not go over a copy that may be sound.
                if let Err(error) = copy_content(store, &candidate, &mut scratch) {
                    refuse(store, candidate.pm);
                    trouble.get_or_insert(error);
                    continue;
                }
                let (list, runs) = of_device.entry(place.device).or_default();
                list.push(candidate);
                match runs.last_mut() {
                    Some(run) if run.start.plus(run.length) == place.start => run.length += 1,
                    _ => runs.push(*place),
                }
            }
            None => rest.push(candidate),
        }
    }
    // The PM blocks must survive any crash that may tear the copies below them (M5).
    store.persistent.pm().persist();
    let mut freed = 0;
    for (device, (list, runs)) in of_device {
        match write_over(store, device, list, &runs) {
            Ok(copied) => {
                if let Some(lost) = copied.iter().find_map(|copied| copied.candidate.lost.as_ref()) {
                    trouble.get_or_insert_with(|| lost.clone());
                }
                freed += install_in_place(store, &copied, trouble);
            }
            Err(victims) => rest.extend(look_again(store, &victims, trouble)),
        }
    }
    (freed, rest)
}

/// The cold copies of the candidates that are a few scattered blocks of a large extent, on a device that `to`
/// accepts, under exclusive I/O pins.
fn places_below(store: &Store, candidates: &[Candidate<'_>], to: Destination) -> FsResult<Places> {
    let mut places = Places::default();
    let mut left = MOST;
    for of_inode in candidates.chunk_by(|a, b| a.ino == b.ino) {
        let runs: Vec<&[Candidate<'_>]> = of_inode.chunk_by(Candidate::is_like_next).collect();
        // A file of which so much is scattered is faster written as a group.
        if runs.len() > left {
            continue;
        }
        let first = &of_inode[0];
        let _guard = store.inodes.locks().read(first.ino);
        let inode = match load(store, first.ino) {
            Ok(inode) if inode.slot.generation.get() == first.generation => inode,
            Ok(_) | Err(FsError::Stale) => continue,
            Err(error) => return Err(error),
        };
        if !inode.slot.has(flag::HAS_COLD) {
            continue;
        }
        let mut found: Vec<(&[Candidate<'_>], ColdExtent)> = Vec::new();
        for run in runs {
            found.extend(extent_to_keep(store, run, to)?.map(|extent| (run, extent)));
        }
        for of_extent in found.chunk_by(|a, b| a.1.first == b.1.first) {
            let blocks: usize = of_extent.iter().map(|(run, _)| run.len()).sum();
            if blocks as u64 * u64::from(store.mode.in_place.one_of) > u64::from(of_extent[0].1.length) {
                continue;
            }
            for (run, extent) in of_extent {
                let start = extent.start.plus(run[0].block.0 - extent.first.0);
                let whole = DeviceRun { device: extent.device, start, length: run.len() as u64 };
                let Some(pin) = store.devices.space().pin_alone(whole) else { continue };
                places._pins.push(pin);
                left -= 1;
                for (index, candidate) in (0..).zip(*run) {
                    let place = DeviceRun { start: start.plus(index), length: 1, ..whole };
                    places.of.insert((candidate.ino, candidate.block), place);
                }
            }
        }
    }
    Ok(places)
}

/// The device blocks of all candidates that are whole in PM and have a cold extent, written or unwritten,
/// under exclusive I/O pins.
fn all_places_below(store: &Store, candidates: &[Candidate<'_>]) -> FsResult<Places> {
    let mut places = Places::default();
    for of_inode in candidates.chunk_by(|a, b| a.ino == b.ino) {
        let first = &of_inode[0];
        let _guard = store.inodes.locks().read(first.ino);
        let inode = match load(store, first.ino) {
            Ok(inode) if inode.slot.generation.get() == first.generation => inode,
            Ok(_) | Err(FsError::Stale) => continue,
            Err(error) => return Err(error),
        };
        if !inode.slot.has(flag::HAS_COLD) {
            continue;
        }
        let is_same = |c: &&Candidate<'_>| store.persistent.blocks().descriptor(c.pm).version() == c.version;
        for candidate in of_inode.iter().filter(|c| c.may_overwrite()).filter(is_same) {
            let range = BlockRange::new(candidate.block, candidate.block.plus(1));
            let extents = cold_extents(store, first.ino, range)?;
            let Some(slice) = extents.first().and_then(|extent| extent.slice(range.first, range.end)) else {
                continue;
            };
            let place = DeviceRun::from(&slice);
            let Some(pin) = store.devices.space().pin_alone(place) else { continue };
            places._pins.push(pin);
            places.of.insert((candidate.ino, candidate.block), place);
        }
    }
    Ok(places)
}

/// The extent that has all blocks of a run, when it is worth keeping and they may be written over it. The caller holds
/// the inode lock.
fn extent_to_keep(store: &Store, run: &[Candidate<'_>], to: Destination) -> FsResult<Option<ColdExtent>> {
    let is_same = |c: &Candidate<'_>| store.persistent.blocks().descriptor(c.pm).version() == c.version;
    if !run.iter().all(|candidate| candidate.may_overwrite() && is_same(candidate)) {
        return Ok(None);
    }
    let range = BlockRange::new(run[0].block, run[0].block.plus(run.len() as u64));
    let extent = cold_extents(store, run[0].ino, range)?.into_iter().next();
    Ok(extent.filter(|extent| {
        extent.first <= range.first
            && range.end <= extent.end()
            && !extent.unwritten
            && extent.length >= store.mode.in_place.extent_blocks
            && may_stay_on(store, extent.device, run[0].kept_on, to)
    }))
}

/// Whether blocks may stay on a device: it is sound, and of a tier where they are wanted.
fn may_stay_on(store: &Store, device: DeviceId, kept_on: Option<u8>, to: Destination) -> bool {
    let Some(found) = store.devices.list().get(usize::from(device.0)) else { return false };
    let now_ns = store.clock.monotonic_ns();
    let is_wanted = match (to, kept_on) {
        (Destination::Any, Some(tier)) if tier > 0 => found.tier.0 == tier,
        (Destination::Rather(tier), _) => found.tier == tier,
        _ => to.accepts(found.tier),
    };
    // During `sync --to` demotion goes to the requested tier or below.
    is_wanted
        && found.tier.0 >= store.pressure.drain_to().0
        && !found.is_avoided(now_ns)
        && !store.devices.io().is_silent(device, now_ns)
}

/// Writes candidates over their cold copies, which lie in these runs, and flushes the device (M1). After a
/// failure the candidates are plain victims again, without I/O pins.
fn write_over<'a>(
    store: &'a Store,
    device: DeviceId,
    mut candidates: Vec<Candidate<'a>>,
    runs: &[DeviceRun],
) -> Result<Vec<Copied<'a>>, Vec<Victim>> {
    let is_whole = candidates.iter().all(Candidate::may_overwrite);
    assert!(is_whole, "a cold copy whose lines PM lacks is written over, among {} (M5)", candidates.len());
    let parts: Vec<Part> = runs.iter().map(|run| Part::over(*run)).collect();
    match write_blocks(store, &mut candidates, &parts) {
        Ok(crcs) => {
            store.pressure.moved().in_place.fetch_add(crcs.len() as u64, Ordering::Relaxed);
            let places = parts.iter().flat_map(|part| part.places());
            let copied = candidates.into_iter().zip(crcs).zip(places);
            Ok(copied.map(|((candidate, crc), place)| Copied { candidate, place, crc }).collect())
        }
        Err(error) => {
            tracing::debug!("not written in place: {error}");
            avoid_failed(store, device, &error);
            Err(candidates.iter().map(|c| Victim { ino: c.ino, block: c.block, pm: c.pm }).collect())
        }
    }
}

/// Candidates of those victims that are still whole blocks to be written: for free space.
fn look_again<'a>(store: &'a Store, victims: &[Victim], trouble: &mut Option<FsError>) -> Vec<Candidate<'a>> {
    let mut found = look_at(store, victims, trouble);
    found.retain(|candidate| !candidate.clean && candidate.is_whole());
    found
}

/// Installs written blocks that are unchanged: drops their PM entries and sets the new checksums. Returns
/// their number.
fn install_in_place(store: &Store, copied: &[Copied<'_>], trouble: &mut Option<FsError>) -> u64 {
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
    let Some(mut extent) = found.into_iter().next() else { return Ok((1, 0)) };
    let is_in = |c: &Candidate<'_>| c.ino == first.ino && extent.first <= c.block && c.block < extent.end();
    let taken = piece.iter().take_while(|copied| is_in(&copied.candidate)).count();
    let piece = &piece[..taken];
    let unchanged = unchanged(store, &inode, piece.iter().map(|copied| &copied.candidate))?;
    let mut part: SmallVec<[&Copied<'_>; 32]> = SmallVec::new();
    for (copied, _) in piece.iter().zip(unchanged).filter(|(_, same)| *same) {
        let at = copied.candidate.block.0 - extent.first.0;
        // Moved to another tier meanwhile: the copy there is an older one.
        let is_there = (extent.device, extent.start.plus(at)) == (copied.place.device, copied.place.start);
        if is_there && extent.unwritten {
            part.push(copied);
        } else if is_there && let Some(crc) = extent.crcs.get_mut(at as usize) {
            *crc = copied.crc;
            part.push(copied);
        }
    }
    if part.is_empty() {
        return Ok((taken, 0));
    }
    let extents = written_extents(store, extent, &part)?;
    let mut shards = lock_shards(store, first.ino, []);
    let mut staged = Staged::new(store, None, false);
    // The extent replaces itself, so the freed device blocks in `itself` are ignored: they still belong to
    // it. The catalog comes first, as in `install_first`.
    let mut itself = Vec::new();
    for extent in &extents {
        cold_map::install(&mut shards, &mut staged.tx, first.ino, extent, &mut itself)?;
    }
    let bytes = staged.tx.record_size() + part.len() * OF_UNMAP;
    let limit = store.persistent.wal().max_record();
    if bytes > limit && part.len() > 1 {
        return Err(Error::RecordTooLarge { bytes, limit }.into());
    }
    for run in part.chunk_by(|a, b| follows(a, b)) {
        stage_unmap(store, &inode, run.iter().map(|copied| &copied.candidate), &mut staged)?;
    }
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
fn written_extents(store: &Store, extent: ColdExtent, part: &[&Copied<'_>]) -> FsResult<Vec<ColdExtent>> {
    if !extent.unwritten {
        return Ok(vec![extent]);
    }
    let mut written: Vec<ColdExtent> = Vec::new();
    for run in part.chunk_by(|a, b| follows(a, b)) {
        let (first, crcs) = (&run[0], run.iter().map(|copied| copied.crc).collect());
        let (block, DeviceRun { device, start, .. }) = (first.candidate.block, first.place);
        let mut new =
            ColdExtent { first: block, length: run.len() as u32, device, start, unwritten: false, crcs };
        let around = BlockRange::new(FileBlock(block.0.saturating_sub(1)), new.end().plus(1));
        for beside in cold_extents(store, first.candidate.ino, around)?.into_iter().filter(|e| !e.unwritten) {
            new = joined(&beside, &new).or_else(|| joined(&new, &beside)).unwrap_or(new);
        }
        match written.last().and_then(|last| joined(last, &new)) {
            Some(both) => *written.last_mut().unwrap_or(&mut new) = both,
            None if written.last().is_some_and(|last| last.end() > new.first) => {
                // The beginning of this extent is joined with the last one already: only the rest is added.
                let end = written.last().map_or(block, ColdExtent::end);
                written.extend(new.slice(end, new.end()));
            }
            None => written.push(new),
        }
    }
    Ok(written)
}

/// Two written extents as one, where the second goes on with the first in the file and on its device.
fn joined(a: &ColdExtent, b: &ColdExtent) -> Option<ColdExtent> {
    let adjoins = a.end() == b.first && a.device == b.device && a.start.plus(u64::from(a.length)) == b.start;
    let fits = a.length + b.length <= MAX_EXTENT_BLOCKS;
    (adjoins && fits && !a.unwritten && !b.unwritten).then(|| ColdExtent {
        length: a.length + b.length,
        crcs: a.crcs.iter().chain(&b.crcs).copied().collect(),
        ..a.clone()
    })
}
