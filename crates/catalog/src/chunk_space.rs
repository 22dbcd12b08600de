//! Allocation of lower-tier blocks, the volatile part: claims, holes, pins.
//!
//! A block is free for a claim when its bitmap says so, no claim holds it and no pin covers it. A claim
//! becomes permanent with the transaction that marks it used ([`crate::chunks::mark`]) or is released.
//! Bitmaps are loaded lazily. Invariant: a chunk remembers the LSN below which its bitmap was loaded, so
//! that a free reported late, for a record the load has already seen, does not free a new claim.
//! Lock order: the space lock is an allocator lock (after catalog shards); loading and allocating take
//! shard locks one at a time and are called without locks.

use crate::chunks::{DeviceRun, Piece, bitmap_size, pieces};
use crate::tree::Catalog;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;
use terrace_format::keys::Key;
use terrace_format::{DeviceBlock, DeviceId, Lsn};
use terrace_runtime::sync::Mutex;
use terrace_wal::{Error, Result};

mod accounts;
pub use accounts::ChunkAccounts;

/// Chunks loaded in one step.
const LOAD: usize = 256;
/// A hole from which on it is taken by itself for a part of a larger request: 1 MiB.
const ALONE: u64 = 256;
/// Candidates looked at for one claim.
const CANDIDATES: usize = 32;
/// Buckets of chunks by the logarithm of their largest hole; one more for wholly free chunks.
const WHOLE: usize = 13;
/// Kinds of holes by their least length, one block to 1 MiB, by powers of two: longer ones are taken by themselves.
const GRAINS: usize = 9;
/// Chunks chosen at once to be filled.
const CHOSEN: usize = 32;

enum Content {
    Unknown,
    Free,
    Full,
    /// Used bits; bits beyond a short chunk's end are set.
    Part(Box<[u64]>),
}

struct Chunk {
    content: Content,
    free: u16,
    largest: u16,
    /// Blocks in holes of at least `1 << grain` blocks.
    grains: [u16; GRAINS],
    /// Records below this were seen when the bitmap was loaded.
    loaded: Lsn,
}

struct Device {
    id: DeviceId,
    blocks: u64,
    chunks: Vec<Chunk>,
    buckets: [BTreeSet<u32>; WHOLE + 1],
    next_load: usize,
    free: u64,
    filling: Filling,
}

/// The chunks whose holes are being filled. Claims that follow each other lie side by side, and holes left by
/// overwrites in other chunks grow together before they are filled.
#[derive(Default)]
struct Filling {
    /// The last is the one at work.
    chunks: Vec<u32>,
    /// Bits of it before this were looked at.
    from: u64,
    /// Shorter holes are left to grow.
    grain: usize,
}

#[derive(Default)]
struct Space {
    devices: Vec<Device>,
    pins: Vec<(u64, DeviceRun)>,
    next_pin: u64,
    /// Frees reported while a load was under way.
    early: Vec<(DeviceRun, Lsn)>,
    loading: bool,
    damaged: u64,
    /// Free blocks that are promised to content in DRAM: see [`ChunkSpace::reserve`]. Below zero while a page whose
    /// promise is claimed already is dropped, or claimed by two.
    reserved: i64,
}

impl Space {
    fn promised(&self) -> u64 {
        self.reserved.max(0) as u64
    }
    /// Free blocks that are promised to nobody.
    fn unpromised(&self) -> u64 {
        self.devices.iter().map(|device| device.free).sum::<u64>().saturating_sub(self.promised())
    }
}

/// The free space of all lower-tier devices.
pub struct ChunkSpace {
    catalog: Arc<Catalog>,
    chunk_blocks: u32,
    space: Mutex<Space>,
    loader: Mutex<()>,
}

/// Keeps blocks from being claimed while I/O on them is under way (design S7).
#[must_use]
pub struct Pin {
    space: Arc<ChunkSpace>,
    id: u64,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.space.space.lock().pins.retain(|(id, _)| *id != self.id);
    }
}

/// Blocks of some devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceTotals {
    /// Blocks behind the headers.
    pub total: u64,
    /// Neither marked used nor claimed.
    pub free: u64,
}

impl ChunkSpace {
    /// Bytes of memory that [`Self::new`] takes for these devices; `None`: they have more chunks than can be numbered.
    pub fn bytes_needed(chunk_blocks: u32, devices: &[(DeviceId, u64)]) -> Option<u64> {
        // The chunk, and its place in a set.
        const EACH: u64 = size_of::<Chunk>() as u64 + 16;
        let chunks = |blocks: u64| blocks.div_ceil(u64::from(chunk_blocks.max(1)));
        let mut sum = 0u64;
        for (_, blocks) in devices {
            sum = sum.saturating_add(u64::from(u32::try_from(chunks(*blocks)).ok()?) * EACH);
        }
        Some(sum)
    }

