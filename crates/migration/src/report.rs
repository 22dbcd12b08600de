//! Migration in numbers, for status and iostat.

use crate::migration::Migration;
use serde::Serialize;
use std::time::Duration;
use terrace_format::BLOCK_SIZE;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

/// The time for which status still shows a movement after its end.
pub const STATUS_REMEMBERS_FOR: Duration = Duration::from_secs(1);

/// Migration in `terrace status`.
#[derive(Debug, Clone, Serialize)]
pub struct MigrationReport {
    /// idle, demoting, promoting, spilling (each also for a moment after its end), waiting.
    pub state: &'static str,
    /// The reason why demotion is stuck.
    pub reason: Option<String>,
    /// Bytes demoted since mount.
    pub demoted_bytes: u64,
    /// Demoted bytes that were written in place, over their old cold copies.
    pub in_place_bytes: u64,
    /// Bytes promoted since mount.
    pub promoted_bytes: u64,
    /// Bytes relocated from one lower tier to another since mount.
    pub moved_below_bytes: u64,
    /// Relocated bytes that a nearly full tier spilled.
    pub spilled_bytes: u64,
    /// Attempts to spill that moved no block, or failed.
    pub spill_failures: u64,
    /// The reason why a nearly full tier stays full.
    pub spill_reason: Option<String>,
    /// Bytes of clean blocks dropped from PM without a write, because their cold copies were valid.
    pub clean_evicted_bytes: u64,
    /// Bytes copied in vain, because they changed meanwhile.
    pub skipped_bytes: u64,
    /// Bytes of read-dominated files demoted with a clean page left in DRAM.
    pub to_dram_bytes: u64,
    /// The time of the first decision to promote into DRAM, in seconds since mount.
    pub to_dram_first_seconds: Option<f64>,
}

/// The movement that is under way, queued, or was under way a moment ago.
fn migration_state(migration: &Migration, now_ns: u64) -> &'static str {
    let moved = migration.store.pressure.moved();
    let lately = |at: &AtomicU64| match at.load(Ordering::Relaxed) {
        0 => false,
        at => now_ns.saturating_sub(at) < STATUS_REMEMBERS_FOR.as_nanos() as u64,
    };
    let queued = migration.store.pressure.in_flight() > 0 || !migration.victims.is_empty();
    if migration.store.pressure.is_stuck() {
        "waiting"
    } else if queued || lately(&moved.last_down) {
        "demoting"
    } else if lately(&moved.last_up) || !migration.store.dram.promotions().is_empty() {
        "promoting"
    } else if lately(&moved.last_spill) {
        "spilling"
    } else {
        "idle"
    }
}

/// The report of migration since mount.
pub fn migration_report(migration: &Migration, now_ns: u64) -> MigrationReport {
    let reason = migration.store.pressure.reason().map(|error| error.to_string());
    let moved = migration.store.pressure.moved();
    let bytes = |blocks: &AtomicU64| blocks.load(Ordering::Relaxed) * BLOCK_SIZE;
    MigrationReport {
        state: migration_state(migration, now_ns),
        reason,
        demoted_bytes: bytes(&moved.demoted),
        in_place_bytes: bytes(&moved.in_place),
        promoted_bytes: bytes(&moved.promoted),
        moved_below_bytes: bytes(&moved.relocated),
        spilled_bytes: bytes(&moved.spilled),
        spill_failures: migration.spilling.failures(),
        spill_reason: migration.spilling.reason(),
        clean_evicted_bytes: bytes(&moved.evicted_clean),
        skipped_bytes: bytes(&moved.skipped),
        to_dram_bytes: migration.store.dram.kept_copies().bytes(),
        to_dram_first_seconds: migration.store.dram.kept_copies().first_seconds(),
    }
}
