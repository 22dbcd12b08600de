//! Work in the middle of an operation, at its interleaving points: each test is a sequence that once lost
//! data, broke a rule or did not end.
#![allow(clippy::unwrap_used)]

mod crash_support;

use crash_support::*;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use terrace_engine::{Allocate, Engine, MountOptions, Movements};
use terrace_format::Ino;
use terrace_media::BlockMedium;
use terrace_media::block::{Operation, Times};
use terrace_placement::Home;
use terrace_runtime::interleave;
use terrace_sim::drivers::scenes::SCENES;

/// A pool whose writes go to DRAM, with an empty file.
fn buffered() -> (World, Arc<Engine>, Ino) {
    let world = World::new(SMALL);
    let fs = world.mount_with(MountOptions { home: Some(Home::Block), ..options() }).unwrap();
    let f = create(&fs, ROOT, "f");
    (world, fs, f)
}

/// Runs `run`, and `others` at each interleaving point in it. `others` gets the point and the number of times
/// it acted before, and answers whether it acts now. Answers the number of times it acted.
fn beside(others: impl Fn(&str, u64) -> bool + 'static, run: impl FnOnce()) -> u64 {
    let count = Rc::new(Cell::new(0));
    let before = Rc::clone(&count);
    interleave::set_hook(Some(Rc::new(move |point| {
        if others(point, before.get()) {
            before.set(before.get() + 1);
        }
    })));
    run();
    interleave::set_hook(None);
    count.get()
}

/// Judges the file after a crash, once with all stores and once with the durable ones alone.
fn after_crash(world: &World, judge: impl Fn(&[u8])) {
    for newest in [false, true] {
        let left = world.crashed(newest);
        left.assert_clean();
        let fs = left.mount();
        judge(&read(&fs, find(&fs, "f")));
    }
}

/// Broke: fsync returned before the size set earlier was durable, when a second writer filled holes of the
/// file during the fsync. A page that becomes dirty behind the durable end stops the durable size there.
#[test]
fn a_size_is_durable_after_fsync_beside_writes_into_holes() {
    let (world, fs, f) = buffered();
    write(&fs, f, 0, &pattern(4096, 1));
    set_size(&fs, f, 1 << 20);
    write(&fs, f, 100 * BLOCK, &pattern(4096, 2));
    let writer = Arc::clone(&fs);
    // During the write-back, and whenever a page that stopped the size has settled.
    let others = move |point: &str, before: u64| {
        if matches!(point, "writeback:between-pieces" | "raise:absorbed") && before < 4 {
            write(&writer, f, (101 + 10 * before) * BLOCK, &pattern(4096, 3));
            return true;
        }
        false
    };
    let passed = beside(others, || fs.fsync(f, false, W).unwrap());
    assert!(passed > 2, "nothing was written meanwhile");
    drop(fs);
    after_crash(&world, |found| {
        assert!(found.len() >= 1 << 20, "{} bytes are left of 1 MiB", found.len());
        assert_eq!(found[100 * BLOCK as usize..][..4096], pattern(4096, 2));
    });
}

/// Broke: the pages to settle were listed before the step. A writer that truncated the file meanwhile and
/// wrote it again from its beginning was left with a hole where its first bytes were in DRAM alone.
#[test]
fn a_file_rewritten_while_its_pages_settle_has_no_holes() {
    const BLOCKS: usize = 200;
    let (world, fs, f) = buffered();
    write(&fs, f, 0, &pattern(BLOCKS * 4096, 1));
    let anew = pattern(BLOCKS * 4096, 2);
    let (writer, content) = (Arc::clone(&fs), anew.clone());
    let others = move |point: &str, before: u64| {
        let is_now = point == "absorb:between-pieces" && before == 0;
        if is_now {
            set_size(&writer, f, 0);
            write(&writer, f, 0, &content);
        }
        is_now
    };
    let written = beside(others, || fs.keep_without_devices().unwrap());
    assert_eq!(written, 1, "one piece was enough");
    drop(fs);
    after_crash(&world, |found| {
        assert!(!found.is_empty(), "nothing went into PM");
        assert!(anew.starts_with(found), "{} bytes are left, and not the first", found.len());
    });
}

/// The scenes in which a mistake of each shape was planted (docs/crash-consistency.md) hold in the unchanged
/// engine.
#[test]
fn scenes_hold_in_the_engine_as_it_is() {
    SCENES.iter().for_each(|scene| (scene.play)());
}

/// A punch inside a dirty page also clears the cold copy under it. Broke: when the device failed, the cold
/// copy counted as unneeded and was read again a thousand times, which takes hours on a device that gives no
/// answer.
#[test]
fn a_punch_over_an_unreadable_cold_copy_is_refused_at_once() {
    let (world, fs, f) = buffered();
    write(&fs, f, 0, &pattern(3 * 4096, 1));
    fs.sync_to(1, &mut |_| {}).unwrap();
    fs.unmount().unwrap();
    drop(fs);
    let fs = world.mount_with(MountOptions { home: Some(Home::Block), ..options() }).unwrap();
    write(&fs, f, BLOCK, &pattern(4096, 2));
    world.device.fail_next(Operation::Read, 0..1025, libc::EIO, Times::Forever);
    let before = world.device.error_count();
    let refused = fs.fallocate(f, BLOCK + 100, 500, Allocate::PunchHole, W);
    assert_eq!(refused.map_err(|error| error.errno()), Err(libc::EIO));
    let errors = world.device.error_count() - before;
    assert!((1..10).contains(&errors), "the device was asked {errors} times");
    world.device.clear_failures();
    fs.fallocate(f, BLOCK + 100, 500, Allocate::PunchHole, W).unwrap();
    let mut expected = pattern(4096, 2);
    expected[100..600].fill(0);
    assert_eq!(read(&fs, f)[4096..8192], expected);
}
