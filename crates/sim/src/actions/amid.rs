//! Operations and steps in the middle of other work.
//!
//! A run has one thread: background work and waiting operations pass interleaving points
//! (`terrace_runtime::interleave`), and other operations run there from beginning to end. All choices come
//! from the seeds of the actions.

use crate::actions::operate::operate;
use crate::bounds;
use crate::choose::chooser::Chooser;
use crate::config::Mix;
use crate::world::amid::Nesting;
use crate::world::{Shared, World};
use rand::Rng;
use std::rc::Rc;
use terrace_engine::Simulation;
use terrace_reference::{Allocate, Change, Id, Op};
use terrace_runtime::{Next, interleave};

/// Runs work of the engine, with other work at its interleaving points as `nesting` allows.
pub(crate) fn with_nesting<R>(world: &Shared, nesting: Nesting, run: impl FnOnce() -> R) -> R {
    world.borrow_mut().amid.nesting = nesting;
    let result = run();
    world.borrow_mut().amid.nesting = Nesting::None;
    result
}

/// Installs the hook that runs operations at the engine's interleaving points.
pub fn install_hook(world: &Shared) {
    let weak = Rc::downgrade(world);
    interleave::set_hook(Some(Rc::new(move |point| {
        if let Some(world) = weak.upgrade() {
            at_point(&world, point);
        }
    })));
}

fn at_point(world: &Shared, point: &'static str) {
    bounds::passed(point);
    let planned = {
        let Ok(mut now) = world.try_borrow_mut() else { return };
        now.read_amid_intent(point);
        if now.amid.nesting == Nesting::None || now.amid.depth >= 2 || now.power.crash.is_taken() {
            return;
        }
        let count = if now.rng.random_ratio(1, 3) { now.rng.random_range(1..4) } else { 0 };
        let again = now.choose_again(point);
        now.amid.depth += 1;
        (count, again, now.amid.nesting)
    };
    let (count, again, nesting) = planned;
    if let Some(op) = again {
        operate(world, op, false);
    }
    for _ in 0..count {
        let step = nesting == Nesting::Background && point != "device:flush" && {
            let mut now = world.borrow_mut();
            now.rng.random_ratio(1, 4)
        };
        if step {
            world.borrow_mut().amid.nesting = Nesting::Operations;
            let which = world.borrow_mut().rng.random_range(0..16);
            step_once(world, which);
            continue;
        }
        let Some(op) = world.borrow_mut().choose_amid() else { continue };
        let waits = world.borrow().may_wait_amid(&op);
        world.borrow_mut().remember_amid(point, &op);
        operate(world, op, waits);
    }
    let mut now = world.borrow_mut();
    now.amid.nesting = nesting;
    now.amid.depth -= 1;
}

/// Runs a step of one kind of background work; the last kind is the requested movements.
pub(crate) fn step_once(world: &Shared, which: usize) -> Next {
    let taken = {
        let mut now = world.borrow_mut();
        let at = which % now.kinds();
        match now.pool.steps.get_mut(at) {
            Some(step) => Ok((at, step.take())),
            None => Err(now.pool.fs.clone()),
        }
    };
    let (at, mut step) = match taken {
        Ok((at, Some(step))) => (at, step),
        Err(Some(fs)) => return fs.request_step(),
        _ => return Next::Done,
    };
    let next = step.step();
    if let Some(place) = world.borrow_mut().pool.steps.get_mut(at) {
        *place = Some(step);
    }
    next
}

impl World {
    /// An operation for the middle of another action: it must not need to wait for that action.
    fn choose_amid(&mut self) -> Option<Op> {
        self.counts.work.amid += 1;
        let mut op = match self.amid.under_way.last().copied() {
            // As through a second descriptor of the file.
            Some(id) if self.rng.random_ratio(1, 4) => Chooser::of(self).choose_of(id),
            _ => Chooser::of(self).choose(),
        };
        match &mut op {
            // A second piece of a longer write may have to wait.
            Op::Write { length, .. } => *length = (*length).min(50 * 4096),
            // Under data=ordered a punch may have zeroed one edge in place when the other edge has to wait;
            // the kernel then repeats the request.
            Op::Fallocate { mode: Allocate::PunchHole, .. } if self.config.data_ordered => return None,
            Op::Make { id, .. } => *id = Id(Id::APART.0 + (self.rng.random::<u64>() >> 20)),
            // The kernel holds the inode of a request that is under way.
            Op::Remove { .. } | Op::Rename { .. } | Op::Release { .. } | Op::Forget { .. } => {
                let involved = self.model.involved(&op);
                if self.amid.under_way.iter().any(|id| involved.contains(id)) {
                    return None;
                }
            }
            _ => {}
        }
        Some(op)
    }

    fn remember_amid(&mut self, point: &'static str, op: &Op) {
        if self.amid.depth == 1 {
            self.amid.last_amid = Some((point, op.clone()));
        }
    }

    /// The operation that ran last at this point, to run there again in most cases. A fetch begins anew when
    /// a block has changed, and so passes its point several times. A repeated truncation or punch moves on by
    /// a block, so that it changes a new block.
    fn choose_again(&mut self, point: &'static str) -> Option<Op> {
        let (_, op) = self.amid.last_amid.clone().filter(|(at, _)| *at == point && self.amid.depth == 0)?;
        let fits = matches!(op, Op::Write { .. } | Op::SetAttributes { .. } | Op::Fallocate { .. });
        let op = (fits && self.rng.random_ratio(3, 4)).then_some(op)?;
        self.counts.work.amid += 1;
        let op = match op {
            Op::Write { id, offset, length, kill_set_id, sync, .. } => {
                Op::Write { id, offset, length, seed: self.rng.random(), kill_set_id, sync }
            }
            Op::Fallocate { id, offset, length, mode: Allocate::PunchHole } => {
                Op::Fallocate { id, offset: offset + 4096, length, mode: Allocate::PunchHole }
            }
            Op::SetAttributes { id, change: Change { size: Some(size), .. } } => {
                let change = Change { size: Some(size.saturating_sub(4096)), ..Change::default() };
                Op::SetAttributes { id, change }
            }
            other => other,
        };
        self.amid.last_amid = Some((point, op.clone()));
        Some(op)
    }

    /// Whether an operation in the middle of another may wait: an fsync in the middle of a write-back writes
    /// the same dirty pages back a second time. In the middle of this fsync no further one waits.
    fn may_wait_amid(&self, op: &Op) -> bool {
        self.config.mix == Mix::Rewrites && self.amid.depth == 1 && matches!(op, Op::Fsync { .. })
    }

    /// Kinds of background work.
    pub(crate) fn kinds(&self) -> usize {
        self.pool.steps.len().max(1) + usize::from(self.config.by_hand && self.pool.fs.is_some())
    }
}
