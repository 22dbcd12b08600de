//! Metadata pages on a lower tier (design C1): cold pages are demoted, fetched when they are needed, and
//! equal across mounts, crashes and errors of the device.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use terrace_check::{Code, Options, PoolView, check};
use terrace_engine::{
    Engine, FormatOptions, FsError, MetadataMoves, MountOptions, Movements, PoolMedia, SetAttributes,
    Simulation, Wait, WriteFlags, XattrMode, format, read_superblock,
};
use terrace_format::Ino;
use terrace_format::geometry::SUPERBLOCK_COPIES;
use terrace_format::version::METADATA_BELOW;
use terrace_media::block::{DeviceImage, Operation, SimulatedDevice, Times};
use terrace_media::pm::{PmImage, RamPm};
use terrace_media::{BlockMedium, PmMedium};
use terrace_runtime::{Clock, ManualClock, SystemClock, thread};
use terrace_testkit::{CALLER, ROOT, SimulatedPool, format_options};
use zerocopy::IntoBytes;

const W: Wait = Wait::Allowed;

fn eager() -> MountOptions {
    MountOptions { metadata_moves: MetadataMoves::Always, ..Default::default() }
}

/// Demotes every metadata page that may be demoted.
fn lower(fs: &Arc<Engine>) {
    for _ in 0..4 {
        fs.run_background(1000);
    }
}

fn name(index: u32) -> Vec<u8> {
    format!("file-{index:06}").into_bytes()
}

/// Makes files in a directory; gives name and inode of each.
fn fill(fs: &Engine, directory: Ino, count: u32) -> BTreeMap<Vec<u8>, Ino> {
    let make = |index| {
        let found = fs.mknod(directory, &name(index), 0o100644, 0, CALLER, W).unwrap();
        fs.forget(found.ino, 1);
        (name(index), found.ino)
    };
    (0..count).map(make).collect()
}

fn directory(fs: &Engine) -> Ino {
    fs.mkdir(ROOT, b"directory", 0o755, CALLER, W).unwrap().ino
}

