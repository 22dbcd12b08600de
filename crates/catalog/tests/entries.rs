//! Entries of directories at their edges, and what is announced of later puts.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

mod common;

use common::{VecPm, apply, format, mount};
use std::ops::ControlFlow;
use std::sync::Arc;
use terrace_catalog::dentry::{self, Dentry, NameHash};
use terrace_catalog::{Catalog, Edit, cold_map};
use terrace_format::keys::{ColdExtent, Key, MAX_EXTENT_BLOCKS};
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
    // Read from any of them on, each once.
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
fn puts_are_announced_as_large_as_they_can_be() {
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
