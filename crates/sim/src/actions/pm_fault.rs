//! PM that fails in the middle of an operation or of background work, in random histories: once, or at one
//! place until the work has ended. `faults` tries every place on one pool; here the pool and the later
//! history vary.
//!
//! An operation that PM failed was done whole or not at all (C9). No other work runs in its middle. Its state
//! is looked for after a loss of power if PM takes no more changes, after an orderly remount otherwise, and
//! at once if it can have changed nothing.

use crate::action::Action;
use crate::world::Shared;
use std::sync::Arc;
use std::time::Duration;
use terrace_engine::{Engine, FsError, Movements, Simulation, Wait};
use terrace_media::PmMedium;
use terrace_media::block::Times;
use terrace_media::pm::Access;
use terrace_reference::{CrashState, Op, Stamp};

/// Runs an action while PM fails at accesses of this kind.
pub fn poisoned(world: &Shared, seed: u64, fails: (Access, Times), action: &Action) {
    if world.borrow().power.crash.is_taken() {
        return;
    }
    world.borrow_mut().note(format!("PM fails, {fails:?}: {action:?}"));
    match action {
        Action::Op(op) => poisoned_op(world, seed, fails, op),
        _ => poisoned_background(world, seed, fails, action),
    }
}

/// Runs work of the engine amid failures of PM. Answers also whether PM failed in it.
fn amid_poison<R>(
    world: &Shared,
    (access, times): (Access, Times),
    run: impl FnOnce(&Arc<Engine>) -> R,
) -> (R, bool) {
    let (fs, pm) = {
        let world = world.borrow();
        (Arc::clone(world.pool.fs()), Arc::clone(&world.pool.media.pm))
    };
    let before = pm.error_count();
    pm.poison_for(0..pm.size(), access, times);
    let result = run(&fs);
    let struck = pm.error_count() > before;
    pm.clear_poison();
    let mut world = world.borrow_mut();
    world.counts.trouble.faults += u64::from(struck);
    if struck && world.config.buffer.lazy {
        world.known.descriptors.may_fail();
    }
    if struck {
        let status = fs.status().unwrap();
        assert_eq!(status.tiers[0].devices[0].health, "degraded", "status does not show PM");
    }
    (result, struck)
}

fn poisoned_op(world: &Shared, seed: u64, fails: (Access, Times), op: &Op) {
    let (call, from) = {
        let mut world = world.borrow_mut();
        if !world.known.can_do(&world.model, op) {
            return;
        }
        world.durable_start();
        world.counts.work.operations += 1;
        world.known.asked_cookie = world.known.cookie_of(op);
        (world.known.call(op), world.pool.now())
    };
    let (answer, struck) = amid_poison(world, fails, |fs| call.run(fs, Wait::Allowed));
    let mut world = world.borrow_mut();
    let when = Stamp { from: from.max(world.last_end), to: world.pool.now() };
    let stopped = world.pool.fs().is_stopped();
    let failed = matches!(&answer, Err(error) if matches!(error.errno(), libc::EIO | libc::EROFS));
    assert!(struck || !failed && !stopped, "{op:?}: {answer:?} although PM is well");
    if failed {
        world.counts.work.errors += 1;
        assert!(stopped || !is(&answer, libc::EROFS), "{op:?}: EROFS of PM that takes changes");
    }
    if stopped || failed {
        let mut states = world.states_of(op, when);
        if !failed {
            states.drain(..states.len() - 1);
        }
        if stopped {
            return world.lose_power(seed, states);
        }
        // An operation that can change nothing needs no remount.
        if states.len() > 1 {
            world.remount_to(states);
        }
        world.last_end = world.pool.now();
        return;
    }
    if struck {
        // Background work tries the failed part again.
        world.pool.clock.advance(Duration::from_secs(5));
        world.pool.fs().run_background(1000);
    }
    world.judge(op, answer, when);
    world.last_end = world.pool.now();
}

fn is<T>(answer: &Result<T, FsError>, errno: i32) -> bool {
    matches!(answer, Err(error) if error.errno() == errno)
}

fn poisoned_background(world: &Shared, seed: u64, fails: (Access, Times), action: &Action) {
    world.borrow().pool.clock.advance(Duration::from_millis(20));
    let below = world.borrow().config.device_blocks > 0;
    let (done, struck) = amid_poison(world, fails, |fs| match action {
        Action::SyncDown if below => fs.sync_to(1, &mut |_| {}).map(drop),
        Action::Background(rounds) => {
            fs.run_background(*rounds);
            Ok(())
        }
        _ => Ok(()),
    });
    let mut world = world.borrow_mut();
    assert!(done.is_ok() || struck && is(&done, libc::EIO), "{done:?}");
    if world.pool.fs().is_stopped() {
        assert!(struck, "PM takes no more changes, and was well");
        let states = vec![CrashState::now(&world.model)];
        world.lose_power(seed, states);
    }
}
