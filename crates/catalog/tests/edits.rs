//! Edits at their edges: leaves that become sparse, prefixes, bytes of values, and transactions given up.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

mod common;

use common::{VecPm, apply, format, mount};
use std::sync::Arc;
use terrace_blocks::Purpose;
use terrace_catalog::{Catalog, Edit, Freed, Shortage};
use terrace_format::keys::{Key, Kind};
use terrace_format::page::{PAGE_HEADER, PAGE_SIZE, Page};
use terrace_format::{Ino, PmBlock};
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
fn removal_of_a_prefix_goes_by_pieces_and_leaves_other_keys_alone() {
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
fn an_update_changes_bytes_inside_the_value_and_never_past_its_end() {
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

/// A leaf of cells of 100 bytes, its number of free bytes, and a last key whose value fills it so far.
fn filled(gap: usize) -> (Catalog, u32) {
    let (catalog, shard) = pool();
    (0..40).for_each(|number| put(&catalog, shard, &key(1, number), &[7; 85]));
    put(&catalog, shard, &key(1, 50), &vec![5; PAGE_SIZE - PAGE_HEADER - 4000 - 15 - gap]);
    (catalog, shard)
}

/// Where the root lies: elsewhere after a split or a compaction.
fn root(catalog: &Catalog, shard: u32) -> u64 {
    catalog.wal().pm().load_u64(catalog.wal().geometry().shard_root(shard)).unwrap()
}

/// A put in a transaction of its own, not committed: bytes of its record and number of its writes.
fn tried(catalog: &Catalog, shard: u32, key: &Key, value: &[u8]) -> Result<(usize, u16), Shortage> {
    let mut guard = catalog.write(&[shard]);
    let mut tx = Tx::new();
    match guard.put(&mut tx, key, value) {
        Ok(()) => Ok((tx.record_size() - Tx::new().record_size(), tx.write_count())),
        Err(Edit::Full(shortage)) => Err(shortage),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_value_of_equal_or_less_length_is_replaced_in_place_and_only_changed_words_are_logged() {
    let (catalog, shard) = filled(0);
    let before = root(&catalog, shard);
    let tried = |value: &[u8]| tried(&catalog, shard, &key(1, 3), value).unwrap();
    assert_eq!(tried(&[7; 85]), (0, 0), "nothing changes");
    let mut value = [7; 85];
    value[20] = 1;
    assert_eq!(tried(&value), (16, 1));
    value[27] = 2;
    assert_eq!(tried(&value), (16, 1), "from the first byte to the last that differ");
    value[28] = 3;
    assert_eq!(tried(&value), (24, 1));
    assert_eq!(tried(&[7; 84]), (32, 2), "its length, and the dead bytes of the page");
    for value in [vec![7; 85], value.to_vec(), vec![9; 60], vec![8; 60], vec![], vec![]] {
        put(&catalog, shard, &key(1, 3), &value);
        assert_eq!(catalog.read(shard).reader().get(&key(1, 3)).unwrap(), Some(value));
    }
    assert_eq!(root(&catalog, shard), before, "all in place");
}

#[test]
fn a_value_grows_into_a_gap_of_exactly_its_size() {
    let (catalog, shard) = filled(55);
    let before = root(&catalog, shard);
    // The key has a slot already: 6 + 9 bytes and the value take two bytes less.
    let shortage = tried(&catalog, shard, &key(1, 50), &[6; 43]).unwrap_err();
    assert_eq!(shortage, Shortage { shard, key: key(1, 50), room: 56 });
    assert!(tried(&catalog, shard, &key(1, 50), &[6; 42]).is_ok());
    let shortage = tried(&catalog, shard, &key(1, 51), &[6; 41]).unwrap_err();
    assert_eq!((shortage.room, tried(&catalog, shard, &key(1, 51), &[6; 40]).is_ok()), (56, true));
    put(&catalog, shard, &key(1, 50), &[6; 42]);
    assert_eq!(root(&catalog, shard), before);
    assert_eq!(catalog.read(shard).reader().get(&key(1, 50)).unwrap(), Some(vec![6; 42]));
    let (empty, shard) = pool();
    assert_eq!(tried(&empty, shard, &key(1, 51), &[6; 40]).unwrap_err().room, 55, "a tree without a page");
}

/// Room that the abandoned transaction had used is needed again.
#[test]
fn a_shortage_includes_the_room_used_by_the_abandoned_transaction() {
    let (catalog, shard) = filled(55);
    let mut guard = catalog.write(&[shard]);
    let mut tx = Tx::new();
    guard.put(&mut tx, &key(1, 60), &[]).unwrap();
    guard.put(&mut tx, &key(1, 61), &[]).unwrap();
    let Err(Edit::Full(shortage)) = guard.put(&mut tx, &key(1, 62), &[1; 11]) else {
        panic!("25 bytes are left");
    };
    assert_eq!(shortage, Shortage { shard, key: key(1, 62), room: 15 + 15 + 26 });
    drop(guard);
    catalog.make_room_for(&shortage, Purpose::User).unwrap();
    let mut guard = catalog.write(&[shard]);
    let mut tx = Tx::new();
    (60..62).for_each(|number| guard.put(&mut tx, &key(1, number), &[]).unwrap());
    guard.put(&mut tx, &key(1, 62), &[1; 11]).unwrap();
}

#[test]
fn room_is_made_only_for_a_put_larger_than_the_gap() {
    let changed = |gap, number, length| {
        let (catalog, shard) = filled(gap);
        let before = root(&catalog, shard);
        catalog.make_room_many(&[(key(1, number), length)], Purpose::User).unwrap();
        assert!(tried(&catalog, shard, &key(1, number), &vec![1; length]).is_ok(), "{number}, {length}");
        root(&catalog, shard) != before
    };
    assert_eq!([85, 84, 0].map(|length| changed(0, 3, length)), [false; 3], "in place");
    assert!(changed(0, 3, 86));
    assert_eq!([40, 41, 42, 43].map(|length| changed(55, 50, length)), [false, false, false, true]);
    assert_eq!([39, 40, 41, 42].map(|length| changed(55, 51, length)), [false, false, true, true]);
}

/// A shard with three leaves: the location words of the leaves, and a key of each leaf.
fn three_leaves() -> (Catalog, u32, Vec<u64>, Vec<Key>) {
    let (catalog, shard) = pool();
    let mut number = 0;
    let location = |number| catalog.read(shard).reader().leaf_location(shard, &key(1, number).0).unwrap();
    while (0..number).map(&location).collect::<std::collections::BTreeSet<_>>().len() < 3 {
        put(&catalog, shard, &key(1, number), &[7; 1000]);
        number += 1;
        assert!(number < 20, "a leaf holds four of them");
    }
    let mut leaves: Vec<(u64, Key)> = Vec::new();
    for number in 0..number {
        let word = location(number).unwrap();
        if leaves.last().is_none_or(|last| last.0 != word) {
            leaves.push((word, key(1, number)));
        } else {
            assert!(remove(&catalog, shard, &key(1, number)));
        }
    }
    assert_eq!(leaves.len(), 3);
    let (words, keys) = leaves.into_iter().unzip();
    (catalog, shard, words, keys)
}

/// Points the child `index` of the root somewhere else.
fn point(catalog: &Catalog, shard: u32, index: usize, word: u64) {
    let root = PmBlock(root(catalog, shard));
    let mut page = Page::new(0);
    catalog.wal().pm().read(root.offset(), page.0.as_mut_slice()).unwrap();
    let (at, _) = page.value_place(index).unwrap();
    catalog.wal().pm().write(root.offset().plus(at as u64), &word.to_le_bytes()).unwrap();
}

/// In a damaged tree two ways lead to one leaf, or one to a page of another shard.
#[test]
fn a_page_is_freed_once_and_only_by_its_own_tree() {
    let (catalog, shard, words, keys) = three_leaves();
    // The first leaf holds its key for the second's way too.
    point(&catalog, shard, 1, words[0]);
    let mut guard = catalog.write(&[shard]);
    let (mut tx, mut freed) = (Tx::new(), Freed::default());
    assert!(guard.remove(&mut tx, &keys[0]).unwrap());
    guard.put(&mut tx, &keys[1], &[]).unwrap();
    assert!(guard.remove(&mut tx, &keys[1]).unwrap());
    let error = guard.unlink_emptied(&mut tx, &mut freed).unwrap_err().to_string();
    assert!(error.contains("owner of a page to free"), "{error}");
    assert_eq!(freed.0.as_slice(), [PmBlock(words[0])]);
    freed.abandoned(catalog.blocks());
    drop(guard);

    let (catalog, shard, _, keys) = three_leaves();
    let other = catalog.shard_of(2);
    assert_ne!(shard, other);
    put(&catalog, other, &key(2, 1), &[1; 20]);
    point(&catalog, shard, 1, root(&catalog, other));
    let mut guard = catalog.write(&[shard, other]);
    let (mut tx, mut freed) = (Tx::new(), Freed::default());
    guard.put(&mut tx, &keys[1], &[]).unwrap();
    assert!(guard.remove(&mut tx, &key(2, 1)).unwrap() && guard.remove(&mut tx, &keys[1]).unwrap());
    let error = guard.unlink_emptied(&mut tx, &mut freed).unwrap_err().to_string();
    assert!(error.contains("owner of a page to free") && freed.0.is_empty(), "{error}");
}
