//! The log of a journal: the ring, and the places up to which it is closed, durable and free. Commits: see `commit`.
//!
//! Lock order: the state comes behind home and pages, and before the device and the failure.

use super::commits::{Boundary, Closed, Commits};
use super::device::JournalDevice;
use super::failure::Failure;
use super::pressure::Pressure;
use super::ring::Ring;
use crate::MediaError;
use std::sync::Arc;
use terrace_format::journal::{BATCH_HEADER_BYTES, Layout, MAX_BATCH_BYTES};
use terrace_runtime::Clock;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};
use terrace_runtime::sync::{Condvar, Mutex};

/// The store that makes the open batch longer closes the batch. Half of the largest batch, as other threads may append
/// meanwhile.
const LONG_BATCH_BYTES: u64 = MAX_BATCH_BYTES / 2;

/// The log of a medium: the ring, and its batches on the device.
pub(super) struct Log {
    /// Another one after a move (J12); the threads under way keep theirs.
    device: Mutex<Arc<JournalDevice>>,
    pub layout: Layout,
    pub uuid: [u8; 16],
    pub epoch: AtomicU64,
    pub ring: Ring,
    /// Position from which the log counts.
    pub start: AtomicU64,
    pub state: Mutex<Commits>,
    /// No thread seals or writes a batch.
    pub idle: Condvar,
    pub clock: Arc<dyn Clock>,
    pub pressure: Pressure,
    /// Position of the open batch, as the state has it or older.
    open: AtomicU64,
    /// End of the durable places: the end of the last acknowledged batch, and the header behind.
    pub durable: AtomicU64,
    pub failure: Failure,
    /// Batches written, and their bytes.
    pub batches: AtomicU64,
    pub bytes: AtomicU64,
}

impl Log {
    /// A log on a device whose last batch ends at a boundary.
    pub fn new(
        (device, layout): (JournalDevice, Layout),
        (uuid, epoch): ([u8; 16], u64),
        ring: Ring,
        end: Boundary,
        clock: Arc<dyn Clock>,
    ) -> Log {
        Log {
            device: Mutex::new(Arc::new(device)),
            layout,
            uuid,
            epoch: AtomicU64::new(epoch),
            ring,
            start: AtomicU64::new(end.position),
            state: Mutex::new(Commits::new(end)),
            idle: Condvar::new(),
            clock,
            pressure: Pressure::default(),
            open: AtomicU64::new(end.position),
            durable: AtomicU64::new(end.position + BATCH_HEADER_BYTES),
            failure: Failure::default(),
            batches: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// Refuses after the log has failed.
    pub fn refuse_if_failed(&self) -> Result<(), MediaError> {
        self.failure.refuse()
    }

    /// The device.
    pub fn device(&self) -> Arc<JournalDevice> {
        Arc::clone(&self.device.lock())
    }

    /// Goes on on another device.
    pub fn set_device(&self, device: Arc<JournalDevice>) {
        *self.device.lock() = device;
    }

    /// Whether all places below a tail are durable.
    pub fn is_durable(&self, tail: u64) -> bool {
        self.durable.load(Ordering::Acquire) >= tail
    }

    /// The log counts from `start` on; stores leave its last `share` bytes to a home round.
    pub fn set_start(&self, start: u64, share: u64) {
        self.start.store(start, Ordering::Release);
        self.ring.set_log_limit(start + self.layout.log_bytes() - share);
    }

    /// Bytes of the log that an opening would apply.
    pub fn used(&self) -> u64 {
        self.ring.tail() - self.start.load(Ordering::Acquire)
    }

    /// Bytes of the log that no place has.
    pub fn left(&self) -> u64 {
        self.layout.log_bytes().saturating_sub(self.used())
    }

    /// Bytes without a commit.
    pub fn waiting(&self) -> u64 {
        self.ring.tail().saturating_sub(self.durable.load(Ordering::Acquire))
    }

    /// Closes the open batch unless it is empty.
    pub fn close_open_batch(&self, state: &mut Commits) {
        if let Some(end) = self.ring.close(state.open) {
            assert!(end - state.open <= MAX_BATCH_BYTES, "a batch of {} bytes", end - state.open);
            state.closed.push_back(Closed { start: state.open, end });
            state.open = end;
            self.open.store(end, Ordering::Relaxed);
        }
    }

    /// Closes the open batch if the batch is long. For a store at `place`, without locks.
    pub fn close_if_long(&self, place: u64) {
        let is_long = |open: u64| place.saturating_sub(open) > LONG_BATCH_BYTES;
        if is_long(self.open.load(Ordering::Relaxed)) {
            let mut state = self.state.lock();
            if is_long(state.open) {
                self.close_open_batch(&mut state);
            }
        }
    }

    /// Closes the open batch and remembers its end as the boundary of a home round. Gives the position.
    pub fn want_boundary(&self) -> u64 {
        let mut state = self.state.lock();
        self.close_open_batch(&mut state);
        let acknowledged = state.acknowledged;
        let position = state.open;
        let known = (acknowledged.position == position).then_some(acknowledged);
        state.wanted = Some((position, known));
        position
    }

    /// The boundary asked for last, once it is acknowledged, and the end of the acknowledged batches.
    pub fn boundary(&self) -> Option<(Boundary, u64)> {
        let state = self.state.lock();
        let (_, found) = state.wanted?;
        Some((found?, state.acknowledged.position))
    }
}