    /// The space of these devices: number and blocks, header included. Loads nothing.
    pub fn new(catalog: Arc<Catalog>, devices: &[(DeviceId, u64)]) -> Arc<ChunkSpace> {
        let chunk_blocks = catalog.wal().geometry().chunk_blocks;
        let device = |(id, blocks): &(DeviceId, u64)| {
            let chunks = blocks.saturating_sub(1).div_ceil(u64::from(chunk_blocks));
            Device {
                id: *id,
                blocks: *blocks,
                chunks: (0..chunks).map(|_| Chunk::unknown()).collect(),
                buckets: Default::default(),
                next_load: 0,
                free: 0,
                filling: Filling::default(),
            }
        };
        let space = Space { devices: devices.iter().map(device).collect(), ..Space::default() };
        Arc::new(ChunkSpace { catalog, chunk_blocks, space: Mutex::new(space), loader: Mutex::new(()) })
    }

    /// Leaves a missing device out: none of its blocks is free or counted in this mount, and blocks freed on
    /// it are free for the next mount. Call it before any claim.
    pub fn leave_out(&self, device: DeviceId) {
        let mut space = self.space.lock();
        if let Some(found) = space.devices.iter_mut().find(|found| found.id == device) {
            (found.blocks, found.chunks) = (1, Vec::new());
        }
    }

    /// Loads a few more bitmaps; false when all are loaded. Call it without locks. A bitmap that cannot
    /// be read counts as full (see [`Self::damaged_chunks`]).
    ///
    /// # Errors
    /// None at present; kept for media that must be waited for.
    pub fn load_step(&self) -> Result<bool> {
        let _one = self.loader.lock();
        let (index, id, chunks) = {
            let mut space = self.space.lock();
            let Some(index) = space.devices.iter().position(|d| d.next_load < d.chunks.len()) else {
                return Ok(false);
            };
            let Some(device) = space.devices.get(index) else {
                return Ok(false);
            };
            let end = (device.next_load + LOAD).min(device.chunks.len());
            let work = (index, device.id, device.next_load..end);
            space.loading = true;
            work
        };
        let loaded: Vec<_> = chunks.clone().map(|chunk| self.read_bitmap(id, chunk)).collect();
        // A free that was read here was persisted: under the lock of its shard, or by the recovery of this mount.
        let mut space = self.space.lock();
        let space = &mut *space;
        let early = std::mem::take(&mut space.early);
        space.loading = false;
        let Some(device) = space.devices.get_mut(index) else {
            return Ok(false);
        };
        for (chunk, (lsn, bitmap)) in chunks.clone().zip(loaded) {
            space.damaged += u64::from(bitmap.is_none());
            device.publish(chunk, lsn, bitmap, self.chunk_blocks);
        }
        device.next_load = chunks.end;
        for (run, lsn) in early {
            free_run(&mut space.devices, self.chunk_blocks, run, lsn);
        }
        Ok(true)
    }

    /// Whether all bitmaps are loaded.
    pub fn is_loaded(&self) -> bool {
        self.space.lock().devices.iter().all(|device| device.next_load >= device.chunks.len())
    }

    /// LSN below which records were seen, and the used words (empty: wholly free, `None`: damaged).
    fn read_bitmap(&self, device: DeviceId, chunk: usize) -> (Lsn, Option<Vec<u64>>) {
        let guard = self.catalog.read(self.catalog.shard_of(chunk as u64));
        let lsn = self.catalog.wal().next_lsn();
        let size = bitmap_size(self.chunk_blocks);
        let words = guard.reader().get_with(&Key::chunk(chunk as u64, device), |value| {
            let words = value.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
            (value.len() == size).then(|| words.collect::<Vec<u64>>())
        });
        let words = match words {
            Ok(Some(words)) => words,
            // A leaf with a chunk key is never below PM.
            Ok(None) | Err(Error::PageBelow(_)) => Some(Vec::new()),
            Err(_) => None,
        };
        (lsn, words)
    }

    /// Claims up to `want` consecutive blocks on one of `devices` (the device with the largest share of free space
    /// first). Small requests fill holes, as the disk manager of [AC-BPFS] does; large ones prefer whole
    /// chunks. `None` when nothing is free. May load bitmaps: call it without locks.
    ///
    /// # Errors
    /// As [`Self::load_step`].
    pub fn allocate(&self, devices: &[DeviceId], want: u64) -> Result<Option<DeviceRun>> {
        let want = want.clamp(1, u64::from(self.chunk_blocks));
        loop {
            let run = self.try_allocate(devices, want, want, false);
            if run.is_some() {
                return Ok(run);
            }
            if !self.load_step()? {
                return Ok(self.try_allocate(devices, want, 1, false));
            }
        }
    }

