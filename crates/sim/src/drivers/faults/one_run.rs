//! A single run: an act or a mount that meets one error, and the judgement of the pool after it.

use crate::action::{Action, Entry};
use crate::actions::apply::apply;
use crate::actions::background::DUE;
use crate::bounds;
use crate::drivers::acts::{Act, waiting_first};
use crate::drivers::faults::acts::perform;
use crate::drivers::faults::demands::{assert_errno, assert_fsync, assert_no_wrong_bytes, assert_shown};
use crate::drivers::faults::kinds::{Kind, Tried};
use crate::drivers::faults::strike::{WITNESS, amid_stalls, end_fault, has_struck, inject};
use crate::judges::comparison::Comparison;
use crate::media::{Media, Setup};
use crate::world::{Shared, World};
use std::sync::Arc;
use terrace_engine::{Atime, Engine, MountOptions, Movements, Simulation, Wait, read_superblock};
use terrace_reference::{CrashState, Op, Stamp};
use terrace_runtime::Clock;

/// A single run; `None` if no access met the error.
pub(super) fn run(known: &Shared, act: &Act, kind: Kind, after: u64, setup: &Setup) -> Option<Tried> {
    let world = begin(known, setup);
    let fs = Arc::clone(world.borrow().pool.fs());
    let mut states = states_of(&world.borrow(), &act.action);
    inject(&world.borrow(), kind, after);
    let amid = amid_stalls(&world.borrow(), &fs);
    let result = perform(&world, act);
    bounds::only_count();
    if !has_struck(&world.borrow(), kind) {
        return None;
    }
    let mut tried = Tried { struck: 1, failed: u64::from(result.is_err()), ..Tried::default() };
    let ended = matches!(act.action, Action::Remount);
    let stopped = fs.is_stopped() && !(ended && result.is_ok());
    match &result {
        Ok(()) => _ = states.drain(..states.len() - 1),
        // A later piece, or a change after a failed checkpoint of the background (C9).
        Err(error) if stopped && error.errno() == libc::EROFS => {}
        Err(error) => assert_errno(kind, error),
    }
    for (op, when) in amid.take() {
        tried.amid_stall += 1;
        states.iter_mut().for_each(|state| _ = state.tree.perform(&op, when));
    }
    assert!(!stopped || kind.is_of_pm(), "no change is taken any more");
    tried.stopped = u64::from(stopped);
    if !fs.is_stopped() || stopped {
        assert_shown(&fs, kind);
    }
    let mut world = world.borrow_mut();
    if kind == Kind::Lies {
        drop(fs);
        tried.damaged = after_a_lie(&mut world, &states);
        return Some(tried);
    }
    if !ended {
        assert_no_wrong_bytes(&world, &fs, &states, kind);
        tried.not_durable = assert_fsync(&world, &fs, &mut states);
        fs.run_background(20);
        assert_no_wrong_bytes(&world, &fs, &states, kind);
    }
    let stopped = fs.is_stopped();
    drop(fs);
    let moment = world.pool.media.now();
    end_fault(&world);
    // Odd runs lose power now: undecided stores are lost, kept, or kept in part. Even runs continue.
    if stopped || ended || after % 2 == 1 {
        let image = [0, 1, 4 * after + 2][(after / 2 % 3) as usize];
        let media = Media::after(&moment, image, setup);
        world.look_at_and_leave(media, &states);
    } else {
        leave(&mut world, &states);
    }
    Some(tried)
}

/// The mounted pool with background work at rest, and waiting writes if its configuration has them.
pub(super) fn begin(known: &Shared, setup: &Setup) -> Shared {
    let media = {
        let known = known.borrow();
        Media::from_images(known.pool.media.tier0_content(), known.pool.media.device_images(), setup)
    };
    let world = known.borrow().fork(media);
    world.borrow_mut().begin_quiet();
    if world.borrow().config.buffers() {
        for act in waiting_first() {
            apply(&world, &Entry { action: act.action, seed: 0 });
        }
    }
    world
}

fn some_time(world: &World) -> Stamp {
    let from = world.pool.now();
    Stamp { from, to: from + 1_000_000_000 }
}

