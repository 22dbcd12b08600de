//! Metadata pages below PM, the way up (design C1, docs/decisions/0014): what an operation meets there is fetched
//! without locks, put into PM by a transaction of its own, and pinned until the operation ends. For a reader that PM has no block
//! for, a copy in DRAM does (P1).
//!
//! Invariants: the device block is pinned from before its location is read until its page is in PM, so that an unchanged
//! location means an unchanged page; a fetch needs nothing that lies below (chunk bitmaps are always in PM). Lock order:
//! inode stripes of the page, catalog shards, inode numbers.

use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::mount::MetadataMoves;
use crate::op::{Attempt, Fail, Need, Op, SMALL_RECORD};
use crate::types::Wait;
use crate::write::Staged;
use smallvec::SmallVec;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use terrace_blocks::{BlockPool, Purpose};
use terrace_catalog::{DeviceRun, PageCopy, Pin, ShardsWrite, chunks};
use terrace_format::below::{Below, Identity, is_below, unseal};
use terrace_format::inode::SLOTS_PER_PAGE;
use terrace_format::keys::{Key, Kind};
use terrace_format::table::{Owner, PageKind};
use terrace_format::{Corrupt, FileBlock, Ino, PmBlock};
use terrace_media::block::AlignedBlock;
use terrace_runtime::interleave;
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};
use terrace_wal::{Error, NoSpace, PageBelow, Reservation};

/// Leaves that an open for writing brings up: the extents of a file of 200 MiB at least. Half a second on a disk.
const MOST_LEAVES: u32 = 64;

/// One part in so many of PM may be metadata that opens bring up.
const MOST_OF_PM: u64 = 4;

/// Pages that one operation pins; with one more it drops what it has.
const MOST_PINS: usize = 64;

/// Copies of pages below that are kept for readers to come: 1 MiB.
const MOST_COPIES: usize = 256;

/// State of the moves of metadata pages.
pub(crate) struct MetadataPages {
    /// Pages can move below in this mount.
    pub possible: bool,
    /// They do by themselves; else only as many as were fetched, where what is asked for has no room in PM.
    pub allowed: bool,
    /// They do whenever they are cold, not only when PM is scarce: for tests.
    pub eager: bool,
    /// Where the clock hand stands.
    pub hand: Mutex<Hand>,
    /// Pins of all operations, and how many there may be.
    pins: AtomicU64,
    most_pins: u64,
    /// Since when data should leave PM and cannot, plus one; 0 while it can.
    stuck_since_ns: AtomicU64,
    /// Leaves that opens brought up in this turn of the hand.
    pub brought: AtomicU64,
    /// Pages moved since mount.
    pub lowered: AtomicU64,
    pub fetched: AtomicU64,
    /// Copies that readers made because PM had no room, the last ones.
    copies: Mutex<VecDeque<Arc<PageCopy>>>,
    /// Copies made since mount.
    pub copied: AtomicU64,
}

/// The clock hand over PM blocks.
#[derive(Default)]
pub(crate) struct Hand {
    /// The next block.
    pub next: u64,
    /// Metadata pages seen in this turn, in the turn before.
    pub seen: u64,
    pub last_turn: u64,
}

impl MetadataPages {
    /// `possible`: the pool has the feature and a device, and may be changed.
    pub fn new(possible: bool, moves: MetadataMoves, blocks: u64) -> MetadataPages {
        MetadataPages {
            possible,
            allowed: possible && moves != MetadataMoves::Never,
            eager: moves == MetadataMoves::Always,
            hand: Mutex::default(),
            pins: AtomicU64::new(0),
            most_pins: blocks / 4,
            stuck_since_ns: AtomicU64::new(0),
            brought: AtomicU64::new(0),
            lowered: AtomicU64::new(0),
            fetched: AtomicU64::new(0),
            copies: Mutex::default(),
            copied: AtomicU64::new(0),
        }
    }
}