    /// Claims up to `want` blocks of one device for what is written together: one run where a hole is large enough for
    /// all or a good part of it, else the holes of one chunk after the other, ascending in each ([`Device::choose`]): short
    /// holes only where there are no longer ones, so that what is overwritten at random leaves room in runs, not in
    /// single blocks. Empty when nothing is free. `reserved`: out of what [`Self::reserve`] has promised. May load bitmaps: call it
    /// without locks.
    ///
    /// # Errors
    /// As [`Self::load_step`].
    pub fn allocate_runs(&self, devices: &[DeviceId], want: u64, reserved: bool) -> Result<Vec<DeviceRun>> {
        let want = want.clamp(1, u64::from(self.chunk_blocks));
        loop {
            if let Some(run) = self.try_allocate(devices, want, want, reserved) {
                return Ok(vec![run]);
            }
            if !self.load_step()? {
                // A good part of a large request side by side is worth a write and a flush of its own.
                let part = (want / 4 >= ALONE).then(|| self.try_allocate(devices, want, want / 4, reserved));
                return Ok(match part.flatten() {
                    Some(run) => vec![run],
                    None => self.claim_holes(devices, want, reserved),
                });
            }
        }
    }

    fn claim_holes(&self, devices: &[DeviceId], want: u64, reserved: bool) -> Vec<DeviceRun> {
        let mut space = self.space.lock();
        let space = &mut *space;
        let want = if reserved { want } else { space.unpromised().min(want) };
        for device in by_free_share(&mut space.devices, devices) {
            let runs = device.claim_holes(want, &space.pins, self.chunk_blocks);
            if !runs.is_empty() {
                if reserved {
                    space.reserved -= runs.iter().map(|run| run.length as i64).sum::<i64>();
                }
                return runs;
            }
        }
        Vec::new()
    }

    /// Promises `count` blocks of whatever devices to content that is still in DRAM, so that its write-back meets no
    /// lack of space; false when so many are not free. May load bitmaps: call it without locks.
    ///
    /// # Errors
    /// As [`Self::load_step`].
    pub fn reserve(&self, count: u64) -> Result<bool> {
        loop {
            if self.reserve_now(count) {
                return Ok(true);
            }
            if !self.load_step()? {
                return Ok(self.reserve_now(count));
            }
        }
    }

    /// As [`Self::reserve`], of what is known to be free already.
    pub fn reserve_now(&self, count: u64) -> bool {
        let mut space = self.space.lock();
        let enough = space.unpromised() >= count;
        if enough {
            space.reserved += count as i64;
        }
        enough
    }

    /// Takes a promise back.
    pub fn unreserve(&self, count: u64) {
        self.space.lock().reserved -= count as i64;
    }

    /// Gives back what [`Self::allocate_runs`] took out of a promise: what it was promised to is still to be written.
    pub fn release_to_reservation(&self, run: DeviceRun) {
        let mut space = self.space.lock();
        free_run(&mut space.devices, self.chunk_blocks, run, Lsn(u64::MAX));
        space.reserved += run.length as i64;
    }

    /// Blocks promised.
    pub fn reserved(&self) -> u64 {
        self.space.lock().promised()
    }

    fn try_allocate(
        &self,
        devices: &[DeviceId],
        want: u64,
        enough: u64,
        reserved: bool,
    ) -> Option<DeviceRun> {
        let mut space = self.space.lock();
        let space = &mut *space;
        let most = if reserved { want } else { space.unpromised().min(want) };
        if most < enough {
            return None;
        }
        let want = most;
        for device in by_free_share(&mut space.devices, devices) {
            let found = device.find(want, enough, &space.pins, self.chunk_blocks);
            if let Some((chunk, bit, length)) = found {
                device.set(chunk, bit, length, true, self.chunk_blocks);
                if reserved {
                    space.reserved -= length as i64;
                }
                let start = 1 + chunk as u64 * u64::from(self.chunk_blocks) + bit;
                return Some(DeviceRun { device: device.id, start: DeviceBlock(start), length });
            }
        }
        None
    }

    /// Gives back a claim, or the end of one, that no committed transaction has marked used.
    pub fn release_claim(&self, run: DeviceRun) {
        let mut space = self.space.lock();
        free_run(&mut space.devices, self.chunk_blocks, run, Lsn(u64::MAX));
    }

    /// Tells that a record freed the blocks; call it once the record is persisted. Pinned blocks are
    /// claimed again only when their pins are dropped.
    pub fn freed(&self, run: DeviceRun, lsn: Lsn) {
        let mut space = self.space.lock();
        if space.loading {
            space.early.push((run, lsn));
        } else {
            free_run(&mut space.devices, self.chunk_blocks, run, lsn);
        }
    }

    /// Pins blocks on which I/O is about to start. Take it under the inode lock (S7).
    pub fn pin(self: &Arc<Self>, run: DeviceRun) -> Pin {
        let mut space = self.space.lock();
        let id = space.next_pin;
        space.next_pin += 1;
        space.pins.push((id, run));
        Pin { space: Arc::clone(self), id }
    }

