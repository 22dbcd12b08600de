//! The checkpoint's two copies (design T5): one is sound at every instant, also over several crashes.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;
use terrace_format::geometry::CHECKPOINT_COPIES;
use terrace_format::{Geometry, PmOffset};
use terrace_media::PmMedium;
use terrace_media::pm::RecordedPm;
use terrace_wal::{Tx, Wal};

const UUID: [u8; 16] = [3; 16];

fn geometry() -> Geometry {
    Geometry::choose(2 << 20, 16).unwrap()
}

fn open(pm: &Arc<RecordedPm>) -> Wal {
    Wal::open(pm.clone() as Arc<dyn PmMedium>, UUID, geometry()).unwrap().0
}

fn formatted() -> Arc<RecordedPm> {
    let pm = Arc::new(RecordedPm::new(2 << 20));
    Wal::format(pm.clone() as Arc<dyn PmMedium>, UUID, geometry()).unwrap();
    pm.persist().unwrap();
    pm
}

/// A word that a transaction may change.
fn word() -> PmOffset {
    geometry().first_pool_block().offset()
}

fn store(wal: &Wal, value: u64) {
    let mut tx = Tx::new();
    tx.write_u64(word(), value);
    wal.commit(wal.reserve(256).unwrap(), &tx).unwrap();
}

/// Broke: recovery always overwrote copy A first. After a crash in a checkpoint that tore copy B, and a crash
/// in the recovery that tore copy A, the pool could not be mounted.
#[test]
fn recovery_spares_the_copy_it_started_from() {
    for torn in [0, 1] {
        let pm = formatted();
        let wal = open(&pm);
        store(&wal, 7);
        drop(wal);
        let mut image = pm.snapshot().image_newest().to_vec();
        image[CHECKPOINT_COPIES[torn].offset().0 as usize + 24] ^= 1;
        let pm = Arc::new(RecordedPm::from_image(image));
        // Every moment inside the recovery, every state of the lines of a checkpoint.
        let moments = Arc::new(terrace_runtime::sync::Mutex::new(Vec::new()));
        let (weak, kept) = (Arc::downgrade(&pm), Arc::clone(&moments));
        pm.clock().on_event(Some(Box::new(move |_| kept.lock().push(weak.upgrade().unwrap().snapshot()))));
        drop(open(&pm));
        pm.clock().on_event(None);
        for snapshot in moments.lock().iter() {
            for image in snapshot.images(8, 50, 1) {
                let pm = Arc::new(RecordedPm::from_image(image));
                drop(open(&pm));
                assert_eq!(pm.load_u64(word()).unwrap(), 7);
            }
        }
    }
}

/// A transaction under way has published a bound for its LSN: a checkpoint stops there, and where nothing is left to pass
/// before it ends without a look at the lane that the transaction holds.
#[test]
fn a_checkpoint_stops_at_the_bound_of_a_transaction_under_way() {
    let pm = formatted();
    let wal = Arc::new(open(&pm));
    store(&wal, 7);
    wal.checkpoint().unwrap();
    let passed = wal.checkpoint_lsn();
    let under_way = wal.begin(wal.reserve(256).unwrap()).unwrap();
    let (done, ended) = std::sync::mpsc::channel();
    let beside = Arc::clone(&wal);
    let thread =
        terrace_runtime::thread::spawn("checkpoint", move || _ = done.send(beside.checkpoint().is_ok()))
            .unwrap();
    // Ends at once, or waits for the transaction until that gives up here.
    let ended = ended.recv_timeout(Duration::from_secs(60));
    let after = wal.checkpoint_lsn();
    let mut tx = Tx::new();
    tx.write_u64(word(), 8);
    under_way.commit(&tx).unwrap();
    thread.join().unwrap();
    assert_eq!(ended, Ok(true), "the checkpoint wanted to pass a transaction under way");
    assert_eq!(after, passed);
    wal.checkpoint().unwrap();
    assert!(wal.checkpoint_lsn() > passed, "the transaction has ended");
}
