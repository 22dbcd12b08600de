//! Rounds of lazy write-back, and writers that wait for their room (docs/write-buffer.md).

use super::helpers::{BLOCK, SYNC, W, await_that};
use super::lazy::{lazy, lazy_if_pinned, make_lazy, pages};
use super::metadata_words::first_owned;
use std::sync::Arc;
use std::time::Duration;
use terrace_engine::{
    Allocate, BufferOptions, Engine, FormatOptions, FsError, FsResult, MountOptions, MoveRequest, Movements,
    Simulation, WriteFlags,
};
use terrace_format::map_kind::MapKind;
use terrace_format::table::Owner;
use terrace_format::{BLOCK_SIZE, Corrupt, FileBlock};
use terrace_fs::write_back::rounds::lazy_round;
use terrace_placement::Home;
use terrace_runtime::{Next, Step};
use terrace_store::inode::slot::load;
use terrace_testkit::{
    ROOT, SimulatedPool, TrackedFile, create, fill, format_options, pattern, read_all, write,
};
use terrace_wal::Error;

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
    let free = fs.store.persistent.blocks().free_hint();
    let mut at = 0;
    while at + 256 < free + 1100 {
        let written = fs.write(other, at * BLOCK, &fill(256 * BLOCK as usize, 7), SYNC, W)?;
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

/// A page that failed at each try kept the pages before it and most pages behind it from PM.
#[test]
fn a_failing_page_keeps_no_page_of_its_file() -> FsResult<()> {
    const FAILING: u64 = 50;
    let pool = SimulatedPool::new(16 << 20, 64);
    let fs = pool.mount_with(lazy());
    let ino = create(&fs, ROOT, "file");
    write(&fs, ino, 0, &fill(400 * BLOCK as usize, 1))?;
    fs.fsync(ino, false, W)?;
    let lost = first_owned(&pool, Owner::File { ino, block: FileBlock(FAILING), unwritten: false });
    pool.pm.poison(lost.offset().0..lost.offset().0 + BLOCK_SIZE);
    write(&fs, ino, FAILING * BLOCK, &fill(64, 2))?;
    for block in (0..400).filter(|block| *block != FAILING) {
        write(&fs, ino, block * BLOCK, &fill(64, 2))?;
    }
    assert_eq!(pages(&fs, Home::Pm), 400);
    while lazy_round(&fs.store).is_ok_and(|progress| progress) {}
    assert_eq!(pages(&fs, Home::Pm), 1);
    let (told, now) = (fs.fsync(ino, false, W), fs.store.clock.monotonic_ns());
    assert_eq!(told.map_err(|error| error.errno()), Err(5));
    let errors = &fs.store.dram.write_back().errors;
    assert!(!errors.is_waiting(ino, Home::Block, now), "pages for a device wait for a failure in PM");
    pool.pm.clear_poison();
    pool.clock.advance(Duration::from_secs(2));
    assert!(lazy_round(&fs.store)?, "the pause is longer than PM takes");
    assert_eq!(pages(&fs, Home::Pm), 0);
    pool.assert_clean_after(&fs)
}

/// A writer for a device waited ten seconds beside a buffer full of lazy pages that fail, and got the error of their file.
#[test]
fn a_buffer_of_failing_lazy_pages_sends_a_writer_to_pm() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 1024);
    let fs = pool.mount_with(of_pages(lazy_if_pinned(), 8));
    let failing = (0..8).map(|number| make_lazy(&fs, &format!("failing {number}"), 0));
    let failing = failing.collect::<FsResult<Vec<_>>>()?;
    let other = create(&fs, ROOT, "other");
    assert_eq!(pages(&fs, Home::Pm), 8);
    let (now, damage) = (fs.store.clock.monotonic_ns(), Corrupt::new("block", "sound", "damaged"));
    let error = FsError::Engine(Error::Corrupt(damage));
    for ino in failing {
        fs.store.dram.write_back().errors.note(ino, Some(Home::Pm), &error, now);
    }
    write(&fs, other, 0, &fill(4 * BLOCK as usize, 3))?;
    assert_eq!((pages(&fs, Home::Pm), pages(&fs, Home::Block)), (8, 0));
    pool.clock.advance(Duration::from_secs(2));
    fs.sync()?;
    pool.assert_clean_after(&fs)
}

