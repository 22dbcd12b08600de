//! Rounds of lazy write-back, and writers that wait for their room (docs/write-buffer.md).

use super::helpers::{BLOCK, W, await_that};
use super::lazy::{lazy, lazy_if_pinned, make_lazy, pages};
use std::sync::Arc;
use std::time::Duration;
use terrace_engine::{
    BufferOptions, Engine, FsError, FsResult, MountOptions, MoveRequest, Movements, Simulation, WriteFlags,
};
use terrace_format::BLOCK_SIZE;
use terrace_fs::write_back::rounds::lazy_round;
use terrace_placement::Home;
use terrace_runtime::{Next, Step};
use terrace_testkit::{ROOT, SimulatedPool, TrackedFile, create, fill, pattern, write};

/// The options with a buffer of a number of pages.
fn of_pages(options: MountOptions, count: u64) -> MountOptions {
    let MountOptions { buffer: BufferOptions { lazy, ablation, .. }, .. } = options;
    let buffer = BufferOptions { lazy, ablation, ..BufferOptions::of(count * BLOCK_SIZE) };
    MountOptions { buffer, ..options }
}

fn step_of(fs: &Arc<Engine>, name: &str) -> Box<dyn Step> {
    fs.background_steps().into_iter().map(|(step, _)| step).find(|step| step.name() == name).unwrap()
}

/// Blocks of other files are demoted only when no promise is left that nobody uses.
#[test]
fn promises_of_overwrites_leave_room_for_a_large_write() -> FsResult<()> {
    let pool = SimulatedPool::new(16 << 20, 4096);
    let fs = pool.mount_with(lazy());
    let files: Vec<_> = (0..300).map(|number| create(&fs, ROOT, &format!("file {number}"))).collect();
    let other = create(&fs, ROOT, "other");
    for value in [1, 2] {
        fs.sync()?;
        files.iter().try_for_each(|file| write(&fs, *file, 0, &fill(4 * BLOCK as usize, value)))?;
    }
    assert_eq!(pages(&fs, Home::Pm), 1200);
    let flags = WriteFlags { sync: true, ..WriteFlags::default() };
    let free = fs.store.persistent.blocks().free_hint();
    let mut at = 0;
    while at + 256 < free + 1100 {
        let written = fs.write(other, at * BLOCK, &fill(256 * BLOCK as usize, 7), flags, W)?;
        assert_eq!(written as u64, 256 * BLOCK);
        at += 256;
    }
    assert_eq!(fs.status()?.tiers[1].used_bytes, 0, "a write needed room below");
    fs.sync()?;
    pool.assert_clean_after(&fs)
}

/// Pages of a file that waits after a failure, the oldest of all, kept pages of each other file.
#[test]
fn a_failing_file_keeps_no_lazy_page_of_a_second_file() -> FsResult<()> {
    let pool = SimulatedPool::new(16 << 20, 64);
    let fs = pool.mount_with(of_pages(lazy(), 2000));
    let (failing, other) = (create(&fs, ROOT, "failing"), create(&fs, ROOT, "other"));
    write(&fs, failing, 0, &fill(1500 * BLOCK as usize, 1))?;
    write(&fs, other, 0, &fill(64, 1))?;
    let now = fs.store.clock.monotonic_ns();
    fs.store.dram.write_back().errors.note(failing, Some(Home::Pm), &FsError::ReadOnly, now);
    assert!(lazy_round(&fs.store)?);
    assert_eq!(fs.store.dram.cache().count_dirty(other), 0);
    assert_eq!(pages(&fs, Home::Pm), 1500);
    pool.clock.advance(Duration::from_secs(40));
    fs.sync()?;
    pool.assert_clean_after(&fs)
}

