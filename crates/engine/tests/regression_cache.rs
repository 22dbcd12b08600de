//! Faults of write-back that were found by review. The comment of each test describes the fault.
#![allow(clippy::unwrap_used)]

mod common;

use common::buffered::{World, buffered, create, fill, read_all};
use common::{Pool, ROOT};
use std::time::Duration;
use terrace_engine::{
    Allocate, Engine, FsResult, SetAttributes, Simulation, Wait, WriteFlags, read_superblock,
};
use terrace_format::PmBlock;
use terrace_format::inode::{InodeSlot, SLOT_SIZE, SLOTS_PER_PAGE};
use terrace_format::table::{Owner, PageKind};
use terrace_media::PmMedium;
use terrace_media::block::{Operation, Times};
use terrace_runtime::Next;

const W: Wait = Wait::Allowed;
const ASYNC: WriteFlags = WriteFlags { sync: false, kill_set_id: false, pages: false };
const SYNC: WriteFlags = WriteFlags { sync: true, kill_set_id: false, pages: false };
const EIO: i32 = 5;

fn dirty(fs: &Engine) -> u64 {
    fs.status().unwrap().dram.dirty_bytes
}

/// Makes all writes to the device fail, or lets them succeed again.
fn break_device(world: &World, broken: bool) {
    world.device.clear_failures();
    if broken {
        world.device.fail_next(Operation::Write, 0..u64::MAX, EIO, Times::Forever);
    }
}

/// fsync was to cover only the pages that were dirty when it began, yet it never ended while another thread
/// appended to the file.
#[test]
fn fsync_ends_beside_an_appender() -> FsResult<()> {
    let world = World::new(4 << 20, 8192);
    let fs = world.mount(buffered(4 << 20));
    let ino = create(&fs, "a")?;
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let appender = scope.spawn(|| -> FsResult<u64> {
            let mut end = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) && end < 8 << 20 {
                end += fs.write(ino, end, &fill(1000, 3), ASYNC, W)? as u64;
            }
            Ok(end)
        });
        for _ in 0..20 {
            fs.fsync(ino, false, W)?;
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let end = appender.join().unwrap()?;
        assert_eq!(read_all(&fs, ino)?, fill(end as usize, 3));
        Ok(())
    })
}

/// The first file that neither the device nor PM had room for ended the unmount, and all later files were
/// lost.
#[test]
fn unmount_saves_files_behind_a_file_without_room() -> FsResult<()> {
    let world = World::new(2 << 20, 4096);
    let fs = world.mount(buffered(8 << 20));
    let large = create(&fs, "large")?;
    fs.write(large, 0, &fill(4 << 20, 1), ASYNC, W)?;
    let mut small = Vec::new();
    for index in 0..5 {
        let ino = create(&fs, &format!("small{index}"))?;
        fs.write(ino, 0, &fill(3000, 2), ASYNC, W)?;
        small.push(ino);
    }
    break_device(&world, true);
    // Bytes of the large file are lost, and the unmount says so.
    assert!(fs.unmount().is_err());
    drop(fs);
    break_device(&world, false);
    let fs = world.mount(buffered(8 << 20));
    let kept = small.iter().filter(|ino| read_all(&fs, **ino).unwrap() == fill(3000, 2)).count();
    assert_eq!(kept, 5);
    world.assert_clean_after(&fs)
}

/// Dirty pages that the device refuses are settled by an unmount.
#[test]
fn unmount_settles_pages_refused_by_the_device() -> FsResult<()> {
    let world = World::new(4 << 20, 4096);
    let fs = world.mount(buffered(8 << 20));
    let ino = create(&fs, "a")?;
    fs.write(ino, 100, &fill(500_000, 1), ASYNC, W)?;
    break_device(&world, true);
    fs.unmount()?;
    drop(fs);
    break_device(&world, false);
    let fs = world.mount(buffered(8 << 20));
    let mut expected = fill(500_100, 1);
    expected[..100].fill(0);
    assert_eq!(read_all(&fs, ino)?, expected);
    world.assert_clean_after(&fs)
}

