//! The answers to `terrace status`, `terrace where` and statfs.

use crate::engine::Engine;
use crate::requests::request_reports;
use crate::status::health::pm_trouble;
use crate::status::lazy::{LazyStatus, lazy_status};
use crate::status::metadata::{MetadataStatus, metadata_status};
use crate::status::parameters::{ParametersStatus, parameters_status};
use crate::status::placement::{PlacementStatus, placement_status};
use crate::status::tiers::{TierStatus, tier_status};
use serde::Serialize;
use terrace_format::BLOCK_SIZE;
use terrace_format::cuckoo_map::{BUCKET_ENTRIES, Buckets, is_free};
use terrace_format::map_kind::MapKind;
use terrace_media::pm::JournalStatus;
use terrace_migration::report::{MigrationReport, migration_report};
use terrace_migration::requested::progress::RequestReport;
use terrace_placement::Observation;
use terrace_store::error::FsResult;
use terrace_store::steering::learn::with_flows;
use zerocopy::IntoBytes;

/// The recovery of the last mount.
#[derive(Debug, Clone, Serialize)]
pub struct RecoveryStatus {
    /// Duration of the replay.
    pub duration_seconds: f64,
    /// Records replayed.
    pub records_replayed: u64,
    /// Bytes of these records in the lanes.
    pub bytes_replayed: u64,
    /// Whether the pool had been unmounted cleanly.
    pub clean: bool,
    /// Troubles that the mount met and could work around.
    pub warnings: Vec<String>,
}

/// The write-ahead log.
#[derive(Debug, Clone, Serialize)]
pub struct LogStatus {
    /// Bytes of all lanes.
    pub capacity_bytes: u64,
    /// Bytes that a mount would replay if the daemon died now.
    pub used_bytes: u64,
    /// The journal of a journaled tier 0.
    pub journal: Option<JournalStatus>,
}

/// DRAM in use.
#[derive(Debug, Clone, Serialize)]
pub struct DramStatus {
    /// Clean pages of lower tiers.
    pub cache_bytes: u64,
    /// Most dirty bytes.
    pub buffer_bytes: u64,
    /// Dirty bytes, which only DRAM has.
    pub dirty_bytes: u64,
    /// Writes that wait for PM.
    pub lazy: LazyStatus,
}

/// The state of a mounted pool.
#[derive(Debug, Clone, Serialize)]
pub struct FsStatus {
    /// Label given at mkfs.
    pub label: String,
    /// The tiers, tier 0 first.
    pub tiers: Vec<TierStatus>,
    /// Kind of file map.
    pub map: &'static str,
    /// The load of the file map.
    pub table: TableStatus,
    /// Policy in force.
    pub policy: &'static str,
    /// Data mode: atomic or ordered.
    pub data_mode: &'static str,
    /// PM use in percent above which the policy demotes.
    pub threshold: Option<u8>,
    /// Parameters in force, as mount options set them.
    pub parameters: ParametersStatus,
    /// The predictors, when the policy has any.
    pub placement: Option<PlacementStatus>,
    /// Migration.
    pub migration: MigrationReport,
    /// Metadata on lower tiers.
    pub metadata: MetadataStatus,
    /// Requested movements that wait, are under way, or ended lately.
    pub moves: Vec<RequestReport>,
    /// The last mount.
    pub recovery: RecoveryStatus,
    /// The log.
    pub log: LogStatus,
    /// DRAM.
    pub dram: DramStatus,
    /// Bytes acknowledged and not yet durable.
    pub bytes_not_yet_durable: u64,
    /// Medium of tier 0 and its page size.
    pub pm: String,
    /// Whether the pool is mounted with -o ro.
    pub read_only: bool,
    /// Background steps that panicked since mount. Each of them starts again after a rest.
    pub panics: Vec<StepPanics>,
    /// False when PM or a device had errors, or a background step panicked.
    pub healthy: bool,
}

/// The load of a file map, and of the table where all files share one: the block table, a clustered table, or a cuckoo table.
#[derive(Debug, Clone, Serialize)]
pub struct TableStatus {
    /// Blocks in use in percent of all blocks; with a cuckoo table of the places in its buckets; with a clustered table lines
    /// in use of all lines.
    pub load_percent: f64,
    /// The largest distance of a block from its home, in slots or lines, of the blocks that were put since the mount. `None`
    /// with a map without reach, as the next two.
    pub longest_distance: Option<u64>,
    /// The stored reach: distances of blocks from their homes are below the reach. `None` also when it cannot be read.
    pub reach: Option<u64>,
    /// How often since the mount the first free slot or line was more than 64 of them from its home.
    pub far_searches: Option<u64>,
    /// Entries in the stash of a cuckoo table. `None` with another map, and when the stash cannot be read.
    pub stash_entries: Option<u64>,
    /// Entries of a cuckoo table that were moved since the mount to make room, those into the stash included. `None` with
    /// another map.
    pub moves: Option<u64>,
}

