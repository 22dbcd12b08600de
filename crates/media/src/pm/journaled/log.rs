//! The log: batches become durable in commits (J5).
//!
//! A caller of `persist` waits until all stores before the call are acknowledged. If no commit is under way, the caller is the
//! leader: the leader closes the open batch and writes the batch in its own thread, while later stores gather in the next batch.
//!
//! Invariants: batches are written in the order of their positions, and a batch is acknowledged after all earlier batches.
//! A failed log acknowledges no batch. Lock order: the state comes last.

use super::image::Image;
use super::ring::Ring;
use crate::block::{Run, bytes_of};
use crate::{BlockMedium, DeviceError, MediaError};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use terrace_format::BLOCK_SIZE;
use terrace_format::journal::{BATCH_HEADER_BYTES, BatchHeader, Layout, MAX_BATCH_BYTES};
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};
use terrace_runtime::sync::{Condvar, Mutex, MutexGuard};

/// The store that makes the open batch longer closes the batch. Half of the largest batch, as other threads may append
/// meanwhile.
const LONG_BATCH_BYTES: u64 = MAX_BATCH_BYTES / 2;

/// A place between two batches, for an anchor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Boundary {
    pub position: u64,
    /// Sequence number of the batch behind it.
    pub sequence: u64,
    /// CRC of the batch before it.
    pub previous: u32,
}

/// A closed batch in the queue.
#[derive(Debug, Clone, Copy)]
struct Closed {
    start: u64,
    end: u64,
}

struct State {
    /// Position of the open batch.
    open: u64,
    closed: VecDeque<Closed>,
    /// A leader writes a batch.
    busy: bool,
    /// Behind the last acknowledged batch.
    acknowledged: Boundary,
    /// The boundary of a home round: its position, and the whole boundary after the batch before is acknowledged.
    wanted: Option<(u64, Option<Boundary>)>,
}

/// The log of a medium: the ring, and its batches on the device.
pub(super) struct Log {
    pub device: Arc<dyn BlockMedium>,
    pub layout: Layout,
    pub uuid: [u8; 16],
    pub epoch: u64,
    pub ring: Ring,
    /// Position from which the log counts.
    start: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
    /// Position of the open batch, as `State` has it or older.
    open: AtomicU64,
    /// End of the durable places: the end of the last acknowledged batch, and the header behind.
    durable: AtomicU64,
    failed: OnceLock<MediaError>,
    /// Batches written, and their bytes.
    pub batches: AtomicU64,
    pub bytes: AtomicU64,
}

impl Log {
    /// A log on a device whose last batch ends at a boundary.
    pub fn new(
        (device, layout): (Arc<dyn BlockMedium>, Layout),
        (uuid, epoch): ([u8; 16], u64),
        ring: Ring,
        end: Boundary,
    ) -> Log {
        let state = State {
            open: end.position,
            closed: VecDeque::new(),
            busy: false,
            acknowledged: end,
            wanted: None,
        };
        Log {
            device,
            layout,
            uuid,
            epoch,
            ring,
            start: AtomicU64::new(end.position),
            state: Mutex::new(state),
            changed: Condvar::new(),
            open: AtomicU64::new(end.position),
            durable: AtomicU64::new(end.position + BATCH_HEADER_BYTES),
            failed: OnceLock::new(),
            batches: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// Refuses after the log has failed.
    pub fn refuse_if_failed(&self) -> Result<(), MediaError> {
        self.failed.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// The log has failed (J12).
    pub fn fail(&self, error: &MediaError) {
        if self.failed.set(error.clone()).is_ok() {
            tracing::error!(%error, "the journal failed: the pool takes no more changes");
        }
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

    /// Bytes without a commit.
    pub fn waiting(&self) -> u64 {
        self.ring.tail().saturating_sub(self.durable.load(Ordering::Acquire))
    }

    /// Returns when all places below `target`, a tail of the ring, are durable.
    pub fn commit_to(&self, image: &Image, target: u64) -> Result<(), MediaError> {
        let mut state = self.state.lock();
        while !self.is_durable(target) {
            self.refuse_if_failed()?;
            if state.busy {
                self.changed.wait(&mut state);
                continue;
            }
            if state.closed.is_empty() {
                self.close_open_batch(&mut state);
            }
            state = self.write_next(image, state);
        }
        Ok(())
    }

    /// Closes the open batch unless it is empty.
    fn close_open_batch(&self, state: &mut State) {
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

    /// Writes the first closed batch and acknowledges it.
    fn write_next<'a>(&'a self, image: &Image, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let Some(batch) = state.closed.pop_front() else {
            unreachable!("a target behind the tail of the ring");
        };
        state.busy = true;
        let before = state.acknowledged;
        assert_eq!(batch.start, before.position, "a batch is written behind the last acknowledged one");
        drop(state);
        let written = self.write_batch(image, batch, before);
        let mut state = self.state.lock();
        state.busy = false;
        match written {
            Ok(previous) => {
                let end = Boundary { position: batch.end, sequence: before.sequence + 1, previous };
                state.acknowledged = end;
                if let Some((position, found)) = &mut state.wanted
                    && *position == end.position
                {
                    *found = Some(end);
                }
                self.ring.acknowledged(batch.end);
                self.durable.store(batch.end + BATCH_HEADER_BYTES, Ordering::Release);
                self.batches.fetch_add(1, Ordering::Relaxed);
                self.bytes.fetch_add(batch.end - batch.start, Ordering::Relaxed);
            }
            Err(error) => {
                self.fail(&error);
            }
        }
        self.changed.notify_all();
        state
    }

    /// Writes a batch durably; gives its CRC.
    fn write_batch(&self, image: &Image, batch: Closed, before: Boundary) -> Result<u32, MediaError> {
        image.wait_for_stores();
        let header = BatchHeader {
            epoch: self.epoch,
            sequence: before.sequence,
            position: batch.start,
            length: batch.end - batch.start,
            previous: before.previous,
            acknowledged: before.position,
        };
        // SAFETY: the batch is closed, every store with a place in the batch has ended, and the memory is not reserved again
        // before the batch is acknowledged. The leader owns the place of the header, and writes there before the second call.
        let content = unsafe { self.ring.blocks(batch.start, batch.end) };
        let pieces = content.map(bytes_of);
        let [front, back] = pieces;
        let (bytes, crc) = header.encode(&self.uuid, [&front[BATCH_HEADER_BYTES as usize..], back]);
        self.ring.put_header(batch.start, &bytes);
        // SAFETY: as above.
        let pieces = unsafe { self.ring.blocks(batch.start, batch.end) };
        let limit = self.start.load(Ordering::Acquire) + self.layout.log_bytes();
        if batch.end > limit {
            return Err(self.out_of_log(batch.end - limit));
        }
        let mut runs: Vec<Run<'_>> = Vec::with_capacity(3);
        let mut position = batch.start;
        for mut piece in pieces {
            while !piece.is_empty() {
                let (first, room) = self.layout.log_block(position);
                let (now, later) = piece.split_at(piece.len().min(room as usize));
                runs.push((first, now));
                position += now.len() as u64 * BLOCK_SIZE;
                piece = later;
            }
        }
        self.device.write_durable(&runs)?;
        Ok(crc)
    }

    /// The error of a log whose home rounds failed until it was full.
    fn out_of_log(&self, length: u64) -> MediaError {
        let operation = "write to the log, which is full,";
        let device = self.device.name().to_string();
        DeviceError { device, operation, offset: 0, length, errno: libc::ENOSPC }.into()
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
