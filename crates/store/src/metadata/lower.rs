//! Metadata pages below PM, the way down (design C1, docs/decisions/0014): cold catalog leaves and inode pages are
//! copied without locks, the device is flushed (M1), and each moves by one transaction that changes its location, if it
//! still is what was copied.
//!
//! Invariants: what does not move is listed in docs/decisions/0014, and checked on the copy, which the transaction
//! compares with PM under the page's lock. Lock order: inode stripes of the page, catalog shards, inode numbers.

use crate::attempt::run::run_attempts;
use crate::change::give_back::give_back_unless_named;
use crate::change::staged::Staged;
use crate::error::FsResult;
use crate::inode::tier_pin::OWN_NAMESPACE;
use crate::metadata::fetch::inodes_of;
use crate::moving::device_run::{allocate, avoid_failed};
use crate::moving::errors::demoting;
use crate::moving::outbox::flush_run;
use crate::operation::need::Attempt;
use crate::operation::op::SMALL_RECORD;
use crate::store::Store;
use terrace_catalog::{DeviceRun, chunks};
use terrace_format::below::{Below, Identity, MAX_BELOW_BLOCK, seal};
use terrace_format::inode::{InodeSlot, SLOT_SIZE, SLOTS_PER_PAGE, flag};
use terrace_format::keys::{Key, Kind};
use terrace_format::page::Page;
use terrace_format::table::PageKind;
use terrace_format::{BLOCK_SIZE, DeviceBlock, Ino, PmBlock};
use terrace_media::Durable;
use terrace_media::block::AlignedBlock;
use terrace_runtime::interleave;
use terrace_runtime::planted::{Mistake, planted};
use terrace_wal::{NoSpace, Reservation};
use zerocopy::FromBytes;

type Bytes = [u8; BLOCK_SIZE as usize];

/// A metadata page that may be demoted, with its content at the look-up.
pub struct Cold {
    pm: PmBlock,
    identity: Identity,
    /// Of a leaf, its first key.
    key: Vec<u8>,
    bytes: Box<Bytes>,
    free_slots: bool,
}

/// Copies a page if it may move. Without its lock: what is torn or another's by now is found when it is compared.
pub fn movable(store: &Store, pm: PmBlock, kind: PageKind, datum: u32) -> Option<Cold> {
    let mut bytes: Box<Bytes> = Box::new([0; BLOCK_SIZE as usize]);
    store.persistent.pm().read(pm.offset(), bytes.as_mut_slice()).ok()?;
    match kind {
        PageKind::InodePage => {
            let index = u64::from(datum);
            if index >= store.inodes.numbers().lock().scanned() {
                return None;
            }
            let free_slots = inodes_may_move(store, index, &bytes)?;
            let identity = Identity::Inodes { index };
            Some(Cold { pm, identity, key: Vec::new(), bytes, free_slots })
        }
        _ => {
            let key = leaf_may_move(store, datum, &bytes)?;
            // A root stays; it is not written for nothing again and again.
            let shard = store.persistent.catalog().read(datum);
            let place = shard.reader().leaf_location(datum, &key).ok()?;
            if place != Some(pm.0) || is_place_of_open(store, shard.reader(), datum, &key).ok()? {
                return None;
            }
            let identity = Identity::Catalog { shard: datum };
            Some(Cold { pm, identity, key, bytes, free_slots: false })
        }
    }
}

/// The first key of a leaf that may move.
fn leaf_may_move(store: &Store, shard: u32, bytes: &Bytes) -> Option<Vec<u8>> {
    let page = Page(Box::new(*bytes));
    page.verify_header("").ok()?;
    if page.level() != 0 {
        return None;
    }
    let mut last = None;
    for index in 0..page.count() {
        let (ino, kind, sub) = Key::split(page.cell(index).ok()?.0)?;
        // Chunk bitmaps, and what is asked of a file without waiting.
        let own = kind == Kind::Xattr as u8 && sub.starts_with(OWN_NAMESPACE);
        let open = last != Some(ino) && store.inodes.open_files().is_open(Ino(ino));
        if kind == Kind::Chunk as u8 || own || open {
            return None;
        }
        last = Some(ino);
    }
    let (first, _) = page.cell(0).ok()?;
    (store.persistent.catalog().shard_of_key(first) == shard).then(|| first.to_vec())
}

