//! A pool with two lower tiers, and one crash clock for all media.

use super::{CALLER, ROOT, format_options};
use std::sync::Arc;
use std::time::Duration;
use terrace_check::{Options, PoolView, check};
use terrace_engine::{
    DeviceClass, Engine, FsResult, HandMove, HandReport, HandState, MountOptions, Movements, NewDevice,
    PolicyKind, PoolMedia, Simulation, Wait, WriteFlags, format, read_superblock,
};
use terrace_format::Ino;
use terrace_media::block::{DeviceImage, SimulatedDevice};
use terrace_media::crash::CrashClock;
use terrace_media::pm::{PmImage, RecordedPm};
use terrace_media::{BlockMedium, PmMedium};
use terrace_runtime::{ManualClock, Next};

const W: Wait = Wait::Allowed;

/// PM, tier 1, tier 2.
pub struct Tiers {
    pub crash: Arc<CrashClock>,
    pub pm: Arc<RecordedPm>,
    pub devices: [Arc<SimulatedDevice>; 2],
    pub clock: Arc<ManualClock>,
}

/// The content of all media.
#[derive(Clone)]
pub struct Images {
    pub pm: PmImage,
    pub devices: [DeviceImage; 2],
}

impl Tiers {
    /// A new pool: PM in bytes, the tiers in blocks.
    pub fn new(pm: u64, first: u64, second: u64) -> Tiers {
        let devices = [DeviceImage::zeroed(first), DeviceImage::zeroed(second)];
        let tiers = Tiers::from_images(Images { pm: vec![0; pm as usize].into(), devices });
        let mut options = format_options(1);
        options.policy = PolicyKind::STATIC;
        options.devices.push(NewDevice {
            tier: 2,
            class: DeviceClass::Hdd,
            uuid: [9; 16],
            path: "/two".into(),
        });
        format(&tiers.media(), &options).unwrap();
        tiers
    }

    pub fn from_images(images: Images) -> Tiers {
        let crash = CrashClock::new();
        let pm = Arc::new(RecordedPm::with_clock(images.pm, &crash));
        let [first, second] = images.devices;
        let device = |name, image| Arc::new(SimulatedDevice::with_clock(name, image, &crash));
        let devices = [device("tier1", first), device("tier2", second)];
        let clock = Arc::new(ManualClock::new(1_700_000_000_000_000_000));
        Tiers { crash, pm, devices, clock }
    }

    pub fn media(&self) -> PoolMedia {
        let block = self.devices.iter().map(|device| device.clone() as Arc<dyn BlockMedium>);
        PoolMedia { pm: self.pm.clone(), block: block.collect() }
    }

    pub fn mount(&self) -> Arc<Engine> {
        self.mount_with(MountOptions::default())
    }

    pub fn mount_with(&self, options: MountOptions) -> Arc<Engine> {
        let (superblock, _) = read_superblock(&*self.pm, true).unwrap();
        Engine::mount(self.media(), superblock, options, self.clock.clone()).unwrap()
    }

    /// The media as programs see them, unflushed writes included.
    pub fn images(&self) -> Images {
        let [first, second] = &self.devices;
        Images { pm: self.pm.visible_image(), devices: [first.visible_image(), second.visible_image()] }
    }

    #[track_caller]
    pub fn assert_clean(&self) {
        let pm: Arc<dyn PmMedium> = self.pm.clone();
        let block = self.devices.iter().map(|device| Some(device.clone() as Arc<dyn BlockMedium>)).collect();
        let report = check(&PoolView::new(pm, block), &Options { read_cold: true, ..Default::default() });
        assert!(report.is_clean(), "check: {:#?}", report.findings);
    }

    /// Drives a requested movement to its end, and lets time pass while it waits.
    #[track_caller]
    pub fn finish(&self, fs: &Engine, id: u64) -> HandReport {
        for _ in 0..10_000 {
            let report = fs.hand_report(id).unwrap();
            if report.state.has_ended() {
                return report;
            }
            if let Next::After(pause) = fs.hand_step() {
                self.clock.advance(pause.min(Duration::from_secs(1)));
            }
        }
        panic!("the move does not end: {:?}", fs.hand_report(id));
    }

    #[track_caller]
    pub fn migrate(&self, fs: &Engine, ino: Ino, to: u8) -> HandReport {
        self.finish(fs, fs.move_by_hand(ino, HandMove::Migrate { to }).unwrap())
    }

    /// As [`Self::migrate`], and checks that every block has moved.
    #[track_caller]
    pub fn migrate_all(&self, fs: &Engine, ino: Ino, to: u8) {
        let report = self.migrate(fs, ino, to);
        assert_eq!(
            (report.state, &report.reason, report.left_bytes),
            (HandState::Done, &None, 0),
            "{report:?}"
        );
    }
}

pub fn create(fs: &Engine, parent: Ino, name: &str) -> Ino {
    fs.mknod(parent, name.as_bytes(), 0o100644, 0, CALLER, W).unwrap().ino
}

pub fn mkdir(fs: &Engine, parent: Ino, name: &str) -> Ino {
    fs.mkdir(parent, name.as_bytes(), 0o755, CALLER, W).unwrap().ino
}

pub fn write(fs: &Engine, ino: Ino, offset: u64, bytes: &[u8]) -> FsResult<()> {
    fs.write(ino, offset, bytes, WriteFlags::default(), W).map(|_| ())
}

/// Bytes that depend on their offset and on a seed.
pub fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|index| (index / 512) as u8 ^ (index as u8).wrapping_mul(31) ^ seed).collect()
}

#[track_caller]
pub fn assert_content(fs: &Engine, ino: Ino, expected: &[u8]) {
    let mut found = vec![0xee; expected.len() + 10];
    let count = fs.read(ino, 0, &mut found, W).unwrap();
    assert!(found[..count] == *expected, "content of inode {ino}");
}

/// Bytes of a file on PM, tier 1 and tier 2.
pub fn bytes_on(fs: &Engine, ino: Ino) -> [u64; 3] {
    let found = fs.whereabouts(ino).unwrap().tiers;
    [0, 1, 2].map(|tier| found.get(tier).map_or(0, |(_, bytes)| *bytes))
}

pub fn find(fs: &Engine, name: &str) -> Ino {
    let ino = fs.lookup(ROOT, name.as_bytes()).unwrap().ino;
    fs.forget(ino, 1);
    ino
}
