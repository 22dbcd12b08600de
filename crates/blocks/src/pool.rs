//! Claims, frees and the table scan.

use crate::bitmap::Bitmap;
use crate::descriptor::{Descriptor, State};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use terrace_format::table::{DataChecksum, Entry, MASK_FULL, Owner, TABLE_ENTRY_SIZE};
use terrace_format::{Corrupt, FileBlock, Ino, LineMask, Lsn, PmBlock};
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};
use terrace_wal::{Error, NoSpace, Result, Tx, Wal};
use zerocopy::little_endian::U64;

mod accounts;
pub use accounts::BlockAccounts;

/// Blocks scanned in one step.
const REGION: u64 = 8192;

/// The purpose of a claim. It decides the share of the reserve that the claim may take (design P1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// File data and new metadata of user operations: leaves the whole reserve.
    User,
    /// An overwrite on a full pool: in time it gives the old block back. Leaves half of the reserve for
    /// removal and an eighth for demotion.
    Overwrite,
    /// Demotion: leaves half of the reserve for removal.
    Demotion,
    /// Fetches of metadata pages, for a reader or for removal: leaves the half for removal and a part of
    /// demotion's share, so that demotion can make room for them.
    Fetch,
    /// Unlink, truncate, punch, intents: may take everything.
    Reclaim,
}

/// Numbers for status and back-pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Blocks that can be handed out at all.
    pub total: u64,
    /// Free now.
    pub free: u64,
    /// Freed, waiting for the checkpoint or for I/O pins.
    pub quarantined: u64,
    /// Not reached by the scan of the block table.
    pub unknown: u64,
    /// The reserve: kept back for removal and demotion.
    pub reserve: u64,
}

struct Space {
    free: Bitmap,
    quarantine: VecDeque<(Lsn, PmBlock)>,
    next_region: u64,
    /// Blocks that became free since the mount, each time counted.
    freed: u64,
}

/// All PM blocks of a pool.
pub struct BlockPool {
    wal: Arc<Wal>,
    first: PmBlock,
    count: u64,
    descriptors: Vec<Descriptor>,
    space: Mutex<Space>,
    /// The first entry of the table that could not be read by the scan.
    unreadable: Mutex<Option<Error>>,
    reserve: u64,
    next_version: AtomicU64,
    unknown: AtomicU64,
    free: AtomicU64,
}

/// Blocks taken for one operation. Those not given an owner go back when it is dropped.
#[must_use]
pub struct Claim<'a> {
    pool: &'a BlockPool,
    /// Ascending within each run; `take` hands them out in this order.
    blocks: SmallVec<[PmBlock; 4]>,
    next: usize,
}

impl Claim<'_> {
    /// The next claimed block; the caller gives it an owner in its transaction.
    pub fn take(&mut self) -> Option<PmBlock> {
        let block = self.blocks.get(self.next).copied()?;
        self.next += 1;
        Some(block)
    }
    /// Blocks not yet taken.
    pub fn left(&self) -> usize {
        self.blocks.len() - self.next
    }
    /// Gives taken blocks back as well: call when the transaction that would have owned them was not
    /// committed.
    pub fn give_back_all(mut self) {
        self.next = 0;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let rest = &self.blocks[self.next..];
        if !rest.is_empty() {
            let mut space = self.pool.space.lock();
            for block in rest {
                self.pool.put_free(&mut space, *block);
            }
        }
    }
}

impl BlockPool {
    /// The pool of a just opened log; nothing is known until the table is scanned.
    pub fn new(wal: Arc<Wal>) -> BlockPool {
        let geometry = *wal.geometry();
        let first = geometry.first_pool_block();
        let count = geometry.block_count();
        let descriptors: Vec<Descriptor> = (0..count).map(|_| Descriptor::default()).collect();
        descriptors.iter().take(first.0 as usize).for_each(|d| d.set_state(State::Used));
        let total = count - first.0;
        let space =
            Space { free: Bitmap::new(count), quarantine: VecDeque::new(), next_region: first.0, freed: 0 };
        BlockPool {
            wal,
            first,
            count,
            descriptors,
            space: Mutex::new(space),
            unreadable: Mutex::new(None),
            reserve: (total / 64).clamp(24, 4096),
            next_version: AtomicU64::new(1),
            unknown: AtomicU64::new(total),
            free: AtomicU64::new(0),
        }
    }

