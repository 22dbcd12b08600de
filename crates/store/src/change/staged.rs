//! A change of content under construction: claims, new blocks and their table entries, released blocks, the commit.
//!
//! Invariants: nothing persistent has happened before [`Staged::commit`]; a change that is dropped without it gives all
//! claims back. Each claimed block is taken once; each released block has an owner and is released once.

use crate::change::map_changes::MapChanges;
use crate::change::record_room::OF_ENTRY;
use crate::lookup::data_checksum::checksum_of;
use crate::operation::need::{Attempt, Fail, Need};
use crate::store::Store;
use crate::types::BlockRange;
use crate::types::inode::Inode;
use smallvec::SmallVec;
use std::borrow::Cow;
use terrace_blocks::{Claim, State, Target};
use terrace_cache::PageKey;
use terrace_catalog::{DeviceRun, Freed, ShardsWrite};
use terrace_format::address::LINE_SIZE;
use terrace_format::checksum::crc32c;
use terrace_format::inode::InodeSlot;
use terrace_format::table::{DataChecksum, Entry, Owner};
use terrace_format::{BLOCK_SIZE, FileBlock, LineMask, Lsn, PmBlock, PmOffset};
use terrace_map::Mapping;
use terrace_runtime::planted::{Mistake, planted};
use terrace_wal::{Reservation, Tx};

/// New data up to this many bytes is named by checksum in the record.
pub const CHECKED_BYTES: u64 = 8192;

/// Bytes for a block that stays where it is.
struct InPlace<'a> {
    block: PmBlock,
    /// First byte in it.
    at: u64,
    bytes: Cow<'a, [u8]>,
}

/// A change of a file's content under construction. If it is dropped without [`Staged::commit`], its
/// claimed blocks are given back.
pub struct Staged<'a> {
    store: &'a Store,
    /// The transaction that the commit appends to the log.
    pub tx: Tx,
    claim: Option<Claim<'a>>,
    /// Changes of the file map, which the commit logs.
    map_changes: MapChanges,
    /// PM blocks whose owner the transaction removes.
    pub released: SmallVec<[PmBlock; 8]>,
    /// Device blocks that the transaction frees.
    pub(crate) device_freed: SmallVec<[DeviceRun; 2]>,
    /// Device blocks claimed for the transaction.
    pub device_claimed: Option<DeviceRun>,
    /// New blocks and their entries in the table, in claim order.
    entries: SmallVec<[(PmBlock, Entry); 4]>,
    /// Blocks newly allocated (positive) or freed, for st_blocks.
    pub blocks_delta: i64,
    /// Dirty pages without an allocated block that get one, or are dropped.
    pub placed: i64,
    /// Content that the record names, streamed with the record.
    data: SmallVec<[(PmOffset, Cow<'a, [u8]>); 2]>,
    /// Overwrites in place. The commit stores them, after the attempt's last possible need: an attempt that
    /// ends with a need must leave no trace.
    in_place: SmallVec<[InPlace<'a>; 1]>,
    /// A block stored in place must be fenced before the record unless its bytes are named.
    unnamed: bool,
    /// Counted after the commit: a locked instruction before it would wait for the streaming stores.
    stored_bytes: usize,
    checked: bool,
    /// Dirty pages that this change settles: dropped at the commit (S3).
    pub absorbed: SmallVec<[PageKey; 2]>,
    /// Dirty pages to drop at the commit.
    pub drop_dirty: Option<BlockRange>,
    /// Bytes of dirty pages to zero at the commit; each entry lies inside a block.
    pub zero_dirty: SmallVec<[(u64, u64); 2]>,
    /// The visible size after the commit; `None`: not less than before.
    pub visible: Option<u64>,
    done: bool,
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.released.iter().for_each(|block| self.store.persistent.blocks().keep(*block));
            if let Some(claim) = self.claim.take() {
                claim.give_back_all();
            }
            if let Some(run) = self.device_claimed {
                self.store.devices.space().release_claim(run);
            }
        }
    }
}

