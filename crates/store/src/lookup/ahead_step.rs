//! The background step that reads ahead.

use crate::lookup::cold_read::fetch_window;
use crate::operation::op::Op;
use crate::store::Store;
use crate::types::{BlockRange, Wait};
use std::sync::{Arc, Weak};
use std::time::Duration;
use terrace_runtime::{Next, Step};

/// The rest of a worker that is not woken.
const IDLE: Duration = Duration::from_secs(1);

/// Fetches a queued window; false if the queue is empty.
fn fetch_ahead(store: &Store) -> bool {
    let Some((ino, window)) = store.dram.read_ahead().take() else {
        return false;
    };
    let nothing = BlockRange::new(window.first, window.first);
    if let Err(error) = fetch_window(store, &mut Op::new(Wait::Allowed), ino, nothing, window) {
        tracing::debug!("reading ahead: {error}");
    }
    store.dram.read_ahead().done((ino, window));
    true
}

/// Background: fetches what is wanted ahead of streams.
pub struct AheadStep {
    store: Weak<Store>,
    worker: usize,
}

impl AheadStep {
    /// The step of one worker.
    pub fn new(store: &Arc<Store>, worker: usize) -> AheadStep {
        AheadStep { store: Arc::downgrade(store), worker }
    }
}

impl Step for AheadStep {
    fn name(&self) -> &'static str {
        if self.worker == 0 { "terrace-ahead-0" } else { "terrace-ahead-1" }
    }

    fn step(&mut self) -> Next {
        match self.store.upgrade() {
            None => Next::Done,
            Some(store) if fetch_ahead(&store) => Next::Again,
            Some(_) => Next::After(IDLE),
        }
    }
}
