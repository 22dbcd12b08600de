//! Reads, read-ahead, seeks and access times.

use super::helpers::{BLOCK, W, quiet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use terrace_engine::{
    Allocate, Engine, FsResult, MountOptions, Movements, PolicyKind, PoolMedia, Seek, Simulation, WriteFlags,
    format, read_superblock,
};
use terrace_format::DeviceBlock;
use terrace_media::block::{AlignedBlock, SimulatedDevice};
use terrace_media::{BlockMedium, MediaError};
use terrace_testkit::{
    CALLER, ROOT, SimulatedPool, TwoTierPool, assert_content, bytes_on, create, find, format_options,
    pattern, write,
};

/// A read fetched whole cold extents, but compared only the versions of the 2 MiB regions it was asked for.
/// Blocks of an extent that reaches into the next region were cached in DRAM as current although they had
/// been demoted anew meanwhile. Later reads gave the old content, and partial writes merged with it.
#[test]
fn a_stale_extent_tail_in_the_next_region_is_not_cached() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 4096);
    let second = Arc::new(SimulatedDevice::new(4096));
    let media = || PoolMedia { pm: pool.pm.clone(), block: vec![pool.device.clone(), second.clone()] };
    format(&media(), &format_options(2)).unwrap();
    let policy = Some(PolicyKind::ANTICACHE);
    let options =
        MountOptions { policy, threshold_percent: Some(1), prefetch_bytes: 0, ..MountOptions::default() };
    let (superblock, _) = read_superblock(&*pool.pm, true).unwrap();
    let fs = Engine::mount(media(), superblock, options, pool.clock.clone()).unwrap();
    let ino = create(&fs, ROOT, "a");
    write(&fs, ino, 508 * 4096, &[1; 8 * 4096])?;
    fs.sync_to(1, &mut |_| {})?;
    write(&fs, ino, 514 * 4096, &[2; 4096])?;
    pool.device.stall();
    std::thread::scope(|threads| {
        let reader = threads.spawn(|| fs.read(ino, 508 * 4096, &mut [0; 4096], W));
        while pool.device.waiting() == 0 {
            std::thread::yield_now();
        }
        // The block is demoted to the other device, which has more room.
        fs.run_background(100);
        pool.device.unstall();
        reader.join().unwrap()
    })?;
    assert_eq!(fs.whereabouts(ino)?.tiers[0].1, 0, "not demoted");
    let mut content = [0; 4096];
    fs.read(ino, 514 * 4096, &mut content, W)?;
    assert!(content.iter().all(|byte| *byte == 2), "found {}", content[0]);
    Ok(())
}

/// Reads through descriptors with O_NOATIME changed the access time (LTP open12).
#[test]
fn a_read_with_o_noatime_leaves_the_access_time() {
    let pool = SimulatedPool::new(2 << 20, 1025);
    let fs = pool.mount();
    let ino = fs.mknod(ROOT, b"a", 0o100644, 0, CALLER, W).unwrap().ino;
    fs.write(ino, 0, b"content", WriteFlags::default(), W).unwrap();
    let before = fs.getattr(ino).unwrap().atime_ns;
    let read = |touch| fs.read_into(ino, 0, &mut [0; 100], touch, W).unwrap();
    assert_eq!(read(false), 7);
    assert_eq!(fs.getattr(ino).unwrap().atime_ns, before);
    assert_eq!(read(true), 7);
    assert!(fs.getattr(ino).unwrap().atime_ns > before);
}

/// SEEK_HOLE looked up each block from the root of the tree.
#[test]
fn seek_finds_the_end_of_cold_data_by_extents() {
    let pool = SimulatedPool::new(16 << 20, 8192);
    let fs = pool.mount();
    let ino = create(&fs, ROOT, "file");
    let blocks = 3000;
    (0..blocks / 100)
        .for_each(|at| write(&fs, ino, at * 100 * BLOCK, &vec![1; 100 * BLOCK as usize]).unwrap());
    fs.sync_to(1, &mut |_| {}).unwrap();
    write(&fs, ino, (blocks + 5) * BLOCK, &[2; 100]).unwrap();
    write(&fs, ino, 1000 * BLOCK, &[3; 100]).unwrap();
    let before = pool.pm.bytes_read();
    assert_eq!(fs.seek(ino, 17, Seek::Hole).unwrap(), blocks * BLOCK);
    let read = pool.pm.bytes_read() - before;
    // A block costs 4 bytes of checksum, and each leaf is looked at a few times.
    assert!(read < blocks * 200, "{read} bytes of PM for {blocks} blocks");
    assert_eq!(fs.seek(ino, blocks * BLOCK, Seek::Data).unwrap(), (blocks + 5) * BLOCK);
    assert_eq!(fs.seek(ino, (blocks + 5) * BLOCK, Seek::Hole).unwrap(), (blocks + 5) * BLOCK + 100);
    // Data in PM, cold data and holes alternate.
    let mixed = create(&fs, ROOT, "mixed");
    write(&fs, mixed, 0, &vec![1; 8 * BLOCK as usize]).unwrap();
    fs.sync_to(1, &mut |_| {}).unwrap();
    write(&fs, mixed, 3 * BLOCK, &vec![2; 2 * BLOCK as usize]).unwrap();
    write(&fs, mixed, 8 * BLOCK, &vec![2; 70 * BLOCK as usize]).unwrap();
    write(&fs, mixed, 80 * BLOCK, &[2; 1]).unwrap();
    assert_eq!(fs.seek(mixed, 0, Seek::Hole).unwrap(), 78 * BLOCK);
    assert_eq!(fs.seek(mixed, 79 * BLOCK, Seek::Hole).unwrap(), 79 * BLOCK);
    fs.fallocate(mixed, 2 * BLOCK, BLOCK, terrace_engine::Allocate::PunchHole, W).unwrap();
    assert_eq!(fs.seek(mixed, 0, Seek::Hole).unwrap(), 2 * BLOCK);
    assert_eq!(fs.seek(mixed, 2 * BLOCK, Seek::Data).unwrap(), 3 * BLOCK);
}

