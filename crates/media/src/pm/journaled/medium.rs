//! The medium: a store goes to the ring first, then into the image (J2, J3).

use super::device::DurableWay;
use super::error::JournalError;
use super::home::Home;
use super::image::Image;
use super::latency::Latency;
use super::log::Log;
use super::patience::patiently;
use super::ring::{Full, STEP_BYTES};
use super::step::Schedule;
use crate::pm::{Backlog, Done, JournalStatus, PmCounters, PmMedium, Point};
use crate::{BlockMedium, MediaError, Promise};
use std::panic::Location;
use std::sync::Arc;
use terrace_format::journal::{ENTRY_HEADER_BYTES, Entry, EntryKind};
use terrace_format::{BLOCK_SIZE, PmOffset};
use terrace_runtime::Next;
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::MutexGuard;
use terrace_runtime::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrace_runtime::thread::Waker;

/// Persistent memory in DRAM with a journal.
pub struct JournaledPm {
    image: Image,
    log: Log,
    home: Home,
    schedule: Schedule,
    waker: Waker,
    /// Cleared by an orderly close, and never set in a medium that only reads.
    writable: AtomicBool,
    fences: AtomicU64,
    /// Bytes of stores that go to the log.
    stored_bytes: AtomicU64,
    latency: Arc<Latency>,
    /// Pages that were put together again, and damaged pages, at opening.
    found: Found,
}

/// Pages that opening did not find whole in home.
#[derive(Clone, Copy)]
pub(super) struct Found {
    /// Put together again from the log.
    pub healed: u64,
    /// Damaged.
    pub condemned: u64,
}

impl JournaledPm {
    pub(super) fn new(
        (image, log, home): (Image, Log, Home),
        journal_ms: u64,
        is_writable: bool,
        found: Found,
    ) -> JournaledPm {
        JournaledPm {
            image,
            log,
            home,
            schedule: Schedule::new(journal_ms),
            waker: Waker::new(),
            writable: AtomicBool::new(is_writable),
            fences: AtomicU64::new(0),
            stored_bytes: AtomicU64::new(0),
            latency: Arc::new(Latency::new()),
            found,
        }
    }

    pub(super) fn image(&self) -> &Image {
        &self.image
    }

    /// Advances a home round by so many groups of pages; whether the round has ended. The step does so; tests too.
    ///
    /// # Errors
    /// The device's.
    pub fn advance(&self, most: usize) -> Result<bool, MediaError> {
        self.home.advance(&self.image, &self.log, most)
    }

