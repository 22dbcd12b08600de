//! Writes whose home is DRAM: dirty pages, their write-back to a lower tier, and what a crash leaves
//! (docs/semantics.md C27 to C29), on simulated media.

use super::model::Model;
use std::time::Duration;
use terrace_engine::{
    Allocate, FsResult, MountOptions, Movements, Seek, SetAttributes, Simulation, Wait, WriteFlags,
};
use terrace_media::block::{Operation, Times};
use terrace_testkit::{ROOT, SimulatedPool, buffered, fill, pattern, read_all, try_create};

const W: Wait = Wait::Allowed;
const ASYNC: WriteFlags = WriteFlags { sync: false, kill_set_id: false, pages: false };
const SYNC: WriteFlags = WriteFlags { sync: true, kill_set_id: false, pages: false };

#[test]
fn writes_stay_in_dram_until_fsync() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 4096);
    let fs = pool.mount_with(buffered(4 << 20));
    let ino = try_create(&fs, "a")?;
    let expected = pattern(300_000, 1);
    let before = pool.device.counters().writes;
    fs.write(ino, 0, &expected, ASYNC, W)?;
    assert_eq!(read_all(&fs, ino)?, expected);
    assert_eq!((fs.getattr(ino)?.size, fs.getattr(ino)?.blocks), (300_000, 74 * 8));
    assert_eq!(fs.status()?.dram.dirty_bytes, 74 * 4096);
    assert_eq!(fs.whereabouts(ino)?.dirty_bytes, 74 * 4096);
    assert_eq!(pool.device.counters().writes, before);
    assert!(matches!(fs.fsync(ino, false, Wait::Never), Err(terrace_engine::FsError::WouldBlock)));
    let modified = fs.getattr(ino)?.mtime_ns;
    fs.fsync(ino, false, W)?;
    assert_eq!(fs.getattr(ino)?.mtime_ns, modified);
    // Neighbouring blocks go to the device in one request. A chunk of this device has 16 blocks, the group
    // summary included.
    let writes = pool.device.counters().writes - before;
    assert!(writes <= 12, "{writes} writes for 74 blocks in a row");
    assert_eq!((fs.status()?.dram.dirty_bytes, fs.getattr(ino)?.blocks), (0, 74 * 8));
    assert_eq!(fs.whereabouts(ino)?.tiers, [(0, 0), (1, 74 * 4096)]);
    assert_eq!(read_all(&fs, ino)?, expected);
    fs.fsync(ino, false, Wait::Never)?;
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    let fs = pool.mount();
    assert_eq!(read_all(&fs, ino)?, expected);
    Ok(())
}

/// A file read from front to back is read ahead in windows that grow; reads at scattered offsets fetch single
/// blocks.
#[test]
fn a_file_read_from_front_to_back_is_read_ahead() -> FsResult<()> {
    const BLOCKS: u64 = 1024;
    let pool = SimulatedPool::new(2 << 20, 4096);
    let fs = pool.mount_with(buffered(4 << 20));
    let ino = try_create(&fs, "a")?;
    let expected = pattern(BLOCKS as usize * 4096, 1);
    fs.write(ino, 0, &expected, ASYNC, W)?;
    fs.fsync(ino, false, W)?;
    fs.unmount()?;
    drop(fs);
    let mut block = [0; 4096];
    let mut reads_of = |order: &mut dyn Iterator<Item = u64>| -> FsResult<(u64, u64)> {
        let fs = pool.mount();
        let ino = fs.lookup(ROOT, b"a")?.ino;
        let before = pool.device.counters().reads;
        let mut asked = 0;
        for at in order {
            fs.read(ino, at * 4096, &mut block, W)?;
            assert_eq!(block[..], expected[at as usize * 4096..][..4096]);
            asked += 1;
        }
        Ok((pool.device.counters().reads - before, asked))
    };
    let (reads, asked) = reads_of(&mut (0..BLOCKS))?;
    // A cold extent of this device has at most 15 blocks.
    assert!(reads < asked / 10, "{reads} reads for {asked} blocks in a row");
    let (reads, asked) = reads_of(&mut (0..64).map(|step| (step * 397 + 100) % BLOCKS))?;
    assert!(reads <= asked + 2, "{reads} reads for {asked} blocks here and there");
    Ok(())
}

