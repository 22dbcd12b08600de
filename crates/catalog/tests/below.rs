//! Leaves that lie below PM: found by their keys, named by their parents, read from copies (docs/decisions/0014).
#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

mod common;

use common::{VecPm, apply, format, mount};
use std::ops::ControlFlow;
use std::sync::Arc;
use terrace_catalog::{Catalog, IoPin, PageCopy};
use terrace_format::below::{Below, Identity, is_below};
use terrace_format::keys::{Key, Kind};
use terrace_format::page::Page;
use terrace_format::{DeviceBlock, DeviceId, PmBlock};
use terrace_media::PmMedium;
use terrace_wal::{Error, PageBelow, Tx};

/// Keys with a long common prefix need long separators, so an inner page holds few of them.
fn key(number: u32) -> Key {
    let mut sub = vec![b'x'; 240];
    sub.extend_from_slice(&number.to_be_bytes());
    Key::new(1, Kind::Xattr, &sub)
}

/// A tree of at least three levels, of `count` keys, and its shard.
fn deep(count: u32) -> (Arc<dyn PmMedium>, Catalog, u32) {
    let pm: Arc<dyn PmMedium> = VecPm::new(16 << 20);
    format(&pm);
    let catalog = mount(&pm).unwrap();
    let shard = catalog.shard_of(1);
    for number in 0..count {
        apply(&catalog, &[shard], |guard, tx| guard.put(tx, &key(number), &number.to_be_bytes())).unwrap();
    }
    (pm, catalog, shard)
}

fn below(number: u32) -> u64 {
    Below::new(DeviceId(0), DeviceBlock(u64::from(number) + 1), 7, false).encode()
}

fn location(catalog: &Catalog, shard: u32, number: u32) -> Option<u64> {
    catalog.read(shard).reader().leaf_location(shard, &key(number).0).unwrap()
}

/// Names another place for the leaf of a key; the place before.
fn relocate(catalog: &Catalog, shard: u32, number: u32, new: u64) -> u64 {
    let old = location(catalog, shard, number).unwrap();
    let set = |expected: u64, new: u64| {
        apply(catalog, &[shard], |guard, tx| {
            Ok(guard.set_leaf_location(tx, shard, &key(number).0, expected, new)?)
        })
        .unwrap()
    };
    assert!(!set(old + 1, new), "it lies elsewhere");
    assert!(set(old, new));
    old
}

fn words_below(catalog: &Catalog, shard: u32) -> Vec<u64> {
    let mut words = Vec::new();
    catalog.read(shard).reader().leaves_below(shard, &mut |word| words.push(word)).unwrap();
    words.sort_unstable();
    words
}

#[test]
fn a_tree_without_inner_pages_names_no_leaf() {
    let (_pm, catalog, shard) = deep(0);
    assert_eq!((location(&catalog, shard, 0), words_below(&catalog, shard)), (None, vec![]));
    let (_pm, catalog, shard) = deep(3);
    assert_eq!((location(&catalog, shard, 0), words_below(&catalog, shard)), (None, vec![]));
    let moved = apply(&catalog, &[shard], |guard, tx| {
        Ok(guard.set_leaf_location(tx, shard, &key(0).0, 0, below(0))?)
    });
    assert!(!moved.unwrap(), "a root stays in PM");
    let guard = catalog.read(shard);
    assert_eq!(guard.reader().leaf_below(&key(0), &key(3)).unwrap(), None);
    assert_eq!(guard.reader().leaf_range(shard, &key(0).0).unwrap(), (vec![], None));
}

#[test]
fn the_leaf_ranges_of_a_deep_tree_cover_the_key_space_without_overlap() {
    const COUNT: u32 = 1500;
    let (_pm, catalog, shard) = deep(COUNT);
    let guard = catalog.read(shard);
    let reader = guard.reader();
    let (mut ranges, mut locations) = (Vec::new(), Vec::new());
    for number in 0..COUNT {
        let (low, high) = reader.leaf_range(shard, &key(number).0).unwrap();
        assert!(low <= key(number).0 && high.as_ref().is_none_or(|high| key(number).0 < *high));
        let word = reader.leaf_location(shard, &key(number).0).unwrap().unwrap();
        assert!(!is_below(word));
        if ranges.last() != Some(&(low.clone(), high.clone())) {
            ranges.push((low, high));
            locations.push(word);
        }
        assert_eq!(locations.last(), Some(&word), "one leaf for one range");
    }
    assert!(ranges.len() > 50, "{} leaves", ranges.len());
    assert!(ranges[0].0.is_empty() && ranges[ranges.len() - 1].1.is_none());
    assert!(ranges.windows(2).all(|pair| pair[0].1.as_ref() == Some(&pair[1].0)), "side by side");
    locations.sort_unstable();
    locations.dedup();
    assert_eq!(locations.len(), ranges.len());
}

