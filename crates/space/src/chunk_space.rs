//! [`ChunkSpace`]: claims, promises, frees, I/O pins and totals of all lower tiers.
//!
//! Lock order: the space lock is an allocator lock (after catalog shards); loading and allocating take
//! shard locks one at a time and are called without locks.

use crate::chunk::Chunk;
use crate::io_pins::PinNumber;
use crate::load::Loader;
use crate::lower_space::LowerSpace;
use crate::reservation::Source;
use std::sync::Arc;
use terrace_catalog::{Catalog, DeviceRun, IoPin};
use terrace_format::{DeviceId, Lsn};
use terrace_media::Point;
use terrace_runtime::sync::{LockKind, RankedMutex};
use terrace_wal::Result;

/// The least hole, in blocks, that is taken by itself for a part of a larger request: 1 MiB.
const MIN_PART_BLOCKS: u64 = 256;

/// The free space of all lower-tier devices.
pub struct ChunkSpace {
    pub(crate) loader: Loader,
    pub(crate) space: RankedMutex<LowerSpace>,
}

/// Keeps blocks from being claimed while I/O on them is under way (design S7).
#[must_use]
pub struct Pin {
    space: Arc<ChunkSpace>,
    number: PinNumber,
}

impl IoPin for Pin {}

impl Drop for Pin {
    fn drop(&mut self) {
        self.space.space.lock().pins.let_go(self.number);
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
        const BYTES_PER_CHUNK: u64 = size_of::<Chunk>() as u64 + 16;
        let chunks = |blocks: u64| blocks.div_ceil(u64::from(chunk_blocks.max(1)));
        let mut sum = 0u64;
        for (_, blocks) in devices {
            sum = sum.saturating_add(u64::from(u32::try_from(chunks(*blocks)).ok()?) * BYTES_PER_CHUNK);
        }
        Some(sum)
    }

    /// The space of these devices: number and blocks, header included. Loads nothing.
    pub fn new(catalog: Arc<Catalog>, devices: &[(DeviceId, u64)]) -> Arc<ChunkSpace> {
        let rank = catalog.wal().locks().rank(LockKind::Allocator, 1);
        let loader = Loader::new(catalog);
        let space = LowerSpace::new(devices, loader.chunk_blocks());
        Arc::new(ChunkSpace { loader, space: RankedMutex::new(rank, space) })
    }

    /// Leaves a missing device out: none of its blocks is free or counted in this mount, and blocks freed on
    /// it are free for the next mount. Call it before any claim.
    pub fn leave_out(&self, device: DeviceId) {
        if let Some(found) = self.space.lock().device_mut(device) {
            found.leave_out();
        }
    }

    /// Loads a few more bitmaps; false when all are loaded. Call it without locks. A bitmap that cannot
    /// be read counts as full (see [`Self::damaged_chunks`]).
    ///
    /// # Errors
    /// None at present; kept for media that must be waited for.
    pub fn load_step(&self) -> Result<bool> {
        self.loader.load_some(&self.space)
    }

    /// Whether all bitmaps are loaded.
    pub fn is_loaded(&self) -> bool {
        self.space.lock().devices.iter().all(|device| device.space.is_loaded())
    }

    /// Claims up to `want` consecutive blocks on one of `devices` (the device with the largest share of free space
    /// first). Small requests fill holes, as the disk manager of [AC-BPFS] does; large ones prefer whole
    /// chunks. `None` when nothing is free. May load bitmaps: call it without locks.
    ///
    /// # Errors
    /// As [`Self::load_step`].
    pub fn allocate(&self, devices: &[DeviceId], want: u64) -> Result<Option<DeviceRun>> {
        let want = want.clamp(1, u64::from(self.loader.chunk_blocks()));
        self.take_over();
        loop {
            let run = self.claim_run(devices, want, want, Source::Unpromised);
            if run.is_some() {
                return Ok(run);
            }
            if self.load_step()? {
                continue;
            }
            let part = self.claim_run(devices, want, 1, Source::Unpromised);
            if part.is_some() || !self.persist_waiting() {
                return Ok(part);
            }
        }
    }

    /// Claims up to `want` blocks of one device for content that is written together: one run where a hole is large
    /// enough for all or a good part of it, else the holes of one chunk after the other, ascending in each (fill.rs).
    /// Short holes are taken only where there are no longer ones, so that random overwrites leave room in runs, not in
    /// single blocks. Empty when nothing is free. `reserved`: out of the blocks that [`Self::reserve`] has promised. May
    /// load bitmaps: call it without locks.
    ///
    /// # Errors
    /// As [`Self::load_step`].
    pub fn allocate_runs(&self, devices: &[DeviceId], want: u64, reserved: bool) -> Result<Vec<DeviceRun>> {
        let source = if reserved { Source::Reservation } else { Source::Unpromised };
        let want = want.clamp(1, u64::from(self.loader.chunk_blocks()));
        self.take_over();
        loop {
            if let Some(run) = self.claim_run(devices, want, want, source) {
                return Ok(vec![run]);
            }
            if self.load_step()? {
                continue;
            }
            // A good part of a large request side by side is worth a write and a flush of its own.
            let part = (want / 4 >= MIN_PART_BLOCKS).then(|| self.claim_run(devices, want, want / 4, source));
            let runs = match part.flatten() {
                Some(run) => vec![run],
                None => self.space.lock().claim_holes(devices, want, source),
            };
            if !runs.is_empty() || !self.persist_waiting() {
                return Ok(runs);
            }
        }
    }

