//! Dirty pages: which copy of a page is installed, when, and where.

use super::helpers::{ASYNC, BLOCK, SYNC, W, break_device, dirty};
use super::hooked_device::{HookedDevice, mount_over};
use std::sync::Arc;
use std::time::Duration;
use terrace_engine::{
    Allocate, Engine, FsError, FsResult, MountOptions, MoveRequest, Movements, PolicyKind, RequestState,
    SetAttributes, Simulation, Wait, WriteFlags, read_superblock,
};
use terrace_placement::{Home, Parameters};
use terrace_runtime::sync::Mutex;
use terrace_testkit::{
    ROOT, SimulatedPool, TwoTierPool, buffered, bytes_on, create, fill, pattern, read_all, write,
};

/// Writes back one group in the background; `act` runs while the device has its write.
fn while_on_the_way(
    pool: &SimulatedPool,
    fs: &std::sync::Arc<Engine>,
    act: impl FnOnce() -> FsResult<()>,
) -> FsResult<()> {
    pool.clock.advance(Duration::from_secs(31));
    let mut steps = fs.background_steps();
    pool.device.stall();
    std::thread::scope(|scope| {
        let group = scope.spawn(|| {
            let mine = steps.iter_mut().find(|(step, _)| step.name() == "terrace-writeb");
            mine.map(|(step, _)| step.step())
        });
        let arrived = || pool.device.waiting() > 0 || group.is_finished();
        while !arrived() {
            std::thread::yield_now();
        }
        let done = act();
        pool.device.unstall();
        group.join().unwrap().unwrap();
        done
    })
}

/// After the log had stopped, writes into DRAM were still accepted, although no later event could make them
/// durable.
#[test]
fn writes_into_dram_are_refused_after_pm_has_failed() -> FsResult<()> {
    if terrace_testkit::is_table_map() {
        return Ok(());
    }
    let pool = SimulatedPool::new(2 << 20, 2048);
    let fs = pool.mount_with(buffered(4 << 20));
    let ino = create(&fs, ROOT, "a");
    // The record is written, then its in-place stores fail: the log stops.
    let geometry = read_superblock(&*pool.pm, false).unwrap().0.geometry();
    pool.pm.poison(geometry.table_offset().0..geometry.map_offset().0);
    assert!(fs.write(ino, 0, &fill(10_000, 1), SYNC, W).is_err() && fs.is_stopped());
    pool.pm.clear_poison();
    assert!(fs.write(ino, 0, &fill(100_000, 1), ASYNC, W).is_err());
    assert_eq!(dirty(&fs), 0);
    Ok(())
}

/// A write larger than the whole buffer waited for more room than the buffer ever has.
#[test]
fn a_write_larger_than_the_buffer_ends() -> FsResult<()> {
    for limit in [4096, 3 * 4096, 1 << 20] {
        let pool = SimulatedPool::new(2 << 20, 2048);
        let fs = pool.mount_with(buffered(limit));
        let ino = create(&fs, ROOT, "a");
        assert_eq!(fs.write(ino, 77, &fill(3 << 20, 1), ASYNC, W)?, 3 << 20);
        assert!(dirty(&fs) <= limit.max(8192));
    }
    Ok(())
}

/// Writes to PM waited for room among the dirty pages, and so for a lower tier (I10).
#[test]
fn a_write_to_pm_does_not_wait_for_dirty_room() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 2048);
    let fs = pool.mount_with(buffered(64 * 4096));
    let ino = create(&fs, ROOT, "a");
    fs.write(ino, 0, &fill(64 * 4096, 1), ASYNC, W)?;
    break_device(&pool, true);
    let other = create(&fs, ROOT, "b");
    assert_eq!(fs.write(other, 0, &fill(10_000, 2), SYNC, Wait::Never)?, 10_000);
    fs.fsync(other, false, Wait::Never)?;
    assert!(fs.write(other, 20_000, &fill(10_000, 2), ASYNC, Wait::Never).is_err());
    // On a thread that may wait, PM takes the write that DRAM has no room for.
    assert_eq!(fs.write(other, 20_000, &fill(10_000, 2), ASYNC, W)?, 10_000);
    Ok(())
}