    /// Stores bytes that a crash after the next `persist` keeps: ring first, then image (J3).
    fn log(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.image.check(offset, bytes.len())?;
        self.stored_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = (BLOCK_SIZE - at.0 % BLOCK_SIZE) as usize;
            let (piece, behind) = rest.split_at(rest.len().min(room));
            self.log_in_page(at, piece)?;
            at = at.plus(piece.len() as u64);
            rest = behind;
        }
        Ok(())
    }

    /// Stores bytes inside one page: into the ring, then into the image.
    fn log_in_page(&self, at: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        if planted(Mistake::ImageBeforeRing) {
            self.image.store_in_page(at, bytes)?;
        }
        let locked = self.lock_with_room(at)?;
        let place = self.log.ring.append(&Entry { kind: EntryKind::Store, offset: at, bytes });
        let stored = self.image.store_in_page(at, bytes);
        drop(locked);
        self.appended(place);
        stored
    }

    /// Logs bytes inside one page as they are in the image, and leaves the image alone: other threads may store in place
    /// meanwhile. The read comes before the reservation: a record has its place before its in-place stores, so a cut of the log
    /// never has the effect of a record without the record (J3).
    fn log_from_image(&self, at: PmOffset, bytes: &mut [u8]) -> Result<(), MediaError> {
        let locked = self.lock_with_room(at)?;
        self.image.memory.read(at, bytes)?;
        let place = self.log.ring.append(&Entry { kind: EntryKind::Store, offset: at, bytes });
        if planted(Mistake::PlaceBeforeRead) {
            self.refuse_stores()?; // where another thread goes on
            self.image.memory.read(at, bytes)?;
            self.log.ring.put(place + ENTRY_HEADER_BYTES, bytes);
        }
        self.image.mark(at.0 / BLOCK_SIZE);
        drop(locked);
        self.appended(place);
        Ok(())
    }

    /// Writes back bytes inside one page. A failed medium refuses the next store; poisoned lines stay as they are, as on other
    /// media.
    fn write_back_in_page(&self, at: PmOffset, bytes: &mut [u8]) {
        loop {
            let ended = self.log.failure.ended();
            let Err(error) = self.log_from_image(at, bytes) else { return };
            let locked = self.image.lock_page(at.0 / BLOCK_SIZE);
            if self.log.refuse_if_failed().is_err() {
                // The failure ends under this lock alone, and the new home has the marked pages as they are then.
                self.image.mark(at.0 / BLOCK_SIZE);
                return;
            }
            drop(locked);
            if ended == self.log.failure.ended() {
                // The checkpoint passes these lines: nothing may be acknowledged that a crash would bring back without them.
                self.log.fail(&error);
                return;
            }
        }
    }

    /// The lock of a page, when ring and log have room for an entry.
    fn lock_with_room(&self, at: PmOffset) -> Result<MutexGuard<'_, ()>, MediaError> {
        loop {
            let locked = self.image.lock_page(at.0 / BLOCK_SIZE);
            self.refuse_stores()?;
            let Some(full) = self.log.ring.full() else { return Ok(locked) };
            drop(locked);
            self.make_room(full)?;
        }
    }

    /// After an entry at a place, without locks: wakes the step, and ends a long batch.
    fn appended(&self, place: u64) {
        if place / STEP_BYTES != (place + BLOCK_SIZE) / STEP_BYTES {
            self.waker.wake();
        }
        self.log.close_if_long(place);
    }

    /// Whether an orderly close has ended it, or it only reads.
    pub fn is_closed(&self) -> bool {
        !self.writable.load(Ordering::Relaxed)
    }

    /// Goes on on another device: writes image, tables and anchor there, and takes up the ring. Ends a failure of the log
    /// (J12), and is allowed before. Stores go on meanwhile, home rounds wait. The old content of the device is lost.
    ///
    /// # Errors
    /// A closed medium, a device too short, the device's, damage of the memory. The old device and a failure of it stay, and
    /// the other device has no journal if it can still be written.
    pub fn rehome(&self, device: Arc<dyn BlockMedium>, way: DurableWay) -> Result<(), JournalError> {
        if self.is_closed() {
            return Err(MediaError::Pm { offset: PmOffset(0), length: self.size() }.into());
        }
        self.home.rehome((&self.image, &self.log), device, way)?;
        self.waker.wake();
        Ok(())
    }

    /// An error once the medium has failed or is closed.
    fn refuse_stores(&self) -> Result<(), MediaError> {
        if !self.writable.load(Ordering::Relaxed) {
            return Err(MediaError::Pm { offset: PmOffset(0), length: self.size() });
        }
        self.log.refuse_if_failed()
    }

    /// Does the commit or the home round that a store waits for, in the thread of the store: no step needs to run (J14).
    fn make_room(&self, full: Full) -> Result<(), MediaError> {
        match full {
            Full::Ring => self.log.commit_to(&self.image, self.log.ring.tail()),
            Full::Log => patiently(&self.log, || self.home.free_log(&self.image, &self.log)),
        }
    }
}

impl PmMedium for JournaledPm {
    fn size(&self) -> u64 {
        self.image.bytes()
    }

    fn promise(&self) -> Promise {
        self.log.device().promise()
    }

    fn describe(&self) -> String {
        format!("journaled on {}, {}", self.log.device().name(), self.image.memory.describe())
    }

    #[inline]
    fn read(&self, offset: PmOffset, into: &mut [u8]) -> Result<(), MediaError> {
        self.image.check(offset, into.len())?;
        self.image.memory.read(offset, into)
    }

    #[inline]
    fn load_u64(&self, offset: PmOffset) -> Result<u64, MediaError> {
        self.image.check(offset, 8)?;
        self.image.memory.load_u64(offset)
    }

    fn write(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.log(offset, bytes)
    }

    #[inline]
    fn store(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.image.check(offset, bytes.len())?;
        self.refuse_stores()?;
        self.image.memory.store(offset, bytes)
    }

    fn write_streaming(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.log(offset, bytes)
    }

    #[inline]
    fn expect_store(&self, offset: PmOffset) {
        self.image.memory.expect_store(offset);
    }

    #[inline]
    fn expect_load(&self, offset: PmOffset) {
        self.image.memory.expect_load(offset);
    }

    fn write_back(&self, offset: PmOffset, length: u64) {
        let end = offset.0.saturating_add(length).min(self.size());
        let mut at = offset.0;
        while at < end {
            let next = (at / BLOCK_SIZE + 1) * BLOCK_SIZE;
            let mut bytes = [0; BLOCK_SIZE as usize];
            let piece = &mut bytes[..(next.min(end) - at) as usize];
            self.stored_bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
            self.write_back_in_page(PmOffset(at), piece);
            at = next;
        }
    }

