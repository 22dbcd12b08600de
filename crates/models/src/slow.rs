//! A simulated device whose flushes and durable writes let other threads run before they return.

use std::panic::Location;
use std::sync::Arc;
use terrace_format::DeviceBlock;
use terrace_media::block::{AlignedBlock, Run, SimulatedDevice};
use terrace_media::{BlockMedium, MediaError};
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

/// A simulated device that takes its time.
pub struct Slow {
    inner: Arc<SimulatedDevice>,
    /// A count without use: each access is a point where the scheduler may change threads.
    turns: AtomicU64,
}

impl Slow {
    /// A device over the simulated one.
    pub fn new(device: &Arc<SimulatedDevice>) -> Slow {
        Slow { inner: Arc::clone(device), turns: AtomicU64::new(0) }
    }

    fn others_run(&self) {
        for _ in 0..4 {
            self.turns.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl BlockMedium for Slow {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn read(&self, first: DeviceBlock, into: &mut [AlignedBlock]) -> Result<(), MediaError> {
        self.inner.read(first, into)
    }
    fn write(&self, first: DeviceBlock, from: &[AlignedBlock]) -> Result<(), MediaError> {
        self.inner.write(first, from)
    }
    fn write_durable_at(&self, runs: &[Run<'_>], at: &'static Location<'static>) -> Result<(), MediaError> {
        self.others_run();
        let done = self.inner.write_durable_at(runs, at);
        self.others_run();
        done
    }
    fn flush_at(&self, at: &'static Location<'static>) -> Result<(), MediaError> {
        let done = self.inner.flush_at(at);
        self.others_run();
        done
    }
    fn error_count(&self) -> u64 {
        self.inner.error_count()
    }
}
