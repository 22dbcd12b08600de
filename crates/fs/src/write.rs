//! Writes (design 5): new blocks by streaming stores, one transaction for map, block table, size and
//! times, one fence in all.
//!
//! `data=atomic`: every written block is a new one, so a request is all or nothing (I4). The exception
//! stores bytes past the end of the file into its last block in place: nobody can see them before the
//! record raises the size. `data=ordered`: blocks that exist are overwritten in place.
//! T4: up to [`CHECKED_BYTES`] of new data are named by checksum and share the record's fence; more gets
//! a fence of its own, which is cheaper than the checksums.

use crate::data_checksum::covered;
use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::migration::final_no_space;
use crate::op::{Attempt, Fail, Need, Op, SMALL_RECORD};
use crate::partial::{Outcome, Part};
use crate::slot::{Inode, log_slot};
use crate::types::{BlockRange, Wait, WriteFlags};
use crate::write_block::WholeBlock;
use smallvec::SmallVec;
use std::borrow::Cow;
use terrace_blocks::{Claim, Purpose};
use terrace_cache::{DirtyPage, PageKey};
use terrace_catalog::DeviceRun;
use terrace_catalog::{Freed, ShardsWrite};
use terrace_format::address::{LINE_SIZE, MAX_FILE_BLOCK, MAX_FILE_SIZE};
use terrace_format::checksum::crc32c;
use terrace_format::inode::{InodeSlot, flag};
use terrace_format::keys::ColdExtent;
use terrace_format::table::{DataChecksum, Entry, Owner};
use terrace_format::{BLOCK_SIZE, FileBlock, Ino, LineMask, Lsn, PmBlock, PmOffset};
use terrace_map::Mapping;
use terrace_placement::Home;
use terrace_runtime::interleave;
use terrace_runtime::planted::{Mistake, planted};
use terrace_wal::{Error, Reservation, Tx};

/// New data up to this many bytes is named by checksum in the record.
const CHECKED_BYTES: u64 = 8192;
/// Record bytes per written block, in the worst case: map word, new table entry, old table entry, each
/// a write of its own.
const RECORD_PER_BLOCK: usize = 16 + 24 + 24;
/// Record bytes besides: header, slot, data checks, leaf boundaries.
const RECORD_FIXED: usize = 512;

const BLOCK: usize = BLOCK_SIZE as usize;

/// Bytes to put into a file.
#[derive(Clone, Copy)]
pub(crate) struct Segment<'a> {
    pub offset: u64,
    pub length: u64,
    /// `None`: zeros, and only where something else would be read.
    pub data: Option<&'a [u8]>,
}

impl Segment<'_> {
    /// The blocks it touches.
    pub fn blocks(&self) -> BlockRange {
        let end = self.offset + self.length;
        BlockRange::new(FileBlock(self.offset / BLOCK_SIZE), FileBlock(end.div_ceil(BLOCK_SIZE)))
    }
}

/// Bytes for a block that stays where it is.
struct InPlace<'a> {
    block: PmBlock,
    /// First byte in it.
    at: u64,
    bytes: Cow<'a, [u8]>,
}

/// A change of a file's content under construction. Dropped without [`Staged::committed`], it gives
/// back what it claimed.
pub(crate) struct Staged<'a> {
    fs: &'a Fs,
    pub tx: Tx,
    claim: Option<Claim<'a>>,
    /// PM blocks that lose their owner in this transaction.
    pub released: SmallVec<[PmBlock; 8]>,
    /// Device blocks that become free with it.
    pub device_freed: SmallVec<[DeviceRun; 2]>,
    /// Device blocks claimed for it.
    pub device_claimed: Option<DeviceRun>,
    /// New blocks and their entries in the table, in claim order.
    entries: SmallVec<[(PmBlock, Entry); 4]>,
    /// Blocks newly allocated (positive) or freed, for st_blocks.
    pub blocks_delta: i64,
    /// Dirty pages without a place on any medium that get one, or go.
    pub placed: i64,
    /// Content that the record names, streamed with it.
    data: SmallVec<[(PmOffset, Cow<'a, [u8]>); 2]>,
    /// What is overwritten in place: stored by the commit, when nothing is lacking any more, because an
    /// attempt that ends with a need must have changed nothing.
    in_place: SmallVec<[InPlace<'a>; 1]>,
    /// A block stored in place must be fenced before the record unless its bytes are named.
    unnamed: bool,
    /// Counted when all is done: a locked instruction would wait for the streams.
    stored_bytes: usize,
    checked: bool,
    /// Dirty pages whose content this change contains: dropped when it is committed (S3).
    absorbed: SmallVec<[PageKey; 2]>,
    /// Dirty pages to drop when it is committed.
    pub drop_dirty: Option<BlockRange>,
    /// Bytes of dirty pages to zero when it is committed; each entry inside one block.
    pub zero_dirty: SmallVec<[(u64, u64); 2]>,
    /// The size that callers see from then on; `None`: not less than before.
    pub visible: Option<u64>,
    done: bool,
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.released.iter().for_each(|block| self.fs.blocks.keep(*block));
            if let Some(claim) = self.claim.take() {
                claim.give_back_all();
            }
            if let Some(run) = self.device_claimed {
                self.fs.devices.space.release_claim(run);
            }
        }
    }
}