#[test]
fn leaf_below_finds_a_leaf_by_each_key_of_its_range() {
    const COUNT: u32 = 1500;
    let (_pm, catalog, shard) = deep(COUNT);
    let find =
        |first: u32, last: u32| catalog.read(shard).reader().leaf_below(&key(first), &key(last)).unwrap();
    assert_eq!((find(0, COUNT), words_below(&catalog, shard)), (None, vec![]));
    let chosen = [0, 700, COUNT - 1];
    let places = chosen.map(|number| relocate(&catalog, shard, number, below(number)));
    assert_eq!(words_below(&catalog, shard), chosen.map(below));
    for number in chosen {
        let (low, high) = catalog.read(shard).reader().leaf_range(shard, &key(number).0).unwrap();
        let found = find(number, number).unwrap();
        assert!(found >= low && found <= key(number).0);
        assert_eq!(location(&catalog, shard, number), Some(below(number)));
        let read = catalog.read(shard).reader().get(&key(number));
        assert!(matches!(read, Err(Error::PageBelow(page)) if matches!(*page, PageBelow::Leaf { .. })));
        // Keys before it, and behind it, are in PM.
        let first = (0..COUNT).find(|at| key(*at).0 >= low).unwrap();
        let end = (0..COUNT).find(|at| high.as_ref().is_some_and(|high| key(*at).0 >= *high));
        if first > 20 {
            assert_eq!(find(first - 20, first - 1), None, "before {number}");
            assert!(find(first - 20, first).is_some());
        }
        if let Some(end) = end {
            assert_eq!(find(end, end + 20), None, "behind {number}");
            assert!(find(end - 1, end + 20).is_some());
        }
    }
    for (number, place) in chosen.into_iter().zip(places) {
        assert_eq!(relocate(&catalog, shard, number, place), below(number));
    }
    assert_eq!(words_below(&catalog, shard), []);
    assert!(catalog.read(shard).reader().get(&key(700)).unwrap().is_some());
}

/// The I/O pin of a device block that nothing else would take.
struct NoPin;

impl IoPin for NoPin {}

#[test]
fn a_leaf_below_is_read_from_its_copy_while_somebody_holds_it() {
    let (pm, catalog, shard) = deep(300);
    let copy_of = |place: u64, word: u64| {
        let mut bytes = [0; 4096];
        pm.read(PmBlock(place).offset(), &mut bytes).unwrap();
        let identity = Identity::Catalog { shard };
        Arc::new(PageCopy { identity, location: word, bytes, pin: Box::new(NoPin) })
    };
    let numbers = [10, 200];
    let copies =
        numbers.map(|number| copy_of(relocate(&catalog, shard, number, below(number)), below(number)));
    let read = |number: u32| catalog.read(shard).reader().get(&key(number)).ok().flatten();
    let value = |number: u32| Some(number.to_be_bytes().to_vec());
    assert_eq!(numbers.map(read), [None, None]);
    copies.iter().for_each(|copy| catalog.aside().put(copy));
    assert_eq!(numbers.map(read), numbers.map(value));
    // A change does not start from a copy.
    let guard = catalog.write(&[shard]);
    assert!(guard.reader(&Tx::new()).get(&key(10)).is_err());
    drop(guard);
    let [first, second] = copies;
    catalog.aside().forget(first.identity, first.location);
    assert_eq!(numbers.map(read), [None, value(200)]);
    catalog.aside().put(&first);
    assert!(catalog.aside().get(second.identity, first.location).is_some());
    drop(second);
    assert_eq!(numbers.map(read), [value(10), None]);
}

