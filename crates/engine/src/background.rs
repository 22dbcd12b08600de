//! All background steps of a mount, in one list, and the threads that drive them.
//!
//! A simulator drives the same steps by hand ([`run_background`]).

use crate::engine::Engine;
use crate::memory::MemoryStep;
use crate::requests::{hand_background, hand_step};
use std::io;
use std::sync::Arc;
use terrace_fs::removal::orphans::{PrepareStep, ReclaimStep, WaitingStep};
use terrace_fs::write_back::steps::WriteBackStep;
use terrace_migration::clock::ClockStep;
use terrace_migration::spill::step::SpillStep;
use terrace_migration::worker::MigrationStep;
use terrace_runtime::thread::{Driver, Waker};
use terrace_runtime::{Next, Step};
use terrace_store::lookup::ahead_step::AheadStep;
use terrace_store::parts::dram::read_ahead::WORKERS as AHEAD_WORKERS;
use terrace_store::parts::dram::write_back::STEPS;
use terrace_store::parts::pressure::WORKERS;
use terrace_store::pressure::buffer::has_buffer;

/// The threads that drive background work; dropping it stops and joins them.
pub struct Background {
    _drivers: Vec<Driver>,
}

/// Starts the threads of migration, reclaiming and scanning.
///
/// # Errors
/// When no thread can be made.
pub fn start_background(engine: &Arc<Engine>) -> io::Result<Background> {
    let mut drivers = Vec::new();
    let by_hand = (!engine.store.mode.read_only).then(|| hand_background(engine));
    for (step, waker) in background_steps(engine).into_iter().chain(by_hand) {
        drivers.push(Driver::start(step, waker, Arc::clone(&engine.panics))?);
    }
    Ok(Background { _drivers: drivers })
}

/// Ends the scan of the block table before an unmount: the last checkpoint would leave a page without
/// checksum word if the scan had not met it, such as a page left open by a crash.
pub(crate) fn meet_all_pages(engine: &Engine) {
    if engine.store.mode.read_only {
        return;
    }
    let end = std::iter::repeat_with(|| engine.store.persistent.blocks().scan_step())
        .find(|step| !matches!(step, Ok(true)));
    if let Some(Err(error)) = end {
        tracing::warn!("some metadata pages may be left without checksums: {error}");
    }
}

/// The steps that background threads drive, with their wakers.
pub fn background_steps(engine: &Arc<Engine>) -> Vec<(Box<dyn Step>, Waker)> {
    let store = &engine.store;
    let reclaim = ReclaimStep::new(store);
    let prepare = PrepareStep::new(store);
    let mut steps: Vec<(Box<dyn Step>, Waker)> =
        vec![(Box::new(reclaim), store.inodes.removals().waker.clone()), (Box::new(prepare), Waker::new())];
    if !store.devices.list().is_empty() {
        for worker in 0..AHEAD_WORKERS {
            steps.push((Box::new(AheadStep::new(store, worker)), store.dram.read_ahead().waker(worker)));
        }
    }
    if let Some(source) = &engine.memory {
        steps.push((Box::new(MemoryStep::new(engine, source)), Waker::new()));
    }
    if !store.mode.read_only {
        let waiting = WaitingStep::new(store);
        steps.push((Box::new(waiting), store.inodes.removals().handed_waker.clone()));
        steps.push((Box::new(ClockStep::new(store)), Waker::new()));
        for worker in 0..WORKERS {
            steps.push((
                Box::new(MigrationStep::new(&engine.migration, worker)),
                store.pressure.waker(worker),
            ));
        }
        if store.devices.tiers().len() > 1 {
            steps.push((Box::new(SpillStep::new(&engine.migration)), Waker::new()));
        }
        if has_buffer(store) {
            for number in 0..STEPS {
                let waker = if number == 0 { store.dram.write_back().waker.clone() } else { Waker::new() };
                steps.push((Box::new(WriteBackStep::new(store, number)), waker));
            }
        }
    }
    steps
}

/// Drives all background work by hand until no step has work left, for at most `limit` steps. For tests and
/// simulators.
pub fn run_background(engine: &Arc<Engine>, limit: usize) {
    let mut steps = background_steps(engine);
    for _ in 0..limit {
        let mut again = !engine.store.mode.read_only && hand_step(engine) == Next::Again;
        for (step, _) in &mut steps {
            again |= step.step() == Next::Again;
        }
        if !again {
            return;
        }
    }
}