impl MetadataPages {
    /// Takes notice of whether data cannot leave PM; for how many nanoseconds that has been so.
    pub fn data_is_stuck_for(&self, is_stuck: bool, now_ns: u64) -> u64 {
        let before = self.stuck_since_ns.load(Ordering::Relaxed);
        let since = if before == 0 { now_ns + 1 } else { before };
        self.stuck_since_ns.store(if is_stuck { since } else { 0 }, Ordering::Relaxed);
        (now_ns + 1).saturating_sub(since)
    }

    /// Counts a pin of an operation; false when operations hold as many as they may.
    fn take_pin(&self) -> bool {
        if self.pins.load(Ordering::Relaxed) >= self.most_pins {
            return false;
        }
        self.pins.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Ends pins of an operation.
    fn give_pins(&self, count: usize) {
        self.pins.fetch_sub(count as u64, Ordering::Relaxed);
    }

    /// Pins that operations hold.
    pub fn held_pins(&self) -> u64 {
        self.pins.load(Ordering::Relaxed)
    }

    /// Copies kept for readers to come, each with a pin of its place.
    pub fn kept_copies(&self) -> u64 {
        self.copies.lock().len() as u64
    }

    /// Pages that may move below now.
    pub fn may_move(&self) -> u64 {
        let (fetched, lowered) = (self.fetched.load(Ordering::Relaxed), self.lowered.load(Ordering::Relaxed));
        match (self.possible, self.allowed) {
            (false, _) => 0,
            (true, true) => u64::MAX,
            (true, false) => fetched.saturating_sub(lowered),
        }
    }
}

/// Pages that stay in PM, and copies in DRAM, until this is dropped.
#[derive(Default)]
pub(crate) struct PagePins {
    of: Option<(Arc<BlockPool>, Arc<MetadataPages>)>,
    held: SmallVec<[PmBlock; 4]>,
    copies: Vec<Arc<PageCopy>>,
}

impl PagePins {
    fn pin(&mut self, blocks: &Arc<BlockPool>, metadata: &Arc<MetadataPages>, page: PmBlock) {
        if self.held.len() >= MOST_PINS {
            self.release();
        }
        if metadata.take_pin() {
            self.of.get_or_insert_with(|| (Arc::clone(blocks), Arc::clone(metadata)));
            blocks.descriptor(page).pin();
            self.held.push(page);
        }
    }

    fn keep(&mut self, copy: Arc<PageCopy>) {
        if self.copies.len() >= MOST_PINS {
            self.copies.clear();
        }
        self.copies.push(copy);
    }

    fn release(&mut self) {
        if let Some((blocks, metadata)) = &self.of {
            metadata.give_pins(self.held.len());
            self.held.drain(..).for_each(|page| blocks.descriptor(page).unpin());
        }
    }
}

impl Drop for PagePins {
    fn drop(&mut self) {
        self.release();
    }
}

fn identity_of(page: &PageBelow) -> Identity {
    match page {
        PageBelow::Leaf { shard, .. } => Identity::Catalog { shard: *shard },
        PageBelow::Inodes { index } => Identity::Inodes { index: *index },
    }
}

/// The inodes of a page of the inode file; their locks are the page's.
pub(crate) fn inodes_of(index: u64) -> Vec<Ino> {
    (index * SLOTS_PER_PAGE..(index + 1) * SLOTS_PER_PAGE).map(Ino).collect()
}

/// A page as it was found below.
struct Found {
    word: u64,
    place: Below,
    pin: Pin,
}

impl Found {
    fn run(&self) -> DeviceRun {
        DeviceRun { device: self.place.device, start: self.place.block, length: 1 }
    }
}

/// What an attempt to install gives; it lacks nothing but space in a sound pool.
fn settled<T>(attempt: Attempt<T>) -> FsResult<T> {
    match attempt {
        Ok(value) => Ok(value),
        Err(Fail::Error(error)) => Err(error),
        Err(Fail::Need(Need::PmSpace | Need::LargerClaim)) => Err(NoSpace::Pm.into()),
        Err(Fail::Need(need)) => {
            let site = "what the fetch of a metadata page lacks";
            Err(Corrupt::new(site, "nothing but space", format!("{need:?}")).into())
        }
    }
}

impl Fs {
    /// Runs what is no transaction and may meet metadata below PM; again after each page that it lacked. It holds no lock
    /// when it returns.
    pub(crate) fn with_pages<T>(&self, wait: Wait, body: impl FnMut() -> FsResult<T>) -> FsResult<T> {
        // Each fetch gives back a device block, room for a page to move down: it may use the reserve.
        self.run_with_pages(|| Op::reclaiming(wait), body)
    }

