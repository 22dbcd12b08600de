//! Writes into DRAM: those whose home is a block tier (design 5, 8).
//!
//! A dirty page holds its whole block; bytes past the visible end of the file are zeros. What a partial write lacks is
//! read before (PM under the lock, cold blocks without one). Device space for the write-back is reserved before the
//! write is accepted, so that write-back never lacks it; beyond the dirty limit the writer waits, on a thread that may.

use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::op::{Attempt, Fail, Op};
use crate::partial::Shadow;
use crate::slot::{Inode, log_slot};
use crate::types::{BlockRange, Wait, WriteFlags};
use crate::unwritten::Pending;
use crate::write::{Segment, kill_set_id};
use smallvec::SmallVec;
use terrace_cache::{Lines, Page, PageKey};
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::inode::{InodeSlot, flag};
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_map::Mapping;
use terrace_placement::Home;
use terrace_runtime::interleave;
use terrace_runtime::planted::{Mistake, planted};
use terrace_wal::{Error, NoSpace, Reservation};

/// Record room for an inode's mode.
const SET_ID_RECORD: usize = 256;
/// Blocks accepted at once.
const PIECE: u64 = 256;

impl Inode {
    /// The name of one of its pages in the cache.
    pub fn page_key(&self, block: FileBlock) -> PageKey {
        PageKey { ino: self.ino, generation: self.slot.generation.get(), block }
    }
}

impl Fs {
    /// Whether a write may have another home than PM at all.
    pub(crate) fn has_buffer(&self) -> bool {
        self.write_back.limit_pages > 0 && !self.devices.list.is_empty() && !self.read_only
    }

    /// Most bytes of writes that wait in DRAM for a lower tier.
    pub fn buffer_bytes(&self) -> u64 {
        self.write_back.limit_pages * BLOCK_SIZE
    }

    /// The home of a write. The caller holds the inode's lock.
    pub(crate) fn home_of(&self, inode: &Inode, segment: &Segment<'_>, flags: WriteFlags) -> Home {
        if !self.has_buffer() {
            return Home::Pm;
        }
        let chosen = self.choose_home(inode, segment.blocks(), flags);
        // Behind what is only in DRAM nothing becomes durable before it: a crash would leave a hole.
        let behind = inode.size() > inode.durable_size();
        if behind && !flags.sync && segment.offset + segment.length > inode.durable_size() {
            return Home::Block;
        }
        if chosen == Home::Block && self.pin_of(inode).is_ok_and(|pin| pin == Some(0)) {
            return Home::Pm;
        }
        chosen
    }

    /// As [`Self::home_of`], for who holds no lock.
    pub(crate) fn ask_home(&self, ino: Ino, segment: &Segment<'_>, flags: WriteFlags) -> FsResult<Home> {
        // Most writes need no look at the inode: short ones, while PM has room and nothing of the file is only in DRAM.
        let plain = flags.sync || !self.has_choice(segment.blocks());
        if !self.has_buffer() || (plain && self.home.is_none() && self.unwritten.get(ino).is_none()) {
            return Ok(Home::Pm);
        }
        let _guard = self.locks.read(ino);
        Ok(self.home_of(&self.load_regular(ino)?, segment, flags))
    }

