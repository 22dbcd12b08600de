//! The requests of users: files and directories are migrated, pinned to a tier and unpinned. Files are also
//! read again and again, so that policies that follow reads move them.

use crate::actions::amid::with_nesting;
use crate::actions::background::background;
use crate::actions::operate::operate;
use crate::judges::comparison::Comparison;
use crate::world::amid::Nesting;
use crate::world::{Shared, World};
use rand::Rng;
use std::time::Duration;
use terrace_engine::{MoveRequest, Movements, RequestReport, RequestState, Simulation};
use terrace_reference::{BLOCK, Id, Op};
use terrace_runtime::Next;

/// Steps of a job in one action at most.
const MOST_PIECES: usize = 4000;

/// Bytes of a large file read in each second: equation (2) judges no less than 1 MiB.
const READ_IN_A_SECOND: u64 = 5 << 18;

/// Bytes of one read.
const PIECE: u64 = 32 * BLOCK as u64;

/// A user requests a movement or a tier pin, and may wait for the end of its job.
pub fn hand(world: &Shared, id: Id, action: MoveRequest, finish: bool) {
    let (fs, ino, quiet) = {
        let mut now = world.borrow_mut();
        let node = now.model.node(id).ok();
        let fits = node.is_some_and(|node| node.is_directory() || node.content().is_some());
        if !fits || now.power.crash.is_taken() {
            return;
        }
        now.note(format!("{action:?} of {id:?}{}", if finish { "" } else { ", not waited for" }));
        let quiet = now.rng.random_ratio(1, 2);
        (now.pool.fs().clone(), now.known.ino(id), quiet)
    };
    let waits = finish || !matches!(action, MoveRequest::Migrate { .. });
    if !matches!(action, MoveRequest::Migrate { .. }) {
        world.borrow_mut().tolerance.pins_unsure = Some(action.tier());
    }
    let job = match fs.request_move(ino, action) {
        Ok(job) => job,
        Err(error) => panic!("{action:?} of {id:?}: {error}"),
    };
    if !waits {
        return;
    }
    let nesting = if quiet { Nesting::None } else { Nesting::Background };
    let ended = with_nesting(world, nesting, || {
        (0..MOST_PIECES).find_map(|_| {
            if let Next::After(pause) = fs.request_step() {
                world.borrow().pool.clock.advance(pause);
            }
            fs.request_report(job).filter(|report| report.state.has_ended())
        })
    });
    drop(fs);
    let mut now = world.borrow_mut();
    now.background_ended();
    if now.power.crash.is_taken() {
        return;
    }
    let Some(report) = ended else { panic!("{action:?} of {id:?} does not end") };
    now.hand_ended(id, action, &report, quiet);
}

impl World {
    /// Judges a job that has ended.
    fn hand_ended(&mut self, id: Id, action: MoveRequest, report: &RequestReport, quiet: bool) {
        let done = report.state == RequestState::Done;
        *if done { &mut self.counts.moved.hand_done } else { &mut self.counts.moved.hand_failed } += 1;
        let reason = report.reason.as_deref().unwrap_or_default();
        if !done && !self.config.trouble.faults && !self.pool.may_be_damaged {
            let full = reason.contains("is full") || reason.contains("may take half of it");
            let right = full || reason.contains("pinned to another tier") || reason.contains("vanished");
            assert!(right, "{action:?} of {id:?}: {reason}");
        }
        if quiet && done && report.left_bytes == 0 {
            Comparison::of(self).assert_moved(id, action, report);
        }
        if quiet && done && !matches!(action, MoveRequest::Migrate { .. }) {
            self.model.set_pin_below(id, action.tier());
            self.tolerance.pins_unsure = None;
        }
        Comparison::of(self).compare_pins();
        self.tolerance.pins_unsure = None;
    }
}

/// Six seconds in which a file is read whole; a large file is read several times a second.
pub fn read_often(world: &Shared, id: Id) {
    for _ in 0..6 {
        let size = world.borrow().model.size_of(id).min(8 * PIECE);
        let times = if size < PIECE { 1 } else { READ_IN_A_SECOND.div_ceil(size) };
        for at in (0..times).flat_map(|_| (0..size).step_by(PIECE as usize)) {
            operate(world, Op::Read { id, offset: at, length: PIECE as usize }, true);
        }
        world.borrow().pool.clock.advance(Duration::from_secs(1));
        background(world, 2);
        if world.borrow().power.crash.is_taken() {
            return;
        }
    }
}
