//! Installing what was copied: cold extents go in and the PM entries whose version is unchanged go out in one
//! transaction per piece (design S3, M2): what follows one another in a file and on the device is one extent, and several
//! extents of a file are one piece. Blocks that changed meanwhile are skipped and the extent is cut around them.

use super::copy::{Candidate, Copied};
use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::op::{Attempt, Op};
use crate::slot::{Inode, log_slot};
use crate::types::{BlockRange, Wait};
use crate::write::Staged;
use smallvec::SmallVec;
use terrace_blocks::Purpose;
use terrace_catalog::DeviceRun;
use terrace_catalog::chunks;
use terrace_catalog::cold_map;
use terrace_format::inode::flag;
use terrace_format::keys::{ColdExtent, MAX_EXTENT_BLOCKS};
use terrace_format::{DeviceId, FileBlock, PmBlock};
use terrace_map::Mapping;
use terrace_runtime::interleave;
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::atomic::Ordering;
use terrace_wal::Error;

/// What an extent costs in a record beside its blocks, in blocks of [`Fs::install_limit`].
const OF_EXTENT: usize = 8;

/// Bytes of a record that a block's PM entry and its owner take at most, with nodes that become empty; and the slot.
pub(super) const OF_UNMAP: usize = 64;
const OF_SLOT: usize = 256;

pub(crate) fn demoting() -> Op {
    Op { purpose: Purpose::Demotion, ..Op::new(Wait::Allowed) }
}

impl Fs {
    /// Blocks installed in one transaction: on the smallest lanes 32, at 48 bytes a block.
    pub(crate) fn install_limit(&self) -> usize {
        (self.wal.max_record() / 128).clamp(8, MAX_EXTENT_BLOCKS as usize)
    }

