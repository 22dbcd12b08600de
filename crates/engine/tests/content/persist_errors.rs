//! A `persist` that fails, as on a medium whose journal device fails: no call acknowledges what may not be durable (I5), and no
//! copy on another medium is destroyed (design 3).

use terrace_engine::{
    Engine, FsError, FsResult, InPlace, MountOptions, Movements, PolicyKind, Simulation, Wait, WriteFlags,
    read_superblock,
};
use terrace_format::{DeviceId, Ino};
use terrace_media::block::Times;
use terrace_testkit::{ROOT, SimulatedPool, TrackedFile, create};

const W: Wait = Wait::Allowed;
const BLOCK: usize = 4096;
const SYNCED: WriteFlags = WriteFlags { sync: true, kill_set_id: false, pages: false };

fn errno<T>(result: FsResult<T>) -> i32 {
    result.err().map_or(0, |error| error.errno())
}

/// A pool whose next `persist` fails, and a file of one block.
fn failing(fs: &Engine, pool: &SimulatedPool) -> Ino {
    let file = create(fs, ROOT, "file");
    fs.write(file, 0, &[1; BLOCK], WriteFlags::default(), W).unwrap();
    fs.fsync(file, false, W).unwrap();
    pool.pm.fail_persist(Some(Times::Count(1)));
    file
}

#[test]
fn fsync_fails_and_all_changes_end_after_a_failed_persist() {
    let pool = SimulatedPool::new(4 << 20, 4096);
    pool.pm.set_persist_only(true);
    let fs = pool.mount_with(MountOptions::default());
    let file = failing(&fs, &pool);
    fs.write(file, 0, &[2; BLOCK], WriteFlags::default(), W).unwrap();
    assert_eq!(errno(fs.fsync(file, false, W)), libc::EIO);
    // The fault was for one call; a later fsync would be believed to cover the write before.
    assert_eq!(errno(fs.fsync(file, false, W)), libc::EIO);
    assert_eq!(errno(fs.fsync(ROOT, false, W)), libc::EIO);
    assert_eq!(errno(fs.write(file, 0, &[3; BLOCK], WriteFlags::default(), W)), libc::EROFS);
    let mut found = [0; BLOCK];
    assert_eq!(fs.read(file, 0, &mut found, W).unwrap(), BLOCK);
    assert_eq!(found, [2; BLOCK], "reads go on");
    assert!(fs.is_stopped());
    drop(fs);
    pool.assert_clean();
}

#[test]
fn a_synchronous_write_fails_with_its_persist() {
    for (offset, length) in [(0, BLOCK), (100, 50), (0, 3 * BLOCK)] {
        let pool = SimulatedPool::new(4 << 20, 4096);
        pool.pm.set_persist_only(true);
        let fs = pool.mount_with(MountOptions::default());
        let file = failing(&fs, &pool);
        let written = fs.write(file, offset, &vec![2; length], SYNCED, W);
        assert!(matches!(written, Err(FsError::NotDurable)), "{length} bytes at {offset}: {written:?}");
    }
}

#[test]
fn recovery_and_unmount_tell_a_failed_persist() {
    let pool = SimulatedPool::new(4 << 20, 4096);
    pool.pm.set_persist_only(true);
    let fs = pool.mount_with(MountOptions::default());
    failing(&fs, &pool);
    assert_eq!(errno(fs.unmount()), libc::EIO);
    drop(fs);
    pool.pm.fail_persist(Some(Times::Count(1)));
    let (superblock, _) = read_superblock(&*pool.pm, true).unwrap();
    let mounted = Engine::mount(pool.media(), superblock, MountOptions::default(), pool.clock.clone());
    assert_eq!(errno(mounted), libc::EIO);
    let fs = pool.mount_with(MountOptions::default());
    fs.unmount().unwrap();
    drop(fs);
    pool.assert_clean();
}

