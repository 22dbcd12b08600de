//! Unreadable sectors of a device, and the blocks beside them.

use super::helpers::{BLOCK, EIO, W, quiet};
use terrace_engine::{FsResult, MountOptions, Movements, PolicyKind, RequestState};
use terrace_media::block::{Operation, Times};
use terrace_placement::Home;
use terrace_testkit::{ROOT, SimulatedPool, TwoTierPool, bytes_on, create, find, pattern, write};

/// A bad sector under the hidden cold copy of a block with a dirty page failed reads of its neighbours,
/// although no read needs that sector.
#[test]
fn a_bad_sector_beneath_a_dirty_page_fails_no_read_of_its_neighbours() {
    let pool = SimulatedPool::new(8 << 20, 4096);
    let fs = pool.mount_with(MountOptions { home: Some(Home::Block), ..MountOptions::default() });
    let ino = create(&fs, ROOT, "file");
    let mut content = pattern(8 * BLOCK as usize, 1);
    write(&fs, ino, 0, &content).unwrap();
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
    write(&fs, ino, 5 * BLOCK, &[9; BLOCK as usize]).unwrap();
    assert_eq!(fs.whereabouts(ino).unwrap().dirty_bytes, BLOCK);
    fs.read(ino, 4 * BLOCK, &mut found, W).unwrap();
    assert!(found == content[4 * BLOCK as usize..7 * BLOCK as usize]);
}

/// A read of several blocks failed with EIO at every attempt because of a bad sector under the hidden cold
/// copy of one of them.
#[test]
fn a_bad_sector_beneath_pm_fails_no_read() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 256);
    let options = MountOptions { policy: Some(PolicyKind::STATIC), cache_bytes: 0, ..Default::default() };
    let fs = pool.mount_with(options);
    let ino = create(&fs, ROOT, "a");
    let mut content = pattern(12 * BLOCK as usize, 1);
    write(&fs, ino, 0, &content)?;
    fs.sync_to(1, &mut |_| {})?;
    let middle = (5 * BLOCK) as usize..(6 * BLOCK) as usize;
    content[middle.clone()].fill(7);
    write(&fs, ino, 5 * BLOCK, &content[middle])?;
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

/// A bad sector kept all partial shadows over its device run in PM.
#[test]
fn neighbours_of_a_bad_sector_are_demoted() -> FsResult<()> {
    for sector in (0..256).step_by(3) {
        let pool = SimulatedPool::new(2 << 20, 256);
        let fs = pool.mount_with(MountOptions { policy: Some(PolicyKind::STATIC), ..Default::default() });
        let ino = create(&fs, ROOT, "a");
        write(&fs, ino, 0, &pattern(12 * BLOCK as usize, 1))?;
        fs.sync_to(1, &mut |_| {})?;
        (0..12).try_for_each(|block| write(&fs, ino, block * BLOCK, &[9; 64]))?;
        assert_eq!(bytes_on(&fs, ino)[0], 12 * BLOCK);
        pool.device.fail_next(Operation::Read, sector..sector + 1, 5, Times::Forever);
        let _ = fs.sync_to(1, &mut |_| {});
        assert!(bytes_on(&fs, ino)[0] <= BLOCK, "sector {sector}: {:?}", bytes_on(&fs, ino));
    }
    Ok(())
}

/// An unreadable sector made every block up to 2 MiB before it unreadable, because one request read the
/// wanted block and the blocks ahead of it.
#[test]
fn a_bad_sector_fails_reads_of_its_own_block_alone() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 1025);
    let fs = pool.mount_with(quiet());
    let ino = create(&fs, ROOT, "a");
    let content = pattern(40 * BLOCK as usize, 1);
    write(&fs, ino, 0, &content)?;
    fs.sync_to(1, &mut |_| {})?;
    fs.unmount()?;
    drop(fs);
    let fs = pool.mount_with(quiet());
    pool.device.fail_next(Operation::Read, 8..9, EIO, Times::Forever);
    let mut failed = 0;
    for block in 0..40 {
        let mut found = vec![0; BLOCK as usize];
        match fs.read(find(&fs, "a"), block * BLOCK, &mut found, W) {
            Ok(_) => assert!(found == content[(block * BLOCK) as usize..][..BLOCK as usize]),
            Err(error) => {
                assert_eq!(error.errno(), EIO);
                failed += 1;
            }
        }
    }
    assert_eq!(failed, 1);
    Ok(())
}

/// No neighbour of an unreadable sector could be moved by a requested movement.
#[test]
fn neighbours_of_a_bad_sector_follow_a_requested_movement() -> FsResult<()> {
    let pool = TwoTierPool::new(4 << 20, 1024, 1024);
    let fs = pool.mount();
    let ino = create(&fs, ROOT, "a");
    write(&fs, ino, 0, &pattern(64 * BLOCK as usize, 1))?;
    pool.migrate_all(&fs, ino, 1);
    pool.devices[0].fail_next(Operation::Read, 8..9, EIO, Times::Forever);
    let report = pool.migrate(&fs, ino, 2);
    assert_eq!((report.state, report.left_bytes), (RequestState::Failed, BLOCK), "{report:?}");
    assert_eq!(bytes_on(&fs, ino), [0, BLOCK, 63 * BLOCK]);
    let report = pool.migrate(&fs, ino, 0);
    assert_eq!((report.state, report.left_bytes), (RequestState::Failed, BLOCK), "{report:?}");
    assert_eq!(bytes_on(&fs, ino), [63 * BLOCK, BLOCK, 0]);
    Ok(())
}
