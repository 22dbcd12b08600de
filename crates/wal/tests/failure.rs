//! Persistent memory that fails in the middle of a transaction (I1, I8).
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use terrace_format::Geometry;
use terrace_media::PmMedium;
use terrace_media::block::Times;
use terrace_media::pm::{Access, RecordedPm};
use terrace_wal::{Tx, Wal};

const UUID: [u8; 16] = [3; 16];

/// Broke: when PM failed while a record was being applied, unmount's (or any later) checkpoint passed
/// the half applied record: the transaction was torn for good, and the pool marked clean.
#[test]
fn no_checkpoint_passes_a_half_applied_record() {
    let geometry = Geometry::choose(2 << 20, 16).unwrap();
    let pm = Arc::new(RecordedPm::new(2 << 20));
    let medium = || pm.clone() as Arc<dyn PmMedium>;
    Wal::format(medium(), UUID, geometry).unwrap();
    let (wal, _) = Wal::open(medium(), UUID, geometry).unwrap();
    let (a, b) = (geometry.first_pool_block().offset(), geometry.first_pool_block().offset().plus(64));
    let commit = |value: u64| {
        let mut tx = Tx::new();
        tx.write_u64(a, value);
        tx.write_u64(b, value);
        wal.commit(wal.reserve(256).unwrap(), &tx)
    };
    commit(1).unwrap();
    pm.poison(b.0..b.0 + 8);
    assert!(commit(2).is_err());
    assert!(wal.reserve(256).is_err(), "no changes any more");
    assert!(wal.checkpoint().is_err());
    assert!(wal.close().is_err());
    drop(wal);
    let pm = Arc::new(RecordedPm::from_image(pm.visible_image()));
    let medium = || pm.clone() as Arc<dyn PmMedium>;
    Wal::open(medium(), UUID, geometry).unwrap();
    assert_eq!((pm.load_u64(a).unwrap(), pm.load_u64(b).unwrap()), (2, 2));
}

/// Broke: after a commit failed amid its in-place stores, its new words were read beside old words: after
/// such a failure of a truncation, reads gave zeros below the old size. Found by `terrace_sim::drivers::faults`,
/// "truncate down" and five others.
#[test]
fn a_half_applied_record_is_not_read() {
    let geometry = Geometry::choose(2 << 20, 16).unwrap();
    let pm = Arc::new(RecordedPm::new(2 << 20));
    let medium = || pm.clone() as Arc<dyn PmMedium>;
    Wal::format(medium(), UUID, geometry).unwrap();
    let (wal, _) = Wal::open(medium(), UUID, geometry).unwrap();
    let a = geometry.first_pool_block().offset();
    pm.poison_for(a.0 + 64..a.0 + 72, Access::Stores, Times::Count(1));
    let mut tx = Tx::new();
    tx.write_u64(a, 2);
    tx.write_u64(a.plus(64), 2);
    assert!(wal.commit(wal.reserve(256).unwrap(), &tx).is_err());
    assert!(pm.load_u64(a).is_err(), "half of a change is read");
    assert!(pm.load_u64(a.plus(64)).is_err());
    assert_eq!(pm.load_u64(a.plus(128)).unwrap(), 0, "what it does not touch is read on");
}