    /// As [`Self::pin`], for a run that is to be overwritten in place; `None` while another I/O pin holds a
    /// block of the run.
    pub fn pin_alone(self: &Arc<Self>, run: DeviceRun) -> Option<Pin> {
        let mut space = self.space.lock();
        let end = run.start.0 + run.length;
        let meets = |other: &DeviceRun| {
            other.device == run.device && other.start.0 < end && run.start.0 < other.start.0 + other.length
        };
        if space.pins.iter().any(|(_, other)| meets(other)) {
            return None;
        }
        let id = space.next_pin;
        space.next_pin += 1;
        space.pins.push((id, run));
        Some(Pin { space: Arc::clone(self), id })
    }

    /// Totals of some devices. Loads all bitmaps first: call it without locks.
    ///
    /// # Errors
    /// As [`Self::load_step`].
    pub fn totals(&self, devices: &[DeviceId]) -> Result<SpaceTotals> {
        while self.load_step()? {}
        Ok(self.totals_now(devices))
    }

    /// Totals as far as bitmaps are loaded: `free` is a lower bound.
    pub fn totals_now(&self, devices: &[DeviceId]) -> SpaceTotals {
        let space = self.space.lock();
        let mut totals = SpaceTotals::default();
        for device in space.devices.iter().filter(|device| devices.contains(&device.id)) {
            totals.total += device.blocks.saturating_sub(1);
            totals.free += device.free;
        }
        totals
    }

    /// The number of bitmaps that could not be read; no block is claimed from their chunks.
    pub fn damaged_chunks(&self) -> u64 {
        self.space.lock().damaged
    }
}

/// The given devices, ordered by their free share: so devices of every size fill evenly from the beginning.
fn by_free_share<'a>(all: &'a mut [Device], devices: &[DeviceId]) -> Vec<&'a mut Device> {
    let mut order: Vec<&mut Device> = all.iter_mut().filter(|device| devices.contains(&device.id)).collect();
    let weight = |of: &Device, by: &Device| u128::from(of.free) * u128::from(by.blocks);
    order.sort_by(|a, b| weight(b, a).cmp(&weight(a, b)));
    order
}

fn free_run(devices: &mut [Device], chunk_blocks: u32, run: DeviceRun, lsn: Lsn) {
    let Some(device) = devices.iter_mut().find(|device| device.id == run.device) else {
        return;
    };
    for Piece { chunk, bit, length } in pieces(chunk_blocks, run) {
        let chunk = chunk as usize;
        // An unknown chunk learns of the free when it is loaded. A chunk loaded after the record has seen the
        // free.
        let seen = device.chunks.get(chunk).is_none_or(|c| lsn < c.loaded);
        if !seen {
            device.set(chunk, bit, length, false, chunk_blocks);
        }
    }
}

impl Chunk {
    fn unknown() -> Chunk {
        Chunk { content: Content::Unknown, free: 0, largest: 0, grains: [0; GRAINS], loaded: Lsn(u64::MAX) }
    }

    fn bucket(&self) -> Option<usize> {
        match self.content {
            Content::Free => Some(WHOLE),
            _ => self.largest.checked_ilog2().map(|log| log as usize),
        }
    }
}

impl Device {
    fn capacity(&self, chunk: usize, chunk_blocks: u32) -> u64 {
        let before = chunk as u64 * u64::from(chunk_blocks);
        (self.blocks - 1).saturating_sub(before).min(chunk_blocks.into())
    }

    /// A chunk's used bits, those beyond its end set.
    fn words(&self, chunk: usize, chunk_blocks: u32) -> Vec<u64> {
        let count = (chunk_blocks as usize).div_ceil(64);
        match self.chunks.get(chunk).map(|c| &c.content) {
            Some(Content::Part(words)) => words.to_vec(),
            Some(Content::Free) => {
                let mut words = vec![0; count];
                let capacity = self.capacity(chunk, chunk_blocks);
                change(&mut words, capacity, count as u64 * 64 - capacity, true);
                words
            }
            _ => vec![u64::MAX; count],
        }
    }

    fn publish(&mut self, chunk: usize, lsn: Lsn, bitmap: Option<Vec<u64>>, chunk_blocks: u32) {
        let capacity = self.capacity(chunk, chunk_blocks);
        if let Some(place) = self.chunks.get_mut(chunk) {
            place.loaded = lsn;
            place.content = if bitmap.is_some() { Content::Free } else { Content::Full };
        }
        let mut words = self.words(chunk, chunk_blocks);
        // Still in no bucket: `store` compares with what the chunk was before it was known.
        if let Some(place) = self.chunks.get_mut(chunk) {
            place.content = Content::Unknown;
        }
        for (word, used) in words.iter_mut().zip(bitmap.unwrap_or_default()) {
            *word |= used;
        }
        self.store(chunk, &words, capacity);
    }

    /// Sets or clears a chunk's bits.
    fn set(&mut self, chunk: usize, bit: u64, length: u64, used: bool, chunk_blocks: u32) {
        let capacity = self.capacity(chunk, chunk_blocks);
        if !used && self.free_some(chunk, bit, length.min(capacity.saturating_sub(bit)), capacity) {
            return;
        }
        let mut words = self.words(chunk, chunk_blocks);
        change(&mut words, bit, length.min(capacity.saturating_sub(bit)), used);
        self.store(chunk, &words, capacity);
    }

