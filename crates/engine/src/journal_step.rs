//! Drives the step of a journaled PM.

use crate::engine::Engine;
use std::sync::Arc;
use terrace_runtime::{Next, Step};
use terrace_store::store::Store;

/// The step of the PM medium.
pub(crate) struct JournalStep(Arc<Store>);

impl JournalStep {
    pub(crate) fn new(engine: &Engine) -> JournalStep {
        JournalStep(Arc::clone(&engine.store))
    }
}

impl Step for JournalStep {
    fn name(&self) -> &'static str {
        "journal"
    }

    fn step(&mut self) -> Next {
        self.0.persistent.pm().step(self.0.clock.monotonic_ns())
    }
}