/// A tree whose inner pages are as given, from the root down, each child of one the next: (cells, value of a cell). The last
/// names leaves.
fn crafted(pages: &[(u8, usize)], leaf: &[u8]) -> (Catalog, u32) {
    let pm: Arc<dyn PmMedium> = VecPm::new(2 << 20);
    format(&pm);
    let catalog = mount(&pm).unwrap();
    let shard = catalog.shard_of(1);
    let first = catalog.blocks().first_block().0 + 20;
    for (place, (level, cells)) in (first..).zip(pages) {
        let mut page = Page::new(*level);
        let next = (place + 1).to_le_bytes();
        let value = if *level == 1 { leaf } else { &next };
        for index in 0..*cells {
            let key = key(0).0[..4].iter().copied().chain([1 + index as u8]).collect::<Vec<u8>>();
            assert!(page.insert(index, if index == 0 { &[] } else { &key }, value));
        }
        pm.write(PmBlock(place).offset(), page.0.as_slice()).unwrap();
    }
    pm.write(catalog.wal().geometry().shard_root(shard), &first.to_le_bytes()).unwrap();
    (catalog, shard)
}

/// Whether the leaves below PM of a shard are listed; how many.
fn listed(catalog: &Catalog, shard: u32) -> Result<usize, String> {
    let mut count = 0;
    let guard = catalog.read(shard);
    guard.reader().leaves_below(shard, &mut |_| count += 1).map(|()| count).map_err(|error| error.to_string())
}

