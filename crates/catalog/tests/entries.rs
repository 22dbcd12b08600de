//! Entries of directories, extents and intents at their edges and out of order, and what is announced of later puts.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

mod common;

use common::{VecPm, apply, format, mount};
use std::ops::ControlFlow;
use std::sync::Arc;
use terrace_catalog::dentry::{self, Dentry, NameHash};
use terrace_catalog::{Catalog, Edit, cold_map, intent};
use terrace_format::keys::{ColdExtent, Key, Kind, MAX_EXTENT_BLOCKS};
use terrace_format::{DeviceBlock, DeviceId, FileBlock, Ino};
use terrace_media::PmMedium;
use terrace_wal::{Error, NoSpace};

const DIRECTORY: Ino = Ino(9);

fn pool() -> (Catalog, u32) {
    let pm: Arc<dyn PmMedium> = VecPm::new(16 << 20);
    format(&pm);
    let catalog = mount(&pm).unwrap();
    let shard = catalog.shard_of(DIRECTORY.0);
    (catalog, shard)
}

/// All names collide.
fn colliding() -> NameHash {
    NameHash::weak(&[1; 16], 0)
}

fn insert(catalog: &Catalog, shard: u32, name: &str, ino: u64) -> Result<u64, Edit> {
    apply(catalog, &[shard], |guard, tx| {
        dentry::insert(guard, tx, &colliding(), DIRECTORY, name.as_bytes(), Ino(ino), 4)
    })
}

fn lookup(catalog: &Catalog, shard: u32, name: &str) -> Option<Dentry> {
    dentry::lookup(catalog.read(shard).reader(), &colliding(), DIRECTORY, name.as_bytes()).unwrap()
}

#[test]
fn an_entry_is_replaced_and_removed_only_as_it_is() {
    let (catalog, shard) = pool();
    let is_empty = || dentry::is_empty(catalog.read(shard).reader(), DIRECTORY).unwrap();
    assert!(is_empty());
    let cookie = insert(&catalog, shard, "name", 70).unwrap();
    insert(&catalog, shard, "other", 71).unwrap();
    assert!(!is_empty());
    let replace = |cookie, ino| {
        apply(&catalog, &[shard], |guard, tx| Ok(dentry::replace(guard, tx, DIRECTORY, cookie, Ino(ino), 8)?))
            .unwrap()
    };
    assert!(!replace(cookie + 77, 72), "no such entry");
    let before = lookup(&catalog, shard, "name").unwrap();
    assert!(replace(cookie, 72));
    let entry = lookup(&catalog, shard, "name").unwrap();
    assert_eq!((before.ino, entry.ino, entry.file_type, entry.cookie), (Ino(70), Ino(72), 8, cookie));
    let remove = |entry: &Dentry, name: &str| {
        apply(&catalog, &[shard], |guard, tx| {
            Ok(dentry::remove_same(guard, tx, DIRECTORY, entry, name.as_bytes())?)
        })
        .unwrap()
    };
    assert!(!remove(&before, "name"), "of another inode by now");
    assert!(!remove(&entry, "other"), "of another name");
    assert!(remove(&entry, "name") && !remove(&entry, "name"));
    assert_eq!((lookup(&catalog, shard, "name"), is_empty()), (None, false));
    let other = lookup(&catalog, shard, "other").unwrap();
    assert!(remove(&other, "other") && is_empty());
}

