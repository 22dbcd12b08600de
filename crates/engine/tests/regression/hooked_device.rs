//! A device that calls a hook amid a request.

use std::panic::Location;
use std::sync::Arc;
use terrace_engine::{Engine, MountOptions, PoolMedia};
use terrace_format::DeviceBlock;
use terrace_media::block::{AlignedBlock, SimulatedDevice};
use terrace_media::{BlockMedium, MediaError};
use terrace_runtime::sync::Mutex;
use terrace_testkit::SimulatedPool;

pub type Hook = Box<dyn FnOnce() + Send>;

/// A device that calls a hook after its next read or write, before the call returns.
pub struct HookedDevice {
    inner: Arc<SimulatedDevice>,
    /// Runs after the next read, before that read returns.
    pub after_read: Mutex<Option<Hook>>,
    /// Runs after the next write, before that write returns.
    pub after_write: Mutex<Option<Hook>>,
}

impl HookedDevice {
    pub fn over(pool: &SimulatedPool) -> Arc<HookedDevice> {
        let inner = pool.device.clone();
        Arc::new(HookedDevice { inner, after_read: Mutex::new(None), after_write: Mutex::new(None) })
    }
    fn run(place: &Mutex<Option<Hook>>) {
        let hook = place.lock().take();
        if let Some(hook) = hook {
            hook();
        }
    }
}

impl BlockMedium for HookedDevice {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn read(&self, first: DeviceBlock, into: &mut [AlignedBlock]) -> Result<(), MediaError> {
        let done = self.inner.read(first, into);
        Self::run(&self.after_read);
        done
    }
    fn write(&self, first: DeviceBlock, from: &[AlignedBlock]) -> Result<(), MediaError> {
        let done = self.inner.write(first, from);
        Self::run(&self.after_write);
        done
    }
    fn flush_at(&self, at: &'static Location<'static>) -> Result<(), MediaError> {
        self.inner.flush_at(at)
    }
    fn error_count(&self) -> u64 {
        self.inner.error_count()
    }
}

/// Mounts a pool with a hooked device in place of its own.
pub fn mount_over(pool: &SimulatedPool, device: &Arc<HookedDevice>, options: MountOptions) -> Arc<Engine> {
    pool.mount_media(PoolMedia { pm: pool.pm.clone(), block: vec![device.clone()] }, options).unwrap()
}
