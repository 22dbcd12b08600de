//! fallocate, SEEK_DATA and SEEK_HOLE.
//!
//! Allocated ranges take unwritten cold extents where a lower tier has room (a large preallocation should
//! not take PM), else unwritten PM blocks, which migration moves down later. Both read as zeros. A range larger than one record holds is
//! allocated in several transactions, the size last (docs/semantics.md).

use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::op::{Attempt, Need, Op};
use crate::slot::Inode;
use crate::turns::{Progress, TURN_ENTRIES, TURN_PIECES, all_turns};
use crate::types::{Allocate, BlockRange, Seek, Wait};
use crate::write::Staged;
use smallvec::SmallVec;
use terrace_catalog::{DeviceRun, chunks, cold_map};
use terrace_format::address::MAX_FILE_SIZE;
use terrace_format::inode::flag;
use terrace_format::keys::{ColdExtent, MAX_EXTENT_BLOCKS};
use terrace_format::table::Owner;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_map::Mapping;
use terrace_runtime::interleave;
use terrace_runtime::planted::{Mistake, planted};
use terrace_wal::{Error, NoSpace};

/// PM blocks allocated in one transaction.
const PM_STEP: u64 = 16;

impl Fs {
    /// Allocates or deallocates a range.
    ///
    /// # Errors
    /// EINVAL for an empty range, EFBIG, ENOSPC, EISDIR, ENODEV never; EIO.
    pub fn fallocate(&self, ino: Ino, offset: u64, length: u64, mode: Allocate, wait: Wait) -> FsResult<()> {
        all_turns(|progress| self.fallocate_turn(ino, (offset, length), mode, progress, wait))
    }

    /// A turn of [`Self::fallocate`] of a range: offset and length.
    ///
    /// # Errors
    /// As [`Self::fallocate`]; `Unfinished`.
    pub fn fallocate_turn(
        &self,
        ino: Ino,
        (offset, length): (u64, u64),
        mode: Allocate,
        progress: &mut Progress,
        wait: Wait,
    ) -> FsResult<()> {
        if length == 0 {
            return Err(FsError::Invalid);
        }
        let end = offset.checked_add(length).filter(|end| *end <= MAX_FILE_SIZE).ok_or(FsError::TooLarge)?;
        if mode == Allocate::PunchHole {
            return self.punch(ino, offset, length, progress, wait);
        }
        let range = BlockRange::new(FileBlock(offset / BLOCK_SIZE), FileBlock(end.div_ceil(BLOCK_SIZE)));
        if !progress.begun {
            self.wait_for_scan(wait)?;
            self.refuse_hopeless(range)?;
            (progress.begun, progress.at) = (true, range.first);
        }
        let mut op = Op::new(wait).in_turns();
        let mut left = TURN_ENTRIES;
        while left > 0 {
            if progress.at >= range.end {
                return if mode == Allocate::Extend { self.extend(ino, end, wait) } else { Ok(()) };
            }
            let rest = BlockRange::new(progress.at, range.end);
            // Attempts that lack something cost nothing of the turn: a turn that ended for them would begin anew with a
            // search for space that has not found any, for ever.
            (progress.at, left) = self.run(&mut op, self.large_record(), |reservation, op| {
                let mut left = left;
                let at = self.allocate_piece(reservation, op, ino, rest, &mut left)?;
                Ok((at, left))
            })?;
            left = left.saturating_sub(TURN_ENTRIES / TURN_PIECES);
            interleave::point("fallocate:between-pieces");
        }
        Err(FsError::Unfinished)
    }

    /// ENOSPC before anything is allocated, when the range cannot fit at all.
    fn refuse_hopeless(&self, range: BlockRange) -> FsResult<()> {
        if range.count() > self.capacity() {
            return Err(NoSpace::Tier.into());
        }
        Ok(())
    }

    /// Raises the size to `end` if it is lower.
    pub(crate) fn extend(&self, ino: Ino, end: u64, wait: Wait) -> FsResult<()> {
        let mut op = Op::new(wait);
        self.run(&mut op, self.large_record(), |reservation, op| {
            // The old last block rarely needs zeros in a new one.
            let claim = self.blocks.claim(op.extra, op.purpose)?;
            let _guard = self.locks.write(ino);
            let inode = self.load_regular(ino)?;
            let mut slot = inode.slot;
            let mut staged = Staged::new(self, Some(claim), true);
            if inode.size() < end && inode.size() > inode.durable_size() {
                // Behind what is only in DRAM: durable when that is.
                staged.visible = Some(end);
            } else if inode.size() < end {
                self.stage_raised(op, &inode, end, &mut staged)?;
                slot.size = end.into();
            }
            self.finish_change(reservation, &inode, slot, staged)?;
            Ok(())
        })
    }