impl<'a> Staged<'a> {
    /// A change that may use the blocks of `claim`; `checked` when its data is little enough to be named.
    pub fn new(fs: &'a Fs, claim: Option<Claim<'a>>, checked: bool) -> Staged<'a> {
        Staged {
            fs,
            tx: Tx::new(),
            claim,
            released: SmallVec::new(),
            device_freed: SmallVec::new(),
            device_claimed: None,
            entries: SmallVec::new(),
            blocks_delta: 0,
            placed: 0,
            data: SmallVec::new(),
            in_place: SmallVec::new(),
            unnamed: false,
            stored_bytes: 0,
            checked,
            absorbed: SmallVec::new(),
            drop_dirty: None,
            zero_dirty: SmallVec::new(),
            visible: None,
            done: false,
        }
    }

    /// PM blocks claimed and not yet taken.
    pub fn claimed(&self) -> usize {
        self.claim.as_ref().map_or(0, Claim::left)
    }

    /// How far the file is on media once the absorbed pages are: the end of the last of them, or the visible end.
    pub fn absorbed_end(&self, inode: &Inode) -> u64 {
        let last = self.absorbed.iter().map(|key| (key.block.0 + 1) * BLOCK_SIZE).max();
        last.map_or(0, |end| end.min(inode.size()))
    }

    /// This change contains the content of a dirty page.
    pub fn absorb(&mut self, page: &DirtyPage) {
        self.absorbed.push(page.key);
    }

    pub fn take(&mut self) -> Attempt<PmBlock> {
        // What is named is stored by the commit: an attempt that is given up has changed nothing.
        if planted(Mistake::FreedBeforeRecord)
            && self.checked
            && let Some(block) = self.released.pop()
        {
            self.fs.blocks.keep(block);
            self.fs.blocks.bump(block);
            self.fs.blocks.descriptor(block).set_clean(false);
            return Ok(block);
        }
        self.claim.as_mut().and_then(Claim::take).ok_or(Fail::Need(Need::LargerClaim))
    }

    /// Streams bytes to a block that nobody can see yet: named ones at the commit, so that nothing comes
    /// between their stream and the fence.
    pub fn store(&mut self, block: PmBlock, at: u64, bytes: impl Into<Cow<'a, [u8]>>) -> Attempt<()> {
        self.stream(block.offset().plus(at), bytes.into(), false).map(drop)
    }

    /// As [`Self::store`], of the whole content of a new block, whose first `covered` bytes its checksum is to cover, if
    /// the pool has checksums.
    pub fn store_content(
        &mut self,
        block: PmBlock,
        content: Cow<'a, [u8]>,
        covered: usize,
    ) -> Attempt<Option<DataChecksum>> {
        let is_whole = covered == content.len();
        let part = if is_whole { None } else { self.fs.checksum_of(&content, covered) };
        let crc = self.stream(block.offset(), content, is_whole && self.fs.has_checksums)?;
        Ok(part.or(crc.and_then(|crc| DataChecksum::from_crc(covered, crc))))
    }

    /// Streams bytes; gives their CRC if it is `wanted`.
    fn stream(&mut self, offset: PmOffset, mut bytes: Cow<'a, [u8]>, wanted: bool) -> Attempt<Option<u32>> {
        self.stored_bytes += bytes.len();
        let mut crc = None;
        if self.checked {
            let of_bytes = crc32c(&bytes);
            self.tx.name_data(offset, bytes.len() as u32, of_bytes);
            crc = Some(of_bytes).filter(|_| wanted);
        }
        if planted(Mistake::EdgeLineNotWritten) {
            self.leave_edge(offset, &mut bytes)?;
        }
        if self.checked {
            self.data.push((offset, bytes));
        } else if wanted {
            crc = Some(self.fs.pm.write_streaming_checked(offset, &bytes)?);
            self.unnamed = true;
        } else {
            self.fs.pm.write_streaming(offset, &bytes)?;
            self.unnamed = true;
        }
        Ok(crc)
    }

    /// Stores the last line of an unaligned range, which stays in the cache, and shortens the range by it.
    fn leave_edge(&self, offset: PmOffset, bytes: &mut Cow<'a, [u8]>) -> Attempt<()> {
        let end = offset.0 + bytes.len() as u64;
        let whole = bytes.len().saturating_sub((end % LINE_SIZE) as usize);
        self.fs.pm.store(offset.plus(whole as u64), &bytes[whole..])?;
        match bytes {
            Cow::Borrowed(bytes) => *bytes = &bytes[..whole],
            Cow::Owned(bytes) => bytes.truncate(whole),
        }
        Ok(())
    }

    /// Stores what stays in its block. Gives what a planted mistake stores too late.
    fn overwrite(&mut self) -> Attempt<Vec<(PmOffset, Cow<'a, [u8]>)>> {
        let mut late = Vec::new();
        for InPlace { block, at, bytes } in std::mem::take(&mut self.in_place) {
            // The bytes may be named by the checksum of a lane's last record (T4).
            self.fs.wal.confirm_named(block.offset().plus(at), bytes.len() as u64)?;
            let descriptor = self.fs.blocks.descriptor(block);
            if !planted(Mistake::StaysCleanWhenWritten) {
                descriptor.set_clean(false);
            }
            self.fs.blocks.bump(block);
            if let Some(tick) = self.fs.stamp() {
                descriptor.touch_written(tick);
            }
            match planted(Mistake::MaskBeforeLines) {
                true => late.push((block.offset().plus(at), bytes)),
                false => self.store(block, at, bytes)?,
            }
        }
        Ok(late)
    }

    /// Gives a new block an owner; logged with the others by [`Self::log_entries`].
    pub fn own(&mut self, block: PmBlock, owner: Owner) {
        self.own_lines(block, owner, LineMask::FULL);
    }

    /// As [`Self::own`], of a written block with the checksum of its content.
    pub fn own_content(&mut self, block: PmBlock, owner: Owner, checksum: Option<DataChecksum>) {
        self.entries.push((block, Entry::with_checksum(owner, checksum)));
    }

    /// As [`Self::own`], of a block that holds some lines.
    pub fn own_lines(&mut self, block: PmBlock, owner: Owner, lines: LineMask) {
        self.entries.push((block, Entry::new(owner, lines)));
    }

    /// Stores into a block that stays, at the commit.
    pub fn store_later(&mut self, block: PmBlock, at: usize, bytes: Cow<'a, [u8]>) {
        self.in_place.push(InPlace { block, at: at as u64, bytes });
    }

    /// Frees a block in this transaction.
    pub fn release(&mut self, block: PmBlock) {
        self.fs.blocks.release(&mut self.tx, block);
        self.released.push(block);
    }

    /// Unlinks catalog leaves that this transaction emptied. Call last, before the commit.
    pub fn unlink_emptied(&mut self, shards: &mut ShardsWrite<'_>) -> Attempt<()> {
        let mut freed = Freed::default();
        let done = shards.unlink_emptied(&mut self.tx, &mut freed);
        self.released.extend(freed.0);
        Ok(done?)
    }

    /// Logs the entries of new blocks, consecutive ones as one write.
    fn log_entries(&mut self) {
        let mut at = 0;
        while at < self.entries.len() {
            let first = self.entries[at].0;
            let mut run: SmallVec<[Entry; 8]> = SmallVec::new();
            while at < self.entries.len() && self.entries[at].0.0 == first.0 + run.len() as u64 {
                run.push(self.entries[at].1);
                at += 1;
            }
            self.fs.blocks.set_entries(&mut self.tx, first, &run);
        }
    }

    /// Commits; afterwards the freed blocks wait for the checkpoint.
    pub fn commit(&mut self, reservation: Reservation<'_>) -> Attempt<Lsn> {
        self.log_entries();
        let late = self.overwrite()?;
        if self.unnamed {
            self.fs.pm.order();
        }
        let committed = self.fs.wal.commit_with_data(reservation, &self.tx, &self.data);
        // A record that failed on the way may be valid: what it gives to files must not be handed out again.
        self.done = !matches!(committed, Err(terrace_wal::Error::RecordTooLarge { .. }));
        let lsn = committed?;
        for (offset, bytes) in late {
            self.fs.pm.write_streaming(offset, &bytes)?;
        }
        if self.stored_bytes > 0 {
            self.fs.io.pm.write(self.stored_bytes);
        }
        if !self.released.is_empty() {
            self.fs.blocks.freed(lsn, &self.released);
        }
        if !self.device_freed.is_empty() {
            // Before another medium's blocks are reused the freeing record is persisted (design 3, T6).
            self.fs.pm.persist();
            self.device_freed.iter().for_each(|run| self.fs.devices.space.freed(*run, lsn));
        }
        if let Some(tick) = self.fs.stamp() {
            for (block, _) in &self.entries {
                self.fs.blocks.descriptor(*block).touch_written(tick);
            }
        }
        Ok(lsn)
    }
}

