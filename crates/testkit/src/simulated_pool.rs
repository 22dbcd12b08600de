//! A pool of simulated PM and one simulated device.

use crate::options::{START_NS, format_options};
use std::sync::Arc;
use terrace_check::{Options, Report, check};
use terrace_engine::{
    Engine, FormatOptions, FsResult, MountOptions, PolicyKind, PoolMedia, Simulation, format, read_superblock,
};
use terrace_media::block::{DeviceImage, SimulatedDevice};
use terrace_media::crash::CrashClock;
use terrace_media::pm::{PmImage, RecordedPm};
use terrace_media::{BlockMedium, PmMedium};
use terrace_repair::Media;
use terrace_runtime::ManualClock;

/// A pool of recorded PM and one device in tier 1.
pub struct SimulatedPool {
    /// Tier 0.
    pub pm: Arc<RecordedPm>,
    /// Tier 1.
    pub device: Arc<SimulatedDevice>,
    /// The order of the events of both media.
    pub events: Arc<CrashClock>,
    /// The clock of each mount.
    pub clock: Arc<ManualClock>,
}

impl SimulatedPool {
    /// A new pool: PM in bytes, the device in blocks.
    pub fn new(pm_bytes: u64, device_blocks: u64) -> SimulatedPool {
        SimulatedPool::formatted(pm_bytes, device_blocks, &format_options(1))
    }

    /// As [`Self::new`], with options of mkfs.
    pub fn formatted(pm_bytes: u64, device_blocks: u64, options: &FormatOptions) -> SimulatedPool {
        let pool = SimulatedPool::from_images(vec![0; pm_bytes as usize], DeviceImage::zeroed(device_blocks));
        format(&pool.media(), options).unwrap();
        pool
    }

    /// Media with the content of images, all of it durable. The clock starts anew.
    pub fn from_images(pm: impl Into<PmImage>, device: DeviceImage) -> SimulatedPool {
        let events = CrashClock::new();
        SimulatedPool {
            pm: Arc::new(RecordedPm::with_clock(pm, &events)),
            device: Arc::new(SimulatedDevice::with_clock("tier1", device, &events)),
            events,
            clock: Arc::new(ManualClock::new(START_NS)),
        }
    }

    /// The same media, mounted at another time from now on.
    pub fn with_clock(self, clock: Arc<ManualClock>) -> SimulatedPool {
        SimulatedPool { clock, ..self }
    }

    /// The pool on media of its own, with all that programs see now, and all of it durable.
    pub fn copied(&self) -> SimulatedPool {
        let copy = SimulatedPool::from_images(self.pm.visible_image(), self.device.visible_image());
        copy.with_clock(self.clock.clone())
    }

    /// The pool as a crash at this moment may leave it.
    pub fn crash_now(&self, seed: u64) -> SimulatedPool {
        let (pm, device) = (self.pm.snapshot(), self.device.snapshot());
        SimulatedPool::from_images(pm.image_random(seed), device.image_random(seed))
            .with_clock(self.clock.clone())
    }

    /// The pool as a crash at the event set before may leave it, once that event has come.
    pub fn crash_then(&self, seed: u64) -> Option<SimulatedPool> {
        let (pm, device) = (self.pm.take_snapshot()?, self.device.take_snapshot()?);
        let left = SimulatedPool::from_images(pm.image_random(seed), device.image_random(seed));
        Some(left.with_clock(self.clock.clone()))
    }

    /// The media as the engine takes them.
    pub fn media(&self) -> PoolMedia {
        PoolMedia { pm: self.pm.clone(), block: vec![self.device.clone()] }
    }

    /// The media as repair takes them; check takes their view.
    pub fn repair_media(&self) -> Media {
        let pm: Arc<dyn PmMedium> = self.pm.clone();
        let device: Arc<dyn BlockMedium> = self.device.clone();
        Media { pm, block: vec![Some(device)] }
    }

    /// Mounts with the options that a user gets who gives none.
    pub fn mount(&self) -> Arc<Engine> {
        self.mount_with(MountOptions::default())
    }

    /// Mounts. A threshold of PM use selects `anticache`, the only policy with such a threshold.
    pub fn mount_with(&self, options: MountOptions) -> Arc<Engine> {
        self.try_mount(options).unwrap()
    }

    /// As [`Self::mount_with`]; a mount may be refused.
    pub fn try_mount(&self, mut options: MountOptions) -> FsResult<Arc<Engine>> {
        if options.threshold_percent.is_some() {
            options.policy = options.policy.or(Some(PolicyKind::ANTICACHE));
        }
        self.mount_media(self.media(), options)
    }

    /// Mounts other media in place of the pool's own, such as a device that is wrapped.
    pub fn mount_media(&self, media: PoolMedia, options: MountOptions) -> FsResult<Arc<Engine>> {
        let (superblock, _) = read_superblock(&*self.pm, true).unwrap();
        Engine::mount(media, superblock, options, self.clock.clone())
    }

    /// Checks the pool, cold blocks included.
    pub fn check(&self) -> Report {
        check(&self.repair_media().view(), &Options { read_cold: true, ..Default::default() })
    }

    /// Fails the test if the check finds damage.
    #[track_caller]
    pub fn assert_clean(&self) {
        let report = self.check();
        assert!(report.is_clean(), "check: {:#?}", report.findings);
    }

    /// Unmounts after some background work; the pool must be sound.
    pub fn assert_clean_after(&self, fs: &Arc<Engine>) -> FsResult<()> {
        fs.run_background(10_000);
        fs.unmount()?;
        self.assert_clean();
        Ok(())
    }

    /// All bytes of PM and of the device.
    pub fn bytes(&self) -> (Vec<u8>, Vec<u8>) {
        let mut pm = vec![0; self.pm.size() as usize];
        assert!(self.pm.visible_image().read(0, &mut pm));
        (pm, self.device.visible_image().to_bytes())
    }
}
