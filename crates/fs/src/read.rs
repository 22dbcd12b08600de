//! Reads (design 6, S1): dirty pages, PM, then cold blocks through the page cache, holes as zeros.

use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::op::{Attempt, Fail, Op};
use crate::partial::Shadow;
use crate::slot::Inode;
use crate::types::{Atime, BlockRange, Wait};
use crate::write::expect_regular;
use smallvec::SmallVec;
use terrace_cache::Page;
use terrace_format::inode::flag;
use terrace_format::keys::ColdExtent;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_map::Mapping;
use terrace_runtime::planted::{Mistake, planted};

/// Blocks looked up at once.
const RUN: usize = 64;
const DAY_NS: i64 = 86_400_000_000_000;

/// Where a read puts what it finds.
trait Room {
    /// Bytes asked for.
    fn length(&self) -> usize;
    /// The first `count` of them, at most as many as asked for.
    fn first(&mut self, count: usize) -> &mut [u8];
}

impl Room for [u8] {
    fn length(&self) -> usize {
        self.len()
    }
    fn first(&mut self, count: usize) -> &mut [u8] {
        &mut self[..count]
    }
}

/// A buffer that gets as long as what is read.
struct Growing<'a> {
    buffer: &'a mut Vec<u8>,
    length: usize,
}

impl Room for Growing<'_> {
    fn length(&self) -> usize {
        self.length
    }
    fn first(&mut self, count: usize) -> &mut [u8] {
        if self.buffer.len() < count {
            self.buffer.resize(count, 0);
        }
        &mut self.buffer[..count]
    }
}

impl Fs {
    /// Reads up to `into.len()` bytes; fewer at the end of the file. With `Wait::Never` it returns
    /// `WouldBlock` when a lower tier has to be read.
    ///
    /// # Errors
    /// EISDIR, EINVAL, EIO when a medium fails or a cold block's checksum is wrong.
    pub fn read(&self, ino: Ino, offset: u64, into: &mut [u8], wait: Wait) -> FsResult<usize> {
        self.read_into(ino, offset, into, true, wait)
    }