    /// Clears bits of a chunk that stays partly used, where they lie: only the hole around them can be a larger one than
    /// the largest. False when the chunk is not such a one.
    fn free_some(&mut self, chunk: usize, bit: u64, length: u64, capacity: u64) -> bool {
        let Some(place) = self.chunks.get_mut(chunk) else { return false };
        let before = place.bucket();
        let Content::Part(words) = &mut place.content else { return false };
        let free = u64::from(place.free) + used_in(words, bit, length);
        if free == capacity {
            return false;
        }
        let freed = free - u64::from(place.free);
        let neighbours = (hole_before(words, bit), hole_behind(words, bit + length));
        change(words, bit, length, false);
        let hole = neighbours.0 + length + neighbours.1;
        self.free += freed;
        (place.free, place.largest) = (free as u16, place.largest.max(hole as u16));
        if freed == length {
            count_hole(&mut place.grains, neighbours.0, false);
            count_hole(&mut place.grains, neighbours.1, false);
            count_hole(&mut place.grains, hole, true);
        } else {
            place.grains = grains(words);
        }
        let after = place.bucket();
        self.rebucket(chunk, before, after);
        true
    }

    /// Claims holes for `want` blocks: first in the chunks that are being filled, then in newly chosen
    /// chunks, last in every chunk.
    fn claim_holes(&mut self, want: u64, pins: &[(u64, DeviceRun)], chunk_blocks: u32) -> Vec<DeviceRun> {
        let (mut runs, mut left) = (Vec::new(), want);
        let mut rest = 0..self.chunks.len();
        let mut is_fruitful = true;
        while left > 0 && self.free > 0 {
            let Some(chunk) = self.filling.chunks.last().copied() else {
                // Holes whose blocks are pinned count as holes: a choice may give nothing.
                self.filling = if is_fruitful { self.choose() } else { Filling::default() };
                if self.filling.chunks.is_empty() {
                    let has_holes = |at: &usize| self.chunks.get(*at).is_some_and(|place| place.free > 0);
                    let Some(chunk) = rest.find(has_holes) else { break };
                    self.filling = Filling { chunks: vec![chunk as u32], from: 0, grain: 0 };
                }
                is_fruitful = false;
                continue;
            };
            let taken = self.fill(chunk as usize, left, pins, chunk_blocks, &mut runs);
            left -= taken;
            is_fruitful |= taken > 0;
            if left > 0 {
                self.filling.chunks.pop();
                self.filling.from = 0;
            }
        }
        runs
    }

    /// The next chunks to be filled: of the longest kind of hole of which some chunk has a quarter of what chunks have free
    /// on average, those with the most; the first of equal ones first. Filling a chunk to its end, and passing over what
    /// is shorter, lets holes grow: of data overwritten at random, half of a device, runs of seven blocks remain, where
    /// filling the emptiest chunk a little leaves less than two.
    fn choose(&self) -> Filling {
        let mut most = [0u16; GRAINS];
        for place in &self.chunks {
            for (most, of) in most.iter_mut().zip(place.grains) {
                *most = (*most).max(of);
            }
        }
        let enough = (self.free / self.chunks.len().max(1) as u64 / 4).max(1);
        let Some(grain) = most.iter().rposition(|most| u64::from(*most) >= enough) else {
            return Filling::default();
        };
        let of = |place: &Chunk| place.grains.get(grain).copied().unwrap_or(0);
        let mut chosen = BinaryHeap::with_capacity(CHOSEN + 1);
        for (chunk, place) in (0u32..).zip(&self.chunks) {
            let blocks = of(place);
            if u64::from(blocks) < enough {
                continue;
            }
            // The worst on top.
            chosen.push((std::cmp::Reverse(blocks), chunk));
            if chosen.len() > CHOSEN {
                chosen.pop();
            }
        }
        let mut chunks: Vec<_> = chosen.into_sorted_vec();
        chunks.reverse();
        Filling { chunks: chunks.into_iter().map(|(_, chunk)| chunk).collect(), from: 0, grain }
    }

    /// Claims the next holes of the chunk that is being filled, at most `left` blocks; returns how many.
    fn fill(
        &mut self,
        chunk: usize,
        left: u64,
        pins: &[(u64, DeviceRun)],
        chunk_blocks: u32,
        runs: &mut Vec<DeviceRun>,
    ) -> u64 {
        let mut words = self.words(chunk, chunk_blocks);
        let open = self.without_pinned(chunk, &words, pins, chunk_blocks);
        let Filling { from, grain, .. } = self.filling;
        let mut taken = 0;
        for (bit, length) in holes(&open) {
            let (begin, end) = (bit.max(from), bit + length);
            // The rest of the hole that the previous claim left is taken even if it is short.
            let is_rest = from > 0 && begin == from;
            if end <= begin || (!is_rest && (end - begin) >> grain == 0) {
                continue;
            }
            let length = (end - begin).min(left - taken);
            change(&mut words, begin, length, true);
            taken += length;
            self.filling.from = begin + length;
            let start = 1 + chunk as u64 * u64::from(chunk_blocks) + begin;
            runs.push(DeviceRun { device: self.id, start: DeviceBlock(start), length });
            if taken == left {
                break;
            }
        }
        if taken > 0 {
            self.store(chunk, &words, self.capacity(chunk, chunk_blocks));
        }
        taken
    }