/// Editors and package managers replace a file by renaming a new one over it, without fsync. The rename was
/// durable at once while the new content was in DRAM, so that a crash lost the old content and the new.
#[test]
fn a_rename_over_a_file_writes_back_the_new_content_first() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 2048);
    let fs = pool.mount_with(buffered(4 << 20));
    let (old, new) = (try_create(&fs, "conf")?, try_create(&fs, "conf.new")?);
    fs.write(old, 0, &fill(100_000, 1), ASYNC, W)?;
    fs.fsync(old, false, W)?;
    fs.write(new, 0, &fill(120_000, 2), ASYNC, W)?;
    // A rename that replaces no file waits for no write-back.
    fs.rename(ROOT, b"conf.new", ROOT, b"conf.tmp", false, Wait::Never)?;
    assert_eq!(fs.status()?.dram.dirty_bytes, 30 * 4096);
    let who_may_not_wait = fs.rename(ROOT, b"conf.tmp", ROOT, b"conf", false, Wait::Never);
    assert!(matches!(who_may_not_wait, Err(terrace_engine::FsError::WouldBlock)));
    assert_eq!(fs.lookup(ROOT, b"conf")?.ino, old);
    fs.rename(ROOT, b"conf.tmp", ROOT, b"conf", false, W)?;
    assert_eq!(fs.status()?.dram.dirty_bytes, 0);
    for seed in 0..4 {
        let after = pool.crash_now(seed).mount_with(buffered(4 << 20));
        let found = after.lookup(ROOT, b"conf")?.ino;
        assert_eq!(read_all(&after, found)?, fill(120_000, 2));
        assert!(after.lookup(ROOT, b"conf.tmp").is_err());
    }
    // A device that refuses every write does not hold up the rename.
    let again = try_create(&fs, "again")?;
    fs.write(again, 0, &fill(50_000, 3), ASYNC, W)?;
    pool.device.fail_next(Operation::Write, 0..2048, libc::EIO, Times::Forever);
    fs.rename(ROOT, b"again", ROOT, b"conf", false, W)?;
    assert_eq!(read_all(&fs, again)?, fill(50_000, 3));
    pool.device.clear_failures();
    fs.fsync(again, false, W)
}

#[test]
fn unmount_writes_back_every_dirty_page() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 4096);
    let fs = pool.mount_with(buffered(4 << 20));
    let ino = try_create(&fs, "a")?;
    fs.write(ino, 5000, &fill(20_000, 3), ASYNC, W)?;
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    let fs = pool.mount();
    let mut expected = vec![0; 25_000];
    expected[5000..].fill(3);
    assert_eq!(read_all(&fs, ino)?, expected);
    Ok(())
}

#[test]
fn a_write_to_pm_absorbs_the_dirty_page() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 2048);
    let fs = pool.mount_with(buffered(4 << 20));
    let ino = try_create(&fs, "a")?;
    fs.write(ino, 0, &fill(3 * 4096, 1), ASYNC, W)?;
    // The synchronous write is durable with its block, and so is the end of the file, which lies in that
    // block.
    fs.write(ino, 2 * 4096 + 10, &fill(20, 2), SYNC, W)?;
    assert_eq!(fs.status()?.dram.dirty_bytes, 2 * 4096);
    let mut expected = fill(3 * 4096, 1);
    expected[2 * 4096 + 10..2 * 4096 + 30].fill(2);
    assert_eq!(read_all(&fs, ino)?, expected);
    let crashed = pool.crash_now(1);
    let after = crashed.mount_with(buffered(4 << 20));
    let found = read_all(&after, ino)?;
    assert_eq!(found.len(), 3 * 4096);
    assert_eq!(found[2 * 4096..], expected[2 * 4096..]);
    crashed.assert_clean_after(&after)?;
    fs.fsync(ino, false, W)?;
    let after = pool.crash_now(2).mount_with(buffered(4 << 20));
    assert_eq!(read_all(&after, ino)?, expected);
    Ok(())
}

#[test]
fn a_crash_before_write_back_leaves_the_durable_size() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 2048);
    let fs = pool.mount_with(buffered(4 << 20));
    let ino = try_create(&fs, "a")?;
    fs.write(ino, 0, &fill(5000, 1), ASYNC, W)?;
    fs.fsync(ino, false, W)?;
    fs.write(ino, 5000, &fill(50_000, 2), ASYNC, W)?;
    assert_eq!(fs.getattr(ino)?.size, 55_000);
    let after = pool.crash_now(1).mount_with(buffered(4 << 20));
    assert_eq!(read_all(&after, ino)?, fill(5000, 1));
    fs.sync()?;
    let mut expected = fill(5000, 1);
    expected.extend(fill(50_000, 2));
    let after = pool.crash_now(1).mount_with(buffered(4 << 20));
    assert_eq!(read_all(&after, ino)?, expected);
    Ok(())
}

