//! Faults that a review of placement, write-back and migration found: each test's first lines say what broke.
#![allow(clippy::unwrap_used)]

mod common;

use common::buffered::{World, buffered, fill, read_all};
use common::tiers::{Tiers, assert_content, bytes_on, create, find, pattern, write};
use common::{Pool, ROOT};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use terrace_format::DeviceBlock;
use terrace_fs::{
    Allocate, Fs, FsError, FsResult, HandMove, HandState, MountOptions, PolicyKind, PoolMedia, Wait,
    WriteFlags, read_superblock,
};
use terrace_media::block::{AlignedBlock, Operation, SimulatedDevice, Times};
use terrace_media::{BlockMedium, MediaError, PmMedium};

const W: Wait = Wait::Allowed;
const ASYNC: WriteFlags = WriteFlags { sync: false, kill_set_id: false };
const BLOCK: u64 = 4096;
const EIO: i32 = 5;

fn dirty(fs: &Fs) -> u64 {
    fs.status().unwrap().dram.dirty_bytes
}

fn quiet() -> MountOptions {
    MountOptions { policy: Some(PolicyKind::Static), ..MountOptions::default() }
}

/// A request thread put a whole file's dirty pages into PM, for which it may have to wait, when no tier had room for more.
#[test]
fn a_request_thread_leaves_dirty_pages_to_those_who_may_wait() -> FsResult<()> {
    let world = World::new(4 << 20, 33);
    let fs = world.mount(buffered(4 << 20));
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
    world.assert_clean_after(&fs)
}

/// Dirty pages that no lower tier takes went into PM one by one, each in a transaction of its own.
#[test]
fn dirty_pages_go_into_persistent_memory_in_runs() -> FsResult<()> {
    let world = World::new(8 << 20, 4096);
    let fs = world.mount(buffered(8 << 20));
    let ino = create(&fs, ROOT, "a");
    let content = fill(256 * 4096 + 100, 1);
    fs.write(ino, 0, &content, ASYNC, W)?;
    // A hole, and a block of its own.
    fs.fallocate(ino, 7 * BLOCK, BLOCK, Allocate::PunchHole, W)?;
    fs.fallocate(ino, 9 * BLOCK, BLOCK, Allocate::PunchHole, W)?;
    world.device.fail_next(Operation::Write, 0..u64::MAX, EIO, Times::Forever);
    let before = world.pm.counters().fences;
    fs.unmount()?;
    let fences = world.pm.counters().fences - before;
    assert!(fences < 150, "{fences} fences for 257 blocks");
    drop(fs);
    world.device.clear_failures();
    let fs = world.mount(buffered(8 << 20));
    let mut expected = content;
    for hole in [7, 9] {
        expected[hole * 4096..(hole + 1) * 4096].fill(0);
    }
    assert_eq!(read_all(&fs, find(&fs, "a"))?, expected);
    world.assert_clean_after(&fs)
}
