//! Lazy writes and their write-back into PM (docs/write-buffer.md).

use super::helpers::{BLOCK, W, await_that};
use std::sync::Arc;
use std::time::Duration;
use terrace_blocks::{Claim, Purpose};
use terrace_engine::{
    BufferOptions, Engine, FormatOptions, FsError, FsResult, LazyAblation, LazyOption, MountOptions,
    MoveRequest, Movements, PolicyKind, Simulation, Wait,
};
use terrace_format::map_kind::MapKind;
use terrace_format::{FileBlock, Ino};
use terrace_fs::write_back::rounds::{lazy_round, write_back_noted};
use terrace_placement::Home;
use terrace_runtime::Next;
use terrace_store::inode::slot::load;
use terrace_testkit::{ROOT, SimulatedPool, create, fill, format_options, pattern, read_all, write};

/// All writes but O_SYNC are lazy.
pub(crate) fn lazy() -> MountOptions {
    let buffer = BufferOptions { lazy: LazyOption::On, ablation: LazyAblation::Always, ..Default::default() };
    MountOptions { policy: Some(PolicyKind::STATIC), buffer, ..MountOptions::default() }
}

/// Writes wait for the device below, and lazily where their file is pinned to PM.
pub(crate) fn lazy_if_pinned() -> MountOptions {
    MountOptions { home: Some(Home::Block), ..lazy() }
}

pub(crate) fn pages(fs: &Engine, home: Home) -> u64 {
    fs.store.dram.cache().dirty_pages_of(home)
}

fn written_to_pm(fs: &Engine) -> u64 {
    fs.io_report().unwrap().tiers[0].sums.write_bytes
}

/// A file with a page for PM.
pub(crate) fn make_lazy(fs: &Engine, name: &str, offset: u64) -> FsResult<Ino> {
    let ino = create(fs, ROOT, name);
    fs.request_move(ino, MoveRequest::Pin { tier: 0 })?;
    while fs.request_step() == Next::Again {}
    write(fs, ino, offset, &fill(64, 1))?;
    Ok(ino)
}

/// A file with pages for the device, and a page for PM behind them.
fn make_mixed(fs: &Engine, name: &str) -> FsResult<Ino> {
    let ino = make_lazy(fs, name, 10 * BLOCK)?;
    fs.request_move(ino, MoveRequest::Unpin)?;
    while fs.request_step() == Next::Again {}
    write(fs, ino, 0, &fill(4 * BLOCK as usize, 2))?;
    Ok(ino)
}

/// A lazy write asked for room in the first block of PM, and the reach of a block table grew to that distance.
#[test]
fn a_lazy_write_raises_no_reach_of_a_table() -> FsResult<()> {
    for map in MapKind::ALL.iter().copied().filter(|map| map.has_reach()) {
        let pool = SimulatedPool::formatted(4 << 20, 1024, &FormatOptions { map, ..format_options(1) });
        let before = pool.check().summary.map.reach;
        assert!(before.is_some(), "{map:?}");
        let fs = pool.mount_with(lazy());
        let ino = create(&fs, ROOT, "file");
        for block in 0..40 {
            write(&fs, ino, block * BLOCK, &fill(BLOCK as usize, 7))?;
        }
        assert_eq!(pages(&fs, Home::Pm), 40);
        assert_eq!(pool.copied().check().summary.map.reach, before, "{map:?}");
        fs.fsync(ino, false, W)?;
        pool.assert_clean_after(&fs)?;
    }
    Ok(())
}

/// A round of fsync beside another write-back of the same pages counted as idle, and fsync put whole pages into PM.
#[test]
fn an_fsync_waits_for_lazy_pages_in_flight_elsewhere() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 1024);
    let fs = pool.mount_with(lazy());
    let ino = create(&fs, ROOT, "file");
    write(&fs, ino, 0, &pattern(BLOCK as usize, 5))?;
    fs.fsync(ino, false, W)?;
    write(&fs, ino, 0, &fill(64, 7))?;
    let copies: Vec<_> = {
        let _guard = fs.store.inodes.locks().read(ino);
        let inode = load(&fs.store, ino)?;
        fs.store.dram.cache().dirty(inode.page_key(FileBlock(0))).into_iter().collect()
    };
    assert_eq!(copies.len(), 1);
    fs.store.dram.cache().mark_in_flight(&copies, true);
    let before = written_to_pm(&fs);
    let synced = fs.fsync(ino, false, Wait::Never);
    assert!(matches!(synced, Err(FsError::WouldBlock)), "{synced:?}");
    assert_eq!((written_to_pm(&fs), pages(&fs, Home::Pm)), (before, 1));
    fs.store.dram.cache().mark_in_flight(&copies, false);
    fs.fsync(ino, false, Wait::Never)?;
    assert_eq!((written_to_pm(&fs) - before, pages(&fs, Home::Pm)), (64, 0));
    Ok(())
}

/// The empty range behind the durable end counted as a line, and the page lacked that line and went into PM whole.
#[test]
fn a_lazy_line_goes_alone_into_a_file_with_a_size_within_a_line() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 1024);
    let fs = pool.mount_with(lazy());
    let ino = create(&fs, ROOT, "file");
    let mut content = pattern(BLOCK as usize - 700, 5);
    write(&fs, ino, 0, &content)?;
    fs.fsync(ino, false, W)?;
    let before = written_to_pm(&fs);
    write(&fs, ino, 64, &fill(64, 7))?;
    content[64..128].fill(7);
    fs.fsync(ino, false, W)?;
    assert_eq!(written_to_pm(&fs) - before, 64);
    assert!(read_all(&fs, ino)? == content);
    pool.assert_clean_after(&fs)
}

