//! The view that the policy gets of PM.

use crate::migration::Migration;
use std::time::Duration;
use terrace_placement::Observation;
use terrace_runtime::sync::atomic::Ordering;
use terrace_store::steering::learn::with_flows;

/// How far ahead the policy sees: what a group takes on a slow disk.
const AHEAD: Duration = Duration::from_millis(100);

/// What the policy sees.
pub fn observe(migration: &Migration) -> Observation {
    let usage = migration.store.persistent.blocks().usage();
    // Victims already taken will be free soon.
    let leaving = migration.store.pressure.in_flight();
    let free = usage.free + usage.quarantined + usage.unknown + leaving;
    let mut pace = migration.pace.lock();
    // Until the table was read, what is found in it is not growth.
    if usage.unknown == 0 {
        let there = usage.total - usage.free - usage.quarantined;
        // What is promoted is no arrival: it stops by itself when room gets short, and must push nothing out.
        let left = migration.store.pressure.moved().left.load(Ordering::Relaxed);
        let promoted = migration.store.pressure.moved().promoted.load(Ordering::Relaxed);
        let come = (there + left).saturating_sub(promoted);
        pace.observe(migration.store.clock.monotonic_ns(), come);
    }
    let arriving_blocks = pace.arriving_blocks(AHEAD);
    let (total_blocks, free_blocks) = (usage.total, free.min(usage.total));
    with_flows(
        &migration.store,
        Observation { total_blocks, free_blocks, arriving_blocks, ..Observation::default() },
    )
}
