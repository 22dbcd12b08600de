//! The state of PM that the policy sees.

use crate::migration::Migration;
use std::time::Duration;
use terrace_placement::Observation;
use terrace_runtime::sync::atomic::Ordering;
use terrace_store::steering::learn::with_flows;

/// The time for which the policy plans ahead: the write of a group on a slow disk.
const AHEAD: Duration = Duration::from_millis(100);

/// The observation for the policy.
pub fn observe(migration: &Migration) -> Observation {
    let usage = migration.store.persistent.blocks().usage();
    // Victims already taken will be free soon.
    let leaving = migration.store.pressure.in_flight();
    let free = usage.free + usage.quarantined + usage.unknown + leaving;
    let mut pace = migration.pace.lock();
    // While the block table is being scanned, newly met blocks are not growth.
    if usage.unknown == 0 {
        let there = usage.total - usage.free - usage.quarantined;
        // Promoted blocks are not arrivals: promotion stops by itself when room gets short, and must not
        // cause demotion.
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
