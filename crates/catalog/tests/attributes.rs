//! Xattrs and symlinks by parts: announced sizes, limits, lists by pieces, and damage.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

mod common;

use common::{VecPm, apply, format, mount};
use std::ops::ControlFlow;
use std::sync::Arc;
use terrace_blocks::Purpose;
use terrace_catalog::xattr::SetMode;
use terrace_catalog::{Catalog, Edit, symlink, xattr};
use terrace_format::Ino;
use terrace_format::keys::{Key, MAX_VALUE};
use terrace_media::PmMedium;

fn pool() -> (Catalog, u32) {
    let pm: Arc<dyn PmMedium> = VecPm::new(4 << 20);
    format(&pm);
    let catalog = mount(&pm).unwrap();
    let shard = catalog.shard_of(1);
    (catalog, shard)
}

fn put(catalog: &Catalog, key: &Key, value: &[u8]) {
    apply(catalog, &[1], |guard, tx| guard.put(tx, key, value)).unwrap();
}

fn set(catalog: &Catalog, name: &[u8], value: &[u8], limit: usize) -> Result<(), Edit> {
    catalog.make_room_many(&xattr::set_puts(Ino(1), name, value.len()), Purpose::User).unwrap();
    apply(catalog, &[1], |guard, tx| xattr::set(guard, tx, Ino(1), name, value, SetMode::Any, limit))
}

fn create(catalog: &Catalog, length: usize) -> Result<(), Edit> {
    catalog.make_room_many(&symlink::create_puts(Ino(1), length), Purpose::User).unwrap();
    apply(catalog, &[1], |guard, tx| symlink::create(guard, tx, Ino(1), &vec![b't'; length]))
}

/// The keys of an inode with the lengths of their values.
fn stored(catalog: &Catalog, ino: u32) -> Vec<(Key, usize)> {
    let mut found = Vec::new();
    let prefix = Key(ino.to_be_bytes().to_vec());
    let read = catalog.read(1);
    let scanned = read.reader().scan(&prefix, &prefix.0, |key, value| {
        found.push((Key(key.to_vec()), value.len()));
        ControlFlow::Continue(())
    });
    scanned.unwrap();
    found
}

#[test]
fn announced_puts_equal_the_puts_of_the_edit() {
    for length in [0, 1, 1019, 1020, 1021, 1024, 1025, 2044, 2045, 3000, 4095] {
        let (catalog, shard) = pool();
        set(&catalog, b"user.a", &vec![3; length], 5000).unwrap();
        assert_eq!(stored(&catalog, 1), xattr::set_puts(Ino(1), b"user.a", length), "{length}");
        let value = xattr::get(catalog.read(shard).reader(), Ino(1), b"user.a").unwrap();
        assert_eq!(value, Some(vec![3; length]));
        assert!(apply(&catalog, &[1], |guard, tx| Ok(xattr::remove(guard, tx, Ino(1), b"user.a")?)).unwrap());
        assert_eq!(stored(&catalog, 1), []);
        if length > 0 {
            create(&catalog, length).unwrap();
            assert_eq!(stored(&catalog, 1), symlink::create_puts(Ino(1), length));
            assert_eq!(symlink::read(catalog.read(shard).reader(), Ino(1)).unwrap(), vec![b't'; length]);
        }
    }
}

#[test]
fn xattr_values_and_symlink_targets_have_a_largest_size() {
    let (catalog, _) = pool();
    set(&catalog, b"user.a", &[1; 700], 700).unwrap();
    assert!(matches!(set(&catalog, b"user.a", &[1; 701], 700), Err(Edit::TooLarge)));
    let large = vec![1; xattr::MAX_SIZE_BYTES + 1];
    assert!(matches!(set(&catalog, b"user.a", &large, usize::MAX), Err(Edit::TooLarge)));
    assert!(matches!(create(&catalog, symlink::MAX_TARGET_BYTES + 1), Err(Edit::TooLarge)));
    create(&catalog, symlink::MAX_TARGET_BYTES).unwrap();
}

