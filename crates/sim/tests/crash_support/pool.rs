//! A pool on simulated media that crash together.

use super::old_content;
use std::sync::Arc;
use terrace_check::{Options, PoolView, check};
use terrace_engine::{
    Atime, DeviceClass, Engine, FormatOptions, FsResult, InPlace, MountOptions, NewDevice, PolicyKind,
    PoolMedia, format, read_superblock,
};
use terrace_media::block::{DeviceImage, SimulatedDevice};
use terrace_media::crash::CrashClock;
use terrace_media::pm::{PmImage, RecordedPm};
use terrace_media::{BlockMedium, PmMedium};
use terrace_runtime::ManualClock;

/// Wall time at the start of every test world.
const EPOCH_NS: u64 = 1_700_000_000_000_000_000;

/// The sizes and modes of a world.
#[derive(Clone, Copy)]
pub struct Shape {
    pub pm_bytes: u64,
    pub device_blocks: u64,
    pub ordered: bool,
    pub persist_only: bool,
    /// Whether there is a lower tier; without it the pool is PM alone.
    pub tier: bool,
}

pub const SMALL: Shape =
    Shape { pm_bytes: 2 << 20, device_blocks: 1025, ordered: false, persist_only: false, tier: true };

/// A pool on media that crash together.
pub struct World {
    pub shape: Shape,
    pub clock: Arc<CrashClock>,
    pub pm: Arc<RecordedPm>,
    pub device: Arc<SimulatedDevice>,
    pub time: Arc<ManualClock>,
}

impl World {
    /// A new, formatted pool on used media: free blocks hold old pages and data.
    pub fn new(shape: Shape) -> World {
        let (pm, device) = (vec![0; shape.pm_bytes as usize], DeviceImage::zeroed(shape.device_blocks));
        let bare = World::at(shape, pm, device, EPOCH_NS);
        let mut options = format_options(shape.ordered);
        options.devices.truncate(usize::from(shape.tier));
        let superblock = format(&bare.media(), &options).unwrap();
        let mut pm = bare.pm.visible_image();
        let mut device = bare.device.visible_image();
        old_content::fill(&superblock.geometry(), &mut pm, std::slice::from_mut(&mut device));
        World::at(shape, pm, device, EPOCH_NS)
    }

    /// The media that a crash left.
    pub fn from_images(shape: Shape, pm: impl Into<PmImage>, device: DeviceImage) -> World {
        World::at(shape, pm, device, EPOCH_NS + 3_600_000_000_000)
    }

    fn at(shape: Shape, pm: impl Into<PmImage>, device: DeviceImage, now_ns: u64) -> World {
        let clock = CrashClock::new();
        let pm = Arc::new(RecordedPm::with_clock(pm, &clock));
        pm.set_persist_only(shape.persist_only);
        let device = Arc::new(SimulatedDevice::with_clock("simulated", device, &clock));
        World { shape, clock, pm, device, time: Arc::new(ManualClock::new(now_ns)) }
    }

    pub fn media(&self) -> PoolMedia {
        self.media_with(self.device.clone())
    }

    /// As `media`, with another device in place of the simulated one.
    pub fn media_with(&self, device: Arc<dyn BlockMedium>) -> PoolMedia {
        let pm: Arc<dyn PmMedium> = self.pm.clone();
        PoolMedia { pm, block: if self.shape.tier { vec![device] } else { Vec::new() } }
    }

    pub fn mount(&self) -> Arc<Engine> {
        self.mount_with(options()).unwrap()
    }

    pub fn mount_with(&self, options: MountOptions) -> FsResult<Arc<Engine>> {
        let (superblock, _) = read_superblock(&*self.pm, true).unwrap();
        Engine::mount(self.media(), superblock, options, self.time.clone())
    }

    /// Findings of a check that reads cold blocks; empty for a sound pool.
    pub fn findings(&self) -> Vec<String> {
        let pm: Arc<dyn PmMedium> = self.pm.clone();
        let device: Arc<dyn BlockMedium> = self.device.clone();
        let options = Options { read_cold: true, ..Default::default() };
        let block = if self.shape.tier { vec![Some(device)] } else { Vec::new() };
        let report = check(&PoolView::new(pm, block), &options);
        if report.is_clean() {
            return Vec::new();
        }
        report.findings.iter().map(|finding| format!("{finding:?}")).collect()
    }

    #[track_caller]
    pub fn assert_clean(&self) {
        let findings = self.findings();
        assert!(findings.is_empty(), "check: {findings:#?}");
    }

    /// The world after a loss of power now, with all stores (`true`) or only the durable ones.
    pub fn crashed(&self, newest: bool) -> World {
        let snapshot = self.pm.snapshot();
        let image = if newest { snapshot.image_newest() } else { snapshot.image_oldest() };
        let device = self.device.snapshot();
        let device = if newest { device.image_all() } else { device.image_none() };
        World::from_images(self.shape, image, device)
    }
}

/// Mount options of the tests: no atime, write-back in place of small extents, and a cache for the whole of the device. The
/// cache of a usual mount has tables of 1.5 MiB, and zeroing them took a fifth of the time.
pub fn options() -> MountOptions {
    let in_place = InPlace { extent_blocks: 2, one_of: 2 };
    MountOptions { atime: Atime::Never, in_place, cache_bytes: 4 << 20, ..MountOptions::default() }
}

/// Options of mkfs for the test pools, with the file map of TERRACE_MAP.
pub fn format_options(ordered: bool) -> FormatOptions {
    FormatOptions {
        map: terrace_sim::kinds::BASE.file_map(),
        label: "crash".into(),
        uuid: [7; 16],
        hash_key: [9; 16],
        seal_secret: Some([9; 16]),
        policy: PolicyKind::PREDICTIVE,
        data_ordered: ordered,
        data_checksums: false,
        chunk_blocks: 16,
        created_ns: EPOCH_NS as i64,
        root: Default::default(),
        devices: vec![NewDevice { tier: 1, class: DeviceClass::Ssd, uuid: [1; 16], path: "/tier0".into() }],
    }
}