    fn run_with_pages<T>(
        &self,
        new_op: impl Fn() -> Op,
        mut body: impl FnMut() -> FsResult<T>,
    ) -> FsResult<T> {
        let mut fetching: Option<(Op, BTreeSet<PageBelow>, u32)> = None;
        loop {
            match body() {
                Err(FsError::Engine(Error::PageBelow(page))) => {
                    let (op, met, provided) = fetching.get_or_insert_with(|| (new_op(), BTreeSet::new(), 0));
                    // A large file has more pages than an operation may lack things: what counts is that the same one
                    // comes back again and again.
                    if met.insert((*page).clone()) {
                        *provided = 0;
                    }
                    self.provide(op, Need::MetadataPage(page), provided)?;
                }
                other => return other,
            }
        }
    }

    /// As [`Self::with_pages`], for who only reads ([`Self::load_to_read`]): what PM has no room for is read past it.
    ///
    /// # Errors
    /// The body's; `WouldBlock`; EIO. Never for want of space, nor because nothing may be changed.
    pub(crate) fn reading<T>(&self, wait: Wait, body: impl FnMut() -> FsResult<T>) -> FsResult<T> {
        self.run_with_pages(|| Op::reading(wait), body)
    }

    /// Brings a page into PM and pins it for the operation; does nothing when it is there. For an operation that only reads
    /// a copy in DRAM is enough.
    ///
    /// # Errors
    /// `WouldBlock`; ENOSPC when there is no PM block, unless the operation only reads; EIO, also of a copy that is not the
    /// page.
    pub(crate) fn fetch_page(&self, op: &mut Op, page: &PageBelow) -> FsResult<()> {
        if op.wait != Wait::Allowed {
            return Err(FsError::WouldBlock);
        }
        // Its place in PM could not be recorded.
        if self.wal.is_stopped() && !op.only_reads {
            return Err(FsError::NotDurable);
        }
        let identity = identity_of(page);
        let Some(found) = self.find_below(page)? else {
            return Ok(());
        };
        let bytes = self.read_copy(identity, &found)?;
        interleave::point("fetch:read");
        if op.only_reads && self.read_only {
            return self.keep_aside(op, page, found, &bytes);
        }
        match self.install_page(op, page, &found, &bytes) {
            Err(FsError::Engine(Error::NoSpace(_) | Error::Stopped)) if op.only_reads => {
                self.keep_aside(op, page, found, &bytes)
            }
            installed => {
                if let Some(new) = installed? {
                    self.forget_copies(identity, found.word);
                    op.pages.pin(&self.blocks, &self.metadata, new);
                    self.metadata.fetched.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            }
        }
    }

    /// Puts a page that was read into PM; `None` when it lies there meanwhile.
    fn install_page(
        &self,
        op: &Op,
        page: &PageBelow,
        found: &Found,
        bytes: &[AlignedBlock; 1],
    ) -> FsResult<Option<PmBlock>> {
        let reservation = self.wal.reserve(SMALL_RECORD.min(self.wal.max_record()))?;
        // Never the last blocks: without them nothing could move down to make room.
        let purpose = if op.purpose == Purpose::Reclaim { Purpose::Fetch } else { op.purpose };
        let claim = self.blocks.claim(1, purpose)?;
        let staged = Staged::new(self, Some(claim), false);
        settled(match page {
            PageBelow::Leaf { shard, key } => {
                self.install_leaf(reservation, staged, (*shard, key), found, bytes)
            }
            PageBelow::Inodes { index } => self.install_inodes(reservation, staged, *index, found, bytes),
        })
    }

    /// Keeps a page that was read for a reader in DRAM.
    fn keep_aside(
        &self,
        op: &mut Op,
        page: &PageBelow,
        found: Found,
        bytes: &[AlignedBlock; 1],
    ) -> FsResult<()> {
        let (identity, location) = (identity_of(page), found.word);
        let [AlignedBlock(bytes)] = bytes;
        let copy = Arc::new(PageCopy { identity, location, bytes: *bytes, pin: found.pin });
        self.catalog.aside().put(&copy);
        // Moved to PM meanwhile: nobody finds it by this location any more, and its place is free (S6).
        if self.find_below(page)?.is_none_or(|found| found.word != location) {
            self.catalog.aside().forget(identity, location);
            return Ok(());
        }
        self.metadata.copied.fetch_add(1, Ordering::Relaxed);
        op.pages.keep(Arc::clone(&copy));
        let mut copies = self.metadata.copies.lock();
        copies.push_back(copy);
        let gone = if copies.len() > MOST_COPIES { copies.pop_front() } else { None };
        drop((copies, gone));
        Ok(())
    }

    /// A page has moved to PM: the place of its copies is not held back any longer.
    fn forget_copies(&self, identity: Identity, location: u64) {
        self.catalog.aside().forget(identity, location);
        let mut copies = self.metadata.copies.lock();
        let is_of = |copy: &Arc<PageCopy>| (copy.identity, copy.location) == (identity, location);
        let gone = copies.iter().position(is_of).and_then(|at| copies.remove(at));
        drop((copies, gone));
    }

    /// Brings up the leaves that writes to a file need, so that none of them waits for a device (I10). The file is open,
    /// so that they stay ([`Fs::lower_leaf`] looks under the lock that this reads with). At most [`MOST_LEAVES`], while PM has room
    /// and metadata not much of it; what cannot be read, or lies on a device that gives no answer, is left to those who need it.
    ///
    /// # Errors
    /// `WouldBlock`.
    pub(crate) fn fetch_leaves(&self, ino: Ino, wait: Wait) -> FsResult<()> {
        let (first, last) =
            (Key::new(ino.0, Kind::Xattr, &[]), Key::intent(ino, FileBlock(u64::from(u32::MAX))));
        let shard = self.catalog.shard_of(ino.0);
        let mut left = MOST_LEAVES;
        let fetched = self.with_pages(wait, || {
            let found = {
                let guard = self.catalog.read(shard);
                let key = guard.reader().leaf_below(&first, &last)?;
                let place = |key: &Vec<u8>| guard.reader().leaf_location(shard, key);
                key.as_ref().map(place).transpose()?.flatten().and_then(Below::decode).zip(key)
            };
            let Some((place, key)) = found else { return Ok(()) };
            let silent = self.io.is_silent(place.device, self.clock.monotonic_ns());
            if left == 0 || silent || !self.may_bring_leaves() {
                return Ok(());
            }
            left -= 1;
            self.metadata.brought.fetch_add(1, Ordering::Relaxed);
            Err(Error::from(PageBelow::Leaf { shard, key }).into())
        });
        match fetched {
            Err(error @ FsError::WouldBlock) => Err(error),
            Err(error) => {
                tracing::debug!("inode {}: its extents stay below until they are needed: {error}", ino.0);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn may_bring_leaves(&self) -> bool {
        let metadata = self.metadata.hand.lock().last_turn + self.metadata.brought.load(Ordering::Relaxed);
        self.blocks.free_hint() >= self.pressure.throttle_below()
            && metadata < self.blocks.usage().total / MOST_OF_PM
    }

    /// Location and pin together, under the page's lock (S6, S7); `None` when it is in PM.
    fn find_below(&self, page: &PageBelow) -> FsResult<Option<Found>> {
        let found = |word: Option<u64>| -> FsResult<Option<Found>> {
            let Some(word) = word.filter(|word| is_below(*word)) else {
                return Ok(None);
            };
            let place = Below::decode(word).ok_or_else(|| {
                Corrupt::new(format!("{page}"), "a location that can be", format!("{word:#x}"))
            })?;
            let run = DeviceRun { device: place.device, start: place.block, length: 1 };
            Ok(Some(Found { word, place, pin: self.devices.space.pin(run) }))
        };
        match page {
            PageBelow::Leaf { shard, key } => {
                let guard = self.catalog.read(*shard);
                found(guard.reader().leaf_location(*shard, key)?)
            }
            PageBelow::Inodes { index } => {
                let _guard = self.locks.read(Ino(index * SLOTS_PER_PAGE));
                found(self.inode_map.location(None, *index)?)
            }
        }
    }

    /// Reads and checks the copy.
    fn read_copy(&self, identity: Identity, found: &Found) -> FsResult<[AlignedBlock; 1]> {
        let mut block = [AlignedBlock::zeroed()];
        let medium = self.devices.medium(found.place.device)?;
        self.pressure.permits().away(|| medium.read(found.place.block, &mut block))?;
        let [AlignedBlock(bytes)] = &mut block;
        if let Err(error) = unseal(bytes, &self.seal_key, identity, found.word) {
            self.devices.note_damage(found.place.device, found.place.block, identity);
            return Err(error.into());
        }
        Ok(block)
    }

    /// Brings up an inode page for its free slots. When pages below cannot be read a new one is added instead.
    ///
    /// # Errors
    /// `WouldBlock`; ENOSPC.
    pub(crate) fn fetch_numbers(&self, op: &mut Op, index: u64) -> FsResult<()> {
        match self.fetch_page(op, &PageBelow::Inodes { index }) {
            Err(error @ (FsError::WouldBlock | FsError::Engine(Error::NoSpace(_)))) => Err(error),
            Err(error) => {
                tracing::warn!("free inodes below are not used until the next mount: {error}");
                self.numbers.lock().give_up_below();
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// The new page, its owner, and the device block that becomes free.
    fn stage_fetched<'a>(
        &self,
        staged: &mut Staged<'a>,
        shards: &mut ShardsWrite<'_>,
        owner: Owner,
        found: &Found,
        bytes: &'a [AlignedBlock; 1],
    ) -> Attempt<PmBlock> {
        let new = staged.take()?;
        let [AlignedBlock(bytes)] = bytes;
        staged.store(new, 0, bytes.as_slice())?;
        staged.own(new, owner);
        self.stage_device_free(found.run(), shards, staged)?;
        staged.unlink_emptied(shards)?;
        self.blocks.descriptor(new).set_in_use();
        Ok(new)
    }

    fn install_leaf<'a>(
        &'a self,
        reservation: Reservation<'_>,
        mut staged: Staged<'a>,
        (shard, key): (u32, &[u8]),
        found: &Found,
        bytes: &'a [AlignedBlock; 1],
    ) -> Attempt<Option<PmBlock>> {
        let mut locked = chunks::shards(&self.catalog, found.run());
        locked.push(shard);
        let mut shards = self.catalog.write(&locked);
        if shards.reader(&staged.tx).leaf_location(shard, key)? != Some(found.word) {
            return Ok(None);
        }
        let owner = Owner::Page { kind: PageKind::CatalogPage, datum: shard };
        let new = self.stage_fetched(&mut staged, &mut shards, owner, found, bytes)?;
        if !shards.set_leaf_location(&mut staged.tx, shard, key, found.word, new.0)? {
            return Ok(None);
        }
        staged.commit(reservation)?;
        Ok(Some(new))
    }

    fn install_inodes<'a>(
        &'a self,
        reservation: Reservation<'_>,
        mut staged: Staged<'a>,
        index: u64,
        found: &Found,
        bytes: &'a [AlignedBlock; 1],
    ) -> Attempt<Option<PmBlock>> {
        let _guards = self.locks.write_many(&inodes_of(index));
        let mut shards = self.catalog.write(&chunks::shards(&self.catalog, found.run()));
        let mut numbers = self.numbers.lock();
        if self.inode_map.location(None, index)? != Some(found.word) {
            return Ok(None);
        }
        let owner = Owner::Page { kind: PageKind::InodePage, datum: index as u32 };
        let new = self.stage_fetched(&mut staged, &mut shards, owner, found, bytes)?;
        self.inode_map.set_location(&mut staged.tx, index, new.0)?;
        staged.commit(reservation)?;
        let [AlignedBlock(bytes)] = bytes;
        numbers.learn(index, bytes);
        self.inode_pages.put(index, new);
        Ok(Some(new))
    }
}
