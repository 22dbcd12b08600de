//! A pool of simulated PM and two lower tiers.

use crate::options::{START_NS, format_options, lower_device};
use std::sync::Arc;
use std::time::Duration;
use terrace_check::{Options, PoolView, check};
use terrace_engine::{
    Engine, MountOptions, MoveRequest, Movements, PolicyKind, PoolMedia, RequestReport, RequestState,
    Simulation, format, read_superblock,
};
use terrace_format::Ino;
use terrace_media::BlockMedium;
use terrace_media::block::{DeviceImage, SimulatedDevice};
use terrace_media::crash::CrashClock;
use terrace_media::pm::{PmImage, RecordedPm};
use terrace_runtime::{ManualClock, Next};

/// A pool of recorded PM, one device in tier 1 and one device in tier 2. Its policy is static.
pub struct TwoTierPool {
    /// The order of the events of all media.
    pub events: Arc<CrashClock>,
    /// Tier 0.
    pub pm: Arc<RecordedPm>,
    /// Tiers 1 and 2.
    pub devices: [Arc<SimulatedDevice>; 2],
    /// The clock of each mount.
    pub clock: Arc<ManualClock>,
}

/// The content of all media of a [`TwoTierPool`].
#[derive(Clone)]
pub struct TwoTierImages {
    /// Tier 0.
    pub pm: PmImage,
    /// Tiers 1 and 2.
    pub devices: [DeviceImage; 2],
}

impl TwoTierPool {
    /// A new pool: PM in bytes, the tiers in blocks.
    pub fn new(pm_bytes: u64, first_blocks: u64, second_blocks: u64) -> TwoTierPool {
        let devices = [DeviceImage::zeroed(first_blocks), DeviceImage::zeroed(second_blocks)];
        let pool = TwoTierPool::from_images(TwoTierImages { pm: vec![0; pm_bytes as usize].into(), devices });
        let mut options = format_options(1);
        options.policy = PolicyKind::STATIC;
        options.devices.push(lower_device(2, 8));
        format(&pool.media(), &options).unwrap();
        pool
    }

    /// Media with the content of images, all of it durable. The clock starts anew.
    pub fn from_images(images: TwoTierImages) -> TwoTierPool {
        let events = CrashClock::new();
        let pm = Arc::new(RecordedPm::with_clock(images.pm, &events));
        let [first, second] = images.devices;
        let device = |name, image| Arc::new(SimulatedDevice::with_clock(name, image, &events));
        let devices = [device("tier1", first), device("tier2", second)];
        TwoTierPool { events, pm, devices, clock: Arc::new(ManualClock::new(START_NS)) }
    }

    /// The media as the engine takes them.
    pub fn media(&self) -> PoolMedia {
        let block = self.devices.iter().map(|device| device.clone() as Arc<dyn BlockMedium>);
        PoolMedia { pm: self.pm.clone(), block: block.collect() }
    }

    /// Mounts with the options that a user gets who gives none.
    pub fn mount(&self) -> Arc<Engine> {
        self.mount_with(MountOptions::default())
    }

    /// Mounts.
    pub fn mount_with(&self, options: MountOptions) -> Arc<Engine> {
        let (superblock, _) = read_superblock(&*self.pm, true).unwrap();
        Engine::mount(self.media(), superblock, options, self.clock.clone()).unwrap()
    }

    /// The media as programs see them, unflushed writes included.
    pub fn images(&self) -> TwoTierImages {
        let [first, second] = &self.devices;
        TwoTierImages {
            pm: self.pm.visible_image(),
            devices: [first.visible_image(), second.visible_image()],
        }
    }

    /// Fails the test if the check finds damage.
    #[track_caller]
    pub fn assert_clean(&self) {
        let block = self.devices.iter().map(|device| Some(device.clone() as Arc<dyn BlockMedium>)).collect();
        let report =
            check(&PoolView::new(self.pm.clone(), block), &Options { read_cold: true, ..Default::default() });
        assert!(report.is_clean(), "check: {:#?}", report.findings);
    }

    /// Drives a requested movement to its end, and lets time pass while it waits.
    #[track_caller]
    pub fn finish(&self, fs: &Engine, id: u64) -> RequestReport {
        for _ in 0..10_000 {
            let report = fs.request_report(id).unwrap();
            if report.state.has_ended() {
                return report;
            }
            if let Next::After(pause) = fs.request_step() {
                self.clock.advance(pause.min(Duration::from_secs(1)));
            }
        }
        panic!("the move does not end: {:?}", fs.request_report(id));
    }

    /// Moves a file to a tier, as a user requests it.
    #[track_caller]
    pub fn migrate(&self, fs: &Engine, ino: Ino, to: u8) -> RequestReport {
        self.finish(fs, fs.request_move(ino, MoveRequest::Migrate { to }).unwrap())
    }

    /// As [`Self::migrate`], and checks that every block has moved.
    #[track_caller]
    pub fn migrate_all(&self, fs: &Engine, ino: Ino, to: u8) {
        let report = self.migrate(fs, ino, to);
        assert_eq!(
            (report.state, &report.reason, report.left_bytes),
            (RequestState::Done, &None, 0),
            "{report:?}"
        );
    }
}
