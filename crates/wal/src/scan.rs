//! Finds the valid records of all lanes, and tells a lane that a crash cut off from one that was damaged (design T3).
//!
//! Invariant: a lane whose valid records end before a position that the lane is known to have reached is
//! refused, never cut without a word. The position is known from, in this order of strength: 1. a valid
//! record behind the end, in the same lane; 2. a witness in a valid record of any lane.
//!
//! The newest record of all lanes has no witness: if it is damaged, it looks as if a crash had cut its write
//! off. But in-place stores begin only behind the fence of a record. So a last record with one wrong bit
//! whose changes are all in place was durable, and its replay changes no byte: it counts, with a warning. A
//! last record with one wrong bit whose changes are not in place counts as cut off, with a warning.

use crate::error::{Error, Result};
use crate::lane::{self, read_ring};
use crc_fast::{CrcAlgorithm, Digest};
use terrace_format::checkpoint::{Checkpoint, FAR};
use terrace_format::record::{HEADER_SIZE, RECORD_ALIGN, Record, Witness, header_lsn, plausible_length};
use terrace_format::record_damage::one_bit_away;
use terrace_format::{Corrupt, Geometry, Lsn, PmOffset};
use terrace_media::PmMedium;
use terrace_runtime::planted::{Mistake, planted};

/// The search behind a lane's end reads so many times the lane at most: somebody may have had records written that are
/// full of headers.
const SEARCH_FACTOR: u64 = 256;

/// The records that a mount would replay, and where each lane ends.
#[derive(Debug)]
pub struct ValidRecords {
    /// In LSN order.
    pub records: Vec<Record>,
    /// Position after each lane's last valid record.
    pub ends: Vec<u64>,
    /// Wrong bits of last records, in sentences.
    pub warnings: Vec<String>,
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
    verify(checkpoint)?;
    let lanes = Lanes { pm, pool_uuid, geometry, checkpoint };
    let scans = (0..geometry.lane_count).map(|lane| lanes.scan(lane)).collect::<Result<Vec<Scan>>>()?;
    let mut records = Vec::new();
    let mut ends = Vec::new();
    let mut warnings = Vec::new();
    for (lane, mut scan) in (0..).zip(scans_with_known_ends(scans)) {
        lanes.drop_unfinished(&mut scan);
        warnings.extend(lanes.refuse_damage(lane, &mut scan)?);
        records.append(&mut scan.records);
        ends.push(scan.end);
    }
    records.sort_by_key(|record| record.lsn);
    for record in &records {
        verify_record(geometry, record)?;
    }
    Ok(ValidRecords { records, ends, warnings })
}

/// The scan of a lane: the valid records from the tail on, and the evidence of the position that the lane had
/// reached before it was cut or damaged.
struct Scan {
    records: Vec<Record>,
    /// Position after the last of them.
    end: u64,
    /// Valid records behind the first place where there is none.
    behind: Vec<Record>,
    /// Position that the lane is known to have reached durably.
    reached: u64,
}

/// Gives each lane the witnesses about it in the records of all lanes.
fn scans_with_known_ends(mut scans: Vec<Scan>) -> Vec<Scan> {
    let records = scans.iter().flat_map(|scan| scan.records.iter().chain(&scan.behind));
    let witnesses: Vec<Witness> = records.filter_map(|record| record.witness).collect();
    for Witness { lane, position } in witnesses {
        if let Some(scan) = scans.get_mut(lane as usize) {
            scan.reached = scan.reached.max(position);
        }
    }
    scans
}

/// Refuses numbers that no pool reaches: recovery and the mount count on from them.
fn verify(checkpoint: &Checkpoint) -> Result<()> {
    if !checkpoint.has_possible_numbers() || checkpoint.impossible_tail().is_some() {
        let expected = "numbers below 2^62 and tails at multiples of 64";
        return Err(Corrupt::new("checkpoint", expected, format!("{checkpoint:?}")).into());
    }
    Ok(())
}

/// Refuses a record that no operation writes: a replay of it would spread the damage.
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

