//! Recovery after the death of the daemon alone: what PM shows then need not be durable.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use terrace_format::{Geometry, PmOffset};
use terrace_media::PmMedium;
use terrace_media::crash::CrashClock;
use terrace_media::pm::{CrashSnapshot, RecordedPm};
use terrace_runtime::sync::Mutex;
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
fn records_are_durable_before_they_are_replayed() {
    let pm = Arc::new(RecordedPm::new(2 << 20));
    Wal::format(pm.clone() as Arc<dyn PmMedium>, UUID, geometry()).unwrap();
    pm.persist();
    let wal = open(&pm);
    pm.persist();
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