/// Whether an open file looks for its keys in the leaf that covers `key`, even if the file has no key there:
/// a look-up must read the leaf to see that. The caller holds the shard.
fn is_place_of_open(
    store: &Store,
    reader: terrace_catalog::Reader<'_>,
    shard: u32,
    key: &[u8],
) -> terrace_wal::Result<bool> {
    let (low, high) = reader.leaf_range(shard, key)?;
    let ino = |key: &[u8]| key.iter().chain(&[0; 4]).take(4).fold(0, |ino, byte| ino << 8 | u64::from(*byte));
    let end = store.inodes.numbers().lock().pages * SLOTS_PER_PAGE;
    let last = high.map_or(end, |high| ino(&high).min(end));
    let step = u64::from(store.persistent.catalog().shard_count());
    // The first inode of the shard that is not before the leaf.
    let first = ino(&low);
    let first = first + (u64::from(shard) + step - first % step) % step;
    Ok(first <= last && store.inodes.open_files().is_any_open(first, last, step))
}

/// Whether an inode page has free slots; `None` if it must not be demoted.
fn inodes_may_move(store: &Store, index: u64, bytes: &Bytes) -> Option<bool> {
    let mut free_slots = false;
    for (raw, ino) in bytes.as_chunks::<{ SLOT_SIZE as usize }>().0.iter().zip(inodes_of(index)) {
        let slot = InodeSlot::read_from_bytes(raw).ok()?;
        let maps = !store.persistent.map().is_empty(ino, &slot);
        let linked = slot.orphan_next.get() != 0 || slot.orphan_previous.get() != 0;
        if maps
            || linked
            || slot.has(flag::ORPHAN | flag::HAS_INTENT)
            || store.inodes.open_files().is_open(ino)
        {
            return None;
        }
        // Dirty pages of a closed file: the write-back does not wait for this.
        if store.dram.volatile_sizes().get(ino).is_some() {
            return None;
        }
        free_slots |= slot.is_free();
    }
    (index != 0).then_some(free_slots)
}

/// Demotes metadata pages: writes them as runs, flushes each, and installs the new locations. Returns the
/// number of demoted pages.
pub fn lower_pages(store: &Store, cold: &[Cold]) -> FsResult<u64> {
    let (mut rest, mut moved) = (cold, 0);
    while !rest.is_empty() {
        let run = allocate(store, rest.len() as u64)?;
        let (now, later) = rest.split_at(rest.len().min(run.length as usize));
        rest = later;
        assert!(!now.is_empty(), "no metadata page of {} goes into a run", later.len());
        let spare = run.length - now.len() as u64;
        if spare > 0 {
            let start = run.start.plus(now.len() as u64);
            store.devices.space().release_claim(DeviceRun { start, length: spare, ..run });
        }
        let one = |index: usize| DeviceRun { start: run.start.plus(index as u64), length: 1, ..run };
        let give_back = |from: usize| {
            give_back_unless_named(store, || {
                (from..now.len()).for_each(|index| store.devices.space().release_claim(one(index)));
            });
        };
        let words = match write_sealed(store, now, run) {
            Ok(words) => words,
            Err(error) => {
                give_back(0);
                // The next attempt goes to another device, where there is one.
                let again = avoid_failed(store, run.device, &error)
                    && store.devices.is_any_sound(store.clock.monotonic_ns());
                if !again {
                    return Err(error);
                }
                rest = &cold[cold.len() - rest.len() - now.len()..];
                continue;
            }
        };
        assert_eq!(words.len(), now.len(), "locations of the pages of a run (I7)");
        for (index, (page, word)) in now.iter().zip(words).enumerate() {
            interleave::point("lower:between-pages");
            let installed = match word {
                Some(word) => lower_page(store, page, &word, one(index)),
                None => Ok(false),
            };
            match installed {
                Ok(true) => moved += 1,
                Ok(false) if !store.persistent.wal().is_stopped() => {
                    store.devices.space().release_claim(one(index))
                }
                Ok(false) => {}
                Err(error) => {
                    give_back(index);
                    return Err(error);
                }
            }
        }
    }
    Ok(moved)
}