    /// As [`Self::read`], up to `length` bytes to the beginning of a buffer, which is made longer where that is more
    /// than it has: what is behind the end of the file takes no room. Without `touch` (O_NOATIME) the access time stays.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_to(
        &self,
        ino: Ino,
        offset: u64,
        length: usize,
        buffer: &mut Vec<u8>,
        touch: bool,
        wait: Wait,
    ) -> FsResult<usize> {
        self.read_into(ino, offset, &mut Growing { buffer, length }, touch, wait)
    }

    fn read_into<R: Room + ?Sized>(
        &self,
        ino: Ino,
        offset: u64,
        into: &mut R,
        touch: bool,
        wait: Wait,
    ) -> FsResult<usize> {
        self.expect_use(ino);
        let mut op = Op::reading(wait);
        let mut provided = 0;
        loop {
            match self.try_read(&mut op, ino, offset, into) {
                Ok((count, atime_due)) => {
                    if atime_due && touch {
                        self.touch_atime(ino);
                    }
                    return Ok(count);
                }
                Err(Fail::Error(error)) => return Err(error),
                Err(Fail::Need(need)) => self.provide(&mut op, need, &mut provided)?,
            }
        }
    }

    fn try_read<R: Room + ?Sized>(
        &self,
        op: &mut Op,
        ino: Ino,
        offset: u64,
        into: &mut R,
    ) -> Attempt<(usize, bool)> {
        let _guard = self.locks.read(ino);
        let mut inode = Inode::empty(ino);
        self.fill_to_read(&mut inode)?;
        expect_regular(&inode)?;
        let count = (inode.size().saturating_sub(offset)).min(into.length() as u64) as usize;
        let atime_due = self.atime_due(&inode);
        if count == 0 {
            return Ok((0, atime_due));
        }
        let into = into.first(count);
        let first = FileBlock(offset / BLOCK_SIZE);
        let end = FileBlock((offset + count as u64).div_ceil(BLOCK_SIZE));
        if end.0 == first.0 + 1
            && let Some(dram_bytes) = self.read_one(&inode, offset, first, into)?
        {
            if dram_bytes > 0 {
                self.found_in_dram(&inode, (first, end));
            }
            self.note_read(&inode, count as u64, dram_bytes);
            return Ok((count, atime_due));
        }
        let intents = self.intents_of(&inode)?;
        op.dram_bytes = 0;
        let mut at = first;
        while at < end {
            let run = ((end.0 - at.0) as usize).min(RUN);
            let mut mappings: SmallVec<[Option<Mapping>; RUN]> = SmallVec::new();
            mappings.resize(run, None);
            self.map.lookup_run(None, &inode.map(), at, &mut mappings)?;
            self.read_run(op, &inode, offset, into, (at, end), &mappings, &intents)?;
            at = at.plus(run as u64);
        }
        if op.dram_bytes > 0 {
            self.found_in_dram(&inode, (first, end));
        }
        self.note_read(&inode, count as u64, op.dram_bytes);
        Ok((count, atime_due))
    }

    fn found_in_dram(&self, inode: &Inode, (first, end): (FileBlock, FileBlock)) {
        let file_end = FileBlock(inode.size().div_ceil(BLOCK_SIZE));
        self.read_ahead.found(inode.ino, BlockRange::new(first, end), file_end);
    }

    /// Reads inside one block if that is in PM, or clean in DRAM; how many bytes came from there. `None` where the general
    /// way has to look further.
    fn read_one(
        &self,
        inode: &Inode,
        offset: u64,
        block: FileBlock,
        into: &mut [u8],
    ) -> Attempt<Option<u64>> {
        if inode.slot.has(flag::HAS_INTENT) || inode.pending.is_some() {
            return Ok(None);
        }
        match self.map.lookup(None, &inode.map(), block)? {
            Some(mapping) if !mapping.unwritten && self.lines_of(inode.ino, block, mapping)?.is_full() => {
                if let Some(tick) = self.stamp() {
                    self.blocks.descriptor(mapping.block).touch_read(tick);
                }
                self.read_data(mapping.block, offset % BLOCK_SIZE, into)?;
                self.io.pm.read(into.len());
                Ok(Some(0))
            }
            // What the cold map says need not be asked: whoever changes it raises the version (S3).
            None if inode.slot.has(flag::HAS_COLD) => {
                let Some(page) = self.cached_page(inode, block) else { return Ok(None) };
                let skip = (offset % BLOCK_SIZE) as usize;
                into.copy_from_slice(&page.bytes()[skip..skip + into.len()]);
                Ok(Some(into.len() as u64))
            }
            _ => Ok(None),
        }
    }

    /// Copies one run of blocks to where they belong in the caller's buffer.
    #[allow(clippy::too_many_arguments)]
    fn read_run(
        &self,
        op: &mut Op,
        inode: &Inode,
        offset: u64,
        into: &mut [u8],
        (first, until): (FileBlock, FileBlock),
        mappings: &[Option<Mapping>],
        intents: &[BlockRange],
    ) -> Attempt<()> {
        let stamp = self.stamp();
        let gone = |block: FileBlock| intents.iter().any(|range| range.first <= block && block < range.end);
        let mut cold = None;
        let mut index = 0;
        while index < mappings.len() {
            let block = first.plus(index as u64);
            let start = (block.0 * BLOCK_SIZE).max(offset);
            let mut length = 1;
            if let Some(dirty) = self.dirty_page(inode, block) {
                let target = part(into, offset, block, 1);
                let skip = (start - block.0 * BLOCK_SIZE) as usize;
                target.copy_from_slice(&dirty.bytes()[skip..skip + target.len()]);
                op.dram_bytes += target.len() as u64;
                index += 1;
                continue;
            }
            match mappings[index] {
                Some(mapping) if !mapping.unwritten && !gone(block) => {
                    if let Some(tick) = stamp {
                        self.blocks.descriptor(mapping.block).touch_read(tick);
                    }
                    let lines = self.lines_of(inode.ino, block, mapping)?;
                    if !lines.is_full() {
                        let target = part(into, offset, block, 1);
                        let skip = (start - block.0 * BLOCK_SIZE) as usize;
                        let shadow = Shadow { block, until, pm: mapping.block, lines };
                        self.read_shadow(op, inode, &shadow, skip, target)?;
                        if inode.pending.is_some() {
                            zero_past(into, offset, (block, 1), inode.durable_size());
                        }
                        index += 1;
                        continue;
                    }
                    // Consecutive PM blocks are one copy.
                    while let Some(Some(next)) = mappings.get(index + length) {
                        let follows = next.block.0 == mapping.block.0 + length as u64;
                        let after = block.plus(length as u64);
                        let is_gone = gone(after) && !planted(Mistake::RunAcrossIntent);
                        let ends = !follows || next.unwritten || is_gone || self.is_dirty_in(inode, after);
                        if ends || !self.lines_of(inode.ino, after, *next)?.is_full() {
                            break;
                        }
                        if let Some(tick) = stamp {
                            self.blocks.descriptor(next.block).touch_read(tick);
                        }
                        length += 1;
                    }
                    let target = part(into, offset, block, length);
                    let skip = start - block.0 * BLOCK_SIZE;
                    self.read_data(mapping.block, skip, target)?;
                    self.io.pm.read(target.len());
                }
                None if inode.slot.has(flag::HAS_COLD) && !gone(block) => {
                    let target = part(into, offset, block, 1);
                    let run = BlockRange::new(first, first.plus(mappings.len() as u64));
                    match self.cold_or_hole(op, inode, (block, until), run, &mut cold)? {
                        Some(page) => {
                            let skip = (start - block.0 * BLOCK_SIZE) as usize;
                            target.copy_from_slice(&page.bytes()[skip..skip + target.len()]);
                            op.dram_bytes += target.len() as u64;
                        }
                        None => target.fill(0),
                    }
                }
                _ => part(into, offset, block, 1).fill(0),
            }
            if inode.pending.is_some() {
                zero_past(into, offset, (block, length), inode.durable_size());
            }
            index += length;
        }
        Ok(())
    }

    /// The content of a block that is not in PM, `None` of a hole. `cold` has the extents of the run once they are needed: to
    /// decode them takes longer than all else of a read from DRAM. The caller holds the inode lock.
    fn cold_or_hole(
        &self,
        op: &mut Op,
        inode: &Inode,
        (block, until): (FileBlock, FileBlock),
        run: BlockRange,
        cold: &mut Option<Vec<ColdExtent>>,
    ) -> Attempt<Option<Page>> {
        if let Some(page) = self.known_page(op, inode, block) {
            return Ok(Some(page));
        }
        if cold.is_none() {
            *cold = Some(self.cold_extents(inode.ino, run)?);
        }
        let extents = cold.as_deref().unwrap_or(&[]);
        let is_written = |e: &ColdExtent| e.first <= block && block < e.end() && !e.unwritten;
        if !extents.iter().any(is_written) {
            return Ok(None);
        }
        self.cold_page(op, inode, block, until).map(Some)
    }

    /// A block's dirty page. The caller holds the inode lock.
    fn dirty_page(&self, inode: &Inode, block: FileBlock) -> Option<Page> {
        inode.pending?;
        self.cache.dirty(inode.page_key(block)).map(|dirty| dirty.page)
    }

    /// Whether a block has a dirty page. The caller holds the inode lock.
    pub(crate) fn is_dirty_in(&self, inode: &Inode, block: FileBlock) -> bool {
        inode.pending.is_some() && self.cache.state_of(inode.page_key(block)).is_some()
    }

    pub(crate) fn atime_due(&self, inode: &Inode) -> bool {
        if self.read_only || self.atime == Atime::Never {
            return false;
        }
        let slot = &inode.slot;
        let atime = slot.atime.get();
        atime <= slot.mtime.get()
            || atime <= slot.ctime.get()
            || self.clock.wall_coarse_ns().saturating_sub(atime) >= DAY_NS
    }

    /// Relative access time: a transaction of its own; a failure to record it is not the reader's.
    pub(crate) fn touch_atime(&self, ino: Ino) {
        let update = || -> FsResult<()> {
            let reservation = self.wal.reserve(128)?;
            let _guard = self.locks.write(ino);
            let inode = self.load(ino)?;
            if !self.atime_due(&inode) {
                return Ok(());
            }
            let mut slot = inode.slot;
            // Later than what it is compared with, however coarse the clock is.
            let newest = slot.mtime.get().max(slot.ctime.get()).saturating_add(1);
            slot.atime = self.now().max(newest).into();
            let mut tx = terrace_wal::Tx::new();
            crate::slot::log_slot(&mut tx, inode.place, &inode.slot, &slot);
            self.wal.commit(reservation, &tx)?;
            Ok(())
        };
        if let Err(error) = update() {
            tracing::debug!("atime of inode {ino}: {error}");
        }
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// EINVAL for other inodes, EIO.
    pub fn readlink(&self, ino: Ino) -> FsResult<Vec<u8>> {
        self.try_readlink(ino, Wait::Allowed)
    }

    /// As [`Self::readlink`]; it waits for metadata on a lower tier only if it may.
    ///
    /// # Errors
    /// As [`Self::readlink`]; `WouldBlock`.
    pub fn try_readlink(&self, ino: Ino, wait: Wait) -> FsResult<Vec<u8>> {
        let (target, atime_due) = self.reading(wait, || {
            let _guard = self.locks.read(ino);
            let inode = self.load_to_read(ino)?;
            if !inode.slot.is_symlink() {
                return Err(FsError::Invalid);
            }
            Ok((self.symlink_target(&inode)?, self.atime_due(&inode)))
        })?;
        if atime_due {
            self.touch_atime(ino);
        }
        Ok(target)
    }
}

/// Zeros what was read from media behind the durable end, where they hold nothing that counts (S5).
fn zero_past(into: &mut [u8], offset: u64, (block, length): (FileBlock, usize), durable: u64) {
    if (block.0 + length as u64) * BLOCK_SIZE > durable {
        let target = part(into, offset, block, length);
        let start = (block.0 * BLOCK_SIZE).max(offset);
        let keep = (durable.saturating_sub(start) as usize).min(target.len());
        target[keep..].fill(0);
    }
}

/// The part of the caller's buffer that `length` blocks from `block` fill.
fn part(into: &mut [u8], offset: u64, block: FileBlock, length: usize) -> &mut [u8] {
    let start = (block.0 * BLOCK_SIZE).max(offset) - offset;
    let end = ((block.0 + length as u64) * BLOCK_SIZE - offset).min(into.len() as u64);
    &mut into[start as usize..end as usize]
}
