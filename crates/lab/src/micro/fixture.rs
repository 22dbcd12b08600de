//! Media and pools of the micros: PM in /dev/shm, devices in memory.

use std::panic::Location;
use std::path::Path;
use std::sync::Arc;
use terrace_bench::failure::Outcome;
use terrace_engine::{
    Caller, DeviceClass, Engine, FormatOptions, MountOptions, NewDevice, PolicyKind, PoolMedia,
    read_superblock,
};
use terrace_format::{DeviceBlock, Ino, PmOffset};
use terrace_media::block::{AlignedBlock, FileDevice};
use terrace_media::pm::RamPm;
use terrace_media::{BlockMedium, MediaError, OpenError, PmMedium};
use terrace_runtime::Clock;
use terrace_runtime::sync::RwLock;

/// The root directory.
pub(super) const ROOT: Ino = Ino(1);
/// The user of all requests.
pub(super) const CALLER: Caller = Caller { uid: 0, gid: 0 };

/// The argument at a position, as a number.
pub(super) fn number(args: &[String], position: usize, default: u64) -> u64 {
    args.get(position).and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A medium in a file that has no name any more, so it is gone at the end of the process.
fn unnamed<T>(directory: &str, make: impl FnOnce(&Path) -> Result<T, OpenError>) -> Outcome<T> {
    let folder = tempfile::tempdir_in(directory)?;
    Ok(make(&folder.path().join("medium"))?)
}

/// A device in a file of a directory.
pub(super) fn device_in(directory: &str, bytes: u64) -> Outcome<Arc<FileDevice>> {
    unnamed(directory, |path| FileDevice::create(path, bytes)).map(Arc::new)
}

/// PM in a directory of memory, not prepared: the kernel has given it no pages yet.
pub(super) fn pm_in(directory: &str, bytes: u64) -> Outcome<Arc<RamPm>> {
    unnamed(directory, |path| RamPm::create(path, bytes)).map(Arc::new)
}

/// PM in /dev/shm whose pages the kernel has given.
pub(super) fn prepared_pm(bytes: u64) -> Outcome<Arc<RamPm>> {
    let pm = pm_in("/dev/shm", bytes)?;
    pm.prepare(PmOffset(0), pm.size());
    Ok(pm)
}

/// Options of mkfs for a pool with one device of tier 1.
pub(super) fn format_options(policy: PolicyKind, chunk_blocks: u32) -> FormatOptions {
    FormatOptions {
        map: Default::default(),
        label: String::new(),
        uuid: [1; 16],
        hash_key: [2; 16],
        seal_secret: Some([2; 16]),
        policy,
        data_ordered: false,
        data_checksums: false,
        chunk_blocks,
        created_ns: 1,
        root: Default::default(),
        devices: vec![NewDevice { tier: 1, class: DeviceClass::Ssd, uuid: [3; 16], path: "/tier".into() }],
    }
}

/// Mounts a pool of the given media.
pub(super) fn mount(media: &PoolMedia, options: MountOptions, clock: Arc<dyn Clock>) -> Outcome<Arc<Engine>> {
    let (superblock, _) = read_superblock(&*media.pm, true)?;
    let media = PoolMedia { pm: media.pm.clone(), block: media.block.clone() };
    Ok(Engine::mount(media, superblock, options, clock)?)
}

/// Memory as a device. It takes no time; an emulation above it does.
pub(super) struct MemoryDevice(RwLock<Vec<AlignedBlock>>);

impl MemoryDevice {
    pub(super) fn new(blocks: u64) -> MemoryDevice {
        MemoryDevice(RwLock::new(vec![AlignedBlock::zeroed(); blocks as usize]))
    }
}

impl BlockMedium for MemoryDevice {
    fn blocks(&self) -> u64 {
        self.0.read().len() as u64
    }
    fn name(&self) -> &'static str {
        "memory"
    }
    fn read(&self, first: DeviceBlock, into: &mut [AlignedBlock]) -> Result<(), MediaError> {
        let first = first.0 as usize;
        into.clone_from_slice(&self.0.read()[first..first + into.len()]);
        Ok(())
    }
    fn write(&self, first: DeviceBlock, from: &[AlignedBlock]) -> Result<(), MediaError> {
        let first = first.0 as usize;
        self.0.write()[first..first + from.len()].clone_from_slice(from);
        Ok(())
    }
    fn flush_at(&self, _: &'static Location<'static>) -> Result<(), MediaError> {
        Ok(())
    }
}