/// An old page for a device, the first of its file, kept old lazy pages of the file, and so did the failure of the device.
#[test]
fn old_lazy_pages_go_behind_pages_for_a_device() -> FsResult<()> {
    for does_device_fail in [false, true] {
        let pool = SimulatedPool::new(4 << 20, 1024);
        let fs = pool.mount_with(lazy_if_pinned());
        let ino = make_lazy(&fs, "file", 0)?;
        write(&fs, ino, 0, &pattern(12 * BLOCK as usize, 3))?;
        fs.fsync(ino, false, W)?;
        write(&fs, ino, 10 * BLOCK, &fill(64, 4))?;
        fs.request_move(ino, MoveRequest::Unpin)?;
        while fs.request_step() == Next::Again {}
        write(&fs, ino, 0, &fill(BLOCK as usize, 5))?;
        assert_eq!((pages(&fs, Home::Block), pages(&fs, Home::Pm)), (1, 1));
        pool.clock.advance(Duration::from_secs(31));
        if does_device_fail {
            let now = fs.store.clock.monotonic_ns();
            fs.store.dram.write_back().errors.note(ino, Some(Home::Block), &FsError::ReadOnly, now);
        }
        let mut step = step_of(&fs, "terrace-lazy");
        while step.step() == Next::Again {}
        assert_eq!(
            (pages(&fs, Home::Block), pages(&fs, Home::Pm)),
            (1, 0),
            "device fails: {does_device_fail}"
        );
        pool.clock.advance(Duration::from_secs(40));
        fs.sync()?;
        pool.assert_clean_after(&fs)?;
    }
    Ok(())
}

/// Pages for PM that fail kept old pages for a device of their file, and were tried again before their pause ended.
#[test]
fn old_pages_for_a_device_go_behind_failing_lazy_pages() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 1024);
    let fs = pool.mount_with(lazy_if_pinned());
    let ino = make_lazy(&fs, "file", 0)?;
    write(&fs, ino, 0, &pattern(12 * BLOCK as usize, 3))?;
    fs.fsync(ino, false, W)?;
    write(&fs, ino, 0, &fill(64, 4))?;
    fs.request_move(ino, MoveRequest::Unpin)?;
    while fs.request_step() == Next::Again {}
    write(&fs, ino, 10 * BLOCK, &fill(BLOCK as usize, 5))?;
    assert_eq!((pages(&fs, Home::Block), pages(&fs, Home::Pm)), (1, 1));
    pool.clock.advance(Duration::from_secs(31));
    let now = fs.store.clock.monotonic_ns();
    fs.store.dram.write_back().errors.note(ino, Some(Home::Pm), &FsError::ReadOnly, now);
    let mut step = step_of(&fs, "terrace-writeb");
    while step.step() == Next::Again {}
    assert_eq!((pages(&fs, Home::Block), pages(&fs, Home::Pm)), (0, 1));
    pool.clock.advance(Duration::from_secs(40));
    fs.sync()?;
    pool.assert_clean_after(&fs)
}

/// A writer that takes set-id bits away kept its room in DRAM while a device gave an edge line.
#[test]
fn room_in_dram_is_given_back_while_a_write_asks_a_device() -> FsResult<()> {
    let file = TrackedFile::cold(
        SimulatedPool::new(4 << 20, 1024),
        of_pages(lazy(), 8),
        &pattern(8 * BLOCK as usize, 2),
    )?;
    let (fs, pool) = (&file.fs, &file.pool);
    let other = create(fs, ROOT, "other");
    pool.device.stall();
    let flags = WriteFlags { kill_set_id: true, ..WriteFlags::default() };
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| fs.write(file.ino, 100, &fill(7 * BLOCK as usize, 7), flags, W));
        await_that("the device has no request", || pool.device.waiting() > 0);
        let (room, promised) = (fs.store.dram.write_back().admitted_pages(), fs.accounts()?.promised_blocks);
        pool.device.unstall();
        writer.join().unwrap()?;
        assert_eq!((room, promised), (0, 0));
        write(fs, other, 0, &fill(64, 1))
    })?;
    fs.sync()?;
    pool.assert_clean_after(fs)
}

/// Lazy pages that need a page of the catalog from a device stayed until they were old, and no lazy write found room.
#[test]
fn lazy_pages_with_metadata_below_go_when_the_buffer_is_full() -> FsResult<()> {
    let file = TrackedFile::cold(
        SimulatedPool::new(16 << 20, 2048),
        of_pages(lazy(), 2),
        &pattern(1100 * BLOCK as usize, 2),
    )?;
    let (fs, pool) = (&file.fs, &file.pool);
    // The checksums of so many blocks fill several leaves.
    for block in 0..2 {
        fs.write(file.ino, block * BLOCK, &fill(64, 9), WriteFlags::default(), W)?;
    }
    assert_eq!(pages(fs, Home::Pm), 2);
    assert!(fs.lower_metadata_now()? > 0);
    let blocked = lazy_round(&fs.store);
    assert!(matches!(blocked, Err(FsError::WouldBlock)), "{blocked:?}");
    assert_eq!(step_of(fs, "terrace-writeb").step(), Next::Again);
    assert!(pages(fs, Home::Pm) < 2);
    fs.sync()?;
    pool.assert_clean_after(fs)
}
