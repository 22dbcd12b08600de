//! Background write-back of lazy pages when little room is left ([HiNFS] section 3.3): from the low mark of free pages until
//! the high mark, the least recently written pages first; and pages that are dirty for long.

use crate::write_back::rounds::{lazy_age_round, lazy_round};
use std::sync::{Arc, Weak};
use std::time::Duration;
use terrace_placement::Home;
use terrace_runtime::{Next, Step};
use terrace_store::store::Store;

/// The pause of a step beside pages that cannot be written now.
const PAUSE: Duration = Duration::from_millis(10);

/// Background: one group per step. Any number of steps may be under way.
pub struct LazyStep {
    store: Weak<Store>,
    number: usize,
    /// When old pages are looked for again.
    next_look_ns: u64,
}

impl LazyStep {
    /// The step of one thread.
    pub fn new(store: &Arc<Store>, number: usize) -> LazyStep {
        LazyStep { store: Arc::downgrade(store), number, next_look_ns: 0 }
    }
}

impl Step for LazyStep {
    fn name(&self) -> &'static str {
        ["terrace-lazy", "terrace-lazy1", "terrace-lazy2", "terrace-lazy3"]
            .get(self.number)
            .copied()
            .unwrap_or_default()
    }

    fn step(&mut self) -> Next {
        let Some(store) = self.store.upgrade() else { return Next::Done };
        let period = store.dram.lazy_writes().options().period;
        if store.persistent.wal().is_stopped() {
            return Next::After(period);
        }
        // Pages that are dirty for long go first, and with the first step: the step for devices may be held by one.
        let now = store.clock.monotonic_ns();
        if self.number == 0 && now >= self.next_look_ns {
            if lazy_age_round(&store) {
                return Next::Again;
            }
            self.next_look_ns = now + period.as_nanos() as u64;
        }
        let (cache, write_back) = (store.dram.cache(), store.dram.write_back());
        let is_draining = write_back.is_lazy_draining(cache.dirty_pages_of(Home::Pm));
        if !write_back.is_draining(cache.dirty_pages()) && !is_draining {
            return Next::After(period);
        }
        match lazy_round(&store) {
            Ok(true) => Next::Again,
            Ok(false) => Next::After(PAUSE),
            Err(error) => {
                tracing::debug!("write-back of lazy pages: {error}");
                Next::After(PAUSE)
            }
        }
    }
}
