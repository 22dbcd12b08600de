//! Devices of lower tiers that fail or hang.

use super::helpers::{BLOCK, W, await_that};
use std::sync::Arc;
use std::time::Duration;
use terrace_engine::{
    BlockRange, BufferOptions, Engine, FsResult, MetadataMoves, MountOptions, Movements, Simulation,
};
use terrace_format::FileBlock;
use terrace_media::block::{Operation, Times};
use terrace_placement::Home;
use terrace_runtime::thread;
use terrace_testkit::{ROOT, SimulatedPool, TwoTierPool, bytes_on, create, find, pattern, write};

/// After a failed demotion the pause outlived the next success: `sync_to` waited for its end, and no step
/// advanced the clock to it.
#[test]
fn a_successful_demotion_ends_the_pause_after_a_failure() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 4096);
    let fs = pool.mount();
    let ino = create(&fs, ROOT, "a");
    write(&fs, ino, 0, &vec![1; 440 * 4096])?;
    pool.device.fail_next(Operation::Write, 0..u64::MAX, 5, Times::Count(1));
    fs.run_background(2);
    assert!(fs.status()?.migration.reason.is_some());
    // The writer needs space and demotes blocks itself.
    write(&fs, ino, 440 * 4096, &vec![2; 60 * 4096])?;
    assert!(fs.status()?.migration.reason.is_none());
    fs.sync_to(1, &mut |_| {})?;
    let found = fs.whereabouts(ino)?;
    assert!(found.tiers[0].1 <= found.clean_bytes, "{found:?}");
    Ok(())
}

/// `sync_to` a failing device answered ENOSPC, whatever its error.
#[test]
fn sync_to_returns_the_error_of_the_device() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 4096);
    let fs = pool.mount();
    let ino = create(&fs, ROOT, "a");
    write(&fs, ino, 0, &[1; 4096])?;
    pool.device.fail_next(Operation::Write, 0..u64::MAX, 5, Times::Forever);
    let refused = fs.sync_to(1, &mut |_| {});
    assert_eq!(refused.map_err(|error| error.errno()), Err(5));
    Ok(())
}

