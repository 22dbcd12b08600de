//! The shape of trees: room that is made, leaves that are merged or unlinked, many levels, damaged pages, locks.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

mod common;

use common::{VecPm, apply, format, mount};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;
use terrace_blocks::{Purpose, Target};
use terrace_catalog::{Catalog, DeviceRun, Edit, Freed, ShardsWrite, Shortage, chunks};
use terrace_format::keys::{Key, Kind};
use terrace_format::page::{PAGE_HEADER, PAGE_SIZE, Page};
use terrace_format::table::{Owner, PageKind};
use terrace_format::{DeviceBlock, DeviceId, PmBlock};
use terrace_media::PmMedium;
use terrace_wal::{Error, Tx};

const CAPACITY: usize = PAGE_SIZE - PAGE_HEADER;
/// Neighbours are merged when their cells fit in this number of bytes.
const MERGED: usize = CAPACITY / 4 * 3;

fn pool(size: u64) -> Catalog {
    let pm: Arc<dyn PmMedium> = VecPm::new(size);
    format(&pm);
    mount(&pm).unwrap()
}

fn key(ino: u64, number: u32) -> Key {
    Key::new(ino, Kind::Xattr, &number.to_be_bytes())
}

/// Keys with a long common prefix need long separators, so an inner page holds few of them.
fn long_key(ino: u64, number: u32) -> Key {
    Key::new(ino, Kind::Xattr, &[&[b'x'; 240][..], &number.to_be_bytes()].concat())
}

fn put(catalog: &Catalog, key: &Key, value: &[u8]) {
    apply(catalog, &[catalog.shard_of_key(&key.0)], |guard, tx| guard.put(tx, key, value)).unwrap();
}

fn remove(catalog: &Catalog, key: &Key) {
    let shard = catalog.shard_of_key(&key.0);
    assert!(apply(catalog, &[shard], |guard, tx| Ok(guard.remove(tx, key)?)).unwrap());
}