/// A read of a fast tier waited for a slow tier that held only blocks to be read ahead.
#[test]
fn read_ahead_stays_on_one_device() -> FsResult<()> {
    let pool = TwoTierPool::new(4 << 20, 17, 1024);
    let fs = pool.mount();
    let ino = create(&fs, ROOT, "a");
    let content = pattern(32 * BLOCK as usize, 1);
    write(&fs, ino, 0, &content)?;
    fs.sync_to(1, &mut |_| {})?;
    let [_, first, second] = bytes_on(&fs, ino);
    assert!(first > 0 && second > 0, "{first} {second}");
    fs.unmount()?;
    drop(fs);
    let fs = pool.mount();
    let before = pool.devices[1].counters().reads;
    let mut found = vec![0; BLOCK as usize];
    assert_eq!(fs.read(find(&fs, "a"), 0, &mut found, W)?, found.len());
    assert_eq!(pool.devices[1].counters().reads, before);
    assert_content(&fs, ino, &content);
    Ok(())
}

/// A device that runs a hook during each of its reads.
struct Busy {
    device: Arc<SimulatedDevice>,
    reads: AtomicU32,
    #[allow(clippy::type_complexity)] // the hook
    meanwhile: terrace_runtime::sync::Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl BlockMedium for Busy {
    fn blocks(&self) -> u64 {
        self.device.blocks()
    }
    fn name(&self) -> &str {
        self.device.name()
    }
    fn read(&self, first: DeviceBlock, into: &mut [AlignedBlock]) -> Result<(), MediaError> {
        if self.reads.fetch_add(1, Ordering::Relaxed) < 50
            && let Some(act) = &*self.meanwhile.lock()
        {
            act();
        }
        self.device.read(first, into)
    }
    fn write(&self, first: DeviceBlock, from: &[AlignedBlock]) -> Result<(), MediaError> {
        self.device.write(first, from)
    }
    fn flush_at(&self, at: &'static std::panic::Location<'static>) -> Result<(), MediaError> {
        self.device.flush_at(at)
    }
}

/// A reader read the cold block again and again while other blocks within 2 MiB were cut, punched or moved
/// faster than the device answered.
#[test]
fn a_reader_beside_a_busy_neighbour_ends() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 1025);
    let fs = pool.mount_with(quiet());
    let ino = create(&fs, ROOT, "a");
    let content = pattern(40 * BLOCK as usize, 1);
    write(&fs, ino, 0, &content)?;
    fs.sync_to(1, &mut |_| {})?;
    fs.unmount()?;
    drop(fs);
    let device = Busy {
        device: pool.device.clone(),
        reads: AtomicU32::new(0),
        meanwhile: terrace_runtime::sync::Mutex::new(None),
    };
    let device = Arc::new(device);
    let (superblock, _) = read_superblock(&*pool.pm, true).unwrap();
    let media = PoolMedia { pm: pool.pm.clone(), block: vec![device.clone()] };
    let fs = Engine::mount(media, superblock, quiet(), pool.clock.clone())?;
    let ino = find(&fs, "a");
    let other = Arc::downgrade(&fs);
    *device.meanwhile.lock() = Some(Box::new(move || {
        if let Some(fs) = other.upgrade() {
            fs.fallocate(ino, 300 * BLOCK, BLOCK, Allocate::PunchHole, W).unwrap();
        }
    }));
    let mut found = vec![0; BLOCK as usize];
    assert_eq!(fs.read(ino, 0, &mut found, W)?, found.len());
    assert!(found == content[..BLOCK as usize]);
    let reads = device.reads.load(Ordering::Relaxed);
    assert!(reads < 20, "{reads} reads");
    *device.meanwhile.lock() = None;
    Ok(())
}