    /// The used bits of a chunk with those that are pinned.
    fn without_pinned(
        &self,
        chunk: usize,
        words: &[u64],
        pins: &[(u64, DeviceRun)],
        chunk_blocks: u32,
    ) -> Vec<u64> {
        let mut words = words.to_vec();
        for (_, run) in pins.iter().filter(|(_, run)| run.device == self.id) {
            let inside = |piece: &Piece| piece.chunk == chunk as u64;
            for piece in pieces(chunk_blocks, *run).filter(inside) {
                change(&mut words, piece.bit, piece.length, true);
            }
        }
        words
    }

    fn store(&mut self, chunk: usize, words: &[u64], capacity: u64) {
        let grains = grains(words);
        let free = u64::from(grains[0]);
        let Some(place) = self.chunks.get_mut(chunk) else {
            return;
        };
        let before = place.bucket();
        self.free = self.free - u64::from(place.free) + free;
        place.free = free as u16;
        place.largest = longest(words, u64::MAX).1 as u16;
        place.grains = grains;
        place.content = match free {
            0 => Content::Full,
            _ if free == capacity => Content::Free,
            _ => Content::Part(words.into()),
        };
        let after = place.bucket();
        self.rebucket(chunk, before, after);
    }

    fn rebucket(&mut self, chunk: usize, before: Option<usize>, after: Option<usize>) {
        if before == after {
            return;
        }
        for (bucket, present) in [(before, false), (after, true)] {
            let Some(set) = bucket.and_then(|bucket| self.buckets.get_mut(bucket)) else {
                continue;
            };
            if present {
                set.insert(chunk as u32);
            } else {
                set.remove(&(chunk as u32));
            }
        }
    }

    /// A hole of `enough` to `want` blocks: chunk, bit, length.
    fn find(
        &self,
        want: u64,
        enough: u64,
        pins: &[(u64, DeviceRun)],
        chunk_blocks: u32,
    ) -> Option<(usize, u64, u64)> {
        let log = want.ilog2() as usize;
        let whole = want * 2 >= u64::from(chunk_blocks);
        let front = if whole { Some(WHOLE) } else { None };
        let back = if whole { None } else { Some(WHOLE) };
        let smaller = (0..log).rev().filter(|_| enough < want);
        let order = front.into_iter().chain(log..WHOLE).chain(back).chain(smaller);
        let mut best: Option<(usize, u64, u64)> = None;
        for chunk in
            order.filter_map(|bucket| self.buckets.get(bucket)).flat_map(|set| set.iter().take(CANDIDATES))
        {
            let chunk = *chunk as usize;
            let place = self.chunks.get(chunk)?;
            if u64::from(place.largest) < enough {
                continue;
            }
            let words = self.without_pinned(chunk, &self.words(chunk, chunk_blocks), pins, chunk_blocks);
            let (bit, length) = longest(&words, want);
            if length >= want {
                return Some((chunk, bit, length.min(want)));
            }
            if length >= enough && best.is_none_or(|(_, _, most)| length > most) {
                best = Some((chunk, bit, length));
            }
        }
        best
    }
}

/// Sets or clears bits.
fn change(words: &mut [u64], bit: u64, length: u64, used: bool) {
    let end = bit.saturating_add(length);
    let (first, last) = ((bit / 64) as usize, end.div_ceil(64) as usize);
    for (index, word) in words.iter_mut().enumerate().take(last).skip(first) {
        let base = index as u64 * 64;
        let (from, to) = (bit.max(base) - base, end.min(base + 64).saturating_sub(base));
        if from >= to {
            continue;
        }
        let mask = (u64::MAX >> (64 - (to - from))) << from;
        if used {
            *word |= mask;
        } else {
            *word &= !mask;
        }
    }
}

/// The first hole (run of clear bits) of at least `enough`, else the longest.
fn longest(words: &[u64], enough: u64) -> (u64, u64) {
    let (mut best, mut start, mut length) = ((0, 0), 0, 0);
    for (index, word) in words.iter().enumerate() {
        let base = index as u64 * 64;
        let mut bit = 0;
        while bit < 64 {
            let rest = word >> bit;
            let zeros = u64::from(rest.trailing_zeros()).min(64 - bit);
            if length == 0 {
                start = base + bit;
            }
            length += zeros;
            bit += zeros;
            if length > best.1 {
                best = (start, length);
                if length >= enough {
                    return best;
                }
            }
            if bit < 64 {
                length = 0;
                bit += u64::from((word >> bit).trailing_ones());
            }
        }
    }
    best
}

