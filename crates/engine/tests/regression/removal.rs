//! Orphans and intents: removed content that is given back in the background.

use super::helpers::{W, ends};
use super::metadata_words::{filled, poison_map_node};
use std::sync::Arc;
use std::time::Duration;
use terrace_engine::{
    Allocate, FsResult, MetadataMoves, MountOptions, Movements, PolicyKind, SetAttributes, Simulation,
    WriteFlags,
};
use terrace_format::FileBlock;
use terrace_testkit::{CALLER, ROOT, SimulatedPool, create, has_other_map, write};

/// An orphan whose removal met an error of PM left the queue until the next mount.
#[test]
fn a_failed_removal_of_an_orphan_is_tried_again() -> FsResult<()> {
    if has_other_map() {
        return Ok(());
    }
    let pool = SimulatedPool::new(8 << 20, 4096);
    let fs = pool.mount();
    fs.run_background(100);
    let ino = create(&fs, ROOT, "a");
    let before = fs.statfs(W)?.free;
    write(&fs, ino, 0, &[1; 700 * 4096])?;
    fs.unlink(ROOT, b"a", W)?;
    poison_map_node(&pool, ino, FileBlock(600));
    fs.forget(ino, 1);
    fs.run_background(100);
    pool.pm.clear_poison();
    fs.run_background(100);
    assert!(fs.statfs(W)?.free < before, "tried again without a pause");
    pool.clock.advance(Duration::from_secs(1));
    fs.run_background(100);
    assert!(fs.statfs(W)?.free >= before);
    Ok(())
}

/// A truncation that met an error of PM while it removed blocks answered EIO although the file was cut, and
/// its intent stayed until the next mount. So did an intent found by a mount, when its first try failed.
#[test]
fn a_failed_removal_of_a_cut_range_is_tried_again() -> FsResult<()> {
    if has_other_map() {
        return Ok(());
    }
    let pool = SimulatedPool::new(8 << 20, 4096);
    let fs = pool.mount();
    fs.run_background(100);
    let ino = create(&fs, ROOT, "a");
    write(&fs, ino, 0, &[1; 700 * 4096])?;
    poison_map_node(&pool, ino, FileBlock(600));
    fs.setattr(ino, &SetAttributes { size: Some(0), ..Default::default() }, W)?;
    assert_eq!(fs.getattr(ino)?.size, 0);
    drop(fs);
    let fs = pool.mount();
    fs.run_background(100);
    pool.pm.clear_poison();
    assert!(fs.getattr(ino)?.blocks > 0);
    pool.clock.advance(Duration::from_secs(1));
    fs.run_background(100);
    assert_eq!(fs.getattr(ino)?.blocks, 0);
    fs.unmount()?;
    pool.assert_clean();
    Ok(())
}

/// After a crash, `sync_to` counted blocks that an intent had already removed from the file, and returned
/// only if the reclaimer ran.
#[test]
fn sync_to_does_not_wait_for_intents() -> FsResult<()> {
    if has_other_map() {
        return Ok(());
    }
    let pool = SimulatedPool::new(8 << 20, 4096);
    let fs = pool.mount();
    let ino = create(&fs, ROOT, "a");
    write(&fs, ino, 0, &[1; 700 * 4096])?;
    poison_map_node(&pool, ino, FileBlock(600));
    fs.setattr(ino, &SetAttributes { size: Some(2 * 4096), ..Default::default() }, W)?;
    drop(fs);
    pool.pm.clear_poison();
    let fs = pool.mount();
    let other = create(&fs, ROOT, "b");
    write(&fs, other, 0, &[2; 3 * 4096])?;
    let mut rounds = 0;
    fs.sync_to(1, &mut |_| {
        rounds += 1;
        assert!(rounds < 1000, "waits for somebody else");
    })?;
    let below = |ino| fs.whereabouts(ino).map(|found| (found.tiers[0].1, found.tiers[1].1));
    assert_eq!(below(ino)?, (0, 2 * 4096));
    assert_eq!(below(other)?, (0, 3 * 4096));
    assert!(fs.getattr(ino)?.blocks > 700, "the intent was not finished");
    Ok(())
}

/// The leaf with the intent of an unfinished truncation lay on a lower tier. Writers that needed room in PM
/// got EIO, because the blocks of that intent were chosen as victims.
#[test]
fn intents_on_a_lower_tier_fail_no_writer() -> FsResult<()> {
    if has_other_map() {
        return Ok(());
    }
    let pool = SimulatedPool::new(8 << 20, 4096);
    let options = || MountOptions {
        policy: Some(PolicyKind::STATIC),
        metadata_moves: MetadataMoves::Always,
        ..Default::default()
    };
    let fs = pool.mount_with(options());
    let ino = create(&fs, ROOT, "a");
    write(&fs, ino, 0, &[1; 700 * 4096])?;
    poison_map_node(&pool, ino, FileBlock(600));
    fs.setattr(ino, &SetAttributes { size: Some(2 * 4096), ..Default::default() }, W)?;
    // Names in the same shard, enough for leaves below the root page.
    let directory = loop {
        let name = format!("directory-{}", fs.getattr(ROOT)?.nlink);
        let made = fs.mkdir(ROOT, name.as_bytes(), 0o755, CALLER, W)?.ino;
        if made.0 % 4 == ino.0 % 4 {
            break made;
        }
    };
    for index in 0..600 {
        fs.forget(fs.mknod(directory, format!("name-{index}").as_bytes(), 0o100644, 0, CALLER, W)?.ino, 1);
    }
    fs.lower_metadata_now()?;
    let other = create(&fs, ROOT, "b");
    for piece in 0..200u64 {
        fs.write(other, piece << 16, &[2; 65_536], WriteFlags::default(), W)?;
    }
    assert!(fs.getattr(ino)?.blocks > 600, "the intent was not finished");
    Ok(())
}

/// After a crash with an unfinished truncation, punching a large hole elsewhere in the file looked for
/// intents while it held the lock of their shard: it waited for itself for ever, and held the lock of the
/// inode.
#[test]
fn a_punch_beside_an_unfinished_truncation_ends() -> FsResult<()> {
    let pool = SimulatedPool::new(2 << 20, 1025);
    let fs = pool.mount();
    let ino = filled(&fs, "file", 240)?;
    pool.pm.set_crash_at(Some(pool.pm.event_count() + 40));
    fs.fallocate(ino, 4096 * 20, 4096 * 100, Allocate::PunchHole, W)?;
    let (Some(pm), Some(device)) = (pool.pm.take_snapshot(), pool.device.take_snapshot()) else {
        panic!("the hole was made before the crash");
    };
    let left = SimulatedPool::from_images(pm.image_newest(), device.image_all());
    let pool = left.with_clock(pool.clock);
    assert_eq!(pool.check().summary.intents, 1);
    let fs = pool.mount();
    let other = Arc::clone(&fs);
    ends("a hole", move || other.fallocate(ino, 4096 * 140, 4096 * 90, Allocate::PunchHole, W))?;
    fs.run_background(1000);
    let blocks = fs.getattr(ino)?.blocks / 8;
    assert_eq!(blocks, 240 - 100 - 90);
    fs.unmount()?;
    pool.assert_clean();
    Ok(())
}
