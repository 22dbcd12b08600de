//! Data that a record names by its checksum (T4): what a recovery makes of it, and what a store over it has to do first.
#![allow(clippy::unwrap_used)]

use std::borrow::Cow;
use std::sync::Arc;
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

fn opened() -> (Arc<RecordedPm>, Wal) {
    let pm = Arc::new(RecordedPm::new(2 << 20));
    Wal::format(pm.clone() as Arc<dyn PmMedium>, UUID, geometry()).unwrap();
    let wal = open(&pm);
    (pm, wal)
}

fn word() -> PmOffset {
    geometry().first_pool_block().offset()
}

fn data() -> PmOffset {
    word().plus(4096)
}

/// Commits a change of [`word`] that names 100 bytes of [`data`].
fn commit(wal: &Wal) {
    let mut tx = Tx::new();
    let open = wal.begin(wal.reserve(512).unwrap()).unwrap();
    tx.write_u64(word(), 5);
    let before = tx.record_size();
    open.stream_named(&mut tx, data(), &[7; 100]).unwrap();
    assert_eq!(tx.record_size(), before + 16);
    open.commit(&tx).unwrap();
}

/// The word after a loss of power that lost its in-place store.
fn recovered(pm: &RecordedPm, wal: Wal) -> u64 {
    drop(wal);
    pm.write(word(), &[0; 8]).unwrap();
    let pm = Arc::new(RecordedPm::from_image(pm.visible_image()));
    drop(open(&pm));
    pm.load_u64(word()).unwrap()
}

#[test]
fn a_last_record_counts_if_its_data_is_there() {
    let (pm, wal) = opened();
    commit(&wal);
    let mut found = [0; 100];
    pm.read(data(), &mut found).unwrap();
    assert_eq!((found, recovered(&pm, wal)), ([7; 100], 5));
    for at in [0, 99] {
        let (pm, wal) = opened();
        commit(&wal);
        pm.write(data().plus(at), &[8]).unwrap();
        assert_eq!(recovered(&pm, wal), 0, "byte {at} of the data is missing");
    }
}

#[test]
fn a_store_over_named_data_needs_a_confirming_record() {
    for (offset, length, confirmed) in [(0, 1, true), (99, 1, true), (100, 8, false), (50, 0, true)] {
        let (pm, wal) = opened();
        commit(&wal);
        let before = wal.next_lsn();
        wal.confirm_named(data().plus(offset), length).unwrap();
        assert_eq!(wal.next_lsn().0 - before.0, u64::from(confirmed), "{offset} + {length}");
        wal.confirm_named(data().plus(offset), length).unwrap();
        assert_eq!(wal.next_lsn().0 - before.0, u64::from(confirmed), "once is enough");
        pm.write(data(), &[8]).unwrap();
        assert_eq!(recovered(&pm, wal), if confirmed { 5 } else { 0 });
    }
}

#[test]
fn data_committed_with_a_record_is_in_place_after_the_commit() {
    let (pm, wal) = opened();
    let mut tx = Tx::new();
    tx.write_u64(word(), 5);
    let pieces = [(data(), Cow::from(vec![1; 64])), (data().plus(512), Cow::from(vec![2; 64]))];
    wal.commit_with_data(wal.reserve(512).unwrap(), &tx, &pieces).unwrap();
    assert_eq!([0, 512].map(|at| pm.load_u64(data().plus(at)).unwrap() & 0xff), [1, 2]);
    // No confirming record is written if no record names data.
    let before = wal.next_lsn();
    wal.confirm_named(data(), 4096).unwrap();
    assert_eq!(wal.next_lsn(), before);
    assert_eq!(wal.reserved_bytes(), 0);
    let held = wal.reserve(100).unwrap();
    assert_eq!(wal.reserved_bytes(), 192, "a padded record and room for a confirming one");
    drop(held);
    assert_eq!(wal.reserved_bytes(), 0);
}
