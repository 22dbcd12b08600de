//! The coarse clock, by which blocks and files get colder.

use crate::pace::POLL;
use std::sync::{Arc, Weak};
use terrace_runtime::{Next, Step};
use terrace_store::moving::victim::LEAVING;
use terrace_store::store::Store;

/// Background: the coarse clock, by which blocks and files get colder. Waits for nothing.
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
        // It stands still after 497 days: what is touched then must not look as if it were leaving.
        store.steering.set_tick(1 + ticks.min(u64::from(LEAVING - 2)) as u32);
        store.steering.data_flows().tell_time(now);
        Next::After(POLL)
    }
}
