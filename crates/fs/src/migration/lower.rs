//! Metadata pages below PM, the way down (design C1, docs/decisions/0014): cold catalog leaves and inode pages are
//! copied without locks, the device is flushed (M1), and each moves by one transaction that changes its location, if it
//! still is what was copied.
//!
//! Invariants: what does not move is listed in docs/decisions/0014, and checked on the copy, which the transaction
//! compares with PM under the page's lock. Lock order: inode stripes of the page, catalog shards, inode numbers.

use super::commit::demoting;
use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::op::{Attempt, SMALL_RECORD};
use crate::pages::inodes_of;
use crate::pin::OWN_NAMESPACE;
use crate::write::Staged;
use terrace_blocks::State;
use terrace_catalog::{DeviceRun, chunks};
use terrace_format::below::{Below, Identity, MAX_BELOW_BLOCK, seal};
use terrace_format::inode::{InodeSlot, SLOT_SIZE, SLOTS_PER_PAGE, flag};
use terrace_format::keys::{Key, Kind};
use terrace_format::page::Page;
use terrace_format::table::{Owner, PageKind};
use terrace_format::{BLOCK_SIZE, DeviceBlock, Ino, PmBlock};
use terrace_media::block::AlignedBlock;
use terrace_runtime::interleave;
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::atomic::Ordering;
use terrace_wal::{Error, NoSpace, Reservation};
use zerocopy::FromBytes;

/// Pages moved by one write and one flush.
const BATCH: usize = 64;
/// Blocks that the clock hand passes in a round in the background.
const STRIDE: u64 = 8192;
/// Share of PM, in percent, above which metadata moves beside data.
const SHARE_PERCENT: u64 = 50;

/// How long data could not leave PM before metadata does instead, in nanoseconds.
const STUCK_NS: u64 = 500_000_000;

type Bytes = [u8; BLOCK_SIZE as usize];

/// A page that may move, as it was when it was looked at.
struct Cold {
    pm: PmBlock,
    identity: Identity,
    /// Of a leaf, its first key.
    key: Vec<u8>,
    bytes: Box<Bytes>,
    free_slots: bool,
}

impl Fs {
    /// One round in the background: moves some cold metadata when PM is scarce and data cannot, or not alone, make
    /// room. `wanted` is what the policy wants, `data_moves` whether data leaves PM; one round in which it does not says
    /// little, all that was picked may have been in use. Returns pages moved.
    fn metadata_round(&self, wanted: u64, data_moves: bool) -> FsResult<u64> {
        let metadata = &self.metadata;
        if !metadata.allowed || self.pressure.is_draining() {
            return Ok(0);
        }
        let share = metadata.hand.lock().last_turn * 100 / self.blocks.usage().total.max(1);
        let is_stuck = wanted > 0 && !data_moves;
        let stuck_ns = metadata.data_is_stuck_for(is_stuck, self.clock.monotonic_ns());
        let due = wanted > 0 && share > SHARE_PERCENT || is_stuck && stuck_ns >= STUCK_NS;
        if !due && !metadata.eager {
            return Ok(0);
        }
        self.lower_metadata(STRIDE)
    }

    /// As [`Self::metadata_round`]; whether it moved any. A failure has its reason in status and backs off (M6).
    pub(super) fn lower_some(&self, wanted: u64, data_moves: bool) -> bool {
        self.metadata_round(wanted, data_moves).unwrap_or_else(|error| {
            self.note_stuck(&error);
            0
        }) > 0
    }