fn states_of(world: &World, action: &Action) -> Vec<CrashState> {
    match action {
        Action::Op(op) => world.states_of(op, some_time(world)),
        Action::Sync | Action::SyncDown | Action::Remount => [CrashState::now(&world.model)]
            .into_iter()
            .chain(CrashState::written_back(&world.model))
            .collect(),
        _ => vec![CrashState::now(&world.model)],
    }
}

/// Demotes all files by lying flushes, then power fails: metadata is sound, and checksums find damaged data.
/// Answers the number of reads that met damage.
fn after_a_lie(world: &mut World, states: &[CrashState]) -> u64 {
    // Demotes also the files that the act left in PM.
    let _ = world.pool.fs().sync_to(1, &mut |_| {});
    let (moment, setup) = (world.pool.media.now(), world.pool.media.setup().clone());
    world.pool.may_be_damaged = true;
    let mut damaged = 0;
    // The device has kept no writes, all writes, or some writes.
    for image in [1, 5, 11] {
        let other = world.fork(Media::after(&moment, image, &setup));
        let mut other = other.borrow_mut();
        other.begin_quiet();
        other.settle(states);
        damaged +=
            assert_no_wrong_bytes(&other, other.pool.fs(), &[CrashState::now(&other.model)], Kind::Lies);
        other.unmount_and_check();
        let now = [CrashState::now(&other.model)];
        let media = Media::after(&other.pool.media.now(), 1, &setup);
        other.look_at_and_leave(media, &now);
    }
    damaged
}

/// Compares while mounted and after the next mount.
fn leave(world: &mut World, states: &[CrashState]) {
    world.settle(states);
    // A failed movement is tried again after some time (M6).
    world.pool.clock.advance(DUE);
    world.pool.fs().run_background(10_000);
    Comparison::of(world).compare_all();
    // All writes were due for write-back, and the media are well.
    if world.config.buffers() {
        let media = Media::after(&world.pool.media.now(), 0, &world.pool.media.setup().clone());
        let now = [CrashState::now(&world.model)];
        return world.look_at_and_leave(media, &now);
    }
    world.unmount_and_check();
    let media = Media::after(&world.pool.media.now(), 1, &world.pool.media.setup().clone());
    let now = [CrashState::now(&world.model)];
    world.look_at_and_leave(media, &now);
}

/// A mount after a loss of power meets an error: it fails or gives a sound pool, and so does the next mount.
pub(super) fn run_mount(known: &Shared, kind: Kind, after: u64, setup: &Setup) -> Option<Tried> {
    let world = begin(known, setup);
    let op = Op::Write { id: WITNESS, offset: 0, length: 9000, seed: 71, kill_set_id: false, sync: true };
    let states = states_of(&world.borrow(), &Action::Op(op.clone()));
    let fs = Arc::clone(world.borrow().pool.fs());
    let call = world.borrow().known.call(&op);
    call.run(&fs, Wait::Allowed).unwrap();
    drop(fs);
    let mut world = world.borrow_mut();
    let media = Media::after(&world.pool.media.now(), 3, setup);
    world.pool.media = media;
    inject(&world, kind, after);
    let clock: Arc<dyn Clock> = world.pool.clock.clone();
    let options = MountOptions { atime: Atime::Never, ..MountOptions::default() };
    let mounted = read_superblock(&*world.pool.media.pm, true).map_err(|error| error.to_string());
    let mounted = mounted.and_then(|(superblock, _)| {
        let mounted = Engine::mount(world.pool.media.pool(), superblock, options, clock);
        mounted.map_err(|error| error.to_string())
    });
    let struck = has_struck(&world, kind);
    let tried = Tried { struck: 1, failed: u64::from(mounted.is_err()), ..Tried::default() };
    if let Ok(fs) = &mounted {
        let last = &states[states.len() - 1..];
        if !fs.is_stopped() {
            assert_no_wrong_bytes(&world, fs, last, Kind::PmRead);
        }
    }
    drop(mounted);
    end_fault(&world);
    let media = Media::after(&world.pool.media.now(), after % 2, setup);
    world.look_at_and_leave(media, &states[states.len() - 1..]);
    struck.then_some(tried)
}
