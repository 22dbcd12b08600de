//! Sound pools give no finding.

mod common;

use common::*;
use terrace_check::{Code, Options, check};
use terrace_format::checksum::crc32c;
use terrace_format::inode::InodeSlot;
use terrace_format::{BLOCK_SIZE, PmBlock};

#[test]
fn empty_pool() {
    let report = Image::empty().check();
    assert_eq!(report.findings, []);
    assert_eq!(report.exit_status(), 0);
    assert_eq!((report.summary.inodes, report.summary.directories), (1, 1));
    assert_eq!(report.summary.pm_blocks.fixed, 19);
    assert_eq!(report.summary.pm_blocks.free, 512 - 19 - 2);
}

#[test]
fn a_pool_with_each_kind_of_structure_gives_no_finding() {
    let report = Image::full().check();
    assert_eq!(report.findings, []);
    let summary = &report.summary;
    assert_eq!((summary.inodes, summary.directories, summary.orphans), (7, 2, 2));
    assert_eq!((summary.intents, summary.dentries), (2, 5));
    assert_eq!((summary.cold_blocks, summary.summary_blocks), (4, 1));
    assert_eq!(summary.cold_blocks_read, 3, "the shadowed block is not judged");
    assert_eq!((summary.pm_blocks.files, summary.pm_blocks.unwritten), (6, 2));
    assert_eq!((summary.pm_blocks.map_nodes, summary.pm_blocks.catalog_pages), (3, 6));
    assert_eq!(summary.bytes, 24 * BLOCK_SIZE);
}

/// Records of several lanes are replayed in LSN order, wrapped around the ring's end, and the check writes no
/// medium (the media of these tests panic when written).
#[test]
fn records_are_replayed() {
    let mut image = Image::full();
    let blocks = image.slot_place(FILE).plus(InodeSlot::BLOCKS);
    image.put_u64(blocks, 77); // only right after replay
    let start = image.geometry.lane_size - 64;
    image.checkpoint(|point| point.tails[1] = start);
    image.record(0, 0, 20, &[], &[(blocks, &8u64.to_le_bytes())]);
    let long = [0u8; 100];
    let scratch = PmBlock(image.geometry.block_count() - 1).offset();
    let next = image.record(1, start, 11, &[], &[(blocks, &5u64.to_le_bytes()), (scratch, &long)]);
    let next = image.record(1, next, 12, &[], &[(blocks, &6u64.to_le_bytes())]);
    // Data that the last record names does not match: a write that the crash cut off.
    let crc = crc32c(&[1; 64]);
    image.record(1, next, 21, &[(scratch, 64, crc)], &[(blocks, &9u64.to_le_bytes())]);
    let report = image.check();
    assert!(report.is_clean(), "{:?}", report.findings);
    assert!(report.has(Code::RecordUnfinished));
    assert_eq!(report.summary.records_replayed, 3);
    // With the data in place the record counts, and its block count is wrong.
    image.put(scratch, &[1; 64]);
    let report = image.check();
    assert!(report.has(Code::MapBlockCount));
    assert_eq!(report.summary.records_replayed, 4);
}

/// The data of a record with a successor is not judged (T4), and a record below the checkpoint is not judged
/// either (T5).
#[test]
fn only_the_last_record_is_judged() {
    let mut image = Image::full();
    let scratch = PmBlock(image.geometry.block_count() - 1).offset();
    let next = image.record(0, 0, 20, &[(scratch, 64, 1)], &[]);
    image.record(0, next, 21, &[], &[]);
    image.record(1, 0, 9, &[(scratch, 64, 1)], &[]);
    let report = image.check();
    assert_eq!(report.findings, []);
    assert_eq!(report.summary.records_replayed, 2);
}

#[test]
fn progress_and_json() {
    let seen = std::cell::Cell::new((0, 0));
    let tell = |done, total| seen.set((done, total));
    let options = Options { read_cold: false, progress: Some(&tell), given: &[] };
    let report = check(&Image::full().view(), &options);
    assert_eq!(seen.get(), (8, 8));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["output_version"], 1);
    assert_eq!(json["summary"]["pm_blocks"]["fixed"], 19);
}
