//! When dirty pages are written back ([HiNFS] section 3.3): from 5 % free room in DRAM on until 20 % are
//! free, the least recently written first; every five seconds the pages that are dirty for thirty; and by
//! writers that find no room (`room`).
//!
//! A single thread does this work. While a device holds it up, the next thread goes on with pages for other
//! devices, and so on ([`STEPS`](terrace_store::parts::dram::write_back::STEPS)).

use crate::write_back::rounds::{Round, age_round, device_round, lazy_round, lazy_round_with};
use std::sync::{Arc, Weak};
use std::time::Duration;
use terrace_placement::Home;
use terrace_runtime::sync::atomic::Ordering;
use terrace_runtime::{Next, Step};
use terrace_store::error::FsError;
use terrace_store::store::Store;
use terrace_store::types::Wait;

/// How often a thread looks whether it is wanted.
const STAND_BY: Duration = Duration::from_secs(1);

/// Background: one group per step.
pub struct WriteBackStep {
    store: Weak<Store>,
    /// Below the number of steps.
    number: usize,
    next_look_ns: u64,
}

impl WriteBackStep {
    /// The step of one thread.
    pub fn new(store: &Arc<Store>, number: usize) -> WriteBackStep {
        WriteBackStep { store: Arc::downgrade(store), number, next_look_ns: 0 }
    }

    fn work(&mut self, store: &Store) -> Next {
        // Old pages first: a page that is written again and again is never the one written least recently.
        let (now, period) = (store.clock.monotonic_ns(), store.dram.lazy_writes().options().period);
        if now >= self.next_look_ns {
            match age_round(store) {
                Ok(Round::Progress) => return Next::Again,
                Ok(Round::Nothing) => {}
                Err(error) => tracing::debug!("write-back: {error}"),
            }
            self.next_look_ns = now + period.as_nanos() as u64;
        }
        let draining = store.dram.write_back().is_draining(store.dram.cache().dirty_pages());
        // Pages for PM are for the steps of their own (`lazy_step`).
        let has_pages = store.dram.cache().dirty_pages_of(Home::Block) > 0;
        if draining && has_pages && device_round(store).is_ok_and(|round| round == Round::Progress) {
            return Next::Again;
        }
        if self.number == 0 && lazy_pages_need_a_device(store) {
            return Next::Again;
        }
        // A failed write-back is tried again after its pause, so the step does not spin.
        Next::After(if draining { Duration::from_millis(100) } else { period })
    }
}

impl Step for WriteBackStep {
    fn name(&self) -> &'static str {
        ["terrace-writeb", "terrace-writeb1", "terrace-writeb2"].get(self.number).copied().unwrap_or_default()
    }

    fn step(&mut self) -> Next {
        let Some(store) = self.store.upgrade() else {
            return Next::Done;
        };
        if store.persistent.wal().is_stopped() {
            return Next::After(store.dram.lazy_writes().options().period);
        }
        let now = store.clock.monotonic_ns();
        if !store.dram.write_back().are_late(self.number, now) {
            return Next::After(STAND_BY);
        }
        let begun = &store.dram.write_back().begun_ns[self.number];
        begun.store(now.max(1), Ordering::Release);
        let next = self.work(&store);
        begun.store(0, Ordering::Release);
        match next {
            // While it is wanted it comes as often as it looks.
            Next::After(pause) if self.number > 0 => Next::After(pause.min(STAND_BY)),
            next => next,
        }
    }
}

/// Writes back a lazy group that the steps for such pages leave, since it asks a device; false: there is none, or no need.
fn lazy_pages_need_a_device(store: &Store) -> bool {
    store.dram.write_back().is_lazy_draining(store.dram.cache().dirty_pages_of(Home::Pm))
        && matches!(lazy_round(store), Err(FsError::WouldBlock))
        && lazy_round_with(store, Wait::Allowed).is_ok_and(|progress| progress)
}
