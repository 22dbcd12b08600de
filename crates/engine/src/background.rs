//! The background steps of a mount, in one table, and the threads that drive them.
//!
//! A simulator drives the same steps by hand ([`run_background`]). The step of requested movements (`requests`) is not
//! in the table: tests drive that step, so a request ends at the time of their choice.

use crate::engine::Engine;
use crate::journal_step::JournalStep;
use crate::line_costs::{LineCostStep, is_wanted};
use crate::memory::MemoryStep;
use crate::requests::{request_background, request_step};
use std::io;
use std::sync::Arc;
use terrace_fs::removal::steps::{PrepareStep, ReclaimStep, WaitingStep};
use terrace_fs::write_back::lazy_step::LazyStep;
use terrace_fs::write_back::steps::WriteBackStep;
use terrace_migration::clock::ClockStep;
use terrace_migration::spill::step::SpillStep;
use terrace_migration::worker::MigrationStep;
use terrace_runtime::thread::{Driver, Waker};
use terrace_runtime::{Next, Step};
use terrace_store::lookup::ahead_step::AheadStep;
use terrace_store::parts::dram::read_ahead::WORKERS as AHEAD_WORKERS;
use terrace_store::parts::dram::write_back::STEPS as WRITE_BACK_STEPS;
use terrace_store::parts::pressure::WORKERS;
use terrace_store::pressure::buffer::{has_buffer, may_have_lazy_writes};

/// The threads that drive background work; dropping it stops and joins them.
pub struct Background {
    _drivers: Vec<Driver>,
}

/// Starts a thread for each step of the table, and for the step of requested movements.
///
/// # Errors
/// When no thread can be made.
pub fn start_background(engine: &Arc<Engine>) -> io::Result<Background> {
    let mut drivers = Vec::new();
    let requests = (!engine.store.mode.read_only).then(|| request_background(engine));
    for (step, waker) in background_steps(engine).into_iter().chain(requests) {
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

/// A step, and the waker of its thread.
type WakeableStep = (Box<dyn Step>, Waker);

/// A kind of background steps.
struct StepRow {
    /// The number of such steps of a mount; 0 where a mount needs none.
    count: fn(&Engine) -> usize,
    /// Makes a step by its number, with its waker.
    make: fn(&Arc<Engine>, usize) -> WakeableStep,
}

fn once(is_wanted: bool) -> usize {
    usize::from(is_wanted)
}

/// The background steps but that of requested movements, in the order in which a simulator drives them. A new kind of
/// step is a row here.
const STEPS: &[StepRow] = &[
    // Passes after the mount, removal of orphans, checkpoints at leisure.
    StepRow {
        count: |_| 1,
        make: |engine, _| {
            let waker = engine.store.inodes.removals().waker.clone();
            (Box::new(ReclaimStep::new(&engine.store)), waker)
        },
    },
    // Populates the mapping of PM.
    StepRow { count: |_| 1, make: |engine, _| (Box::new(PrepareStep::new(&engine.store)), Waker::new()) },
    // Commits and home rounds of a journaled PM.
    StepRow {
        count: |engine| once(engine.store.persistent.pm().journal_status().is_some()),
        make: |engine, _| (Box::new(JournalStep::new(engine)), engine.store.persistent.pm().waker()),
    },
    // Reads ahead of sequential readers.
    StepRow {
        count: |engine| if engine.store.devices.list().is_empty() { 0 } else { AHEAD_WORKERS },
        make: |engine, worker| {
            let waker = engine.store.dram.read_ahead().waker(worker);
            (Box::new(AheadStep::new(&engine.store, worker)), waker)
        },
    },
    // Follows the memory that the machine has to spare.
    StepRow {
        count: |engine| once(engine.memory.is_some()),
        make: |engine, _| {
            let Some(source) = &engine.memory else { unreachable!("no source of memory to follow") };
            (Box::new(MemoryStep::new(engine, source)), Waker::new())
        },
    },
    // Removals that wait for a device or for room in PM.
    StepRow {
        count: |engine| once(!engine.store.mode.read_only),
        make: |engine, _| {
            let waker = engine.store.inodes.removals().handed_waker.clone();
            (Box::new(WaitingStep::new(&engine.store)), waker)
        },
    },
    // The time of the predictors.
    StepRow {
        count: |engine| once(!engine.store.mode.read_only),
        make: |engine, _| (Box::new(ClockStep::new(&engine.store)), Waker::new()),
    },
    // Demotion and promotion.
    StepRow {
        count: |engine| if engine.store.mode.read_only { 0 } else { WORKERS },
        make: |engine, worker| {
            let waker = engine.store.pressure.waker(worker);
            (Box::new(MigrationStep::new(&engine.migration, worker)), waker)
        },
    },
    // Spill of a nearly full tier to the tiers below it.
    StepRow {
        count: |engine| once(!engine.store.mode.read_only && engine.store.devices.tiers().len() > 1),
        make: |engine, _| (Box::new(SpillStep::new(&engine.migration)), Waker::new()),
    },
    // Whether PM is slow.
    StepRow {
        count: |engine| once(is_wanted(&engine.store)),
        make: |engine, _| (Box::new(LineCostStep::new(&engine.store)), Waker::new()),
    },
    // Write-back of lazy pages for room.
    StepRow {
        count: |engine| {
            let steps = engine.store.dram.lazy_writes().options().lazy_steps();
            if may_have_lazy_writes(&engine.store) { steps } else { 0 }
        },
        make: |engine, number| {
            let waker = engine.store.dram.write_back().lazy_wakers[number].clone();
            (Box::new(LazyStep::new(&engine.store, number)), waker)
        },
    },
    // Write-back of dirty pages by age and pressure.
    StepRow {
        count: |engine| {
            let store = &engine.store;
            if has_buffer(store) || may_have_lazy_writes(store) { WRITE_BACK_STEPS } else { 0 }
        },
        make: |engine, number| {
            let first = number == 0;
            let waker = if first { engine.store.dram.write_back().waker.clone() } else { Waker::new() };
            (Box::new(WriteBackStep::new(&engine.store, number)), waker)
        },
    },
];

/// The steps that background threads drive, with their wakers.
pub fn background_steps(engine: &Arc<Engine>) -> Vec<(Box<dyn Step>, Waker)> {
    let steps =
        STEPS.iter().flat_map(|row| (0..(row.count)(engine)).map(|number| (row.make)(engine, number)));
    steps.collect()
}

/// Drives all background work by hand until no step has work left, for at most `limit` steps. For tests and
/// simulators.
pub fn run_background(engine: &Arc<Engine>, limit: usize) {
    let mut steps = background_steps(engine);
    for _ in 0..limit {
        let mut again = !engine.store.mode.read_only && request_step(engine) == Next::Again;
        for (step, _) in &mut steps {
            again |= step.step() == Next::Again;
        }
        if !again {
            return;
        }
    }
}
