//! Commits: batches become durable (J5, J12).
//!
//! A caller of `persist` waits until all stores before the call are acknowledged. If no batch under way has these stores, and
//! another batch may be in flight, the caller is a leader: a leader closes the open batch, seals it with its header, and writes
//! it in its own thread. Later stores gather in the next batch.
//!
//! Invariants: 1. Batches are sealed in the order of their positions, by a single leader at a time, because a header has the CRC
//! of the batch before. 2. A batch is acknowledged after all earlier batches. 3. A failed log acknowledges no batch. 4. While a
//! call waits for a batch that is not sealed, a thread is in [`Log::commit_for_calls`] or was promised. 5. While a thread waits
//! so and another batch may be sealed, a thread was woken to seal it.
//! Lock order: the state comes before a seat. Calls are answered without these locks; home's, and
//! locks of a caller that stores, may be held: an answer stores nothing and waits for nothing.

use super::commits::{Answer, Boundary, Closed, Commits, Flight, Seat, Waiter, tell};
use super::image::Image;
use super::log::Log;
use super::patience::Patience;
use super::pieces::log_runs;
use crate::block::bytes_of;
use crate::pm::Done;
use crate::{DeviceError, MediaError};
use std::sync::Arc;
use terrace_format::BLOCK_SIZE;
use terrace_format::journal::{BATCH_HEADER_BYTES, BatchHeader};
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::MutexGuard;
use terrace_runtime::sync::atomic::Ordering;

/// A leader that panics fails the log: nobody else would seal or acknowledge its batch, and waiters would sleep for ever.
struct FailsOnPanic<'a>(&'a Log);

impl Drop for FailsOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let device = self.0.device().name().to_string();
            let operation = "commit, which panicked,";
            self.0.fail(&DeviceError { device, operation, offset: 0, length: 0, errno: libc::EIO }.into());
            self.0.end_leading(&mut self.0.state.lock());
        }
    }
}

impl Log {
    /// Returns when all places below `target`, a tail of the ring, are durable.
    pub fn commit_to(&self, image: &Image, target: u64) -> Result<(), MediaError> {
        if self.is_durable(target) {
            return Ok(());
        }
        let mut state = self.state.lock();
        while !self.is_durable(target) {
            self.refuse_if_failed()?;
            state = if state.is_sealed(target) || !state.may_seal() {
                self.wait(state, target)
            } else {
                self.write_next(image, state)
            };
        }
        Ok(())
    }

    /// Calls `done` when all places below `target` are durable or the log has failed: now, or later from
    /// another thread ([`crate::PmMedium::persist_then_at`]). True if the caller has to bring a thread to [`Self::commit_for_calls`].
    pub fn commit_then(&self, target: u64, done: Done) -> bool {
        let outcome = if self.is_durable(target) {
            Ok(())
        } else {
            let mut state = self.state.lock();
            // After a failure nobody looks through the waiters again. A failure ends under this lock: a single look decides.
            match self.refuse_if_failed() {
                Ok(()) if !self.is_durable(target) => {
                    state.waiters.push(Waiter { target, answer: Answer::Call(done) });
                    let is_needed =
                        !state.is_sealed(target) && state.leaders_for_calls < state.most_in_flight();
                    state.leaders_for_calls += usize::from(is_needed);
                    return is_needed;
                }
                outcome => outcome,
            }
        };
        done(outcome);
        false
    }

    /// Commits until no call waits for a batch that is not sealed.
    pub fn commit_for_calls(&self, image: &Image) {
        loop {
            let target = {
                let mut state = self.state.lock();
                let target = if self.refuse_if_failed().is_ok() { state.target_of_calls() } else { None };
                if target.is_none() {
                    state.leaders_for_calls -= 1;
                }
                target
            };
            let Some(target) = target else { return };
            // A failure has told all waiters.
            let _ = self.commit_to(image, target);
        }
    }

    fn wait<'a>(&'a self, mut state: MutexGuard<'a, Commits>, target: u64) -> MutexGuard<'a, Commits> {
        let seat = Arc::new(Seat::default());
        state.waiters.push(Waiter { target, answer: Answer::Thread(Arc::clone(&seat)) });
        drop(state);
        seat.sleep();
        self.state.lock()
    }