/// The input of a scan.
struct Lanes<'a> {
    pm: &'a dyn PmMedium,
    pool_uuid: &'a [u8; 16],
    geometry: &'a Geometry,
    checkpoint: &'a Checkpoint,
}

impl Lanes<'_> {
    fn scan(&self, lane: u32) -> Result<Scan> {
        let tail = self.checkpoint.tails.get(lane as usize).copied().unwrap_or(0);
        let mut records = Vec::new();
        let (mut position, mut end) = (tail, tail);
        let mut last = Lsn(self.checkpoint.lsn.0.saturating_sub(1));
        // Two guards refuse the records that earlier laps and mounts left in the ring: the seed of the CRC,
        // and rising LSNs.
        let in_any_order = planted(Mistake::StaleRecordsCount) && !self.checkpoint.clean;
        while position - tail < self.geometry.lane_size {
            let found = self.record_at(lane, position)?;
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
        let behind = self.behind(lane, position, last);
        Ok(Scan { records, end, behind, reached: 0 })
    }

    /// Valid records of the lane behind a position where there is none. A record is appended only behind the fence of the
    /// one before it, so there are none unless the place before them was damaged. A lane that was closed in order holds
    /// nothing; none is looked for.
    fn behind(&self, lane: u32, from: u64, last: Lsn) -> Vec<Record> {
        let tail = self.checkpoint.tails.get(lane as usize).copied().unwrap_or(0);
        let end = tail + self.geometry.lane_size;
        let mut records: Vec<Record> = Vec::new();
        let mut budget = self.geometry.lane_size.saturating_mul(SEARCH_FACTOR);
        let (mut position, mut last) = (from, last);
        while !self.checkpoint.clean && position < end && budget > 0 {
            let mut header = [0; HEADER_SIZE];
            // A line that cannot be read and lies behind the end belongs to no record that is known to be there.
            let readable = self.ring(lane, position, &mut header).is_ok();
            let length = plausible_length(&header, self.geometry.max_record()).filter(|_| readable);
            let length = length.filter(|_| header_lsn(&header) > last && header_lsn(&header).0 < FAR);
            budget = budget.saturating_sub(length.map_or(0, |length| length as u64));
            let found = length.and_then(|_| self.record_at(lane, position).ok().flatten());
            match found.filter(|record| record.lsn > last) {
                Some(record) => {
                    last = record.lsn;
                    position += record.ring_bytes;
                    records.push(record);
                }
                None => position += RECORD_ALIGN,
            }
        }
        records
    }

    /// Refuses a lane that reached further than its valid records do (design T3): its next record is damaged, not one
    /// whose write was cut off, and nothing of it may be lost without a word. Gives a warning where a damaged record
    /// could be taken into `scan` all the same.
    fn refuse_damage(&self, lane: u32, scan: &mut Scan) -> Result<Option<String>> {
        // The planted mistake has found all that lies behind, and takes it for whole.
        if planted(Mistake::RecoveryReadsPastHole) {
            return Ok(None);
        }
        let position = scan.end;
        let evidence = if let (Some(first), Some(last)) = (scan.behind.first(), scan.behind.last()) {
            let (count, first, last) = (scan.behind.len(), first.lsn, last.lsn);
            format!("{count} valid records lie behind it (LSN {first} to {last})")
        } else if scan.reached > position {
            format!("a record in another lane tells of {} bytes there", scan.reached - position)
        } else {
            return Ok(self.one_bit_away(lane, scan)?.map(|record| self.judge_one_bit(lane, scan, record)));
        };
        let text = format!(
            "lane {lane} of the log is damaged at position {position}: {evidence}; a mount would lose acknowledged \
             changes. 'terrace check' says more; 'terrace check --repair' cuts the lane there and says what is lost"
        );
        Err(Error::Refused(text.into()))
    }

    /// Takes a last record with one wrong bit where all that it writes is in place; the warning.
    fn judge_one_bit(&self, lane: u32, scan: &mut Scan, record: Record) -> String {
        let shows = |(offset, content): (PmOffset, &[u8])| {
            let mut found = vec![0; content.len()];
            self.pm.read(offset, &mut found).is_ok() && found == content
        };
        let (lsn, applied) = (record.lsn, record.writes().all(shows));
        if applied {
            scan.end += record.ring_bytes;
            scan.records.push(record);
            return format!(
                "lane {lane} of the log has a wrong bit in its last record, LSN {lsn}; its change is in place"
            );
        }
        format!(
            "lane {lane} of the log ends in a record, LSN {lsn}, that is whole but for one bit: its write was cut off by the \
             crash, or a bit was damaged and its change is lost"
        )
    }

    /// The record that a single wrong bit hides at a lane's end, unless the data that it names shows that its write was
    /// cut off.
    fn one_bit_away(&self, lane: u32, scan: &Scan) -> Result<Option<Record>> {
        let tail = self.checkpoint.tails.get(lane as usize).copied().unwrap_or(0);
        if self.checkpoint.clean || scan.end - tail >= self.geometry.lane_size {
            return Ok(None);
        }
        let mut header = [0; HEADER_SIZE];
        self.ring(lane, scan.end, &mut header)?;
        let read = |length| {
            let mut bytes = vec![0; length];
            self.ring(lane, scan.end, &mut bytes).map(|()| bytes)
        };
        let sizes = (self.geometry.max_record(), self.geometry.pm_size);
        let last = scan.records.last().map_or(self.checkpoint.lsn.0.saturating_sub(1), |record| record.lsn.0);
        let seed = lane::seed(self.pool_uuid, lane, scan.end, self.checkpoint.epoch);
        let found = one_bit_away(&header, sizes, seed, Lsn(last), read)?;
        Ok(found.filter(|record| data_is_sound(self.pm, self.geometry, record)))
    }

    /// Drops a last record whose data did not become durable with it (T4). A record that is known to have been durable
    /// needs no proof by its data.
    fn drop_unfinished(&self, scan: &mut Scan) {
        // A successor proves the fence behind a record's data.
        let judged = if planted(Mistake::DataCheckOfAnyRecord) { scan.records.len() } else { 1 };
        if scan.reached >= scan.end && judged == 1 {
            return;
        }
        let proved = scan.records.len().saturating_sub(judged);
        let judge = |record: &Record| data_is_sound(self.pm, self.geometry, record);
        if let Some(unsound) = scan.records.iter().skip(proved).position(|record| !judge(record)) {
            let dropped = scan.records.drain(proved + unsound..);
            scan.end -= dropped.map(|record| record.ring_bytes).sum::<u64>();
        }
    }

    /// The record at a position, if there is a valid one.
    fn record_at(&self, lane: u32, position: u64) -> Result<Option<Record>> {
        let mut header = [0; HEADER_SIZE];
        self.ring(lane, position, &mut header)?;
        let Some(length) = plausible_length(&header, self.geometry.max_record()) else { return Ok(None) };
        let mut bytes = vec![0; length];
        self.ring(lane, position, &mut bytes)?;
        let seed = lane::seed(self.pool_uuid, lane, position, self.checkpoint.epoch);
        if planted(Mistake::CommitMarkFirst) {
            wrong::seal_again(&mut bytes, seed);
        }
        Ok(Record::verify(bytes, seed, self.geometry.pm_size))
    }

    fn ring(&self, lane: u32, position: u64, into: &mut [u8]) -> Result<()> {
        read_ring(self.pm, self.geometry.lane_offset(lane), self.geometry.lane_size, position, into)
    }
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

/// Planted mistakes of this file.
mod wrong {
    use terrace_format::checksum::crc32c;

    /// Gives a record the checksum that its bytes should have: `commit-mark-first` believes them.
    pub(super) fn seal_again(bytes: &mut [u8], seed: u32) {
        let put = |bytes: &mut [u8], word: u32| {
            if let Some(place) = bytes.get_mut(16..20) {
                place.copy_from_slice(&word.to_le_bytes());
            }
        };
        put(bytes, seed);
        let crc = crc32c(bytes);
        put(bytes, crc);
    }
}