/// Only two demoted groups could be in flight: both went to a device that hung, and all writers waited
/// although another tier had room. Now three groups may be in flight, or four when some are small; only the
/// writers that demote these groups wait.
#[test]
fn a_hanging_device_does_not_keep_writers_from_other_tiers() {
    // The sound device has room for all writers: beside busy processors none ends before the others.
    let pool = TwoTierPool::new(4 << 20, 4096, 8192);
    let fs = pool.mount_with(MountOptions { buffer: BufferOptions::of(0), ..MountOptions::default() });
    pool.devices[0].stall_at_most(Duration::from_secs(600));
    let (tell, told) = std::sync::mpsc::channel();
    let writers: Vec<_> = (0..6u8)
        .map(|number| {
            let (fs, tell) = (Arc::clone(&fs), tell.clone());
            let ino = create(&fs, ROOT, &format!("file-{number}"));
            let body = move || {
                (0..50).for_each(|at| write(&fs, ino, at << 16, &pattern(1 << 16, number)).unwrap());
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

/// A removed file with its cold extents on a device that hung held up the reclaimer: files removed after it
/// kept their blocks in PM, although they had no block on that device.
#[test]
fn removed_files_leave_pm_while_a_device_hangs() {
    let pool = TwoTierPool::new(32 << 20, 4096, 64);
    let fs = pool.mount();
    let below = create(&fs, ROOT, "below");
    // The checksums of so many blocks fill several leaves.
    write(&fs, below, 0, &pattern(1100 * BLOCK as usize, 1)).unwrap();
    fs.sync_to(1, &mut |_| {}).unwrap();
    let (one, other) = (create(&fs, ROOT, "one"), create(&fs, ROOT, "other"));
    [one, other].into_iter().for_each(|ino| write(&fs, ino, 0, &[1; 1 << 20]).unwrap());
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
    let pool = TwoTierPool::new(8 << 20, 1024, 1024);
    let fs =
        pool.mount_with(MountOptions { metadata_moves: MetadataMoves::Always, ..MountOptions::default() });
    for index in 0..1000 {
        fs.forget(create(&fs, ROOT, &format!("file-{index}")), 1);
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
    let pool = TwoTierPool::new(8 << 20, 1024, 1024);
    let fs = pool.mount_with(MountOptions {
        home: Some(Home::Block),
        buffer: BufferOptions::of(20 * BLOCK),
        ..MountOptions::default()
    });
    let [held, other, third] = ["held", "other", "third"].map(|name| create(&fs, ROOT, name));
    let dirty = |ino| fs.whereabouts(ino).unwrap().dirty_bytes / BLOCK;
    write(&fs, held, 0, &pattern(10 * BLOCK as usize, 1)).unwrap();
    pool.devices[0].stall_at_most(Duration::from_secs(600));
    let steps = fs.background_steps().into_iter().map(|(step, _)| step);
    let mut writers = steps.filter(|step| step.name().starts_with("terrace-writeb"));
    let (mut first, mut second) = (writers.next().unwrap(), writers.next().unwrap());
    drop(writers);
    pool.clock.advance(Duration::from_secs(31));
    let hanging = thread::spawn("writer", move || _ = first.step()).unwrap();
    await_that("the device is not asked", || pool.devices[0].waiting() > 0);
    write(&fs, other, 0, &pattern(5 * BLOCK as usize, 2)).unwrap();
    second.step();
    assert_eq!((dirty(held), dirty(other)), (10, 5), "nobody is late yet");
    pool.clock.advance(Duration::from_secs(31));
    while second.step() == terrace_runtime::Next::Again {}
    assert_eq!((dirty(held), dirty(other)), (10, 0));
    // A writer that finds no room writes back pages that are not in flight.
    write(&fs, other, 5 * BLOCK, &pattern(10 * BLOCK as usize, 3)).unwrap();
    write(&fs, third, 0, &pattern(5 * BLOCK as usize, 4)).unwrap();
    assert_eq!((dirty(held), dirty(other), dirty(third)), (10, 0, 5));
    assert_eq!(bytes_on(&fs, other), [0, 0, 15 * BLOCK]);
    pool.devices[0].unstall();
    hanging.join().unwrap();
    fs.unmount().unwrap();
    pool.assert_clean();
}

/// Demotion of metadata chose a device that fails writes again and again, although another device was sound.
#[test]
fn metadata_is_demoted_beside_a_failing_device() {
    let pool = TwoTierPool::new(8 << 20, 1024, 1024);
    let fs =
        pool.mount_with(MountOptions { metadata_moves: MetadataMoves::Always, ..MountOptions::default() });
    for index in 0..1000 {
        fs.forget(create(&fs, ROOT, &format!("file-{index}")), 1);
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
    let pool = TwoTierPool::new(4 << 20, 200, 1024);
    let fs = pool.mount();
    let ino = create(&fs, ROOT, "file");
    let content = pattern(300 * BLOCK as usize, 1);
    write(&fs, ino, 0, &content).unwrap();
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

/// The pages of a map did not fit into PM, and a write failed with ENOSPC although a lower tier had room: the search for blocks
/// was left out for these pages alone. With many writers it happened in a twentieth of the runs.
#[test]
fn room_for_a_map_is_made_by_demotion() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 4096);
    let fs = pool.mount_with(MountOptions { buffer: BufferOptions::of(0), ..MountOptions::default() });
    let filler = create(&fs, ROOT, "filler");
    let mut filled = 0;
    // Each file takes one block and the pages of its map; the filler leaves every number of free blocks in turn.
    for number in 0..60u64 {
        for _ in 0..8 + number % 7 {
            write(&fs, filler, filled * BLOCK, &[1; BLOCK as usize])?;
            filled += 1;
        }
        let far = create(&fs, ROOT, &format!("far-{number}"));
        write(&fs, far, 1 << 40, &[2; BLOCK as usize])?;
    }
    assert!(fs.status()?.migration.demoted_bytes > 0, "PM was never full");
    fs.unmount()?;
    pool.assert_clean();
    Ok(())
}