fn commit<R>(catalog: &Catalog, shards: &[u32], edits: impl FnOnce(&mut ShardsWrite<'_>, &mut Tx) -> R) -> R {
    let reservation = catalog.wal().reserve(catalog.wal().max_record()).unwrap();
    let (mut guard, mut tx, mut freed) = (catalog.write(shards), Tx::new(), Freed::default());
    let result = edits(&mut guard, &mut tx);
    guard.unlink_emptied(&mut tx, &mut freed).unwrap();
    let lsn = catalog.wal().commit(reservation, &tx).unwrap();
    freed.committed(catalog.blocks(), lsn);
    result
}

fn root(catalog: &Catalog, shard: u32) -> u64 {
    catalog.wal().pm().load_u64(catalog.wal().geometry().shard_root(shard)).unwrap()
}

fn page(catalog: &Catalog, block: u64) -> Page {
    let mut page = Page::new(0);
    catalog.wal().pm().read(PmBlock(block).offset(), page.0.as_mut_slice()).unwrap();
    page.verify_header("page").unwrap();
    page
}

fn child(page: &Page, index: usize) -> u64 {
    u64::from_le_bytes(page.cell(index).unwrap().1.try_into().unwrap())
}

fn live(page: &Page) -> usize {
    (0..page.count()).map(|index| page.cell(index).unwrap()).map(|(k, v)| Page::cell_size(k, v.len())).sum()
}

/// The pages of a shard's tree.
fn pages(catalog: &Catalog, shard: u32) -> BTreeMap<u64, Page> {
    let mut found = BTreeMap::new();
    let mut queue: Vec<u64> = Some(root(catalog, shard)).filter(|root| *root != 0).into_iter().collect();
    while let Some(block) = queue.pop() {
        let page = page(catalog, block);
        if page.level() > 0 {
            queue.extend((0..page.count()).map(|index| child(&page, index)));
        }
        assert!(found.insert(block, page).is_none(), "page {block} twice");
    }
    found
}

/// A page of a shard, as its owner would write it.
fn plant(catalog: &Catalog, shard: u32, page: &Page) -> u64 {
    let mut claim = catalog.blocks().claim(1, Purpose::User).unwrap();
    let block = claim.take(Target::Page).unwrap();
    catalog.wal().pm().write(block.offset(), page.0.as_slice()).unwrap();
    commit(catalog, &[shard], |_, tx| {
        let owner = Owner::Page { kind: PageKind::CatalogPage, datum: shard };
        catalog.blocks().set_owner(tx, block, owner);
    });
    block.0
}

fn plant_root(catalog: &Catalog, shard: u32, page: &Page) {
    let block = plant(catalog, shard, page);
    commit(catalog, &[shard], |_, tx| tx.write_u64(catalog.wal().geometry().shard_root(shard), block));
}

fn leaf(cells: &[(&Key, usize)]) -> Page {
    let mut page = Page::new(0);
    cells.iter().for_each(|(key, length)| assert!(page.insert(page.count(), &key.0, &vec![1; *length])));
    page
}

#[test]
fn room_made_for_many_puts_suffices_for_all_puts() {
    for seed in 0..60 {
        let mut rng = StdRng::seed_from_u64(seed);
        let catalog = pool(16 << 20);
        let shards: Vec<u32> = (1..3).map(|ino| catalog.shard_of(ino)).collect();
        let mut model: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
        let step = rng.random_range(1..4);
        for turn in 0..20 {
            let count = rng.random_range(1..30);
            let from = rng.random_range(0..200u32);
            let puts: Vec<(Key, usize)> = (0..count)
                .map(|number| {
                    let number = if turn % 2 == 0 { from + step * number } else { rng.random_range(0..300) };
                    let length = if seed % 2 == 0 { rng.random_range(0..1025) } else { 1024 };
                    (key(rng.random_range(1..3), number), length)
                })
                .collect();
            catalog.make_room_many(&puts, Purpose::User).unwrap();
            let mut largest: BTreeMap<&Key, usize> = BTreeMap::new();
            for (key, length) in &puts {
                let most = largest.entry(key).or_default();
                *most = (*most).max(*length);
            }
            // A record holds at most eight of these puts.
            for part in largest.into_iter().collect::<Vec<_>>().chunks(8) {
                commit(&catalog, &shards, |guard, tx| {
                    for (key, length) in part {
                        let value = vec![turn; *length];
                        assert!(guard.put(tx, key, &value).is_ok(), "seed {seed}: room for {key:?}");
                        model.insert((*key).clone(), value);
                    }
                });
            }
        }
        for (key, value) in &model {
            let read = catalog.read(catalog.shard_of_key(&key.0));
            assert_eq!(read.reader().get(key).unwrap().as_ref(), Some(value));
        }
    }
}

#[test]
fn room_is_made_for_more_leaves_than_rounds_without_keys() {
    let catalog = pool(16 << 20);
    let shard = catalog.shard_of(1);
    let puts: Vec<(Key, usize)> = (0..400).map(|number| (key(1, number), 1024)).collect();
    catalog.make_room_many(&puts, Purpose::User).unwrap();
    for part in puts.chunks(10) {
        commit(&catalog, &[shard], |guard, tx| {
            part.iter().for_each(|(key, length)| guard.put(tx, key, &vec![1; *length]).unwrap());
        });
    }
}

#[test]
fn existing_room_is_not_made_again() {
    let catalog = pool(4 << 20);
    let lsn = || catalog.wal().next_lsn();
    let cell = Page::cell_size(&key(1, 0).0, 0);
    catalog.make_room(&key(1, 0), 1024, Purpose::User).unwrap();
    commit(&catalog, &[1], |guard, tx| guard.put(tx, &key(1, 0), &[1; 1024]).unwrap());
    let before = lsn();
    // The gap is just as large as these.
    let rest = CAPACITY - 1024 - 4 * cell;
    let puts = [(key(1, 1), 1024), (key(1, 2), 1024), (key(1, 3), rest - 2048)];
    catalog.make_room_many(&puts, Purpose::User).unwrap();
    // A key named more than once takes the most of what is said.
    catalog.make_room_many(&vec![(key(1, 4), 1024); 12], Purpose::User).unwrap();
    assert_eq!(lsn(), before);
    catalog
        .make_room_many(&[(key(1, 1), 1024), (key(1, 2), 1024), (key(1, 3), rest - 2047)], Purpose::User)
        .unwrap();
    assert_ne!(lsn(), before);
}

#[test]
fn room_in_one_leaf_is_at_most_a_page() {
    let catalog = pool(4 << 20);
    let room = |room| {
        let shortage = Shortage { shard: 1, key: key(1, 0), room };
        catalog.make_room_for(&shortage, Purpose::User)
    };
    assert!(matches!(room(CAPACITY + 1), Err(Error::Refused(_))));
    assert!(matches!(room(PAGE_SIZE * 2), Err(Error::Refused(_))));
    assert_eq!(root(&catalog, 1), 0);
    room(CAPACITY).unwrap();
    let (before, tree) = (catalog.wal().next_lsn(), pages(&catalog, 1));
    assert_eq!(tree.len(), 1);
    room(CAPACITY).unwrap();
    assert_eq!(catalog.wal().next_lsn(), before);
}

#[test]
fn leaves_are_merged_when_three_quarters_of_a_page_hold_both() {
    let catalog = pool(4 << 20);
    let size = Page::cell_size(&key(1, 0).0, 15);
    assert_eq!(MERGED % size, 0);
    let fit = MERGED / size;
    let count = fit + 60;
    (0..count).for_each(|number| put(&catalog, &key(1, number as u32), &[7; 15]));
    assert_eq!(pages(&catalog, 1).len(), 3);
    for number in 0..60 {
        assert!(!catalog.shrink(&key(1, number), Purpose::Reclaim).unwrap(), "{number} were removed");
        remove(&catalog, &key(1, number));
    }
    assert!(catalog.shrink(&key(1, 60), Purpose::Reclaim).unwrap());
    let tree = pages(&catalog, 1);
    assert_eq!((tree.len(), live(&tree[&root(&catalog, 1)])), (1, MERGED));
}

/// The pages from the root to the leaf of a key, and the child taken in each.
fn way(catalog: &Catalog, key: &Key) -> Vec<(Page, usize)> {
    let (mut way, mut at) = (Vec::new(), root(catalog, catalog.shard_of_key(&key.0)));
    loop {
        let page = page(catalog, at);
        if page.level() == 0 {
            return way;
        }
        let index = (1..page.count()).take_while(|index| page.cell(*index).unwrap().0 <= &key.0[..]).count();
        at = child(&page, index);
        way.push((page, index));
    }
}

#[test]
fn a_deep_tree_shrinks_until_no_neighbours_fit_and_fills_no_page_beyond_three_quarters() {
    let catalog = pool(16 << 20);
    let shard = catalog.shard_of(1);
    for number in 0..1600 {
        put(&catalog, &long_key(1, number), &number.to_be_bytes());
    }
    assert!(page(&catalog, root(&catalog, shard)).level() >= 2);
    let mut rng = StdRng::seed_from_u64(8);
    let mut left: BTreeSet<u32> = (0..1600).collect();
    let mut merged = [0; 4];
    while left.len() > 12 {
        let from = rng.random_range(0..1600);
        let gone: Vec<u32> = left.range(from..).take(8).copied().collect();
        gone.iter().for_each(|number| remove(&catalog, &long_key(1, *number)));
        gone.iter().for_each(|number| _ = left.remove(number));
        let number = *left.range(from..).next().or(left.first()).unwrap();
        let key = long_key(1, number);
        loop {
            let before = pages(&catalog, shard);
            let changed = catalog.shrink(&key, Purpose::Reclaim).unwrap();
            let after = pages(&catalog, shard);
            for (_, page) in after.iter().filter(|(block, _)| !before.contains_key(block)) {
                merged[usize::from(page.level())] += 1;
                assert!(live(page) <= MERGED, "{} bytes, level {}", live(page), page.level());
            }
            if !changed {
                break;
            }
            assert!(after.len() < before.len());
        }
        for (parent, index) in way(&catalog, &key) {
            for first in [index.wrapping_sub(1), index] {
                if first < parent.count() && first + 1 < parent.count() {
                    let pair = [first, first + 1].map(|index| page(&catalog, child(&parent, index)));
                    let separator =
                        if pair[0].level() > 0 { parent.cell(first + 1).unwrap().0.len() } else { 0 };
                    assert!(live(&pair[0]) + live(&pair[1]) + separator > MERGED, "two that fit");
                }
            }
        }
    }
    assert!(merged[0] > 20 && merged[1] > 2, "{merged:?}");
    let read = catalog.read(shard);
    for number in 0..1600 {
        assert_eq!(read.reader().contains(&long_key(1, number)).unwrap(), left.contains(&number));
    }
}

#[test]
fn all_leaves_are_emptied_by_one_transaction() {
    let catalog = pool(4 << 20);
    (0..10).for_each(|number| put(&catalog, &key(1, number), &[1; 1024]));
    assert!(pages(&catalog, 1).len() >= 4);
    commit(&catalog, &[1], |guard, tx| {
        (0..10).for_each(|number| assert!(guard.remove(tx, &key(1, number)).unwrap()));
    });
    assert_eq!(root(&catalog, 1), 0);
    catalog.wal().checkpoint().unwrap();
    while catalog.blocks().scan_step().unwrap() {}
    catalog.blocks().drain_quarantine();
    let usage = catalog.blocks().usage();
    assert_eq!((usage.free, usage.quarantined), (usage.total, 0));
}

#[test]
fn a_leaf_emptied_twice_is_unlinked_once() {
    let catalog = pool(4 << 20);
    (0..12).for_each(|number| put(&catalog, &key(1, number), &[1; 1024]));
    let before = pages(&catalog, 1).len();
    assert!(before >= 5);
    // The keys of the second leaf.
    let numbers = [3, 4, 5];
    commit(&catalog, &[1], |guard, tx| {
        numbers.iter().for_each(|number| assert!(guard.remove(tx, &key(1, *number)).unwrap()));
        guard.put(tx, &key(1, 4), &[2; 4]).unwrap();
        assert!(guard.remove(tx, &key(1, 4)).unwrap());
    });
    assert_eq!(pages(&catalog, 1).len(), before - 1);
    let read = catalog.read(1);
    let left = (0..12).filter(|number| read.reader().contains(&key(1, *number)).unwrap());
    assert_eq!(left.collect::<Vec<_>>(), [0, 1, 2, 6, 7, 8, 9, 10, 11]);
}

/// Reads under one guard, edits between them, keys of two shards and of many leaves in turn.
#[test]
fn reads_of_a_guard_match_a_map_whatever_was_read_before() {
    let catalog = pool(16 << 20);
    let mut model: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
    for number in 0..1200 {
        let (key, value) = (long_key(1 + u64::from(number % 2), 2 * number), number.to_be_bytes().to_vec());
        put(&catalog, &key, &value);
        model.insert(key, value);
    }
    let shards = [catalog.shard_of(1), catalog.shard_of(2)];
    assert!(shards[0] != shards[1] && page(&catalog, root(&catalog, shards[0])).level() >= 2);
    let mut rng = StdRng::seed_from_u64(3);
    for _ in 0..120 {
        let random = |rng: &mut StdRng| long_key(rng.random_range(1..3), rng.random_range(0..2500));
        let puts: Vec<(Key, usize)> = (0..rng.random_range(0..3)).map(|_| (random(&mut rng), 30)).collect();
        catalog.make_room_many(&puts, Purpose::User).unwrap();
        commit(&catalog, &shards, |guard, tx| {
            for (key, length) in &puts {
                guard.put(tx, key, &vec![9; *length]).unwrap();
                model.insert(key.clone(), vec![9; *length]);
            }
            for turn in 0..60 {
                let key = random(&mut rng);
                let reader = guard.reader(tx);
                let prefix = &key.0[..*[4, 5, key.0.len() - 2, key.0.len() - 1].choose(&mut rng).unwrap()];
                let has = |key: &&Key| key.0.starts_with(prefix);
                assert_eq!(reader.get(&key).unwrap().as_ref(), model.get(&key));
                let before = model.range(..=&key).next_back().filter(|(key, _)| has(key));
                let found = reader.previous(&key, prefix).unwrap().map(|(key, value)| (Key(key), value));
                assert_eq!(found.as_ref().map(|(key, value)| (key, value)), before);
                let from = before.map_or(&key, |(key, _)| key);
                let expected: Vec<Key> =
                    model.range(from..).map(|(key, _)| key).take_while(has).take(40).cloned().collect();
                let mut found = Vec::new();
                reader
                    .scan_around(&key, prefix, |key, _| {
                        found.push(Key(key.to_vec()));
                        if found.len() < 40 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                    })
                    .unwrap();
                assert_eq!(found, expected);
                if turn % 20 == 19 && model.len() > 100 {
                    let victims: Vec<Key> = model.range(&key..).take(7).map(|(key, _)| key.clone()).collect();
                    for key in victims.iter().filter(|key| !puts.iter().any(|put| put.0 == **key)) {
                        assert!(guard.remove(tx, key).unwrap());
                        model.remove(key);
                    }
                }
            }
        });
    }
}

/// A full inner page whose first child covers the keys of inode 1.
fn full_inner(level: u8, first: &[u8], below: u64) -> Page {
    let mut page = Page::new(level);
    assert!(page.insert(0, first, &below.to_le_bytes()));
    let mut number = 0;
    while page.insert(page.count(), &long_key(2, number).0, &below.to_le_bytes()) {
        number += 1;
    }
    assert!(number > 10 && page.gap() < Page::cell_size(&long_key(1, 0).0, 8));
    page
}

/// A tree of full pages up to a root of `level`, and a key that its leaf has no room for.
fn full_tree(catalog: &Catalog, level: u8, first: &[u8]) -> Key {
    let keys: Vec<Key> = (0..5).map(|number| long_key(1, number)).collect();
    let last = leaf(&[(&keys[0], 1000), (&keys[1], 1000), (&keys[3], 1000)]);
    let mut below = plant(catalog, 1, &last);
    for level in 1..level {
        below = plant(catalog, 1, &full_inner(level, first, below));
    }
    plant_root(catalog, 1, &full_inner(level, first, below));
    keys[2].clone()
}

#[test]
fn a_tree_grows_to_level_15_and_not_beyond() {
    let catalog = pool(4 << 20);
    let key = full_tree(&catalog, 14, &[]);
    catalog.make_room(&key, 1000, Purpose::User).unwrap();
    let top = page(&catalog, root(&catalog, 1));
    assert_eq!((top.level(), top.count()), (15, 2));
    commit(&catalog, &[1], |guard, tx| guard.put(tx, &key, &[2; 1000]).unwrap());
    assert_eq!(catalog.read(1).reader().get(&key).unwrap(), Some(vec![2; 1000]));

    let catalog = pool(4 << 20);
    let key = full_tree(&catalog, 15, &[]);
    let before = catalog.blocks().accounts().unwrap();
    assert!(matches!(catalog.make_room(&key, 1000, Purpose::User), Err(Error::Corrupt(_))));
    assert_eq!(catalog.blocks().accounts().unwrap(), before);
}

#[test]
fn pages_out_of_order_are_neither_split_nor_scanned() {
    let keys: Vec<Key> = (0..6).map(|number| long_key(1, number)).collect();
    for (order, sound) in [([0, 1, 2], true), ([0, 2, 1], false), ([0, 1, 1], false)] {
        let catalog = pool(4 << 20);
        plant_root(&catalog, 1, &leaf(&order.map(|number| (&keys[number], 1000))));
        let mut visited = 0;
        let scanned = catalog.read(1).reader().scan(&keys[0], &[], |_, _| {
            visited += 1;
            ControlFlow::Continue(())
        });
        let split = catalog.make_room(&keys[5], 1000, Purpose::User);
        if sound {
            assert!(visited == 3 && scanned.is_ok() && split.is_ok());
        } else {
            assert!(matches!(scanned, Err(Error::Corrupt(_))) && visited == 2);
            assert!(matches!(split, Err(Error::Corrupt(_))));
        }
    }
    // The first key of an inner page is empty.
    let catalog = pool(4 << 20);
    let key = full_tree(&catalog, 2, &[0]);
    assert!(matches!(catalog.make_room(&key, 1000, Purpose::User), Err(Error::Corrupt(_))));
}

#[test]
fn a_scan_ends_where_pages_are_reached_again_and_again() {
    let catalog = pool(2 << 20);
    let mut below = plant(&catalog, 1, &Page::new(0));
    for level in 1..12 {
        let mut page = Page::new(level);
        assert!(page.insert(0, &[], &below.to_le_bytes()));
        assert!(page.insert(1, &[0, 0, 0, 1, level], &below.to_le_bytes()));
        if level == 11 {
            plant_root(&catalog, 1, &page);
        } else {
            below = plant(&catalog, 1, &page);
        }
    }
    let read = catalog.read(1);
    let first = Key(vec![0, 0, 0, 1]);
    assert!(matches!(
        read.reader().scan(&first, &[], |_, _| ControlFlow::Continue(())),
        Err(Error::Corrupt(_))
    ));
    let last = Key(vec![0, 0, 0, 1, 255]);
    assert!(matches!(read.reader().previous(&last, &[]), Err(Error::Corrupt(_))));
}

#[test]
fn inodes_are_spread_over_shards_and_empty_shards_are_counted() {
    let catalog = pool(4 << 20);
    let count = catalog.shard_count();
    let shards: Vec<u32> = (0..u64::from(count) + 1).map(|ino| catalog.shard_of(ino)).collect();
    assert_eq!(shards, (0..count).chain([0]).collect::<Vec<_>>());
    assert_eq!(catalog.shard_of_key(&key(u64::from(count) + 2, 7).0), 2);
    assert_eq!(catalog.empty_shards(), count);
    put(&catalog, &key(1, 0), &[1]);
    assert_eq!(catalog.empty_shards(), count - 1);
    put(&catalog, &key(2, 0), &[1]);
    assert_eq!(catalog.empty_shards(), count - 2);
    remove(&catalog, &key(1, 0));
    assert_eq!(catalog.empty_shards(), count - 1);
}

#[test]
fn shards_are_locked_independently_of_each_other() {
    let catalog = pool(4 << 20);
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        let guard = catalog.write(&[2, 1, 2]);
        for shard in [0, 1, 2, 3] {
            let (tell, catalog) = (tell.clone(), &catalog);
            scope.spawn(move || {
                drop(catalog.read(shard));
                tell.send(shard).unwrap();
            });
        }
        let wait = |time| told.recv_timeout(Duration::from_millis(time)).ok();
        let mut free = [wait(10_000), wait(10_000)];
        free.sort_unstable();
        let locked = wait(50);
        drop(guard);
        assert_eq!((free, locked), ([Some(0), Some(3)], None));
        let mut rest = [wait(10_000), wait(10_000)];
        rest.sort_unstable();
        assert_eq!(rest, [Some(1), Some(2)]);
    });
}

