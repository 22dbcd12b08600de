//! Metadata pages below PM (design C1): they move down when they are cold, come back when they are needed, and are
//! the same across mounts, crashes and errors of the device.

#![allow(clippy::unwrap_used)]

mod common;

use common::{CALLER, Pool, ROOT, format_options};
use std::collections::BTreeMap;
use std::sync::Arc;
use terrace_check::{Code, Devices, Options, check};
use terrace_format::Ino;
use terrace_fs::{
    FormatOptions, Fs, FsError, MetadataMoves, MountOptions, PoolMedia, Wait, format, read_superblock,
};
use terrace_media::block::{DeviceImage, Operation, SimulatedDevice, Times};
use terrace_media::crash::CrashClock;
use terrace_media::pm::{PmImage, RamPm, RecordedPm};
use terrace_media::{BlockMedium, PmMedium};
use terrace_runtime::{Clock, ManualClock};

const W: Wait = Wait::Allowed;

fn eager() -> MountOptions {
    MountOptions { metadata_moves: MetadataMoves::Always, ..Default::default() }
}

/// Lets everything go down that may.
fn lower(fs: &Arc<Fs>) {
    for _ in 0..4 {
        fs.run_background(1000);
    }
}

fn name(index: u32) -> Vec<u8> {
    format!("file-{index:06}").into_bytes()
}

/// A directory with files, each its inode.
fn fill(fs: &Fs, directory: Ino, count: u32) -> BTreeMap<Vec<u8>, Ino> {
    let make = |index| {
        let found = fs.mknod(directory, &name(index), 0o100644, 0, CALLER, W).unwrap();
        fs.forget(found.ino, 1);
        (name(index), found.ino)
    };
    (0..count).map(make).collect()
}

fn directory(fs: &Fs) -> Ino {
    fs.mkdir(ROOT, b"directory", 0o755, CALLER, W).unwrap().ino
}

#[track_caller]
fn assert_same(fs: &Fs, directory: Ino, files: &BTreeMap<Vec<u8>, Ino>) {
    let mut listed = BTreeMap::new();
    fs.readdir(directory, 0, &mut |entry| {
        listed.insert(entry.name.clone(), entry.ino);
        true
    })
    .unwrap();
    listed.retain(|name, _| name != b"." && name != b"..");
    assert_eq!(listed, *files);
    for (name, ino) in files {
        let found = fs.lookup(directory, name).unwrap();
        fs.forget(found.ino, 1);
        assert_eq!((found.ino, found.mode, found.nlink), (*ino, 0o100644, 1));
    }
}

/// Pages below, of a sound pool.
#[track_caller]
fn below(pool: &Pool) -> u64 {
    pool.assert_clean();
    pool.check().summary.metadata_below
}

#[test]
fn cold_metadata_moves_down_and_comes_back() {
    let pool = Pool::new(4 << 20, 4096);
    let fs = pool.mount_with(eager());
    let directory = directory(&fs);
    let mut files = fill(&fs, directory, 2000);
    lower(&fs);
    let most = below(&pool);
    // 63 inode pages, about 30 leaves.
    assert!(most > 70, "{most}");
    assert_same(&fs, directory, &files);
    assert!(below(&pool) < 20, "{}", below(&pool));
    // Changes of what lies below.
    lower(&fs);
    for index in (0..2000).step_by(3) {
        fs.unlink(directory, &name(index), W).unwrap();
        files.remove(&name(index));
    }
    lower(&fs);
    assert_same(&fs, directory, &files);
    lower(&fs);
    // A mount reads nothing of it.
    let before = pool.device.counters().reads;
    fs.unmount().unwrap();
    drop(fs);
    let fs = pool.mount_with(eager());
    fs.run_background(1);
    assert_eq!(pool.device.counters().reads, before);
    assert_same(&fs, directory, &files);
    lower(&fs);
    // Free numbers below are used before new pages.
    for index in (0..2000).step_by(3) {
        let found = fs.mknod(directory, &name(index), 0o100644, 0, CALLER, W).unwrap();
        fs.forget(found.ino, 1);
        files.insert(name(index), found.ino);
    }
    assert!(files.values().all(|ino| ino.0 < 2040), "{:?}", files.values().max());
    assert_same(&fs, directory, &files);
    lower(&fs);
    for name in files.keys() {
        fs.unlink(directory, name, W).unwrap();
    }
    lower(&fs);
    fs.rmdir(ROOT, b"directory", W).unwrap();
    fs.unmount().unwrap();
    pool.assert_clean();
}