/// A background step that panicked.
#[derive(Debug, Clone, Serialize)]
pub struct StepPanics {
    /// Its name.
    pub step: &'static str,
    /// Number of panics.
    pub count: u64,
}

/// Present state. Waits for the scan after mount: not for a request thread.
///
/// # Errors
/// EIO when the tiers' use cannot be read.
pub fn status(engine: &Engine) -> FsResult<FsStatus> {
    let mut tiers = tier_status(engine)?;
    let metadata = metadata_status(engine, &mut tiers);
    let panics = engine.panics.counts().into_iter().map(|(step, count)| StepPanics { step, count });
    let panics: Vec<_> = panics.collect();
    let devices = engine.store.devices.list().iter().all(|device| device.is_healthy());
    let healthy = pm_trouble(engine).is_none() && devices && panics.is_empty();
    let label = engine
        .store
        .persistent
        .superblock()
        .label
        .iter()
        .take_while(|byte| **byte != 0)
        .copied()
        .collect::<Vec<u8>>();
    let journal = engine.store.persistent.pm().journal_status();
    Ok(FsStatus {
        label: String::from_utf8_lossy(&label).into_owned(),
        tiers,
        map: terrace_map::registry::name_of(engine.store.persistent.superblock().map).unwrap_or("unknown"),
        table: table_status(engine),
        policy: engine.store.steering.policy().name(),
        data_mode: if engine.store.mode.data_ordered { "ordered" } else { "atomic" },
        threshold: engine
            .store
            .steering
            .policy()
            .threshold_percent(&with_flows(&engine.store, Observation::default())),
        parameters: parameters_status(engine),
        placement: placement_status(engine),
        migration: migration_report(&engine.migration, engine.store.clock.monotonic_ns()),
        metadata,
        moves: request_reports(engine),
        recovery: RecoveryStatus {
            duration_seconds: engine.recovery_ns as f64 / 1e9,
            records_replayed: engine.recovery.records_replayed,
            bytes_replayed: engine.recovery.bytes_replayed,
            clean: engine.recovery.clean,
            warnings: engine.recovery.warnings.clone(),
        },
        log: log_status(engine, journal.clone()),
        dram: DramStatus {
            cache_bytes: engine.store.dram.cache().bytes(),
            buffer_bytes: engine.store.dram.write_back().limit_pages * BLOCK_SIZE,
            dirty_bytes: engine.store.dram.cache().dirty_bytes(),
            lazy: lazy_status(engine),
        },
        bytes_not_yet_durable: engine.store.dram.cache().dirty_bytes()
            + journal.as_ref().map_or(0, |journal| journal.waiting_bytes),
        pm: engine.store.persistent.pm().describe(),
        read_only: engine.store.mode.read_only,
        panics,
        healthy,
    })
}

fn table_status(engine: &Engine) -> TableStatus {
    let blocks = engine.store.persistent.blocks();
    let geometry = blocks.wal().geometry();
    let usage = blocks.usage();
    let used = (usage.total - usage.free) as f64 * 100.0;
    let mut status = TableStatus {
        load_percent: used / usage.total as f64,
        longest_distance: None,
        reach: None,
        far_searches: None,
        stash_entries: None,
        moves: None,
    };
    let Some(hashed) = blocks.hashed() else { return status };
    match geometry.map {
        MapKind::Cuckoo => {
            status.load_percent = used / (geometry.map_buckets() * BUCKET_ENTRIES as u64) as f64;
            status.stash_entries = stash_entries(engine, &Buckets::new(hashed.key, geometry));
            status.moves = Some(hashed.moves());
        }
        // A clustered table has a line for sixteen blocks, and is nearly empty in a full pool of large files.
        MapKind::Clustered => {
            status.load_percent = hashed.presence.sixteens() as f64 * 100.0 / geometry.map_lines() as f64;
        }
        _ => {}
    }
    if geometry.map.has_reach() {
        status.longest_distance = Some(hashed.longest_distance());
        status.reach = engine.store.persistent.pm().load_u64(geometry.map_reach()).ok();
        status.far_searches = Some(hashed.far_searches());
    }
    status
}

/// Entries in the stash of a cuckoo table, counted while it may change.
fn stash_entries(engine: &Engine, buckets: &Buckets) -> Option<u64> {
    let mut entries = 0;
    for line in buckets.stash() {
        let mut words = [[0u64; 2]; BUCKET_ENTRIES];
        engine.store.persistent.pm().read(buckets.line(line), words.as_mut_bytes()).ok()?;
        entries += words.iter().filter(|words| !is_free(words)).count() as u64;
    }
    Some(entries)
}

fn log_status(engine: &Engine, journal: Option<JournalStatus>) -> LogStatus {
    let geometry = engine.store.persistent.wal().geometry();
    LogStatus {
        capacity_bytes: u64::from(geometry.lane_count) * geometry.lane_size,
        used_bytes: engine.store.persistent.wal().used_bytes(),
        journal,
    }
}
