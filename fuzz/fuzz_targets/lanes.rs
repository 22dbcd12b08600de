//! Recovery over lanes of arbitrary content, with valid records among it: recovery and check, which read the log
//! by code of their own, find the same records.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use terrace_check::{Options, PoolView, check};
use terrace_format::Lsn;
use terrace_format::checksum::record_seed;
use terrace_format::record::{HEADER_SIZE, padded, seal};
use terrace_fuzz::golden;
use terrace_media::PmMedium;
use terrace_media::pm::RecordedPm;
use terrace_wal::Wal;

fuzz_target!(|input: &[u8]| {
    let golden = &golden()[0];
    let geometry = golden.superblock.geometry();
    let (uuid, point) = (&golden.superblock.uuid, &golden.checkpoint);
    let mut pm = golden.pm.clone();
    let mut positions = point.tails.clone();
    let mut rest = input;
    let mut lsn = point.lsn.0;
    while let Some(([how, length, counts], tail)) = rest.split_first_chunk::<3>() {
        let (body, tail) = tail.split_at(tail.len().min(usize::from(*length)));
        rest = tail;
        let lane = usize::from(*how) % positions.len();
        let position = positions[lane];
        let mut record = vec![0; HEADER_SIZE];
        record.extend_from_slice(body);
        lsn += u64::from(how >> 4 & 3);
        let seed = record_seed(uuid, lane as u32, position, point.epoch);
        seal(&mut record, Lsn(lsn), u16::from(counts & 7), u16::from(counts >> 6), seed, 0);
        if how & 0x40 != 0 {
            record.truncate(record.len() / 2);
        }
        for (at, byte) in (position..).zip(&record) {
            let place = geometry.lane_offset(lane as u32).plus(at % geometry.lane_size);
            assert!(pm.write(place.0, &[*byte]));
        }
        positions[lane] += padded(record.len());
    }
    let pm: Arc<dyn PmMedium> = Arc::new(RecordedPm::from_image(pm));
    let report = check(&PoolView::new(Arc::clone(&pm), vec![None]), &Options::default());
    match Wal::open(pm, *uuid, geometry) {
        Ok((_, recovery)) => assert_eq!(recovery.records_replayed, report.summary.records_replayed),
        Err(_) => assert!(!report.is_clean()),
    }
});
