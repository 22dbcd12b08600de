//! Every kind of medium error at every kind of access of every operation: the caller gets the right errno, what it
//! did is one of the states that a failed operation may leave (C9), nothing else is harmed, status shows the device,
//! the pool works on when the medium does and after a remount.

use crate::action::Action;
use crate::media::{Media, Setup};
use crate::run::Wrong;
use crate::systematic::{Act, SMALL, prepared};
use crate::world::{Shared, World};
use std::sync::Arc;
use terrace_fs::{FsError, Wait};
use terrace_media::block::{Operation, Times};
use terrace_media::pm::recorded::Access;
use terrace_reference::{CrashState, Stamp};
use terrace_runtime::{interleave, thread};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A range of PM cannot be read, once.
    PmRead,
    /// A range of PM cannot be stored to, once.
    PmStore,
    /// The device fails this operation with this errno, once.
    Once(Operation, i32),
    /// The device is gone from an operation on, and comes back.
    Gone(Operation),
}

/// All kinds.
pub const KINDS: [Kind; 8] = [
    Kind::PmRead,
    Kind::PmStore,
    Kind::Once(Operation::Read, libc::EIO),
    Kind::Once(Operation::Write, libc::EIO),
    Kind::Once(Operation::Write, libc::ENOSPC),
    Kind::Once(Operation::Flush, libc::EIO),
    Kind::Gone(Operation::Read),
    Kind::Gone(Operation::Write),
];

/// What was tried.
#[derive(Debug, Default, Clone, Copy)]
pub struct Tried {
    /// Runs with an error that an access met.
    pub struck: u64,
    /// Of them, those in which the operation failed.
    pub failed: u64,
    /// Of them, those after which no change was taken until the next mount.
    pub stopped: u64,
}

/// Tries one kind of error at the accesses of an act: at each of the first eight, then at ever fewer.
///
/// # Errors
/// What did not hold.
pub fn explore(act: &Act, kind: Kind) -> Result<Tried, String> {
    thread::set_index(0);
    interleave::set_hook(None);
    let mut tried = Tried::default();
    let setup = Setup::default();
    let known = crate::caught(|| prepared(SMALL, &setup, Wrong::default()))?;
    let mut after = 0;
    loop {
        let run = crate::caught(|| run(&known, act, kind, after, &setup));
        let one = run.map_err(|error| format!("{}, {kind:?} after {after} accesses: {error}", act.name))?;
        let Some(one) = one else { return Ok(tried) };
        tried.struck += one.struck;
        tried.failed += one.failed;
        tried.stopped += one.stopped;
        after += 1 + after / 8;
    }
}

/// One run; `None` when no access met the error.
fn run(known: &Shared, act: &Act, kind: Kind, after: u64, setup: &Setup) -> Option<Tried> {
    let media = {
        let known = known.borrow();
        let device = known.media.device.as_ref().map(|device| device.visible_image());
        Media::from_images(known.media.pm.visible_image(), device, setup)
    };
    let world = known.borrow().fork(media);
    world.borrow_mut().begin_quiet();
    let (fs, states) = {
        let world = world.borrow();
        let from = world.now();
        let when = Stamp { from, to: from + 1_000_000_000 };
        let states = match &act.action {
            Action::Op(op) => world.states_of(op, when),
            _ => world.state_now(),
        };
        (Arc::clone(world.fs()), states)
    };
    inject(&world.borrow(), kind, after);
    let result = perform(&world, act);
    let struck = end_fault(&world.borrow(), kind);
    if !struck {
        return None;
    }
    let mut tried = Tried { struck: 1, ..Tried::default() };
    let mut world = world.borrow_mut();
    if let Err(error) = &result {
        tried.failed = 1;
        let errno = error.errno();
        let space = kind == Kind::Once(Operation::Write, libc::ENOSPC) && errno == libc::ENOSPC;
        assert!(errno == libc::EIO || space, "{error}: errno {errno}");
    }
    let stopped = fs.is_stopped();
    assert!(!stopped || matches!(kind, Kind::PmStore | Kind::PmRead), "no change is taken any more");
    if !matches!(kind, Kind::PmRead | Kind::PmStore) {
        let status = fs.status().unwrap();
        assert_eq!(status.tiers[1].devices[0].health, "degraded", "status does not show the device");
    }
    drop(fs);
    let allowed = if result.is_ok() { states[states.len() - 1..].to_vec() } else { states };
    leave(&mut world, stopped, &allowed);
    tried.stopped = u64::from(stopped);
    Some(tried)
}

fn inject(world: &World, kind: Kind, after: u64) {
    let pm = &world.media.pm;
    let size = terrace_media::PmMedium::size(&**pm);
    let Some(device) = world.media.device.as_ref() else { return };
    let blocks = terrace_media::BlockMedium::blocks(&**device);
    let times = Times::After(after);
    match kind {
        Kind::PmRead => pm.poison_for(0..size, Access::Reads, times),
        Kind::PmStore => pm.poison_for(0..size, Access::Stores, times),
        Kind::Once(operation, errno) => device.fail_next(operation, 0..blocks, errno, times),
        Kind::Gone(operation) => {
            device.fail_next(operation, 0..blocks, libc::ENODEV, times);
            // From then on everything fails, for a while.
            for other in crate::generate::OPERATIONS {
                device.fail_next(other, 0..blocks, libc::ENODEV, Times::After(after));
            }
        }
    }
}

/// Ends the fault; whether it struck.
fn end_fault(world: &World, kind: Kind) -> bool {
    let Some(device) = world.media.device.as_ref() else { return false };
    let left = match kind {
        Kind::PmRead | Kind::PmStore => world.media.pm.poison_left(),
        Kind::Once(..) => device.failures_left(),
        Kind::Gone(_) => usize::from(terrace_media::BlockMedium::error_count(&**device) == 0),
    };
    world.media.pm.clear_poison();
    device.clear_failures();
    left == 0
}

/// Does the act on the engine alone.
fn perform(world: &Shared, act: &Act) -> Result<(), FsError> {
    let fs = Arc::clone(world.borrow().fs());
    match &act.action {
        Action::Op(op) => world.borrow().call(op).run(&fs, Wait::Allowed).map(|_| ()),
        Action::SyncDown => fs.sync_to(1, &mut |_| {}),
        Action::Remount => fs.sync(),
        _ => {
            fs.run_background(20);
            Ok(())
        }
    }
}

/// Compares while mounted unless PM failed, and after the next mount.
fn leave(world: &mut World, stopped: bool, allowed: &[CrashState]) {
    if stopped {
        let media = Media::after(&world.media.now(), 1, &world.media.setup().clone());
        return world.look_at_and_leave(media, allowed);
    }
    world.settle(allowed);
    world.fs().run_background(10_000);
    world.compare_all();
    world.unmount_and_check();
    let media = Media::after(&world.media.now(), 1, &world.media.setup().clone());
    let now = world.state_now();
    world.look_at_and_leave(media, &now);
}