    /// Space for some blocks, before any lock: on a lower tier if any has room, else in PM (I9).
    fn claim_room(&self, op: &Op, blocks: u64) -> Attempt<Staged<'_>> {
        match self.allocate(blocks.min(MAX_EXTENT_BLOCKS.into())) {
            Ok(run) => {
                let mut staged = Staged::new(self, None, false);
                staged.device_claimed = Some(run);
                return Ok(staged);
            }
            Err(FsError::Engine(Error::NoSpace(_))) => {}
            Err(error) => return Err(error.into()),
        }
        let mut count = blocks.min(PM_STEP) as usize;
        loop {
            match self.blocks.claim(count, op.purpose) {
                Err(Error::NoSpace(_)) if count > 1 => count /= 2,
                claim => return Ok(Staged::new(self, Some(claim?), false)),
            }
        }
    }

    /// Allocates the first gap of a range, as much as one transaction takes, within `left` entries looked at; gives where to
    /// go on.
    fn allocate_piece(
        &self,
        reservation: terrace_wal::Reservation<'_>,
        op: &mut Op,
        ino: Ino,
        range: BlockRange,
        left: &mut usize,
    ) -> Attempt<FileBlock> {
        // What is missing, before anything is claimed for it: a full pool can have all of it.
        let missing = {
            let _guard = self.locks.read(ino);
            let inode = self.load_regular(ino)?;
            self.refuse_intents(&inode, range)?;
            self.first_gap(&inode, range, MAX_EXTENT_BLOCKS.into(), left)?
        };
        if missing.is_empty() {
            return Ok(missing.first);
        }
        let mut staged = self.claim_room(op, missing.count())?;
        interleave::point("fallocate:claimed");
        let room = staged.device_claimed.map_or(staged.claimed() as u64, |run| run.length);
        let _guard = self.locks.write(ino);
        let inode = self.load_regular(ino)?;
        self.refuse_intents(&inode, range)?;
        let range = BlockRange::new(missing.first, range.end);
        let gap = self.first_gap(&inode, range, room, left)?;
        if gap.is_empty() {
            return Ok(gap.first);
        }
        staged.blocks_delta += gap.count() as i64;
        staged.placed += self.dirty_without_place(&inode, gap)? as i64;
        match staged.device_claimed {
            Some(run) => self.allocate_below(reservation, &inode, gap, run, staged),
            None => self.allocate_pm(reservation, &inode, gap, staged),
        }
    }

    /// An unwritten extent of as much of the claimed run as the gap takes.
    fn allocate_below(
        &self,
        reservation: terrace_wal::Reservation<'_>,
        inode: &Inode,
        gap: BlockRange,
        claimed: DeviceRun,
        mut staged: Staged<'_>,
    ) -> Attempt<FileBlock> {
        let length = gap.count();
        let run = DeviceRun { length, ..claimed };
        let spare = DeviceRun { start: run.start.plus(length), length: claimed.length - length, ..run };
        staged.device_claimed = Some(run);
        if spare.length > 0 && !planted(Mistake::SpareClaimKept) {
            self.devices.space.release_claim(spare);
        }
        let extent = ColdExtent {
            first: gap.first,
            length: length as u32,
            device: run.device,
            start: run.start,
            unwritten: true,
            crcs: Vec::new(),
        };
        let mut shards = self.lock_shards(inode.ino, [run]);
        self.cold_versions.bump(inode.ino, gap);
        let mut freed = Vec::new();
        cold_map::install(&mut shards, &mut staged.tx, inode.ino, &extent, &mut freed)?;
        chunks::mark(&mut shards, &mut staged.tx, run, true)?;
        let mut slot = inode.slot;
        slot.flags = (slot.flags.get() | flag::HAS_COLD).into();
        self.finish_change(reservation, inode, slot, staged)?;
        Ok(gap.end)
    }

    /// Unwritten PM blocks.
    fn allocate_pm(
        &self,
        reservation: terrace_wal::Reservation<'_>,
        inode: &Inode,
        gap: BlockRange,
        mut staged: Staged<'_>,
    ) -> Attempt<FileBlock> {
        let (ino, first, count) = (inode.ino, gap.first, gap.count());
        if self.map.missing_nodes(&inode.map(), first, count as usize)? > 0 {
            return Err(Need::MapNodes { ino, first, count }.into());
        }
        let mut mappings: SmallVec<[Option<Mapping>; 16]> = SmallVec::new();
        for index in 0..count {
            let block = staged.take()?;
            staged.own(block, Owner::File { ino, block: first.plus(index), unwritten: true });
            mappings.push(Some(Mapping { block, unwritten: true }));
        }
        self.map.set(&mut staged.tx, &inode.map(), first, &mappings)?;
        self.finish_change(reservation, inode, inode.slot, staged)?;
        Ok(gap.end)
    }

    /// The first blocks of a range that neither PM nor a lower tier holds, at most `most`; none, where nothing is missing
    /// before its beginning and no more was looked at: `left` counts how many entries may be, one for each step.
    fn first_gap(
        &self,
        inode: &Inode,
        range: BlockRange,
        most: u64,
        left: &mut usize,
    ) -> Attempt<BlockRange> {
        let mut at = range.first;
        while at < range.end && *left > 0 {
            *left -= 1;
            let window = BlockRange::new(at, at.plus(most).min(range.end));
            let mapped = self.next_mapped(inode, window.first, window.end)?;
            let cold = match inode.slot.has(flag::HAS_COLD) {
                true => self.cold_extents(inode.ino, window)?.into_iter().next(),
                false => None,
            };
            let first_cold = cold.as_ref().map(|extent| extent.first);
            let first_used = [mapped.map(|(block, _)| block), first_cold].into_iter().flatten().min();
            match first_used {
                None => return Ok(window),
                Some(used) if used > at => return Ok(BlockRange::new(at, used)),
                Some(_) => {
                    at = at.plus(1);
                    if let Some(extent) = cold.filter(|extent| extent.first < at) {
                        at = at.max(extent.end());
                    }
                }
            }
        }
        Ok(BlockRange::new(at, at))
    }

    /// The next data or hole at or after an offset.
    ///
    /// # Errors
    /// ENXIO at or past the end (and for data, when none follows), EISDIR, EIO.
    pub fn seek(&self, ino: Ino, offset: u64, what: Seek) -> FsResult<u64> {
        all_turns(|progress| self.seek_turn(ino, offset, what, progress, Wait::Allowed))
    }

    /// A turn of [`Self::seek`]; it waits for metadata on a lower tier only if it may.
    ///
    /// # Errors
    /// As [`Self::seek`]; `WouldBlock`, `Unfinished`.
    pub fn seek_turn(
        &self,
        ino: Ino,
        offset: u64,
        what: Seek,
        progress: &mut Progress,
        wait: Wait,
    ) -> FsResult<u64> {
        if !progress.begun {
            (progress.begun, progress.at) = (true, FileBlock(offset / BLOCK_SIZE));
        }
        // Kept from one page of metadata that is missing to the next, so that each is looked at once.
        let at = &mut progress.at;
        self.reading(wait, || self.seek_on_media(ino, offset, at, what))
    }

    /// Goes on at `at`, before which there is nothing that is looked for.
    fn seek_on_media(&self, ino: Ino, offset: u64, at: &mut FileBlock, what: Seek) -> FsResult<u64> {
        let _guard = self.locks.read(ino);
        let inode = self.load_regular_to_read(ino)?;
        let size = inode.size();
        if offset >= size {
            return Err(FsError::NoDataThere);
        }
        let intents = self.intents_of(&inode)?;
        let end = FileBlock(size.div_ceil(BLOCK_SIZE));
        match what {
            Seek::Data => match self.next_data(&inode, at, end, &intents)? {
                None => Err(FsError::NoDataThere),
                Some(block) => Ok(offset.max(block.0 * BLOCK_SIZE)),
            },
            Seek::Hole => {
                self.skip_data(&inode, at, end, &intents)?;
                Ok(offset.max(at.0 * BLOCK_SIZE).min(size))
            }
        }
    }

    /// The first block from `at` that holds data. Moves `at` to where the next turn goes on when it looked at enough.
    fn next_data(
        &self,
        inode: &Inode,
        at: &mut FileBlock,
        end: FileBlock,
        intents: &[BlockRange],
    ) -> FsResult<Option<FileBlock>> {
        let dirty = match inode.pending {
            Some(_) => self.cache.next_dirty(inode.ino, *at, end),
            None => None,
        };
        let end = dirty.unwrap_or(end);
        // Before `seen` there is no data; at it there is if `best` says so.
        let (mut best, mut seen, mut finished) = (dirty, end, true);
        let (mut from, mut left) = (*at, TURN_ENTRIES);
        while let Some((block, mapping)) = self.next_mapped(inode, from, end)? {
            let gone = intents.iter().find(|r| r.first <= block && block < r.end);
            if !mapping.unwritten && gone.is_none() {
                (best, seen) = (Some(block), block);
                break;
            }
            from = gone.map_or(block.plus(1), |range| range.end);
            left -= 1;
            if left == 0 && from < end {
                (best, seen, finished) = (None, from, false);
                break;
            }
        }
        if inode.slot.has(flag::HAS_COLD) {
            let (limit, mut left) = (seen, TURN_ENTRIES);
            let shard = self.catalog.read(self.catalog.shard_of(inode.ino.0));
            cold_map::scan(shard.reader(), inode.ino, *at, limit, |extent| {
                let mut block = extent.first.max(*at);
                for range in intents {
                    if range.first <= block && block < range.end {
                        block = range.end;
                    }
                }
                // Unwritten blocks shadowed by written ones were found in PM above.
                if !extent.unwritten && block < extent.end() && block < limit {
                    (best, seen, finished) = (Some(block), block, true);
                    return std::ops::ControlFlow::Break(());
                }
                left -= 1;
                if left > 0 || extent.end() >= limit {
                    return std::ops::ControlFlow::Continue(());
                }
                (best, seen, finished) = (None, extent.end(), false);
                std::ops::ControlFlow::Break(())
            })?;
        }
        if finished {
            return Ok(best);
        }
        *at = seen;
        Err(FsError::Unfinished)
    }

    /// Moves `at` behind the data that it stands in: by extents below, by runs in PM, as far as one turn goes.
    fn skip_data(
        &self,
        inode: &Inode,
        at: &mut FileBlock,
        end: FileBlock,
        intents: &[BlockRange],
    ) -> FsResult<()> {
        let mut left = TURN_ENTRIES;
        while left > 0 {
            let before = *at;
            if inode.slot.has(flag::HAS_COLD) {
                self.skip_cold(inode, at, end, intents, &mut left)?;
            }
            self.skip_mapped(inode, at, end, intents, &mut left)?;
            while *at < end
                && left > 0
                && inode.pending.is_some()
                && self.cache.next_dirty(inode.ino, *at, at.plus(1)).is_some()
            {
                *at = at.plus(1);
                left -= 1;
            }
            if *at == before {
                return Ok(());
            }
        }
        Err(FsError::Unfinished)
    }

    fn skip_cold(
        &self,
        inode: &Inode,
        at: &mut FileBlock,
        end: FileBlock,
        intents: &[BlockRange],
        left: &mut usize,
    ) -> FsResult<()> {
        let shard = self.catalog.read(self.catalog.shard_of(inode.ino.0));
        cold_map::scan(shard.reader(), inode.ino, *at, end, |extent| {
            let until = extent.end().min(end).min(next_intent(intents, *at));
            if extent.unwritten || extent.first > *at || until <= *at || *left == 0 {
                return std::ops::ControlFlow::Break(());
            }
            (*at, *left) = (until, *left - 1);
            std::ops::ControlFlow::Continue(())
        })?;
        Ok(())
    }

    fn skip_mapped(
        &self,
        inode: &Inode,
        at: &mut FileBlock,
        end: FileBlock,
        intents: &[BlockRange],
        left: &mut usize,
    ) -> FsResult<()> {
        let end = end.min(next_intent(intents, *at));
        while *at < end && *left > 0 {
            let mut run = [None; MAPPED_RUN as usize];
            let run = &mut run[..(end.0 - at.0).min(MAPPED_RUN) as usize];
            self.map.lookup_run(None, &inode.map(), *at, run)?;
            *left = left.saturating_sub(run.len());
            for mapping in run {
                let Some(mapping) = mapping.filter(|mapping| !mapping.unwritten) else { return Ok(()) };
                self.check_owner(inode, *at, mapping.block)?;
                *at = at.plus(1);
            }
        }
        Ok(())
    }
}

/// PM blocks looked up at once.
const MAPPED_RUN: u64 = 64;

/// Where the next range begins that an intent has taken away; `at` itself when it is in one.
fn next_intent(intents: &[BlockRange], at: FileBlock) -> FileBlock {
    let ahead = intents.iter().filter(|range| range.end > at).map(|range| range.first.max(at));
    ahead.min().unwrap_or(FileBlock(u64::MAX))
}
