//! Space: preallocation, full tiers, and the counts of statfs.

use super::helpers::W;
use terrace_engine::{Allocate, Engine, FsResult, Movements, SetAttributes, Simulation, Wait, WriteFlags};
use terrace_format::Ino;
use terrace_testkit::{ROOT, SimulatedPool, atomic_blocks, create, write};

fn fallocate(fs: &Engine, ino: Ino, blocks: u64) -> FsResult<()> {
    fs.fallocate(ino, 0, blocks * 4096, Allocate::Extend, W)
}

/// fallocate answered ENOSPC when the lower tier was full, although PM had room (I9).
#[test]
fn fallocate_takes_pm_when_the_tier_is_full() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 64);
    let fs = pool.mount();
    let (filler, ino) = (create(&fs, ROOT, "filler"), create(&fs, ROOT, "a"));
    write(&fs, filler, 0, &[2; 60 * 4096])?;
    fs.sync_to(1, &mut |_| {})?;
    fallocate(&fs, ino, 100)?;
    let found = fs.whereabouts(ino)?;
    assert_eq!((found.tiers[0].1, found.tiers[1].1), (97 * 4096, 3 * 4096), "{found:?}");
    assert_eq!(fs.getattr(ino)?.blocks, 800);
    let mut content = vec![1; 100 * 4096];
    fs.read(ino, 0, &mut content, W)?;
    assert!(content.iter().all(|byte| *byte == 0));
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

/// PM full of preallocated blocks stayed full: migration did not demote them, and a write into such a file
/// got ENOSPC although the lower tier had room again. Unlink and truncate never get ENOSPC.
#[test]
fn preallocated_blocks_are_demoted_from_a_full_pm() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 512);
    let fs = pool.mount();
    let (filler, ino) = (create(&fs, ROOT, "filler"), create(&fs, ROOT, "a"));
    fallocate(&fs, filler, 511)?;
    let mut blocks = 511;
    while fallocate(&fs, ino, blocks).is_err() {
        blocks -= 1;
    }
    assert!(blocks > 350, "only {blocks}");
    // PM and the lower tier are full now.
    let full = write(&fs, filler, 0, &[1; 100 * 4096]);
    assert_eq!(full.map_err(|error| error.errno()), Err(28));
    fs.setattr(filler, &SetAttributes { size: Some(4096), ..Default::default() }, W)?;
    fs.unlink(ROOT, b"filler", W)?;
    fs.forget(filler, 1);
    fs.run_background(1000);
    write(&fs, ino, 0, &vec![3; blocks as usize * 4096])?;
    let mut content = vec![0; blocks as usize * 4096];
    fs.read(ino, 0, &mut content, W)?;
    assert!(content.iter().all(|byte| *byte == 3));
    fs.unmount()?;
    drop(fs);
    pool.assert_clean();
    Ok(())
}

/// statfs scanned the whole block table and loaded all chunk bitmaps in the first thread that asked, a
/// request thread (L2). Now it answers `WouldBlock` until the scan after the mount has ended.
#[test]
fn statfs_does_not_scan_on_a_request_thread() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 4096);
    let fs = pool.mount();
    let refused = fs.statfs(Wait::Never).map(|_| ());
    assert_eq!(refused.map_err(|error| error.errno()), Err(11));
    fs.run_background(100);
    let counted = fs.statfs(Wait::Never)?;
    drop(fs);
    assert_eq!(counted.blocks, pool.mount().statfs(W)?.blocks);
    Ok(())
}

/// A write of several pieces answered ENOSPC when a later piece failed, although the first pieces were in the
/// file.
#[test]
fn a_write_with_a_failed_later_piece_is_short() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 64);
    let fs = pool.mount();
    let (filler, ino) = (create(&fs, ROOT, "filler"), create(&fs, ROOT, "a"));
    let mut blocks = 0;
    while write(&fs, filler, blocks * 4096, &[2; 4096]).is_ok() {
        blocks += 1;
    }
    // There is room for a piece, not for two.
    let piece = atomic_blocks() * 4096;
    fs.setattr(
        filler,
        &SetAttributes { size: Some((blocks - piece as u64 / 4096 - 24) * 4096), ..Default::default() },
        W,
    )?;
    fs.run_background(100);
    let written = fs.write(ino, 0, &[4; 140 * 4096], WriteFlags::default(), W)?;
    assert_eq!(written, piece);
    assert_eq!(fs.getattr(ino)?.size, piece as u64);
    let refused = fs.write(ino, piece as u64, &[4; 84 * 4096], WriteFlags::default(), W);
    assert_eq!(refused.map_err(|error| error.errno()), Err(28));
    Ok(())
}
