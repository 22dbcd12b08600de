//! Removing blocks from files: truncate, punch hole, and the bounded pieces that both and the reclaimer
//! are made of (design T7, S4).

use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::op::{Attempt, Need, Op};
use crate::slot::Inode;
use crate::turns::Progress;
use crate::types::{BlockRange, Wait};
use crate::write::{Segment, Staged, kill_set_id};
use smallvec::SmallVec;
use terrace_catalog::DeviceRun;
use terrace_catalog::chunks;
use terrace_catalog::intent::{self, Intent};
use terrace_catalog::{ShardsWrite, cold_map};
use terrace_format::address::{MAX_FILE_BLOCK, MAX_FILE_SIZE};
use terrace_format::inode::flag;
use terrace_format::keys::{ColdExtent, MAX_INTENTS};
use terrace_format::{BLOCK_SIZE, FileBlock, Ino, PmBlock};
use terrace_map::file_map::Freed;
use terrace_runtime::planted::{Mistake, planted};

/// One past the last block that a file can have.
pub(crate) const FILE_END: FileBlock = FileBlock(MAX_FILE_BLOCK.0 + 1);
/// All blocks that a file can have.
pub(crate) const WHOLE_FILE: BlockRange = BlockRange { first: FileBlock(0), end: FILE_END };

/// What one piece will remove: looked up under the inode lock before the shards are locked, so that all
/// shards it touches are known.
pub(crate) struct Piece {
    range: BlockRange,
    pm: Vec<(FileBlock, PmBlock)>,
    cold: Vec<ColdExtent>,
    /// The range is empty after this piece.
    pub complete: bool,
}

impl Piece {
    /// True when it removes nothing.
    pub fn is_empty(&self) -> bool {
        self.pm.is_empty() && self.cold.is_empty()
    }
    /// Where the next piece starts.
    pub fn end(&self) -> FileBlock {
        self.range.end
    }
    /// The device blocks that become free.
    pub fn device_runs(&self) -> impl Iterator<Item = DeviceRun> {
        self.cold.iter().map(DeviceRun::from)
    }
}

impl Fs {
    /// PM blocks and cold extents that one record can remove. On the smallest lanes (4 KiB records) 32
    /// and 2: 48 bytes a block, 600 an extent, the rest for the slot, the intent and empty map nodes.
    fn piece_limits(&self, op: &Op) -> (usize, usize) {
        let record = self.wal.max_record() >> op.halved;
        ((record / 128).clamp(1, 512), (record / 2048).clamp(1, 32))
    }

    /// Looks up the next piece of a range. The caller holds the inode's exclusive lock.
    pub(crate) fn next_piece(&self, op: &Op, inode: &Inode, range: BlockRange) -> Attempt<Piece> {
        let (most_pm, most_cold) = self.piece_limits(op);
        let mut end = range.end;
        let mut cold = Vec::new();
        if inode.slot.has(flag::HAS_COLD) {
            let shard = self.catalog.read(self.catalog.shard_of(inode.ino.0));
            cold_map::scan(shard.reader(), inode.ino, range.first, range.end, |extent| {
                if cold.len() == most_cold {
                    end = extent.first;
                    return std::ops::ControlFlow::Break(());
                }
                cold.push(extent);
                std::ops::ControlFlow::Continue(())
            })?;
        }
        let mut pm = Vec::new();
        let mut at = range.first;
        while let Some((block, mapping)) = self.next_mapped(inode, at, end)? {
            if pm.len() == most_pm {
                end = block;
                break;
            }
            pm.push((block, mapping.block));
            at = block.plus(1);
        }
        let cold = cold.into_iter().filter_map(|extent| extent.slice(range.first, end)).collect();
        Ok(Piece { range: BlockRange::new(range.first, end), pm, cold, complete: end == range.end })
    }

