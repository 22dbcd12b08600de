//! Recovery after the death of the daemon alone: what PM shows then need not be durable.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use terrace_format::checkpoint::Checkpoint;
use terrace_format::geometry::CHECKPOINT_COPIES;
use terrace_format::{Geometry, PmOffset};
use terrace_media::PmMedium;
use terrace_media::crash::CrashClock;
use terrace_media::pm::{CrashSnapshot, RecordedPm};
use terrace_runtime::sync::Mutex;
use terrace_wal::recovery::read_checkpoint;
use terrace_wal::{Tx, Wal};

const UUID: [u8; 16] = [3; 16];

fn geometry() -> Geometry {
    Geometry::choose(2 << 20, 16).unwrap()
}

fn open(pm: &Arc<RecordedPm>) -> Wal {
    Wal::open(pm.clone() as Arc<dyn PmMedium>, UUID, geometry()).unwrap().0
}

/// Two words in lines of their own.
fn words() -> [PmOffset; 2] {
    let first = geometry().first_pool_block().offset();
    [first, first.plus(256)]
}

/// The moments before each event of `run`.
fn film(pm: &Arc<RecordedPm>, run: impl FnOnce()) -> Vec<CrashSnapshot> {
    let moments = Arc::new(Mutex::new(Vec::new()));
    let (weak, kept) = (Arc::downgrade(pm), Arc::clone(&moments));
    pm.clock().on_event(Some(Box::new(move |_| kept.lock().push(weak.upgrade().unwrap().snapshot()))));
    run();
    pm.clock().on_event(None);
    moments.lock().clone()
}

/// Broke: the daemon was killed between a record and its fence, the next mount found the record and replayed it
/// without a fence before, and power failed: a part of the transaction was in place, and no record to complete it.
#[test]
fn records_are_durable_before_recovery_replays_stores() {
    let pm = Arc::new(RecordedPm::new(2 << 20));
    Wal::format(pm.clone() as Arc<dyn PmMedium>, UUID, geometry()).unwrap();
    pm.persist().unwrap();
    let wal = open(&pm);
    pm.persist().unwrap();
    let killed = film(&pm, || {
        let mut tx = Tx::new();
        words().iter().for_each(|word| tx.write_u64(*word, 7));
        wal.commit(wal.reserve(256).unwrap(), &tx).unwrap();
    });
    for killed in &killed {
        let pm = Arc::new(RecordedPm::resumed(killed, &CrashClock::new()));
        for power_fails in &film(&pm, || drop(open(&pm))) {
            for image in power_fails.images(10, 200, 1) {
                let pm = Arc::new(RecordedPm::from_image(image));
                drop(open(&pm));
                let [one, other] = words().map(|word| pm.load_u64(word).unwrap());
                assert_eq!(one, other, "half a transaction");
            }
        }
    }
}

#[test]
fn recovery_goes_on_behind_the_last_record_and_the_last_checkpoint() {
    let pm = Arc::new(RecordedPm::new(2 << 20));
    Wal::format(pm.clone() as Arc<dyn PmMedium>, UUID, geometry()).unwrap();
    let mut last = read_checkpoint(&*pm, &UUID, &geometry()).unwrap().point;
    for round in 1..4 {
        let wal = open(&pm);
        let now = read_checkpoint(&*pm, &UUID, &geometry()).unwrap().point;
        assert_eq!((now.sequence, now.epoch, wal.epoch()), (last.sequence + 1, last.epoch + 1, now.epoch));
        assert_eq!((now.lsn, now.clean), (wal.next_lsn(), false));
        assert!(now.lsn > last.lsn, "round {round}");
        last = now;
        let mut tx = Tx::new();
        tx.write_u64(words()[0], round);
        let committed = wal.commit(wal.reserve(256).unwrap(), &tx).unwrap();
        assert!(committed >= last.lsn);
        last.lsn = committed;
    }
}

#[test]
fn the_copy_with_the_larger_number_is_the_checkpoint() {
    let pm = Arc::new(RecordedPm::new(2 << 20));
    Wal::format(pm.clone() as Arc<dyn PmMedium>, UUID, geometry()).unwrap();
    let point = read_checkpoint(&*pm, &UUID, &geometry()).unwrap().point;
    for (numbers, expected) in [([5, 6], 1), ([6, 5], 0), ([6, 6], 0)] {
        for (copy, sequence) in CHECKPOINT_COPIES.into_iter().zip(numbers) {
            let point = Checkpoint { sequence, ..point.clone() };
            pm.write(copy.offset(), &point.encode(&UUID)).unwrap();
        }
        let found = read_checkpoint(&*pm, &UUID, &geometry()).unwrap();
        assert_eq!((found.copy, found.point.sequence, found.warnings.len()), (expected, 6, 0));
    }
}

#[test]
fn records_are_found_in_every_lap_of_the_ring() {
    let pm = Arc::new(RecordedPm::new(2 << 20));
    Wal::format(pm.clone() as Arc<dyn PmMedium>, UUID, geometry()).unwrap();
    let lap = geometry().lane_size / 64;
    let mut wal = open(&pm);
    let mut value = 0;
    let mut store = |wal: &Wal| {
        value += 1;
        let mut tx = Tx::new();
        tx.write_u64(words()[0], value);
        wal.commit(wal.reserve(256).unwrap(), &tx).unwrap();
        value
    };
    for _ in 0..5 {
        (0..lap / 2 + 7).for_each(|_| _ = store(&wal));
        wal.checkpoint().unwrap();
        (0..4).for_each(|_| _ = store(&wal));
        let last = store(&wal);
        drop(wal);
        // The in-place store is lost, the records are not.
        pm.write(words()[0], &[0; 8]).unwrap();
        let (again, report) = Wal::open(pm.clone() as Arc<dyn PmMedium>, UUID, geometry()).unwrap();
        assert_eq!((report.records_replayed, report.bytes_replayed), (5, 5 * 64));
        assert_eq!(pm.load_u64(words()[0]).unwrap(), last);
        wal = again;
    }
}
