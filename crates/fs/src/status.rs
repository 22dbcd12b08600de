//! What `terrace status`, `terrace where` and statfs tell.

use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use crate::metadata_status::MetadataStatus;
use crate::migration::{HandReport, MigrationReport};
use crate::parameters_status::ParametersStatus;
use crate::speeds::{SpeedStatus, class_name, speed_status};
use crate::tally::TallyReport;
use crate::types::{BlockRange, Space, Wait, Whereabouts};
use serde::Serialize;
use std::collections::HashMap;
use terrace_catalog::SpaceTotals;
use terrace_format::inode::{SLOTS_PER_PAGE, flag};
use terrace_format::keys::MAX_EXTENT_BLOCKS;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_media::Promise;
use terrace_media::block::HostRoom;
use terrace_placement::temperature::Times;
use terrace_placement::{Idle, Observation, Parameters};
use terrace_runtime::sync::atomic::Ordering;

/// One device of a tier.
#[derive(Debug, Clone, Serialize)]
pub struct DeviceStatus {
    /// Path or name.
    pub path: String,
    /// Bytes.
    pub capacity_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// ok or degraded.
    pub health: &'static str,
    /// Of them, those of metadata pages, counted by [`Fs::status`] alone.
    pub metadata_bytes: u64,
    /// Why it is degraded.
    pub reason: Option<String>,
    /// Errors that it answered with since mount.
    pub errors: u64,
    /// Blocks read with a wrong checksum since mount; of PM, metadata pages.
    pub checksum_errors: u64,
    /// Class of its speed, or its kind.
    pub class: &'static str,
    /// How fast it is, where that is known.
    pub speed: Option<SpeedStatus>,
}

/// One tier.
#[derive(Debug, Clone, Serialize)]
pub struct TierStatus {
    /// 0 is PM.
    pub id: u8,
    /// ram, else the class of the first device.
    pub kind: &'static str,
    /// What `persist` or `flush` survives.
    pub promise: &'static str,
    /// Its devices.
    pub devices: Vec<DeviceStatus>,
    /// Bytes.
    pub capacity_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
}

/// What the last mount found.
#[derive(Debug, Clone, Serialize)]
pub struct RecoveryStatus {
    /// Time to replay.
    pub duration_seconds: f64,
    /// Records replayed.
    pub records_replayed: u64,
    /// Bytes they took in the log.
    pub bytes_replayed: u64,
    /// The pool had been unmounted in order.
    pub clean: bool,
    /// What was wrong and could be helped.
    pub warnings: Vec<String>,
}

/// The write-ahead log.
#[derive(Debug, Clone, Serialize)]
pub struct LogStatus {
    /// Bytes of all lanes.
    pub capacity_bytes: u64,
    /// Bytes that a mount would replay if the daemon died now.
    pub used_bytes: u64,
}

/// DRAM in use.
#[derive(Debug, Clone, Serialize)]
pub struct DramStatus {
    /// Clean pages of lower tiers.
    pub cache_bytes: u64,
    /// Most dirty bytes.
    pub buffer_bytes: u64,
    /// Dirty bytes: only in DRAM.
    pub dirty_bytes: u64,
}

/// The predictors: their parameters, what they see and how good they are.
#[derive(Debug, Clone, Serialize)]
pub struct PlacementStatus {
    /// Fewer blocks written between two fsyncs: synchronous.
    pub sync_blocks: u32,
    /// A write is large when its counter is above this,
    pub large_after: u8,
    /// and it has so many bytes.
    pub large_min_bytes: u64,
    /// Bytes read from PM, a decayed sum: equation (1).
    pub pm_read_bytes: u64,
    /// Bytes written to PM, a decayed sum: equation (1).
    pub pm_written_bytes: u64,
    /// Bytes read from PM to bytes read from DRAM in the last seconds, four as a rule: equation (2).
    pub dataflow_ratio: Option<f64>,
    /// The side that idled in each of them: dram, pm or none.
    pub dataflow_idle: &'static str,
    /// Writes that the predictors saw since mount.
    pub writes_seen: u64,
    /// Bytes since mount whose home was a block tier.
    pub block_home_bytes: u64,
    /// The synchronicity predictor's predictions and what happened, in bytes.
    pub confusion: TallyReport,
}

