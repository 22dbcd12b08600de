//! Migration in numbers, for status and iostat.

use crate::migration::Migration;
use serde::Serialize;
use std::time::Duration;
use terrace_format::BLOCK_SIZE;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

/// How long after a move status speaks of it.
pub const LATELY: Duration = Duration::from_secs(1);

/// What status shows.
#[derive(Debug, Clone, Serialize)]
pub struct MigrationReport {
    /// idle, demoting, promoting, spilling (also when it was so a moment ago), waiting.
    pub state: &'static str,
    /// Why something is stuck.
    pub reason: Option<String>,
    /// Bytes written to lower tiers since mount.
    pub demoted_bytes: u64,
    /// Of them, those that were written over their old copies.
    pub in_place_bytes: u64,
    /// Bytes brought into PM since mount.
    pub promoted_bytes: u64,
    /// Bytes moved from one lower tier to another since mount.
    pub moved_below_bytes: u64,
    /// Of them, those that a tier gave away because it was nearly full.
    pub spilled_bytes: u64,
    /// Attempts of that which moved nothing, or failed.
    pub spill_failures: u64,
    /// Why a tier that is nearly full stays so.
    pub spill_reason: Option<String>,
    /// Bytes of PM given up without a write, because the cold copy was still good.
    pub clean_evicted_bytes: u64,
    /// Bytes copied in vain, because they changed meanwhile.
    pub skipped_bytes: u64,
    /// Bytes of read-dominated files of which a copy stayed in DRAM when they went below PM.
    pub to_dram_bytes: u64,
    /// When it was first decided that some should, in seconds since mount.
    pub to_dram_first_seconds: Option<f64>,
}

/// What is under way, queued, or was until a moment ago.
fn migration_state(migration: &Migration, now_ns: u64) -> &'static str {
    let moved = migration.store.pressure.moved();
    let lately = |at: &AtomicU64| match at.load(Ordering::Relaxed) {
        0 => false,
        at => now_ns.saturating_sub(at) < LATELY.as_nanos() as u64,
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

/// What migration does and did.
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
