//! A lane: its valid records, and whether a crash or damage ended it (design T3), read independently of
//! crates/wal.

use crate::code::Code;
use crate::report::Findings;
use crc_fast::{CrcAlgorithm, Digest};
use std::collections::BTreeSet;
use terrace_format::checkpoint::{Checkpoint, FAR};
use terrace_format::checksum::record_seed;
use terrace_format::inode::{SLOT_SIZE, SLOTS_PER_PAGE};
use terrace_format::record::{HEADER_SIZE, RECORD_ALIGN, Record, Witness, header_lsn, plausible_length};
use terrace_format::record_damage::one_bit_away;
use terrace_format::table::{Owner, PageKind, TABLE_ENTRY_SIZE};
use terrace_format::{BLOCK_SIZE, Geometry, Lsn, PmBlock, PmOffset};
use terrace_media::{MediaError, PmView};

/// The search behind a lane's end reads at most this many times the lane's size.
const SEARCH_LANE_SIZES: u64 = 256;
/// Inodes that a finding names one by one.
const NAMED_INODES: usize = 20;

/// A lane as a mount will find it.
pub struct Lane {
    /// The records that count.
    pub records: Vec<Record>,
    /// Position behind the last of these records.
    pub end: u64,
    /// Valid records behind the first invalid record.
    behind: Vec<Record>,
    /// The furthest position that a witness says was durable.
    reached: u64,
    unreadable: bool,
}

/// Scans all lanes; each loss by damage is a finding.
pub(crate) fn scan_all(
    pm: &PmView,
    uuid: &[u8; 16],
    geometry: &Geometry,
    point: &Checkpoint,
    findings: &mut Findings,
) -> Vec<Lane> {
    let tails = (0..geometry.lane_count).zip(&point.tails);
    let scans: Vec<_> =
        tails.map(|(lane, tail)| Scan { pm, uuid, geometry, point, lane, tail: *tail }).collect();
    let mut lanes: Vec<Lane> = scans.iter().map(|scan| scan.run(findings)).collect();
    let records = lanes.iter().flat_map(|lane| lane.records.iter().chain(&lane.behind));
    let witnesses: Vec<Witness> = records.filter_map(|record| record.witness).collect();
    for Witness { lane, position } in witnesses {
        if let Some(lane) = lanes.get_mut(lane as usize) {
            lane.reached = lane.reached.max(position);
        }
    }
    for (scan, lane) in scans.iter().zip(&mut lanes) {
        let unfinished = lane.records.pop_if(|last| lane.reached < lane.end && !scan.data_is_sound(last));
        if let Some(record) = unfinished {
            findings.add(Code::RecordUnfinished, || format!("lane {}, LSN {}", scan.lane, record.lsn));
            lane.end = lane.end.saturating_sub(record.ring_bytes);
        }
        scan.judge_end(lane, findings);
    }
    lanes
}

/// A text that names the inodes that records change, as far as records and block table tell.
fn touched(pm: &PmView, geometry: &Geometry, records: &[Record]) -> String {
    let mut inodes = BTreeSet::new();
    for (offset, content) in records.iter().flat_map(Record::writes) {
        inodes.extend(inodes_at(pm, geometry, offset, content));
    }
    let named: Vec<String> = inodes.iter().take(NAMED_INODES).map(u64::to_string).collect();
    match inodes.len().saturating_sub(named.len()) {
        0 if named.is_empty() => "no inode that can be named".into(),
        0 => format!("inodes {}", named.join(", ")),
        more => format!("inodes {} and {more} more", named.join(", ")),
    }
}

/// The inodes that a store changes: owners in the block table, inode slots, or the owner of a map node.
fn inodes_at(pm: &PmView, geometry: &Geometry, offset: PmOffset, content: &[u8]) -> Vec<u64> {
    let table =
        geometry.table_offset()..geometry.table_offset().plus(geometry.block_count() * TABLE_ENTRY_SIZE);
    if table.contains(&offset) {
        let entries = content.chunks(TABLE_ENTRY_SIZE as usize);
        let words =
            entries.filter_map(|entry| entry.first_chunk::<8>().map(|word| u64::from_le_bytes(*word)));
        return words.filter_map(file_of).collect();
    }
    let block = PmBlock(offset.0 / BLOCK_SIZE);
    let owner = pm.load_u64(geometry.table_entry(block)).ok().and_then(Owner::decode);
    match owner {
        Some(Owner::Page { kind: PageKind::InodePage, datum }) => {
            vec![u64::from(datum) * SLOTS_PER_PAGE + offset.0 % BLOCK_SIZE / SLOT_SIZE]
        }
        Some(Owner::Page { kind: PageKind::MapNode, datum }) => vec![datum.into()],
        _ => Vec::new(),
    }
}