/// Counts the set bits in a range.
fn used_in(words: &[u64], bit: u64, length: u64) -> u64 {
    let mut found = 0;
    let (mut at, end) = (bit, bit + length);
    while at < end {
        let count = (64 - at % 64).min(end - at);
        let mask = (u64::MAX >> (64 - count)) << (at % 64);
        found += u64::from((words.get((at / 64) as usize).unwrap_or(&0) & mask).count_ones());
        at += count;
    }
    found
}

/// Length of the hole that ends before a bit.
fn hole_before(words: &[u64], bit: u64) -> u64 {
    let mut start = bit;
    while start > 0 {
        let (index, bits) = ((start - 1) / 64, (start - 1) % 64 + 1);
        let word = words.get(index as usize).copied().unwrap_or(u64::MAX);
        let clear = u64::from((word << (64 - bits)).leading_zeros()).min(bits);
        start -= clear;
        if clear < bits {
            break;
        }
    }
    bit - start
}

/// Length of the hole that begins at a bit.
fn hole_behind(words: &[u64], bit: u64) -> u64 {
    let mut end = bit;
    while let Some(word) = words.get((end / 64) as usize) {
        let from = end % 64;
        let clear = u64::from((word >> from).trailing_zeros()).min(64 - from);
        end += clear;
        if clear < 64 - from {
            break;
        }
    }
    end - bit
}

/// The holes, ascending: first bit and length.
fn holes(words: &[u64]) -> impl Iterator<Item = (u64, u64)> {
    let end = words.len() as u64 * 64;
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < end {
            let word = words.get((at / 64) as usize).copied().unwrap_or(u64::MAX);
            let used = u64::from((word >> (at % 64)).trailing_ones()).min(64 - at % 64);
            at += used;
            if !at.is_multiple_of(64) || (used == 0 && at < end) {
                let (start, length) = (at, hole_behind(words, at));
                at += length;
                return Some((start, length));
            }
        }
        None
    })
}

/// Blocks in holes of at least `1 << grain` blocks.
fn grains(words: &[u64]) -> [u16; GRAINS] {
    let mut found = [0; GRAINS];
    holes(words).for_each(|(_, length)| count_hole(&mut found, length, true));
    found
}

