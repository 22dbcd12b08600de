//! Recovery: find the valid records, replay them in LSN order, raise checkpoint and epoch (design T8).
//!
//! Its cost depends on the size of the lanes only. The set of valid records is fixed before the first
//! write, so a crash inside recovery changes nothing.

use crate::checkpoint::CheckpointState;
use crate::error::{Error, Result};
use crate::lane::{self, Lane, read_ring};
use crate::wal::Wal;
use crc_fast::{CrcAlgorithm, Digest};
use std::sync::Arc;
use terrace_format::checkpoint::{Checkpoint, FAR};
use terrace_format::checksum::crc32c;
use terrace_format::geometry::CHECKPOINT_COPIES;
use terrace_format::record::{HEADER_SIZE, RECORD_ALIGN, Record, plausible_length};
use terrace_format::{BLOCK_SIZE, Corrupt, Geometry, Lsn};
use terrace_media::PmMedium;
use terrace_runtime::pause;
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::atomic::{AtomicBool, AtomicU64};
use terrace_runtime::sync::{Condvar, Mutex};

/// What recovery found.
#[derive(Debug, Clone, Default)]
pub struct RecoveryReport {
    /// The pool was unmounted in order.
    pub clean: bool,
    /// Records replayed.
    pub records_replayed: u64,
    /// Bytes they took in the lanes.
    pub bytes_replayed: u64,
    /// What was wrong and could be helped (a damaged checkpoint copy), in sentences.
    pub warnings: Vec<String>,
}

/// The records that a mount would replay, and where each lane ends.
#[derive(Debug)]
pub struct ValidRecords {
    /// In LSN order.
    pub records: Vec<Record>,
    /// Position after each lane's last valid record.
    pub ends: Vec<u64>,
}

/// The checkpoint from which recovery starts.
#[derive(Debug)]
pub struct FoundCheckpoint {
    /// The larger valid one.
    pub point: Checkpoint,
    /// Index of the copy that holds it.
    pub copy: usize,
    /// What was wrong with the other, in sentences.
    pub warnings: Vec<String>,
}

/// Reads both checkpoint copies and takes the larger valid one.
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

/// Scans all lanes from the checkpoint's tails.
///
/// # Errors
/// An unreadable line in a live lane: it is not the lane's end (design T3).
pub fn find_records(
    pm: &dyn PmMedium,
    pool_uuid: &[u8; 16],
    geometry: &Geometry,
    checkpoint: &Checkpoint,
) -> Result<ValidRecords> {
    let mut records = Vec::new();
    let mut ends = Vec::new();
    verify(checkpoint)?;
    for lane in 0..geometry.lane_count {
        let tail = checkpoint.tails.get(lane as usize).copied().unwrap_or(0);
        let (mut found, mut end) = scan_lane(pm, pool_uuid, geometry, checkpoint, lane, tail)?;
        // A successor proves the fence behind a record's data.
        let judged = if planted(Mistake::DataCheckOfAnyRecord) { found.len() } else { 1 };
        let proved = found.len().saturating_sub(judged);
        let judge = |record: &Record| data_is_sound(pm, geometry, record);
        if let Some(unsound) = found.iter().skip(proved).position(|record| !judge(record)) {
            let dropped = found.drain(proved + unsound..);
            end -= dropped.map(|record| record.ring_bytes).sum::<u64>();
        }
        records.append(&mut found);
        ends.push(end);
    }
    records.sort_by_key(|record| record.lsn);
    for record in &records {
        verify_record(geometry, record)?;
    }
    Ok(ValidRecords { records, ends })
}

/// Refuses numbers that no pool reaches: recovery and the mount count on from them.
fn verify(checkpoint: &Checkpoint) -> Result<()> {
    if !checkpoint.has_possible_numbers() || checkpoint.impossible_tail().is_some() {
        let expected = "numbers below 2^62 and tails at multiples of 64";
        return Err(Corrupt::new("checkpoint", expected, format!("{checkpoint:?}")).into());
    }
    Ok(())
}

/// Refuses what no operation writes: replaying it would spread the damage.
fn verify_record(geometry: &Geometry, record: &Record) -> Result<()> {
    let site = || format!("record of LSN {}", record.lsn);
    for (offset, content) in record.writes() {
        if !geometry.may_log(offset, content.len() as u64) {
            let found = format!("{} bytes at {offset}", content.len());
            return Err(Corrupt::new(site(), "writes to roots, block table and pool", found).into());
        }
    }
    if record.lsn.0 >= FAR {
        return Err(Corrupt::new(site(), "a number below 2^62", "a larger one").into());
    }
    Ok(())
}