    /// Seals the next batch, writes it, and acknowledges the written batches.
    fn write_next<'a>(
        &'a self,
        image: &Image,
        mut state: MutexGuard<'a, Commits>,
    ) -> MutexGuard<'a, Commits> {
        if state.closed.is_empty() {
            self.close_open_batch(&mut state);
        }
        let Some(batch) = state.closed.pop_front() else {
            unreachable!("a target behind the tail of the ring");
        };
        let (before, acknowledged) = (state.sealed, state.acknowledged.position);
        assert_eq!(batch.start, before.position, "a batch is sealed behind the last one");
        state.is_sealing = true;
        state.leading += 1;
        drop(state);
        let _guard = FailsOnPanic(self);
        let crc = self.seal(image, batch, before, acknowledged);
        let end = Boundary { position: batch.end, sequence: before.sequence + 1, previous: crc };
        let mut state = self.state.lock();
        state.is_sealing = false;
        state.sealed = end;
        state.flying.push_back(Flight { end, length: batch.end - batch.start, is_written: false });
        let leader = state.take_leader();
        drop(state);
        tell(leader.into_iter().collect(), &Ok(()));
        let written = self.write_batch(batch);
        match written {
            Ok(took_ns) => {
                self.pressure.note_batch(batch.end - batch.start, took_ns);
                let mut state = self.state.lock();
                state.note_write(took_ns);
                self.acknowledge(&mut state, end);
                // First the thread that seals the next batch: waking takes as long as a part of a write.
                let mut told: Vec<Answer> = state.take_leader().into_iter().collect();
                told.extend(state.take_waiters(self.durable.load(Ordering::Relaxed)));
                drop(state);
                tell(told, &Ok(()));
            }
            Err(_) if planted(Mistake::PersistErrorSwallowed) => {
                self.acknowledge(&mut self.state.lock(), end)
            }
            Err(error) => self.fail(&error),
        }
        let mut state = self.state.lock();
        self.end_leading(&mut state);
        state
    }

    /// A leader is done.
    fn end_leading(&self, state: &mut Commits) {
        state.leading -= 1;
        if state.leading == 0 && state.is_moving {
            self.idle.notify_all();
        }
    }

    /// The log has failed (J12): tells all waiters. The caller does not hold the state.
    pub fn fail(&self, error: &MediaError) {
        // Under one lock: a waiter looks for a failure under this lock before its wait, and a failure may end.
        let (is_first, told, result) = {
            let mut state = self.state.lock();
            let is_first = self.failure.set(error);
            (is_first, state.take_waiters(u64::MAX), self.refuse_if_failed())
        };
        if is_first {
            tracing::error!(%error, "the journal failed: the pool takes no more changes");
        }
        tell(told, &result);
    }

    /// A batch is written: acknowledges the batch and later written batches, if all earlier batches are written.
    fn acknowledge(&self, state: &mut Commits, written: Boundary) {
        let flight = state.flying.iter_mut().find(|flight| flight.end == written);
        let Some(flight) = flight else { unreachable!("a written batch that is not in flight") };
        flight.is_written = true;
        if planted(Mistake::AcknowledgedOutOfOrder) {
            self.durable.fetch_max(written.position + BATCH_HEADER_BYTES, Ordering::SeqCst);
        }
        if self.refuse_if_failed().is_err() {
            return;
        }
        while let Some(Flight { end, length, .. }) = state.flying.pop_front_if(|flight| flight.is_written) {
            state.acknowledged = end;
            if let Some((position, found)) = &mut state.wanted
                && *position == end.position
            {
                *found = Some(end);
            }
            self.ring.acknowledged(end.position);
            self.durable.fetch_max(end.position + BATCH_HEADER_BYTES, Ordering::Release);
            self.batches.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(length, Ordering::Relaxed);
        }
    }

    /// Writes the header of a closed batch into the ring, after the last store of the batch has ended; gives the CRC.
    fn seal(&self, image: &Image, batch: Closed, before: Boundary, acknowledged: u64) -> u32 {
        image.wait_for_stores();
        let header = BatchHeader {
            epoch: self.epoch.load(Ordering::SeqCst),
            sequence: before.sequence,
            position: batch.start,
            length: batch.end - batch.start,
            previous: before.previous,
            acknowledged,
        };
        // SAFETY: the batch is closed, every store with a place in the batch has ended, and the memory is not reserved again
        // before the batch is acknowledged. The leader owns the place of the header, and writes there behind this use.
        let pieces = unsafe { self.ring.blocks(batch.start, batch.end) };
        let [front, back] = pieces.map(bytes_of);
        let (bytes, crc) = header.encode(&self.uuid, [&front[BATCH_HEADER_BYTES as usize..], back]);
        self.ring.put(batch.start, &bytes);
        crc
    }

    /// Writes a sealed batch durably, at the same place again after errors (J12); gives the nanoseconds of the write.
    fn write_batch(&self, batch: Closed) -> Result<u64, MediaError> {
        let limit = self.start.load(Ordering::Acquire) + self.layout.log_bytes();
        if batch.end > limit {
            return Err(self.out_of_log(batch.end - limit));
        }
        // SAFETY: the batch is sealed: no thread writes there before the batch is acknowledged, behind this use.
        let pieces = unsafe { self.ring.blocks(batch.start, batch.end) };
        let [front, back] = pieces;
        let mut runs = log_runs(&self.layout, batch.start, front);
        runs.extend(log_runs(&self.layout, batch.start + front.len() as u64 * BLOCK_SIZE, back));
        let mut patience = Patience::new(&*self.clock);
        let device = self.device();
        loop {
            let begun_ns = self.clock.monotonic_ns();
            match device.write_durable(&runs) {
                Ok(()) => return Ok(self.clock.monotonic_ns().saturating_sub(begun_ns)),
                Err(error) if self.refuse_if_failed().is_err() || !patience.pause() => return Err(error),
                Err(error) => tracing::warn!(%error, "a commit failed; it is tried again"),
            }
        }
    }

    /// The error of a log whose home rounds failed until it was full.
    fn out_of_log(&self, length: u64) -> MediaError {
        let operation = "write to the log, which is full,";
        let device = self.device().name().to_string();
        DeviceError { device, operation, offset: 0, length, errno: libc::ENOSPC }.into()
    }
}
