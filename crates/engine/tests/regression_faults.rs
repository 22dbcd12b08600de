//! Faults of the file system beside devices that fail or hang, or amid another operation. The comment of each
//! test describes the fault.

#![allow(clippy::unwrap_used)]

mod common;

use common::tiers::{
    Tiers, assert_content, bytes_on, create as create_in, find, mkdir, pattern as tier_pattern,
    write as write_at,
};
use common::{CALLER, Pool, ROOT, clear_used_bit};
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;
use terrace_engine::{
    BlockRange, Engine, FsResult, HandMove, HandState, MetadataMoves, MountOptions, Movements, PolicyKind,
    PoolMedia, Seek, Simulation, Wait, WriteFlags, read_superblock,
};
use terrace_format::{DeviceBlock, FileBlock, Ino};
use terrace_media::block::{AlignedBlock, Operation, SimulatedDevice, Times};
use terrace_media::pm::RecordedPm;
use terrace_media::{BlockMedium, MediaError, PmMedium};
use terrace_placement::{Home, Parameters};
use terrace_runtime::sync::Mutex;
use terrace_runtime::{Clock, SystemClock, thread};

const W: Wait = Wait::Allowed;
const BLOCK: u64 = 4096;

type Hook = Box<dyn FnOnce() + Send>;

/// A device that calls a hook after its next read or write, before the call returns.
struct Interposed {
    inner: Arc<SimulatedDevice>,
    after_read: Mutex<Option<Hook>>,
    after_write: Mutex<Option<Hook>>,
}

impl Interposed {
    fn over(pool: &Pool) -> Arc<Interposed> {
        let inner = pool.device.clone();
        Arc::new(Interposed { inner, after_read: Mutex::new(None), after_write: Mutex::new(None) })
    }
    fn run(place: &Mutex<Option<Hook>>) {
        let hook = place.lock().take();
        if let Some(hook) = hook {
            hook();
        }
    }
}