/// Writes the sealed copies side by side and flushes the device (M1). Returns the locations; `None` for a
/// page that cannot be sealed.
fn write_sealed(store: &Store, pages: &[Cold], run: DeviceRun) -> FsResult<Vec<Option<Durable<u64>>>> {
    if run.start.0 + run.length > MAX_BELOW_BLOCK {
        return Err(NoSpace::Tier.into());
    }
    let (count, length) = (pages.len() as u64, run.length);
    assert!(count <= length, "{count} pages are written to a run of {length} blocks (I6)");
    let device = store.devices.device(run.device)?;
    let mark = device.flush_mark();
    let lsn = store.persistent.wal().next_lsn().0;
    let mut buffer = vec![AlignedBlock::zeroed(); pages.len()];
    let mut words = Vec::with_capacity(pages.len());
    for ((page, target), at) in pages.iter().zip(&mut buffer).zip(run.start.0..) {
        let place = Below::new(run.device, DeviceBlock(at), lsn, page.free_slots).encode();
        target.0.copy_from_slice(page.bytes.as_slice());
        let sealed = seal(&mut target.0, store.persistent.seal_key(), page.identity, place);
        words.push(sealed.then_some(place));
    }
    device.medium.write(run.start, &buffer)?;
    interleave::point("lower:copied");
    let flushed = flush_run(store, device, mark)?;
    Ok(words.into_iter().map(|word| word.map(|word| flushed.durable(word))).collect())
}

/// Moves one page whose copy is durable below; false when it changed or is used meanwhile.
fn lower_page(store: &Store, page: &Cold, word: &Durable<u64>, place: DeviceRun) -> FsResult<bool> {
    let mut op = demoting();
    run_attempts(store, &mut op, SMALL_RECORD, |reservation, _| match page.identity {
        Identity::Catalog { shard } => lower_leaf(store, reservation, page, shard, word, place),
        Identity::Inodes { index } => lower_inodes(store, reservation, page, index, word, place),
    })
}

/// Marks the device block used and compares the page, this transaction's own changes included, with what was
/// copied. The caller holds the page's lock.
fn stage_lowered(
    store: &Store,
    staged: &mut Staged<'_>,
    shards: &mut terrace_catalog::ShardsWrite<'_>,
    page: &Cold,
    place: DeviceRun,
) -> Attempt<bool> {
    let descriptor = store.persistent.blocks().descriptor(page.pm);
    if descriptor.is_pinned() {
        return Ok(false);
    }
    chunks::mark(shards, &mut staged.tx, place, true)?;
    let mut now = [0; BLOCK_SIZE as usize];
    staged.tx.read(store.persistent.pm(), page.pm.offset(), &mut now)?;
    if now != *page.bytes {
        return Ok(false);
    }
    staged.release(page.pm);
    Ok(true)
}

fn lower_leaf(
    store: &Store,
    reservation: Reservation<'_>,
    page: &Cold,
    shard: u32,
    word: &Durable<u64>,
    place: DeviceRun,
) -> Attempt<bool> {
    let mut locked = chunks::shards(store.persistent.catalog(), place);
    locked.push(shard);
    let mut shards = store.persistent.catalog().write(&locked);
    let mut staged = Staged::new(store, None, false);
    if shards.reader(&staged.tx).leaf_location(shard, &page.key)? != Some(page.pm.0)
        || leaf_may_move(store, shard, &page.bytes).is_none()
        || is_place_of_open(store, shards.reader(&staged.tx), shard, &page.key)?
        || !stage_lowered(store, &mut staged, &mut shards, page, place)?
        || !shards.set_leaf_location(&mut staged.tx, shard, &page.key, page.pm.0, *word.get())?
    {
        return Ok(false);
    }
    staged.commit(reservation)?;
    Ok(true)
}

fn lower_inodes(
    store: &Store,
    reservation: Reservation<'_>,
    page: &Cold,
    index: u64,
    word: &Durable<u64>,
    place: DeviceRun,
) -> Attempt<bool> {
    let _guards = store.inodes.locks().write_many(&inodes_of(index));
    let mut shards = store.persistent.catalog().write(&chunks::shards(store.persistent.catalog(), place));
    let mut numbers = store.inodes.numbers().lock();
    let mut staged = Staged::new(store, None, false);
    if index >= numbers.scanned()
        || store.persistent.inode_map().location(None, index)? != Some(page.pm.0)
        || inodes_may_move(store, index, &page.bytes).is_none()
        || !(numbers.is_settled(index, &page.bytes) || planted(Mistake::PageMovesAmidNumber))
        || !stage_lowered(store, &mut staged, &mut shards, page, place)?
    {
        return Ok(false);
    }
    store.persistent.inode_map().set_location(&mut staged.tx, index, *word.get())?;
    staged.commit(reservation)?;
    store.inodes.slot_pages().forget(index);
    numbers.unlearn(index);
    Ok(true)
}