    /// Locks the shards that a piece changes.
    pub(crate) fn lock_piece(&self, ino: Ino, piece: &Piece) -> ShardsWrite<'_> {
        self.lock_shards(ino, piece.device_runs())
    }

    /// Locks the shards of an inode and of the chunks of device runs.
    pub(crate) fn lock_shards(&self, ino: Ino, runs: impl IntoIterator<Item = DeviceRun>) -> ShardsWrite<'_> {
        let mut shards: SmallVec<[u32; 8]> = SmallVec::new();
        shards.push(self.catalog.shard_of(ino.0));
        runs.into_iter().for_each(|run| shards.extend(chunks::shards(&self.catalog, run)));
        self.catalog.write(&shards)
    }

    /// Adds the removal of a piece to a transaction: cold extents, then PM entries, in one record (S4).
    pub(crate) fn stage_piece(
        &self,
        inode: &Inode,
        piece: &Piece,
        shards: &mut ShardsWrite<'_>,
        staged: &mut Staged<'_>,
    ) -> Attempt<()> {
        self.bump_removed(inode, piece.range, &piece.cold);
        if !piece.cold.is_empty() {
            let mut freed = Vec::new();
            let (first, end) = (piece.range.first, piece.range.end);
            cold_map::cut(shards, &mut staged.tx, inode.ino, first, end, &mut freed)?;
            for (device, start, length) in freed {
                self.stage_device_free(DeviceRun { device, start, length }, shards, staged)?;
            }
        }
        let mut index = 0;
        while index < piece.pm.len() {
            let first = piece.pm[index].0;
            let mut count = 0;
            while index < piece.pm.len() && piece.pm[index].0 == first.plus(count as u64) {
                staged.release(piece.pm[index].1);
                count += 1;
                index += 1;
            }
            let none: SmallVec<[Option<terrace_map::Mapping>; 16]> = SmallVec::from_elem(None, count);
            self.map.set(&mut staged.tx, &inode.map(), first, &none)?;
        }
        if let (Some(first), Some(last)) = (piece.pm.first(), piece.pm.last()) {
            self.stage_prune(inode, BlockRange::new(first.0, last.0.plus(1)), staged)?;
        }
        staged.blocks_delta -= self.union_count(piece) as i64;
        Ok(())
    }

    /// Who looked at a range before it was removed learns that it changed (S6); copies in DRAM of what lies below go.
    fn bump_removed(&self, inode: &Inode, range: BlockRange, cold: &[ColdExtent]) {
        if planted(Mistake::PunchIgnoredByVersion) {
            return;
        }
        self.cold_versions.bump(inode.ino, range);
        for gone in cold.iter().filter_map(|extent| extent.slice(range.first, range.end)) {
            self.cache.remove_range(inode.ino, inode.slot.generation.get(), gone.first, gone.end());
        }
    }

    /// Frees map nodes of a range that hold nothing any more; true when it freed any.
    pub(crate) fn stage_prune(
        &self,
        inode: &Inode,
        range: BlockRange,
        staged: &mut Staged<'_>,
    ) -> Attempt<bool> {
        let mut nodes = Freed::new();
        let count = range.count() as usize;
        let pruned = self.map.prune(&mut staged.tx, &inode.map(), range.first, count, &mut nodes);
        let freed = !nodes.is_empty();
        staged.released.extend(nodes);
        pruned?;
        Ok(freed)
    }

    /// File blocks that a piece removes, each once.
    fn union_count(&self, piece: &Piece) -> u64 {
        let covered = |block: FileBlock| piece.cold.iter().any(|e| e.first <= block && block < e.end());
        let cold: u64 = piece.cold.iter().map(|extent| u64::from(extent.length)).sum();
        cold + piece.pm.iter().filter(|(block, _)| !covered(*block)).count() as u64
    }

    /// Frees device blocks in this transaction; after the commit the staging hands them to the space map.
    pub(crate) fn stage_device_free(
        &self,
        run: DeviceRun,
        shards: &mut ShardsWrite<'_>,
        staged: &mut Staged<'_>,
    ) -> Attempt<()> {
        chunks::mark(shards, &mut staged.tx, run, false)?;
        staged.device_freed.push(run);
        Ok(())
    }

    /// A turn of setting a file's size.
    ///
    /// # Errors
    /// EFBIG, EISDIR, EINVAL, ENOSPC (extending), EIO; `Unfinished`.
    pub(crate) fn truncate(
        &self,
        ino: Ino,
        size: u64,
        kill: bool,
        progress: &mut Progress,
        wait: Wait,
    ) -> FsResult<()> {
        if progress.begun {
            return self.drain_intents(wait, ino);
        }
        if size > MAX_FILE_SIZE {
            return Err(FsError::TooLarge);
        }
        let mut op = Op::reclaiming(wait).in_turns();
        let left = self.run(&mut op, self.large_record(), |reservation, op| {
            // The old last block may need zeros in a new block when the file grows.
            let claim = self.blocks.claim(1, op.purpose)?;
            let _guard = self.locks.write(ino);
            let inode = self.load_regular(ino)?;
            if kill {
                self.expect_no_capability(&inode)?;
            }
            let mut staged = Staged::new(self, Some(claim), true);
            let mut slot = inode.slot;
            if kill {
                kill_set_id(&mut slot);
            }
            staged.visible = Some(size);
            if size >= inode.size() {
                // Behind what is only in DRAM the end is durable when that is.
                if inode.size() == inode.durable_size() {
                    self.stage_raised(op, &inode, size, &mut staged)?;
                    slot.size = size.into();
                }
                self.finish_change(reservation, &inode, slot, staged)?;
                return Ok(false);
            }
            slot.size = inode.durable_size().min(size).into();
            staged.zero_dirty.push((size, size.next_multiple_of(BLOCK_SIZE)));
            let range = BlockRange::new(FileBlock(size.div_ceil(BLOCK_SIZE)), FILE_END);
            self.refuse_intents(&inode, range)?;
            // The block that the new end cuts keeps its bytes past the end: whoever raises the size
            // again clears them (S5).
            self.remove_range(op, reservation, &inode, slot, range, staged)
        })?;
        progress.begun = true;
        if left { self.drain_intents(wait, ino) } else { Ok(()) }
    }

    /// Commits a removal: whole if one record holds it, else as an intent. True when pieces are left.
    fn remove_range(
        &self,
        op: &Op,
        reservation: terrace_wal::Reservation<'_>,
        inode: &Inode,
        mut slot: terrace_format::inode::InodeSlot,
        range: BlockRange,
        mut staged: Staged<'_>,
    ) -> Attempt<bool> {
        let piece = self.next_piece(op, inode, range)?;
        staged.drop_dirty = Some(range);
        staged.placed += self.dirty_without_place(inode, range)? as i64;
        // Before the shards are locked, of which one is the intents'.
        let waiting = self.intents_of(inode)?.len();
        let mut shards = self.lock_piece(inode.ino, &piece);
        if piece.complete {
            self.stage_piece(inode, &piece, &mut shards, &mut staged)?;
            staged.unlink_emptied(&mut shards)?;
            self.finish_change(reservation, inode, slot, staged)?;
            return Ok(false);
        }
        // Each other one is waiting for the reclaimer, which had an error.
        if waiting >= MAX_INTENTS {
            return Err(Need::ClearIntent { ino: inode.ino, range: WHOLE_FILE }.into());
        }
        // Reads treat the range as gone from now on.
        self.bump_removed(inode, range, &[]);
        slot.flags = (slot.flags.get() | flag::HAS_INTENT).into();
        let generation = slot.generation.get();
        intent::put(
            &mut shards,
            &mut staged.tx,
            inode.ino,
            Intent { first: range.first, end: range.end, generation },
        )?;
        self.finish_change(reservation, inode, slot, staged)?;
        Ok(true)
    }

    /// A turn of making a hole: whole blocks are removed, the edges become zeros.
    pub(crate) fn punch(
        &self,
        ino: Ino,
        offset: u64,
        length: u64,
        progress: &mut Progress,
        wait: Wait,
    ) -> FsResult<()> {
        if progress.begun {
            return self.drain_intents(wait, ino);
        }
        let mut op = Op::reclaiming(wait).in_turns();
        let left = self.run(&mut op, self.large_record(), |reservation, op| {
            let claim = self.blocks.claim(2, op.purpose)?;
            let _guard = self.locks.write(ino);
            let inode = self.load_regular(ino)?;
            let mut staged = Staged::new(self, Some(claim), true);
            let end = offset + length;
            let first = offset.next_multiple_of(BLOCK_SIZE);
            let last = if end >= inode.size() {
                end.next_multiple_of(BLOCK_SIZE)
            } else {
                end / BLOCK_SIZE * BLOCK_SIZE
            };
            let edges = if first > last || end <= first {
                [(offset, end), (end, end)]
            } else {
                [(offset, first), (last.max(first), end.max(last))]
            };
            for (from, to) in edges {
                // Past the end nothing needs zeros.
                let to = to.min(inode.size());
                let mut to = to;
                if from < to && self.is_dirty_in(&inode, FileBlock(from / BLOCK_SIZE)) {
                    staged.zero_dirty.push((from, to));
                    // What lies below the page is what a crash leaves.
                    to = to.min(inode.durable_size());
                }
                if from < to {
                    let zeros = Segment { offset: from, length: to - from, data: None };
                    self.stage(op, &inode, zeros, &mut staged)?;
                }
            }
            let range =
                BlockRange::new(FileBlock(first / BLOCK_SIZE), FileBlock(last / BLOCK_SIZE).min(FILE_END));
            if range.is_empty() {
                self.finish_change(reservation, &inode, inode.slot, staged)?;
                return Ok(false);
            }
            self.refuse_intents(&inode, range)?;
            self.remove_range(op, reservation, &inode, inode.slot, range, staged)
        })?;
        progress.begun = true;
        if left { self.drain_intents(wait, ino) } else { Ok(()) }
    }
}
