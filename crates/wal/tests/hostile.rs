//! Checkpoints and lanes that somebody crafted, with valid checksums (I11): refused or ignored, never a
//! panic, an endless loop or gigabytes of memory.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use terrace_format::checkpoint::Checkpoint;
use terrace_format::checksum::record_seed;
use terrace_format::geometry::CHECKPOINT_COPIES;
use terrace_format::record::{HEADER_SIZE, Witness, seal};
use terrace_format::{Geometry, Lsn, PmBlock, PmOffset};
use terrace_media::PmMedium;
use terrace_media::pm::RecordedPm;
use terrace_wal::{Error, RecoveryReport, Tx, Wal};

const UUID: [u8; 16] = [3; 16];

fn geometry() -> Geometry {
    Geometry::choose(2 << 20, 16).unwrap()
}

fn open(pm: &Arc<RecordedPm>) -> Result<(Wal, RecoveryReport), Error> {
    Wal::open(pm.clone() as Arc<dyn PmMedium>, UUID, geometry())
}

fn with_checkpoint(point: &Checkpoint) -> Arc<RecordedPm> {
    let pm = Arc::new(RecordedPm::new(2 << 20));
    for copy in CHECKPOINT_COPIES {
        pm.write(copy.offset(), &point.encode(&UUID)).unwrap();
    }
    pm
}

fn sound() -> Checkpoint {
    Checkpoint { lsn: Lsn(5), epoch: 2, sequence: 9, clean: false, tails: vec![0, 64] }
}

/// Seals a record of these checks and writes at a position of a lane.
fn record(
    pm: &RecordedPm,
    (lane, position): (u32, u64),
    lsn: u64,
    checks: &[(u64, u32, u32)],
    writes: &[(u64, &[u8])],
) -> u64 {
    witnessing(pm, (lane, position), (lsn, 0), checks, writes)
}

