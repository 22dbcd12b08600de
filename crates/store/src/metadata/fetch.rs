//! Metadata pages below PM, the way up (design C1, docs/decisions/0014): what an operation meets there is fetched
//! without locks, put into PM by a transaction of its own, and pinned until the operation ends. For a reader that PM has no block
//! for, a copy in DRAM does (P1).
//!
//! Invariants: the device block is pinned from before its location is read until its page is in PM, so that an unchanged
//! location means an unchanged page; a fetch needs nothing that lies below (chunk bitmaps are always in PM). Lock order:
//! inode stripes of the page, catalog shards, inode numbers.

use crate::attempt::with_pages::{settled, with_pages};
use crate::change::shards::stage_device_free;
use crate::change::staged::Staged;
use crate::error::{FsError, FsResult};
use crate::operation::need::Attempt;
use crate::operation::op::{Op, SMALL_RECORD};
use crate::operation::page_pins::MOST_COPIES;
use crate::parts::persistent::metadata_pages::{METADATA_PM_DIVISOR, MOST_LEAVES};
use crate::store::Store;
use crate::types::Wait;
use std::sync::Arc;
use terrace_blocks::{Purpose, Target};
use terrace_catalog::{DeviceRun, PageCopy, ShardsWrite, chunks};
use terrace_format::below::{Below, Identity, is_below, unseal};
use terrace_format::inode::SLOTS_PER_PAGE;
use terrace_format::keys::{Key, Kind};
use terrace_format::table::{Owner, PageKind};
use terrace_format::{Corrupt, FileBlock, Ino, PmBlock};
use terrace_media::block::AlignedBlock;
use terrace_runtime::interleave;
use terrace_runtime::sync::atomic::Ordering;
use terrace_space::Pin;
use terrace_wal::{Error, PageBelow, Reservation};

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

/// A metadata page as it was found on a lower tier.
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

