//! Write-back in place (M5): a few scattered blocks of a large cold extent are written over their cold copies, so that the
//! extent stays whole for those who read it in its order. All else goes to free space, dense overwrites as groups of
//! their own.
//!
//! What may be overwritten: the cold copy of a block that PM has the whole of. Nobody reads such a copy (S2), so it may be
//! torn by a crash while PM keeps the block: the extent's checksum of it is changed in the transaction that drops the PM
//! entry, after the flush. Invariants:
//! - The PM entry is persisted before the first store below: what hides a torn copy survives with it.
//! - The device blocks are pinned alone from the look under the inode lock until the end: they cannot be freed and used
//!   again, no reader that found them not hidden is under way, and no other write in place of the same block is. A reader
//!   that comes later finds the block in PM; what it reads of the copy beside others is not judged (`Fs::is_stale`).
//! - A block that changed meanwhile stays in PM, whole; its cold copy matches no checksum until the next write-back.
//!
//! Few at once: where much is scattered a group is faster than as many small writes, and what it leaves behind is
//! regrouped with it. A device that fails here is not tried again for these blocks: they go to free space.

use super::Destination;
use super::commit::demoting;
use super::copy::Candidate;
use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::op::Attempt;
use crate::types::{BlockRange, Wait};
use crate::write::Staged;
use std::collections::HashMap;
use terrace_catalog::{DeviceRun, Pin, cold_map};
use terrace_format::checksum::crc32c;
use terrace_format::inode::flag;
use terrace_format::keys::ColdExtent;
use terrace_format::{DeviceId, FileBlock, Ino};
use terrace_media::block::Buffer;
use terrace_runtime::sync::atomic::Ordering;
use terrace_runtime::{interleave, pause};

/// Most device writes for one group.
const MOST: usize = 32;

/// A candidate whose cold copy is overwritten.
struct Held<'a> {
    candidate: Candidate<'a>,
    place: DeviceRun,
    /// First block of the extent.
    extent: FileBlock,
    crc: u32,
}

/// Where candidates may be written, by file and block: the place, and the extent's first block.
type Places = HashMap<(Ino, FileBlock), (DeviceRun, FileBlock)>;