#[test]
fn xattr_names_are_listed_and_removed_by_pieces() {
    let (catalog, shard) = pool();
    // Three keys, a key, a key.
    for (name, length) in [(&b"user.a"[..], 2500), (b"user.b", 9), (b"user.c", 9)] {
        set(&catalog, name, &vec![1; length], 5000).unwrap();
    }
    put(&catalog, &Key::xattr(Ino(5), b"user.d", 0), &[0; 4]);
    let list = |after: Option<&[u8]>, most| {
        let mut names = Vec::new();
        let read = catalog.read(shard);
        let all = xattr::list(read.reader(), Ino(1), after, most, |name| names.push(name[5])).unwrap();
        (String::from_utf8(names).unwrap(), all)
    };
    let expected = [("", false), ("a", false), ("a", false), ("a", false), ("ab", false), ("abc", false)];
    for (most, (names, all)) in expected.into_iter().enumerate() {
        assert_eq!(list(None, most), (names.into(), all), "{most}");
    }
    assert_eq!(list(None, 6), ("abc".into(), true));
    assert_eq!(list(Some(b"user.a"), 1), ("b".into(), false));
    assert_eq!(list(Some(b"user.a"), 3), ("bc".into(), true));
    assert_eq!(list(Some(b"user.c"), 1), (String::new(), true));
    let remove =
        |most| apply(&catalog, &[1], |guard, tx| Ok(xattr::remove_some(guard, tx, Ino(1), most)?)).unwrap();
    assert_eq!((remove(3), stored(&catalog, 1).len()), (false, 2));
    assert_eq!((remove(2), stored(&catalog, 1).len()), (true, 0));
    assert_eq!(stored(&catalog, 5).len(), 1);
}

#[test]
fn damaged_xattr_values_are_reported() {
    let (catalog, shard) = pool();
    let part = |name: &[u8], part, head: u32, length: usize| {
        let value =
            if part == 0 { [&head.to_le_bytes()[..], &vec![1; length]].concat() } else { vec![1; length] };
        put(&catalog, &Key::xattr(Ino(1), name, part), &value);
    };
    part(b"long", 0, xattr::MAX_SIZE_BYTES as u32 + 1, 9);
    part(b"largest", 0, xattr::MAX_SIZE_BYTES as u32, 9);
    part(b"other", 0, 5, 10);
    part(b"part", 0, 2000, MAX_VALUE - 4);
    part(b"whole", 0, 2000, MAX_VALUE - 4);
    part(b"whole", 1, 0, 980);
    put(&catalog, &Key::xattr(Ino(1), b"short", 0), &[1; 3]);
    let read = catalog.read(shard);
    let length = |name| xattr::length(read.reader(), Ino(1), name).ok().flatten();
    let get = |name| xattr::get(read.reader(), Ino(1), name).ok().flatten().map(|value| value.len());
    let names: [&[u8]; 6] = [b"long", b"short", b"largest", b"other", b"part", b"whole"];
    assert_eq!(names.map(length), [None, None, Some(xattr::MAX_SIZE_BYTES), Some(5), Some(2000), Some(2000)]);
    assert_eq!(names.map(get), [None, None, None, None, None, Some(2000)]);
    assert!(xattr::length(read.reader(), Ino(1), b"short").is_err());
    drop(read);
    put(&catalog, &Key(b"\0\0\0\x01\x02name".to_vec()), &[1; 3]);
    assert!(xattr::list(catalog.read(shard).reader(), Ino(1), None, 100, |_| ()).is_err());
}

#[test]
fn damaged_symlink_targets_are_reported() {
    let (catalog, shard) = pool();
    let read = || symlink::read(catalog.read(shard).reader(), Ino(1)).map(|target| target.len());
    assert!(read().is_err());
    put(&catalog, &Key::symlink(Ino(1), 0), &[]);
    assert!(read().is_err());
    for (number, length) in [1024, 1024, 1024, 1023].into_iter().enumerate() {
        put(&catalog, &Key::symlink(Ino(1), number as u16), &vec![b't'; length]);
    }
    assert_eq!(read().ok(), Some(4095));
    put(&catalog, &Key::symlink(Ino(1), 4), b"t");
    assert!(read().is_err());
}