#[test]
fn names_of_one_hash_are_at_most_256() {
    let (catalog, shard) = pool();
    let cookies: Vec<u64> =
        (0..256).map(|number| insert(&catalog, shard, &format!("n{number}"), 70).unwrap()).collect();
    assert!(cookies.iter().zip(cookies[0]..).all(|(cookie, expected)| *cookie == expected));
    let error = insert(&catalog, shard, "one too many", 70);
    assert!(matches!(error, Err(Edit::Failed(Error::NoSpace(NoSpace::Numbers)))));
    assert!(matches!(insert(&catalog, shard, "n255", 70), Err(Edit::Exists)));
    // A read from any cookie on gives each later cookie once.
    for after in [0, cookies[0] - 1, cookies[100], cookies[255], u64::MAX] {
        let mut seen = Vec::new();
        dentry::read_from(catalog.read(shard).reader(), DIRECTORY, after, |entry, _| {
            seen.push(entry.cookie);
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(seen, cookies.iter().copied().filter(|cookie| *cookie > after).collect::<Vec<_>>());
    }
}

#[test]
fn announced_puts_have_the_largest_possible_size() {
    let hash = colliding();
    let (key, length) = dentry::insert_put(&hash, DIRECTORY, b"abc");
    assert_eq!(
        (key, length),
        (Key::dentry(DIRECTORY, hash.base(b"abc")), dentry::insert_put(&hash, DIRECTORY, b"").1 + 3)
    );
    assert_eq!([0, 1, 100].map(cold_map::value_size), [16, 20, 416]);
    let last = FileBlock(u64::from(u32::MAX));
    let cut = |to: FileBlock| cold_map::cut_puts(Ino(5), to);
    let largest = cold_map::value_size(MAX_EXTENT_BLOCKS);
    assert_eq!(cut(FileBlock(7)), [(Key::cold(Ino(5), FileBlock(7)), largest)]);
    assert_eq!(cut(last), [(Key::cold(Ino(5), last), largest)]);
    assert_eq!(cut(FileBlock(last.0 + 1)), [], "no key names it");
    let extent = |unwritten| ColdExtent {
        first: FileBlock(3),
        length: 4,
        device: DeviceId(0),
        start: DeviceBlock(1),
        unwritten,
        crcs: vec![0; if unwritten { 0 } else { 4 }],
    };
    for (unwritten, length) in [(false, 32), (true, 16)] {
        let puts = cold_map::install_puts(Ino(5), &extent(unwritten));
        let at = |block| Key::cold(Ino(5), FileBlock(block));
        assert_eq!(puts, [(at(3), length), (at(7), largest)]);
    }
}

/// A value under a key, as a sound pool may not hold it.
fn put_raw(catalog: &Catalog, key: &Key, value: &[u8]) {
    apply(catalog, &[catalog.shard_of_key(&key.0)], |guard, tx| guard.put(tx, key, value)).unwrap();
}

/// An entry's value: an inode, a type, a name.
fn entry(name: &[u8]) -> Vec<u8> {
    [&[70, 0, 0, 0, 4], name].concat()
}

/// Cookies from the first on, or what is wrong.
fn cookies(catalog: &Catalog, shard: u32) -> Result<Vec<u64>, Error> {
    let mut seen = Vec::new();
    dentry::read_from(catalog.read(shard).reader(), DIRECTORY, 0, |entry, _| {
        seen.push(entry.cookie);
        ControlFlow::Continue(())
    })
    .map(|()| seen)
}

#[test]
fn a_weak_hash_has_the_given_number_of_bits() {
    let cookies = |bits| -> std::collections::BTreeSet<u64> {
        let hash = NameHash::weak(&[1; 16], bits);
        (0..200u32).map(|number| hash.base(&number.to_le_bytes())).collect()
    };
    assert_eq!(cookies(0), [256].into());
    assert_eq!(cookies(1), [256].into(), "zero is no hash");
    assert_eq!(cookies(2), [256, 512, 768].into());
    assert!(cookies(7).iter().all(|cookie| *cookie < 128 << 8) && cookies(7).len() > 80);
    assert_eq!((cookies(55), cookies(60).len()), (cookies(99), 200));
}

#[test]
fn names_of_other_directories_and_other_keys_are_not_looked_at() {
    let (catalog, shard) = pool();
    let next = Ino(DIRECTORY.0 + u64::from(catalog.shard_count()));
    insert(&catalog, shard, "here", 70).unwrap();
    apply(&catalog, &[shard], |guard, tx| {
        dentry::insert(guard, tx, &colliding(), next, b"there", Ino(71), 4)
    })
    .unwrap();
    put_raw(&catalog, &Key::xattr(DIRECTORY, b"user.a", 0), &[1]);
    assert_eq!((lookup(&catalog, shard, "there"), lookup(&catalog, shard, "user.a")), (None, None));
    assert_eq!(insert(&catalog, shard, "there", 72).unwrap(), colliding().base(b"there") + 1);
    // The next hash of the same directory.
    put_raw(&catalog, &Key::dentry(DIRECTORY, colliding().base(b"x") + 256), &entry(b"x"));
    assert_eq!(lookup(&catalog, shard, "x"), None);
}

#[test]
fn an_entry_without_a_name_or_with_one_too_long_is_reported() {
    for (length, sound) in [(0, false), (1, true), (255, true), (256, false), (300, false)] {
        let (catalog, shard) = pool();
        let cookie = colliding().base(b"x");
        put_raw(&catalog, &Key::dentry(DIRECTORY, cookie), &entry(&vec![b'n'; length]));
        let found = dentry::lookup(catalog.read(shard).reader(), &colliding(), DIRECTORY, b"other");
        assert_eq!((found.is_ok(), cookies(&catalog, shard).is_ok()), (sound, sound), "{length}");
    }
    let (catalog, shard) = pool();
    put_raw(&catalog, &Key::dentry(DIRECTORY, 300), &[1, 2, 3, 4]);
    assert!(cookies(&catalog, shard).is_err(), "no inode");
}

/// Keys ascend as bytes, so a damaged shorter key may name a smaller cookie than its predecessor, or the
/// same.
#[test]
fn descending_cookies_are_reported() {
    for (sub, sound) in [(&[5][..], false), (&[1, 0], false), (&[1, 1], true)] {
        let (catalog, shard) = pool();
        put_raw(&catalog, &Key::dentry(DIRECTORY, 256), &entry(b"a"));
        put_raw(&catalog, &Key::new(DIRECTORY.0, Kind::Dentry, sub), &entry(b"b"));
        assert_eq!(cookies(&catalog, shard).ok(), sound.then_some(vec![256, 257]), "{sub:?}");
    }
}

fn extent(first: u64, length: u32) -> ColdExtent {
    let crcs = vec![7; length as usize];
    let (device, start) = (DeviceId(0), DeviceBlock(1 + first));
    ColdExtent { first: FileBlock(first), length, device, start, unwritten: false, crcs }
}

/// Firsts of the extents that overlap a range.
fn firsts(catalog: &Catalog, from: u64, to: u64) -> Option<Vec<u64>> {
    let reader = catalog.read(catalog.shard_of(5));
    let found = cold_map::range(reader.reader(), Ino(5), FileBlock(from), FileBlock(to));
    found.ok().map(|extents| extents.iter().map(|extent| extent.first.0).collect())
}

fn extents(of: &[(u64, u32)]) -> Catalog {
    let (catalog, _) = pool();
    for (first, length) in of {
        put_raw(&catalog, &Key::cold(Ino(5), FileBlock(*first)), &extent(*first, *length).encode());
    }
    catalog
}

#[test]
fn a_range_lists_each_extent_with_a_block_inside_it() {
    let catalog = extents(&[(10, 10), (20, 5), (40, 10)]);
    let of = |from, to| firsts(&catalog, from, to).unwrap();
    assert_eq!((of(0, 10), of(0, 11), of(19, 20), of(20, 21)), (vec![], vec![10], vec![10], vec![20]));
    assert_eq!((of(25, 40), of(24, 41), of(50, 60)), (vec![], vec![20, 40], vec![]));
    assert_eq!((of(15, 15), of(16, 15), of(0, 99)), (vec![], vec![], vec![10, 20, 40]));
    let lookup = |block| {
        let guard = catalog.read(catalog.shard_of(5));
        cold_map::lookup(guard.reader(), Ino(5), FileBlock(block)).unwrap().map(|extent| extent.first.0)
    };
    assert_eq!([9, 10, 19, 20, 24, 25].map(lookup), [None, Some(10), Some(10), Some(20), Some(20), None]);
}

#[test]
fn ranges_end_at_the_largest_block_of_a_file() {
    let last = u64::from(u32::MAX);
    let catalog = extents(&[(3, 4), (last - 4, 5)]);
    assert_eq!(firsts(&catalog, last - 4, last), Some(vec![last - 4]));
    assert_eq!(firsts(&catalog, last, u64::MAX), Some(vec![last - 4]), "the last block that has a key");
    assert_eq!(firsts(&catalog, 0, u64::MAX), Some(vec![3, last - 4]));
    // No key names what lies behind, whatever a damaged extent says.
    let catalog = extents(&[(3, 4), (last - 4, 50)]);
    assert_eq!(firsts(&catalog, last, last + 9), Some(vec![last - 4]));
    assert_eq!(firsts(&catalog, last + 1, last + 9), Some(vec![]));
    let shard = catalog.shard_of(5);
    let guard = catalog.read(shard);
    assert!(cold_map::lookup(guard.reader(), Ino(5), FileBlock(u64::MAX)).unwrap().is_none());
}

#[test]
fn overlapping_extents_are_reported() {
    for (second, sound) in [(14, false), (15, true), (10, false)] {
        let catalog = extents(&[(5, 10), (second, 3)]);
        assert_eq!(firsts(&catalog, 0, 99).is_some(), sound, "{second}");
        assert_eq!(firsts(&catalog, 6, 99).is_some(), sound, "{second}");
    }
    // A key of other length may name a smaller block.
    let catalog = extents(&[(5, 10)]);
    let value = extent(0, 3).encode();
    put_raw(&catalog, &Key::new(5, Kind::Cold, &[1]), &value);
    assert_eq!(firsts(&catalog, 0, 99), None);
}

#[test]
fn intents_are_listed_in_order_and_removed_one_by_one() {
    let (catalog, shard) = pool();
    let intent =
        |first, end| intent::Intent { first: FileBlock(first), end: FileBlock(end), generation: 0x1234_5678 };
    let all = [intent(0, 5), intent(5, 9), intent(20, 1 << 32)];
    for intent in all.iter().rev() {
        apply(&catalog, &[shard], |guard, tx| intent::put(guard, tx, DIRECTORY, *intent)).unwrap();
    }
    let list = || intent::list(catalog.read(shard).reader(), DIRECTORY).ok();
    let remove = |first| {
        let first = FileBlock(first);
        apply(&catalog, &[shard], |guard, tx| Ok(intent::remove(guard, tx, DIRECTORY, first)?)).unwrap()
    };
    assert_eq!(list(), Some(all.to_vec()));
    assert!(!remove(6), "none begins there");
    assert_eq!(list(), Some(all.to_vec()));
    assert!(remove(5) && !remove(5));
    assert_eq!(list(), Some(vec![all[0], all[2]]));
    assert!(remove(0) && remove(20));
    assert_eq!(list(), Some(vec![]));
    let (key, size) = intent::put_size(DIRECTORY, FileBlock(7));
    assert_eq!((key, size), (Key::intent(DIRECTORY, FileBlock(7)), 12));
}

#[test]
fn impossible_intents_are_reported() {
    let value = |end: u64| [&[3, 0, 0, 0][..], &end.to_le_bytes()].concat();
    let listed = |intents: &[(u64, Vec<u8>)]| {
        let (catalog, shard) = pool();
        for (first, value) in intents {
            put_raw(&catalog, &Key::intent(DIRECTORY, FileBlock(*first)), value);
        }
        intent::list(catalog.read(shard).reader(), DIRECTORY).ok().map(|list| list.len())
    };
    assert_eq!(listed(&[(7, value(8)), (8, value(1 << 32))]), Some(2));
    for end in [0, 6, 7, (1 << 32) + 1, u64::MAX] {
        assert_eq!(listed(&[(7, value(end))]), None, "from 7 to {end}");
    }
    assert_eq!(listed(&[(7, value(9)), (8, value(12))]), None, "they overlap");
    let long = [&value(9)[..], &[0]].concat();
    assert_eq!((listed(&[(7, value(9)[..11].to_vec())]), listed(&[(7, long)])), (None, None));
    assert_eq!(listed(&[(7, vec![1, 2, 3])]), None);
}