impl<'a> Staged<'a> {
    /// A change that may use the blocks of `claim`; `checked` when its data is little enough to be named.
    pub fn new(store: &'a Store, claim: Option<Claim<'a>>, checked: bool) -> Staged<'a> {
        Staged {
            store,
            tx: Tx::new(),
            claim,
            map_changes: MapChanges::default(),
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

    /// Takes the blocks over that pages were promised.
    pub fn join_claim(&mut self, claim: Claim<'a>) {
        match &mut self.claim {
            Some(joined) => joined.join(claim),
            none => *none = Some(claim),
        }
    }

    /// Promises of PM blocks that end with this change.
    pub(crate) fn ended_promises(&self) -> u64 {
        self.claim.as_ref().map_or(0, Claim::ended_promises)
    }

    /// PM blocks claimed and not yet taken.
    pub fn claimed(&self) -> usize {
        self.claim.as_ref().map_or(0, Claim::left)
    }

    /// Takes a claimed PM block for new content of a block of a file, or for a page.
    ///
    /// # Errors
    /// A larger claim is lacking.
    pub fn take(&mut self, target: Target) -> Attempt<PmBlock> {
        // The commit stores the data that the record names, so an attempt that ends with a need leaves no
        // trace.
        if planted(Mistake::FreedBeforeRecord)
            && self.checked
            && let Some(block) = self.released.pop()
        {
            return Ok(wrong::take_again(self.store, block));
        }
        self.claim.as_mut().and_then(|claim| claim.take(target)).ok_or(Fail::Need(Need::LargerClaim))
    }

    /// Streams bytes to a block that no reader can see yet. Bytes that the record names are streamed by the
    /// commit, directly before the fence.
    pub fn store(&mut self, block: PmBlock, at: u64, bytes: impl Into<Cow<'a, [u8]>>) -> Attempt<()> {
        let bytes = bytes.into();
        let end = at + bytes.len() as u64;
        debug_assert!(end <= BLOCK_SIZE, "bytes {at}..{end} of block {block} reach into the next block (I6)");
        self.stream(block.offset().plus(at), bytes, false).map(drop)
    }

    /// As [`Self::store`], of the whole content of a new block, whose first `covered` bytes its checksum is to cover, if
    /// the pool has checksums.
    pub(crate) fn store_content(
        &mut self,
        block: PmBlock,
        content: Cow<'a, [u8]>,
        covered: usize,
    ) -> Attempt<Option<DataChecksum>> {
        let length = content.len();
        debug_assert_eq!(
            length as u64, BLOCK_SIZE,
            "bytes of new block {block}: the rest would be undefined (S5)"
        );
        let is_whole = covered == length;
        let part = if is_whole { None } else { checksum_of(self.store, &content, covered) };
        let crc = self.stream(block.offset(), content, is_whole && self.store.mode.has_checksums)?;
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
            wrong::leave_edge(self.store, offset, &mut bytes)?;
        }
        if self.checked {
            self.data.push((offset, bytes));
        } else if wanted {
            crc = Some(self.store.persistent.pm().write_streaming_checked(offset, &bytes)?);
            self.unnamed = true;
        } else {
            self.store.persistent.pm().write_streaming(offset, &bytes)?;
            self.unnamed = true;
        }
        Ok(crc)
    }

    /// Stores what stays in its block. Gives what a planted mistake stores too late.
    fn overwrite(&mut self) -> Attempt<Vec<(PmOffset, Cow<'a, [u8]>)>> {
        let mut late = Vec::new();
        for InPlace { block, at, bytes } in std::mem::take(&mut self.in_place) {
            // The bytes may be named by the checksum of a lane's last record (T4).
            self.store.persistent.wal().confirm_named(block.offset().plus(at), bytes.len() as u64)?;
            let descriptor = self.store.persistent.blocks().descriptor(block);
            if !planted(Mistake::StaysCleanWhenWritten) {
                descriptor.set_clean(false);
            }
            self.store.persistent.blocks().bump(block);
            if let Some(tick) = self.store.steering.stamp() {
                descriptor.touch_written(tick);
            }
            match planted(Mistake::MaskBeforeLines) {
                true => late.push((block.offset().plus(at), bytes)),
                false => self.store(block, at, bytes)?,
            }
        }
        Ok(late)
    }

    /// After a commit that failed: the pages that were to get blocks are dirty still, and where no record was written the
    /// blocks that were to go have their owners.
    fn failed(&mut self) {
        if self.done {
            self.claim.iter_mut().for_each(Claim::renew_promises);
            if !self.store.persistent.wal().is_stopped() {
                self.released.iter().for_each(|block| self.store.persistent.blocks().keep(*block));
            }
        }
    }

    /// Gives a new block an owner; logged with the others by [`Self::log_entries`].
    pub fn own(&mut self, block: PmBlock, owner: Owner) {
        debug_assert_ne!(owner, Owner::Free, "claimed block {block} gets no owner (I6)");
        self.own_lines(block, owner, LineMask::FULL);
    }

    /// As [`Self::own`], of a written block with the checksum of its content.
    pub fn own_content(&mut self, block: PmBlock, owner: Owner, checksum: Option<DataChecksum>) {
        self.entries.push((block, Entry::with_checksum(owner, checksum)));
    }

    /// As [`Self::own`], of a block that holds some lines.
    pub fn own_lines(&mut self, block: PmBlock, owner: Owner, lines: LineMask) {
        debug_assert!(!lines.is_empty(), "owned block {block} has no line (design 4.2)");
        self.entries.push((block, Entry::new(owner, lines)));
    }

    /// Stores into a block that stays, at the commit.
    pub(crate) fn store_later(&mut self, block: PmBlock, at: usize, bytes: Cow<'a, [u8]>) {
        let end = (at + bytes.len()) as u64;
        assert!(end <= BLOCK_SIZE, "bytes {at}..{end} of block {block} reach into the next block (I6)");
        self.in_place.push(InPlace { block, at: at as u64, bytes });
    }

