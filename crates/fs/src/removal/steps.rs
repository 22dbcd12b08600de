//! Background steps of removal and of the passes after a mount.
//!
//! Invariant: [`ReclaimStep`] waits for no device, so that a device that hangs delays only the removals that
//! need it (I10). A job that would have to wait goes to [`WaitingStep`].

use crate::removal::orphans::reclaim_task;
use crate::removal::passes::PASSES;
use std::sync::Arc;
use std::time::Duration;
use terrace_format::PmOffset;
use terrace_runtime::{Next, Step};
use terrace_store::error::FsResult;
use terrace_store::store::Store;
use terrace_store::types::Wait;

/// PM prepared in one step.
const PREPARE_BYTES: u64 = 8 << 20;

/// Background: populates the mapping of PM, so that writes meet no page fault. Once after mount.
pub struct PrepareStep {
    store: Arc<Store>,
    next: PmOffset,
}

impl PrepareStep {
    /// The step.
    pub fn new(store: &Arc<Store>) -> PrepareStep {
        PrepareStep { store: Arc::clone(store), next: PmOffset(0) }
    }
}

impl Step for PrepareStep {
    fn name(&self) -> &'static str {
        "terrace-prepare"
    }

    fn step(&mut self) -> Next {
        let left = self.store.persistent.pm().size().saturating_sub(self.next.0);
        if left == 0 {
            return Next::Done;
        }
        self.store.persistent.pm().prepare(self.next, left.min(PREPARE_BYTES));
        self.next = self.next.plus(left.min(PREPARE_BYTES));
        Next::Again
    }
}

/// Pause after a failure of the scan.
const SCAN_AGAIN: Duration = Duration::from_secs(1);

/// Background: one bounded piece of reclaiming or scanning per step.
pub struct ReclaimStep {
    store: Arc<Store>,
    scanned: bool,
    scan_not_before_ns: u64,
    cover_not_before_ns: u64,
}

impl ReclaimStep {
    /// The step.
    pub fn new(store: &Arc<Store>) -> ReclaimStep {
        let store = Arc::clone(store);
        ReclaimStep { store, scanned: false, scan_not_before_ns: 0, cover_not_before_ns: 0 }
    }

    /// Does a piece of each pass; false when all passes are done.
    fn scan(&mut self) -> FsResult<bool> {
        let mut more = false;
        for pass in PASSES {
            more |= (pass.step)(&self.store)?;
        }
        self.scanned = !more;
        Ok(more)
    }

    /// Does what is most urgent; false when nothing is due.
    fn piece(&mut self) -> bool {
        let now = self.store.clock.monotonic_ns();
        if !self.scanned && now >= self.scan_not_before_ns {
            match self.scan() {
                Ok(_) => return true,
                Err(error) => {
                    tracing::warn!("scanning after mount: {error}");
                    self.scan_not_before_ns = now + SCAN_AGAIN.as_nanos() as u64;
                }
            }
        }
        if self.store.mode.read_only || self.store.persistent.wal().is_stopped() {
            return false;
        }
        let Some(task) = self.store.inodes.removals().take(now) else {
            return self.store.persistent.catalog().shrink_step().unwrap_or_else(|error| {
                tracing::debug!("a sparse catalog leaf stays: {error}");
                true
            });
        };
        reclaim_task(&self.store, task, Wait::Never, now);
        true
    }
}

/// Metadata pages are covered in rounds this far apart: a page that changes all the time, as those under a loop of create
/// and unlink, is not covered between two of its changes. Idle steps are no measure: each unlink wakes this thread.
const COVER_EVERY: Duration = Duration::from_millis(800);

impl Step for ReclaimStep {
    fn name(&self) -> &'static str {
        "terrace-reclaim"
    }

    fn step(&mut self) -> Next {
        if self.piece() {
            return Next::Again;
        }
        // Idle: let what was freed become free, and what is cached expire.
        let now = self.store.clock.monotonic_ns();
        if !self.store.mode.read_only && now >= self.cover_not_before_ns {
            self.store.persistent.wal().cover_some();
            self.cover_not_before_ns = now + COVER_EVERY.as_nanos() as u64;
        }
        if !self.store.mode.read_only
            && !self.store.persistent.wal().is_stopped()
            && self.store.persistent.blocks().usage().quarantined > 0
        {
            if let Err(error) = self.store.persistent.wal().checkpoint_at_leisure() {
                tracing::warn!("checkpoint: {error}");
            }
            self.store.persistent.blocks().drain_quarantine();
        }
        let more = self.store.dram.cache().give_back(now);
        if more { Next::Again } else { Next::After(Duration::from_millis(100)) }
    }
}

/// How often is looked for jobs that were handed over, beside the waker.
const HANDED_CHECK: Duration = Duration::from_secs(10);

/// Background: the jobs of the reclaimer that wait for a device or for room in PM, one per step.
pub struct WaitingStep {
    store: Arc<Store>,
}

impl WaitingStep {
    /// The step.
    pub fn new(store: &Arc<Store>) -> WaitingStep {
        WaitingStep { store: Arc::clone(store) }
    }
}

impl Step for WaitingStep {
    fn name(&self) -> &'static str {
        "terrace-rm-wait"
    }

    fn step(&mut self) -> Next {
        if self.store.persistent.wal().is_stopped() {
            return Next::After(HANDED_CHECK);
        }
        let Some(task) = self.store.inodes.removals().take_handed() else {
            return Next::After(HANDED_CHECK);
        };
        reclaim_task(&self.store, task, Wait::Allowed, self.store.clock.monotonic_ns());
        Next::Again
    }
}