    fn order_at(&self, _at: &'static Location<'static>) {
        self.fences.fetch_add(1, Ordering::Relaxed);
    }

    fn persist_at(&self, _at: &'static Location<'static>) -> Result<(), MediaError> {
        self.fences.fetch_add(1, Ordering::Relaxed);
        self.log.refuse_if_failed()?;
        let target = self.log.ring.tail();
        if self.log.is_durable(target) {
            return Ok(());
        }
        let begun_ns = self.log.clock.monotonic_ns();
        self.log.pressure.note_sync(begun_ns);
        let done = self.log.commit_to(&self.image, target);
        self.latency.note(self.log.clock.monotonic_ns().saturating_sub(begun_ns));
        done
    }

    fn point(&self) -> Point {
        Point(self.log.ring.tail())
    }

    fn try_persist_at(&self, point: Point, _at: &'static Location<'static>) -> Result<bool, MediaError> {
        if self.log.is_durable(point.0) {
            return Ok(true);
        }
        self.log.refuse_if_failed().map(|()| false)
    }

    fn persist_then_at(&self, point: Point, done: Done, _at: &'static Location<'static>) -> bool {
        let (latency, clock) = (Arc::clone(&self.latency), Arc::clone(&self.log.clock));
        let begun_ns = clock.monotonic_ns();
        self.log.pressure.note_sync(begun_ns);
        let noted = move |result| {
            latency.note(clock.monotonic_ns().saturating_sub(begun_ns));
            done(result);
        };
        self.log.commit_then(point.0, Box::new(noted))
    }

    fn persist_waiting(&self) {
        self.log.commit_for_calls(&self.image);
    }

    fn backlog(&self) -> Backlog {
        let now_ns = || self.log.clock.monotonic_coarse_ns();
        let limit_bytes = self.log.ring.bytes();
        let sync_bytes = self.log.pressure.sync_bytes(limit_bytes, now_ns);
        Backlog { waiting_bytes: self.log.waiting(), limit_bytes, sync_bytes }
    }

    fn counters(&self) -> PmCounters {
        PmCounters {
            fences: self.fences.load(Ordering::Relaxed),
            lines: self.stored_bytes.load(Ordering::Relaxed).div_ceil(64),
        }
    }

    fn error_count(&self) -> u64 {
        self.image.memory.error_count() + self.log.device().error_count()
    }

    fn condemn(&self, offset: PmOffset, length: u64) {
        self.image.memory.condemn(offset, length);
    }

    fn prepare(&self, offset: PmOffset, length: u64) {
        self.image.memory.prepare(offset, length.min(self.size().saturating_sub(offset.0)));
    }

    /// Whole pages stay out of the next home round (J8).
    fn forget(&self, offset: PmOffset, length: u64) {
        let end = offset.0.saturating_add(length).min(self.size()) / BLOCK_SIZE;
        for page in offset.0.div_ceil(BLOCK_SIZE)..end {
            let _locked = self.image.lock_page(page);
            self.image.dirty.forget(&self.image.memory, page);
        }
    }

    fn step(&self, now_ns: u64) -> Next {
        if self.is_closed() {
            return Next::Done;
        }
        self.schedule.step((&self.image, &self.log, &self.home), now_ns)
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn close(&self) -> Result<(), MediaError> {
        if !self.writable.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        patiently(&self.log, || self.home.end(&self.image, &self.log))
    }

    fn journal_status(&self) -> Option<JournalStatus> {
        let percentiles = self.latency.percentiles([50.0, 99.0]);
        Some(JournalStatus {
            device: self.log.device().name().to_string(),
            log_bytes: self.log.layout.log_bytes(),
            log_used_bytes: self.log.used(),
            waiting_bytes: self.log.waiting(),
            oldest_ms: self.schedule.oldest_ms(),
            dirty_pages: self.image.dirty.count(&self.image.memory),
            commits: self.log.batches.load(Ordering::Relaxed),
            stored_bytes: self.stored_bytes.load(Ordering::Relaxed),
            committed_bytes: self.log.bytes.load(Ordering::Relaxed),
            home_pages: self.home.pages.load(Ordering::Relaxed),
            sync_p50_us: percentiles.map(|[half, _]| half / 1000),
            sync_p99_us: percentiles.map(|[_, most]| most / 1000),
            healed_pages: self.found.healed,
            condemned_pages: self.found.condemned,
            failed: self.log.refuse_if_failed().err().map(|error| error.to_string()),
        })
    }
}
