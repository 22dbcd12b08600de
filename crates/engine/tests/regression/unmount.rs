//! Unmounts: dirty pages that no device takes, and requests under way.

use super::helpers::{ASYNC, BLOCK, EIO, W, break_device};
use std::sync::Arc;
use std::time::Duration;
use terrace_engine::{Allocate, FsResult, MountOptions, Movements};
use terrace_media::PmMedium;
use terrace_media::block::{Operation, Times};
use terrace_placement::Home;
use terrace_runtime::thread;
use terrace_testkit::{ROOT, SimulatedPool, buffered, create, fill, find, read_all, write};

/// The first file that neither the device nor PM had room for ended the unmount, and all later files were
/// lost.
#[test]
fn unmount_saves_files_behind_a_file_without_room() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 4096);
    let fs = pool.mount_with(buffered(8 << 20));
    let large = create(&fs, ROOT, "large");
    fs.write(large, 0, &fill(4 << 20, 1), ASYNC, W)?;
    let mut small = Vec::new();
    for index in 0..5 {
        let ino = create(&fs, ROOT, &format!("small{index}"));
        fs.write(ino, 0, &fill(3000, 2), ASYNC, W)?;
        small.push(ino);
    }
    break_device(&pool, true);
    // Bytes of the large file are lost, and the unmount says so.
    assert!(fs.unmount().is_err());
    drop(fs);
    break_device(&pool, false);
    let fs = pool.mount_with(buffered(8 << 20));
    let kept = small.iter().filter(|ino| read_all(&fs, **ino).unwrap() == fill(3000, 2)).count();
    assert_eq!(kept, 5);
    pool.assert_clean_after(&fs)
}

/// Dirty pages that the device refuses are settled by an unmount.
#[test]
fn unmount_settles_pages_refused_by_the_device() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 4096);
    let fs = pool.mount_with(buffered(8 << 20));
    let ino = create(&fs, ROOT, "a");
    fs.write(ino, 100, &fill(500_000, 1), ASYNC, W)?;
    break_device(&pool, true);
    fs.unmount()?;
    drop(fs);
    break_device(&pool, false);
    let fs = pool.mount_with(buffered(8 << 20));
    let mut expected = fill(500_100, 1);
    expected[..100].fill(0);
    assert_eq!(read_all(&fs, ino)?, expected);
    pool.assert_clean_after(&fs)
}

/// An unmount waited for ever for a device that hung, although PM had room for its dirty pages.
#[test]
fn unmount_settles_dirty_pages_of_a_hanging_device() {
    let pool = SimulatedPool::new(8 << 20, 4096);
    let options = MountOptions { home: Some(Home::Block), ..MountOptions::default() };
    let fs = pool.mount_with(options);
    let (first, second) = (create(&fs, ROOT, "first"), create(&fs, ROOT, "second"));
    write(&fs, first, 0, &[1; 10_000]).unwrap();
    write(&fs, second, 100, &[2; 5000]).unwrap();
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
    let left = pool.crash_now(1);
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
    let pool = SimulatedPool::new(8 << 20, 4096);
    let fs = pool.mount();
    let ino = create(&fs, ROOT, "file");
    write(&fs, ino, 0, &[1; 100_000]).unwrap();
    fs.begin_end();
    assert_eq!(fs.sync_to(1, &mut |_| {}).map_err(|error| error.errno()), Err(libc::ECANCELED));
    fs.unmount().unwrap();
    pool.assert_clean();
}

/// Dirty pages that no lower tier takes were settled one by one, each in a transaction of its own.
#[test]
fn unmount_settles_dirty_pages_in_runs() -> FsResult<()> {
    let pool = SimulatedPool::new(8 << 20, 4096);
    let fs = pool.mount_with(buffered(8 << 20));
    let ino = create(&fs, ROOT, "a");
    let content = fill(256 * 4096 + 100, 1);
    fs.write(ino, 0, &content, ASYNC, W)?;
    // A hole, a single block, and another hole.
    fs.fallocate(ino, 7 * BLOCK, BLOCK, Allocate::PunchHole, W)?;
    fs.fallocate(ino, 9 * BLOCK, BLOCK, Allocate::PunchHole, W)?;
    pool.device.fail_next(Operation::Write, 0..u64::MAX, EIO, Times::Forever);
    let before = pool.pm.counters().fences;
    fs.unmount()?;
    let fences = pool.pm.counters().fences - before;
    assert!(fences < 150, "{fences} fences for 257 blocks");
    drop(fs);
    pool.device.clear_failures();
    let fs = pool.mount_with(buffered(8 << 20));
    let mut expected = content;
    for hole in [7, 9] {
        expected[hole * 4096..(hole + 1) * 4096].fill(0);
    }
    assert_eq!(read_all(&fs, find(&fs, "a"))?, expected);
    pool.assert_clean_after(&fs)
}