/// What lies under the blocks of a segment.
struct Under {
    mappings: SmallVec<[Option<Mapping>; 8]>,
    cold: Vec<ColdExtent>,
}

impl Under {
    fn cold_at(&self, block: FileBlock) -> Option<&ColdExtent> {
        self.cold.iter().find(|extent| extent.first <= block && block < extent.end())
    }
}

impl Fs {
    /// Most blocks of one write transaction: what a quarter lane records, at most 1 MiB (design I4).
    pub(crate) fn atomic_blocks(&self) -> u64 {
        let fit = (self.wal.max_record() - RECORD_FIXED) / RECORD_PER_BLOCK;
        (fit as u64).min((1 << 20) / BLOCK_SIZE)
    }

    /// Writes `data` at `offset` and gives the bytes written: all of them, or the pieces before the one that
    /// failed, or that would have to wait when the caller may not (the rest is for a waiting thread, L2). A request of
    /// up to the atomic write size (min(1 MiB, what a quarter lane records)) is one piece, all or nothing
    /// after a crash under data=atomic.
    ///
    /// # Errors
    /// EFBIG beyond 16 TiB, ENOSPC when no tier can take it, EISDIR and EINVAL for other inodes, EIO.
    pub fn write(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        wait: Wait,
    ) -> FsResult<usize> {
        // What fits below the largest size is written, as on Linux; nothing beyond.
        let room = MAX_FILE_SIZE.saturating_sub(offset);
        if room == 0 && !data.is_empty() {
            return Err(FsError::TooLarge);
        }
        let data = &data[..data.len().min(room.try_into().unwrap_or(usize::MAX))];
        self.expect_use(ino);
        let whole = Segment { offset, length: data.len() as u64, data: Some(data) };
        let mut home = None;
        if self.is_pm_short() {
            home = Some(self.with_pages(wait, || self.ask_home(ino, &whole, flags))?);
            if home == Some(Home::Pm) {
                self.wait_for_demotion(wait)?;
            }
        }
        let end = offset + data.len() as u64;
        if planted(Mistake::SizeBeforeBlocks) && self.getattr(ino)?.size < end {
            self.extend(ino, end, wait)?;
        }
        if home != Some(Home::Block) && data.len() == BLOCK && offset.is_multiple_of(BLOCK_SIZE) {
            match self.write_whole_block(ino, FileBlock(offset / BLOCK_SIZE), data, flags)? {
                WholeBlock::Written => {
                    if flags.sync {
                        self.pm.persist();
                    }
                    return Ok(data.len());
                }
                WholeBlock::Home(chosen) => home = Some(chosen),
                WholeBlock::Unknown => {}
            }
        }
        let home = home.map_or_else(|| self.with_pages(wait, || self.ask_home(ino, &whole, flags)), Ok)?;
        if home == Home::Block {
            return self.write_below(ino, offset, data, flags, wait);
        }
        match self.write_pm(ino, offset, data, flags, wait) {
            Ok((done, Rest::Behind)) => {
                // Others have written into DRAM before it since its home was chosen: it goes behind them.
                match self.write_below(ino, offset + done as u64, &data[done..], flags, wait) {
                    Err(_) if done > 0 => Ok(done),
                    written => Ok(done + written?),
                }
            }
            // A full PM is not a full file system (I9), whatever keeps it full.
            Err(full @ (FsError::Engine(Error::NoSpace(_)) | FsError::SpaceHidden(_)))
                if self.has_buffer() =>
            {
                let taken = self.write_buffered(ino, offset, data, flags, wait);
                taken.map_err(|error| if error.can_fall_back_to_pm() { full } else { error })
            }
            written => Ok(written?.0),
        }
    }

