//! Persistent memory that fails in the middle of a transaction (I1, I8).
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use terrace_format::Geometry;
use terrace_media::PmMedium;
use terrace_media::pm::RecordedPm;
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
    pm.clear_poison();
    drop(wal);
    Wal::open(medium(), UUID, geometry).unwrap();
    assert_eq!((pm.load_u64(a).unwrap(), pm.load_u64(b).unwrap()), (2, 2));
}