    /// Maps consecutive blocks of a file from `first` on; `None` clears. Logged by the commit, after all work on the
    /// catalog: a map may lock what inodes share (L1).
    ///
    /// # Errors
    /// Room in the map is lacking.
    pub fn change_map(
        &mut self,
        inode: &Inode,
        first: FileBlock,
        mappings: impl IntoIterator<Item = Option<Mapping>>,
    ) -> Attempt<()> {
        self.map_changes.push(self.store, inode, first, mappings)
    }

    /// Frees a block in this transaction. The caller holds the lock of its owner, and has seen that it has one.
    pub fn release(&mut self, block: PmBlock) {
        let descriptor = self.store.persistent.blocks().descriptor(block);
        // A lower version is that of an earlier change, whose commit failed: the block has its owner still.
        // The first block of this change has the lowest version of all.
        let first = self.released.first().map(|first| self.store.persistent.blocks().descriptor(*first));
        let twice = descriptor.state() == State::Quarantined
            && first.is_some_and(|first| descriptor.version() >= first.version());
        debug_assert!(!twice, "block {block} is released twice (I6)");
        self.store.persistent.blocks().release(&mut self.tx, block);
        self.released.push(block);
    }

    /// As [`Self::release`], of a block of a file that the new block `new` replaces.
    pub(crate) fn release_for(&mut self, block: PmBlock, new: PmBlock) {
        self.store.persistent.blocks().keep_choice(block, new);
        self.release(block);
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
            self.store.persistent.blocks().set_entries(&mut self.tx, first, &run);
        }
    }

    /// Whether it was committed, or may have been.
    pub(crate) fn is_done(&self) -> bool {
        self.done
    }

    /// Commits; afterwards the freed blocks wait for the checkpoint.
    pub fn commit(&mut self, reservation: Reservation<'_>) -> Attempt<Lsn> {
        assert!(!self.done, "a change with {} new blocks is committed twice (I1)", self.entries.len());
        let limit = reservation.bytes().saturating_sub(OF_ENTRY * self.entries.len());
        let guard = self.map_changes.log(self.store, &mut self.tx, limit, &mut self.released)?;
        self.log_entries();
        let late = self.overwrite()?;
        if self.unnamed {
            self.store.persistent.pm().order();
        }
        let committed = self.store.persistent.wal().commit_with_data(reservation, &self.tx, &self.data);
        // As `give_back_unless_named`: after any other failure the record may be valid. (After a failure of the
        // data alone no record was written; the claimed blocks are free again after the next mount.)
        self.done = !matches!(committed, Err(terrace_wal::Error::RecordTooLarge { .. }));
        guard.ended(&committed, self.store.persistent.wal().is_stopped());
        let lsn = committed.inspect_err(|_| self.failed())?;
        for (offset, bytes) in late {
            self.store.persistent.pm().write_streaming(offset, &bytes)?;
        }
        if self.stored_bytes > 0 {
            self.store.devices.io().pm.write(self.stored_bytes);
        }
        if !self.released.is_empty() {
            self.store.persistent.blocks().freed(lsn, &self.released);
        }
        if !self.device_freed.is_empty() {
            // Before another medium's blocks are reused the freeing record is durable (design 3, T6). Not here: locks are held.
            let (space, point) = (self.store.devices.space(), self.store.persistent.pm().point());
            self.device_freed.iter().for_each(|run| space.freed_at(*run, lsn, point));
        }
        if let Some(tick) = self.store.steering.stamp() {
            for (block, _) in &self.entries {
                self.store.persistent.blocks().descriptor(*block).touch_written(tick);
            }
        }
        Ok(lsn)
    }
}

/// Removes set-id bits, as a write by an unprivileged caller does.
pub fn kill_set_id(slot: &mut InodeSlot) {
    let mut mode = slot.mode.get();
    mode &= !0o4000;
    if mode & 0o010 != 0 {
        mode &= !0o2000;
    }
    slot.mode = mode.into();
}

/// Planted mistakes of this file.
mod wrong {
    use super::{Attempt, Cow, LINE_SIZE, PmBlock, PmOffset, Store};

    /// `freed-before-record`: a block that this change releases is used again by it.
    pub(super) fn take_again(store: &Store, block: PmBlock) -> PmBlock {
        store.persistent.blocks().keep(block);
        store.persistent.blocks().bump(block);
        store.persistent.blocks().descriptor(block).set_clean(false);
        block
    }

    /// `edge-line-not-written`: stores the last line of an unaligned range, which stays in the cache, and shortens the
    /// range by it.
    pub(super) fn leave_edge(store: &Store, offset: PmOffset, bytes: &mut Cow<'_, [u8]>) -> Attempt<()> {
        let end = offset.0 + bytes.len() as u64;
        let whole = bytes.len().saturating_sub((end % LINE_SIZE) as usize);
        store.persistent.pm().store(offset.plus(whole as u64), &bytes[whole..])?;
        match bytes {
            Cow::Borrowed(bytes) => *bytes = &bytes[..whole],
            Cow::Owned(bytes) => bytes.truncate(whole),
        }
        Ok(())
    }
}