/// Unknown to the mount: they lay below. Then they are used all the same, without reading what has none.
#[test]
fn free_numbers_below_are_found_after_a_mount() {
    let pool = Pool::new(4 << 20, 4096);
    let fs = pool.mount_with(eager());
    let directory = directory(&fs);
    let files = fill(&fs, directory, 1000);
    for name in files.keys().take(100) {
        fs.unlink(directory, name, W).unwrap();
    }
    lower(&fs);
    fs.unmount().unwrap();
    drop(fs);
    let fs = pool.mount();
    fs.run_background(1000);
    for index in 0..100 {
        let found = fs.mknod(ROOT, &name(index), 0o100644, 0, CALLER, W).unwrap();
        assert!(found.ino.0 < 1024, "{}", found.ino);
    }
    drop(fs);
    pool.assert_clean();
}

#[test]
fn a_request_thread_does_not_wait() {
    let pool = Pool::new(4 << 20, 4096);
    let fs = pool.mount_with(eager());
    let directory = directory(&fs);
    let files = fill(&fs, directory, 500);
    lower(&fs);
    assert!(below(&pool) > 10);
    let (name, ino) = files.last_key_value().unwrap();
    assert!(matches!(fs.try_getattr(*ino, Wait::Never), Err(FsError::WouldBlock)));
    assert!(matches!(fs.try_lookup(directory, name, Wait::Never), Err(FsError::WouldBlock)));
    assert!(matches!(fs.unlink(directory, name, Wait::Never), Err(FsError::WouldBlock)));
    fs.lookup(directory, name).unwrap();
    assert!(fs.try_lookup(directory, name, Wait::Never).is_ok());
    assert!(fs.unlink(directory, name, Wait::Never).is_ok());
}

/// What is open stays in PM: who writes to it does not wait for the device (I10).
#[test]
fn pages_of_open_files_stay() {
    let pool = Pool::new(4 << 20, 4096);
    let fs = pool.mount_with(eager());
    let directory = directory(&fs);
    let files = fill(&fs, directory, 500);
    let (_, ino) = files.last_key_value().unwrap();
    fs.open(*ino, false, true, W).unwrap();
    lower(&fs);
    assert!(below(&pool) > 10);
    assert!(fs.try_getattr(*ino, Wait::Never).is_ok());
    fs.write(*ino, 0, &[1; 4096], Default::default(), Wait::Never).unwrap();
    fs.release(*ino);
}

/// A device that fails, or gives something else, costs the names that lie there, and status names it.
#[test]
fn errors_of_the_device_are_those_of_what_lies_there() {
    let pool = Pool::new(4 << 20, 4096);
    let fs = pool.mount_with(eager());
    let directory = directory(&fs);
    let files = fill(&fs, directory, 500);
    let hot = fs.mknod(ROOT, b"hot", 0o100644, 0, CALLER, W).unwrap().ino;
    fs.open(hot, false, true, W).unwrap();
    lower(&fs);
    assert!(below(&pool) > 10);
    pool.device.fail_next(Operation::Read, 0..u64::MAX, libc::EIO, Times::Forever);
    let failed = |fs: &Fs| files.values().filter(|ino| fs.getattr(**ino).is_err()).count();
    assert!(failed(&fs) > 400);
    let errors = files.values().filter_map(|ino| fs.getattr(*ino).err());
    assert!(errors.map(|error| error.errno()).all(|errno| errno == libc::EIO));
    fs.getattr(hot).unwrap();
    assert!(!fs.status().unwrap().healthy);
    pool.device.clear_failures();
    assert_same(&fs, directory, &files);
    lower(&fs);
    for block in 1..4096 {
        pool.device.corrupt(terrace_format::DeviceBlock(block), 1000, 1);
    }
    assert!(failed(&fs) > 400);
    let status = fs.status().unwrap();
    assert!(status.tiers[1].devices[0].checksum_errors > 0);
    drop(fs);
    assert!(pool.check().has(Code::MetadataChecksum));
}

/// Media that start from images and crash together.
fn from_images(pm: &PmImage, device: &DeviceImage) -> (Pool, Arc<CrashClock>) {
    let clock = CrashClock::new();
    let pool = Pool {
        pm: Arc::new(RecordedPm::with_clock(pm.clone(), &clock)),
        device: Arc::new(SimulatedDevice::with_clock("simulated", device.clone(), &clock)),
        clock: Arc::new(ManualClock::new(1_700_000_100_000_000_000)),
    };
    (pool, clock)
}

