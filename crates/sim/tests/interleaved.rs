//! What others do in the middle of an operation, at its interleaving points: each test is a sequence that once lost
//! something.
#![allow(clippy::unwrap_used)]

mod crash_support;

use crash_support::*;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use terrace_engine::{Allocate, Fs, MountOptions};
use terrace_format::Ino;
use terrace_media::BlockMedium;
use terrace_media::block::{Operation, Times};
use terrace_placement::Home;
use terrace_runtime::interleave;
use terrace_sim::scenes::SCENES;

/// A pool whose writes go to DRAM, with an empty file.
fn buffered() -> (World, Arc<Fs>, Ino) {
    let world = World::new(SMALL);
    let fs = world.mount_with(MountOptions { home: Some(Home::Block), ..options() }).unwrap();
    let f = create(&fs, ROOT, "f");
    (world, fs, f)
}

/// Runs something, and at its points what others do there; they are told the point and how often they did something, and
/// say whether they did. Gives how often.
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

/// Judges what the file holds after a crash, with all that was stored and with what was durable alone.
fn after_crash(world: &World, judge: impl Fn(&[u8])) {
    for newest in [false, true] {
        let left = world.crashed(newest);
        left.assert_clean();
        let fs = left.mount();
        judge(&read(&fs, find(&fs, "f")));
    }
}

/// fsync returned although the size that was set before it was not durable, when somebody else wrote into the file's
/// holes while it ran: a page that is dirtied behind the durable end stops the size there.
#[test]
fn a_size_is_durable_after_fsync_beside_writes_into_holes() {
    let (world, fs, f) = buffered();
    write(&fs, f, 0, &pattern(4096, 1));
    set_size(&fs, f, 1 << 20);
    write(&fs, f, 100 * BLOCK, &pattern(4096, 2));
    let writer = Arc::clone(&fs);
    // Beside the write-back, and whenever what stopped the size went into PM.
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

/// Pages that go into PM were named before: who cut the file off meanwhile and wrote it again from its beginning was left
/// with a hole where what he wrote first was only in DRAM.
#[test]
fn what_is_written_anew_while_pages_go_into_pm_has_no_holes() {
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

/// The scenes in which a mistake of each shape was planted (docs/crash-consistency.md).
#[test]
fn scenes_hold_in_the_engine_as_it_is() {
    SCENES.iter().for_each(|scene| (scene.play)());
}

/// The edge of a hole in a dirty page is cleared below it too. When the device failed, the copy there counted as one that
/// nobody needs, and was asked for again a thousand times: hours on a device that gives no answer.
#[test]
fn a_hole_at_a_dirty_page_above_a_copy_that_cannot_be_read_is_refused_at_once() {
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