impl Fs {
    /// Writes back in place what may be and is worth it. Gives how many PM blocks that freed, and the others.
    pub(super) fn write_in_place<'a>(
        &'a self,
        candidates: Vec<Candidate<'a>>,
        to: Destination,
        trouble: &mut Option<FsError>,
    ) -> (u64, Vec<Candidate<'a>>) {
        let (places, pins) = match self.with_pages(Wait::Allowed, || self.places_below(&candidates, to)) {
            Ok(found) => found,
            // The general way meets the same, if it lasts.
            Err(_) => return (0, candidates),
        };
        if places.is_empty() {
            return (0, candidates);
        }
        let (mut held, mut rest) = (Vec::new(), Vec::new());
        for candidate in candidates {
            match places.get(&(candidate.ino, candidate.block)) {
                Some((place, extent)) => {
                    held.push(Held { candidate, place: *place, extent: *extent, crc: 0 });
                }
                None => rest.push(candidate),
            }
        }
        // What hides the copies that are about to be torn has to outlive them (design 3).
        self.pm.persist();
        let mut freed = 0;
        let devices: Vec<DeviceId> = held.iter().map(|held| held.place.device).collect();
        for device in devices.iter().enumerate().filter(|(at, device)| !devices[..*at].contains(device)) {
            let (mut here, others): (Vec<_>, Vec<_>) =
                held.into_iter().partition(|held| held.place.device == *device.1);
            held = others;
            match self.overwrite_below(*device.1, &mut here) {
                Ok(()) => freed += self.install_in_place(here, trouble),
                Err(error) => {
                    self.note_device_failure(*device.1, &error);
                    rest.extend(here.into_iter().map(|held| held.candidate));
                }
            }
        }
        drop(pins);
        rest.sort_by_key(|candidate| (candidate.ino, candidate.block));
        (freed, rest)
    }

    /// Which candidates are a few scattered blocks of a large extent, on a device where `to` wants them: their places,
    /// pinned alone.
    fn places_below(&self, candidates: &[Candidate<'_>], to: Destination) -> FsResult<(Places, Vec<Pin>)> {
        let (mut places, mut pins) = (Places::new(), Vec::new());
        let mut left = MOST;
        for of_inode in candidates.chunk_by(|a, b| a.ino == b.ino) {
            let runs: Vec<&[Candidate<'_>]> = of_inode
                .chunk_by(|a, b| b.block == a.block.plus(1) && b.may_overwrite() == a.may_overwrite())
                .collect();
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
                let range = BlockRange::new(run[0].block, run[run.len() - 1].block.plus(1));
                if run.iter().all(|candidate| candidate.may_overwrite() && self.is_same(candidate))
                    && let [extent] = self.cold_extents(first.ino, range)?.as_slice()
                    && extent.first <= range.first
                    && range.end <= extent.end()
                    && !extent.unwritten
                    && extent.length >= self.in_place.extent_blocks
                    && self.is_place(extent.device, run[0].kept_on, to)
                {
                    found.push((run, extent.clone()));
                }
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
                    pins.push(pin);
                    left -= 1;
                    for (index, candidate) in run.iter().enumerate() {
                        let place = DeviceRun { start: start.plus(index as u64), length: 1, ..whole };
                        places.insert((candidate.ino, candidate.block), (place, extent.first));
                    }
                }
            }
        }
        Ok((places, pins))
    }

    /// Whether a candidate is what it was when it was looked at. The caller holds the inode lock.
    fn is_same(&self, candidate: &Candidate<'_>) -> bool {
        self.blocks.descriptor(candidate.pm).version() == candidate.version
    }

    /// Whether blocks may stay on a device: it is sound, and of a tier where they are wanted.
    fn is_place(&self, device: DeviceId, kept_on: Option<u8>, to: Destination) -> bool {
        let Some(found) = self.devices.list.get(usize::from(device.0)) else { return false };
        let wanted = match (to, kept_on) {
            (Destination::Any, Some(tier)) if tier > 0 => found.tier.0 == tier,
            (Destination::Rather(tier), _) => found.tier == tier,
            _ => to.accepts(found.tier),
        };
        // What leaves PM during `sync --to` goes where that wants it.
        wanted
            && found.tier.0 >= self.migration.drain_to.load(Ordering::Relaxed)
            && !found.is_avoided(self.clock.monotonic_ns())
    }

    /// Writes blocks of one device over their cold copies and flushes it. What PM cannot give is left out.
    fn overwrite_below(&self, device: DeviceId, held: &mut Vec<Held<'_>>) -> FsResult<()> {
        let mut buffer = self.migration.take_buffer();
        let written = self.overwrite_through(device, held, &mut buffer);
        self.migration.put_buffer(buffer);
        written
    }

    fn overwrite_through(
        &self,
        device: DeviceId,
        held: &mut Vec<Held<'_>>,
        buffer: &mut Buffer,
    ) -> FsResult<()> {
        let found = self.devices.device(device)?;
        // Asked before the first write that the flush is to cover (M1).
        let failed_before = found.failed_flushes();
        let mut count = 0;
        held.retain_mut(|held| {
            let Some(target) = buffer.get_mut(count) else { return false };
            let read = self.copy_content(&held.candidate, &mut target.0);
            if let Err(error) = read {
                tracing::debug!("not written in place: {error}");
                self.refuse(held.candidate.pm);
                return false;
            }
            held.crc = crc32c(&target.0);
            count += 1;
            true
        });
        let mut at = 0;
        let neighbours = |a: &Held<'_>, b: &Held<'_>| b.place.start == a.place.start.plus(1);
        for run in held.chunk_by(neighbours) {
            let part = buffer.get(at..at + run.len()).unwrap_or(&[]);
            found.medium.write(run[0].place.start, part)?;
            at += run.len();
        }
        pause::at_unlocked("in-place:copied");
        self.flush_run(found, failed_before)?;
        pause::at_unlocked("in-place:flushed");
        let blocks = held.len() as u64;
        self.migration.note_demotion(blocks, self.clock.monotonic_ns());
        self.migration.note_device_writes(blocks);
        self.migration.in_place_blocks.fetch_add(blocks, Ordering::Relaxed);
        Ok(())
    }

    /// Drops the PM entries of what was written and is unchanged, with the new checksums; gives how many.
    fn install_in_place(&self, held: Vec<Held<'_>>, trouble: &mut Option<FsError>) -> u64 {
        let mut freed = 0;
        for of_extent in held.chunk_by(|a, b| a.candidate.ino == b.candidate.ino && a.extent == b.extent) {
            interleave::point("in-place:between-pieces");
            let done = self.run(&mut demoting(), self.large_record(), |reservation, _| {
                self.install_checksums(reservation, of_extent)
            });
            match done {
                Ok(count) => {
                    freed += count;
                    self.migration.note_left(count);
                    let skipped = of_extent.len() as u64 - count;
                    self.migration.skipped_blocks.fetch_add(skipped, Ordering::Relaxed);
                }
                Err(error) => {
                    of_extent.iter().for_each(|held| self.refuse(held.candidate.pm));
                    trouble.get_or_insert(error);
                }
            }
        }
        freed
    }

    fn install_checksums(
        &self,
        reservation: terrace_wal::Reservation<'_>,
        held: &[Held<'_>],
    ) -> Attempt<u64> {
        let (first, last) = (&held[0].candidate, &held[held.len() - 1].candidate);
        let _guard = self.locks.write(first.ino);
        let Some(inode) = self.load_same(first)? else { return Ok(0) };
        let range = BlockRange::new(first.block, last.block.plus(1));
        let old = self.cold_extents(first.ino, range)?;
        let [extent] = old.as_slice() else { return Ok(0) };
        let mut extent = extent.clone();
        let same = self.unchanged(&inode, held.iter().map(|held| &held.candidate))?;
        let mut stays = Vec::new();
        for held in held.iter().zip(&same).filter_map(|(held, same)| same.then_some(held)) {
            let block = held.candidate.block;
            let slice = extent.slice(block, block.plus(1)).filter(|slice| !slice.unwritten);
            if slice.is_some_and(|slice| DeviceRun::from(&slice) == held.place)
                && let Some(crc) = extent.crcs.get_mut((block.0 - extent.first.0) as usize)
            {
                *crc = held.crc;
                stays.push(held);
            }
        }
        if stays.is_empty() {
            return Ok(0);
        }
        let mut shards = self.lock_shards(first.ino, []);
        let mut staged = Staged::new(self, None, false);
        self.cold_versions.bump(first.ino, range);
        // Its place stays its own: what it takes the place of is itself.
        let mut itself = Vec::new();
        cold_map::install(&mut shards, &mut staged.tx, first.ino, &extent, &mut itself)?;
        for run in stays.chunk_by(|a, b| b.candidate.block == a.candidate.block.plus(1)) {
            self.stage_unmap(&inode, run.iter().map(|held| &held.candidate), &mut staged)?;
        }
        staged.unlink_emptied(&mut shards)?;
        staged.commit(reservation)?;
        Ok(stays.len() as u64)
    }
}

impl Candidate<'_> {
    /// Whether it may be written over its cold copy: PM has all of it, and its content can be read.
    fn may_overwrite(&self) -> bool {
        self.lines.is_full() && self.below.is_none() && !self.unwritten && self.lost.is_none()
    }
}
