//! Recovery: find the valid records, replay them in LSN order, raise checkpoint and epoch (design T8).
//!
//! The cost of a recovery depends on the size of the lanes only. The set of valid records is fixed before the
//! first write, so a crash inside recovery changes nothing.

use crate::checkpoint_state::CheckpointState;
use crate::error::{Error, Result};
use crate::lane::Lane;
use crate::page_checksums::PageChecksums;
use crate::scan::find_records;
use crate::wal::Wal;
use std::sync::Arc;
use terrace_format::checkpoint::Checkpoint;
use terrace_format::geometry::CHECKPOINT_COPIES;
use terrace_format::record::Record;
use terrace_format::{BLOCK_SIZE, Geometry, Lsn};
use terrace_media::PmMedium;
use terrace_runtime::pause;
use terrace_runtime::sync::atomic::{AtomicBool, AtomicU64};
use terrace_runtime::sync::{Condvar, Mutex, PoolLocks};

/// The findings of a recovery.
#[derive(Debug, Clone, Default)]
pub struct RecoveryReport {
    /// The pool was unmounted in order.
    pub clean: bool,
    /// Records replayed.
    pub records_replayed: u64,
    /// Bytes they took in the lanes.
    pub bytes_replayed: u64,
    /// Damage that recovery could repair (a damaged checkpoint copy), in sentences.
    pub warnings: Vec<String>,
}

/// The checkpoint from which recovery starts.
#[derive(Debug)]
pub struct FoundCheckpoint {
    /// The valid one with the higher sequence.
    pub point: Checkpoint,
    /// Index of the copy that holds it.
    pub copy: usize,
    /// The damage of the other copy, in sentences.
    pub warnings: Vec<String>,
}

/// Reads both checkpoint copies and takes the valid one with the higher sequence.
///
/// # Errors
/// When neither is valid.
pub fn read_checkpoint(
    pm: &dyn PmMedium,
    pool_uuid: &[u8; 16],
    geometry: &Geometry,
) -> Result<FoundCheckpoint> {
    let mut best: Option<(usize, Checkpoint)> = None;
    let mut warnings = Vec::new();
    for (index, copy) in CHECKPOINT_COPIES.into_iter().enumerate() {
        let mut block = [0; BLOCK_SIZE as usize];
        let read = pm.read(copy.offset(), &mut block).map_err(Error::from);
        let decoded = read.and_then(|()| Ok(Checkpoint::decode(&block, pool_uuid, geometry.lane_count)?));
        match decoded {
            Ok(point) if best.as_ref().is_none_or(|(_, b)| b.sequence < point.sequence) => {
                best = Some((index, point));
            }
            Ok(_) => {}
            Err(error) => warnings.push(format!("checkpoint copy {index}: {error}")),
        }
    }
    let (copy, point) = best.ok_or_else(|| {
        Error::Refused(format!("both checkpoint copies are damaged ({})", warnings.join("; ")).into())
    })?;
    for warning in &mut warnings {
        warning.push_str("; the other is used");
    }
    Ok(FoundCheckpoint { point, copy, warnings })
}

/// Stores what records say in place.
fn replay(pm: &dyn PmMedium, checksums: &PageChecksums, records: &[Record]) -> Result<()> {
    for record in records {
        for (offset, content) in record.writes() {
            pm.write(offset, content)?;
            checksums.replayed(offset, content);
        }
    }
    Ok(())
}

impl Wal {
    /// Opens the log of a pool: recovers, then accepts transactions.
    ///
    /// # Errors
    /// Both checkpoint copies damaged, an unreadable lane, the medium's.
    pub fn open(
        pm: Arc<dyn PmMedium>,
        pool_uuid: [u8; 16],
        geometry: Geometry,
    ) -> Result<(Wal, RecoveryReport)> {
        let FoundCheckpoint { point: old, copy, mut warnings } =
            read_checkpoint(&*pm, &pool_uuid, &geometry)?;
        let valid = find_records(&*pm, &pool_uuid, &geometry, &old)?;
        warnings.extend(valid.warnings);
        pause::at_unlocked("recovery:read");
        // When the daemon alone has died, PM shows records whose fence never came: replayed, they could be half there after
        // a loss of power. Not only an order: what they free below must not be reused before they are durable (T6).
        pm.persist()?;
        let checksums = Arc::new(PageChecksums::new(Arc::clone(&pm), geometry, pool_uuid));
        let (first, second) = valid.records.split_at(valid.records.len() / 2);
        replay(&*pm, &checksums, first)?;
        pause::at_unlocked("recovery:replay");
        replay(&*pm, &checksums, second)?;
        checksums.expect_open()?;
        // Before the checkpoint passes the records.
        pm.order();
        pause::at_unlocked("recovery:replayed");
        let report = RecoveryReport {
            clean: old.clean,
            records_replayed: valid.records.len() as u64,
            bytes_replayed: valid.records.iter().map(|record| record.ring_bytes).sum(),
            warnings,
        };
        let last = valid.records.last().map_or(old.lsn, |record| record.lsn.max(old.lsn));
        let next = Checkpoint {
            lsn: Lsn(last.0 + 1),
            epoch: old.epoch + 1,
            sequence: old.sequence + 1,
            clean: false,
            tails: valid.ends,
        };
        let wal = Wal::with_checkpoint(pm, pool_uuid, geometry, next.clone(), checksums);
        // The copy that was read from is overwritten last: the other copy may be torn, and a crash now must
        // leave a valid copy.
        wal.write_checkpoint(&next, 1 - copy)?;
        pause::at_unlocked("recovery:raised");
        Ok((wal, report))
    }

    /// Writes the first checkpoint of a new pool (mkfs).
    ///
    /// # Errors
    /// The medium's.
    pub fn format(pm: Arc<dyn PmMedium>, pool_uuid: [u8; 16], geometry: Geometry) -> Result<()> {
        let tails = vec![0; geometry.lane_count as usize];
        let first = Checkpoint { lsn: Lsn(1), epoch: 1, sequence: 1, clean: true, tails };
        let checksums = Arc::new(PageChecksums::new(Arc::clone(&pm), geometry, pool_uuid));
        Wal::with_checkpoint(pm, pool_uuid, geometry, first.clone(), checksums).write_checkpoint(&first, 0)
    }

    fn with_checkpoint(
        pm: Arc<dyn PmMedium>,
        pool_uuid: [u8; 16],
        geometry: Geometry,
        point: Checkpoint,
        checksums: Arc<PageChecksums>,
    ) -> Wal {
        let locks = PoolLocks::new();
        let lanes = (0..geometry.lane_count).map(|index| {
            let tail = point.tails.get(index as usize).copied().unwrap_or(0);
            Lane::new(locks, index, (geometry.lane_offset(index), geometry.lane_size), tail, Lsn(0))
        });
        Wal {
            locks,
            lanes: lanes.collect(),
            pm,
            pool_uuid,
            checksums,
            geometry,
            epoch: point.epoch,
            next_lsn: AtomicU64::new(point.lsn.0),
            last_durable: AtomicU64::new(0),
            checkpoint_lsn: AtomicU64::new(point.lsn.0),
            checkpoint: Mutex::new(CheckpointState { current: point, lines: Vec::new() }),
            space_freed: (Mutex::new(()), Condvar::new()),
            stopped: AtomicBool::new(false),
            due_above: AtomicU64::new((64 << 10).min(geometry.lane_size / 4)),
        }
    }
}
