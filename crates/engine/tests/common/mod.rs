//! Pools on simulated media for tests.
#![allow(dead_code, clippy::unwrap_used)]

pub mod buffered;
pub mod tiers;

use std::sync::Arc;
use terrace_check::{Options, PoolView, Report, check};
use terrace_engine::{
    Caller, DeviceClass, Engine, FormatOptions, MountOptions, NewDevice, PolicyKind, PoolMedia, format,
    read_superblock,
};
use terrace_format::device::FIRST_CHUNK_BLOCK;
use terrace_format::keys::Key;
use terrace_format::page::Page;
use terrace_format::{DeviceId, Ino, PmOffset};
use terrace_media::block::SimulatedDevice;
use terrace_media::pm::RecordedPm;
use terrace_media::{BlockMedium, PmMedium};
use terrace_runtime::{Clock, ManualClock};

/// Root directory.
pub const ROOT: Ino = Ino(1);
/// The user of all requests in tests.
pub const CALLER: Caller = Caller { uid: 0, gid: 0 };

/// A pool on simulated media.
pub struct Pool {
    pub pm: Arc<RecordedPm>,
    pub device: Arc<SimulatedDevice>,
    pub clock: Arc<dyn Clock>,
}

impl Pool {
    /// A new pool: PM of `pm_bytes`, one tier of `blocks` blocks, 64 KiB chunks.
    pub fn new(pm_bytes: u64, blocks: u64) -> Pool {
        Pool::of(pm_bytes, blocks, &format_options(1))
    }

    /// As [`Self::new`], with options of mkfs.
    pub fn of(pm_bytes: u64, blocks: u64, options: &FormatOptions) -> Pool {
        let pool = Pool {
            pm: Arc::new(RecordedPm::new(pm_bytes)),
            device: Arc::new(SimulatedDevice::new(blocks)),
            clock: Arc::new(ManualClock::new(1_700_000_000_000_000_000)),
        };
        format(&pool.media(), options).unwrap();
        pool
    }

    pub fn media(&self) -> PoolMedia {
        let pm: Arc<dyn PmMedium> = self.pm.clone();
        let device: Arc<dyn BlockMedium> = self.device.clone();
        PoolMedia { pm, block: vec![device] }
    }

    pub fn mount(&self) -> Arc<Engine> {
        self.mount_with(MountOptions::default())
    }

    /// A threshold of PM use selects `anticache`, the only policy with such a threshold.
    pub fn mount_with(&self, mut options: MountOptions) -> Arc<Engine> {
        if options.threshold_percent.is_some() {
            options.policy = options.policy.or(Some(PolicyKind::ANTICACHE));
        }
        let (superblock, _) = read_superblock(&*self.pm, true).unwrap();
        Engine::mount(self.media(), superblock, options, Arc::clone(&self.clock)).unwrap()
    }

    pub fn check(&self) -> Report {
        let pm: Arc<dyn PmMedium> = self.pm.clone();
        let device: Arc<dyn BlockMedium> = self.device.clone();
        check(&PoolView::new(pm, vec![Some(device)]), &Options { read_cold: true, ..Default::default() })
    }

    #[track_caller]
    pub fn assert_clean(&self) {
        let report = self.check();
        assert!(report.is_clean(), "check: {:#?}", report.findings);
    }
}

/// Marks the device block with `content` as free in its bitmap: damage that concerns one file alone.
pub fn clear_used_bit(pm: &RecordedPm, device: &SimulatedDevice, id: u8, content: &[u8]) {
    let (superblock, _) = read_superblock(pm, false).unwrap();
    let chunk_blocks = u64::from(superblock.layout.chunk_blocks.get());
    let on_device = device.visible_image().to_bytes();
    let at = on_device.chunks(4096).position(|block| block == content).unwrap() as u64 - FIRST_CHUNK_BLOCK.0;
    let key = Key::chunk(at / chunk_blocks, DeviceId(id));
    let mut image = vec![0; pm.size() as usize];
    pm.read(PmOffset(0), &mut image).unwrap();
    let place = image.chunks_exact(4096).enumerate().find_map(|(number, bytes)| {
        let page = Page(Box::new(bytes.try_into().unwrap()));
        page.verify_header("").ok()?;
        let index = page.search(&key.0).ok()?.ok().filter(|_| page.level() == 0)?;
        Some(number * 4096 + page.value_place(index).ok()?.0)
    });
    let bit = (at % chunk_blocks) as usize;
    let offset = place.unwrap() + bit / 8;
    pm.write(PmOffset(offset as u64), &[image[offset] & !(1 << (bit % 8))]).unwrap();
}

pub fn format_options(devices: usize) -> FormatOptions {
    FormatOptions {
        label: "test".into(),
        uuid: [7; 16],
        hash_key: [9; 16],
        seal_secret: Some([9; 16]),
        policy: PolicyKind::PREDICTIVE,
        data_ordered: false,
        data_checksums: false,
        chunk_blocks: 16,
        created_ns: 1_700_000_000_000_000_000,
        root: Default::default(),
        devices: (0..devices)
            .map(|index| NewDevice {
                tier: 1,
                class: DeviceClass::Ssd,
                uuid: [index as u8 + 1; 16],
                path: format!("/tier{index}").into(),
            })
            .collect(),
    }
}