    /// The log.
    pub fn wal(&self) -> &Arc<Wal> {
        &self.wal
    }
    /// First block that can be handed out.
    pub fn first_block(&self) -> PmBlock {
        self.first
    }
    /// The block behind the last block.
    pub fn end_block(&self) -> PmBlock {
        PmBlock(self.count)
    }
    /// A block's volatile state. A number from a damaged map gives the superblock's, which is always
    /// used; readers verify ownership elsewhere.
    pub fn descriptor(&self, block: PmBlock) -> &Descriptor {
        &self.descriptors[if block.0 < self.count { block.0 as usize } else { 0 }]
    }
    /// Checks a block number read from a map or page.
    ///
    /// # Errors
    /// A number outside the pool.
    pub fn verify(&self, block: PmBlock, site: &str) -> Result<PmBlock> {
        if block < self.first || block.0 >= self.count {
            let expected = format!("a block from {} to {}", self.first, self.count - 1);
            return Err(Corrupt::new(site, expected, block.to_string()).into());
        }
        Ok(block)
    }

    /// A version never given before (design S6).
    pub fn new_version(&self) -> u64 {
        self.next_version.fetch_add(1, Ordering::Relaxed)
    }
    /// Bumps a block's version; call under the inode lock before the first store in place.
    pub fn bump(&self, block: PmBlock) {
        self.descriptor(block).set_version(self.new_version());
    }

    /// Free blocks, without the lock.
    pub fn free_hint(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// Blocks of which the scan after the mount has not said yet what they are.
    pub fn unknown_hint(&self) -> u64 {
        self.unknown.load(Ordering::Relaxed)
    }

    fn kept(&self, purpose: Purpose) -> u64 {
        match purpose {
            _ if planted(Mistake::ReserveOpenToAll) => 0,
            Purpose::User => self.reserve,
            Purpose::Overwrite => self.reserve / 8 * 5,
            Purpose::Fetch => self.reserve / 4 * 3,
            Purpose::Demotion => self.reserve / 2,
            Purpose::Reclaim => 0,
        }
    }

    /// Blocks of the reserve that a purpose may take.
    pub fn share(&self, purpose: Purpose) -> u64 {
        self.reserve - self.kept(purpose).min(self.reserve)
    }

    /// Whether one block could be claimed for a user's operation; scans and drains as [`Self::claim`] does.
    ///
    /// # Errors
    /// As [`Self::claim`].
    pub fn probe(&self) -> Result<()> {
        if self.free_hint() > self.reserve {
            return Ok(());
        }
        self.claim(1, Purpose::User).map(drop)
    }

    /// Takes `count` blocks, in as few runs as is cheap. Scans more of the table and empties the
    /// quarantine when short; a caller that holds no lock then asks for a checkpoint and tries again.
    ///
    /// # Errors
    /// `NoSpace::Pm` when fewer are free for this purpose; the medium's while scanning.
    pub fn claim(&self, count: usize, purpose: Purpose) -> Result<Claim<'_>> {
        let mut blocks = SmallVec::with_capacity(count);
        if count == 0 {
            return Ok(Claim { pool: self, blocks, next: 0 });
        }
        let mut space = self.space.lock();
        while space.free.count() < count as u64 + self.kept(purpose) {
            self.drain(&mut space);
            if space.free.count() >= count as u64 + self.kept(purpose) {
                break;
            }
            if !self.scan_region(&mut space)? {
                return Err(NoSpace::Pm.into());
            }
        }
        while blocks.len() < count {
            let left = (count - blocks.len()) as u64;
            let run = if left == 1 {
                space.free.take_lowest().map(|bit| (bit, 1))
            } else {
                space.free.take_run(left, left.min(32))
            };
            let Some((start, length)) = run else {
                blocks.iter().for_each(|block| self.put_free(&mut space, *block));
                return Err(NoSpace::Pm.into());
            };
            blocks.extend((start..start + length).map(PmBlock));
            self.free.store(space.free.count(), Ordering::Relaxed);
        }
        drop(space);
        for block in &blocks {
            let descriptor = self.descriptor(*block);
            descriptor.set_state(State::Used);
            descriptor.clear_flags();
            descriptor.set_version(self.new_version());
        }
        Ok(Claim { pool: self, blocks, next: 0 })
    }