    /// Installs copied blocks; returns how many PM blocks were freed. Damage of one file goes to `trouble`.
    pub(super) fn install(&self, copied: Vec<Copied<'_>>, trouble: &mut Option<FsError>) -> FsResult<u64> {
        let mut freed = 0;
        let mut failed = None;
        let mut rest = copied.as_slice();
        while !rest.is_empty() {
            let (piece, tail) = rest.split_at(piece_of(rest, self.install_limit()));
            rest = tail;
            if failed.is_some() {
                self.release_places(piece);
                continue;
            }
            match self.install_piece(piece) {
                Ok(count) => freed += count,
                Err(error) if self.concerns_all_files(&error) => failed = Some(error),
                Err(error) => {
                    piece.iter().for_each(|copied| self.refuse(copied.candidate.pm));
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

    /// Whether what follows would fail as well.
    pub(super) fn concerns_all_files(&self, error: &FsError) -> bool {
        self.wal.is_stopped() || matches!(error, FsError::Engine(Error::NoSpace(_)))
    }

    fn release_places(&self, piece: &[Copied<'_>]) {
        // A record that failed on the way may be valid: what it names must not be handed out again.
        if self.wal.is_stopped() {
            return;
        }
        piece.iter().for_each(|copied| self.devices.space.release_claim(copied.place));
    }

    /// Installs the unchanged part of a piece, in as many transactions as it has gaps.
    fn install_piece(&self, piece: &[Copied<'_>]) -> FsResult<u64> {
        let (mut freed, mut halved) = (0, 0);
        let mut rest = piece;
        while !rest.is_empty() {
            interleave::point("demotion:between-pieces");
            self.offer_processor();
            let mut op = Op { halved, ..demoting() };
            let mut tried = 0;
            let done = self.run(&mut op, self.large_record(), |reservation, op| {
                tried = piece_of(rest, (self.install_limit() >> op.halved).max(1));
                self.install_first(reservation, &rest[..tried])
            });
            halved = op.halved;
            match done {
                // Fewer need less room in catalog pages, and what they free serves the others. Refused: more entries that
                // follow one another than a page takes.
                Err(FsError::Engine(Error::NoSpace(_) | Error::Refused(_))) if tried > 1 => halved += 1,
                Ok((skipped, installed)) => {
                    let (gone, tail) = rest.split_at(skipped);
                    self.release_places(gone);
                    self.pressure.moved().skipped.fetch_add(skipped as u64, Ordering::Relaxed);
                    freed += installed as u64;
                    self.pressure.moved().left.fetch_add(installed as u64, Ordering::Relaxed);
                    rest = &tail[installed..];
                }
                Err(error) => {
                    self.release_places(rest);
                    return Err(error);
                }
            }
        }
        Ok(freed)
    }

    /// Skips changed blocks and installs the unchanged ones that follow: (skipped, installed).
    fn install_first(
        &self,
        reservation: terrace_wal::Reservation<'_>,
        piece: &[Copied<'_>],
    ) -> Attempt<(usize, usize)> {
        let first = &piece[0].candidate;
        let _guard = self.locks.write(first.ino);
        let Some(inode) = self.load_same(first)? else { return Ok((piece.len(), 0)) };
        let unchanged = self.unchanged(&inode, piece.iter().map(|copied| &copied.candidate))?;
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
                places.extend(self.cold_extents(inode.ino, range)?.iter().map(DeviceRun::from));
            }
            places.push(place_of(run));
        }
        let mut shards = self.lock_shards(inode.ino, places);
        let mut staged = Staged::new(self, None, false);
        // The catalog first, all of it: when it lacks room the attempt ends, and a block that was released in it would
        // look as if it had changed.
        for run in part.chunk_by(follows) {
            let mut freed = Vec::new();
            cold_map::install(&mut shards, &mut staged.tx, inode.ino, &extent_of(run), &mut freed)?;
            for (device, start, length) in freed {
                let old = DeviceRun { device, start, length };
                self.stage_device_free(old, &mut shards, &mut staged)?;
            }
        }
        for side_by_side in part.chunk_by(|a, b| adjoins(a.place, b.place)) {
            chunks::mark(&mut shards, &mut staged.tx, place_of(side_by_side), true)?;
        }
        let (bytes, limit) =
            (staged.tx.record_size() + part.len() * OF_UNMAP + OF_SLOT, self.wal.max_record());
        if bytes > limit && count > 1 {
            return Err(Error::RecordTooLarge { bytes, limit }.into());
        }
        for run in part.chunk_by(follows) {
            self.stage_unmap(&inode, run.iter().map(|copied| &copied.candidate), &mut staged)?;
        }
        staged.unlink_emptied(&mut shards)?;
        let mut slot = inode.slot;
        slot.flags = (slot.flags.get() | flag::HAS_COLD).into();
        log_slot(&mut staged.tx, inode.place, &inode.slot, &slot);
        // Last: an attempt that fails makes no copy in DRAM stale.
        let held = self.held_in_dram(&inode, part.iter());
        part.chunk_by(follows).for_each(|run| self.cold_versions.bump(inode.ino, range_of(run)));
        let copies = self.copies_for_dram(&inode, part.iter(), &held);
        staged.commit(reservation)?;
        self.keep_copies(&inode, copies);
        Ok((skipped, count))
    }

    /// Which candidates still are where and what they were when they were pinned.
    pub(super) fn unchanged<'b, 'c: 'b>(
        &self,
        inode: &Inode,
        candidates: impl Iterator<Item = &'b Candidate<'c>>,
    ) -> Attempt<SmallVec<[bool; 32]>> {
        let intents = self.intents_of(inode)?;
        let mut same = SmallVec::new();
        for candidate in candidates {
            let mapping = self.mapped_to(inode, &intents, candidate.block, candidate.pm)?;
            let there = mapping.is_some_and(|mapping| mapping.unwritten == candidate.unwritten);
            let version = self.blocks.descriptor(candidate.pm).version();
            same.push(there && version == candidate.version && candidate.lost.is_none());
        }
        Ok(same)
    }

    /// Drops the PM entries of consecutive blocks.
    pub(super) fn stage_unmap<'b, 'c: 'b>(
        &self,
        inode: &Inode,
        candidates: impl Iterator<Item = &'b Candidate<'c>>,
        staged: &mut Staged<'_>,
    ) -> Attempt<()> {
        let mut first = None;
        let mut none: SmallVec<[Option<Mapping>; 32]> = SmallVec::new();
        for candidate in candidates {
            first.get_or_insert(candidate.block);
            none.push(None);
            staged.release(candidate.pm);
        }
        let Some(first) = first else { return Ok(()) };
        self.map.set(&mut staged.tx, &inode.map(), first, &none)?;
        let range = BlockRange::new(first, first.plus(none.len() as u64));
        self.stage_prune(inode, range, staged)?;
        Ok(())
    }

    /// Changes consecutive blocks of files in transactions as large as their records allow; gives the sum of
    /// what `change` gives for each.
    pub(super) fn by_pieces(
        &self,
        candidates: &[Candidate<'_>],
        change: impl Fn(terrace_wal::Reservation<'_>, &[Candidate<'_>]) -> Attempt<u64>,
    ) -> FsResult<u64> {
        let mut sum = 0;
        for run in candidates.chunk_by(|a, b| a.ino == b.ino && b.block == a.block.plus(1)) {
            let (mut op, mut rest) = (demoting(), run);
            while !rest.is_empty() {
                let (done, count) = self.run(&mut op, self.large_record(), |reservation, op| {
                    let most = rest.len().min((self.install_limit() >> op.halved).max(1));
                    Ok((most, change(reservation, &rest[..most])?))
                })?;
                sum += count;
                rest = &rest[done..];
            }
        }
        Ok(sum)
    }

    /// The inode of a piece while it is the one that was looked at. The caller holds its lock.
    pub(super) fn load_same(&self, candidate: &Candidate<'_>) -> Attempt<Option<Inode>> {
        match self.load(candidate.ino) {
            Ok(inode) if inode.slot.generation.get() == candidate.generation => Ok(Some(inode)),
            Ok(_) | Err(FsError::Stale) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives up PM copies whose cold copy is still good; no write (design S2). Rechecked under the lock.
    pub(super) fn evict_clean(
        &self,
        candidates: Vec<Candidate<'_>>,
        trouble: &mut Option<FsError>,
    ) -> FsResult<u64> {
        let mut evicted = 0;
        for of_inode in candidates.chunk_by(|a, b| a.ino == b.ino) {
            match self.by_pieces(of_inode, |reservation, piece| self.evict_piece(reservation, piece)) {
                Ok(count) => evicted += count,
                Err(error) if self.concerns_all_files(&error) => return Err(error),
                Err(error) => {
                    of_inode.iter().for_each(|candidate| self.refuse(candidate.pm));
                    trouble.get_or_insert(error);
                }
            }
        }
        self.pressure.moved().evicted_clean.fetch_add(evicted, Ordering::Relaxed);
        Ok(evicted)
    }

    /// Whether the cold copy of a block is as good as the one in PM. The caller holds the inode's lock.
    pub(super) fn is_clean(&self, inode: &Inode, block: FileBlock, pm: PmBlock) -> bool {
        if planted(Mistake::EvictOnlyCopy) && inode.slot.has(flag::HAS_COLD) {
            // There is a copy; nobody asks whether it is a good one.
            let below = self.cold_extents(inode.ino, BlockRange::new(block, block.plus(1)));
            return below.is_ok_and(|below| below.iter().any(|extent| !extent.unwritten));
        }
        self.blocks.descriptor(pm).is_clean()
    }

    /// Whether what lies on a device can be had, as far as is known without asking it: the copy in PM may be the last.
    fn is_readable(&self, device: DeviceId) -> bool {
        let found = self.devices.list.get(usize::from(device.0));
        found.is_some_and(|found| !found.medium.is_missing())
            && !self.io.has_failed(device)
            && !self.io.is_silent(device, self.clock.monotonic_ns())
    }

    fn evict_piece(
        &self,
        reservation: terrace_wal::Reservation<'_>,
        piece: &[Candidate<'_>],
    ) -> Attempt<u64> {
        let _guard = self.locks.write(piece[0].ino);
        let Some(inode) = self.load_same(&piece[0])? else { return Ok(0) };
        let same = self.unchanged(&inode, piece.iter())?;
        let clean = piece.iter().all(|c| self.is_clean(&inode, c.block, c.pm));
        let range = BlockRange::new(piece[0].block, piece[0].block.plus(piece.len() as u64));
        let cold = self.cold_extents(inode.ino, range)?;
        let written = cold.iter().filter(|extent| !extent.unwritten && self.is_readable(extent.device));
        let inside = written.filter_map(|extent| extent.slice(range.first, range.end));
        let covered: u64 = inside.map(|extent| u64::from(extent.length)).sum();
        if clean && covered < range.count() {
            // Not below after all, or where it may not be had from: they are written the next time, or nothing would ever
            // move.
            piece.iter().for_each(|c| self.blocks.descriptor(c.pm).set_clean(false));
            return Ok(0);
        }
        if !clean || same.iter().any(|same| !same) {
            return Ok(0);
        }
        let mut staged = Staged::new(self, None, false);
        self.stage_unmap(&inode, piece.iter(), &mut staged)?;
        staged.commit(reservation)?;
        self.pressure.moved().left.fetch_add(piece.len() as u64, Ordering::Relaxed);
        Ok(piece.len() as u64)
    }
}

/// How many of some blocks are installed in one transaction: of one inode, as many as its record takes, at least one.
fn piece_of(copied: &[Copied<'_>], limit: usize) -> usize {
    let Some(first) = copied.first() else { return 0 };
    let (mut count, mut weight) = (1, 1);
    for pair in copied.windows(2) {
        weight += if follows(&pair[0], &pair[1]) { 1 } else { 1 + OF_EXTENT };
        if pair[1].candidate.ino != first.candidate.ino || weight > limit {
            break;
        }
        count += 1;
    }
    count
}

/// The blocks of a file that follow one another.
fn range_of(run: &[Copied<'_>]) -> BlockRange {
    let first = run[0].candidate.block;
    BlockRange::new(first, first.plus(run.len() as u64))
}

/// Where they lie.
pub(super) fn place_of(run: &[Copied<'_>]) -> DeviceRun {
    DeviceRun { length: run.len() as u64, ..run[0].place }
}

/// Their extent.
pub(super) fn extent_of(run: &[Copied<'_>]) -> ColdExtent {
    let (first, place) = (&run[0].candidate, run[0].place);
    ColdExtent {
        first: first.block,
        length: run.len() as u32,
        device: place.device,
        start: place.start,
        unwritten: first.unwritten,
        crcs: if first.unwritten { Vec::new() } else { run.iter().map(|copied| copied.crc).collect() },
    }
}

/// True when `b` continues `a` in the file and on the device.
pub(super) fn follows(a: &Copied<'_>, b: &Copied<'_>) -> bool {
    a.candidate.ino == b.candidate.ino
        && b.candidate.block == a.candidate.block.plus(1)
        && adjoins(a.place, b.place)
}

/// True when block `b` lies behind block `a` on a device.
fn adjoins(a: DeviceRun, b: DeviceRun) -> bool {
    b.device == a.device && b.start == a.start.plus(1)
}