fn file_of(word: u64) -> Option<u64> {
    match Owner::decode(word) {
        Some(Owner::File { ino, .. }) => Some(ino.0),
        Some(Owner::Page { kind: PageKind::MapNode, datum }) => Some(datum.into()),
        _ => None,
    }
}

struct Scan<'a> {
    pm: &'a PmView,
    uuid: &'a [u8; 16],
    geometry: &'a Geometry,
    point: &'a Checkpoint,
    lane: u32,
    tail: u64,
}

impl Scan<'_> {
    /// The valid records of the lane, none below the checkpoint, from a possible tail; and where they end.
    fn run(&self, findings: &mut Findings) -> Lane {
        let lane = self.lane;
        let mut records = Vec::new();
        let end = self.tail.saturating_add(self.geometry.lane_size);
        let mut position = self.tail;
        let mut last = Lsn(self.point.lsn.0.saturating_sub(1));
        let mut unreadable = false;
        // Ends: every record takes at least one line.
        while position < end {
            let record = match self.record(position) {
                Ok(Some(record)) if record.lsn > last => record,
                Ok(_) => break,
                Err(error) => {
                    findings
                        .add(Code::LaneUnreadable, || format!("lane {lane}, position {position}: {error}"));
                    unreadable = true;
                    break;
                }
            };
            assert!(record.ring_bytes >= RECORD_ALIGN, "a record without a length would be read for ever");
            last = record.lsn;
            position = position.saturating_add(record.ring_bytes);
            records.push(record);
        }
        // A lane with an unreadable line refuses the mount anyway, so no search follows.
        let behind = if unreadable { Vec::new() } else { self.behind(position, end, last) };
        Lane { records, end: position, behind, reached: 0, unreadable }
    }

    /// Valid records behind an invalid record. They prove that the lane was damaged, because a record is
    /// appended only after the fence of its predecessor.
    fn behind(&self, from: u64, end: u64, mut last: Lsn) -> Vec<Record> {
        let mut records: Vec<Record> = Vec::new();
        let mut position = from;
        let mut budget = self.geometry.lane_size.saturating_mul(SEARCH_LANE_SIZES);
        while position < end && budget > 0 && !self.point.clean {
            let mut header = [0; HEADER_SIZE];
            let readable = self.ring(position, &mut header).is_ok();
            let possible = readable && header_lsn(&header) > last && header_lsn(&header).0 < FAR;
            let length = plausible_length(&header, self.geometry.max_record()).filter(|_| possible);
            budget = budget.saturating_sub(length.map_or(0, |length| length as u64));
            match length.and_then(|_| self.record(position).ok().flatten()) {
                Some(record) => {
                    assert!(record.ring_bytes >= RECORD_ALIGN, "the search behind a lane's end stands still");
                    last = record.lsn;
                    position = position.saturating_add(record.ring_bytes);
                    records.push(record);
                }
                None => position += RECORD_ALIGN,
            }
        }
        records
    }

    /// Judges how the lane ends: cut off by a crash, or damaged (T3).
    fn judge_end(&self, lane: &mut Lane, findings: &mut Findings) {
        let (index, position) = (self.lane, lane.end);
        if lane.unreadable {
            return;
        }
        let lost = if !lane.behind.is_empty() {
            let of_inodes = touched(self.pm, self.geometry, &lane.behind);
            let bounds = lane.behind.first().zip(lane.behind.last());
            let (first, last) = bounds.map_or((Lsn(0), Lsn(0)), |(first, last)| (first.lsn, last.lsn));
            let count = lane.behind.len();
            format!("a damaged record and {count} behind it (LSN {first} to {last}), of {of_inodes}")
        } else if lane.reached > position {
            format!("{} bytes of damaged records, known from another lane", lane.reached - position)
        } else {
            if let Some(record) = self.one_bit_away(lane) {
                self.judge_one_bit(lane, record, findings);
            }
            return;
        };
        findings.add(Code::LaneDamaged, || format!("lane {index}, position {position}: {lost}"));
    }

    /// A last record with one wrong bit counts if all its stores are in place.
    fn judge_one_bit(&self, lane: &mut Lane, record: Record, findings: &mut Findings) {
        let shows = |(offset, content): (PmOffset, &[u8])| {
            let mut found = vec![0; content.len()];
            self.pm.read(offset, &mut found).is_ok() && found == content
        };
        let site = || format!("lane {}, position {}, LSN {}", self.lane, lane.end, record.lsn);
        if !record.writes().all(shows) {
            let of_inodes = touched(self.pm, self.geometry, std::slice::from_ref(&record));
            findings.add(Code::RecordInDoubt, || format!("{}, of {of_inodes}", site()));
            return;
        }
        findings.add(Code::RecordBit, site);
        lane.end = lane.end.saturating_add(record.ring_bytes);
        lane.records.push(record);
    }

    /// The record that one wrong bit hides at the lane's end, unless its data shows that its write was cut
    /// off.
    fn one_bit_away(&self, lane: &Lane) -> Option<Record> {
        if self.point.clean || lane.end >= self.tail.saturating_add(self.geometry.lane_size) {
            return None;
        }
        let mut header = [0; HEADER_SIZE];
        self.ring(lane.end, &mut header).ok()?;
        let read = |length| {
            let mut bytes = vec![0; length];
            self.ring(lane.end, &mut bytes).map(|()| bytes)
        };
        let last = lane.records.last().map_or(self.point.lsn.0.saturating_sub(1), |record| record.lsn.0);
        let seed = record_seed(self.uuid, self.lane, lane.end, self.point.epoch);
        let sizes = (self.geometry.max_record(), self.geometry.pm_size);
        let found = one_bit_away(&header, sizes, seed, Lsn(last), read).ok()??;
        self.data_is_sound(&found).then_some(found)
    }

    fn record(&self, position: u64) -> Result<Option<Record>, MediaError> {
        let mut header = [0; HEADER_SIZE];
        self.ring(position, &mut header)?;
        let Some(length) = plausible_length(&header, self.geometry.max_record()) else {
            return Ok(None);
        };
        let mut bytes = vec![0; length];
        self.ring(position, &mut bytes)?;
        let seed = record_seed(self.uuid, self.lane, position, self.point.epoch);
        Ok(Record::verify(bytes, seed, self.geometry.pm_size))
    }

    fn ring(&self, position: u64, into: &mut [u8]) -> Result<(), MediaError> {
        let (base, size) = (self.geometry.lane_offset(self.lane), self.geometry.lane_size);
        assert!(into.len() as u64 <= size, "a record longer than its lane");
        let at = position % size;
        let first = into.len().min((size - at) as usize);
        let (front, back) = into.split_at_mut(first);
        self.pm.read(base.plus(at), front)?;
        if !back.is_empty() {
            self.pm.read(base, back)?;
        }
        Ok(())
    }

    /// T4, as recovery judges it: on the medium before any replay; unreadable data does not make its record
    /// invalid.
    fn data_is_sound(&self, record: &Record) -> bool {
        // No operation names more data than there is PM; a crafted record must not make the check endless.
        let mut budget = self.geometry.pm_size;
        let mut piece = vec![0; 64 << 10];
        for check in &record.checks {
            let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
            let (mut at, mut left) = (check.offset, u64::from(check.length));
            let mut readable = true;
            while left > 0 && readable {
                let take = left.min(piece.len() as u64).min(budget);
                let Some(into) = piece.get_mut(..take as usize).filter(|into| !into.is_empty()) else {
                    return false;
                };
                readable = self.pm.read(at, into).is_ok();
                digest.update(into);
                (at, left, budget) = (at.plus(take), left - take, budget - take);
            }
            if readable && digest.finalize() as u32 != check.crc {
                return false;
            }
        }
        true
    }
}