    /// Logs a block's owner.
    #[inline]
    pub fn set_owner(&self, tx: &mut Tx, block: PmBlock, owner: Owner) {
        let mask = if owner == Owner::Free { 0 } else { MASK_FULL };
        if matches!(owner, Owner::Page { .. }) {
            self.wal.checksums().open(block);
        }
        tx.write_words(self.wal.geometry().table_entry(block), [U64::new(owner.encode()), U64::new(mask)]);
    }

    /// Logs the entries of consecutive new blocks in one write.
    pub fn set_entries(&self, tx: &mut Tx, first: PmBlock, entries: &[Entry]) {
        let mut bytes: SmallVec<[u8; 256]> = SmallVec::new();
        for (block, entry) in (first.0..).zip(entries) {
            if matches!(entry.owner, Owner::Page { .. }) {
                self.wal.checksums().open(PmBlock(block));
            }
            if !entry.lines.is_full() {
                // Before anybody can see the block. If the transaction is given up, the next claim takes it back.
                self.descriptor(PmBlock(block)).set_partial(true);
            }
            entry.encode().iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        }
        tx.write(self.wal.geometry().table_entry(first), &bytes);
    }

    /// Logs the owner of a whole block of a file with the checksum of its data, also of one that stays where it is. The
    /// caller holds its inode's exclusive lock.
    #[inline]
    pub fn set_checksum(&self, tx: &mut Tx, block: PmBlock, owner: Owner, checksum: Option<DataChecksum>) {
        let [word, second] = Entry::with_checksum(owner, checksum).encode();
        tx.write_words(self.wal.geometry().table_entry(block), [U64::new(word), U64::new(second)]);
    }

    /// The checksum of a block's data, if it has any. The caller holds its inode's lock.
    ///
    /// # Errors
    /// As [`Self::owner`].
    #[inline]
    pub fn checksum(&self, block: PmBlock) -> Result<Option<DataChecksum>> {
        Ok(self.entry(block)?.checksum)
    }

    /// Logs that a partial block holds these lines from now on. The caller holds its inode's exclusive lock.
    pub fn set_lines(&self, tx: &mut Tx, block: PmBlock, lines: LineMask) {
        tx.write_words(self.wal.geometry().table_entry(block).plus(8), [U64::new(lines.0)]);
    }

    /// The lines that a block holds which file block `of` of inode `ino` maps. The caller holds the inode's lock. Costs a
    /// look at the block table only where a block may be partial, was not scanned yet, or is met for the first time: its
    /// entry has to name the same file block, or one of the two is damaged, and nobody knows which (I6, I8). Such a block
    /// is handed out to nobody in this mount.
    ///
    /// # Errors
    /// The medium's; an entry that names another owner; an owned block without any line.
    #[inline]
    pub fn lines(&self, block: PmBlock, ino: Ino, of: FileBlock) -> Result<LineMask> {
        let descriptor = self.descriptor(block);
        // In this order: the scan marks a block before it makes it known.
        if descriptor.state() != State::Unknown && !descriptor.may_be_partial() && descriptor.is_confirmed() {
            return Ok(LineMask::FULL);
        }
        self.look_up_lines(block, ino, of)
    }

    fn look_up_lines(&self, block: PmBlock, ino: Ino, of: FileBlock) -> Result<LineMask> {
        let descriptor = self.descriptor(block);
        let entry = self.entry(block)?;
        match entry.owner {
            Owner::File { ino: owner, block: owned, .. } if (owner, owned) == (ino, of) => {}
            other => {
                self.withhold(block);
                let expected = format!("block {of} of inode {ino}");
                return Err(Corrupt::new(
                    format!("owner of PM block {block}"),
                    expected,
                    format!("{other:?}"),
                )
                .into());
            }
        }
        descriptor.set_confirmed();
        if descriptor.state() != State::Unknown && !descriptor.may_be_partial() {
            return Ok(LineMask::FULL);
        }
        if entry.lines.is_empty() {
            let site = format!("block table entry {block}");
            return Err(Corrupt::new(site, "lines of an owned block", "none").into());
        }
        Ok(entry.lines)
    }

    /// Takes a block out of the free ones for this mount: a map names it although the block table calls it free.
    fn withhold(&self, block: PmBlock) {
        let mut space = self.space.lock();
        let descriptor = self.descriptor(block);
        // Not scanned yet: the scan then leaves it alone.
        if descriptor.learn(State::Used) {
            self.unknown.fetch_sub(1, Ordering::Relaxed);
        } else if descriptor.state() == State::Free && space.free.take(block.0) {
            descriptor.set_state(State::Used);
            self.free.store(space.free.count(), Ordering::Relaxed);
        }
    }