/// The durable last block of a file has old bytes past the end and no dirty page. Write-back of a page far
/// behind it raised the size and exposed the old bytes.
#[test]
fn a_raised_size_shows_zeros_instead_of_old_bytes() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 2048);
    let fs = pool.mount_with(buffered(4 << 20));
    let ino = create(&fs, ROOT, "a");
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
    let after = pool.crash_now(3).mount_with(buffered(4 << 20));
    assert_eq!(read_all(&after, ino)?, expected);
    Ok(())
}

/// Bytes that a truncation cut off during their write-back came back when the size was raised again.
#[test]
fn a_copy_of_truncated_bytes_is_not_installed() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 2048);
    let fs = pool.mount_with(buffered(4 << 20));
    let ino = create(&fs, ROOT, "a");
    fs.write(ino, 0, &fill(6000, 9), ASYNC, W)?;
    let size = |size| SetAttributes { size: Some(size), ..Default::default() };
    while_on_the_way(&pool, &fs, || {
        fs.setattr(ino, &size(5000), W)?;
        fs.setattr(ino, &size(6000), W).map(|_| ())
    })?;
    let found = read_all(&pool.crash_now(1).mount_with(buffered(4 << 20)), ino)?;
    assert!(found.iter().skip(5000).all(|byte| *byte == 0), "cut off bytes are back");
    fs.fsync(ino, false, W)?;
    let mut expected = fill(6000, 0);
    expected[..5000].fill(9);
    assert_eq!(read_all(&pool.crash_now(2).mount_with(buffered(4 << 20)), ino)?, expected);
    Ok(())
}

/// A page that was punched and written anew is a new page: the copy of the old one must not be installed for
/// it.
#[test]
fn a_copy_of_a_punched_page_is_not_installed() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 2048);
    let fs = pool.mount_with(buffered(4 << 20));
    let ino = create(&fs, ROOT, "a");
    fs.write(ino, 0, &fill(4096, 9), ASYNC, W)?;
    while_on_the_way(&pool, &fs, || {
        fs.fallocate(ino, 0, 4096, Allocate::PunchHole, W)?;
        fs.write(ino, 0, &fill(10, 1), ASYNC, W).map(|_| ())
    })?;
    let found = read_all(&pool.crash_now(1).mount_with(buffered(4 << 20)), ino)?;
    assert!(!found.contains(&9), "punched bytes are back");
    Ok(())
}

/// Write-back took the later of two groups past the durable end first: its blocks lay past the durable
/// size, and became visible when a size change raised it.
#[test]
fn a_page_is_not_installed_before_earlier_dirty_pages() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 2048);
    let fs = pool.mount_with(buffered(4 << 20));
    let ino = create(&fs, ROOT, "a");
    fs.write(ino, 8192, &fill(4096, 7), ASYNC, W)?;
    while_on_the_way(&pool, &fs, || fs.write(ino, 0, &fill(4096, 5), ASYNC, W).map(|_| ()))?;
    let after = pool.crash_now(1).mount_with(buffered(4 << 20));
    let before = after.getattr(ino)?.size as usize;
    let size = SetAttributes { size: Some(12_288), ..Default::default() };
    after.setattr(ino, &size, W)?;
    assert!(read_all(&after, ino)?[before..].iter().all(|byte| *byte == 0));
    fs.fsync(ino, false, W)?;
    let found = read_all(&pool.crash_now(2).mount_with(buffered(4 << 20)), ino)?;
    assert_eq!((&found[..4096], &found[8192..]), (&fill(4096, 5)[..], &fill(4096, 7)[..]));
    Ok(())
}

/// A page is appended to during its write-back: the durable size may rise only to the bytes that the written
/// copy holds.
#[test]
fn the_durable_size_rises_only_to_the_end_of_the_written_copy() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 2048);
    let fs = pool.mount_with(buffered(4 << 20));
    let ino = create(&fs, ROOT, "a");
    fs.write(ino, 0, &fill(5000, 1), ASYNC, W)?;
    while_on_the_way(&pool, &fs, || fs.write(ino, 5000, &fill(1000, 2), ASYNC, W).map(|_| ()))?;
    assert_eq!(read_all(&pool.crash_now(1).mount_with(buffered(4 << 20)), ino)?, fill(5000, 1));
    assert_eq!(dirty(&fs), 4096);
    fs.fsync(ino, false, W)?;
    let mut expected = fill(6000, 1);
    expected[5000..].fill(2);
    assert_eq!(read_all(&pool.crash_now(2).mount_with(buffered(4 << 20)), ino)?, expected);
    Ok(())
}