#[test]
fn truncate_punch_and_unlink_drop_dirty_pages() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 4096);
    let fs = pool.mount_with(buffered(4 << 20));
    let ino = try_create(&fs, "a")?;
    fs.write(ino, 0, &fill(40_960, 7), ASYNC, W)?;
    let size = |size| SetAttributes { size: Some(size), ..Default::default() };
    fs.setattr(ino, &size(10_000), W)?;
    assert_eq!(fs.status()?.dram.dirty_bytes, 3 * 4096);
    fs.setattr(ino, &size(20_000), W)?;
    let mut expected = fill(20_000, 0);
    expected[..10_000].fill(7);
    assert_eq!(read_all(&fs, ino)?, expected);
    fs.fallocate(ino, 4000, 5000, Allocate::PunchHole, W)?;
    expected[4000..9000].fill(0);
    assert_eq!(read_all(&fs, ino)?, expected);
    assert_eq!(fs.status()?.dram.dirty_bytes, 2 * 4096);
    assert_eq!(fs.seek(ino, 0, Seek::Hole)?, 4096);
    assert_eq!(fs.seek(ino, 4096, Seek::Data)?, 8192);
    assert_eq!(fs.seek(ino, 8192, Seek::Hole)?, 12_288);
    fs.fsync(ino, false, W)?;
    assert_eq!(read_all(&fs, ino)?, expected);
    assert_eq!(fs.getattr(ino)?.blocks, 16);
    fs.write(ino, 0, &fill(9000, 1), ASYNC, W)?;
    fs.forget(ino, 1);
    fs.unlink(ROOT, b"a", W)?;
    fs.run_background(1000);
    assert_eq!(fs.status()?.dram.dirty_bytes, 0);
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

#[test]
fn old_pages_are_written_back_in_time() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 2048);
    let fs = pool.mount_with(buffered(4 << 20));
    let ino = try_create(&fs, "a")?;
    fs.write(ino, 0, &fill(20_000, 7), ASYNC, W)?;
    let mut steps = fs.background_steps();
    let mut run = |seconds: u64| {
        for _ in 0..seconds {
            pool.clock.advance(Duration::from_secs(1));
            for (step, _) in &mut steps {
                for _ in 0..50 {
                    if step.step() != terrace_runtime::Next::Again {
                        break;
                    }
                }
            }
        }
    };
    run(20);
    assert_eq!(fs.status()?.dram.dirty_bytes, 5 * 4096);
    // Further writes to a dirty page do not make it younger: its age counts from the first write.
    fs.write(ino, 0, &fill(100, 8), ASYNC, W)?;
    run(10);
    assert_eq!(fs.status()?.dram.dirty_bytes, 0);
    Ok(())
}

#[test]
fn a_write_larger_than_the_buffer_finds_room() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 8192);
    let fs = pool.mount_with(buffered(1 << 20));
    let ino = try_create(&fs, "big")?;
    let expected = pattern(8 << 20, 3);
    assert_eq!(fs.write(ino, 0, &expected, ASYNC, W)?, expected.len());
    assert!(fs.status()?.dram.dirty_bytes <= 1 << 20);
    assert_eq!(read_all(&fs, ino)?, expected);
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    let fs = pool.mount();
    assert_eq!(read_all(&fs, ino)?, expected);
    Ok(())
}

#[test]
fn a_full_device_and_a_full_pm_refuse_writes() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 64);
    let fs = pool.mount_with(buffered(4 << 20));
    let ino = try_create(&fs, "a")?;
    let mut written = 0;
    let error = loop {
        match fs.write(ino, written, &fill(8192, 5), ASYNC, W) {
            Ok(count) => written += count as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(error.errno(), 28);
    assert!(written > 63 * 4096, "PM took some as well");
    fs.sync()?;
    assert_eq!(read_all(&fs, ino)?, fill(written as usize, 5));
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

#[test]
fn demotion_beside_dirty_pages_keeps_the_newest_content() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 8192);
    let options = MountOptions { home: None, ..buffered(1 << 20) };
    let fs = pool.mount_with(options.clone());
    let ino = try_create(&fs, "a")?;
    fs.write(ino, 0, &pattern(100_000, 1), ASYNC, W)?;
    fs.unmount()?;
    drop(fs);
    let fs = pool.mount_with(buffered(1 << 20));
    let mut expected = pattern(100_000, 1);
    fs.write(ino, 4000, &fill(10_000, 9), ASYNC, W)?;
    expected[4000..14_000].fill(9);
    fs.sync_to(1, &mut |_| {})?;
    assert_eq!(read_all(&fs, ino)?, expected);
    fs.write(ino, 50_000, &fill(10, 8), ASYNC, W)?;
    expected[50_000..50_010].fill(8);
    // Promoting the cold copy of a block that has a dirty page does not change what reads return.
    for _ in 0..3 {
        assert_eq!(read_all(&fs, ino)?, expected);
        fs.run_background(50);
    }
    fs.sync()?;
    assert_eq!(read_all(&fs, ino)?, expected);
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

/// Random operations on a few files, compared with a model at every read. Power fails at a random moment, and
/// the files found after the next mount are ones that the rules allow.
#[test]
fn random_operations_and_crashes_leave_allowed_content() -> FsResult<()> {
    for seed in 0..120 {
        Model::run(seed).inspect_err(|_| eprintln!("seed {seed}"))?;
    }
    Ok(())
}
