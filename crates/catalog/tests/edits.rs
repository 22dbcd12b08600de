//! Edits at their edges: leaves that become sparse, prefixes, bytes of values, and transactions given up.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

mod common;

use common::{VecPm, apply, format, mount};
use std::sync::Arc;
use terrace_catalog::{Catalog, Freed};
use terrace_format::Ino;
use terrace_format::keys::{Key, Kind};
use terrace_format::page::{PAGE_HEADER, PAGE_SIZE, Page};
use terrace_media::PmMedium;
use terrace_wal::Tx;

fn pool() -> (Catalog, u32) {
    let pm: Arc<dyn PmMedium> = VecPm::new(16 << 20);
    format(&pm);
    let catalog = mount(&pm).unwrap();
    let shard = catalog.shard_of(1);
    (catalog, shard)
}

fn key(ino: u64, number: u32) -> Key {
    Key::new(ino, Kind::Xattr, &number.to_be_bytes())
}

fn put(catalog: &Catalog, shard: u32, key: &Key, value: &[u8]) {
    apply(catalog, &[shard], |guard, tx| guard.put(tx, key, value)).unwrap();
}

fn remove(catalog: &Catalog, shard: u32, key: &Key) -> bool {
    apply(catalog, &[shard], |guard, tx| Ok(guard.remove(tx, key)?)).unwrap()
}

#[test]
fn a_leaf_is_noted_when_it_becomes_sparse_and_each_time_it_halves() {
    let (catalog, shard) = pool();
    let count = 100;
    (0..count).for_each(|number| put(&catalog, shard, &key(1, number), &[7; 20]));
    let size = Page::cell_size(&key(1, 0).0, 20);
    let sparse = (PAGE_SIZE - PAGE_HEADER) / 4;
    let mut noted = 0;
    for number in 0..count - 1 {
        let before = (count - number) as usize * size;
        let after = before - size;
        assert!(remove(&catalog, shard, &key(1, number)));
        let expected = after < sparse && (before >= sparse || before.ilog2() > after.ilog2());
        assert_eq!(catalog.shrink_step().unwrap(), expected, "{after} bytes are left");
        noted += u32::from(expected);
    }
    assert!(noted >= 4 && !catalog.shrink_step().unwrap());
}

#[test]
fn a_prefix_is_removed_by_pieces_and_nothing_else() {
    let (catalog, shard) = pool();
    let other = catalog.shard_count() as u64 + 1;
    (0..10).for_each(|number| put(&catalog, shard, &key(1, number), &[7; 20]));
    put(&catalog, shard, &key(other, 3), &[7; 20]);
    let prefix = Key::new(Ino(1).0, Kind::Xattr, &[]);
    let step =
        |most| apply(&catalog, &[shard], |guard, tx| Ok(guard.remove_prefix(tx, &prefix, most)?)).unwrap();
    let left = || {
        let guard = catalog.read(shard);
        (0..10).filter(|number| guard.reader().contains(&key(1, *number)).unwrap()).count()
    };
    assert_eq!((step(4), left()), (false, 6));
    assert_eq!((step(5), left()), (false, 1));
    assert_eq!((step(1), left()), (true, 0), "just as many as were left");
    assert!(step(1));
    assert!(catalog.read(shard).reader().contains(&key(other, 3)).unwrap());
}

#[test]
fn bytes_of_a_value_change_where_they_are_and_not_beyond() {
    let (catalog, shard) = pool();
    put(&catalog, shard, &key(1, 1), &[1; 20]);
    put(&catalog, shard, &key(1, 2), &[2; 20]);
    let update = |number, offset, bytes: &[u8]| {
        apply(&catalog, &[shard], |guard, tx| Ok(guard.update_bytes(tx, &key(1, number), offset, bytes)?))
            .ok()
    };
    assert_eq!(update(3, 0, &[9]), Some(false), "no such key");
    assert_eq!((update(1, 5, &[9, 8]), update(1, 18, &[7, 6])), (Some(true), Some(true)));
    assert_eq!((update(1, 19, &[5, 5]), update(1, 21, &[])), (None, None));
    let mut expected = [1; 20];
    (expected[5], expected[6], expected[18], expected[19]) = (9, 8, 7, 6);
    let value = |number| catalog.read(shard).reader().get(&key(1, number)).unwrap().unwrap();
    assert_eq!((value(1), value(2)), (expected.to_vec(), vec![2; 20]));
}

#[test]
fn pages_freed_by_a_transaction_given_up_stay_in_use() {
    let (catalog, shard) = pool();
    put(&catalog, shard, &key(1, 1), &[1; 20]);
    let before = catalog.blocks().accounts().unwrap();
    let mut guard = catalog.write(&[shard]);
    let (mut tx, mut freed) = (Tx::new(), Freed::default());
    assert!(guard.remove(&mut tx, &key(1, 1)).unwrap());
    guard.unlink_emptied(&mut tx, &mut freed).unwrap();
    assert_ne!(catalog.blocks().accounts().unwrap(), before, "the leaf is about to be freed");
    freed.abandoned(catalog.blocks());
    drop(guard);
    assert_eq!(catalog.blocks().accounts().unwrap(), before);
    assert!(catalog.read(shard).reader().contains(&key(1, 1)).unwrap());
}