/// An fsync on the thread of a request went on with pages for a device.
#[test]
fn a_request_thread_asks_no_device_in_write_back() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 1024);
    let fs = pool.mount_with(lazy_if_pinned());
    let ino = make_mixed(&fs, "file")?;
    assert_eq!((pages(&fs, Home::Block), pages(&fs, Home::Pm)), (4, 1));
    let before = pool.device.counters().writes;
    let written = write_back_noted(&fs.store, ino, Wait::Never);
    assert!(matches!(written, Err(FsError::WouldBlock)), "{written:?}");
    assert_eq!(pool.device.counters().writes, before);
    fs.fsync(ino, false, W)?;
    assert_eq!((pages(&fs, Home::Block), pages(&fs, Home::Pm)), (0, 0));
    pool.assert_clean_after(&fs)
}

/// A round of lazy write-back looked at the least recently written page alone. Behind pages in flight to a hanging device the
/// page has to stay, and pages of other files stayed with the page.
#[test]
fn lazy_pages_of_a_second_file_go_while_a_device_hangs() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 1024);
    let fs = pool.mount_with(lazy_if_pinned());
    let held = make_mixed(&fs, "held")?;
    pool.clock.advance(Duration::from_secs(31));
    let other = make_lazy(&fs, "other", 0)?;
    assert_eq!((pages(&fs, Home::Block), pages(&fs, Home::Pm)), (4, 2));
    pool.device.stall();
    let writer = Arc::clone(&fs);
    let done = std::thread::scope(|scope| {
        let hangs = scope.spawn(move || writer.fsync(held, false, W));
        await_that("the device has no request", || pool.device.waiting() > 0);
        let progress = lazy_round(&fs.store);
        let left = fs.store.dram.cache().count_dirty(other);
        pool.device.unstall();
        hangs.join().unwrap()?;
        Ok::<_, FsError>((progress?, left))
    })?;
    assert_eq!(done, (true, 0));
    pool.assert_clean_after(&fs)
}

/// A round that makes room for a request wrote pages for a device back, if they lay before the lazy page in its file.
#[test]
fn a_round_for_pm_asks_no_device() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 1024);
    let fs = pool.mount_with(lazy_if_pinned());
    make_mixed(&fs, "file")?;
    let before = pool.device.counters().writes;
    assert!(!lazy_round(&fs.store)?);
    assert_eq!(pool.device.counters().writes, before);
    assert_eq!((pages(&fs, Home::Block), pages(&fs, Home::Pm)), (4, 1));
    fs.sync()?;
    pool.assert_clean_after(&fs)
}

/// A write that no device had room for was tried behind three groups of lazy pages, and failed with ENOSPC behind more.
#[test]
fn a_write_without_room_below_goes_to_pm_behind_many_lazy_pages() -> FsResult<()> {
    let pool = SimulatedPool::new(16 << 20, 64);
    let fs = pool.mount_with(lazy_if_pinned());
    let ino = create(&fs, ROOT, "file");
    fs.request_move(ino, MoveRequest::Pin { tier: 0 })?;
    while fs.request_step() == Next::Again {}
    let content = fill(600 * BLOCK as usize, 3);
    write(&fs, ino, 0, &content)?;
    assert_eq!(pages(&fs, Home::Pm), 600);
    fs.request_move(ino, MoveRequest::Unpin)?;
    while fs.request_step() == Next::Again {}
    // More than the device has.
    let end = fill(100 * BLOCK as usize, 4);
    let mut done = 0;
    while done < end.len() {
        done += fs.write(ino, (content.len() + done) as u64, &end[done..], Default::default(), W)?;
    }
    fs.fsync(ino, false, W)?;
    assert!(read_all(&fs, ino)? == [content, end].concat());
    pool.assert_clean_after(&fs)
}

/// Old pages for PM were left to the steps for devices, and stayed while devices held all of these.
#[test]
fn old_lazy_pages_go_without_the_steps_for_devices() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 1024);
    let fs = pool.mount_with(lazy());
    let ino = create(&fs, ROOT, "file");
    write(&fs, ino, 0, &fill(64, 1))?;
    pool.clock.advance(Duration::from_secs(31));
    let mut steps = fs.background_steps().into_iter().map(|(step, _)| step);
    let mut step = steps.find(|step| step.name() == "terrace-lazy").unwrap();
    while step.step() == Next::Again {}
    assert_eq!(pages(&fs, Home::Pm), 0);
    pool.assert_clean_after(&fs)
}

/// With no free block but the promised ones a lazy page went whole into PM, and took pages for a device before it along, into
/// space that nobody had promised them: fsync and the unmount said ENOSPC, and accepted writes were lost.
#[test]
fn pages_for_a_device_before_a_lazy_page_need_no_free_block_of_pm() -> FsResult<()> {
    let pool = SimulatedPool::new(4 << 20, 1024);
    let fs = pool.mount_with(lazy_if_pinned());
    let ino = make_mixed(&fs, "file")?;
    assert_eq!((pages(&fs, Home::Block), pages(&fs, Home::Pm)), (4, 1));
    let content = read_all(&fs, ino)?;
    let blocks = fs.store.persistent.blocks();
    let held: Vec<_> = std::iter::from_fn(|| blocks.claim(1, Purpose::User).ok()).collect();
    let before = pool.device.counters().writes;
    fs.fsync(ino, false, W)?;
    assert_eq!((pages(&fs, Home::Block), pages(&fs, Home::Pm)), (0, 0));
    assert!(pool.device.counters().writes > before);
    assert!(read_all(&fs, ino)? == content);
    held.into_iter().for_each(Claim::give_back_all);
    pool.assert_clean_after(&fs)
}
