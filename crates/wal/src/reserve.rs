//! Room for a record in a lane, taken before any lock (T7).
//!
//! Invariant: a lane has room for its records, for all reservations, and for a confirming record. A full lane has the
//! checkpoint moved.

use crate::error::{Error, Result};
use crate::lane::Lane;
use crate::wal::{Reservation, Wal};
use std::time::Duration;
use terrace_runtime::sync::atomic::Ordering;
use terrace_runtime::thread;

impl Wal {
    /// Reserves room for a record of at most `bytes`. Take it before any lock: it may run a
    /// checkpoint, and waits when other reservations fill all lanes.
    ///
    /// # Errors
    /// `RecordTooLarge` beyond a quarter lane; the medium's.
    pub fn reserve(&self, bytes: usize) -> Result<Reservation<'_>> {
        if bytes > self.max_record() {
            return Err(Error::RecordTooLarge { bytes, limit: self.max_record() });
        }
        let need = Lane::need(bytes);
        assert!(!self.lanes.is_empty(), "a log without lanes (T3)");
        let hint = thread::index() % self.lanes.len();
        let due_above = self.due_above.load(Ordering::Relaxed);
        loop {
            if self.is_stopped() {
                return Err(Error::Stopped);
            }
            for turn in 0..self.lanes.len() {
                let turned = hint + turn;
                let index = if turned < self.lanes.len() { turned } else { turned - self.lanes.len() };
                let lane = &self.lanes[index];
                let Some(mut state) = lane.state.try_lock() else {
                    continue;
                };
                let due = state.head - state.tail > due_above;
                let taken = lane.try_reserve(&mut state, need);
                drop(state);
                if taken {
                    let reservation = Reservation { wal: self, lane: index, need };
                    if due {
                        self.checkpoint_if_idle()?;
                    }
                    return Ok(reservation);
                }
            }
            self.checkpoint()?;
            let lane = &self.lanes[hint];
            let taken = lane.try_reserve(&mut lane.state.lock(), need);
            if taken {
                return Ok(Reservation { wal: self, lane: hint, need });
            }
            let mut guard = self.space_freed.0.lock();
            self.space_freed.1.wait_for(&mut guard, Duration::from_millis(1));
        }
    }
}
