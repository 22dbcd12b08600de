//! Checkpoint and lanes: the set of valid records as recovery will find it (design T3, T4, T5, T8), read
//! independently of crates/wal.

use crate::checksums;
use crate::code::Code;
use crate::lane;
use crate::overlay::Overlay;
use crate::report::Findings;
use terrace_format::checkpoint::{Checkpoint, FAR};
use terrace_format::geometry::CHECKPOINT_COPIES;
use terrace_format::page_checksum::new_pages;
use terrace_format::record::{HEADER_SIZE, RECORD_ALIGN, header_lsn, plausible_length};
use terrace_format::{BLOCK_SIZE, Geometry, Lsn, PmOffset};
use terrace_media::PmView;

/// The log's content.
pub struct Log {
    /// Whether the last mount ended in order.
    pub clean: bool,
    /// Valid records above the checkpoint.
    pub records: u64,
    /// PM after the replay of these records.
    pub overlay: Overlay,
    /// The checkpoint that makes the lanes empty, for repair.
    pub next: Checkpoint,
    /// Data that the last record of a lane names. The data decides whether the record counts (T4), so repair
    /// must not overwrite it.
    pub named: Vec<(PmOffset, u64)>,
    /// The lanes have to be cleared before the next mount.
    pub clear_lanes: bool,
}

/// Reads the log; `None` when a mount would be refused and the rest of the pool cannot be judged.
pub fn read(pm: &PmView, uuid: &[u8; 16], geometry: &Geometry, findings: &mut Findings) -> Option<Log> {
    let point = newest(checkpoints(pm, uuid, geometry, findings));
    let point = point?;
    if !point.has_possible_numbers() {
        findings.add(Code::CheckpointNumber, || {
            format!("LSN {}, epoch {}, sequence {}", point.lsn, point.epoch, point.sequence)
        });
        return None;
    }
    if let Some(lane) = point.impossible_tail() {
        findings.add(Code::LaneTail, || format!("lane {lane}: {:?}", point.tails.get(lane)));
        return None;
    }
    Some(replay(pm, uuid, geometry, &point, findings))
}

/// The log as repair reads it, from the newest checkpoint copy with possible numbers. Without such a copy
/// valid records cannot be told from leftovers (the seed of a record needs the epoch), so no record is
/// replayed.
pub fn for_repair(pm: &PmView, uuid: &[u8; 16], geometry: &Geometry, findings: &mut Findings) -> Log {
    let mut points = checkpoints(pm, uuid, geometry, &mut Findings::default());
    points.retain(|point| point.has_possible_numbers() && point.impossible_tail().is_none());
    let Some(point) = newest(points) else {
        let next = Checkpoint {
            lsn: Lsn(highest_lsn(pm, geometry) + 1),
            epoch: 1,
            sequence: 1,
            clean: true,
            tails: vec![0; geometry.lane_count as usize],
        };
        let overlay = Overlay::default();
        return Log { clean: false, records: 0, overlay, next, named: Vec::new(), clear_lanes: true };
    };
    replay(pm, uuid, geometry, &point, findings)
}

/// The largest LSN of all bytes that look like a record header, or 0.
fn highest_lsn(pm: &PmView, geometry: &Geometry) -> u64 {
    let mut highest = 0;
    let end = geometry.table_offset();
    let mut at = geometry.lane_offset(0);
    while at < end {
        let mut header = [0; HEADER_SIZE];
        let plausible = pm.read(at, &mut header).is_ok()
            && plausible_length(&header, geometry.max_record()).is_some()
            && header_lsn(&header).0 < FAR - 1;
        if plausible {
            highest = highest.max(header_lsn(&header).0);
        }
        at = at.plus(RECORD_ALIGN);
    }
    highest
}

fn replay(
    pm: &PmView,
    uuid: &[u8; 16],
    geometry: &Geometry,
    point: &Checkpoint,
    findings: &mut Findings,
) -> Log {
    let (mut records, mut ends, mut named) = (Vec::new(), Vec::new(), Vec::new());
    for lane in lane::scan_all(pm, uuid, geometry, point, findings) {
        let checks = lane.records.last().map_or(&[][..], |last| &last.checks);
        named.extend(checks.iter().map(|check| (check.offset, u64::from(check.length))));
        ends.push(lane.end);
        records.extend(lane.records);
    }
    records.sort_by_key(|record| record.lsn);
    if point.clean && !records.is_empty() {
        let count = records.len();
        findings.add(Code::CheckpointClean, || format!("{count} records"));
    }
    let mut overlay = Overlay::default();
    let mut last = Lsn(0);
    for record in &records {
        if record.lsn == last || record.lsn.0 >= FAR {
            findings.add(Code::RecordLsn, || format!("LSN {}", record.lsn));
        }
        last = record.lsn;
        for (offset, content) in record.writes() {
            if !geometry.may_log(offset, content.len() as u64) {
                findings.add(Code::RecordTarget, || {
                    format!("LSN {last} writes {} bytes at {offset}", content.len())
                });
                continue;
            }
            overlay.write(offset, content);
            checksums::open(&mut overlay, geometry, offset, content.len());
            for page in new_pages(geometry, offset, content) {
                checksums::open(&mut overlay, geometry, page.offset(), 1);
            }
        }
    }
    let highest = records.iter().map(|record| record.lsn).filter(|lsn| lsn.0 < FAR).max();
    let next = Checkpoint {
        lsn: Lsn(highest.map_or(point.lsn, |lsn| lsn.max(point.lsn)).0 + 1),
        epoch: point.epoch + 1,
        sequence: point.sequence + 1,
        clean: true,
        tails: ends,
    };
    assert!(next.lsn > point.lsn, "the next checkpoint is older than the one found");
    assert_eq!(next.tails.len(), point.tails.len(), "each lane has a tail");
    let records = records.len() as u64;
    Log { clean: point.clean, records, overlay, next, named, clear_lanes: false }
}

/// Recovery keeps the first copy when both have the same number.
fn newest(points: Vec<Checkpoint>) -> Option<Checkpoint> {
    points.into_iter().reduce(|best, other| if other.sequence > best.sequence { other } else { best })
}

/// The sound copies.
fn checkpoints(
    pm: &PmView,
    uuid: &[u8; 16],
    geometry: &Geometry,
    findings: &mut Findings,
) -> Vec<Checkpoint> {
    let mut sound: Vec<Checkpoint> = Vec::new();
    let mut damaged = Vec::new();
    for (index, copy) in CHECKPOINT_COPIES.into_iter().enumerate() {
        let mut block = vec![0; BLOCK_SIZE as usize];
        if let Err(error) = pm.read(copy.offset(), &mut block) {
            findings.add(Code::PmUnreadable, || format!("checkpoint copy {index}: {error}"));
            damaged.push(format!("copy {index}: {error}"));
            continue;
        }
        match Checkpoint::decode(&block, uuid, geometry.lane_count) {
            Ok(point) => sound.push(point),
            Err(why) => damaged.push(format!("copy {index}: {why}")),
        }
    }
    assert_eq!(sound.len() + damaged.len(), CHECKPOINT_COPIES.len(), "each copy is sound or damaged");
    if let [first, second] = sound.as_slice()
        && first.sequence == second.sequence
        && first != second
    {
        let sequence = first.sequence;
        findings.add(Code::CheckpointsDiffer, || format!("sequence {sequence}"));
    }
    if !damaged.is_empty() {
        let code = if sound.is_empty() { Code::CheckpointLost } else { Code::CheckpointCopy };
        findings.add(code, || damaged.join("; "));
    }
    sound
}