    /// Logs that a block becomes free and quarantines it. After the commit call [`Self::freed`]; if the
    /// transaction is given up instead, [`Self::keep`].
    pub fn release(&self, tx: &mut Tx, block: PmBlock) {
        self.quarantine(block);
        self.set_owner(tx, block, Owner::Free);
    }

    /// The volatile half of [`Self::release`].
    pub fn quarantine(&self, block: PmBlock) {
        self.quarantine_as(block, self.new_version());
    }

    /// As [`Self::quarantine`], for a block that the just claimed block `new` replaces. Both get the version
    /// of `new`, which no other block has had.
    #[inline]
    pub fn quarantine_for(&self, block: PmBlock, new: PmBlock) {
        self.quarantine_as(block, self.descriptor(new).version());
    }

    fn quarantine_as(&self, block: PmBlock, version: u64) {
        let descriptor = self.descriptor(block);
        let unknown = descriptor.state() == State::Unknown;
        if unknown {
            // [`Self::keep`] makes it known without a look at its lines.
            descriptor.set_partial(true);
        }
        // The scan may meet the block at this moment: whoever moves it from unknown counts it.
        if unknown && descriptor.learn(State::Quarantined) {
            self.unknown.fetch_sub(1, Ordering::Relaxed);
        } else {
            descriptor.set_state(State::Quarantined);
        }
        descriptor.set_version(version);
    }

    /// Notes which record freed the blocks: they become free when the checkpoint has passed it.
    #[inline]
    pub fn freed(&self, lsn: Lsn, blocks: &[PmBlock]) {
        let mut space = self.space.lock();
        space.quarantine.extend(blocks.iter().map(|block| (lsn, *block)));
        if planted(Mistake::ReuseBeforeCheckpoint) {
            self.drain_passed(&mut space, Lsn(u64::MAX));
        }
    }

    /// Undoes [`Self::release`] of a transaction that was not committed.
    pub fn keep(&self, block: PmBlock) {
        self.descriptor(block).set_state(State::Used);
    }

    /// Moves what the checkpoint has passed from quarantine to free.
    pub fn drain_quarantine(&self) {
        self.drain(&mut self.space.lock());
    }

    fn drain(&self, space: &mut Space) {
        self.drain_passed(space, self.wal.checkpoint_lsn());
    }

    fn drain_passed(&self, space: &mut Space, passed: Lsn) {
        let mut pinned = Vec::new();
        while let Some((lsn, block)) = space.quarantine.front().copied() {
            if lsn >= passed {
                break;
            }
            space.quarantine.pop_front();
            if self.descriptor(block).is_pinned() {
                pinned.push((lsn, block));
            } else {
                self.put_free(space, block);
            }
        }
        space.quarantine.extend(pinned);
    }

    /// How often a block became free since the mount: tells who found none whether others were quicker.
    pub fn freed_so_far(&self) -> u64 {
        self.space.lock().freed
    }

    fn put_free(&self, space: &mut Space, block: PmBlock) {
        self.descriptor(block).set_state(State::Free);
        space.free.insert(block.0);
        space.freed += 1;
        self.free.store(space.free.count(), Ordering::Relaxed);
    }

    /// Scans one region of the table; false when all of it was scanned before.
    ///
    /// # Errors
    /// The medium's; an owner word that cannot be (the block then counts as used).
    pub fn scan_step(&self) -> Result<bool> {
        self.scan_region(&mut self.space.lock())
    }