impl BlockMedium for Interposed {
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

fn mount_over(pool: &Pool, device: &Arc<Interposed>, options: MountOptions) -> Arc<Engine> {
    let (superblock, _) = read_superblock(&*pool.pm, true).unwrap();
    let pm: Arc<dyn PmMedium> = pool.pm.clone();
    let media = PoolMedia { pm, block: vec![device.clone()] };
    Engine::mount(media, superblock, options, Arc::clone(&pool.clock)).unwrap()
}

/// A pool with media as a crash at this moment may leave them.
fn crashed(pool: &Pool, seed: u64) -> Pool {
    Pool {
        pm: Arc::new(RecordedPm::from_image(pool.pm.snapshot().image_random(seed))),
        device: Arc::new(SimulatedDevice::from_image(pool.device.snapshot().image_random(seed))),
        clock: Arc::clone(&pool.clock),
    }
}

fn create(fs: &Engine, name: &str) -> Ino {
    fs.mknod(ROOT, name.as_bytes(), 0o100644, 0, CALLER, W).unwrap().ino
}

fn write(fs: &Engine, ino: Ino, offset: u64, data: &[u8]) {
    assert_eq!(fs.write(ino, offset, data, WriteFlags::default(), W).unwrap(), data.len());
}

/// A small write past the end of the file chose PM as its home, then waited for a cold block. Other writes
/// into DRAM went before it meanwhile, and the small write committed its size over them: a crash left zeros
/// in their place (C28).
#[test]
fn a_write_to_pm_leaves_no_hole_over_earlier_dirty_pages() {
    let pool = Pool::new(8 << 20, 4096);
    let device = Interposed::over(&pool);
    let options = MountOptions {
        policy: Some(PolicyKind::PREDICTIVE),
        parameters: Parameters {
            sync_blocks: 1,
            large_after: 0,
            large_min: 8 << 10,
            large_pm_percent: 0,
            ..Parameters::PUBLISHED
        },
        read_first: true,
        ..MountOptions::default()
    };
    let fs = mount_over(&pool, &device, options);
    let ino = create(&fs, "file");
    write(&fs, ino, 0, &[7; 5000]);
    fs.sync_to(1, &mut |_| {}).unwrap();
    let (amid, other) = (Arc::clone(&fs), [0x55; 64 << 10]);
    let came = Arc::new(Mutex::new(0));
    let dirty = Arc::clone(&came);
    *device.after_read.lock() = Some(Box::new(move || {
        (0..6).for_each(|at| write(&amid, ino, 8192 + at * (64 << 10), &other));
        *dirty.lock() = amid.whereabouts(ino).unwrap().dirty_bytes;
    }));
    let end = 8192 + 6 * (64 << 10);
    write(&fs, ino, end + 100_000, b"behind all");
    assert!(*came.lock() > 0, "nothing went to DRAM");
    assert_eq!(fs.getattr(ino).unwrap().size, end + 100_010);
    for seed in 0..20 {
        let fs = crashed(&pool, seed).mount();
        let size = fs.getattr(ino).unwrap().size;
        let mut found = vec![0; size as usize];
        assert_eq!(fs.read(ino, 0, &mut found, W).unwrap(), found.len());
        let holes = found.iter().take(end as usize).skip(8192).filter(|byte| **byte == 0).count();
        assert_eq!(holes, 0, "seed {seed}: size {size}");
    }
    // After fsync all of these bytes are in the file.
    fs.fsync(ino, false, W).unwrap();
    let mut found = vec![0; end as usize + 100_010];
    assert_eq!(fs.read(ino, 0, &mut found, W).unwrap(), found.len());
    assert!(found[8192..end as usize].iter().all(|byte| *byte == 0x55));
    assert!(found.ends_with(b"behind all"));
}

/// SEEK_HOLE looked up each block from the root of the tree.
#[test]
fn the_end_of_cold_data_is_found_by_extents() {
    let pool = Pool::new(16 << 20, 8192);
    let fs = pool.mount();
    let ino = create(&fs, "file");
    let blocks = 3000;
    (0..blocks / 100).for_each(|at| write(&fs, ino, at * 100 * BLOCK, &vec![1; 100 * BLOCK as usize]));
    fs.sync_to(1, &mut |_| {}).unwrap();
    write(&fs, ino, (blocks + 5) * BLOCK, &[2; 100]);
    write(&fs, ino, 1000 * BLOCK, &[3; 100]);
    let before = pool.pm.bytes_read();
    assert_eq!(fs.seek(ino, 17, Seek::Hole).unwrap(), blocks * BLOCK);
    let read = pool.pm.bytes_read() - before;
    // A block costs 4 bytes of checksum, and each leaf is looked at a few times.
    assert!(read < blocks * 200, "{read} bytes of PM for {blocks} blocks");
    assert_eq!(fs.seek(ino, blocks * BLOCK, Seek::Data).unwrap(), (blocks + 5) * BLOCK);
    assert_eq!(fs.seek(ino, (blocks + 5) * BLOCK, Seek::Hole).unwrap(), (blocks + 5) * BLOCK + 100);
    // Data in PM, cold data and holes alternate.
    let mixed = create(&fs, "mixed");
    write(&fs, mixed, 0, &vec![1; 8 * BLOCK as usize]);
    fs.sync_to(1, &mut |_| {}).unwrap();
    write(&fs, mixed, 3 * BLOCK, &vec![2; 2 * BLOCK as usize]);
    write(&fs, mixed, 8 * BLOCK, &vec![2; 70 * BLOCK as usize]);
    write(&fs, mixed, 80 * BLOCK, &[2; 1]);
    assert_eq!(fs.seek(mixed, 0, Seek::Hole).unwrap(), 78 * BLOCK);
    assert_eq!(fs.seek(mixed, 79 * BLOCK, Seek::Hole).unwrap(), 79 * BLOCK);
    fs.fallocate(mixed, 2 * BLOCK, BLOCK, terrace_engine::Allocate::PunchHole, W).unwrap();
    assert_eq!(fs.seek(mixed, 0, Seek::Hole).unwrap(), 2 * BLOCK);
    assert_eq!(fs.seek(mixed, 2 * BLOCK, Seek::Data).unwrap(), 3 * BLOCK);
}

/// A requested movement passed over a directory with names on a lower tier, or, after an error in the middle,
/// counted it twice with all of its files.
#[test]
fn a_movement_of_a_directory_counts_each_file_once() -> FsResult<()> {
    let pool = Tiers::new(4 << 20, 4096, 4096);
    let fs = pool.mount_with(MountOptions { metadata_moves: MetadataMoves::Always, ..Default::default() });
    let outer = mkdir(&fs, ROOT, "outer");
    let inner = mkdir(&fs, outer, "inner");
    let mut files = Vec::new();
    for index in 0..600u64 {
        let ino = create_in(&fs, if index % 2 == 0 { outer } else { inner }, &format!("file-{index:04}"));
        if index % 20 == 0 {
            write_at(&fs, ino, 0, &tier_pattern(BLOCK as usize, index as u8))?;
            files.push((ino, index as u8));
        }
        fs.forget(ino, 1);
    }
    [outer, inner].iter().for_each(|ino| fs.forget(*ino, 1));
    for round in 0..4u64 {
        fs.sync_to(1 + (round % 2) as u8, &mut |_| {})?;
        fs.lower_metadata_now()?;
        let to = 2 - (round % 2) as u8;
        // A read fails once in the middle of the movement.
        for device in &pool.devices {
            device.fail_next(Operation::Read, 0..4096, libc::EIO, Times::After(3 * round));
        }
        let report = pool.finish(&fs, fs.move_by_hand(outer, HandMove::Migrate { to })?);
        pool.devices.iter().for_each(|device| device.clear_failures());
        assert_eq!((report.state, report.files), (HandState::Done, 602), "round {round}: {report:?}");
        for (ino, _) in &files {
            assert_eq!(bytes_on(&fs, *ino)[usize::from(to)], BLOCK, "round {round}");
        }
    }
    files.iter().for_each(|(ino, seed)| assert_content(&fs, *ino, &tier_pattern(BLOCK as usize, *seed)));
    Ok(())
}

/// An unmount waited for ever for a device that hung, although PM had room for its dirty pages.
#[test]
fn unmount_settles_dirty_pages_of_a_hanging_device() {
    let pool = Pool::new(8 << 20, 4096);
    let options = MountOptions { home: Some(Home::Block), ..MountOptions::default() };
    let fs = pool.mount_with(options);
    let (first, second) = (create(&fs, "first"), create(&fs, "second"));
    write(&fs, first, 0, &[1; 10_000]);
    write(&fs, second, 100, &[2; 5000]);
    pool.device.stall_at_most(Duration::from_secs(600));
    let syncing = Arc::clone(&fs);
    let waiting = thread::spawn("sync", move || {
        let _ = syncing.sync();
    });
    while pool.device.waiting() == 0 {
        std::thread::yield_now();
    }
    fs.begin_end();
    fs.keep_without_devices().unwrap();
    // The daemon ends here.
    let left = crashed(&pool, 1);
    let mounted = left.mount();
    for (ino, offset, length, byte) in [(first, 0, 10_000, 1), (second, 100, 5000, 2)] {
        let mut found = vec![0; 20_000];
        assert_eq!(mounted.read(ino, 0, &mut found, W).unwrap(), offset + length);
        assert!(found[offset..offset + length].iter().all(|found| *found == byte));
    }
    mounted.unmount().unwrap();
    left.assert_clean();
    // In the other case the device answers after all, and no block is there twice.
    pool.device.unstall();
    waiting.unwrap().join().unwrap();
    fs.unmount().unwrap();
    pool.assert_clean();
}

/// An unmount waited for `sync --to` until it had moved everything.
#[test]
fn a_sync_to_a_tier_ends_with_the_mount() {
    let pool = Pool::new(8 << 20, 4096);
    let fs = pool.mount();
    let ino = create(&fs, "file");
    write(&fs, ino, 0, &[1; 100_000]);
    fs.begin_end();
    assert_eq!(fs.sync_to(1, &mut |_| {}).map_err(|error| error.errno()), Err(libc::ECANCELED));
    fs.unmount().unwrap();
    pool.assert_clean();
}

/// Each descriptor that was open when a write-back failed is told by its next fsync, once: not only the first
/// that asks, and no descriptor opened later (I5). The planted mistake "error-told-once" broke the first
/// rule, and random histories did not notice.
#[test]
fn every_open_descriptor_is_told_of_a_failed_write_back_once() {
    let pool = Pool::new(8 << 20, 4096);
    let fs = pool.mount_with(MountOptions { home: Some(Home::Block), ..MountOptions::default() });
    let ino = create(&fs, "file");
    let (first, second) = (fs.new_handle(), fs.new_handle());
    write(&fs, ino, 0, &[1; 5000]);
    pool.device.fail_next(Operation::Flush, 0..4096, libc::EIO, Times::Count(1));
    assert!(fs.sync().is_err());
    let later = fs.new_handle();
    let told = |handle| fs.fsync_handle(ino, handle, false, W).map_err(|error| error.errno());
    assert_eq!((told(first), told(second), told(later)), (Err(libc::EIO), Err(libc::EIO), Ok(())));
    assert_eq!((told(first), told(second), told(later)), (Ok(()), Ok(()), Ok(())));
    // fsync of the second descriptor fails itself; the first one is told of this failure too, although it was
    // told of the one before.
    write(&fs, ino, 0, &[2; 5000]);
    pool.device.fail_next(Operation::Flush, 0..4096, libc::EIO, Times::Count(1));
    assert_eq!((told(second), told(second), told(first)), (Err(libc::EIO), Ok(()), Err(libc::EIO)));
    assert_eq!((told(later), told(later)), (Err(libc::EIO), Ok(())));
    fs.unmount().unwrap();
    pool.assert_clean();
}

/// Two copies of a page are being written to the device, and the page is dirtied once more. After the newer
/// copy was installed and its fsync has succeeded, the older copy must not be installed over it. The planted
/// mistake "older-copy-installed" broke this, and random histories did not notice.
#[test]
fn an_older_copy_is_not_installed_over_a_newer_copy() {
    let pool = Pool::new(8 << 20, 4096);
    let device = Interposed::over(&pool);
    let options = MountOptions { home: Some(Home::Block), ..MountOptions::default() };
    let fs = mount_over(&pool, &device, options);
    let ino = create(&fs, "file");
    write(&fs, ino, 0, &[1; BLOCK as usize]);
    let (amid, inner) = (Arc::clone(&fs), Arc::clone(&device));
    let left = Arc::new(Mutex::new(Vec::new()));
    let (images, media) = (Arc::clone(&left), (pool.pm.clone(), pool.device.clone()));
    *device.after_write.lock() = Some(Box::new(move || {
        write(&amid, ino, 0, &[2; BLOCK as usize]);
        let again = Arc::clone(&amid);
        *inner.after_write.lock() = Some(Box::new(move || write(&again, ino, 0, &[3; BLOCK as usize])));
        amid.fsync(ino, false, W).unwrap();
        // Then the first copy is looked at; the write-back after it carries the third content.
        *inner.after_write.lock() = Some(Box::new(move || {
            let image = |seed| (media.0.snapshot().image_random(seed), media.1.snapshot().image_random(seed));
            images.lock().extend((0..20).map(image));
        }));
    }));
    fs.fsync(ino, false, W).unwrap();
    if left.lock().is_empty() {
        let image = |seed| (pool.pm.snapshot().image_random(seed), pool.device.snapshot().image_random(seed));
        left.lock().extend((0..20).map(image));
    }
    for (pm, device) in left.lock().drain(..) {
        let left = Pool {
            pm: Arc::new(RecordedPm::from_image(pm)),
            device: Arc::new(SimulatedDevice::from_image(device)),
            clock: Arc::clone(&pool.clock),
        };
        let mut found = vec![0; BLOCK as usize];
        assert_eq!(left.mount().read(ino, 0, &mut found, W).unwrap(), found.len());
        assert!([2, 3].contains(&found[0]), "{} was there before an fsync that succeeded", found[0]);
    }
    fs.unmount().unwrap();
    pool.assert_clean();
}

/// Only two demoted groups could be in flight: both went to a device that hung, and all writers waited
/// although another tier had room. Now three groups may be in flight, or four when some are small; only the
/// writers that demote these groups wait.
#[test]
fn a_hanging_device_does_not_keep_writers_from_other_tiers() {
    let pool = Tiers::new(4 << 20, 4096, 4096);
    let fs = pool.mount_with(MountOptions { buffer_bytes: 0, ..MountOptions::default() });
    pool.devices[0].stall_at_most(Duration::from_secs(600));
    let (tell, told) = std::sync::mpsc::channel();
    let writers: Vec<_> = (0..6u8)
        .map(|number| {
            let (fs, tell) = (Arc::clone(&fs), tell.clone());
            let ino = create_in(&fs, ROOT, &format!("file-{number}"));
            let body = move || {
                (0..50).for_each(|at| write_at(&fs, ino, at << 16, &tier_pattern(1 << 16, number)).unwrap());
                tell.send(ino).unwrap();
            };
            thread::spawn("writer", body).unwrap()
        })
        .collect();
    while pool.devices[0].waiting() < 2 {
        std::thread::yield_now();
    }
    pool.clock.advance(Duration::from_secs(6));
    let written = told.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(fs.whereabouts(written).is_ok());
    pool.devices[0].unstall();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    fs.unmount().unwrap();
    pool.assert_clean();
}

/// Waits until other threads have made a condition true.
#[track_caller]
fn await_that(what: &str, is_so: impl Fn() -> bool) {
    let clock = SystemClock::default();
    let end_ns = clock.monotonic_ns() + Duration::from_secs(60).as_nanos() as u64;
    while !is_so() {
        assert!(clock.monotonic_ns() < end_ns, "{what}");
        std::thread::yield_now();
    }
}

/// A removed file with its cold extents on a device that hung held up the reclaimer: files removed after it
/// kept their blocks in PM, although they had no block on that device.
#[test]
fn removed_files_leave_pm_while_a_device_hangs() {
    let pool = Tiers::new(32 << 20, 4096, 64);
    let fs = pool.mount();
    let below = create_in(&fs, ROOT, "below");
    // The checksums of so many blocks fill several leaves.
    write_at(&fs, below, 0, &tier_pattern(1100 * BLOCK as usize, 1)).unwrap();
    fs.sync_to(1, &mut |_| {}).unwrap();
    let (one, other) = (create_in(&fs, ROOT, "one"), create_in(&fs, ROOT, "other"));
    [one, other].into_iter().for_each(|ino| write_at(&fs, ino, 0, &[1; 1 << 20]).unwrap());
    // The name is removed already, and the kernel still has the inode.
    fs.unlink(ROOT, b"below", W).unwrap();
    fs.run_background(1000);
    assert!(fs.lower_metadata_now().unwrap() > 0);
    let used = |tier: usize| fs.status().unwrap().tiers[tier].used_bytes;
    let before = used(0);
    pool.devices[0].stall_at_most(Duration::from_secs(90));
    let background = fs.start_background().unwrap();
    fs.forget(below, 1);
    await_that("the device is not asked", || pool.devices[0].waiting() > 0);
    for (ino, name) in [(one, "one"), (other, "other")] {
        fs.unlink(ROOT, name.as_bytes(), W).unwrap();
        fs.forget(ino, 1);
    }
    await_that("nothing leaves PM", || used(0) + (2 << 20) <= before);
    assert!(pool.devices[0].waiting() > 0, "the device answered before");
    // The device answers after all.
    pool.devices[0].unstall();
    await_that("what lies below stays", || used(1) < 100 * BLOCK);
    drop(background);
    fs.unmount().unwrap();
    pool.assert_clean();
}

/// Only the first worker demoted metadata: while a device hung under it, no metadata page was demoted to any
/// device.
#[test]
fn metadata_is_demoted_while_a_device_hangs() {
    let pool = Tiers::new(8 << 20, 1024, 1024);
    let fs =
        pool.mount_with(MountOptions { metadata_moves: MetadataMoves::Always, ..MountOptions::default() });
    for index in 0..1000 {
        fs.forget(create_in(&fs, ROOT, &format!("file-{index}")), 1);
    }
    pool.devices[0].stall_at_most(Duration::from_secs(600));
    let steps = fs.background_steps().into_iter().map(|(step, _)| step);
    let mut workers = steps.filter(|step| step.name().starts_with("terrace-move"));
    let (first, mut second) = (workers.next().unwrap(), workers.next().unwrap());
    drop(workers);
    // The clock hand goes round twice: pages used lately count as cold the second time.
    let body = move || {
        let mut first = first;
        (0..4).for_each(|_| _ = first.step());
    };
    let hanging = thread::spawn("worker", body).unwrap();
    await_that("the device is not asked", || pool.devices[0].waiting() > 0);
    pool.clock.advance(Duration::from_secs(6));
    (0..4).for_each(|_| _ = second.step());
    let lowered = fs.status().unwrap().metadata.lowered_pages;
    pool.devices[0].unstall();
    hanging.join().unwrap();
    assert!(lowered > 10, "{lowered} pages went down");
    fs.unmount().unwrap();
    pool.assert_clean();
}

/// A group on a device that hung ended all write-back: no other page was written back when it was 30 s old,
/// and writers that found DRAM full looked at the same group again and again.
#[test]
fn write_back_goes_on_beside_a_hanging_device() {
    let pool = Tiers::new(8 << 20, 1024, 1024);
    let fs = pool.mount_with(MountOptions {
        home: Some(Home::Block),
        buffer_bytes: 20 * BLOCK,
        ..MountOptions::default()
    });
    let [held, other, third] = ["held", "other", "third"].map(|name| create_in(&fs, ROOT, name));
    let dirty = |ino| fs.whereabouts(ino).unwrap().dirty_bytes / BLOCK;
    write_at(&fs, held, 0, &tier_pattern(10 * BLOCK as usize, 1)).unwrap();
    pool.devices[0].stall_at_most(Duration::from_secs(600));
    let steps = fs.background_steps().into_iter().map(|(step, _)| step);
    let mut writers = steps.filter(|step| step.name().starts_with("terrace-writeb"));
    let (mut first, mut second) = (writers.next().unwrap(), writers.next().unwrap());
    drop(writers);
    pool.clock.advance(Duration::from_secs(31));
    let hanging = thread::spawn("writer", move || _ = first.step()).unwrap();
    await_that("the device is not asked", || pool.devices[0].waiting() > 0);
    write_at(&fs, other, 0, &tier_pattern(5 * BLOCK as usize, 2)).unwrap();
    second.step();
    assert_eq!((dirty(held), dirty(other)), (10, 5), "nobody is late yet");
    pool.clock.advance(Duration::from_secs(31));
    while second.step() == terrace_runtime::Next::Again {}
    assert_eq!((dirty(held), dirty(other)), (10, 0));
    // A writer that finds no room writes back pages that are not in flight.
    write_at(&fs, other, 5 * BLOCK, &tier_pattern(10 * BLOCK as usize, 3)).unwrap();
    write_at(&fs, third, 0, &tier_pattern(5 * BLOCK as usize, 4)).unwrap();
    assert_eq!((dirty(held), dirty(other), dirty(third)), (10, 0, 5));
    assert_eq!(bytes_on(&fs, other), [0, 0, 15 * BLOCK]);
    pool.devices[0].unstall();
    hanging.join().unwrap();
    fs.unmount().unwrap();
    pool.assert_clean();
}

/// The write-back of a removed file failed, and the error was reported to the file that had got its inode
/// number.
#[test]
fn a_failed_write_back_of_a_removed_file_is_not_reported_to_a_new_file() {
    let pool = Pool::new(8 << 20, 4096);
    let device = Interposed::over(&pool);
    let options = MountOptions { home: Some(Home::Block), ..MountOptions::default() };
    let fs = mount_over(&pool, &device, options);
    let ino = create(&fs, "file");
    write(&fs, ino, 0, &[1; 5000]);
    let (amid, inner) = (Arc::clone(&fs), pool.device.clone());
    let handle = Arc::new(Mutex::new(None));
    let given = Arc::clone(&handle);
    *device.after_write.lock() = Some(Box::new(move || {
        amid.unlink(ROOT, b"file", W).unwrap();
        amid.forget(ino, 1);
        for (mut step, _) in amid.background_steps() {
            if step.name().starts_with("terrace-reclaim") {
                (0..100).for_each(|_| _ = step.step());
            }
        }
        assert_eq!(create(&amid, "next"), ino, "the number is used again");
        *given.lock() = Some(amid.new_handle());
        inner.fail_next(Operation::Flush, 0..4096, libc::EIO, Times::Count(1));
    }));
    let written = fs.fsync(ino, false, W);
    let handle = handle.lock().unwrap();
    assert!(written.is_err(), "{written:?}");
    let told = fs.fsync_handle(ino, handle, false, W);
    assert!(told.is_ok(), "{told:?}");
    fs.unmount().unwrap();
    pool.assert_clean();
}

/// A bad sector under the hidden cold copy of a block with a dirty page failed reads of its neighbours,
/// although no read needs that sector.
#[test]
fn a_bad_sector_beneath_a_dirty_page_fails_no_read_of_its_neighbours() {
    let pool = Pool::new(8 << 20, 4096);
    let fs = pool.mount_with(MountOptions { home: Some(Home::Block), ..MountOptions::default() });
    let ino = create(&fs, "file");
    let mut content = tier_pattern(8 * BLOCK as usize, 1);
    write(&fs, ino, 0, &content);
    fs.fsync(ino, false, W).unwrap();
    fs.unmount().unwrap();
    drop(fs);
    let fs = pool.mount_with(MountOptions {
        home: Some(Home::Block),
        cache_bytes: 0,
        prefetch_bytes: 0,
        ..MountOptions::default()
    });
    let ino = fs.lookup(ROOT, b"file").unwrap().ino;
    let bytes = pool.device.visible_image().to_bytes();
    let page = &content[5 * BLOCK as usize..6 * BLOCK as usize];
    let bad = bytes.chunks(BLOCK as usize).position(|block| block == page).unwrap() as u64;
    pool.device.fail_next(Operation::Read, bad..bad + 1, libc::EIO, Times::Forever);
    let mut found = vec![0; 3 * BLOCK as usize];
    assert!(fs.read(ino, 4 * BLOCK, &mut found, W).is_err());
    content[5 * BLOCK as usize..6 * BLOCK as usize].fill(9);
    write(&fs, ino, 5 * BLOCK, &[9; BLOCK as usize]);
    assert_eq!(fs.whereabouts(ino).unwrap().dirty_bytes, BLOCK);
    fs.read(ino, 4 * BLOCK, &mut found, W).unwrap();
    assert!(found == content[4 * BLOCK as usize..7 * BLOCK as usize]);
}

/// Demotion of metadata chose a device that fails writes again and again, although another device was sound.
#[test]
fn metadata_is_demoted_beside_a_failing_device() {
    let pool = Tiers::new(8 << 20, 1024, 1024);
    let fs =
        pool.mount_with(MountOptions { metadata_moves: MetadataMoves::Always, ..MountOptions::default() });
    for index in 0..1000 {
        fs.forget(create_in(&fs, ROOT, &format!("file-{index}")), 1);
    }
    pool.devices[0].fail_next(Operation::Write, 0..1024, libc::EIO, Times::Forever);
    fs.lower_metadata_now().unwrap();
    let lowered = fs.status().unwrap().metadata.lowered_pages;
    assert!(lowered > 10, "{lowered} pages went down");
    fs.unmount().unwrap();
    pool.devices[0].clear_failures();
    pool.assert_clean();
}

/// A reader waited for a window of read-ahead as long as the device with the end of that window hung,
/// although the block it asked for was on another device; and then a few seconds with each read.
#[test]
fn a_reader_does_not_wait_for_read_ahead_from_a_hanging_device() {
    let pool = Tiers::new(4 << 20, 200, 1024);
    let fs = pool.mount();
    let ino = create_in(&fs, ROOT, "file");
    let content = tier_pattern(300 * BLOCK as usize, 1);
    write_at(&fs, ino, 0, &content).unwrap();
    fs.sync_to(1, &mut |_| {}).unwrap();
    fs.unmount().unwrap();
    drop(fs);
    let fs = pool.mount();
    let ino = find(&fs, "file");
    let on_first = |block: u64| {
        let range = BlockRange::new(FileBlock(block), FileBlock(block + 1));
        fs.whereabouts_in(ino, range).unwrap().tiers[1].1 > 0
    };
    let end = (0..300).find(|block| !on_first(*block)).unwrap();
    // The third read queues a window that begins 97 blocks behind the first read: the last 20 blocks of the
    // first device, and blocks of the second.
    let first = end.checked_sub(97 + 20).unwrap();
    assert!((end..300).all(|block| !on_first(block)));
    let read = move |fs: &Engine, block: u64| {
        let mut found = vec![0; BLOCK as usize];
        assert_eq!(fs.read(ino, block * BLOCK, &mut found, W).unwrap(), found.len());
        found
    };
    [first, first + 1, first + 33].iter().for_each(|block| drop(read(&fs, *block)));
    pool.devices[1].stall_at_most(Duration::from_secs(600));
    let mut steps = fs.background_steps();
    let ahead = steps.iter().position(|(step, _)| step.name() == "terrace-ahead-0").unwrap();
    let (mut ahead, _) = steps.swap_remove(ahead);
    let fetching = thread::spawn("ahead", move || _ = ahead.step()).unwrap();
    await_that("nothing is read ahead from the second device", || pool.devices[1].waiting() > 0);
    let (reading, (tell, told)) = (Arc::clone(&fs), std::sync::mpsc::channel());
    let body = move || tell.send((end - 20..end).flat_map(|block| read(&reading, block)).collect()).unwrap();
    let reader = thread::spawn("reader", body).unwrap();
    // Each of the 20 reads may wait for 5 s, and all together for less than 100 s.
    let found: Result<Vec<u8>, _> = told.recv_timeout(Duration::from_secs(45));
    let waiting = pool.devices[1].waiting();
    pool.devices[1].unstall();
    assert_eq!(found.as_deref(), Ok(&content[((end - 20) * BLOCK) as usize..(end * BLOCK) as usize]));
    assert_eq!(waiting, 1, "the device answered before the reader came");
    [fetching, reader].into_iter().for_each(|thread| thread.join().unwrap());
    fs.unmount().unwrap();
    pool.assert_clean();
}

/// A device that comes back without its unflushed writes says so once, at its next flush, whoever asks for
/// that flush: even a descriptor opened after the device came back. The reference of the simulator took this
/// error for an unfounded one.
#[test]
fn a_returned_device_reports_lost_writes_to_the_next_fsync() {
    let pool = Pool::new(8 << 20, 4096);
    let fs = pool.mount_with(MountOptions { home: Some(Home::Block), ..MountOptions::default() });
    let ino = create(&fs, "file");
    write(&fs, ino, 0, &[1; 5000]);
    pool.device.fail_next(Operation::Flush, 0..4096, libc::EIO, Times::Count(1));
    assert!(fs.fsync(ino, false, W).is_err());
    pool.device.vanish(libc::ENODEV);
    pool.device.come_back(Some(1));
    assert!(pool.device.has_loss_to_tell());
    let handle = fs.new_handle();
    let told = || fs.fsync_handle(ino, handle, false, W).map_err(|error| error.errno());
    assert_eq!((told(), told()), (Err(libc::EIO), Ok(())));
    let left = crashed(&pool, 3);
    let mut found = vec![0; 5000];
    assert_eq!(left.mount().read(ino, 0, &mut found, W).unwrap(), 5000);
    assert!(found.iter().all(|byte| *byte == 1));
    fs.unmount().unwrap();
    pool.assert_clean();
}

/// Dirty pages before and behind the end of the file were settled in one transaction that raised the size.
/// The old last block, which had no dirty page, showed bytes that truncate had cut off (S5).
#[test]
fn settling_pages_on_both_sides_of_the_end_shows_no_old_bytes() {
    let pool = Pool::new(8 << 20, 4096);
    let fs = pool.mount_with(MountOptions { home: Some(Home::Block), ..MountOptions::default() });
    let ino = create(&fs, "file");
    let durable = WriteFlags { sync: true, kill_set_id: false, pages: false };
    let size = 3 * BLOCK + 1000;
    fs.write(ino, 0, &[9; 4 * BLOCK as usize], durable, W).unwrap();
    let change = terrace_engine::SetAttributes { size: Some(size), ..Default::default() };
    fs.setattr(ino, &change, W).unwrap();
    write(&fs, ino, BLOCK, &[1; 100]);
    write(&fs, ino, 6 * BLOCK, &[2; 100]);
    assert!(fs.whereabouts(ino).unwrap().dirty_bytes > 0);
    fs.keep_without_devices().unwrap();
    assert_eq!(fs.whereabouts(ino).unwrap().dirty_bytes, 0);
    let mut found = vec![7; (3 * BLOCK - 1000) as usize];
    assert_eq!(fs.read(ino, size, &mut found, W).unwrap(), found.len());
    assert_eq!(found.iter().position(|byte| *byte != 0), None);
    fs.unmount().unwrap();
    pool.assert_clean();
}

/// A read of several blocks failed with EIO at every attempt because of a bad sector under the hidden cold
/// copy of one of them.
#[test]
fn a_bad_sector_beneath_pm_fails_no_read() -> FsResult<()> {
    let pool = Pool::new(2 << 20, 256);
    let options = MountOptions { policy: Some(PolicyKind::STATIC), cache_bytes: 0, ..Default::default() };
    let fs = pool.mount_with(options);
    let ino = create_in(&fs, ROOT, "a");
    let mut content = tier_pattern(12 * BLOCK as usize, 1);
    write_at(&fs, ino, 0, &content)?;
    fs.sync_to(1, &mut |_| {})?;
    let middle = (5 * BLOCK) as usize..(6 * BLOCK) as usize;
    content[middle.clone()].fill(7);
    write_at(&fs, ino, 5 * BLOCK, &content[middle])?;
    let mut failed = 0;
    for sector in 0..256 {
        pool.device.fail_next(Operation::Read, sector..sector + 1, 5, Times::Forever);
        let mut found = vec![0; content.len()];
        match fs.read(ino, 0, &mut found, W) {
            Ok(_) => assert!(found == content),
            Err(error) => {
                assert_eq!(error.errno(), libc::EIO);
                failed += 1;
            }
        }
        pool.device.clear_failures();
    }
    assert_eq!(failed, 11, "each block but the one in PM");
    Ok(())
}

/// Damage of a structure that only one file uses, here a bit in the bitmap of a chunk, ended a whole `sync
/// --to`, and the requested movements and spills of all files in the same group.
#[test]
fn a_damaged_file_does_not_stop_relocation_of_sound_files() -> FsResult<()> {
    let pool = Tiers::new(8 << 20, 1024, 1024);
    let fs = pool.mount();
    let contents: Vec<_> = (1..4).map(|seed| tier_pattern(8 * BLOCK as usize, seed)).collect();
    let files: Vec<Ino> = (0..3).map(|index| create_in(&fs, ROOT, &format!("file-{index}"))).collect();
    files.iter().zip(&contents).try_for_each(|(file, content)| write_at(&fs, *file, 0, content))?;
    fs.sync_to(1, &mut |_| {})?;
    clear_used_bit(&pool.pm, &pool.devices[0], 0, &contents[0][..BLOCK as usize]);
    assert!(fs.sync_to(2, &mut |_| {}).is_err());
    assert!(bytes_on(&fs, files[0])[1] > 0);
    for (file, content) in files.iter().zip(&contents) {
        assert_content(&fs, *file, content);
    }
    for file in &files[1..] {
        assert_eq!(bytes_on(&fs, *file), [0, 0, 8 * BLOCK]);
    }
    Ok(())
}

/// A bad sector kept all partial shadows over its device run in PM.
#[test]
fn neighbours_of_a_bad_sector_are_demoted() -> FsResult<()> {
    for sector in (0..256).step_by(3) {
        let pool = Pool::new(2 << 20, 256);
        let fs = pool.mount_with(MountOptions { policy: Some(PolicyKind::STATIC), ..Default::default() });
        let ino = create_in(&fs, ROOT, "a");
        write_at(&fs, ino, 0, &tier_pattern(12 * BLOCK as usize, 1))?;
        fs.sync_to(1, &mut |_| {})?;
        (0..12).try_for_each(|block| write_at(&fs, ino, block * BLOCK, &[9; 64]))?;
        assert_eq!(bytes_on(&fs, ino)[0], 12 * BLOCK);
        pool.device.fail_next(Operation::Read, sector..sector + 1, 5, Times::Forever);
        let _ = fs.sync_to(1, &mut |_| {});
        assert!(bytes_on(&fs, ino)[0] <= BLOCK, "sector {sector}: {:?}", bytes_on(&fs, ino));
    }
    Ok(())
}