    fn claim_run(&self, devices: &[DeviceId], want: u64, enough: u64, source: Source) -> Option<DeviceRun> {
        self.space.lock().claim_run(devices, want, enough, source)
    }

    /// Promises `count` blocks of whatever devices to content that is still in DRAM, so that its write-back meets no
    /// lack of space; false when so many are not free. May load bitmaps: call it without locks.
    ///
    /// # Errors
    /// As [`Self::load_step`].
    pub fn reserve(&self, count: u64) -> Result<bool> {
        self.take_over();
        loop {
            if self.reserve_now(count) {
                return Ok(true);
            }
            if self.load_step()? {
                continue;
            }
            if self.reserve_now(count) {
                return Ok(true);
            }
            if !self.persist_waiting() {
                return Ok(false);
            }
        }
    }

    /// As [`Self::reserve`], of blocks that are known to be free already.
    pub fn reserve_now(&self, count: u64) -> bool {
        self.space.lock().promise(count)
    }

    /// Takes a promise back.
    pub fn unreserve(&self, count: u64) {
        self.space.lock().reservation.withdraw(count);
    }

    /// Gives back blocks that [`Self::allocate_runs`] took out of a promise: their content is still to be written.
    pub fn release_to_reservation(&self, run: DeviceRun) {
        let mut space = self.space.lock();
        space.release(run);
        space.reservation.add(run.length);
    }

    /// Blocks promised.
    pub fn reserved(&self) -> u64 {
        self.space.lock().reservation.promised()
    }

    /// Gives back a claim, or the end of one, that no committed transaction has marked used.
    pub fn release_claim(&self, run: DeviceRun) {
        self.space.lock().release(run);
    }

    /// Tells that a record freed the blocks; call it once the record is persisted. Pinned blocks are
    /// claimed again only when their pins are dropped.
    pub fn freed(&self, run: DeviceRun, lsn: Lsn) {
        self.space.lock().freed(run, lsn);
    }

    /// Tells that a record freed the blocks; all of the record is stored before `point`. The blocks are claimed again when that
    /// is durable (T6).
    pub fn freed_at(&self, run: DeviceRun, lsn: Lsn, point: Point) {
        self.space.lock().waiting.push_back((point, run, lsn));
        self.take_over();
    }

    /// Makes those waiting runs free whose records are durable by now.
    fn take_over(&self) {
        let wal = self.loader.wal();
        // After a failure no claim could be committed.
        self.space.lock().take_over(|point| wal.try_persist(point).unwrap_or(false));
    }

    /// Makes all waiting runs free, by a `persist`; false when none waits, or PM has failed. Call it without locks.
    fn persist_waiting(&self) -> bool {
        let wal = self.loader.wal();
        let point = wal.pm().point();
        if self.space.lock().waiting.is_empty() || wal.persist().is_err() {
            return false;
        }
        self.space.lock().take_over(|waiting| waiting <= point);
        true
    }

    /// Pins blocks on which I/O is about to start. Take it under the inode lock (S7).
    pub fn pin(self: &Arc<Self>, run: DeviceRun) -> Pin {
        let number = self.space.lock().pins.hold(run);
        Pin { space: Arc::clone(self), number }
    }

    /// As [`Self::pin`], for a run that is to be overwritten in place; `None` while another I/O pin holds a
    /// block of the run.
    pub fn pin_alone(self: &Arc<Self>, run: DeviceRun) -> Option<Pin> {
        let number = self.space.lock().pins.hold_alone(run)?;
        Some(Pin { space: Arc::clone(self), number })
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
        let spaces = space.devices.iter().map(|device| &device.space);
        for device in spaces.filter(|device| devices.contains(&device.id)) {
            totals.total += device.blocks.saturating_sub(1);
            totals.free += device.free;
        }
        let waiting = space.waiting.iter().filter(|(_, run, _)| devices.contains(&run.device));
        totals.free += waiting.map(|(_, run, _)| run.length).sum::<u64>();
        totals
    }

    /// The number of bitmaps that could not be read; no block is claimed from their chunks.
    pub fn damaged_chunks(&self) -> u64 {
        self.space.lock().damaged
    }
}
