//! `journaled`: persistent memory whose content is in DRAM and becomes durable by a log on a block device (design 3;
//! rules J1 to J14 in docs/journal.md).
//!
//! A store reserves a place in the ring, copies its bytes there and then into the image (J2, J3). `order` costs
//! nothing, because places in the ring are the order of all stores. `persist` writes the ring up to now as one batch
//! (`commit`). Pages of the image go home in rounds (`home`), which frees space of the log. `open` puts the image
//! together again.
//!
//! Invariants: 1. A page is locked from the reservation of a store until the store is in the image, so whoever locks all
//! pages one by one has waited for every store with an earlier place. 2. In-place stores ([`PmMedium::store`]) are not
//! logged: the record that names them is, and the checkpoint's write-back follows. 3. No batch is written over before an
//! anchor passes it.
//! Lock order: home, page, then the state of `commit`. A device is never asked under a page lock.

mod commit;
mod dirty;
mod home;
mod load;
mod open;
mod replay;
mod ring;
mod step;

use crate::BlockMedium;
use crate::found::is_in_memory;
use crate::pm::{PmCounters, PmMedium, RamPm};
use crate::{MediaError, Promise};
use commit::Commit;
use dirty::DirtyPages;
use home::Home;
use ring::{Full, Ring, STEP_BYTES};
use std::panic::Location;
use std::path::Path;
use std::sync::Arc;
use step::Timer;
use terrace_format::journal::{Entry, EntryKind, Layout};
use terrace_format::{BLOCK_SIZE, PmOffset};
use terrace_runtime::Next;
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrace_runtime::thread::Waker;

pub use open::{JournalError, JournalOptions, OpenedJournal};
pub use step::JournalStatus;

/// Locks of pages. A page takes the lock of its number modulo this.
const PAGE_LOCKS: usize = 64;

/// A lock on a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct PageLock(Mutex<()>);

/// Persistent memory in DRAM with a journal.
pub struct JournaledPm {
    image: RamPm,
    device: Arc<dyn BlockMedium>,
    layout: Layout,
    uuid: [u8; 16],
    epoch: u64,
    ring: Ring,
    dirty: DirtyPages,
    pages: Box<[PageLock; PAGE_LOCKS]>,
    commit: Commit,
    home: Mutex<Home>,
    /// Position from which the log counts.
    log_start: AtomicU64,
    /// Cleared by an orderly close, and never set in a medium that only reads.
    writable: AtomicBool,
    fences: AtomicU64,
    lines: AtomicU64,
    home_pages: AtomicU64,
    /// Pages that were put together again, and pages that are damaged, at opening.
    healed: u64,
    condemned: u64,
    timer: Mutex<Timer>,
    waker: Waker,
}

impl JournaledPm {
    /// Stores bytes that a crash after the next `persist` keeps: ring first, then image (J3).
    fn log(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.image.check(offset, bytes.len() as u64, self.layout.image_bytes())?;
        self.lines.fetch_add((bytes.len() as u64).div_ceil(64), Ordering::Relaxed);
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = (BLOCK_SIZE - at.0 % BLOCK_SIZE) as usize;
            let (piece, behind) = rest.split_at(rest.len().min(room));
            self.log_in_page(at, |_| Some(piece))?;
            at = at.plus(piece.len() as u64);
            rest = behind;
        }
        Ok(())
    }

    /// Logs bytes inside one page, which `bytes` gives under the page's lock, and stores them.
    fn log_in_page<'a>(
        &self,
        at: PmOffset,
        bytes: impl FnOnce(&RamPm) -> Option<&'a [u8]>,
    ) -> Result<(), MediaError> {
        let page = at.0 / BLOCK_SIZE;
        let locked = loop {
            let locked = self.lock_page(page);
            self.refuse_stores()?;
            let Some(full) = self.ring.full() else { break locked };
            drop(locked);
            self.make_room(full)?;
        };
        let Some(bytes) = bytes(&self.image) else { return Ok(()) };
        let place = self.ring.append(&Entry { kind: EntryKind::Store, offset: at, bytes });
        self.dirty.mark(&self.image, page);
        self.image.store(at, bytes)?;
        drop(locked);
        if place / STEP_BYTES != (place + BLOCK_SIZE) / STEP_BYTES {
            self.waker.wake();
        }
        self.close_if_long(place);
        Ok(())
    }

    /// Whether an orderly close has ended it, or it only reads.
    pub fn is_closed(&self) -> bool {
        !self.writable.load(Ordering::Relaxed)
    }

    /// An error once the medium has failed or is closed.
    fn refuse_stores(&self) -> Result<(), MediaError> {
        if !self.writable.load(Ordering::Relaxed) {
            return Err(MediaError::Pm { offset: PmOffset(0), length: self.size() });
        }
        self.commit.refuse_if_failed()
    }

    fn lock_page(&self, page: u64) -> terrace_runtime::sync::MutexGuard<'_, ()> {
        self.pages[page as usize % PAGE_LOCKS].0.lock()
    }

    /// Waits for every store whose place was reserved before this call.
    fn wait_for_stores(&self) {
        self.pages.iter().for_each(|page| drop(page.0.lock()));
    }

    /// Does the commit or the home round that a store waits for, in the thread of the store: no step needs to run (J14).
    fn make_room(&self, full: Full) -> Result<(), MediaError> {
        match full {
            Full::Ring => self.commit_to(self.ring.tail()),
            Full::Log => self.free_log(),
        }
    }
}