    /// Writes into DRAM; into PM what neither DRAM nor the lower tiers take now, after what lies before it in the file, as
    /// far as PM has room.
    fn write_below(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        wait: Wait,
    ) -> FsResult<usize> {
        let refused = match self.write_buffered(ino, offset, data, flags, wait) {
            Err(error) if error.can_fall_back_to_pm() => error,
            taken => return taken,
        };
        for _ in 0..MOST_BEHIND {
            let is_waiting = self.unwritten.get(ino).is_some();
            if is_waiting && wait != Wait::Allowed {
                return Err(FsError::WouldBlock);
            }
            if is_waiting && !self.wal.is_stopped() && self.keep_in_pm(ino, wait).is_err() {
                // The end of it may be in DRAM: what is written before that needs nothing of it.
                tracing::debug!("inode {ino}: not all that waits in DRAM fits into persistent memory");
            }
            let (done, rest) = self.write_pm(ino, offset, data, flags, wait)?;
            if rest == Rest::Nothing || done > 0 {
                return Ok(done);
            }
        }
        Err(refused)
    }

    /// Writes into PM; gives the bytes written, and why the rest was not.
    fn write_pm(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        wait: Wait,
    ) -> FsResult<(usize, Rest)> {
        let mut op = Op { may_overwrite: true, ..Op::new(wait) };
        let mut at = offset;
        let mut rest = data;
        let mut why = Rest::Nothing;
        let mut most = self.atomic_blocks();
        while !rest.is_empty() {
            let room = (most * BLOCK_SIZE - at % BLOCK_SIZE) as usize;
            let (piece, tail) = rest.split_at(rest.len().min(room));
            if at != offset {
                interleave::point("write:between-pieces");
            }
            let segment = Segment { offset: at, length: piece.len() as u64, data: Some(piece) };
            match self.write_piece(&mut op, ino, segment, flags) {
                Ok(true) => {}
                Ok(false) => {
                    why = Rest::Behind;
                    break;
                }
                // The kernel would drop all of these pages for the error.
                Err(FsError::Engine(Error::NoSpace(_))) if flags.pages && segment.blocks().count() > 1 => {
                    most = segment.blocks().count().div_ceil(2);
                    continue;
                }
                // What is in the file was written, whatever became of the rest.
                Err(_) if at != offset => break,
                Err(error) => return Err(error),
            }
            at += piece.len() as u64;
            rest = tail;
        }
        if flags.sync {
            self.pm.persist();
        }
        Ok((data.len() - rest.len(), why))
    }