/// The state of a mounted pool.
#[derive(Debug, Clone, Serialize)]
pub struct FsStatus {
    /// Label given at mkfs.
    pub label: String,
    /// Tier 0 first.
    pub tiers: Vec<TierStatus>,
    /// File map.
    pub map: &'static str,
    /// Policy in force.
    pub policy: &'static str,
    /// atomic or ordered.
    pub data_mode: &'static str,
    /// PM use in percent above which the policy demotes.
    pub threshold: Option<u8>,
    /// What mount options set, as it is in force.
    pub parameters: ParametersStatus,
    /// The predictors, when the policy has any.
    pub placement: Option<PlacementStatus>,
    /// Migration.
    pub migration: MigrationReport,
    /// Metadata below PM.
    pub metadata: MetadataStatus,
    /// Moves that users asked for: those that wait, are under way, or ended lately.
    pub moves: Vec<HandReport>,
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
    /// Mounted with -o ro.
    pub read_only: bool,
    /// Background steps that panicked since mount. Each starts again after a rest.
    pub panics: Vec<StepPanics>,
    /// False when PM or a device had errors, or a background step panicked.
    pub healthy: bool,
}

/// A background step that panicked.
#[derive(Debug, Clone, Serialize)]
pub struct StepPanics {
    /// Its name.
    pub step: &'static str,
    /// How often.
    pub count: u64,
}

fn health(ok: bool) -> &'static str {
    if ok { "ok" } else { "degraded" }
}

impl Fs {
    /// Present state. Waits for the scan after mount: not for a request thread.
    ///
    /// # Errors
    /// EIO when the tiers' use cannot be read.
    pub fn status(&self) -> FsResult<FsStatus> {
        let mut tiers = self.tier_status()?;
        let metadata = self.metadata_status(&mut tiers);
        let panics = self.panics.counts().into_iter().map(|(step, count)| StepPanics { step, count });
        let panics: Vec<_> = panics.collect();
        let devices = self.devices.list.iter().all(|device| device.is_healthy());
        let healthy = self.pm_trouble().is_none() && devices && panics.is_empty();
        let label = self.superblock.label.iter().take_while(|byte| **byte != 0).copied().collect::<Vec<u8>>();
        Ok(FsStatus {
            label: String::from_utf8_lossy(&label).into_owned(),
            tiers,
            map: "radix",
            policy: self.policy.name(),
            data_mode: if self.data_ordered { "ordered" } else { "atomic" },
            threshold: self.policy.threshold_percent(&self.with_flows(Observation::default())),
            parameters: self.parameters_status(),
            placement: self.placement_status(),
            migration: self.migration_report(self.clock.monotonic_ns()),
            metadata,
            moves: self.hand_reports(),
            recovery: RecoveryStatus {
                duration_seconds: self.recovery_ns as f64 / 1e9,
                records_replayed: self.recovery.records_replayed,
                bytes_replayed: self.recovery.bytes_replayed,
                clean: self.recovery.clean,
                warnings: self.recovery.warnings.clone(),
            },
            log: self.log_status(),
            dram: DramStatus {
                cache_bytes: self.cache.bytes(),
                buffer_bytes: self.write_back.limit_pages * BLOCK_SIZE,
                dirty_bytes: self.cache.dirty_bytes(),
            },
            bytes_not_yet_durable: self.cache.dirty_bytes(),
            pm: self.pm.describe(),
            read_only: self.read_only,
            panics,
            healthy,
        })
    }

    fn placement_status(&self) -> Option<PlacementStatus> {
        if !self.policy.steers_writes() {
            return None;
        }
        let Parameters { sync_blocks, large_after, large_min, .. } = self.parameters;
        let window = self.flows.window();
        let mut confusion = self.tally.report();
        self.files.unsettled(self.tick.load(Ordering::Relaxed), |judgement, idle, bytes| {
            let row = confusion.row_mut(judgement);
            *if idle { &mut row.unsynced_bytes } else { &mut row.open_bytes } += bytes;
        });
        let (writes_seen, block_home_bytes) = self.flows.steered();
        Some(PlacementStatus {
            sync_blocks,
            large_after,
            large_min_bytes: large_min,
            pm_read_bytes: window.decayed().pm_read,
            pm_written_bytes: window.decayed().pm_written,
            dataflow_ratio: window.dataflow_ratio(),
            dataflow_idle: match window.idle() {
                Idle::Neither => "none",
                Idle::Dram => "dram",
                Idle::Pm => "pm",
            },
            writes_seen,
            block_home_bytes,
            confusion,
        })
    }