    fn scan_region(&self, space: &mut Space) -> Result<bool> {
        let (start, end) = (space.next_region, (space.next_region + REGION).min(self.count));
        if start >= end {
            return Ok(false);
        }
        let mut entries = vec![0; ((end - start) * TABLE_ENTRY_SIZE) as usize];
        let at = self.wal.geometry().table_entry(PmBlock(start));
        let sound = self.wal.checksums().ensure_range(at, entries.len()).is_ok();
        if !sound || self.wal.pm().read(at, &mut entries).is_err() {
            self.read_entries(start, &mut entries);
        }
        for (block, entry) in (start..end).zip(entries.as_chunks::<16>().0) {
            let word = entry.first_chunk::<8>().map_or(1, |b| u64::from_le_bytes(*b));
            let descriptor = self.descriptor(PmBlock(block));
            if matches!(Owner::decode(word), Some(Owner::Page { .. })) {
                self.wal.checksums().met(PmBlock(block));
            }
            if word != 0 {
                // The block may have a new owner by now. A needless partial mark only costs looks at the
                // table.
                if Entry::may_be_partial(Entry::words(entry)) && !planted(Mistake::PartialCountsAsFull) {
                    descriptor.set_partial(true);
                }
                if descriptor.learn(State::Used) {
                    self.unknown.fetch_sub(1, Ordering::Relaxed);
                }
            } else if descriptor.learn(State::Free) {
                self.unknown.fetch_sub(1, Ordering::Relaxed);
                self.put_free(space, PmBlock(block));
            }
        }
        space.next_region = end;
        Ok(true)
    }

    /// Reads entries singly after the read of the whole region failed. Blocks with unreadable entries count
    /// as used; else a single bad line would end the search for free blocks and for victims.
    fn read_entries(&self, start: u64, entries: &mut [u8]) {
        let mut unreadable = 0;
        for (block, entry) in (start..).zip(entries.as_chunks_mut::<16>().0) {
            let at = self.wal.geometry().table_entry(PmBlock(block));
            let sound = self.wal.checksums().ensure_range(at, entry.len());
            if let Err(error) = sound.and_then(|()| Ok(self.wal.pm().read(at, entry)?)) {
                *entry = [0xff; 16];
                unreadable += 1;
                self.unreadable.lock().get_or_insert(error);
            }
        }
        tracing::error!("{unreadable} entries of the block table cannot be read, from block {start} on");
    }

    /// Why some blocks count as used that may be free.
    pub fn unreadable(&self) -> Option<Error> {
        self.unreadable.lock().clone()
    }

    /// Visits the blocks that are used and that files own, in the order of the table, which is read region by
    /// region. What cannot be read or understood is left out: who needs to know asks [`Self::owner`].
    pub fn visit_files(&self, visit: &mut dyn FnMut(PmBlock, &Descriptor, Ino, FileBlock)) {
        let mut entries = vec![0; (REGION * TABLE_ENTRY_SIZE) as usize];
        let mut start = self.first.0;
        while start < self.count {
            let end = (start + REGION).min(self.count);
            let part = &mut entries[..((end - start) * TABLE_ENTRY_SIZE) as usize];
            let at = self.wal.geometry().table_entry(PmBlock(start));
            let sound = self.wal.checksums().ensure_range(at, part.len()).is_ok();
            if sound && self.wal.pm().read(at, part).is_ok() {
                for (block, entry) in (start..end).zip(part.as_chunks::<16>().0) {
                    let word = entry.first_chunk::<8>().map_or(1, |b| u64::from_le_bytes(*b));
                    let descriptor = self.descriptor(PmBlock(block));
                    if word != 0
                        && descriptor.state() == State::Used
                        && let Some(Owner::File { ino, block: file_block, .. }) = Owner::decode(word)
                    {
                        visit(PmBlock(block), descriptor, ino, file_block);
                    }
                }
            }
            start = end;
        }
    }

    /// Reads a block's owner from the table.
    ///
    /// # Errors
    /// The medium's; an owner word that cannot be.
    #[inline]
    pub fn owner(&self, block: PmBlock) -> Result<Owner> {
        Ok(self.entry(block)?.owner)
    }

    #[inline]
    fn entry(&self, block: PmBlock) -> Result<Entry> {
        let at = self.wal.geometry().table_entry(block);
        self.wal.checksums().ensure_range(at, TABLE_ENTRY_SIZE as usize)?;
        let word = self.wal.pm().load_u64(at)?;
        Entry::decode([word, self.wal.pm().load_u64(at.plus(8))?]).ok_or_else(|| {
            let site = format!("block table entry {block}");
            Corrupt::new(site, "a known owner", format!("{word:#x}")).into()
        })
    }

    /// Present numbers.
    pub fn usage(&self) -> Usage {
        let space = self.space.lock();
        Usage {
            total: self.count - self.first.0,
            free: space.free.count(),
            quarantined: space.quarantine.len() as u64,
            unknown: self.unknown.load(Ordering::Relaxed),
            reserve: self.reserve,
        }
    }
}