/// fsync succeeded although the size, raised past the last dirty page, was only in DRAM.
#[test]
fn fsync_makes_the_size_durable() -> FsResult<()> {
    let world = World::new(2 << 20, 2048);
    let fs = world.mount(buffered(4 << 20));
    let ino = create(&fs, "a")?;
    fs.write(ino, 0, &fill(5000, 1), ASYNC, W)?;
    let size = |size| SetAttributes { size: Some(size), ..Default::default() };
    fs.setattr(ino, &size(20_000), W)?;
    fs.fsync(ino, false, W)?;
    let after = world.crash_now(1).mount(buffered(4 << 20));
    assert_eq!(after.getattr(ino)?.size, 20_000);
    // The raised size is durable also when no dirty page is left before it.
    fs.write(ino, 20_000, &fill(100, 2), ASYNC, W)?;
    fs.setattr(ino, &size(30_000), W)?;
    fs.fallocate(ino, 16_384, 8192, Allocate::PunchHole, W)?;
    fs.fsync(ino, false, W)?;
    let after = world.crash_now(2).mount(buffered(4 << 20));
    let mut expected = fill(30_000, 0);
    expected[..5000].fill(1);
    assert_eq!(read_all(&after, ino)?, expected);
    Ok(())
}

/// After the log had stopped, writes into DRAM were still accepted, although no later event could make them
/// durable.
#[test]
fn no_write_is_taken_after_pm_has_failed() -> FsResult<()> {
    let world = World::new(2 << 20, 2048);
    let fs = world.mount(buffered(4 << 20));
    let ino = create(&fs, "a")?;
    // The record is written, then its in-place stores fail: the log stops.
    let geometry = read_superblock(&*world.pm, false).unwrap().0.geometry();
    world.pm.poison(geometry.table_offset().0..geometry.first_pool_block().offset().0);
    assert!(fs.write(ino, 0, &fill(10_000, 1), SYNC, W).is_err() && fs.is_stopped());
    world.pm.clear_poison();
    assert!(fs.write(ino, 0, &fill(100_000, 1), ASYNC, W).is_err());
    assert_eq!(dirty(&fs), 0);
    Ok(())
}

/// A write larger than the whole buffer waited for more room than the buffer ever has.
#[test]
fn a_write_larger_than_the_limit_ends() -> FsResult<()> {
    for limit in [4096, 3 * 4096, 1 << 20] {
        let pool = Pool::new(2 << 20, 2048);
        let fs = pool.mount_with(buffered(limit));
        let ino = create(&fs, "a")?;
        assert_eq!(fs.write(ino, 77, &fill(3 << 20, 1), ASYNC, W)?, 3 << 20);
        assert!(dirty(&fs) <= limit.max(8192));
    }
    Ok(())
}

/// Writes to PM waited for room among the dirty pages, and so for a lower tier (I10).
#[test]
fn a_write_to_pm_does_not_wait_for_dirty_room() -> FsResult<()> {
    let world = World::new(4 << 20, 2048);
    let fs = world.mount(buffered(64 * 4096));
    let ino = create(&fs, "a")?;
    fs.write(ino, 0, &fill(64 * 4096, 1), ASYNC, W)?;
    break_device(&world, true);
    let other = create(&fs, "b")?;
    assert_eq!(fs.write(other, 0, &fill(10_000, 2), SYNC, Wait::Never)?, 10_000);
    fs.fsync(other, false, Wait::Never)?;
    assert!(fs.write(other, 20_000, &fill(10_000, 2), ASYNC, Wait::Never).is_err());
    // On a thread that may wait, PM takes the write that DRAM has no room for.
    assert_eq!(fs.write(other, 20_000, &fill(10_000, 2), ASYNC, W)?, 10_000);
    Ok(())
}

/// After the only file with a failed write-back was removed, writes still bypassed DRAM until the next mount.
#[test]
fn a_removed_file_leaves_no_failure_behind() -> FsResult<()> {
    let world = World::new(4 << 20, 2048);
    let fs = world.mount(buffered(64 * 4096));
    let ino = create(&fs, "a")?;
    fs.write(ino, 0, &fill(64 * 4096, 1), ASYNC, W)?;
    break_device(&world, true);
    assert!(fs.fsync(ino, false, W).is_err());
    fs.forget(ino, 1);
    fs.unlink(ROOT, b"a", W)?;
    fs.run_background(100);
    assert_eq!(dirty(&fs), 0);
    break_device(&world, false);
    let other = create(&fs, "b")?;
    fs.write(other, 0, &fill(60 * 4096, 1), ASYNC, W)?;
    assert_eq!(dirty(&fs), 60 * 4096);
    Ok(())
}