    /// Writes into dirty pages; gives the bytes taken, as [`Fs::write`] does. ENOSPC: neither the devices nor DRAM have
    /// room; PM may.
    pub(crate) fn write_buffered(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        wait: Wait,
    ) -> FsResult<usize> {
        // A request thread does not wait for the flush that follows.
        if flags.sync && wait != Wait::Allowed {
            return Err(FsError::WouldBlock);
        }
        let mut op = Op::new(wait);
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let most = PIECE.min(self.write_back.limit_pages / 2).max(1) * BLOCK_SIZE;
            let rest = &data[done..];
            let piece = &rest[..rest.len().min((most - at % BLOCK_SIZE) as usize)];
            if done > 0 {
                interleave::point("write:between-pieces");
            }
            let segment = Segment { offset: at, length: piece.len() as u64, data: Some(piece) };
            match self.buffer_piece(&mut op, ino, segment, flags) {
                Err(_) if done > 0 => break,
                taken => taken?,
            }
            done += piece.len();
        }
        if flags.sync {
            self.fsync(ino, true, wait)?;
        }
        Ok(done)
    }

    fn buffer_piece(&self, op: &mut Op, ino: Ino, segment: Segment<'_>, flags: WriteFlags) -> FsResult<()> {
        let blocks = segment.blocks();
        if blocks.end.0 > MAX_FILE_BLOCK.0 + 1 {
            return Err(FsError::TooLarge);
        }
        if !self.devices.space.reserve(blocks.count())? {
            return Err(NoSpace::Tier.into());
        }
        let taken = self.take_piece(op, ino, &segment, flags);
        self.devices.space.unreserve(blocks.count() - taken.as_ref().map_or(0, |new| *new));
        self.write_back.wake_if_due(self.cache.dirty_pages());
        if planted(Mistake::SizeWithTheWrite) {
            self.commit_visible_size(ino)?;
        }
        taken.map(|_| ())
    }

    /// Takes a piece; gives how many pages became dirty. Changes nothing unless it succeeds.
    fn take_piece(&self, op: &mut Op, ino: Ino, segment: &Segment<'_>, flags: WriteFlags) -> FsResult<u64> {
        let pages = segment.blocks().count();
        if flags.kill_set_id {
            let _room = self.wait_for_dirty_room(pages, op.wait)?;
            return self.run(op, SET_ID_RECORD, |reservation, op| {
                self.try_buffer(op, ino, segment, flags, Some(reservation))
            });
        }
        let mut provided = 0;
        loop {
            let room = self.wait_for_dirty_room(pages, op.wait)?;
            match self.try_buffer(op, ino, segment, flags, None) {
                Ok(new) => return Ok(new),
                Err(Fail::Error(error)) => return Err(error),
                Err(Fail::Need(need)) => {
                    // Nobody else waits for room because this one waits for a device.
                    drop(room);
                    self.provide(op, need, &mut provided)?;
                }
            }
        }
    }

    /// One attempt of [`Self::take_piece`]; `reservation` is for the mode that loses its set-id bits.
    fn try_buffer(
        &self,
        op: &mut Op,
        ino: Ino,
        segment: &Segment<'_>,
        flags: WriteFlags,
        reservation: Option<Reservation<'_>>,
    ) -> Attempt<u64> {
        if self.read_only {
            return Err(FsError::ReadOnly.into());
        }
        // What is accepted could never be written back.
        if self.wal.is_stopped() {
            return Err(Error::Stopped.into());
        }
        let _guard = self.locks.write(ino);
        let inode = self.load_regular(ino)?;
        if flags.kill_set_id {
            self.expect_no_capability(&inode)?;
        }
        let range = segment.blocks();
        let mut pages = Vec::with_capacity(range.count() as usize);
        let mut new_blocks = 0;
        let placed = self.placed(&inode, range)?;
        for block in (range.first.0..range.end.0).map(FileBlock) {
            let is_dirty = inode.pending.is_some() && self.cache.state_of(inode.page_key(block)).is_some();
            if is_dirty {
                pages.push(None);
                continue;
            }
            let (from, to, _) = part_of(segment, block);
            let whole = to - from == BLOCK_SIZE as usize;
            let page = if whole { Page::zeroed() } else { self.medium_page(op, &inode, block)? };
            new_blocks += u64::from(!placed[(block.0 - range.first.0) as usize]);
            pages.push(Some(page));
        }
        if let Some(reservation) = reservation {
            self.drop_set_id(reservation, &inode)?;
        }
        let now = self.clock.monotonic_ns();
        let mut count = 0;
        for (block, page) in (range.first.0..).map(FileBlock).zip(pages) {
            let (from, to, data) = part_of(segment, block);
            let (key, lines) = (inode.page_key(block), Lines::touched(from, to));
            match page {
                None => {
                    let change =
                        |bytes: &mut [u8; BLOCK_SIZE as usize]| bytes[from..to].copy_from_slice(data);
                    self.cache.change_dirty(key, lines, false, now, change);
                }
                Some(mut page) => {
                    page.bytes_mut()[from..to].copy_from_slice(data);
                    self.cache.add_dirty(key, terrace_cache::Home::Block, lines, page, now);
                    count += 1;
                }
            }
        }
        let before = inode.pending.map_or(0, |pending| pending.new_blocks);
        let pending = Pending {
            generation: inode.slot.generation.get(),
            size: inode.size().max(segment.offset + segment.length),
            mtime_ns: Some(self.now()),
            new_blocks: before + new_blocks,
        };
        self.unwritten.set(ino, pending);
        self.note_write(&inode, range, segment.length, flags, Home::Block);
        Ok(count)
    }

    /// A block's content on media, zeros past the durable end.
    fn medium_page(&self, op: &mut Op, inode: &Inode, block: FileBlock) -> Attempt<Page> {
        let mut page = Page::zeroed();
        let start = block.0 * BLOCK_SIZE;
        let valid = inode.durable_size().saturating_sub(start).min(BLOCK_SIZE) as usize;
        let gone = self.intents_of(inode)?.iter().any(|range| range.first <= block && block < range.end);
        if valid == 0 || gone {
            return Ok(page);
        }
        match self.map.lookup(None, &inode.map(), block)? {
            Some(mapping) if mapping.unwritten => {}
            Some(mapping) => {
                let (until, pm) = (block.plus(1), mapping.block);
                let lines = self.lines_of(inode.ino, block, mapping)?;
                let shadow = Shadow { block, until, pm, lines };
                self.read_shadow(op, inode, &shadow, 0, &mut page.bytes_mut()[..valid])?;
            }
            None if self.is_written_below(inode, block)? => {
                let cold = self.fetched_block(op, inode, block)?;
                page.bytes_mut()[..valid].copy_from_slice(&cold.bytes()[..valid]);
            }
            None => {}
        }
        Ok(page)
    }

    fn is_written_below(&self, inode: &Inode, block: FileBlock) -> FsResult<bool> {
        if !inode.slot.has(flag::HAS_COLD) {
            return Ok(false);
        }
        let extents = self.cold_extents(inode.ino, BlockRange::new(block, block.plus(1)))?;
        Ok(extents.iter().any(|extent| !extent.unwritten))
    }

    /// For each block of a range whether PM or a lower tier has a place for it, written or not.
    pub(crate) fn placed(&self, inode: &Inode, range: BlockRange) -> FsResult<SmallVec<[bool; 64]>> {
        let count = range.count() as usize;
        let mut mappings: SmallVec<[Option<Mapping>; 64]> = SmallVec::from_elem(None, count);
        self.map.lookup_run(None, &inode.map(), range.first, &mut mappings)?;
        let mut placed: SmallVec<[bool; 64]> = mappings.iter().map(Option::is_some).collect();
        if inode.slot.has(flag::HAS_COLD) && placed.contains(&false) {
            for extent in self.cold_extents(inode.ino, range)? {
                let inside = extent.slice(range.first, range.end);
                for extent in inside.iter() {
                    let from = (extent.first.0 - range.first.0) as usize;
                    placed[from..from + extent.length as usize].fill(true);
                }
            }
        }
        Ok(placed)
    }

    /// Dirty pages of a range whose blocks have no place yet. The caller holds the inode's exclusive lock.
    pub(crate) fn dirty_without_place(&self, inode: &Inode, range: BlockRange) -> FsResult<u64> {
        if inode.pending.is_none_or(|pending| pending.new_blocks == 0) {
            return Ok(0);
        }
        let mut count = 0;
        for block in self.cache.dirty_blocks(inode.ino, range.first, range.end, usize::MAX) {
            let placed = self.placed(inode, BlockRange::new(block, block.plus(1)))?;
            count += u64::from(placed.contains(&false));
        }
        Ok(count)
    }

    /// Removes set-id bits in a transaction, when there are any. The caller holds the inode's exclusive lock, and has all
    /// that the write needs: one that fails keeps them (C9).
    fn drop_set_id(&self, reservation: Reservation<'_>, inode: &Inode) -> Attempt<()> {
        let mut slot = inode.slot;
        kill_set_id(&mut slot);
        if slot.mode != inode.slot.mode {
            let mut tx = terrace_wal::Tx::new();
            log_slot(&mut tx, inode.place, &inode.slot, &slot);
            self.wal.commit(reservation, &tx)?;
        }
        Ok(())
    }

    /// What a planted mistake does.
    fn commit_visible_size(&self, ino: Ino) -> FsResult<()> {
        let mut op = Op::reclaiming(Wait::Allowed);
        self.run(&mut op, 256, |reservation, _| {
            let _guard = self.locks.write(ino);
            let inode = self.load_regular(ino)?;
            let mut slot = inode.slot;
            slot.size = inode.size().into();
            let mut tx = terrace_wal::Tx::new();
            log_slot(&mut tx, inode.place, &inode.slot, &slot);
            self.wal.commit(reservation, &tx)?;
            Ok(())
        })
    }

    /// Drops the dirty pages of a range, and what was reserved for them. The caller holds the inode's exclusive lock.
    pub(crate) fn drop_dirty_range(&self, inode: &Inode, range: BlockRange) {
        const STEP: usize = 1024;
        let mut count = 0;
        loop {
            let blocks = self.cache.dirty_blocks(inode.ino, range.first, range.end, STEP);
            count += blocks.iter().filter(|block| self.cache.drop_dirty(inode.page_key(**block))).count();
            if blocks.len() < STEP {
                break;
            }
        }
        if !planted(Mistake::PromiseKept) {
            self.devices.space.unreserve(count as u64);
        }
    }

    /// Zeros bytes `from..to` of dirty pages, those of one block. The caller holds the inode's exclusive lock.
    pub(crate) fn zero_dirty(&self, inode: &Inode, from: u64, to: u64) {
        let block = FileBlock(from / BLOCK_SIZE);
        let start = block.0 * BLOCK_SIZE;
        let (from, to) = ((from - start) as usize, (to - start).min(BLOCK_SIZE) as usize);
        let (key, lines) = (inode.page_key(block), Lines::touched(from, to));
        let now = self.clock.monotonic_ns();
        // A copy on its way holds what was cut off: where the size is raised again before it arrives, it would be seen.
        self.cache.change_dirty(key, lines, true, now, |bytes| bytes[from..to].fill(0));
    }

    /// Brings an inode's entry up to date after a transaction: `slot` is what it logged, `visible` the size from now
    /// on, `placed` how many dirty pages without a place got one or went. The caller holds the inode's exclusive lock.
    pub(crate) fn settle(&self, inode: &Inode, slot: &InodeSlot, visible: u64, placed: i64) {
        let Some(pending) = inode.pending else { return };
        let dirty = self.cache.count_dirty(inode.ino);
        if dirty == 0 && visible <= slot.size.get() {
            self.unwritten.remove(inode.ino);
            return;
        }
        let new_blocks = pending.new_blocks.saturating_add_signed(placed.saturating_neg()).min(dirty);
        self.unwritten.set(inode.ino, Pending { size: visible, mtime_ns: None, new_blocks, ..pending });
    }

    /// Forgets what DRAM holds of a file that is being removed. The caller holds the inode's exclusive lock.
    pub(crate) fn forget_dirty(&self, inode: &Inode) {
        if inode.pending.is_some() {
            self.drop_dirty_range(inode, crate::truncate::WHOLE_FILE);
            self.unwritten.remove(inode.ino);
        }
        self.write_back.forget(inode.ino);
    }
}

/// The part of a block that a segment writes: first byte, end, and its data.
fn part_of<'a>(segment: &Segment<'a>, block: FileBlock) -> (usize, usize, &'a [u8]) {
    let start = block.0 * BLOCK_SIZE;
    let from = segment.offset.max(start);
    let to = (segment.offset + segment.length).min(start + BLOCK_SIZE);
    let data = segment.data.unwrap_or_default();
    let data = &data[(from - segment.offset) as usize..(to - segment.offset) as usize];
    ((from - start) as usize, (to - start) as usize, data)
}