/// Fetches a metadata page into PM with a page pin for the operation; does nothing if the page lies in PM. An
/// operation that only reads may get a copy in DRAM instead.
///
/// # Errors
/// `WouldBlock`; ENOSPC when there is no PM block, unless the operation only reads; EIO, also of a copy that is not the
/// page.
pub fn fetch_page(store: &Store, op: &mut Op, page: &PageBelow) -> FsResult<()> {
    if op.wait != Wait::Allowed {
        return Err(FsError::WouldBlock);
    }
    // A stopped log cannot record the page's location in PM.
    if store.persistent.wal().is_stopped() && !op.only_reads {
        return Err(FsError::NotDurable);
    }
    let identity = identity_of(page);
    let Some(found) = find_below(store, page)? else {
        return Ok(());
    };
    let bytes = read_copy(store, identity, &found)?;
    interleave::point("fetch:read");
    if op.only_reads && store.mode.read_only {
        return keep_aside(store, op, page, found, &bytes);
    }
    match install_page(store, op, page, &found, &bytes) {
        Err(FsError::Engine(Error::NoSpace(_) | Error::Stopped)) if op.only_reads => {
            keep_aside(store, op, page, found, &bytes)
        }
        installed => {
            if let Some(new) = installed? {
                forget_copies(store, identity, found.word);
                op.pages.pin(store.persistent.blocks(), store.persistent.metadata_pages(), new);
                store.persistent.metadata_pages().fetched.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        }
    }
}

/// Installs a fetched page in PM; `None` if another thread has installed it meanwhile.
fn install_page(
    store: &Store,
    op: &Op,
    page: &PageBelow,
    found: &Found,
    bytes: &[AlignedBlock; 1],
) -> FsResult<Option<PmBlock>> {
    let reservation =
        store.persistent.wal().reserve(SMALL_RECORD.min(store.persistent.wal().max_record()))?;
    // Never the last blocks: demotion needs them to make room.
    let purpose = if op.purpose == Purpose::Reclaim { Purpose::Fetch } else { op.purpose };
    let claim = store.persistent.blocks().claim(1, purpose)?;
    let staged = Staged::new(store, Some(claim), false);
    settled(match page {
        PageBelow::Leaf { shard, key } => {
            install_leaf(store, reservation, staged, (*shard, key), found, bytes)
        }
        PageBelow::Inodes { index } => install_inodes(store, reservation, staged, *index, found, bytes),
    })
}

/// Keeps a page that was read for a reader in DRAM.
fn keep_aside(
    store: &Store,
    op: &mut Op,
    page: &PageBelow,
    found: Found,
    bytes: &[AlignedBlock; 1],
) -> FsResult<()> {
    let (identity, location) = (identity_of(page), found.word);
    let [AlignedBlock(bytes)] = bytes;
    let copy = Arc::new(PageCopy { identity, location, bytes: *bytes, pin: Box::new(found.pin) });
    store.persistent.catalog().aside().put(&copy);
    // The page was fetched into PM meanwhile: its device location is free and may be used again, so the copy
    // must not be found by it (S6).
    if find_below(store, page)?.is_none_or(|found| found.word != location) {
        store.persistent.catalog().aside().forget(identity, location);
        return Ok(());
    }
    store.persistent.metadata_pages().copied.fetch_add(1, Ordering::Relaxed);
    op.pages.keep(Arc::clone(&copy));
    let mut copies = store.persistent.metadata_pages().copies.lock();
    copies.push_back(copy);
    let gone = if copies.len() > MOST_COPIES { copies.pop_front() } else { None };
    drop((copies, gone));
    Ok(())
}

/// Drops the copies of a page that was fetched into PM, and the I/O pin of its device location with them.
fn forget_copies(store: &Store, identity: Identity, location: u64) {
    store.persistent.catalog().aside().forget(identity, location);
    let mut copies = store.persistent.metadata_pages().copies.lock();
    let is_of = |copy: &Arc<PageCopy>| (copy.identity, copy.location) == (identity, location);
    let gone = copies.iter().position(is_of).and_then(|at| copies.remove(at));
    drop((copies, gone));
}

/// Fetches the catalog leaves that writes to a file need, so that no write waits for a device (I10). Leaves
/// of an open file stay in PM ([`lower_leaf`] looks for open files under the lock of this look-up). Fetches
/// at most [`MOST_LEAVES`], while PM has room and metadata takes little of it. A leaf that cannot be read, or
/// lies on a silent device, is left to the write that needs it.
///
/// # Errors
/// `WouldBlock`.
pub fn fetch_leaves(store: &Store, ino: Ino, wait: Wait) -> FsResult<()> {
    let (first, last) = (Key::new(ino.0, Kind::Xattr, &[]), Key::intent(ino, FileBlock(u64::from(u32::MAX))));
    let shard = store.persistent.catalog().shard_of(ino.0);
    let mut left = MOST_LEAVES;
    let fetched = with_pages(store, wait, || {
        let found = {
            let guard = store.persistent.catalog().read(shard);
            let key = guard.reader().leaf_below(&first, &last)?;
            let place = |key: &Vec<u8>| guard.reader().leaf_location(shard, key);
            key.as_ref().map(place).transpose()?.flatten().and_then(Below::decode).zip(key)
        };
        let Some((place, key)) = found else { return Ok(()) };
        let silent = store.devices.io().is_silent(place.device, store.clock.monotonic_ns());
        if left == 0 || silent || !may_bring_leaves(store) {
            return Ok(());
        }
        left -= 1;
        store.persistent.metadata_pages().brought.fetch_add(1, Ordering::Relaxed);
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

fn may_bring_leaves(store: &Store) -> bool {
    let metadata = store.persistent.metadata_pages().hand.lock().last_turn
        + store.persistent.metadata_pages().brought.load(Ordering::Relaxed);
    store.persistent.blocks().free_hint() >= store.pressure.throttle_below()
        && metadata < store.persistent.blocks().usage().total / METADATA_PM_DIVISOR
}

/// Location and pin together, under the page's lock (S6, S7); `None` when it is in PM.
fn find_below(store: &Store, page: &PageBelow) -> FsResult<Option<Found>> {
    let found = |word: Option<u64>| -> FsResult<Option<Found>> {
        let Some(word) = word.filter(|word| is_below(*word)) else {
            return Ok(None);
        };
        let place = Below::decode(word)
            .ok_or_else(|| Corrupt::new(format!("{page}"), "a location that can be", format!("{word:#x}")))?;
        let run = DeviceRun { device: place.device, start: place.block, length: 1 };
        Ok(Some(Found { word, place, pin: store.devices.space().pin(run) }))
    };
    match page {
        PageBelow::Leaf { shard, key } => {
            let guard = store.persistent.catalog().read(*shard);
            found(guard.reader().leaf_location(*shard, key)?)
        }
        PageBelow::Inodes { index } => {
            let _guard = store.inodes.locks().read(Ino(index * SLOTS_PER_PAGE));
            found(store.persistent.inode_map().location(None, *index)?)
        }
    }
}

/// Reads and checks the copy.
fn read_copy(store: &Store, identity: Identity, found: &Found) -> FsResult<[AlignedBlock; 1]> {
    let mut block = [AlignedBlock::zeroed()];
    let medium = store.devices.medium(found.place.device)?;
    store.pressure.permits().while_waiting(|| medium.read(found.place.block, &mut block))?;
    let [AlignedBlock(bytes)] = &mut block;
    if let Err(error) = unseal(bytes, store.persistent.seal_key(), identity, found.word) {
        store.devices.note_damage(found.place.device, found.place.block, identity);
        return Err(error.into());
    }
    Ok(block)
}

/// Fetches an inode page for its free slots. If no such page can be read, a new page is added instead.
///
/// # Errors
/// `WouldBlock`; ENOSPC.
pub fn fetch_numbers(store: &Store, op: &mut Op, index: u64) -> FsResult<()> {
    match fetch_page(store, op, &PageBelow::Inodes { index }) {
        Err(error @ (FsError::WouldBlock | FsError::Engine(Error::NoSpace(_)))) => Err(error),
        Err(error) => {
            tracing::warn!("free inodes below are not used until the next mount: {error}");
            store.inodes.numbers().lock().give_up_below();
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// The new page, its owner, and the device block that becomes free.
fn stage_fetched<'a>(
    store: &Store,
    staged: &mut Staged<'a>,
    shards: &mut ShardsWrite<'_>,
    owner: Owner,
    found: &Found,
    bytes: &'a [AlignedBlock; 1],
) -> Attempt<PmBlock> {
    let new = staged.take(Target::Page)?;
    assert_eq!(staged.claimed(), 0, "blocks claimed for a page beside block {new} (P1)");
    let [AlignedBlock(bytes)] = bytes;
    staged.store(new, 0, bytes.as_slice())?;
    staged.own(new, owner);
    stage_device_free(store, found.run(), shards, staged)?;
    staged.unlink_emptied(shards)?;
    store.persistent.blocks().descriptor(new).set_in_use();
    Ok(new)
}

fn install_leaf<'a>(
    store: &'a Store,
    reservation: Reservation<'_>,
    mut staged: Staged<'a>,
    (shard, key): (u32, &[u8]),
    found: &Found,
    bytes: &'a [AlignedBlock; 1],
) -> Attempt<Option<PmBlock>> {
    let mut locked = chunks::shards(store.persistent.catalog(), found.run());
    locked.push(shard);
    let mut shards = store.persistent.catalog().write(&locked);
    if shards.reader(&staged.tx).leaf_location(shard, key)? != Some(found.word) {
        return Ok(None);
    }
    let owner = Owner::Page { kind: PageKind::CatalogPage, datum: shard };
    let new = stage_fetched(store, &mut staged, &mut shards, owner, found, bytes)?;
    if !shards.set_leaf_location(&mut staged.tx, shard, key, found.word, new.0)? {
        return Ok(None);
    }
    staged.commit(reservation)?;
    Ok(Some(new))
}

fn install_inodes<'a>(
    store: &'a Store,
    reservation: Reservation<'_>,
    mut staged: Staged<'a>,
    index: u64,
    found: &Found,
    bytes: &'a [AlignedBlock; 1],
) -> Attempt<Option<PmBlock>> {
    let _guards = store.inodes.locks().write_many(&inodes_of(index));
    let mut shards =
        store.persistent.catalog().write(&chunks::shards(store.persistent.catalog(), found.run()));
    let mut numbers = store.inodes.numbers().lock();
    if store.persistent.inode_map().location(None, index)? != Some(found.word) {
        return Ok(None);
    }
    let owner = Owner::Page { kind: PageKind::InodePage, datum: index as u32 };
    let new = stage_fetched(store, &mut staged, &mut shards, owner, found, bytes)?;
    store.persistent.inode_map().set_location(&mut staged.tx, index, new.0)?;
    staged.commit(reservation)?;
    let [AlignedBlock(bytes)] = bytes;
    numbers.learn(index, bytes);
    store.inodes.slot_pages().put(index, new);
    Ok(Some(new))
}