/// The durable last block of a file has old bytes past the end and no dirty page. Write-back of a page far
/// behind it raised the size and exposed the old bytes.
#[test]
fn a_raised_size_shows_zeros_instead_of_old_bytes() -> FsResult<()> {
    let world = World::new(2 << 20, 2048);
    let fs = world.mount(buffered(4 << 20));
    let ino = create(&fs, "a")?;
    fs.write(ino, 0, &fill(6000, 9), SYNC, W)?;
    let size = |size| SetAttributes { size: Some(size), ..Default::default() };
    fs.setattr(ino, &size(5000), W)?;
    // The write lies far behind: the old last block has no dirty page, and holds bytes past the old end.
    fs.write(ino, 20_000, &fill(10, 1), ASYNC, W)?;
    let mut expected = fill(20_010, 0);
    expected[..5000].fill(9);
    expected[20_000..].fill(1);
    assert_eq!(read_all(&fs, ino)?, expected);
    fs.fsync(ino, false, W)?;
    let after = world.crash_now(3).mount(buffered(4 << 20));
    assert_eq!(read_all(&after, ino)?, expected);
    Ok(())
}

/// I5: a failed write-back is reported once to each descriptor that was open, and no fsync succeeds before
/// the data is durable. The pages stay dirty and are tried again after growing pauses, without spinning.
#[test]
fn a_failed_write_back_is_reported_once_and_tried_again() -> FsResult<()> {
    let world = World::new(2 << 20, 2048);
    let fs = world.mount(buffered(4 << 20));
    let ino = create(&fs, "a")?;
    let (first, second) = (fs.new_handle(), fs.new_handle());
    fs.write(ino, 0, &fill(50_000, 1), ASYNC, W)?;
    break_device(&world, true);
    let mut steps = fs.background_steps();
    let mut run = |seconds: u64| {
        let mut again = 0;
        for _ in 0..seconds {
            world.clock.advance(Duration::from_secs(1));
            for (step, _) in steps.iter_mut().filter(|(step, _)| step.name() == "terrace-writeb") {
                while step.step() == Next::Again {
                    again += 1;
                    assert!(again < 100, "spins");
                }
            }
        }
    };
    run(60);
    assert_eq!(dirty(&fs), 13 * 4096);
    assert!(world.device.counters().writes < 30, "{:?}", world.device.counters());
    assert_eq!(fs.fsync_handle(ino, first, false, W).map_err(|error| error.errno()), Err(EIO));
    break_device(&world, false);
    // The data is durable now, yet the descriptor that was not told of the failure still gets its error.
    run(60);
    assert_eq!(dirty(&fs), 0);
    let third = fs.new_handle();
    assert_eq!(fs.fsync_handle(ino, second, false, W).map_err(|error| error.errno()), Err(EIO));
    fs.fsync_handle(ino, second, false, W)?;
    fs.fsync_handle(ino, third, false, W)?;
    fs.fsync_handle(ino, first, false, W)?;
    assert_eq!(read_all(&fs, ino)?, fill(50_000, 1));
    Ok(())
}

/// Writes back one group in the background; `act` runs while the device has its write.
fn while_on_the_way(
    world: &World,
    fs: &std::sync::Arc<Engine>,
    act: impl FnOnce() -> FsResult<()>,
) -> FsResult<()> {
    world.clock.advance(Duration::from_secs(31));
    let mut steps = fs.background_steps();
    world.device.stall();
    std::thread::scope(|scope| {
        let group = scope.spawn(|| {
            let mine = steps.iter_mut().find(|(step, _)| step.name() == "terrace-writeb");
            mine.map(|(step, _)| step.step())
        });
        let arrived = || world.device.waiting() > 0 || group.is_finished();
        while !arrived() {
            std::thread::yield_now();
        }
        let done = act();
        world.device.unstall();
        group.join().unwrap().unwrap();
        done
    })
}

/// Bytes that a truncation cut off during their write-back came back when the size was raised again.
#[test]
fn a_copy_of_truncated_bytes_is_not_installed() -> FsResult<()> {
    let world = World::new(2 << 20, 2048);
    let fs = world.mount(buffered(4 << 20));
    let ino = create(&fs, "a")?;
    fs.write(ino, 0, &fill(6000, 9), ASYNC, W)?;
    let size = |size| SetAttributes { size: Some(size), ..Default::default() };
    while_on_the_way(&world, &fs, || {
        fs.setattr(ino, &size(5000), W)?;
        fs.setattr(ino, &size(6000), W).map(|_| ())
    })?;
    let found = read_all(&world.crash_now(1).mount(buffered(4 << 20)), ino)?;
    assert!(found.iter().skip(5000).all(|byte| *byte == 0), "cut off bytes are back");
    fs.fsync(ino, false, W)?;
    let mut expected = fill(6000, 0);
    expected[..5000].fill(9);
    assert_eq!(read_all(&world.crash_now(2).mount(buffered(4 << 20)), ino)?, expected);
    Ok(())
}