fn scan_lane(
    pm: &dyn PmMedium,
    pool_uuid: &[u8; 16],
    geometry: &Geometry,
    checkpoint: &Checkpoint,
    lane: u32,
    tail: u64,
) -> Result<(Vec<Record>, u64)> {
    let mut records = Vec::new();
    let (mut position, mut end) = (tail, tail);
    let mut last = Lsn(checkpoint.lsn.0.saturating_sub(1));
    // Both guard against what earlier laps and mounts left in the ring: the seed of the CRC and the order.
    let in_any_order = planted(Mistake::StaleRecordsCount) && !checkpoint.clean;
    while position - tail < geometry.lane_size {
        let found = record_at(pm, pool_uuid, geometry, checkpoint.epoch, lane, position)?;
        let Some(record) = found.filter(|record| record.lsn > last || in_any_order) else {
            if planted(Mistake::RecoveryReadsPastHole) {
                position += RECORD_ALIGN;
                continue;
            }
            break;
        };
        last = record.lsn;
        position += record.ring_bytes;
        end = position;
        records.push(record);
    }
    Ok((records, end))
}

/// The record at a position, if there is a valid one.
fn record_at(
    pm: &dyn PmMedium,
    pool_uuid: &[u8; 16],
    geometry: &Geometry,
    epoch: u64,
    lane: u32,
    position: u64,
) -> Result<Option<Record>> {
    let (base, size) = (geometry.lane_offset(lane), geometry.lane_size);
    let mut header = [0; HEADER_SIZE];
    read_ring(pm, base, size, position, &mut header)?;
    let Some(length) = plausible_length(&header, geometry.max_record()) else { return Ok(None) };
    let mut bytes = vec![0; length];
    read_ring(pm, base, size, position, &mut bytes)?;
    let seed = lane::seed(pool_uuid, lane, position, epoch);
    if planted(Mistake::CommitMarkFirst) {
        seal_again(&mut bytes, seed);
    }
    Ok(Record::verify(bytes, seed, geometry.pm_size))
}

/// Gives a record the checksum that its bytes should have: [`Mistake::CommitMarkFirst`] believes them.
fn seal_again(bytes: &mut [u8], seed: u32) {
    let put = |bytes: &mut [u8], word: u32| {
        if let Some(place) = bytes.get_mut(16..20) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    };
    put(bytes, seed);
    let crc = crc32c(bytes);
    put(bytes, crc);
}

/// Judges the data that a lane's last record names (T4). Data that cannot be read keeps its record:
/// the write may have been acknowledged, and reading the file then tells of the bad range. No operation
/// names more data than there is PM, so that a crafted record does not keep us busy.
fn data_is_sound(pm: &dyn PmMedium, geometry: &Geometry, record: &Record) -> bool {
    let mut budget = geometry.pm_size;
    let mut piece = vec![0; 64 << 10];
    record.checks.iter().all(|check| {
        let Some(left) = budget.checked_sub(u64::from(check.length)) else {
            return false;
        };
        budget = left;
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        let (mut at, mut left) = (check.offset, check.length as usize);
        while left > 0 {
            let Some(into) = piece.get_mut(..left.min(64 << 10)) else {
                return false;
            };
            if pm.read(at, into).is_err() {
                return true;
            }
            digest.update(into);
            at = at.plus(into.len() as u64);
            left -= into.len();
        }
        digest.finalize() as u32 == check.crc
    })
}

/// Stores what records say in place.
fn replay(pm: &dyn PmMedium, records: &[Record]) -> Result<()> {
    for record in records {
        for (offset, content) in record.writes() {
            pm.write(offset, content)?;
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
        let FoundCheckpoint { point: old, copy, warnings } = read_checkpoint(&*pm, &pool_uuid, &geometry)?;
        let valid = find_records(&*pm, &pool_uuid, &geometry, &old)?;
        pause::at_unlocked("recovery:read");
        // When the daemon alone has died, PM shows records whose fence never came: replayed, they could be half there after
        // a loss of power. Not only an order: what they free below must not be reused before they are durable (T6).
        pm.persist();
        let (first, second) = valid.records.split_at(valid.records.len() / 2);
        replay(&*pm, first)?;
        pause::at_unlocked("recovery:replay");
        replay(&*pm, second)?;
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
        let wal = Wal::with_checkpoint(pm, pool_uuid, geometry, next.clone());
        // The copy that was read from is overwritten last: the other may be torn, and this is all there is.
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
        Wal::with_checkpoint(pm, pool_uuid, geometry, first.clone()).write_checkpoint(&first, 0)
    }

    fn with_checkpoint(
        pm: Arc<dyn PmMedium>,
        pool_uuid: [u8; 16],
        geometry: Geometry,
        point: Checkpoint,
    ) -> Wal {
        let lanes = (0..geometry.lane_count).map(|index| {
            let tail = point.tails.get(index as usize).copied().unwrap_or(0);
            Lane::new(index, geometry.lane_offset(index), geometry.lane_size, tail, Lsn(0))
        });
        Wal {
            lanes: lanes.collect(),
            pm,
            pool_uuid,
            geometry,
            epoch: point.epoch,
            next_lsn: AtomicU64::new(point.lsn.0),
            checkpoint_lsn: AtomicU64::new(point.lsn.0),
            checkpoint: Mutex::new(CheckpointState { current: point, lines: Vec::new() }),
            space_freed: (Mutex::new(()), Condvar::new()),
            stopped: AtomicBool::new(false),
            due_above: AtomicU64::new((64 << 10).min(geometry.lane_size / 4)),
        }
    }
}