/// An extent map had room for each lazy write alone, and none for all of a file: in a full PM fsync told of a lack of space.
#[test]
fn lazy_pages_of_many_files_have_room_in_an_extent_map() -> FsResult<()> {
    let options = FormatOptions { map: MapKind::Extent, ..format_options(1) };
    let pool = SimulatedPool::formatted(16 << 20, 64, &options);
    let fs = pool.mount_with(lazy());
    let files: Vec<_> = (0..400).map(|number| create(&fs, ROOT, &format!("file {number}"))).collect();
    let other = create(&fs, ROOT, "other");
    for block in [0, 10, 20] {
        files.iter().try_for_each(|ino| write(&fs, *ino, block * BLOCK, &fill(64, 7)))?;
    }
    assert_eq!(pages(&fs, Home::Pm), 1200);
    let mut at = 0;
    while let Ok(written) = fs.write(other, at, &fill(BLOCK as usize, 3), SYNC, W) {
        at += written as u64;
    }
    fs.sync()?;
    assert_eq!(pages(&fs, Home::Pm), 0);
    for ino in files {
        assert_eq!(read_all(&fs, ino)?.len() as u64, 20 * BLOCK + 64);
    }
    pool.assert_clean_after(&fs)
}

/// Promises of pages that another thread was writing back counted for nothing, and a writer got ENOSPC before they were free.
#[test]
fn a_writer_without_space_waits_for_promises_in_flight() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 64);
    let fs = pool.mount_with(lazy());
    let (lazily, other) = (create(&fs, ROOT, "lazily"), create(&fs, ROOT, "other"));
    for value in [1, 2] {
        fs.sync()?;
        write(&fs, lazily, 0, &fill(40 * BLOCK as usize, value))?;
    }
    let cache = fs.store.dram.cache();
    let copies: Vec<_> = {
        let _guard = fs.store.inodes.locks().read(lazily);
        let inode = load(&fs.store, lazily)?;
        (0..40).filter_map(|block| cache.dirty(inode.page_key(FileBlock(block)))).collect()
    };
    assert_eq!(copies.len(), 40);
    cache.mark_in_flight(&copies, true);
    let flight = fs.store.dram.write_back().begin_lazy();
    let put = |at| fs.write(other, at, &fill(BLOCK as usize, 3), SYNC, W);
    let mut at = 0;
    while let Ok(written) = put(at) {
        at += written as u64;
    }
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| put(at));
        await_that("the writer does not wait", || {
            writer.is_finished() || fs.store.dram.write_back().waiting_threads() > 0
        });
        cache.mark_in_flight(&copies, false);
        drop(flight);
        assert_eq!(writer.join().unwrap()? as u64, BLOCK);
        FsResult::Ok(())
    })?;
    pool.assert_clean_after(&fs)
}

/// The failure of a page for PM counted as one of the device where an older page behind the durable end is for a device.
#[test]
fn the_failure_of_a_page_for_pm_pauses_pages_for_pm_alone() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 1024);
    let fs = pool.mount_with(lazy_if_pinned());
    let ino = make_lazy(&fs, "file", 0)?;
    write(&fs, ino, 0, &pattern(12 * BLOCK as usize, 3))?;
    fs.fsync(ino, false, W)?;
    write(&fs, ino, 20 * BLOCK, &fill(64, 4))?;
    let lost = first_owned(&pool, Owner::File { ino, block: FileBlock(0), unwritten: false });
    pool.pm.poison(lost.offset().0..lost.offset().0 + BLOCK_SIZE);
    write(&fs, ino, 0, &fill(64, 4))?;
    fs.request_move(ino, MoveRequest::Unpin)?;
    while fs.request_step() == Next::Again {}
    write(&fs, ino, 13 * BLOCK, &fill(BLOCK as usize, 5))?;
    assert_eq!((pages(&fs, Home::Block), pages(&fs, Home::Pm)), (1, 2));
    assert!(lazy_round(&fs.store).is_err());
    let (errors, now) = (&fs.store.dram.write_back().errors, fs.store.clock.monotonic_ns());
    assert_eq!([Home::Pm, Home::Block].map(|home| errors.is_waiting(ino, home, now)), [true, false]);
    pool.pm.clear_poison();
    pool.clock.advance(Duration::from_secs(40));
    fs.sync()?;
    pool.assert_clean_after(&fs)
}

/// Scattered lazy pages in an unwritten extent asked an extent map for more room than it makes at once, until fsync said EIO.
#[test]
fn scattered_lazy_pages_of_an_unwritten_extent_go_in_pieces() -> FsResult<()> {
    let options = FormatOptions { map: MapKind::Extent, ..format_options(1) };
    let pool = SimulatedPool::formatted(64 << 20, 64, &options);
    let fs = pool.mount_with(lazy());
    let ino = create(&fs, ROOT, "file");
    fs.fallocate(ino, 0, 1200 * BLOCK, Allocate::Extend, W)?;
    for block in (0..1200).step_by(2) {
        write(&fs, ino, block * BLOCK, &fill(64, 7))?;
    }
    assert_eq!(pages(&fs, Home::Pm), 600);
    fs.fsync(ino, false, W)?;
    assert_eq!(pages(&fs, Home::Pm), 0);
    pool.assert_clean_after(&fs)
}