/// A page that was punched and written anew is a new page: the copy of the old one must not be installed for
/// it.
#[test]
fn a_copy_of_a_punched_page_is_not_installed() -> FsResult<()> {
    let world = World::new(2 << 20, 2048);
    let fs = world.mount(buffered(4 << 20));
    let ino = create(&fs, "a")?;
    fs.write(ino, 0, &fill(4096, 9), ASYNC, W)?;
    while_on_the_way(&world, &fs, || {
        fs.fallocate(ino, 0, 4096, Allocate::PunchHole, W)?;
        fs.write(ino, 0, &fill(10, 1), ASYNC, W).map(|_| ())
    })?;
    let found = read_all(&world.crash_now(1).mount(buffered(4 << 20)), ino)?;
    assert!(!found.contains(&9), "punched bytes are back");
    Ok(())
}

/// Write-back took the later of two groups past the durable end first: its blocks lay past the durable
/// size, and became visible when a size change raised it.
#[test]
fn a_page_is_not_installed_before_earlier_dirty_pages() -> FsResult<()> {
    let world = World::new(2 << 20, 2048);
    let fs = world.mount(buffered(4 << 20));
    let ino = create(&fs, "a")?;
    fs.write(ino, 8192, &fill(4096, 7), ASYNC, W)?;
    while_on_the_way(&world, &fs, || fs.write(ino, 0, &fill(4096, 5), ASYNC, W).map(|_| ()))?;
    let after = world.crash_now(1).mount(buffered(4 << 20));
    let before = after.getattr(ino)?.size as usize;
    let size = SetAttributes { size: Some(12_288), ..Default::default() };
    after.setattr(ino, &size, W)?;
    assert!(read_all(&after, ino)?[before..].iter().all(|byte| *byte == 0));
    fs.fsync(ino, false, W)?;
    let found = read_all(&world.crash_now(2).mount(buffered(4 << 20)), ino)?;
    assert_eq!((&found[..4096], &found[8192..]), (&fill(4096, 5)[..], &fill(4096, 7)[..]));
    Ok(())
}

/// A page is appended to during its write-back: the durable size may rise only to the bytes that the written
/// copy holds.
#[test]
fn the_durable_size_rises_only_to_the_end_of_the_written_copy() -> FsResult<()> {
    let world = World::new(2 << 20, 2048);
    let fs = world.mount(buffered(4 << 20));
    let ino = create(&fs, "a")?;
    fs.write(ino, 0, &fill(5000, 1), ASYNC, W)?;
    while_on_the_way(&world, &fs, || fs.write(ino, 5000, &fill(1000, 2), ASYNC, W).map(|_| ()))?;
    assert_eq!(read_all(&world.crash_now(1).mount(buffered(4 << 20)), ino)?, fill(5000, 1));
    assert_eq!(dirty(&fs), 4096);
    fs.fsync(ino, false, W)?;
    let mut expected = fill(6000, 1);
    expected[5000..].fill(2);
    assert_eq!(read_all(&world.crash_now(2).mount(buffered(4 << 20)), ino)?, expected);
    Ok(())
}

/// The file with the oldest dirty pages had an unreadable inode: it was chosen again and again, no file was
/// written back, and writers of other files got its error (I8).
#[test]
fn a_damaged_inode_holds_back_no_other_write_back() -> FsResult<()> {
    let pool = Pool::new(4 << 20, 4096);
    let fs = pool.mount_with(buffered(1 << 20));
    let (damaged, sound) = (create(&fs, "a")?, create(&fs, "b")?);
    fs.write(damaged, 0, &fill(16 << 10, 1), ASYNC, W)?;
    let (superblock, _) = read_superblock(&*pool.pm, false).unwrap();
    let geometry = superblock.geometry();
    let owner = Owner::Page { kind: PageKind::InodePage, datum: (damaged.0 / SLOTS_PER_PAGE) as u32 };
    let page = (geometry.first_pool_block().0..geometry.block_count())
        .map(PmBlock)
        .find(|block| pool.pm.load_u64(geometry.table_entry(*block)).unwrap() == owner.encode())
        .unwrap();
    let slot = page.offset().plus(damaged.0 % SLOTS_PER_PAGE * SLOT_SIZE);
    pool.pm.write(slot.plus(InodeSlot::FLAGS), &[0xff; 4])?;
    for piece in 0..64 {
        fs.write(sound, piece << 16, &fill(64 << 10, 2), ASYNC, W)?;
    }
    fs.fsync(sound, false, W)?;
    assert_eq!(read_all(&fs, sound)?, fill(64 << 16, 2));
    assert!(fs.fsync(damaged, false, W).is_err());
    Ok(())
}