/// Crashes `act` at moments all over it; everything is there afterwards.
fn crash(
    base: (&PmImage, &DeviceImage),
    directory: Ino,
    files: &BTreeMap<Vec<u8>, Ino>,
    act: &dyn Fn(&Arc<Fs>),
) {
    const MOMENTS: u64 = 60;
    let whole = |target: Option<u64>| {
        let (pool, _) = from_images(base.0, base.1);
        let fs = pool.mount_with(eager());
        let begin = pool.pm.event_count();
        pool.pm.set_crash_at(target);
        act(&fs);
        (begin, pool.pm.event_count(), pool)
    };
    let (begin, end, _) = whole(None);
    assert!(end - begin > MOMENTS, "{begin} {end}");
    for moment in 0..MOMENTS {
        let event = begin + (end - begin) * moment / MOMENTS + moment % 7;
        let (_, _, pool) = whole(Some(event));
        let (Some(pm), Some(device)) = (pool.pm.take_snapshot(), pool.device.take_snapshot()) else {
            continue;
        };
        let images = [
            (pm.image_newest(), device.image_none()),
            (pm.image_oldest(), device.image_all()),
            (pm.image_random(event), device.image_random(event)),
        ];
        for (pm, device) in images {
            let (pool, _) = from_images(&pm, &device);
            pool.assert_clean();
            let fs = pool.mount_with(eager());
            assert_same(&fs, directory, files);
            lower(&fs);
            fs.unmount().unwrap();
            drop(fs);
            pool.assert_clean();
        }
    }
}

#[test]
fn a_crash_in_a_move_loses_nothing() {
    let pool = Pool::new(2 << 20, 1024);
    let fs = pool.mount();
    let directory = directory(&fs);
    let files = fill(&fs, directory, 300);
    fs.unmount().unwrap();
    drop(fs);
    let base = (pool.pm.visible_image(), pool.device.visible_image());
    crash((&base.0, &base.1), directory, &files, &lower);
    let fs = pool.mount_with(eager());
    lower(&fs);
    fs.unmount().unwrap();
    drop(fs);
    assert!(below(&pool) > 10);
    let base = (pool.pm.visible_image(), pool.device.visible_image());
    crash((&base.0, &base.1), directory, &files, &|fs| assert_same(fs, directory, &files));
}

/// A pool on memory that records nothing.
struct Large {
    _folder: tempfile::TempDir,
    pm: Arc<RamPm>,
    device: Arc<SimulatedDevice>,
    clock: Arc<dyn Clock>,
}

impl Large {
    fn new(pm_bytes: u64, blocks: u64) -> Large {
        let shm = std::path::Path::new("/dev/shm");
        let folder = match shm.is_dir() {
            true => tempfile::tempdir_in(shm).unwrap(),
            false => tempfile::tempdir().unwrap(),
        };
        let pool = Large {
            pm: Arc::new(RamPm::create(folder.path().join("pm"), pm_bytes).unwrap()),
            device: Arc::new(SimulatedDevice::new(blocks)),
            clock: Arc::new(ManualClock::new(1_700_000_000_000_000_000)),
            _folder: folder,
        };
        format(&pool.media(), &FormatOptions { chunk_blocks: 512, ..format_options(1) }).unwrap();
        pool
    }

    fn media(&self) -> PoolMedia {
        PoolMedia { pm: self.pm.clone(), block: vec![self.device.clone()] }
    }

    fn mount(&self) -> Arc<Fs> {
        let (superblock, _) = read_superblock(&*self.pm, true).unwrap();
        let options = MountOptions { metadata_moves: MetadataMoves::WhenScarce, ..Default::default() };
        Fs::mount(self.media(), superblock, options, Arc::clone(&self.clock)).unwrap()
    }

    /// Pages below, of a sound pool.
    fn check(&self) -> u64 {
        let pm: Arc<dyn PmMedium> = self.pm.clone();
        let device: Arc<dyn BlockMedium> = self.device.clone();
        let report = check(&Devices { pm, block: vec![Some(device)] }, &Options::default());
        assert!(report.is_clean(), "check: {:#?}", report.findings);
        report.summary.metadata_below
    }
}

/// Files whose metadata is larger than PM: 30,000 over 4 MiB, with TERRACE_METADATA_FILES=200000 that many over 32 MiB.
#[test]
fn metadata_exceeds_pm() {
    let wanted = std::env::var("TERRACE_METADATA_FILES").ok().and_then(|count| count.parse().ok());
    let count: u32 = wanted.unwrap_or(30_000);
    let pm_bytes = if count > 100_000 { 32 << 20 } else { 4 << 20 };
    let pool = Large::new(pm_bytes, 64 << 10);
    let fs = pool.mount();
    let directory = directory(&fs);
    let mut files = BTreeMap::new();
    for index in 0..count {
        let found = fs.mknod(directory, &name(index), 0o100644, 0, CALLER, W).unwrap();
        fs.forget(found.ino, 1);
        files.insert(name(index), found.ino);
        if index % 1000 == 0 {
            fs.run_background(20);
        }
    }
    let below = pool.check();
    assert!(below > u64::from(count) / 200, "{below} pages below");
    assert_same(&fs, directory, &files);
    fs.unmount().unwrap();
    drop(fs);
    pool.check();
    let fs = pool.mount();
    assert_same(&fs, directory, &files);
    for name in files.keys() {
        fs.unlink(directory, name, W).unwrap();
    }
    fs.run_background(1000);
    fs.rmdir(ROOT, b"directory", W).unwrap();
    fs.unmount().unwrap();
    pool.check();
}
