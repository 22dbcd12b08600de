//! Background work, and requests that make writes durable or demote: write-back, sync, demotion.

use crate::actions::amid::{step_once, with_nesting};
use crate::judges::comparison::Comparison;
use crate::world::Shared;
use crate::world::amid::Nesting;
use rand::Rng;
use std::time::Duration;
use terrace_engine::{Movements, Simulation};
use terrace_reference::Id;
use terrace_runtime::Next;

/// A dirty page older than this is written back (design 8: 30 s, looked at every 5 s).
pub const DUE: Duration = Duration::from_secs(40);

pub(crate) fn background(world: &Shared, rounds: usize) {
    world.borrow_mut().note(format!("background work, {rounds} rounds"));
    world.borrow().pool.clock.advance(Duration::from_millis(20));
    let kinds = world.borrow().kinds();
    let ended = with_nesting(world, Nesting::Background, || {
        (0..rounds).any(|_| {
            let again =
                (0..kinds).fold(false, |again, which| again | (step_once(world, which) == Next::Again));
            !again || world.borrow().power.crash.is_taken()
        })
    });
    // A movement that cannot run waits before its next try (M6), and 512 blocks are the most that can move.
    assert!(ended || rounds < 200, "background work does not come to rest in {rounds} rounds");
    world.borrow_mut().background_ended();
}

/// All waiting writes become due, and are written back unless a device fails.
pub(crate) fn write_back(world: &Shared) {
    let written = {
        let now = world.borrow();
        now.pool.clock.advance(DUE);
        now.model.waiting_changes()
    };
    background(world, 400);
    let mut now = world.borrow_mut();
    // A file that changed meanwhile has new waiting writes.
    let unchanged: Vec<(Id, u64)> =
        written.into_iter().filter(|(id, waited)| now.model.waited(*id) == *waited).collect();
    if !now.power.crash.is_taken() && !now.pool.faulty() {
        now.model.changes_written_back(&unchanged);
    }
}

/// `terrace sync`: all writes that returned before it are durable.
pub(crate) fn sync(world: &Shared) {
    let (fs, written) = {
        let mut now = world.borrow_mut();
        now.note("sync".into());
        now.durable_start();
        (now.pool.fs().clone(), now.model.waiting_changes())
    };
    let result = with_nesting(world, Nesting::Background, || fs.sync());
    drop(fs);
    let mut now = world.borrow_mut();
    now.background_ended();
    if now.power.crash.is_taken() {
        return;
    }
    match result {
        Ok(()) => {
            now.model.changes_written_back(&written);
            now.power.unpersisted.clear();
        }
        // A sync whose write-back fails must report the failure (I5).
        Err(error) => {
            let told = matches!(error.errno(), libc::EIO | libc::ENOSPC);
            let expected = now.config.trouble.faults && now.config.buffers() && told;
            assert!(expected, "sync: {error}");
        }
    }
}

pub(crate) fn sync_down(world: &Shared) {
    let (fs, tier) = {
        let mut now = world.borrow_mut();
        if now.config.device_blocks == 0 {
            assert_eq!(now.pool.fs().sync_to(1, &mut |_| {}).map_err(|e| e.errno()), Err(libc::EINVAL));
            return;
        }
        let lowest = now.config.lowest_tier();
        let tier = if lowest > 1 { now.rng.random_range(1..=lowest) } else { 1 };
        now.note(format!("sync to tier {tier}"));
        // With a failing device `sync --to` would try for ever.
        if now.pool.faulty() {
            return;
        }
        (now.pool.fs().clone(), tier)
    };
    let written = world.borrow().model.waiting_changes();
    let quiet = world.borrow_mut().rng.random_ratio(1, 2);
    let nesting = if quiet { Nesting::None } else { Nesting::Background };
    let result = with_nesting(world, nesting, || fs.sync_to(tier, &mut |_| {}));
    drop(fs);
    let mut now = world.borrow_mut();
    now.background_ended();
    if now.power.crash.is_taken() {
        return;
    }
    match result {
        Ok(_) if quiet => Comparison::of(&mut now).assert_all_below(tier),
        Ok(_) => {}
        // A flush that failed for one group counts against every group in flight (M1).
        Err(error) if now.config.trouble.faults && error.errno() == libc::EIO => return,
        // Tier pins and other movements may promote blocks meanwhile; `sync --to` demotes them again, but
        // gives up some time.
        Err(error) if now.config.by_hand && !quiet && error.errno() == libc::EAGAIN => return,
        Err(error) => {
            let full = now.config.tree.fills && error.errno() == libc::ENOSPC;
            assert!(full, "sync to tier {tier}: {error}");
        }
    }
    now.model.changes_written_back(&written);
    now.power.unpersisted.clear();
}

/// Demotes every metadata page that may be demoted, with operations in the middle.
pub(crate) fn lower_metadata(world: &Shared) {
    let fs = {
        let mut now = world.borrow_mut();
        now.note("metadata moves down".into());
        now.pool.fs().clone()
    };
    let result = with_nesting(world, Nesting::Background, || fs.lower_metadata_now());
    drop(fs);
    let mut now = world.borrow_mut();
    now.background_ended();
    if let Err(error) = result
        && !now.power.crash.is_taken()
    {
        assert!(now.config.trouble.faults || now.config.trouble.pm_faults, "metadata moves down: {error}");
    }
}