    /// Writes a piece into PM; false, changing nothing, when bytes that are only in DRAM lie between the durable end and
    /// its own: a crash would leave a hole (C28). Asked under the lock: others may have written since its home was chosen.
    fn write_piece(&self, op: &mut Op, ino: Ino, segment: Segment<'_>, flags: WriteFlags) -> FsResult<bool> {
        let blocks = segment.blocks().count() as usize;
        let record = record_of(blocks).max(SMALL_RECORD);
        let mut first_seen = None;
        self.run(op, record, |reservation, op| {
            let overwrites = op.purpose == Purpose::Overwrite;
            let wanted = if overwrites { self.blocks_to_claim(ino, segment.blocks())? } else { blocks };
            if overwrites && (wanted + op.extra) as u64 > self.blocks.share(op.purpose) {
                // There is never room for all of it at once, and a part would be half a request (C13).
                return Err(op.refused.take().unwrap_or_else(final_no_space).into());
            }
            // The old last block, whose tail may have to become zeros, rarely needs one more.
            let claim = self.blocks.claim(wanted + op.extra, op.purpose)?;
            let _guard = self.locks.write(ino);
            let inode = self.load_regular(ino)?;
            if flags.kill_set_id {
                self.expect_no_capability(&inode)?;
            }
            let seen = *first_seen.get_or_insert(inode.durable_size());
            let mut staged = Staged::new(self, Some(claim), segment.length <= CHECKED_BYTES);
            let end = segment.offset + segment.length;
            if !flags.sync && inode.size() > inode.durable_size() && end > inode.durable_size() {
                return Ok(false);
            }
            self.stage_tail_zeros(op, &inode, segment.offset, &mut staged)?;
            self.stage(op, &inode, segment, &mut staged)?;
            let mut slot = inode.slot;
            let size = if planted(Mistake::SizeFromBeforeTheWait) { seen } else { inode.durable_size() };
            slot.size = size.max(end).max(staged.absorbed_end(&inode)).into();
            if flags.kill_set_id {
                kill_set_id(&mut slot);
            }
            self.finish_change(reservation, &inode, slot, staged)?;
            self.note_write(&inode, segment.blocks(), segment.length, flags, Home::Pm);
            Ok(true)
        })
    }

    /// Blocks that a write to a range needs on a full pool: those that are laid out in PM are written where they are, and
    /// under data=ordered so are all that PM has.
    fn blocks_to_claim(&self, ino: Ino, range: BlockRange) -> Attempt<usize> {
        let _guard = self.locks.read(ino);
        let inode = self.load_regular(ino)?;
        let mut mappings: SmallVec<[Option<Mapping>; 8]> = SmallVec::from_elem(None, range.count() as usize);
        self.map.lookup_run(None, &inode.map(), range.first, &mut mappings)?;
        let stays = |mapping: &Mapping| mapping.unwritten || self.data_ordered;
        Ok(mappings.iter().filter(|mapping| !mapping.as_ref().is_some_and(stays)).count())
    }

    /// Loads an inode that must be a regular file.
    pub(crate) fn load_regular(&self, ino: Ino) -> FsResult<Inode> {
        let inode = self.load(ino)?;
        expect_regular(&inode)?;
        Ok(inode)
    }

    /// As [`Self::load_regular`], for who only reads.
    pub(crate) fn load_regular_to_read(&self, ino: Ino) -> FsResult<Inode> {
        let inode = self.load_to_read(ino)?;
        expect_regular(&inode)?;
        Ok(inode)
    }

