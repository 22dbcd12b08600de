//! Status of tiers and devices.

use crate::engine::Engine;
use crate::status::health::{health, pm_trouble};
use serde::Serialize;
use std::collections::HashMap;
use terrace_format::BLOCK_SIZE;
use terrace_media::Promise;
use terrace_media::block::HostRoom;
use terrace_runtime::sync::atomic::Ordering;
use terrace_space::SpaceTotals;
use terrace_store::error::FsResult;
use terrace_store::parts::devices::speeds::{SpeedStatus, class_name, speed_status};
use terrace_store::pressure::pm_space::wait_for_scan;
use terrace_store::types::Wait;

/// A device of a tier.
#[derive(Debug, Clone, Serialize)]
pub struct DeviceStatus {
    /// Path or name.
    pub path: String,
    /// Bytes.
    pub capacity_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Health: ok or degraded.
    pub health: &'static str,
    /// Used bytes of metadata pages, counted by `status::pool::status` alone.
    pub metadata_bytes: u64,
    /// The reason when the device is degraded.
    pub reason: Option<String>,
    /// I/O errors of the device since mount.
    pub errors: u64,
    /// Blocks read with a wrong checksum since mount; of PM, metadata pages and data.
    pub checksum_errors: u64,
    /// Class of its speed, or its kind.
    pub class: &'static str,
    /// Its speed, if known.
    pub speed: Option<SpeedStatus>,
}

/// A tier.
#[derive(Debug, Clone, Serialize)]
pub struct TierStatus {
    /// Number of the tier; 0 is PM.
    pub id: u8,
    /// `ram` or `journaled` for tier 0, else the class of the first device.
    pub kind: &'static str,
    /// The promise: the crashes that persisted or flushed data survives.
    pub promise: &'static str,
    /// Its devices.
    pub devices: Vec<DeviceStatus>,
    /// Bytes.
    pub capacity_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
}

pub(crate) fn tier_status(engine: &Engine) -> FsResult<Vec<TierStatus>> {
    wait_for_scan(&engine.store, Wait::Allowed)?;
    let usage = engine.store.persistent.blocks().usage();
    let capacity = usage.total * BLOCK_SIZE;
    let used = (usage.total - usage.free - usage.quarantined) * BLOCK_SIZE;
    let pm = DeviceStatus {
        path: engine.store.persistent.pm().describe(),
        capacity_bytes: capacity,
        used_bytes: used,
        metadata_bytes: 0,
        health: health(pm_trouble(engine).is_none()),
        reason: pm_trouble(engine),
        errors: engine.store.persistent.pm().error_count(),
        checksum_errors: engine.store.persistent.wal().checksums().damaged()
            + engine.store.persistent.damaged_data(),
        class: "pm",
        speed: None,
    };
    let is_journaled = engine.store.persistent.pm().journal_status().is_some();
    let mut tiers = vec![TierStatus {
        id: 0,
        kind: if is_journaled { "journaled" } else { "ram" },
        promise: engine.store.persistent.pm().promise().name(),
        devices: vec![pm],
        capacity_bytes: capacity,
        used_bytes: used,
    }];
    for tier in engine.store.devices.tiers() {
        let mut devices = Vec::new();
        for id in engine.store.devices.of_tier(tier) {
            let device = &engine.store.devices.list()[usize::from(id.0)];
            let SpaceTotals { total, free } = engine.store.devices.space().totals_now(&[id]);
            let row = engine.store.persistent.superblock().device_rows().get(usize::from(id.0));
            devices.push(DeviceStatus {
                path: device.medium.name().to_string(),
                capacity_bytes: total * BLOCK_SIZE,
                used_bytes: (total - free) * BLOCK_SIZE,
                metadata_bytes: 0,
                health: health(device.is_healthy()),
                reason: device.reason(),
                errors: device.medium.error_count(),
                checksum_errors: device.damaged.load(Ordering::Relaxed),
                class: row.map_or("ssd", class_name),
                speed: row.and_then(speed_status),
            });
        }
        // The promise of a tier is the weakest promise of its devices.
        let promises = engine
            .store
            .devices
            .of_tier(tier)
            .into_iter()
            .map(|id| engine.store.devices.list()[usize::from(id.0)].promise());
        let promise = promises.fold(Promise::PowerFail, |weakest, promise| match promise {
            Promise::PowerFail => weakest,
            weaker => weaker,
        });
        tiers.push(TierStatus {
            id: tier.0,
            kind: devices.first().map_or("ssd", |device| device.class),
            promise: promise.name(),
            capacity_bytes: devices.iter().map(|device| device.capacity_bytes).sum(),
            used_bytes: devices.iter().map(|device| device.used_bytes).sum(),
            devices,
        });
    }
    Ok(tiers)
}

/// Free blocks of a device that is a file, as far as its host file system has room for them: blocks that the
/// file has beyond its used ones need no room. `left_of_host`: room that each host file system has left for
/// later devices.
pub(crate) fn free_on_host(
    totals: &SpaceTotals,
    room: &HostRoom,
    left_of_host: &mut HashMap<u64, u64>,
) -> u64 {
    // The header block is in use too.
    let used = totals.total.saturating_sub(totals.free) + 1;
    let there = (room.allocated_bytes / BLOCK_SIZE).saturating_sub(used).min(totals.free);
    let left = left_of_host.entry(room.host).or_insert(room.free_bytes / BLOCK_SIZE);
    let more = (totals.free - there).min(*left);
    *left -= more;
    there + more
}
