//! The coarse clock, the source of the ticks that let blocks and files get colder.

use crate::pace::POLL;
use std::sync::{Arc, Weak};
use terrace_runtime::{Next, Step};
use terrace_store::moving::victim::LEAVING;
use terrace_store::store::Store;

/// Background step of the coarse clock. It waits for no device.
pub struct ClockStep {
    store: Weak<Store>,
}

impl ClockStep {
    /// The step.
    pub fn new(store: &Arc<Store>) -> ClockStep {
        ClockStep { store: Arc::downgrade(store) }
    }
}

impl Step for ClockStep {
    fn name(&self) -> &'static str {
        "terrace-clock"
    }

    fn step(&mut self) -> Next {
        let Some(store) = self.store.upgrade() else {
            return Next::Done;
        };
        let now = store.clock.monotonic_ns();
        let ticks = now.saturating_sub(store.steering.mounted_ns()) / POLL.as_nanos() as u64;
        // The clock stands still after 497 days: a later tick would equal the mark of victims.
        store.steering.set_tick(1 + ticks.min(u64::from(LEAVING - 2)) as u32);
        store.steering.data_flows().tell_time(now);
        Next::After(POLL)
    }
}