impl PmMedium for JournaledPm {
    fn size(&self) -> u64 {
        self.layout.image_bytes()
    }

    fn promise(&self) -> Promise {
        let device = self.device.promise();
        if is_in_memory(Path::new(self.device.name())) { Promise::ProcessCrash } else { device }
    }

    fn describe(&self) -> String {
        format!("journaled on {}, {}", self.device.name(), self.image.describe())
    }

    #[inline]
    fn read(&self, offset: PmOffset, into: &mut [u8]) -> Result<(), MediaError> {
        self.image.check(offset, into.len() as u64, self.layout.image_bytes())?;
        self.image.read(offset, into)
    }

    #[inline]
    fn load_u64(&self, offset: PmOffset) -> Result<u64, MediaError> {
        self.image.check(offset, 8, self.layout.image_bytes())?;
        self.image.load_u64(offset)
    }

    fn write(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.log(offset, bytes)
    }

    #[inline]
    fn store(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.image.check(offset, bytes.len() as u64, self.layout.image_bytes())?;
        self.refuse_stores()?;
        self.image.store(offset, bytes)
    }

    fn write_streaming(&self, offset: PmOffset, bytes: &[u8]) -> Result<(), MediaError> {
        self.log(offset, bytes)
    }

    #[inline]
    fn expect_store(&self, offset: PmOffset) {
        self.image.expect_store(offset);
    }

    #[inline]
    fn expect_load(&self, offset: PmOffset) {
        self.image.expect_load(offset);
    }

    /// Reads each piece before it reserves the place of the piece: a record has its place before its in-place stores, so a
    /// cut of the log never has the effect of a record without the record (J3).
    fn write_back(&self, offset: PmOffset, length: u64) {
        let end = offset.0.saturating_add(length).min(self.size());
        let mut at = offset.0;
        while at < end {
            let next = (at / BLOCK_SIZE + 1) * BLOCK_SIZE;
            let mut bytes = [0; BLOCK_SIZE as usize];
            let piece = &mut bytes[..(next.min(end) - at) as usize];
            self.lines.fetch_add((piece.len() as u64).div_ceil(64), Ordering::Relaxed);
            // A failed medium refuses the next store; poisoned lines stay as they are, as on other media.
            let _ = self.log_in_page(PmOffset(at), |image| {
                image.read(PmOffset(at), piece).ok()?;
                Some(piece)
            });
            at = next;
        }
    }

    fn order_at(&self, _at: &'static Location<'static>) {
        self.fences.fetch_add(1, Ordering::Relaxed);
    }

    fn persist_at(&self, _at: &'static Location<'static>) -> Result<(), MediaError> {
        self.fences.fetch_add(1, Ordering::Relaxed);
        self.commit_to(self.ring.tail())
    }

    fn counters(&self) -> PmCounters {
        PmCounters { fences: self.fences.load(Ordering::Relaxed), lines: self.lines.load(Ordering::Relaxed) }
    }

    fn error_count(&self) -> u64 {
        self.image.error_count() + self.device.error_count()
    }

    fn condemn(&self, offset: PmOffset, length: u64) {
        self.image.condemn(offset, length);
    }

    fn prepare(&self, offset: PmOffset, length: u64) {
        self.image.prepare(offset, length.min(self.size().saturating_sub(offset.0)));
    }

    fn step(&self, now_ns: u64) -> Next {
        self.do_step(now_ns)
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn close(&self) -> Result<(), MediaError> {
        self.end()
    }

    fn journal_status(&self) -> Option<JournalStatus> {
        Some(self.status())
    }
}