/// A damaged tree may lead to one page along many ways: visits end when there were as many as the pool has blocks.
#[test]
fn a_walk_with_more_visits_than_blocks_is_reported() {
    let end = {
        let (catalog, _) = crafted(&[(1, 1)], &below(1).to_le_bytes());
        catalog.blocks().end_block().0
    };
    let mut seen = [0, 0];
    for first in 1..100 {
        for second in (end / first).saturating_sub(3)..=end / first {
            // A root with `first` children, and `second` children below each of its children.
            let visits = 1 + first + first * second;
            if second == 0 || second > 120 || visits.abs_diff(end) > 1 {
                continue;
            }
            let (catalog, shard) =
                crafted(&[(3, first as usize), (2, second as usize), (1, 1)], &below(1).to_le_bytes());
            let found = listed(&catalog, shard);
            if visits <= end {
                assert_eq!(found, Ok((first * second) as usize), "{visits} visits of {end}");
            } else {
                assert!(found.is_err_and(|error| error.contains("a page reached twice")), "{visits} visits");
            }
            seen[usize::from(visits > end)] += 1;
        }
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
    // Leaves in PM, so that the search goes on.
    let leaf = catalog_leaf();
    let (catalog, shard) = crafted(&[(3, 100), (2, 100), (1, 1)], &leaf);
    let (first, last) = (Key(vec![0, 0, 0, 1, 0]), Key(vec![0, 0, 0, 1, 0xff]));
    let guard = catalog.read(shard);
    let found = guard.reader().leaf_below(&first, &last).map_err(|error| error.to_string());
    assert!(found.is_err_and(|error| error.contains("a page reached twice")));
    let (catalog, shard) = crafted(&[(3, 4), (2, 100), (1, 1)], &leaf);
    assert_eq!(catalog.read(shard).reader().leaf_below(&first, &last).unwrap(), None);
}

/// The location of some leaf in PM.
fn catalog_leaf() -> [u8; 8] {
    let (catalog, _) = crafted(&[(1, 1)], &[0; 8]);
    (catalog.blocks().first_block().0 + 50).to_le_bytes()
}

/// A damaged leaf in PM hides none below: inner pages are read, and no others.
#[test]
fn leaves_below_and_ranges_are_listed_without_reading_leaves() {
    let (catalog, shard) = crafted(&[(2, 3), (1, 5)], &catalog_leaf());
    assert_eq!(listed(&catalog, shard), Ok(0));
    let guard = catalog.read(shard);
    let reader = guard.reader();
    let (first, last) = (Key(vec![0, 0, 0, 1, 0]), Key(vec![0, 0, 0, 1, 0xff]));
    assert!(reader.get(&Key::new(1, Kind::Xattr, b"a")).is_err());
    assert_eq!(reader.leaf_below(&first, &last).unwrap(), None);
    let key = |kind: u8| vec![0, 0, 0, 1, kind];
    assert_eq!(reader.leaf_range(shard, &key(3)).unwrap(), (key(3), Some(key(4))));
    assert_eq!(reader.leaf_range(shard, &key(9)).unwrap(), (key(5), None));
    assert_eq!(reader.leaf_range(shard, &key(0)).unwrap(), (vec![], Some(key(2))));
}

#[test]
fn a_location_has_eight_bytes_and_only_a_leaf_lies_below() {
    let word = below(1).to_le_bytes();
    let (catalog, shard) = crafted(&[(2, 3), (1, 5)], &word);
    assert_eq!(listed(&catalog, shard), Ok(15));
    for length in [0, 7] {
        let (catalog, shard) = crafted(&[(1, 5)], &word[..length]);
        assert!(listed(&catalog, shard).is_err_and(|error| error.contains("child location")), "{length}");
    }
    let long = [&word[..], &[0]].concat();
    let (catalog, shard) = crafted(&[(1, 5)], &long);
    assert!(listed(&catalog, shard).is_err_and(|error| error.contains("child location")));
    // An inner page never lies below.
    let (catalog, shard) = crafted(&[(2, 1)], &word);
    let root = catalog.wal().pm().load_u64(catalog.wal().geometry().shard_root(shard)).unwrap();
    let mut page = Page::new(2);
    assert!(page.insert(0, &[], &word));
    catalog.wal().pm().write(PmBlock(root).offset(), page.0.as_slice()).unwrap();
    assert!(listed(&catalog, shard).is_err_and(|error| error.contains("a page in PM")));
}

/// The reclaimer goes by it: a leaf that was read is in use, inner pages are not noted.
#[test]
fn reading_a_leaf_marks_the_leaf_as_in_use() {
    let (pm, catalog, shard) = deep(300);
    let root = PmBlock(pm.load_u64(catalog.wal().geometry().shard_root(shard)).unwrap());
    let leaf = PmBlock(location(&catalog, shard, 7).unwrap());
    let other = PmBlock(location(&catalog, shard, 299).unwrap());
    let forget = || [root, leaf, other].map(|block| catalog.blocks().descriptor(block).clear_in_use());
    forget();
    assert_eq!(location(&catalog, shard, 7), Some(leaf.0));
    assert_eq!(forget(), [false, false, false], "the leaf itself is not read");
    assert!(catalog.read(shard).reader().get(&key(7)).unwrap().is_some());
    assert_eq!(forget(), [false, true, false]);
}

#[test]
fn keys_beside_a_leaf_below_are_read_without_it() {
    const COUNT: u32 = 300;
    let (_pm, catalog, shard) = deep(COUNT);
    let (low, high) = catalog.read(shard).reader().leaf_range(shard, &key(150).0).unwrap();
    let first = (0..COUNT).find(|at| key(*at).0 >= low).unwrap();
    let end = (0..COUNT).find(|at| key(*at).0 >= *high.as_ref().unwrap()).unwrap();
    assert_eq!(high, Some(key(end).0), "the separator is the first key behind");
    apply(&catalog, &[shard], |guard, tx| Ok(guard.remove(tx, &key(end))?)).unwrap();
    relocate(&catalog, shard, 150, below(150));
    let read = catalog.read(shard);
    let reader = read.reader();
    let around = |number: u32, prefix: &[u8]| {
        let mut found = Vec::new();
        let note = |key: &[u8], _: &[u8]| {
            found.push(key.to_vec());
            ControlFlow::Continue(())
        };
        reader.scan_around(&key(number), prefix, note).map(|()| found)
    };
    // The last key before it, with nothing to follow.
    assert_eq!(around(first - 1, &key(first - 1).0).unwrap(), [key(first - 1).0]);
    // An absent key behind the range of the leaf: the search for a key before it finds no key of the prefix.
    assert_eq!(reader.previous(&key(end), &key(end).0).unwrap(), None);
    assert_eq!(around(end, &key(end).0).unwrap(), Vec::<Vec<u8>>::new());
    // Other keys may lie in the range of the leaf.
    let leaf = |error: Error| match error {
        Error::PageBelow(page) => match *page {
            PageBelow::Leaf { shard: found, key } => (found == shard).then_some(key),
            _ => None,
        },
        _ => None,
    };
    let found = around(first - 1, &[]).err().and_then(leaf).unwrap();
    assert!(found >= low && Some(&found) < high.as_ref());
    let found = reader.previous(&key(end), &[]).err().and_then(leaf).unwrap();
    assert!(found >= low && Some(&found) < high.as_ref());
}
