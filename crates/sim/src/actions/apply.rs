//! The actions of a history on a world.

use crate::action::{Action, Entry};
use crate::actions::amid::{step_once, with_nesting};
use crate::actions::background::{background, lower_metadata, sync, sync_down, write_back};
use crate::actions::operate::operate;
use crate::actions::pm_fault::poisoned;
use crate::actions::requested::{hand, read_often};
use crate::bounds;
use crate::choose::chooser::Chooser;
use crate::world::Shared;
use crate::world::amid::Nesting;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::time::Duration;
use terrace_runtime::thread;

/// Runs an action of a history.
pub fn apply(world: &Shared, entry: &Entry) {
    bounds::begin();
    world.borrow_mut().rng = SmallRng::seed_from_u64(entry.seed);
    match &entry.action {
        Action::Op(op) => operate(world, op.clone(), true),
        Action::Background(rounds) => background(world, *rounds),
        Action::Step(which) => {
            world.borrow_mut().note(format!("step {which}"));
            world.borrow().pool.clock.advance(Duration::from_millis(11));
            with_nesting(world, Nesting::Background, || step_once(world, *which));
            world.borrow_mut().background_ended();
        }
        Action::WriteBack => write_back(world),
        Action::Sync => sync(world),
        Action::SyncDown => sync_down(world),
        Action::LowerMetadata => lower_metadata(world),
        Action::Hand { id, action, finish } => hand(world, *id, *action, *finish),
        Action::ReadOften(id) => read_often(world, *id),
        Action::Remount => world.borrow_mut().remount(),
        Action::Unmount => world.borrow_mut().unmount_and_check(),
        Action::Compare => world.borrow_mut().compare_when_well(),
        Action::Advance(time) => world.borrow().pool.clock.advance(*time),
        Action::Reuse => reuse(world),
        Action::PowerFails(events) => world.borrow_mut().arm(*events, entry.seed),
        Action::Crash => world.borrow_mut().crash_now(entry.seed),
        Action::Fault(fault) => world.borrow_mut().inject(*fault),
        Action::Poisoned { access, times, action } => poisoned(world, entry.seed, (*access, *times), action),
    }
    recover_if_taken(world);
    world.borrow_mut().judge_leaks_at_times();
}

fn recover_if_taken(world: &Shared) {
    if world.borrow().power.crash.is_taken() {
        world.borrow_mut().recover();
    }
}

/// Frees blocks and claims new ones at once, through both lanes: records above the checkpoint still name or
/// write the freed blocks (T6).
fn reuse(world: &Shared) {
    world.borrow_mut().note("blocks freed and wanted again at once:".into());
    let times = world.borrow_mut().rng.random_range(1..4);
    for _ in 0..times {
        let ops = Chooser::of(&mut world.borrow_mut()).choose_reuse();
        for (second_lane, op) in ops {
            thread::set_index(usize::from(second_lane));
            operate(world, op, true);
        }
        thread::set_index(0);
    }
}