    /// Moves up to a batch of cold pages down, the clock hand passing at most `stride` blocks. Returns how many moved;
    /// 0 also when no tier has room for one.
    pub(super) fn lower_metadata(&self, stride: u64) -> FsResult<u64> {
        let most = self.metadata.may_move();
        if most == 0 || self.wal.is_stopped() {
            return Ok(0);
        }
        while self.blocks.scan_step()? {}
        // Inode pages move when their free slots are known.
        while self.scan_inode_page(&mut self.numbers.lock())? {}
        let (mut cold, mut left) = (Vec::new(), stride);
        while cold.is_empty() && left > 0 {
            let picked = self.pick_metadata(&mut left).into_iter();
            cold.extend(picked.filter_map(|(pm, kind, datum)| self.movable(pm, kind, datum)));
        }
        cold.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        if cold.is_empty() {
            return Ok(0);
        }
        let moved = match self.lower_pages(&cold) {
            Err(FsError::Engine(Error::NoSpace(_))) => 0,
            moved => moved?,
        };
        if moved > 0 {
            self.pressure.clear_reason();
            self.migration.not_before_ns.store(0, Ordering::Relaxed);
        }
        self.metadata.lowered.fetch_add(moved, Ordering::Relaxed);
        self.pressure.moved().left.fetch_add(moved, Ordering::Relaxed);
        self.wal.checkpoint_at_leisure()?;
        self.blocks.drain_quarantine();
        Ok(moved)
    }

    /// Moves down at once every metadata page that may move, however much room PM has. For tests and simulators.
    /// Returns how many moved.
    ///
    /// # Errors
    /// The media's.
    pub fn lower_metadata_now(&self) -> FsResult<u64> {
        let mut all = 0;
        loop {
            // Twice around: what was used lately is cold the second time.
            match self.lower_metadata(2 * self.blocks.end_block().0)? {
                0 => return Ok(all),
                moved => all += moved,
            }
        }
    }

    /// The next pages under the clock hand that were not used since it last came by; what it may still pass goes down.
    fn pick_metadata(&self, left: &mut u64) -> Vec<(PmBlock, PageKind, u32)> {
        let (first, end) = (self.blocks.first_block().0, self.blocks.end_block().0);
        let mut hand = self.metadata.hand.lock();
        let mut cold = Vec::new();
        while *left > 0 && cold.len() < BATCH {
            *left -= 1;
            if hand.next < first || hand.next >= end {
                hand.next = first;
                hand.last_turn = std::mem::take(&mut hand.seen);
                self.metadata.brought.store(0, Ordering::Relaxed);
            }
            let pm = PmBlock(hand.next);
            hand.next += 1;
            let descriptor = self.blocks.descriptor(pm);
            if descriptor.state() != State::Used {
                continue;
            }
            let Ok(Owner::Page { kind: kind @ (PageKind::CatalogPage | PageKind::InodePage), datum }) =
                self.blocks.owner(pm)
            else {
                continue;
            };
            hand.seen += 1;
            if !descriptor.clear_in_use() && !descriptor.is_pinned() {
                cold.push((pm, kind, datum));
            }
        }
        cold
    }

    /// Copies a page if it may move. Without its lock: what is torn or another's by now is found when it is compared.
    fn movable(&self, pm: PmBlock, kind: PageKind, datum: u32) -> Option<Cold> {
        let mut bytes: Box<Bytes> = Box::new([0; BLOCK_SIZE as usize]);
        self.pm.read(pm.offset(), bytes.as_mut_slice()).ok()?;
        match kind {
            PageKind::InodePage => {
                let index = u64::from(datum);
                if index >= self.numbers.lock().scanned() {
                    return None;
                }
                let free_slots = self.inodes_may_move(index, &bytes)?;
                let identity = Identity::Inodes { index };
                Some(Cold { pm, identity, key: Vec::new(), bytes, free_slots })
            }
            _ => {
                let key = self.leaf_may_move(datum, &bytes)?;
                // A root stays; it is not written for nothing again and again.
                let shard = self.catalog.read(datum);
                let place = shard.reader().leaf_location(datum, &key).ok()?;
                if place != Some(pm.0) || self.is_place_of_open(shard.reader(), datum, &key).ok()? {
                    return None;
                }
                let identity = Identity::Catalog { shard: datum };
                Some(Cold { pm, identity, key, bytes, free_slots: false })
            }
        }
    }

