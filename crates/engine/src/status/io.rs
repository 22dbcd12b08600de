//! Counts of I/O by tier (`terrace iostat`).

use crate::engine::Engine;
use crate::status::tiers::tier_status;
use serde::Serialize;
use terrace_format::TierId;
use terrace_migration::report::migration_report;
use terrace_store::error::FsResult;
use terrace_store::parts::devices::io_count::{IoSums, TierIo};

/// Counts of I/O since the mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IoReport {
    /// Monotonic time of the report, in nanoseconds.
    pub at_ns: u64,
    /// The same at mount.
    pub mounted_at_ns: u64,
    /// Counts of each tier, tier 0 first.
    pub tiers: Vec<TierIo>,
    /// Reads of cold blocks that DRAM served, and pages put into DRAM.
    pub dram: IoSums,
    /// Bytes of DRAM in use for these pages.
    pub dram_used_bytes: u64,
    /// Bytes demoted since mount.
    pub demoted_bytes: u64,
    /// Bytes promoted since mount.
    pub promoted_bytes: u64,
    /// Bytes relocated from one lower tier to another since mount.
    pub moved_below_bytes: u64,
    /// Relocated bytes that a nearly full tier spilled.
    pub spilled_bytes: u64,
}

/// Counts of I/O since the mount. Waits for the scan after mount: not for a request thread.
///
/// # Errors
/// EIO when the tiers' use cannot be read.
pub fn io_report(engine: &Engine) -> FsResult<IoReport> {
    let migration = migration_report(&engine.migration, engine.store.clock.monotonic_ns());
    let tiers = tier_status(engine)?.into_iter().map(|tier| TierIo {
        id: tier.id,
        kind: tier.kind,
        capacity_bytes: tier.capacity_bytes,
        used_bytes: tier.used_bytes,
        timed: tier.id > 0,
        sums: match tier.id {
            0 => engine.store.devices.io().pm.sums(),
            id => engine.store.devices.io().of_devices(&engine.store.devices.of_tier(TierId(id))),
        },
    });
    Ok(IoReport {
        tiers: tiers.collect(),
        at_ns: engine.store.clock.monotonic_ns(),
        mounted_at_ns: engine.store.devices.io().mounted_at_ns,
        dram: engine.store.devices.io().dram.sums(),
        dram_used_bytes: engine.store.dram.cache().bytes(),
        demoted_bytes: migration.demoted_bytes,
        promoted_bytes: migration.promoted_bytes,
        moved_below_bytes: migration.moved_below_bytes,
        spilled_bytes: migration.spilled_bytes,
    })
}

/// When a device of a lower tier last answered, or was first asked after a rest, in monotonic nanoseconds. A
/// device that hangs leaves the time unchanged.
pub(crate) fn devices_answered_ns(engine: &Engine) -> u64 {
    engine.store.devices.io().answered_ns()
}