/// A small write past the end of the file chose PM as its home, then waited for a cold block. Other writes
/// into DRAM went before it meanwhile, and the small write committed its size over them: a crash left zeros
/// in their place (C28).
#[test]
fn a_write_to_pm_leaves_no_hole_over_earlier_dirty_pages() {
    let pool = SimulatedPool::new(8 << 20, 4096);
    let device = HookedDevice::over(&pool);
    let options = MountOptions {
        policy: Some(PolicyKind::PREDICTIVE),
        parameters: Parameters {
            sync_blocks: 1,
            large_after: 0,
            large_min: 8 << 10,
            large_pm_percent: Some(0),
            ..Parameters::PUBLISHED
        },
        no_partial_shadows: true,
        ..MountOptions::default()
    };
    let fs = mount_over(&pool, &device, options);
    let ino = create(&fs, ROOT, "file");
    write(&fs, ino, 0, &[7; 5000]).unwrap();
    fs.sync_to(1, &mut |_| {}).unwrap();
    let (amid, other) = (Arc::clone(&fs), [0x55; 64 << 10]);
    let came = Arc::new(Mutex::new(0));
    let dirty = Arc::clone(&came);
    *device.after_read.lock() = Some(Box::new(move || {
        (0..6).for_each(|at| write(&amid, ino, 8192 + at * (64 << 10), &other).unwrap());
        *dirty.lock() = amid.whereabouts(ino).unwrap().dirty_bytes;
    }));
    let end = 8192 + 6 * (64 << 10);
    write(&fs, ino, end + 100_000, b"behind all").unwrap();
    assert!(*came.lock() > 0, "nothing went to DRAM");
    assert_eq!(fs.getattr(ino).unwrap().size, end + 100_010);
    for seed in 0..20 {
        let fs = pool.crash_now(seed).mount();
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

/// Two copies of a page are being written to the device, and the page is dirtied once more. After the newer
/// copy was installed and its fsync has succeeded, the older copy must not be installed over it. The planted
/// mistake "older-copy-installed" broke this, and random histories did not notice.
#[test]
fn an_older_copy_is_not_installed_over_a_newer_copy() {
    let pool = SimulatedPool::new(8 << 20, 4096);
    let device = HookedDevice::over(&pool);
    let options = MountOptions { home: Some(Home::Block), ..MountOptions::default() };
    let fs = mount_over(&pool, &device, options);
    let ino = create(&fs, ROOT, "file");
    write(&fs, ino, 0, &[1; BLOCK as usize]).unwrap();
    let (amid, inner) = (Arc::clone(&fs), Arc::clone(&device));
    let left = Arc::new(Mutex::new(Vec::new()));
    let (images, media) = (Arc::clone(&left), (pool.pm.clone(), pool.device.clone()));
    *device.after_write.lock() = Some(Box::new(move || {
        write(&amid, ino, 0, &[2; BLOCK as usize]).unwrap();
        let again = Arc::clone(&amid);
        *inner.after_write.lock() =
            Some(Box::new(move || write(&again, ino, 0, &[3; BLOCK as usize]).unwrap()));
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
        let left = SimulatedPool::from_images(pm, device).with_clock(pool.clock.clone());
        let mut found = vec![0; BLOCK as usize];
        assert_eq!(left.mount().read(ino, 0, &mut found, W).unwrap(), found.len());
        assert!([2, 3].contains(&found[0]), "{} was there before an fsync that succeeded", found[0]);
    }
    fs.unmount().unwrap();
    pool.assert_clean();
}

/// Dirty pages before and behind the end of the file were settled in one transaction that raised the size.
/// The old last block, which had no dirty page, showed bytes that truncate had cut off (S5).
#[test]
fn settling_pages_on_both_sides_of_the_end_shows_no_old_bytes() {
    let pool = SimulatedPool::new(8 << 20, 4096);
    let fs = pool.mount_with(MountOptions { home: Some(Home::Block), ..MountOptions::default() });
    let ino = create(&fs, ROOT, "file");
    let durable = WriteFlags { sync: true, kill_set_id: false, pages: false };
    let size = 3 * BLOCK + 1000;
    fs.write(ino, 0, &[9; 4 * BLOCK as usize], durable, W).unwrap();
    let change = terrace_engine::SetAttributes { size: Some(size), ..Default::default() };
    fs.setattr(ino, &change, W).unwrap();
    write(&fs, ino, BLOCK, &[1; 100]).unwrap();
    write(&fs, ino, 6 * BLOCK, &[2; 100]).unwrap();
    assert!(fs.whereabouts(ino).unwrap().dirty_bytes > 0);
    fs.keep_without_devices().unwrap();
    assert_eq!(fs.whereabouts(ino).unwrap().dirty_bytes, 0);
    let mut found = vec![7; (3 * BLOCK - 1000) as usize];
    assert_eq!(fs.read(ino, size, &mut found, W).unwrap(), found.len());
    assert_eq!(found.iter().position(|byte| *byte != 0), None);
    fs.unmount().unwrap();
    pool.assert_clean();
}

/// Large writes to a file that is pinned to PM had their home in DRAM, and went to a lower tier.
#[test]
fn writes_to_a_file_pinned_to_pm_stay_in_pm() -> FsResult<()> {
    let pool = TwoTierPool::new(4 << 20, 1024, 1024);
    let fs = pool.mount_with(buffered(1 << 20));
    let ino = create(&fs, ROOT, "a");
    let pinned = pool.finish(&fs, fs.request_move(ino, MoveRequest::Pin { tier: 0 })?);
    assert_eq!(pinned.state, RequestState::Done, "{pinned:?}");
    write(&fs, ino, 0, &pattern(20 * BLOCK as usize, 1))?;
    fs.fsync(ino, false, W)?;
    assert_eq!(bytes_on(&fs, ino), [20 * BLOCK, 0, 0]);
    Ok(())
}

/// Large writes to a file that is pinned to a lower tier were written back to the fastest lower tier, and
/// stayed there.
#[test]
fn a_file_pinned_to_a_lower_tier_is_written_back_to_it() -> FsResult<()> {
    let pool = TwoTierPool::new(4 << 20, 1024, 1024);
    let fs = pool.mount_with(buffered(1 << 20));
    let ino = create(&fs, ROOT, "a");
    let pinned = pool.finish(&fs, fs.request_move(ino, MoveRequest::Pin { tier: 2 })?);
    assert_eq!(pinned.state, RequestState::Done, "{pinned:?}");
    write(&fs, ino, 0, &pattern(20 * BLOCK as usize, 1))?;
    fs.fsync(ino, false, W)?;
    assert_eq!(bytes_on(&fs, ino), [0, 0, 20 * BLOCK]);
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

/// When no lower tier had room, a request thread settled all dirty pages of a file, which may have to wait.
#[test]
fn a_request_thread_does_not_settle_dirty_pages() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 33);
    let fs = pool.mount_with(buffered(4 << 20));
    let ino = create(&fs, ROOT, "a");
    assert_eq!(fs.write(ino, 0, &fill(20 * 4096, 1), ASYNC, W)?, 20 * 4096);
    let more = fill(20 * 4096, 2);
    let refused = fs.write(ino, 20 * BLOCK, &more, ASYNC, Wait::Never);
    assert!(matches!(refused, Err(FsError::WouldBlock)), "{refused:?}");
    assert_eq!(dirty(&fs), 20 * BLOCK);
    assert_eq!(fs.write(ino, 20 * BLOCK, &more, ASYNC, W)?, more.len());
    let mut expected = fill(20 * 4096, 1);
    expected.extend(more);
    assert_eq!(read_all(&fs, ino)?, expected);
    pool.assert_clean_after(&fs)
}