/// Takes a hole into account, or out of it.
fn count_hole(grains: &mut [u16; GRAINS], length: u64, is_there: bool) {
    let kinds = length.checked_ilog2().map_or(0, |log| log as usize + 1);
    for of in grains.iter_mut().take(kinds) {
        *of = if is_there { of.wrapping_add(length as u16) } else { of.wrapping_sub(length as u16) };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod model;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn holes_and_used_bits_are_counted_around_word_borders() {
        let mut words = vec![u64::MAX; 4];
        change(&mut words, 60, 70, false);
        for at in [60, 63, 64, 65, 128, 129, 130] {
            assert_eq!((hole_before(&words, at), hole_behind(&words, at)), (at - 60, 130 - at), "{at}");
        }
        assert_eq!((used_in(&words, 50, 20), used_in(&words, 0, 256)), (10, 186));
        assert_eq!(holes(&words).collect::<Vec<_>>(), [(60, 70)]);
        change(&mut words, 0, 1, false);
        change(&mut words, 192, 64, false);
        assert_eq!(holes(&words).collect::<Vec<_>>(), [(0, 1), (60, 70), (192, 64)]);
        assert_eq!(grains(&words), [135, 134, 134, 134, 134, 134, 134, 0, 0]);
        change(&mut words, 0, 256, false);
        assert_eq!(
            (hole_before(&words, 256), hole_behind(&words, 0), used_in(&words, 0, 256)),
            (256, 256, 0)
        );
        assert_eq!(holes(&words).collect::<Vec<_>>(), [(0, 256)]);
    }

    /// The largest hole of a chunk is what a look at its bits finds, whatever was freed in whatever order.
    #[test]
    fn frees_keep_count_of_the_largest_hole() {
        const SIZE: u32 = 256;
        let mut device = Device {
            id: DeviceId(0),
            blocks: 1 + 2 * u64::from(SIZE) - 50,
            chunks: vec![Chunk::unknown(), Chunk::unknown()],
            buckets: Default::default(),
            next_load: 2,
            free: 0,
            filling: Filling::default(),
        };
        (0..2).for_each(|chunk| device.publish(chunk, Lsn(1), Some(Vec::new()), SIZE));
        let mut state = 7u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (chunk, bit) = ((state >> 33) as usize % 2, (state >> 40) % 200);
            let (length, used) = (1 + (state >> 50) % 6, state >> 60 < 8);
            device.set(chunk, bit, length, used, SIZE);
            let words = device.words(chunk, SIZE);
            let place = device.chunks.get(chunk).unwrap();
            assert_eq!(u64::from(place.largest), longest(&words, u64::MAX).1);
            assert_eq!(u64::from(place.free), 256 - used_in(&words, 0, 256));
            assert_eq!(place.grains, grains(&words));
            let bucket = place.bucket();
            assert!(
                bucket.is_none_or(|bucket| device.buckets.get(bucket).unwrap().contains(&(chunk as u32)))
            );
            assert_eq!(device.free, device.chunks.iter().map(|place| u64::from(place.free)).sum::<u64>());
        }
    }

    #[test]
    fn claims_take_long_holes_first_and_no_pinned_block() {
        let part = |holes: &[(u64, u64)]| {
            let mut words = vec![u64::MAX; 4];
            holes.iter().for_each(|(bit, length)| change(&mut words, *bit, *length, false));
            words
        };
        let mut device = Device {
            id: DeviceId(0),
            blocks: 1 + 512,
            chunks: vec![Chunk::unknown(), Chunk::unknown()],
            buckets: Default::default(),
            next_load: 2,
            free: 0,
            filling: Filling::default(),
        };
        device.publish(0, Lsn(1), Some(part(&[(10, 5), (100, 1)])), 256);
        device.publish(1, Lsn(1), Some(part(&[(0, 3), (63, 2), (200, 56)])), 256);
        let run = |start, length| DeviceRun { device: DeviceId(0), start: DeviceBlock(start), length };
        let pins = [(1, run(257 + 63, 1))];
        let found = device.claim_holes(62, &pins, 256);
        assert_eq!(found, [run(257 + 200, 56), run(11, 5), run(257, 1)]);
        assert_eq!(device.free, 5);
        // The claim goes on where the last one ended; single blocks are left for the end.
        assert_eq!(device.claim_holes(2, &pins, 256), [run(258, 2)]);
        assert_eq!(device.claim_holes(100, &pins, 256), [run(101, 1), run(257 + 64, 1)]);
        assert_eq!(device.claim_holes(100, &[], 256), [run(257 + 63, 1)]);
        assert_eq!((device.claim_holes(1, &[], 256), device.free), (vec![], 0));
    }

    /// Data over half of the device, overwritten at random: the runs of what is written stay long.
    #[test]
    fn random_overwrites_leave_long_free_runs() {
        const SIZE: u32 = 1024;
        const CHUNKS: usize = 32;
        let live = CHUNKS as u64 * u64::from(SIZE) / 2;
        let mut device = Device {
            id: DeviceId(0),
            blocks: 1 + CHUNKS as u64 * u64::from(SIZE),
            chunks: (0..CHUNKS).map(|_| Chunk::unknown()).collect(),
            buckets: Default::default(),
            next_load: CHUNKS,
            free: 0,
            filling: Filling::default(),
        };
        (0..CHUNKS).for_each(|chunk| device.publish(chunk, Lsn(1), Some(Vec::new()), SIZE));
        let places = |runs: &[DeviceRun]| -> Vec<u64> {
            runs.iter().flat_map(|run| run.start.0..run.start.0 + run.length).collect()
        };
        let mut place = places(&device.claim_holes(live, &[], SIZE));
        let (mut state, mut runs, mut blocks) = (7u64, 0, 0);
        for group in 0..6 * live / 256 {
            let claimed = device.claim_holes(256, &[], SIZE);
            if group >= 3 * live / 256 {
                runs += claimed.len();
                blocks += 256;
            }
            for new in places(&claimed) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let written = place.get_mut((state >> 33) as usize % live as usize).unwrap();
                let old = std::mem::replace(written, new);
                let chunk = (old - 1) as usize / SIZE as usize;
                device.set(chunk, (old - 1) % u64::from(SIZE), 1, false, SIZE);
            }
        }
        // Less than two when the emptiest chunk is filled a little.
        assert!(blocks >= 5 * runs, "{blocks} blocks in {runs} runs");
    }

    #[test]
    fn holes_are_found_across_words() {
        let mut words = vec![u64::MAX; 4];
        assert_eq!(longest(&words, 1), (0, 0));
        change(&mut words, 60, 70, false);
        change(&mut words, 200, 3, false);
        assert_eq!(longest(&words, u64::MAX), (60, 70));
        assert_eq!(longest(&words, 2), (60, 4));
        change(&mut words, 64, 64, true);
        assert_eq!(longest(&words, 3), (60, 4));
        assert_eq!(longest(&words, 5), (60, 4));
        change(&mut words, 0, 256, false);
        assert_eq!(longest(&words, u64::MAX), (0, 256));
    }

    #[test]
    fn a_run_is_cut_into_pieces_at_the_borders_of_chunks() {
        let run = |start, length| DeviceRun { device: DeviceId(0), start: DeviceBlock(start), length };
        let found: Vec<_> = pieces(16, run(1, 16)).map(|p| (p.chunk, p.bit, p.length)).collect();
        assert_eq!(found, [(0, 0, 16)]);
        let found: Vec<_> = pieces(16, run(15, 20)).map(|p| (p.chunk, p.bit, p.length)).collect();
        assert_eq!(found, [(0, 14, 2), (1, 0, 16), (2, 0, 2)]);
    }
}