    /// Logs times and st_blocks besides what the caller changed in `slot`, and commits.
    pub(crate) fn finish_change(
        &self,
        reservation: Reservation<'_>,
        inode: &Inode,
        mut slot: InodeSlot,
        mut staged: Staged<'_>,
    ) -> Attempt<Lsn> {
        let now = self.now();
        slot.mtime = now.into();
        slot.ctime = now.into();
        slot.blocks = slot.blocks.get().saturating_add_signed(staged.blocks_delta).into();
        log_slot(&mut staged.tx, inode.place, &inode.slot, &slot);
        let lsn = staged.commit(reservation)?;
        if inode.pending.is_some() {
            for (from, to) in std::mem::take(&mut staged.zero_dirty) {
                self.zero_dirty(inode, from, to);
            }
            if let Some(range) = staged.drop_dirty {
                self.drop_dirty_range(inode, range);
            }
        }
        self.settle_absorbed(inode, &slot, &staged);
        Ok(lsn)
    }

    /// Drops the dirty pages that a committed change contains, and brings the inode's entry up to date.
    pub(crate) fn settle_absorbed(&self, inode: &Inode, slot: &InodeSlot, staged: &Staged<'_>) {
        let dropped = staged.absorbed.iter().filter(|key| self.cache.drop_dirty(**key)).count();
        if dropped > 0 {
            self.devices.space.unreserve(dropped as u64);
        }
        let visible = staged.visible.unwrap_or(inode.size().max(slot.size.get()));
        self.settle(inode, slot, visible, staged.placed);
    }

    /// A size raised to or past `from` exposes bytes of the old last block past the old end: they become
    /// zeros in the same transaction (design S5). A write that starts in that block clears them itself.
    pub(crate) fn stage_tail_zeros(
        &self,
        op: &mut Op,
        inode: &Inode,
        from: u64,
        staged: &mut Staged<'_>,
    ) -> Attempt<()> {
        let block_end = inode.durable_size().next_multiple_of(BLOCK_SIZE);
        if from < block_end { Ok(()) } else { self.stage_raised(op, inode, from, staged) }
    }

    /// As [`Self::stage_tail_zeros`] when the size is raised to `size` without a write.
    pub(crate) fn stage_raised(
        &self,
        op: &mut Op,
        inode: &Inode,
        size: u64,
        staged: &mut Staged<'_>,
    ) -> Attempt<()> {
        let old = inode.durable_size();
        let end = old.next_multiple_of(BLOCK_SIZE).min(size);
        if old >= end {
            return Ok(());
        }
        self.stage(op, inode, Segment { offset: old, length: end - old, data: None }, staged)
    }

