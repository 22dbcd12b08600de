//! Write-back in place (M5): a few scattered blocks of a large cold extent are written over their cold copies, so that the
//! extent stays whole for those who read it in its order. All else goes to free space, dense overwrites as groups of
//! their own. docs/decisions/0016 has the reasons.
//!
//! What may be overwritten: the cold copy of a block that PM has the whole of. Nobody needs such a copy (S2), so it may be
//! torn while PM keeps the block: its checksum is changed in the transaction that drops the PM entry, after the flush.
//! Invariants:
//! - What hides a copy is persisted before the first store over it: it outlives whatever a crash leaves of the copy.
//! - The device blocks are pinned alone, from a look under the inode lock to the end: they are not used again meanwhile,
//!   no reader that found them needed is under way, and no other write of them is. Whoever reads them later, beside others,
//!   does not judge them (`Fs::is_stale`).
//! - A block that changed meanwhile stays in PM, whole; its cold copy matches no checksum until it is written back again.
//!
//! Few at once, and not while PM is short: where much is scattered a group is faster than as many small writes.

use super::Destination;
use super::commit::{OF_UNMAP, demoting, follows};
use super::copy::{Candidate, Copied, Part};
use super::plan::Victim;
use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::op::Attempt;
use crate::types::{BlockRange, Wait};
use crate::write::Staged;
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap};
use terrace_catalog::{DeviceRun, Pin, cold_map};
use terrace_format::inode::flag;
use terrace_format::keys::{ColdExtent, MAX_EXTENT_BLOCKS};
use terrace_format::{BLOCK_SIZE, DeviceId, FileBlock, Ino};
use terrace_runtime::interleave;
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::atomic::Ordering;
use terrace_wal::{Error, Reservation};

/// Most device writes for one group.
const MOST: usize = 32;

/// Where candidates may be written.
#[derive(Default)]
struct Places {
    of: HashMap<(Ino, FileBlock), DeviceRun>,
    _pins: Vec<Pin>,
}