#[test]
fn no_cold_copy_is_written_over_after_a_failed_persist() {
    let in_place = InPlace { extent_blocks: 8, one_of: 8 };
    let options = || MountOptions { policy: Some(PolicyKind::STATIC), in_place, ..Default::default() };
    let content: Vec<u8> = (0..60 * BLOCK).map(|at| (at / 7) as u8).collect();
    let mut file = TrackedFile::cold(SimulatedPool::new(2 << 20, 1025), options(), &content).unwrap();
    file.write(3 * BLOCK, &[1; BLOCK]).unwrap();
    let device = &file.pool.device;
    let writes = device.counters().writes;
    file.pool.pm.fail_persist(Some(Times::Count(1)));
    assert!(file.fs.sync_to(1, &mut |_| {}).is_err());
    assert_eq!(device.counters().writes, writes, "a cold copy was torn");
    file.assert_content();
}

#[test]
fn freed_device_blocks_stay_unused_after_a_failed_persist() {
    let options = || MountOptions { policy: Some(PolicyKind::STATIC), ..Default::default() };
    let content: Vec<u8> = vec![5; 60 * BLOCK];
    let pool = SimulatedPool::new(2 << 20, 1025);
    pool.pm.set_persist_only(true);
    let mut file = TrackedFile::cold(pool, options(), &content).unwrap();
    let space = std::sync::Arc::clone(file.fs.store.devices.space());
    let all = [DeviceId(0)];
    let free = space.totals(&all).unwrap().free;
    file.pool.pm.fail_persist(Some(Times::Forever));
    file.set_size(0).unwrap();
    file.fs.run_background(1000);
    let claims = std::iter::from_fn(|| space.allocate(&all, 16).unwrap());
    assert_eq!(claims.map(|run| run.length).sum::<u64>(), free);
    assert!(file.fs.is_stopped());
}

/// A claim on a device without other room persists the freeing records of waiting runs, and takes the runs afterwards (T6).
#[test]
fn claims_on_a_full_device_persist_freeing_records_first() {
    let options = || MountOptions { policy: Some(PolicyKind::STATIC), ..Default::default() };
    let content: Vec<u8> = vec![5; 60 * BLOCK];
    let pool = SimulatedPool::new(2 << 20, 1025);
    pool.pm.set_persist_only(true);
    let mut file = TrackedFile::cold(pool, options(), &content).unwrap();
    let space = std::sync::Arc::clone(file.fs.store.devices.space());
    let all = [DeviceId(0)];
    let free = space.totals(&all).unwrap().free;
    file.set_size(0).unwrap();
    file.fs.run_background(1000);
    assert!(space.totals(&all).unwrap().free >= free + 60, "df counts them at once");
    let fences = || {
        file.pool
            .pm
            .clock()
            .ordering()
            .points()
            .iter()
            .filter(|(point, _)| point.to_string().contains("chunk_space"))
            .count()
    };
    assert_eq!(fences(), 0, "room elsewhere needs no persist");
    let mut claimed = 0;
    while let Some(run) = space.allocate(&all, 16).unwrap() {
        claimed += run.length;
        assert!(claimed <= free || fences() > 0, "blocks of a record that may be lost are claimed");
    }
    assert!(claimed >= free + 60);
}

/// Bitmaps loaded after a free once gave its blocks out before the freeing record was durable (T6).
#[test]
fn bitmaps_loaded_after_a_free_are_published_behind_a_persist() {
    let options = || MountOptions { policy: Some(PolicyKind::STATIC), ..Default::default() };
    let content: Vec<u8> = vec![5; 60 * BLOCK];
    let pool = SimulatedPool::new(2 << 20, 1025);
    pool.pm.set_persist_only(true);
    let mut file = TrackedFile::cold(pool, options(), &content).unwrap();
    let space = std::sync::Arc::clone(file.fs.store.devices.space());
    assert!(!space.is_loaded());
    file.pool.pm.clock().ordering().forget();
    file.set_size(0).unwrap();
    while space.load_step().unwrap() {}
    let points = file.pool.pm.clock().ordering().points();
    assert!(points.iter().any(|(point, _)| point.file.ends_with("space/src/load.rs")), "{points:?}");
}