    /// Puts a segment's bytes into new blocks, or past the end of the last one in place, and logs the map.
    pub(crate) fn stage<'a>(
        &self,
        op: &mut Op,
        inode: &Inode,
        segment: Segment<'a>,
        staged: &mut Staged<'a>,
    ) -> Attempt<()> {
        let range = segment.blocks();
        if range.is_empty() {
            return Ok(());
        }
        if range.end.0 > MAX_FILE_BLOCK.0 + 1 {
            return Err(FsError::TooLarge.into());
        }
        self.refuse_intents(inode, range)?;
        let under = self.look_under(inode, range)?;
        let mut mappings: SmallVec<[Option<Mapping>; 8]> = under.mappings.clone();
        let mut changed = false;
        for index in 0..range.count() as usize {
            let block = range.first.plus(index as u64);
            if let Some(new) = self.stage_block(op, inode, &segment, block, &under, index, staged)? {
                mappings[index] = Some(new);
                changed = true;
            }
        }
        // Before map nodes are made for it: only what takes the place of other data may use the reserve.
        if op.purpose == Purpose::Overwrite && staged.blocks_delta > 0 {
            return Err(op.refused.take().unwrap_or_else(final_no_space).into());
        }
        if changed {
            let missing = self.map.missing_nodes(&inode.map(), range.first, mappings.len())?;
            if missing > 0 {
                let count = range.count();
                return Err(Need::MapNodes { ino: inode.ino, first: range.first, count }.into());
            }
            self.map.set(&mut staged.tx, &inode.map(), range.first, &mappings)?;
        }
        Ok(())
    }

    fn look_under(&self, inode: &Inode, range: BlockRange) -> Attempt<Under> {
        let mut mappings: SmallVec<[Option<Mapping>; 8]> = SmallVec::new();
        mappings.resize(range.count() as usize, None);
        self.map.lookup_run(None, &inode.map(), range.first, &mut mappings)?;
        for (index, mapping) in (0..).zip(&mappings) {
            if let Some(mapping) = mapping {
                self.check_owner(inode, range.first.plus(index), mapping.block)?;
            }
        }
        let cold =
            if inode.slot.has(flag::HAS_COLD) { self.cold_extents(inode.ino, range)? } else { Vec::new() };
        Ok(Under { mappings, cold })
    }

    /// One block of a segment. Gives the new mapping, or `None` when the block stays where it is.
    #[allow(clippy::too_many_arguments)] // one step of `stage`, split off for its length
    fn stage_block<'a>(
        &self,
        op: &mut Op,
        inode: &Inode,
        segment: &Segment<'a>,
        block: FileBlock,
        under: &Under,
        index: usize,
        staged: &mut Staged<'a>,
    ) -> Attempt<Option<Mapping>> {
        let start = block.0 * BLOCK_SIZE;
        let from = segment.offset.max(start) - start;
        let to = (segment.offset + segment.length).min(start + BLOCK_SIZE) - start;
        let (from, to) = (from as usize, to as usize);
        let data = segment.data.map(|data| {
            let skip = (start + from as u64 - segment.offset) as usize;
            &data[skip..skip + (to - from)]
        });
        let old = under.mappings[index];
        let cold = under.cold_at(block);
        let whole = to - from == BLOCK;
        let valid = inode.durable_size().saturating_sub(start).min(BLOCK_SIZE) as usize;
        // Zeros that are only for the medium go below a dirty page.
        let dirty = match inode.pending {
            Some(_) if data.is_some() => self.cache.dirty(inode.page_key(block)),
            _ => None,
        };
        let lines = old.map_or(Ok(LineMask::FULL), |old| self.lines_of(inode.ino, block, old))?;
        if dirty.is_none() && !whole && self.is_by_lines(old, lines, cold, valid) {
            let part = Part { block, old, lines, from, to, data, valid };
            match self.stage_lines(inode, &part, staged)? {
                Outcome::Moved(new) => return Ok(Some(new)),
                Outcome::Stays => return Ok(None),
                Outcome::NeedsRest => {}
            }
        } else if let Some(old) = old.filter(|old| !old.unwritten && dirty.is_none() && lines.is_full()) {
            let beyond_end = from >= valid && !whole;
            let owner = Owner::File { ino: inode.ino, block, unwritten: false };
            // A punch is whole or not at all, data=ordered or not (docs/semantics.md): its zeros need a new block.
            if (beyond_end || self.data_ordered && data.is_some())
                && self.store_in_place((old.block, owner), valid.min(from), from, to, data, staged)?
            {
                return Ok(None);
            }
        }
        // How far the file will be on media.
        let end = inode.size().max(segment.offset + segment.length);
        let nothing_there = match old {
            Some(old) => old.unwritten,
            None => cold.is_none_or(|extent| extent.unwritten),
        };
        let Some(data) = data else {
            if nothing_there {
                return Ok(None);
            }
            let seen = (old, lines, nothing_there);
            return self.merge_block(op, inode, block, seen, (from, to, end), None, valid, staged);
        };
        staged.absorbed.extend(dirty.as_ref().map(|dirty| dirty.key));
        if old.is_none() && cold.is_none() {
            staged.blocks_delta += 1;
            staged.placed += i64::from(dirty.is_some());
        }
        if let Some(old) = old.filter(|old| old.unwritten) {
            // Nobody sees the bytes before the record that says they are written.
            let content: Cow<'a, [u8]> = match (&dirty, whole) {
                (_, true) => data.into(),
                (dirty, false) => {
                    let mut content =
                        dirty.as_ref().map_or(vec![0; BLOCK], |dirty| dirty.page.bytes().to_vec());
                    content[from..to].copy_from_slice(data);
                    content.into()
                }
            };
            let checksum = self.checksum_of(&content, covered(start, end));
            staged.store_later(old.block, 0, content);
            let owner = Owner::File { ino: inode.ino, block, unwritten: false };
            staged.own_content(old.block, owner, checksum);
            return Ok(Some(Mapping::written(old.block)));
        }
        if whole {
            return self.replace(inode, block, old, (data.into(), end), staged).map(Some);
        }
        if let Some(dirty) = dirty {
            return self.merge_dirty(inode, &dirty, old, (from, data), end, staged).map(Some);
        }
        let seen = (old, lines, nothing_there);
        self.merge_block(op, inode, block, seen, (from, to, end), Some(data), valid, staged)
    }

    /// A new block from a dirty page and the segment's part of it, which begins at a byte of the block. `end`: how far
    /// the file will be on media.
    pub(crate) fn merge_dirty(
        &self,
        inode: &Inode,
        dirty: &DirtyPage,
        old: Option<Mapping>,
        (from, data): (usize, &[u8]),
        end: u64,
        staged: &mut Staged<'_>,
    ) -> Attempt<Mapping> {
        let mut content = dirty.page.bytes().to_vec();
        content[from..from + data.len()].copy_from_slice(data);
        self.replace(inode, dirty.key.block, old, (content.into(), end), staged)
    }

    /// A new block from the old content and the segment's part of it.
    #[allow(clippy::too_many_arguments)]
    fn merge_block(
        &self,
        op: &mut Op,
        inode: &Inode,
        block: FileBlock,
        (old, lines, nothing_there): (Option<Mapping>, LineMask, bool),
        (from, to, end): (usize, usize, u64),
        data: Option<&[u8]>,
        valid: usize,
        staged: &mut Staged<'_>,
    ) -> Attempt<Option<Mapping>> {
        let mut content = vec![0; BLOCK];
        if !nothing_there && valid > 0 {
            match old {
                Some(old) if lines.is_full() => self.read_verified(old.block, &mut content)?,
                Some(old) => {
                    let page = self.page_below(op, inode, block, block.plus(1))?;
                    content.copy_from_slice(page.bytes());
                    self.read_lines(old.block, lines, &mut content)?;
                }
                None => content.copy_from_slice(self.fetched_block(op, inode, block)?.bytes()),
            }
            // Bytes past the end are undefined on media (S5).
            content[valid..].fill(0);
        }
        match data {
            Some(data) => content[from..to].copy_from_slice(data),
            None => content[from..to].fill(0),
        }
        self.replace(inode, block, old, (content.into(), end), staged).map(Some)
    }

    /// A new block with this content, all of it, in place of the old one. `end`: how far the file will be on media.
    fn replace<'a>(
        &self,
        inode: &Inode,
        block: FileBlock,
        old: Option<Mapping>,
        (content, end): (Cow<'a, [u8]>, u64),
        staged: &mut Staged<'a>,
    ) -> Attempt<Mapping> {
        let new = staged.take()?;
        let checksum = staged.store_content(new, content, covered(block.0 * BLOCK_SIZE, end))?;
        staged.own_content(new, Owner::File { ino: inode.ino, block, unwritten: false }, checksum);
        if let Some(old) = old {
            staged.release(old.block);
        }
        Ok(Mapping::written(new))
    }

    /// Stores into a block that stays: past the end of the file (`zeros_from` < `from` clears the gap
    /// between), or anywhere under data=ordered. False, changing nothing, where its checksum covers other bytes than
    /// those before: the block has to be a new one.
    fn store_in_place<'a>(
        &self,
        (block, owner): (PmBlock, Owner),
        zeros_from: usize,
        from: usize,
        to: usize,
        data: Option<&'a [u8]>,
        staged: &mut Staged<'a>,
    ) -> Attempt<bool> {
        let first = zeros_from.min(from);
        let bytes: Cow<'a, [u8]> = match data {
            Some(data) if first == from => data.into(),
            data => {
                let mut content = vec![0; to - first];
                if let Some(data) = data {
                    content[from - first..].copy_from_slice(data);
                }
                content.into()
            }
        };
        if self.has_checksums
            && let Some(checksum) = self.blocks.checksum(block)?
        {
            let longer = if checksum.covered() == first { checksum.append(&bytes) } else { None };
            if longer.is_some() {
                self.blocks.set_checksum(&mut staged.tx, block, owner, longer);
            } else if data.is_some() || self.is_sound(block)? {
                return Ok(false);
            }
            // Zeros past the end go into a damaged block as it is: it stays damaged, and what follows it in the file can
            // become durable.
        }
        staged.store_later(block, first, bytes);
        Ok(true)
    }

    /// Whether a writer that comes too fast has to wait a little, before PM is full (design 5).
    fn is_pm_short(&self) -> bool {
        self.blocks.free_hint() < self.pressure.throttle_below()
    }
}

#[inline]
pub(crate) fn expect_regular(inode: &Inode) -> FsResult<()> {
    if inode.slot.is_directory() {
        Err(FsError::IsDirectory)
    } else if !inode.slot.is_regular() {
        Err(FsError::Invalid)
    } else {
        Ok(())
    }
}

/// Record bytes for new content of so many blocks, in the worst case.
pub(crate) fn record_of(blocks: usize) -> usize {
    RECORD_FIXED + RECORD_PER_BLOCK * (blocks + 1)
}

/// Removes set-id bits as a write by somebody without the privilege does.
pub(crate) fn kill_set_id(slot: &mut InodeSlot) {
    let mut mode = slot.mode.get();
    mode &= !0o4000;
    if mode & 0o010 != 0 {
        mode &= !0o2000;
    }
    slot.mode = mode.into();
}

/// Why a write into PM ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// All was written, or what failed is the caller's to try again.
    Nothing,
    /// The rest lies behind bytes that are only in DRAM.
    Behind,
}

/// How often a writer whose bytes nobody takes puts what is before them into PM, when others write there meanwhile.
const MOST_BEHIND: u32 = 3;

/// What a claim of user data is for.
pub(crate) const USER: Purpose = Purpose::User;