    /// The first key of a leaf that may move.
    fn leaf_may_move(&self, shard: u32, bytes: &Bytes) -> Option<Vec<u8>> {
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
            let open = last != Some(ino) && self.references.is_open(Ino(ino));
            if kind == Kind::Chunk as u8 || own || open {
                return None;
            }
            last = Some(ino);
        }
        let (first, _) = page.cell(0).ok()?;
        (self.catalog.shard_of_key(first) == shard).then(|| first.to_vec())
    }

    /// Whether an open file looks for its keys in the leaf that covers `key`, also where it has none: to see that nothing of it
    /// lies below. The caller holds the shard.
    fn is_place_of_open(
        &self,
        reader: terrace_catalog::Reader<'_>,
        shard: u32,
        key: &[u8],
    ) -> terrace_wal::Result<bool> {
        let (low, high) = reader.leaf_range(shard, key)?;
        let ino =
            |key: &[u8]| key.iter().chain(&[0; 4]).take(4).fold(0, |ino, byte| ino << 8 | u64::from(*byte));
        let end = self.numbers.lock().pages * SLOTS_PER_PAGE;
        let last = high.map_or(end, |high| ino(&high).min(end));
        let step = u64::from(self.catalog.shard_count());
        // The first inode of the shard that is not before the leaf.
        let first = ino(&low);
        let first = first + (u64::from(shard) + step - first % step) % step;
        Ok(first <= last && self.references.is_any_open(first, last, step))
    }

    /// Whether an inode page that may move has free slots; `None` for one that may not.
    fn inodes_may_move(&self, index: u64, bytes: &Bytes) -> Option<bool> {
        let mut free_slots = false;
        for (raw, ino) in bytes.as_chunks::<{ SLOT_SIZE as usize }>().0.iter().zip(inodes_of(index)) {
            let slot = InodeSlot::read_from_bytes(raw).ok()?;
            let maps = slot.root.get() != 0 || slot.direct.iter().any(|pointer| pointer.get() != 0);
            let linked = slot.orphan_next.get() != 0 || slot.orphan_previous.get() != 0;
            if maps || linked || slot.has(flag::ORPHAN | flag::HAS_INTENT) || self.references.is_open(ino) {
                return None;
            }
            // Dirty pages of a closed file: the write-back does not wait for this.
            if self.unwritten.get(ino).is_some() {
                return None;
            }
            free_slots |= slot.is_free();
        }
        (index != 0).then_some(free_slots)
    }

    /// Writes the pages as runs, each with its flush, and moves them. Returns how many moved.
    fn lower_pages(&self, cold: &[Cold]) -> FsResult<u64> {
        let (mut rest, mut moved) = (cold, 0);
        while !rest.is_empty() {
            let run = self.allocate(rest.len() as u64)?;
            let (now, later) = rest.split_at(rest.len().min(run.length as usize));
            rest = later;
            let spare = run.length - now.len() as u64;
            if spare > 0 {
                let start = run.start.plus(now.len() as u64);
                self.devices.space.release_claim(DeviceRun { start, length: spare, ..run });
            }
            let one = |index: usize| DeviceRun { start: run.start.plus(index as u64), length: 1, ..run };
            let give_back = |from: usize| {
                // A record that failed on the way may be valid: what it names must not be handed out again.
                if !self.wal.is_stopped() {
                    (from..now.len()).for_each(|index| self.devices.space.release_claim(one(index)));
                }
            };
            let words = match self.write_sealed(now, run) {
                Ok(words) => words,
                Err(error) => {
                    give_back(0);
                    // The next attempt goes to another device, where there is one.
                    let again = self.avoid_failed(run.device, &error)
                        && self.devices.is_any_sound(self.clock.monotonic_ns());
                    if !again {
                        return Err(error);
                    }
                    rest = &cold[cold.len() - rest.len() - now.len()..];
                    continue;
                }
            };
            for (index, (page, word)) in now.iter().zip(words).enumerate() {
                interleave::point("lower:between-pages");
                let installed = match word {
                    Some(word) => self.lower_page(page, word, one(index)),
                    None => Ok(false),
                };
                match installed {
                    Ok(true) => moved += 1,
                    Ok(false) if !self.wal.is_stopped() => self.devices.space.release_claim(one(index)),
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

    /// Writes the sealed copies side by side and flushes the device (M1). Gives their locations; none for a page that
    /// cannot be sealed.
    fn write_sealed(&self, pages: &[Cold], run: DeviceRun) -> FsResult<Vec<Option<u64>>> {
        if run.start.0 + run.length > MAX_BELOW_BLOCK {
            return Err(NoSpace::Tier.into());
        }
        let device = self.devices.device(run.device)?;
        let failed_before = device.failed_flushes();
        let lsn = self.wal.next_lsn().0;
        let mut buffer = vec![AlignedBlock::zeroed(); pages.len()];
        let mut words = Vec::with_capacity(pages.len());
        for ((page, target), at) in pages.iter().zip(&mut buffer).zip(run.start.0..) {
            let place = Below::new(run.device, DeviceBlock(at), lsn, page.free_slots).encode();
            target.0.copy_from_slice(page.bytes.as_slice());
            let sealed = seal(&mut target.0, &self.seal_key, page.identity, place);
            words.push(sealed.then_some(place));
        }
        device.medium.write(run.start, &buffer)?;
        interleave::point("lower:copied");
        self.flush_run(device, failed_before)?;
        Ok(words)
    }

    /// Moves one page whose copy is durable below; false when it changed or is used meanwhile.
    fn lower_page(&self, page: &Cold, word: u64, place: DeviceRun) -> FsResult<bool> {
        let mut op = demoting();
        self.run(&mut op, SMALL_RECORD, |reservation, _| match page.identity {
            Identity::Catalog { shard } => self.lower_leaf(reservation, page, shard, word, place),
            Identity::Inodes { index } => self.lower_inodes(reservation, page, index, word, place),
        })
    }

    /// Marks the device block used and compares the page, this transaction's own changes included, with what was
    /// copied. The caller holds the page's lock.
    fn stage_lowered(
        &self,
        staged: &mut Staged<'_>,
        shards: &mut terrace_catalog::ShardsWrite<'_>,
        page: &Cold,
        place: DeviceRun,
    ) -> Attempt<bool> {
        let descriptor = self.blocks.descriptor(page.pm);
        if descriptor.is_pinned() {
            return Ok(false);
        }
        chunks::mark(shards, &mut staged.tx, place, true)?;
        let mut now = [0; BLOCK_SIZE as usize];
        staged.tx.read(&*self.pm, page.pm.offset(), &mut now)?;
        if now != *page.bytes {
            return Ok(false);
        }
        staged.release(page.pm);
        Ok(true)
    }

    fn lower_leaf(
        &self,
        reservation: Reservation<'_>,
        page: &Cold,
        shard: u32,
        word: u64,
        place: DeviceRun,
    ) -> Attempt<bool> {
        let mut locked = chunks::shards(&self.catalog, place);
        locked.push(shard);
        let mut shards = self.catalog.write(&locked);
        let mut staged = Staged::new(self, None, false);
        if shards.reader(&staged.tx).leaf_location(shard, &page.key)? != Some(page.pm.0)
            || self.leaf_may_move(shard, &page.bytes).is_none()
            || self.is_place_of_open(shards.reader(&staged.tx), shard, &page.key)?
            || !self.stage_lowered(&mut staged, &mut shards, page, place)?
            || !shards.set_leaf_location(&mut staged.tx, shard, &page.key, page.pm.0, word)?
        {
            return Ok(false);
        }
        staged.commit(reservation)?;
        Ok(true)
    }

    fn lower_inodes(
        &self,
        reservation: Reservation<'_>,
        page: &Cold,
        index: u64,
        word: u64,
        place: DeviceRun,
    ) -> Attempt<bool> {
        let _guards = self.locks.write_many(&inodes_of(index));
        let mut shards = self.catalog.write(&chunks::shards(&self.catalog, place));
        let mut numbers = self.numbers.lock();
        let mut staged = Staged::new(self, None, false);
        if index >= numbers.scanned()
            || self.inode_map.location(None, index)? != Some(page.pm.0)
            || self.inodes_may_move(index, &page.bytes).is_none()
            || !(numbers.is_settled(index, &page.bytes) || planted(Mistake::PageMovesAmidNumber))
            || !self.stage_lowered(&mut staged, &mut shards, page, place)?
        {
            return Ok(false);
        }
        self.inode_map.set_location(&mut staged.tx, index, word)?;
        staged.commit(reservation)?;
        self.inode_pages.forget(index);
        numbers.unlearn(index);
        Ok(true)
    }
}