#[track_caller]
fn assert_same(fs: &Engine, directory: Ino, files: &BTreeMap<Vec<u8>, Ino>) {
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

/// Metadata pages on the lower tier, as `check` counts them; the pool is sound.
#[track_caller]
fn below(pool: &SimulatedPool) -> u64 {
    pool.assert_clean();
    pool.check().summary.metadata_below
}

#[test]
fn cold_metadata_is_demoted_and_fetched() {
    let pool = SimulatedPool::new(4 << 20, 4096);
    let fs = pool.mount_with(eager());
    let directory = directory(&fs);
    let mut files = fill(&fs, directory, 2000);
    lower(&fs);
    let most = below(&pool);
    // 63 inode pages, about 30 leaves.
    assert!(most > 70, "{most}");
    assert_same(&fs, directory, &files);
    assert!(below(&pool) < 20, "{}", below(&pool));
    // Changes of inodes and names whose pages lie on the lower tier.
    lower(&fs);
    for index in (0..2000).step_by(3) {
        fs.unlink(directory, &name(index), W).unwrap();
        files.remove(&name(index));
    }
    lower(&fs);
    assert_same(&fs, directory, &files);
    lower(&fs);
    // A mount fetches none of the demoted pages.
    let before = pool.device.counters().reads;
    fs.unmount().unwrap();
    drop(fs);
    let fs = pool.mount_with(eager());
    fs.run_background(1);
    assert_eq!(pool.device.counters().reads, before);
    assert_same(&fs, directory, &files);
    lower(&fs);
    // Free inode numbers of demoted pages are used before new inode pages are made.
    for index in (0..2000).step_by(3) {
        let found = fs.mknod(directory, &name(index), 0o100644, 0, CALLER, W).unwrap();
        fs.forget(found.ino, 1);
        files.insert(name(index), found.ino);
    }
    // The last quarter of the pages is the exception: it is not fetched for its free numbers.
    assert!(files.values().all(|ino| ino.0 < 2240), "{:?}", files.values().max());
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

/// The mount does not know the free inode numbers of demoted pages. They are used all the same, and pages
/// without a free number are not fetched.
#[test]
fn free_numbers_of_demoted_pages_are_found_after_a_mount() {
    let pool = SimulatedPool::new(4 << 20, 4096);
    let fs = pool.mount_with(eager());
    let directory = directory(&fs);
    let files = fill(&fs, directory, 1000);
    for name in files.keys().take(400) {
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

/// While the device fails, the free inode numbers of its pages cannot be used, and files get other numbers.
#[test]
fn files_are_made_while_the_device_fails() {
    let pool = SimulatedPool::new(4 << 20, 4096);
    let fs = pool.mount_with(eager());
    let directory = directory(&fs);
    let files = fill(&fs, directory, 1000);
    for name in files.keys().take(400) {
        fs.unlink(directory, name, W).unwrap();
    }
    lower(&fs);
    pool.device.fail_next(Operation::Read, 0..u64::MAX, libc::EIO, Times::Forever);
    for index in 0..100 {
        fs.mknod(ROOT, &name(index), 0o100644, 0, CALLER, W).unwrap();
    }
    pool.device.clear_failures();
    drop(fs);
    pool.assert_clean();
}

/// While few demoted pages have free inode numbers, no request waits for one of them.
#[test]
fn a_request_thread_makes_files_beside_demoted_free_numbers() {
    let pool = SimulatedPool::new(4 << 20, 4096);
    let fs = pool.mount_with(eager());
    let directory = directory(&fs);
    let files = fill(&fs, directory, 1000);
    for name in files.keys().take(100) {
        fs.unlink(directory, name, W).unwrap();
    }
    lower(&fs);
    let reads = pool.device.counters().reads;
    for index in 0..100 {
        fs.mknod(ROOT, &name(index), 0o100644, 0, CALLER, Wait::Never).unwrap();
    }
    assert_eq!(pool.device.counters().reads, reads);
    drop(fs);
    pool.assert_clean();
}

#[test]
fn a_request_thread_does_not_wait_for_metadata_below() {
    let pool = SimulatedPool::new(4 << 20, 4096);
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

/// The inode page of an open file stays in PM, so a write to the file never waits for the device (I10).
#[test]
fn inode_pages_of_open_files_stay_in_pm() {
    let pool = SimulatedPool::new(4 << 20, 4096);
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

/// A closed file whose blocks and catalog leaves lie on the lower tier.
fn file_below(fs: &Arc<Engine>) -> Ino {
    let file = fs.mknod(ROOT, b"file", 0o100644, 0, CALLER, W).unwrap().ino;
    // Each block is an extent of its own, so the extents fill more leaves than the root has.
    for block in 0..300 {
        fs.write(file, block * 8192, &[block as u8; 4096], WriteFlags::default(), W).unwrap();
    }
    fs.sync_to(1, &mut |_| {}).unwrap();
    lower(fs);
    file
}

/// The leaves with the extents of a closed file had been demoted: after the file was opened, a write to PM
/// waited for the device (I10).
#[test]
fn an_open_for_writing_fetches_the_extents() {
    let pool = SimulatedPool::new(4 << 20, 4096);
    let fs = pool.mount_with(eager());
    let file = file_below(&fs);
    let most = below(&pool);
    assert!(most >= 2, "{most}");
    let cold = fs.status().unwrap().metadata.fetched_pages;
    assert!(matches!(fs.open(file, false, true, Wait::Never), Err(FsError::WouldBlock)));
    assert_eq!(fs.status().unwrap().metadata.fetched_pages, cold);
    fs.open(file, false, true, W).unwrap();
    lower(&fs);
    pool.device.stall_without_waiting();
    for block in 0..300 {
        fs.write(file, block * 8192, &[7; 4096], WriteFlags::default(), Wait::Never).unwrap();
        fs.fsync(file, false, Wait::Never).unwrap();
    }
    pool.device.unstall();
    fs.release(file);
    // A failed open does not count: after the last close the pages may be demoted again.
    fs.sync_to(1, &mut |_| {}).unwrap();
    lower(&fs);
    assert!(matches!(fs.open(file, false, true, Wait::Never), Err(FsError::WouldBlock)));
    drop(fs);
    pool.assert_clean();
}

/// A write to a file without extents, as after a truncation, looks them up all the same: the leaf that would
/// hold them was demoted although the file was open.
#[test]
fn the_extent_leaf_of_an_open_file_stays_in_pm() {
    let pool = SimulatedPool::new(4 << 20, 4096);
    let fs = pool.mount_with(eager());
    let file = fs.mknod(ROOT, b"file", 0o100644, 0, CALLER, W).unwrap().ino;
    fs.write(file, 0, &[1; 8192], WriteFlags::default(), W).unwrap();
    fs.sync_to(1, &mut |_| {}).unwrap();
    let change = SetAttributes { size: Some(0), ..Default::default() };
    fs.setattr(file, &change, W).unwrap();
    fs.run_background(1000);
    // Names of a later directory in the same shard, enough for more leaves than the root has.
    let shards = 4;
    let directory = (0..shards).map(|index| {
        let name = format!("directory-{index}");
        fs.mkdir(ROOT, name.as_bytes(), 0o755, CALLER, W).unwrap().ino
    });
    let directory = directory.into_iter().find(|directory| directory.0 % shards == file.0 % shards).unwrap();
    fill(&fs, directory, 500);
    fs.open(file, false, true, W).unwrap();
    lower(&fs);
    assert!(below(&pool) > 10);
    pool.device.stall_without_waiting();
    fs.write(file, 0, &[2; 4096], WriteFlags::default(), Wait::Never).unwrap();
    fs.fsync(file, false, Wait::Never).unwrap();
    pool.device.unstall();
    fs.release(file);
    drop(fs);
    pool.assert_clean();
}

/// An open for writing neither waits for a device that gives no answer nor fills PM.
#[test]
fn an_open_for_writing_fetches_no_extents_into_a_nearly_full_pm() {
    let pool = SimulatedPool::new(4 << 20, 4096);
    let fs = pool.mount_with(eager());
    let file = file_below(&fs);
    assert!(matches!(fs.open(file, false, true, Wait::Never), Err(FsError::WouldBlock)));
    // PM is nearly full of blocks that cannot be demoted.
    let hot = fs.mknod(ROOT, b"hot", 0o100644, 0, CALLER, W).unwrap().ino;
    let mut end = 0;
    while fs.write(hot, end, &[3; 4096], WriteFlags::default(), Wait::Never).is_ok() {
        end += 4096;
    }
    assert!(end > 1 << 20, "{end}");
    assert!(fs.open(file, false, true, Wait::Never).is_ok());
    fs.release(file);
}

/// An operation that waits for a metadata page on a stalled device, at whatever stage, holds neither a lock
/// nor a lane that writes and fsync of data in PM need; nor does a demotion of metadata pages (I10, L2).
#[test]
fn a_stalled_device_stalls_no_fsync_of_data_in_pm() {
    let pool = SimulatedPool::new(4 << 20, 4096);
    let fs = pool.mount_with(eager());
    let directory = directory(&fs);
    let files = fill(&fs, directory, 500);
    // The inode shares a page with unused files, and the data is in PM.
    let (_, hot) = files.last_key_value().unwrap();
    fs.open(*hot, false, true, W).unwrap();
    let synced = |round: u64| {
        fs.write(*hot, round % 8 * 4096, &[round as u8; 4096], Default::default(), Wait::Never).unwrap();
        fs.fsync(*hot, false, Wait::Never).unwrap();
        fs.write(*hot, 0, &[7], WriteFlags { sync: true, ..Default::default() }, Wait::Never).unwrap();
        fs.try_getattr(*hot, Wait::Never).unwrap();
    };
    synced(0);
    lower(&fs);
    assert!(below(&pool) > 10);
    // More files, whose metadata can still be demoted.
    let more = fs.mkdir(ROOT, b"more", 0o755, CALLER, W).unwrap().ino;
    fill(&fs, more, 300);
    pool.device.stall();
    let waiting = |count: u64| {
        for _ in 0..20_000 {
            if pool.device.waiting() >= count {
                return;
            }
            SystemClock::default().sleep(Duration::from_millis(1));
        }
        panic!("{} wait for the device, not {count}", pool.device.waiting());
    };
    let ask = |index: u32| {
        let fs = Arc::clone(&fs);
        thread::spawn("asks", move || assert!(fs.lookup(directory, &name(index)).is_ok())).unwrap()
    };
    let threads: Vec<_> = [0, 100, 200].into_iter().map(ask).collect();
    // At least one reader waits in the device; the others may want the same page.
    waiting(1);
    (1..100).for_each(synced);
    // A new name and the pages that it needs are in PM.
    for index in 0..40 {
        let made = fs.mknod(ROOT, &name(index), 0o100644, 0, CALLER, Wait::Never).unwrap().ino;
        fs.open(made, false, true, Wait::Never).unwrap();
        fs.write(made, 0, &[1; 4096], Default::default(), Wait::Never).unwrap();
        fs.fsync(made, false, Wait::Never).unwrap();
        fs.release(made);
        fs.forget(made, 1);
    }
    // The demotion of metadata waits in its write to the device.
    let before = pool.device.waiting();
    let lowers = Arc::clone(&fs);
    let mover = thread::spawn("moves", move || assert!(lowers.lower_metadata_now().unwrap() > 0)).unwrap();
    waiting(before + 1);
    (100..200).for_each(synced);
    assert!(pool.device.waiting() > before, "the stall ended before the writes did");
    pool.device.unstall();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    mover.join().unwrap();
    fs.release(*hot);
    drop(fs);
    pool.assert_clean();
}

/// Each step of the requested movements first read an attribute of the root, to learn whether any file is
/// pinned, and waited for the device when that attribute lay there.
#[test]
fn requested_movements_do_not_wait_for_the_root() {
    let pool = SimulatedPool::new(4 << 20, 4096);
    let fs = pool.mount_with(eager());
    // So many attributes that the first are in another leaf than the bitmap of the chunk with the number of
    // the root.
    for letter in b'a'..b'm' {
        fs.setxattr(ROOT, &[b"user.", &[letter][..]].concat(), &[7; 1000], XattrMode::Any, W).unwrap();
    }
    fill(&fs, ROOT, 500);
    lower(&fs);
    assert!(below(&pool) > 10);
    fs.unmount().unwrap();
    drop(fs);
    let fs = pool.mount();
    let before = pool.device.counters().reads;
    fs.request_step();
    assert_eq!(pool.device.counters().reads, before);
    assert_eq!(fs.getxattr(ROOT, b"user.a").unwrap(), [7; 1000]);
    assert!(pool.device.counters().reads > before, "the attribute lay there");
}

/// A directory that lost most of its names kept nearly all of its catalog pages.
#[test]
fn removed_names_give_back_catalog_pages() {
    let pool = SimulatedPool::new(8 << 20, 4096);
    let fs = pool.mount();
    let directory = directory(&fs);
    let mut files = fill(&fs, directory, 4000);
    let pages = || pool.check().summary.pm_blocks.catalog_pages;
    fs.run_background(1000);
    let full = pages();
    for index in (0..4000).filter(|index| index % 20 > 0) {
        fs.unlink(directory, &name(index), W).unwrap();
        files.remove(&name(index));
    }
    fs.run_background(10_000);
    assert!(pages() < full / 4, "{} of {full}", pages());
    assert_same(&fs, directory, &files);
    drop(fs);
    pool.assert_clean();
}

/// A pool without the feature works as before, and its metadata stays in PM.
#[test]
fn a_pool_without_the_feature_keeps_its_metadata() {
    let pool = SimulatedPool::new(4 << 20, 4096);
    let (mut superblock, _) = read_superblock(&*pool.pm, true).unwrap();
    superblock.features.incompatible = (superblock.features.incompatible.get() & !METADATA_BELOW).into();
    superblock.seal();
    for copy in SUPERBLOCK_COPIES {
        pool.pm.write(copy.offset(), superblock.as_bytes()).unwrap();
    }
    pool.pm.persist().unwrap();
    let fs = pool.mount_with(eager());
    let directory = directory(&fs);
    let files = fill(&fs, directory, 500);
    lower(&fs);
    assert_eq!(fs.lower_metadata_now().unwrap(), 0);
    assert_same(&fs, directory, &files);
    fs.unmount().unwrap();
    drop(fs);
    assert_eq!(below(&pool), 0);
    let (after, _) = read_superblock(&*pool.pm, true).unwrap();
    assert!(!after.has_metadata_below());
}

/// A device that fails, or returns wrong bytes, makes only the names whose metadata it holds unreadable, and
/// status names the device.
#[test]
fn device_errors_reach_only_names_with_metadata_on_the_device() {
    let pool = SimulatedPool::new(4 << 20, 4096);
    let fs = pool.mount_with(eager());
    let directory = directory(&fs);
    let files = fill(&fs, directory, 500);
    let hot = fs.mknod(ROOT, b"hot", 0o100644, 0, CALLER, W).unwrap().ino;
    fs.open(hot, false, true, W).unwrap();
    lower(&fs);
    assert!(below(&pool) > 10);
    pool.device.fail_next(Operation::Read, 0..u64::MAX, libc::EIO, Times::Forever);
    let failed = |fs: &Engine| files.values().filter(|ino| fs.getattr(**ino).is_err()).count();
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

/// A pool on media with the content of images, at a later time.
fn from_images(pm: &PmImage, device: &DeviceImage) -> SimulatedPool {
    let later = Arc::new(ManualClock::new(1_700_000_100_000_000_000));
    SimulatedPool::from_images(pm.clone(), device.clone()).with_clock(later)
}

/// Crashes `act` at moments all over it; after each crash every file is whole.
fn crash(
    base: (&PmImage, &DeviceImage),
    directory: Ino,
    files: &BTreeMap<Vec<u8>, Ino>,
    act: &dyn Fn(&Arc<Engine>),
) {
    const MOMENTS: u64 = 60;
    let whole = |target: Option<u64>| {
        let pool = from_images(base.0, base.1);
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
            let pool = from_images(&pm, &device);
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
fn a_crash_amid_demotion_or_fetch_of_metadata_keeps_every_file() {
    let pool = SimulatedPool::new(2 << 20, 1024);
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

/// A pool on plain memory, without the recording of crash images.
struct PlainMemoryPool {
    _folder: tempfile::TempDir,
    pm: Arc<RamPm>,
    device: Arc<SimulatedDevice>,
    clock: Arc<dyn Clock>,
}

impl PlainMemoryPool {
    fn new(pm_bytes: u64, blocks: u64) -> PlainMemoryPool {
        let shm = std::path::Path::new("/dev/shm");
        let folder = match shm.is_dir() {
            true => tempfile::tempdir_in(shm).unwrap(),
            false => tempfile::tempdir().unwrap(),
        };
        let pool = PlainMemoryPool {
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

    fn mount(&self) -> Arc<Engine> {
        self.mount_with(MetadataMoves::WhenScarce)
    }

    fn mount_with(&self, metadata_moves: MetadataMoves) -> Arc<Engine> {
        let (superblock, _) = read_superblock(&*self.pm, true).unwrap();
        let options = MountOptions { metadata_moves, ..Default::default() };
        Engine::mount(self.media(), superblock, options, Arc::clone(&self.clock)).unwrap()
    }

    /// Metadata pages on the lower tier, as `check` counts them; the pool is sound.
    fn check(&self) -> u64 {
        let pm: Arc<dyn PmMedium> = self.pm.clone();
        let device: Arc<dyn BlockMedium> = self.device.clone();
        let report = check(&PoolView::new(pm, vec![Some(device)]), &Options::default());
        assert!(report.is_clean(), "check: {:#?}", report.findings);
        report.summary.metadata_below
    }
}

/// Files whose metadata is larger than PM: 30,000 files over 4 MiB; TERRACE_METADATA_FILES=200000 makes
/// 200,000 over 32 MiB.
#[test]
fn metadata_may_exceed_pm() {
    let wanted = std::env::var("TERRACE_METADATA_FILES").ok().and_then(|count| count.parse().ok());
    let count: u32 = wanted.unwrap_or(30_000);
    let pm_bytes = if count > 100_000 { 32 << 20 } else { 4 << 20 };
    let pool = PlainMemoryPool::new(pm_bytes, 64 << 10);
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
    // When metadata may not be demoted, fetched pages replace fetched pages that were used before.
    let before = pool.check();
    let fs = pool.mount_with(MetadataMoves::Never);
    assert_same(&fs, directory, &files);
    fs.unmount().unwrap();
    drop(fs);
    assert!(pool.check() <= before);
    let fs = pool.mount();
    for name in files.keys() {
        fs.unlink(directory, name, W).unwrap();
    }
    fs.run_background(1000);
    fs.rmdir(ROOT, b"directory", W).unwrap();
    fs.unmount().unwrap();
    pool.check();
}
