//! Background write-back of lazy pages when little room is left ([HiNFS] section 3.3): from the low mark of free pages until
//! the high mark, the least recently written pages first; and pages that are dirty for long.

use crate::write_back::steps::{lazy_age_round, lazy_round};
use std::sync::{Arc, Weak};
use std::time::Duration;
use terrace_runtime::{Next, Step};
use terrace_store::store::Store;

/// The pause of a step beside pages that cannot be written now.
const PAUSE: Duration = Duration::from_millis(10);

/// Background: one group per step. Any number of steps may be under way.
pub struct LazyStep {
    store: Weak<Store>,
    number: usize,
}

impl LazyStep {
    /// The step of one thread.
    pub fn new(store: &Arc<Store>, number: usize) -> LazyStep {
        LazyStep { store: Arc::downgrade(store), number }
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
        let write_back = store.dram.write_back();
        if store.persistent.wal().is_stopped() || !write_back.is_draining(store.dram.cache().dirty_pages()) {
            // Pages that are dirty for long go with the first step: the step for devices may be held by one.
            let has_aged = self.number == 0 && !store.persistent.wal().is_stopped() && lazy_age_round(&store);
            return if has_aged { Next::Again } else { Next::After(period) };
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