impl Fs {
    /// Writes back in place what may be and is worth it. Gives how many PM blocks that freed, and the other candidates.
    pub(super) fn write_in_place<'a>(
        &'a self,
        candidates: Vec<Candidate<'a>>,
        to: Destination,
        trouble: &mut Option<FsError>,
    ) -> (u64, Vec<Candidate<'a>>) {
        if self.devices.list.is_empty() || self.is_short_of_pm() {
            return (0, candidates);
        }
        // Without waiting: its group counts as in flight, for which others that make room may wait.
        let places = self.with_pages(Wait::Never, || self.places_below(&candidates, to));
        // After an error: the general way meets the same, if it lasts.
        let Some(places) = places.ok().filter(|places| !places.of.is_empty()) else { return (0, candidates) };
        self.write_to_places(candidates, &places, trouble)
    }

    /// Writes whole blocks of PM to their places below, however many and wherever they are, for the sake of what PM gets
    /// free: on a full pool. Gives how many PM blocks that freed.
    pub(super) fn write_all_in_place(
        &self,
        candidates: Vec<Candidate<'_>>,
        trouble: &mut Option<FsError>,
    ) -> u64 {
        match self.reading(Wait::Allowed, || self.all_places_below(&candidates)) {
            Ok(places) if places.of.is_empty() => 0,
            Ok(places) => self.write_to_places(candidates, &places, trouble).0,
            Err(error) => {
                trouble.get_or_insert(error);
                0
            }
        }
    }

    /// Writes candidates to their places; gives how many PM blocks that freed, and the candidates that have none.
    fn write_to_places<'a>(
        &'a self,
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
                    if let Err(error) = self.copy_content(&candidate, &mut scratch) {
                        self.refuse(candidate.pm);
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
        // What hides the copies that are about to be torn outlives them.
        self.pm.persist();
        let mut freed = 0;
        for (device, (list, runs)) in of_device {
            match self.write_over(device, list, &runs) {
                Ok(copied) => {
                    if let Some(lost) = copied.iter().find_map(|copied| copied.candidate.lost.as_ref()) {
                        trouble.get_or_insert_with(|| lost.clone());
                    }
                    freed += self.install_in_place(&copied, trouble);
                }
                Err(victims) => rest.extend(self.look_again(&victims, trouble)),
            }
        }
        (freed, rest)
    }

    /// Whether somebody waits for PM, or soon will.
    fn is_short_of_pm(&self) -> bool {
        let is_drained = self.pressure.is_draining();
        self.pressure.is_pressed() || !is_drained && self.blocks.free_hint() < self.pressure.throttle_below()
    }

    /// The places of those candidates that are a few scattered blocks of a large extent, on a device where `to` wants them;
    /// pinned alone.
    fn places_below(&self, candidates: &[Candidate<'_>], to: Destination) -> FsResult<Places> {
        let mut places = Places::default();
        let mut left = MOST;
        for of_inode in candidates.chunk_by(|a, b| a.ino == b.ino) {
            let runs: Vec<&[Candidate<'_>]> = of_inode.chunk_by(Candidate::is_like_next).collect();
            // A file of which so much is scattered is faster written as a group.
            if runs.len() > left {
                continue;
            }
            let first = &of_inode[0];
            let _guard = self.locks.read(first.ino);
            let inode = match self.load(first.ino) {
                Ok(inode) if inode.slot.generation.get() == first.generation => inode,
                Ok(_) | Err(FsError::Stale) => continue,
                Err(error) => return Err(error),
            };
            if !inode.slot.has(flag::HAS_COLD) {
                continue;
            }
            let mut found: Vec<(&[Candidate<'_>], ColdExtent)> = Vec::new();
            for run in runs {
                found.extend(self.extent_to_keep(run, to)?.map(|extent| (run, extent)));
            }
            for of_extent in found.chunk_by(|a, b| a.1.first == b.1.first) {
                let blocks: usize = of_extent.iter().map(|(run, _)| run.len()).sum();
                if blocks as u64 * u64::from(self.in_place.one_of) > u64::from(of_extent[0].1.length) {
                    continue;
                }
                for (run, extent) in of_extent {
                    let start = extent.start.plus(run[0].block.0 - extent.first.0);
                    let whole = DeviceRun { device: extent.device, start, length: run.len() as u64 };
                    let Some(pin) = self.devices.space.pin_alone(whole) else { continue };
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

    /// The places of all candidates that are whole in PM and have one below, written or not; pinned alone.
    fn all_places_below(&self, candidates: &[Candidate<'_>]) -> FsResult<Places> {
        let mut places = Places::default();
        for of_inode in candidates.chunk_by(|a, b| a.ino == b.ino) {
            let first = &of_inode[0];
            let _guard = self.locks.read(first.ino);
            let inode = match self.load(first.ino) {
                Ok(inode) if inode.slot.generation.get() == first.generation => inode,
                Ok(_) | Err(FsError::Stale) => continue,
                Err(error) => return Err(error),
            };
            if !inode.slot.has(flag::HAS_COLD) {
                continue;
            }
            let is_same = |c: &&Candidate<'_>| self.blocks.descriptor(c.pm).version() == c.version;
            for candidate in of_inode.iter().filter(|c| c.may_overwrite()).filter(is_same) {
                let range = BlockRange::new(candidate.block, candidate.block.plus(1));
                let extents = self.cold_extents(first.ino, range)?;
                let Some(slice) = extents.first().and_then(|extent| extent.slice(range.first, range.end))
                else {
                    continue;
                };
                let place = DeviceRun::from(&slice);
                let Some(pin) = self.devices.space.pin_alone(place) else { continue };
                places._pins.push(pin);
                places.of.insert((candidate.ino, candidate.block), place);
            }
        }
        Ok(places)
    }

    /// The extent that has all blocks of a run, when it is worth keeping and they may be written over it. The caller holds
    /// the inode lock.
    fn extent_to_keep(&self, run: &[Candidate<'_>], to: Destination) -> FsResult<Option<ColdExtent>> {
        let is_same = |c: &Candidate<'_>| self.blocks.descriptor(c.pm).version() == c.version;
        if !run.iter().all(|candidate| candidate.may_overwrite() && is_same(candidate)) {
            return Ok(None);
        }
        let range = BlockRange::new(run[0].block, run[0].block.plus(run.len() as u64));
        let extent = self.cold_extents(run[0].ino, range)?.into_iter().next();
        Ok(extent.filter(|extent| {
            extent.first <= range.first
                && range.end <= extent.end()
                && !extent.unwritten
                && extent.length >= self.in_place.extent_blocks
                && self.may_stay_on(extent.device, run[0].kept_on, to)
        }))
    }

    /// Whether blocks may stay on a device: it is sound, and of a tier where they are wanted.
    fn may_stay_on(&self, device: DeviceId, kept_on: Option<u8>, to: Destination) -> bool {
        let Some(found) = self.devices.list.get(usize::from(device.0)) else { return false };
        let now_ns = self.clock.monotonic_ns();
        let is_wanted = match (to, kept_on) {
            (Destination::Any, Some(tier)) if tier > 0 => found.tier.0 == tier,
            (Destination::Rather(tier), _) => found.tier == tier,
            _ => to.accepts(found.tier),
        };
        // What leaves PM during `sync --to` goes where that wants it.
        is_wanted
            && found.tier.0 >= self.pressure.drain_to().0
            && !found.is_avoided(now_ns)
            && !self.io.is_silent(device, now_ns)
    }

    /// Writes candidates over their cold copies, which lie in these runs, and flushes the device (M1). When that fails the
    /// candidates are victims again: they are not pinned any more.
    fn write_over<'a>(
        &'a self,
        device: DeviceId,
        mut candidates: Vec<Candidate<'a>>,
        runs: &[DeviceRun],
    ) -> Result<Vec<Copied<'a>>, Vec<Victim>> {
        let parts: Vec<Part> = runs.iter().map(|run| Part::over(*run)).collect();
        match self.write_blocks(&mut candidates, &parts) {
            Ok(crcs) => {
                self.pressure.moved().in_place.fetch_add(crcs.len() as u64, Ordering::Relaxed);
                let places = parts.iter().flat_map(|part| part.places());
                let copied = candidates.into_iter().zip(crcs).zip(places);
                Ok(copied.map(|((candidate, crc), place)| Copied { candidate, place, crc }).collect())
            }
            Err(error) => {
                tracing::debug!("not written in place: {error}");
                self.avoid_failed(device, &error);
                Err(candidates.iter().map(|c| Victim { ino: c.ino, block: c.block, pm: c.pm }).collect())
            }
        }
    }

    /// Candidates of those victims that are still whole blocks to be written: for free space.
    fn look_again<'a>(&'a self, victims: &[Victim], trouble: &mut Option<FsError>) -> Vec<Candidate<'a>> {
        let mut found = self.look_at(victims, trouble);
        found.retain(|candidate| !candidate.clean && candidate.is_whole());
        found
    }

    /// Drops the PM entries of what was written and is unchanged, with the new checksums; gives how many.
    fn install_in_place(&self, copied: &[Copied<'_>], trouble: &mut Option<FsError>) -> u64 {
        let (mut freed, mut rest) = (0, copied);
        while let Some(first) = rest.first() {
            interleave::point("in-place:between-pieces");
            let done = self.run(&mut demoting(), self.large_record(), |reservation, op| {
                let most = rest.len().min((self.install_limit() >> op.halved).max(1));
                self.install_checksums(reservation, &rest[..most])
            });
            let taken = match done {
                Ok((taken, installed)) => {
                    freed += installed as u64;
                    self.pressure.moved().left.fetch_add(installed as u64, Ordering::Relaxed);
                    let skipped = (taken - installed) as u64;
                    self.pressure.moved().skipped.fetch_add(skipped, Ordering::Relaxed);
                    taken
                }
                Err(error) => {
                    trouble.get_or_insert(error);
                    let ino = first.candidate.ino;
                    let of_inode = rest.iter().take_while(|copied| copied.candidate.ino == ino);
                    of_inode.inspect(|copied| self.refuse(copied.candidate.pm)).count()
                }
            };
            rest = &rest[taken..];
        }
        freed
    }

    /// Takes those at the beginning that one extent has: puts the checksums of the unchanged ones into it and drops their
    /// PM entries. Gives how many it took and how many of them it installed.
    fn install_checksums(
        &self,
        reservation: Reservation<'_>,
        piece: &[Copied<'_>],
    ) -> Attempt<(usize, usize)> {
        let first = &piece[0].candidate;
        let _guard = self.locks.write(first.ino);
        let Some(inode) = self.load_same(first)? else { return Ok((1, 0)) };
        let found = self.cold_extents(first.ino, BlockRange::new(first.block, first.block.plus(1)))?;
        let Some(mut extent) = found.into_iter().next() else { return Ok((1, 0)) };
        let is_in =
            |c: &Candidate<'_>| c.ino == first.ino && extent.first <= c.block && c.block < extent.end();
        let taken = piece.iter().take_while(|copied| is_in(&copied.candidate)).count();
        let piece = &piece[..taken];
        let unchanged = self.unchanged(&inode, piece.iter().map(|copied| &copied.candidate))?;
        let mut part: SmallVec<[&Copied<'_>; 32]> = SmallVec::new();
        for (copied, _) in piece.iter().zip(unchanged).filter(|(_, same)| *same) {
            let at = copied.candidate.block.0 - extent.first.0;
            // Moved to another tier meanwhile: the copy there is an older one.
            let is_there =
                (extent.device, extent.start.plus(at)) == (copied.place.device, copied.place.start);
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
        let extents = self.written_extents(extent, &part)?;
        let mut shards = self.lock_shards(first.ino, []);
        let mut staged = Staged::new(self, None, false);
        // Its place stays its own: what it takes the place of is itself. The catalog first, as in `install_first`.
        let mut itself = Vec::new();
        for extent in &extents {
            cold_map::install(&mut shards, &mut staged.tx, first.ino, extent, &mut itself)?;
        }
        let bytes = staged.tx.record_size() + part.len() * OF_UNMAP;
        let limit = self.wal.max_record();
        if bytes > limit && part.len() > 1 {
            return Err(Error::RecordTooLarge { bytes, limit }.into());
        }
        for run in part.chunk_by(|a, b| follows(a, b)) {
            self.stage_unmap(&inode, run.iter().map(|copied| &copied.candidate), &mut staged)?;
        }
        staged.unlink_emptied(&mut shards)?;
        let held = self.held_in_dram(&inode, part.iter().copied());
        for Copied { candidate, .. } in &part {
            self.cold_versions.bump(first.ino, BlockRange::new(candidate.block, candidate.block.plus(1)));
        }
        let copies = self.copies_for_dram(&inode, part.iter().copied(), &held);
        staged.commit(reservation)?;
        self.keep_copies(&inode, copies);
        Ok((taken, part.len()))
    }
}

impl Fs {
    /// The extents that take the place of one that blocks were written over: itself; and of one that was laid out and never
    /// written, those blocks, each run together with what is written beside it, so that a file that is filled in any order
    /// ends with few extents. The caller holds the inode lock and no shard.
    fn written_extents(&self, extent: ColdExtent, part: &[&Copied<'_>]) -> FsResult<Vec<ColdExtent>> {
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
            for beside in self.cold_extents(first.candidate.ino, around)?.into_iter().filter(|e| !e.unwritten)
            {
                new = joined(&beside, &new).or_else(|| joined(&new, &beside)).unwrap_or(new);
            }
            match written.last().and_then(|last| joined(last, &new)) {
                Some(both) => *written.last_mut().unwrap_or(&mut new) = both,
                None if written.last().is_some_and(|last| last.end() > new.first) => {
                    // What lies between them was joined with the one before: without it, then.
                    let end = written.last().map_or(block, ColdExtent::end);
                    written.extend(new.slice(end, new.end()));
                }
                None => written.push(new),
            }
        }
        Ok(written)
    }
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

impl Candidate<'_> {
    /// Whether PM has all of it.
    fn is_whole(&self) -> bool {
        self.lines.is_full() && !self.unwritten
    }

    /// Whether it may be written over its cold copy: a partial shadow needs the lines that only the copy has, until they
    /// are durable elsewhere.
    fn may_overwrite(&self) -> bool {
        self.is_whole() || planted(Mistake::PartialInPlace) && !self.unwritten
    }

    /// Whether the next one follows it in the file and may go where it may.
    fn is_like_next(&self, next: &Candidate<'_>) -> bool {
        next.block == self.block.plus(1) && next.may_overwrite() == self.may_overwrite()
    }
}