    /// What is wrong with PM.
    fn pm_trouble(&self) -> Option<String> {
        if self.wal.is_stopped() {
            return Some("takes no more changes after an error".to_string());
        }
        let (errors, damaged) = (self.pm.error_count(), self.wal.checksums().damaged());
        let mut reasons = Vec::new();
        if errors > 0 {
            reasons.push(format!("errors of persistent memory since mount: {errors}"));
        }
        if damaged > 0 {
            reasons.push(format!("metadata pages that do not match their checksums: {damaged}"));
        }
        let damaged = self.damaged_data.load(Ordering::Relaxed);
        if damaged > 0 {
            reasons.push(format!("uses of data that does not match its checksum: {damaged}"));
        }
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    fn log_status(&self) -> LogStatus {
        let geometry = self.wal.geometry();
        LogStatus {
            capacity_bytes: u64::from(geometry.lane_count) * geometry.lane_size,
            used_bytes: self.wal.used_bytes(),
        }
    }

    pub(crate) fn tier_status(&self) -> FsResult<Vec<TierStatus>> {
        self.wait_for_scan(Wait::Allowed)?;
        let usage = self.blocks.usage();
        let capacity = usage.total * BLOCK_SIZE;
        let used = (usage.total - usage.free - usage.quarantined) * BLOCK_SIZE;
        let pm = DeviceStatus {
            path: self.pm.describe(),
            capacity_bytes: capacity,
            used_bytes: used,
            metadata_bytes: 0,
            health: health(self.pm_trouble().is_none()),
            reason: self.pm_trouble(),
            errors: self.pm.error_count(),
            checksum_errors: self.wal.checksums().damaged() + self.damaged_data.load(Ordering::Relaxed),
            class: "pm",
            speed: None,
        };
        let mut tiers = vec![TierStatus {
            id: 0,
            kind: "ram",
            promise: self.pm.promise().name(),
            devices: vec![pm],
            capacity_bytes: capacity,
            used_bytes: used,
        }];
        for tier in self.devices.tiers() {
            let mut devices = Vec::new();
            for id in self.devices.of_tier(tier) {
                let device = &self.devices.list[usize::from(id.0)];
                let SpaceTotals { total, free } = self.devices.space.totals_now(&[id]);
                let row = self.superblock.device_rows().get(usize::from(id.0));
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
            // The weakest of its devices' promises.
            let promises = self
                .devices
                .of_tier(tier)
                .into_iter()
                .map(|id| self.devices.list[usize::from(id.0)].promise());
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

    /// Blocks of all tiers together, used or not.
    pub(crate) fn capacity(&self) -> u64 {
        let below = self.devices.list.iter().map(|device| device.medium.blocks().saturating_sub(1));
        self.blocks.usage().total + below.sum::<u64>()
    }

    /// Waits for the end of the scan after mount, which shortage, statfs and ENOSPC need (design 4.2), and
    /// helps with it.
    ///
    /// # Errors
    /// `WouldBlock` when it is under way and the caller may not wait; EIO.
    pub(crate) fn wait_for_scan(&self, wait: Wait) -> FsResult<()> {
        if self.blocks.usage().unknown == 0 && self.devices.space.is_loaded() {
            return Ok(());
        }
        if wait != Wait::Allowed {
            return Err(FsError::WouldBlock);
        }
        while self.blocks.scan_step()? || self.devices.space.load_step()? {}
        Ok(())
    }

    /// Space of all tiers together, when the scan after mount has counted it.
    ///
    /// # Errors
    /// `WouldBlock` when it has not and the caller may not wait; EIO.
    pub fn statfs(&self, wait: Wait) -> FsResult<Space> {
        self.wait_for_scan(wait)?;
        let usage = self.blocks.usage();
        let mut space = Space {
            blocks: usage.total,
            free: usage.free + usage.quarantined,
            available: 0,
            files: 0,
            files_free: 0,
        };
        let (mut below, mut left_of_host) = (0, HashMap::new());
        for (index, device) in self.devices.list.iter().enumerate() {
            let id = terrace_format::DeviceId(index as u8);
            let totals = self.devices.space.totals_now(&[id]);
            space.blocks += totals.total;
            space.free += totals.free;
            below += match device.medium.host_room() {
                Some(room) => free_on_host(&totals, &room, &mut left_of_host),
                None => totals.free,
            };
        }
        // Promised to dirty pages.
        let promised = self.devices.space.reserved();
        space.free = space.free.saturating_sub(promised);
        let in_pm = (usage.free + usage.quarantined).saturating_sub(usage.reserve);
        let metadata = self.metadata_of(in_pm, below);
        space.available = (in_pm + below).saturating_sub(promised + metadata).min(space.free);
        // Inodes take PM blocks: as many more as pages fit.
        let pages = self.numbers.lock().pages;
        let room = usage.free.saturating_sub(usage.reserve) * SLOTS_PER_PAGE;
        space.files_free = room.min(terrace_format::address::MAX_INO.0 - pages * SLOTS_PER_PAGE);
        space.files = pages * SLOTS_PER_PAGE + space.files_free;
        Ok(space)
    }

    /// Blocks of PM that metadata takes until so many free ones of PM and below hold data: a map node for 512 blocks in PM; below,
    /// extents and bitmaps of chunks in leaves that are half full, the first of each shard included; and some for what grows by a
    /// page or by a claim.
    fn metadata_of(&self, in_pm: u64, below: u64) -> u64 {
        const OF_PM: u64 = 256;
        const ALWAYS: u64 = 16;
        // Bytes of a cell besides the bitmap.
        const CELL: u64 = 48;
        let chunk_blocks = u64::from(self.wal.geometry().chunk_blocks);
        let extents = below.div_ceil(chunk_blocks.min(MAX_EXTENT_BLOCKS.into()));
        let chunks = below.div_ceil(chunk_blocks);
        let bytes = extents * CELL + chunks * (CELL + chunk_blocks / 8);
        // Chunks lie in the shards of their numbers, extents in that of their inode.
        let roots = u64::from(self.catalog.empty_shards()).min(chunks + 1);
        in_pm / OF_PM + bytes * 2 / BLOCK_SIZE + roots + ALWAYS
    }

    /// Where a file's blocks are.
    ///
    /// # Errors
    /// ESTALE, EIO.
    pub fn whereabouts(&self, ino: Ino) -> FsResult<Whereabouts> {
        self.whereabouts_in(ino, crate::truncate::WHOLE_FILE)
    }

    /// Where the blocks of a part of a file are.
    ///
    /// # Errors
    /// ESTALE, EIO.
    pub fn whereabouts_in(&self, ino: Ino, range: BlockRange) -> FsResult<Whereabouts> {
        self.reading(Wait::Allowed, || self.whereabouts_on_media(ino, range))
    }

    fn whereabouts_on_media(&self, ino: Ino, range: BlockRange) -> FsResult<Whereabouts> {
        let _guard = self.locks.read(ino);
        let inode = self.load_to_read(ino)?;
        let (mut written, mut read) = (Times::default(), Times::default());
        let pinned_tier = self.pin_of(&inode)?;
        let mut found = Whereabouts { size_bytes: inode.size(), pinned_tier, ..Default::default() };
        let mut bytes =
            vec![0u64; 1 + self.devices.tiers().iter().map(|tier| tier.0).max().unwrap_or(0) as usize];
        if inode.slot.is_regular() {
            let intents = self.intents_of(&inode)?;
            let gone = |block: FileBlock| intents.iter().any(|r| r.first <= block && block < r.end);
            if inode.slot.has(flag::HAS_COLD) {
                for extent in self.cold_extents(ino, range)? {
                    let tier =
                        self.devices.list.get(usize::from(extent.device.0)).map_or(1, |device| device.tier.0);
                    for index in 0..u64::from(extent.length) {
                        let block = extent.first.plus(index);
                        if block < range.first || block >= range.end || gone(block) {
                            continue;
                        }
                        match self.map.lookup(None, &inode.map(), block)? {
                            Some(_) => found.clean_bytes += BLOCK_SIZE,
                            None => bytes[usize::from(tier)] += BLOCK_SIZE,
                        }
                    }
                }
            }
            let mut at = range.first;
            while let Some((block, mapping)) = self.next_mapped(&inode, at, range.end)? {
                if !gone(block) {
                    bytes[0] += BLOCK_SIZE;
                    let descriptor = self.blocks.descriptor(mapping.block);
                    written.add(descriptor.written());
                    if descriptor.read() > 0 {
                        read.add(descriptor.read());
                    }
                }
                at = block.plus(1);
            }
        }
        found.tiers = bytes.into_iter().enumerate().map(|(tier, bytes)| (tier as u8, bytes)).collect();
        found.dirty_bytes = self.cache.count_dirty(ino) * BLOCK_SIZE;
        found.dram_bytes = self.cache.count_file(ino, inode.slot.generation.get()) * BLOCK_SIZE;
        // Of directories and links nothing is predicted.
        if inode.slot.is_regular() {
            found.predictions = self.predictions(&inode, written, read);
        }
        Ok(found)
    }
}

/// Free blocks of a device that is a file, as far as the file system that it lies on has room for them: what the file has
/// of it beyond the used blocks needs none. `left_of_host`: blocks that each such file system has left for the devices to come.
fn free_on_host(totals: &SpaceTotals, room: &HostRoom, left_of_host: &mut HashMap<u64, u64>) -> u64 {
    // The header is used.
    let used = totals.total.saturating_sub(totals.free) + 1;
    let there = (room.allocated_bytes / BLOCK_SIZE).saturating_sub(used).min(totals.free);
    let left = left_of_host.entry(room.host).or_insert(room.free_bytes / BLOCK_SIZE);
    let more = (totals.free - there).min(*left);
    *left -= more;
    there + more
}