#[test]
#[should_panic(expected = "is not locked")]
fn reading_an_unlocked_shard_panics() {
    let catalog = pool(4 << 20);
    let read = catalog.read(1);
    _ = read.reader().get(&key(2, 0));
}

#[test]
fn a_chunk_of_an_unlocked_shard_is_not_marked() {
    let catalog = pool(4 << 20);
    let run = DeviceRun { device: DeviceId(0), start: DeviceBlock(1), length: 2 };
    let [shard] = chunks::shards(&catalog, run)[..] else { unreachable!() };
    let marked = apply(&catalog, &[shard + 1], |guard, tx| chunks::mark(guard, tx, run, true));
    assert!(matches!(marked, Err(Edit::Failed(Error::Corrupt(_)))));
    apply(&catalog, &[shard], |guard, tx| chunks::mark(guard, tx, run, true)).unwrap();
}

#[test]
fn a_damaged_block_of_roots_is_no_place_to_change() {
    let original = VecPm::new(4 << 20);
    let pm: Arc<dyn PmMedium> = original.clone();
    format(&pm);
    let catalog = mount(&pm).unwrap();
    put(&catalog, &key(1, 0), &[1]);
    let place = catalog.wal().geometry().shard_root(3).0 as usize;
    catalog.wal().close().unwrap();
    drop(catalog);
    original.with(|bytes| bytes[place] ^= 1);
    let catalog = mount(&pm).unwrap();
    let guard = catalog.write(&[1]);
    assert!(matches!(guard.reader(&Tx::new()).get(&key(1, 0)), Err(Error::Corrupt(_))));
}