/// The same, of a record that tells how far a lane had got.
fn witnessing(
    pm: &RecordedPm,
    (lane, position): (u32, u64),
    (lsn, witness): (u64, u64),
    checks: &[(u64, u32, u32)],
    writes: &[(u64, &[u8])],
) -> u64 {
    let mut bytes = vec![0; HEADER_SIZE];
    for (offset, length, crc) in checks {
        bytes.extend_from_slice(&offset.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&crc.to_le_bytes());
    }
    for (offset, content) in writes {
        bytes.extend_from_slice(&(offset | (content.len() as u64) << 48).to_le_bytes());
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    let seed = record_seed(&UUID, lane, position, 2);
    seal(&mut bytes, Lsn(lsn), writes.len() as u16, checks.len() as u16, seed, witness);
    let g = geometry();
    for (index, byte) in bytes.iter().enumerate() {
        let at = g.lane_offset(lane).plus(position.wrapping_add(index as u64) % g.lane_size);
        pm.write(at, &[*byte]).unwrap();
    }
    (bytes.len() as u64).next_multiple_of(64)
}

/// Broke: a tail near the largest 64-bit number overflowed the scan's position, and later the lane's head.
#[test]
fn checkpoint_numbers_out_of_reach_of_any_pool_are_refused() {
    let far = [1 << 62, u64::MAX - 63, u64::MAX];
    for value in far {
        let points = [
            Checkpoint { lsn: Lsn(value), ..sound() },
            Checkpoint { epoch: value, ..sound() },
            Checkpoint { sequence: value, ..sound() },
            Checkpoint { tails: vec![0, value], ..sound() },
        ];
        for point in points {
            let pm = with_checkpoint(&point);
            record(&pm, (1, point.tails[1]), 6, &[], &[]);
            assert!(open(&pm).is_err(), "{point:?}");
        }
    }
    assert!(open(&with_checkpoint(&Checkpoint { tails: vec![0, 65], ..sound() })).is_err());
    assert!(open(&with_checkpoint(&sound())).is_ok());
}

/// Broke: the LSN after the largest record's overflowed.
#[test]
fn a_record_with_the_largest_lsn_is_refused() {
    let pm = with_checkpoint(&sound());
    record(&pm, (0, 0), u64::MAX, &[], &[]);
    assert!(open(&pm).is_err());
}

/// Broke: every data check was read whole, up to 4 GiB each, thousands of them in one record.
#[test]
fn data_checks_are_read_in_pieces_and_bounded() {
    let pm = with_checkpoint(&sound());
    let size = geometry().pm_size as u32;
    record(&pm, (0, 0), 6, &vec![(0, size, 0); 200], &[]);
    let (_, report) = open(&pm).unwrap();
    assert_eq!(report.records_replayed, 0);
    // A sound check of a large range counts.
    let pm = with_checkpoint(&sound());
    let first = geometry().first_pool_block().offset().0;
    let length = 300_000;
    let crc = terrace_format::checksum::crc32c(&vec![0; length as usize]);
    record(&pm, (0, 0), 6, &[(first, length, crc)], &[]);
    assert_eq!(open(&pm).unwrap().1.records_replayed, 1);
}

/// Broke: a record could overwrite superblock, checkpoint and lanes during recovery.
#[test]
fn a_record_with_stores_outside_roots_table_and_pool_is_refused() {
    let g = geometry();
    let bad =
        [0, PmBlock(4).offset().0, PmBlock(7).offset().0 - 8, g.lane_offset(1).0, g.table_offset().0 - 8];
    for offset in bad {
        let pm = with_checkpoint(&sound());
        record(&pm, (0, 0), 6, &[], &[(offset, &[1; 16])]);
        let before = pm.visible_image();
        assert!(open(&pm).is_err(), "{offset}");
        assert!(before == pm.visible_image(), "a refused mount changes nothing");
    }
    for offset in [PmBlock(6).offset().0, g.table_offset().0, g.pm_size - 16] {
        let pm = with_checkpoint(&sound());
        record(&pm, (0, 0), 6, &[], &[(offset, &[1; 16])]);
        assert_eq!(open(&pm).unwrap().1.records_replayed, 1, "{offset}");
    }
}

/// Random damage to checkpoint and lanes: open ends, with or without success, and what it opens works.
#[test]
fn opening_random_lanes_and_checkpoints_always_ends() {
    let mut state = 0x1234_5678_9abc_def0u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let g = geometry();
    let edges = [0, 1, 63, 64, 1 << 32, 1 << 61, (1 << 62) - 64, 1 << 62, u64::MAX - 64, u64::MAX];
    let mut opened = 0;
    for _ in 0..400 {
        let mut number = |most: u64| match next() % 4 {
            0 => edges[(next() % edges.len() as u64) as usize],
            _ => next() % most,
        };
        let point = Checkpoint {
            lsn: Lsn(number(10)),
            epoch: 2,
            sequence: number(100),
            clean: number(2) == 0,
            tails: vec![number(g.lane_size / 64).wrapping_mul(64), number(64).wrapping_mul(64)],
        };
        let pm = with_checkpoint(&point);
        for lane in 0..2u32 {
            let mut position = point.tails[lane as usize];
            for _ in 0..number(5).min(5) {
                let offset = number(g.pm_size) & ((1 << 48) - 1);
                let check = (number(g.pm_size), number(1 << 20) as u32, number(7) as u32);
                let checks: &[_] = if number(3) == 0 { &[check] } else { &[] };
                let lsn = number(20);
                position =
                    position.wrapping_add(record(&pm, (lane, position), lsn, checks, &[(offset, &[7; 8])]));
            }
        }
        if let Ok((wal, _)) = open(&pm) {
            opened += 1;
            let mut tx = Tx::new();
            tx.write_u64(PmOffset(g.pm_size - 8), 1);
            wal.commit(wal.reserve(256).unwrap(), &tx).unwrap();
            wal.close().unwrap();
        }
    }
    assert!(opened > 20, "{opened}");
}

#[test]
fn a_record_behind_a_hole_is_evidence_if_its_number_is_possible_and_later() {
    let first = geometry().first_pool_block().offset().0;
    for (lsn, refused) in [(4, false), (5, true), (6, true), ((1 << 62) - 1, true), (1 << 62, false)] {
        let pm = with_checkpoint(&sound());
        record(&pm, (0, 64), lsn, &[], &[(first, &[1; 8])]);
        assert_eq!(open(&pm).is_err(), refused, "LSN {lsn}");
    }
}

#[test]
fn a_refusal_tells_how_many_records_lie_behind_the_damage() {
    let first = geometry().first_pool_block().offset().0;
    let pm = with_checkpoint(&sound());
    let ring_bytes = record(&pm, (0, 128), 6, &[], &[(first, &[1; 100])]);
    record(&pm, (0, 128 + ring_bytes.next_multiple_of(64)), 7, &[], &[(first, &[1; 8])]);
    let Err(Error::Refused(text)) = open(&pm) else { panic!("not refused") };
    assert!(text.contains("damaged at position 0: 2 valid records lie behind it (LSN 6 to 7)"), "{text}");
}

#[test]
fn a_last_record_with_a_wrong_bit_counts_where_its_change_is_in_place() {
    let first = geometry().first_pool_block().offset();
    for (in_place, text) in [(true, "its change is in place"), (false, "whole but for one bit")] {
        let pm = with_checkpoint(&sound());
        record(&pm, (0, 0), 6, &[], &[(first.0, &[7; 8])]);
        pm.write(geometry().lane_offset(0).plus(HEADER_SIZE as u64 + 8), &[6]).unwrap();
        if in_place {
            pm.write(first, &[7; 8]).unwrap();
        }
        let (wal, report) = open(&pm).unwrap();
        assert_eq!(report.records_replayed, u64::from(in_place));
        assert!(report.warnings.iter().any(|warning| warning.contains(text)), "{:?}", report.warnings);
        assert_eq!(wal.next_lsn(), Lsn(if in_place { 7 } else { 6 }));
    }
}

#[test]
fn a_wrong_bit_is_looked_for_in_every_lap_but_in_no_clean_pool() {
    let first = geometry().first_pool_block().offset();
    for (lap, clean) in [(0, false), (9, false), (0, true), (9, true)] {
        let tail = lap * geometry().lane_size;
        let pm = with_checkpoint(&Checkpoint { tails: vec![tail, 64], clean, ..sound() });
        record(&pm, (0, tail), 6, &[], &[(first.0, &[7; 8])]);
        pm.write(geometry().lane_offset(0).plus(HEADER_SIZE as u64 + 8), &[6]).unwrap();
        let report = open(&pm).unwrap().1;
        assert_eq!(report.warnings.is_empty(), clean, "lap {lap}: {:?}", report.warnings);
    }
}

/// The data named by a lane's last record is wrong. The record was durable all the same if a record of
/// another lane witnesses it.
#[test]
fn a_last_record_without_its_data_counts_only_if_another_lane_tells_of_it() {
    let first = geometry().first_pool_block().offset();
    for told in [false, true] {
        let pm = with_checkpoint(&sound());
        let end = record(&pm, (0, 0), 6, &[], &[(first.0, &[1; 8])]);
        let data = [(first.0 + 4096, 64, 0xbad)];
        let end = end + record(&pm, (0, end), 7, &data, &[(first.0 + 8, &[2; 8])]);
        let witness = if told { Witness { lane: 0, position: end }.encode() } else { 0 };
        witnessing(&pm, (1, 64), (8, witness), &[], &[(first.0 + 16, &[3; 8])]);
        let report = open(&pm).unwrap().1;
        assert_eq!(report.records_replayed, if told { 3 } else { 2 });
        let found = [0, 8, 16].map(|at| pm.load_u64(first.plus(at)).unwrap() & 0xff);
        assert_eq!(found, [1, if told { 2 } else { 0 }, 3]);
    }
}
