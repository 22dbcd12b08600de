//! The typed helpers: dentries with colliding hashes, xattrs, symlinks, intents, cold extents.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

mod common;

use common::{VecPm, apply, format, mount};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use terrace_blocks::Purpose;
use terrace_catalog::xattr::SetMode;
use terrace_catalog::{Catalog, Edit, cold_map, dentry, intent, symlink, xattr};
use terrace_format::keys::ColdExtent;
use terrace_format::{DeviceBlock, DeviceId, FileBlock, Ino};
use terrace_media::PmMedium;
use terrace_wal::{Error, NoSpace};

fn pool() -> Catalog {
    let pm: Arc<dyn PmMedium> = VecPm::new(64 << 20);
    format(&pm);
    mount(&pm).unwrap()
}

#[test]
fn a_colliding_name_keeps_its_cookie() {
    let catalog = pool();
    let hash = dentry::NameHash::weak(&[1; 16], 2);
    let directory = Ino(9);
    let shard = catalog.shard_of(9);
    let insert = |name: &str| {
        apply(&catalog, &[shard], |guard, tx| {
            dentry::insert(guard, tx, &hash, directory, name.as_bytes(), Ino(77), 4)
        })
    };
    let lookup =
        |name: &str| dentry::lookup(catalog.read(shard).reader(), &hash, directory, name.as_bytes()).unwrap();
    let mut cookies = BTreeMap::new();
    for number in 0..300 {
        let name = format!("n{number}");
        let cookie = insert(&name).unwrap();
        assert!((dentry::FIRST_COOKIE..1 << 63).contains(&cookie));
        assert!(cookies.insert(cookie, name).is_none());
    }
    assert!(matches!(insert("n5"), Err(Edit::Exists)));
    let mut rng = StdRng::seed_from_u64(5);
    for _ in 0..100 {
        let all: Vec<u64> = cookies.keys().copied().collect();
        let cookie = *all.choose(&mut rng).unwrap();
        let name = cookies.remove(&cookie).unwrap();
        apply(&catalog, &[shard], |guard, tx| Ok(dentry::remove(guard, tx, directory, cookie)?)).unwrap();
        assert_eq!(lookup(&name), None);
    }
    for (cookie, name) in &cookies {
        assert_eq!(lookup(name).map(|d| d.cookie), Some(*cookie), "{name}");
    }
    // Reading resumes strictly after a cookie.
    let (mut after, mut seen) = (0, Vec::new());
    loop {
        let before = seen.len();
        let read = catalog.read(shard);
        dentry::read_from(read.reader(), directory, after, |dentry, name| {
            seen.push((dentry.cookie, String::from_utf8(name.to_vec()).unwrap()));
            after = dentry.cookie;
            if seen.len() - before < 7 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .unwrap();
        if seen.len() == before {
            break;
        }
    }
    assert_eq!(seen, cookies.into_iter().collect::<Vec<_>>());
    let full = (0..2000).find_map(|number| insert(&format!("more{number}")).err());
    assert!(matches!(full, Some(Edit::Failed(Error::NoSpace(NoSpace::Numbers)))));
}

#[test]
fn renaming_within_a_full_leaf_ends() {
    let catalog = pool();
    let hash = dentry::NameHash::new(&[1; 16]);
    let shard = catalog.shard_of(1);
    let mut name = "only".to_string();
    apply(&catalog, &[shard], |guard, tx| {
        dentry::insert(guard, tx, &hash, Ino(1), name.as_bytes(), Ino(2), 8)
    })
    .unwrap();
    for number in 0..300 {
        let new = format!("{number:0>200}");
        let old = dentry::lookup(catalog.read(shard).reader(), &hash, Ino(1), name.as_bytes());
        let cookie = old.unwrap().unwrap().cookie;
        // The remove comes first on purpose: the emptied leaf must still take the put.
        apply(&catalog, &[shard], |guard, tx| {
            dentry::remove(guard, tx, Ino(1), cookie)?;
            dentry::insert(guard, tx, &hash, Ino(1), new.as_bytes(), Ino(2), 8)
        })
        .unwrap();
        name = new;
    }
    assert!(!dentry::is_empty(catalog.read(shard).reader(), Ino(1)).unwrap());
}

#[test]
fn xattrs_symlinks_and_intents_read_back_as_written() {
    let catalog = pool();
    let ino = Ino(6);
    let shard = catalog.shard_of(6);
    for (turn, length) in [0usize, 10, 1020, 1021, 9000, 60_000, 300].into_iter().enumerate() {
        let value: Vec<u8> = (0..length).map(|i| (i * 7 + turn) as u8).collect();
        catalog.make_room_many(&xattr::set_puts(ino, b"user.x", length), Purpose::User).unwrap();
        let mode = if turn == 0 { SetMode::Create } else { SetMode::Replace };
        let limit = catalog.wal().max_record() / 2;
        let set =
            apply(&catalog, &[shard], |guard, tx| xattr::set(guard, tx, ino, b"user.x", &value, mode, limit));
        if length > limit {
            assert!(matches!(set, Err(Edit::TooLarge)));
            continue;
        }
        set.unwrap();
        let read = catalog.read(shard);
        assert_eq!(xattr::get(read.reader(), ino, b"user.x").unwrap(), Some(value));
        assert_eq!(xattr::get(read.reader(), ino, b"user.").unwrap(), None);
    }
    let set =
        |mode| apply(&catalog, &[shard], |guard, tx| xattr::set(guard, tx, ino, b"user.x", b"1", mode, 9));
    assert!(matches!(set(SetMode::Create), Err(Edit::Exists)));
    let mut names = Vec::new();
    xattr::list(catalog.read(shard).reader(), ino, None, usize::MAX, |name| names.push(name.to_vec()))
        .unwrap();
    assert_eq!(names, [b"user.x"]);
    assert!(apply(&catalog, &[shard], |guard, tx| Ok(xattr::remove(guard, tx, ino, b"user.x")?)).unwrap());
    assert!(matches!(set(SetMode::Replace), Err(Edit::Missing)));

    let target = vec![b't'; symlink::MAX_TARGET_BYTES];
    catalog.make_room_many(&symlink::create_puts(ino, target.len()), Purpose::User).unwrap();
    apply(&catalog, &[shard], |guard, tx| symlink::create(guard, tx, ino, &target)).unwrap();
    assert_eq!(symlink::read(catalog.read(shard).reader(), ino).unwrap(), target);

    let intents = [(5u64, 9u64), (20, 1 << 32)].map(|(first, end)| intent::Intent {
        first: FileBlock(first),
        end: FileBlock(end),
        generation: 3,
    });
    apply(&catalog, &[shard], |guard, tx| intents.iter().try_for_each(|i| intent::put(guard, tx, ino, *i)))
        .unwrap();
    assert_eq!(intent::list(catalog.read(shard).reader(), ino).unwrap(), intents);
    apply(&catalog, &[shard], |guard, tx| {
        symlink::remove(guard, tx, ino)?;
        Ok(intent::remove(guard, tx, ino, FileBlock(5))?)
    })
    .unwrap();
    assert!(symlink::read(catalog.read(shard).reader(), ino).is_err());
}

#[test]
fn cold_extents_match_an_array() {
    let catalog = pool();
    let ino = Ino(8);
    let shard = catalog.shard_of(8);
    let mut rng = StdRng::seed_from_u64(1);
    let mut model: Vec<Option<(u64, u32)>> = vec![None; 2000];
    let mut next_device = 1;
    for step in 0..3000 {
        let from = rng.random_range(0..1900u64);
        let length = rng.random_range(1..100u64);
        let to = from + length;
        let mut expected: Vec<u64> =
            model[from as usize..to as usize].iter().flatten().map(|b| b.0).collect();
        let mut freed = Vec::new();
        if step % 3 == 0 {
            apply(&catalog, &[shard], |guard, tx| {
                freed.clear();
                cold_map::cut(guard, tx, ino, FileBlock(from), FileBlock(to), &mut freed)
            })
            .unwrap();
            model[from as usize..to as usize].fill(None);
        } else {
            let extent = ColdExtent {
                first: FileBlock(from),
                length: length as u32,
                device: DeviceId(1),
                start: DeviceBlock(next_device),
                unwritten: false,
                crcs: (0..length as u32).map(|i| i ^ step).collect(),
            };
            catalog.make_room_many(&cold_map::install_puts(ino, &extent), Purpose::Demotion).unwrap();
            apply(&catalog, &[shard], |guard, tx| {
                freed.clear();
                cold_map::install(guard, tx, ino, &extent, &mut freed)
            })
            .unwrap();
            for i in 0..length {
                model[(from + i) as usize] = Some((next_device + i, i as u32 ^ step));
            }
            next_device += length;
        }
        let mut found: Vec<u64> = freed.iter().flat_map(|(_, s, n)| s.0..s.0 + n).collect();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected);
        let block = rng.random_range(0..2000u64);
        let read = catalog.read(shard);
        let found = cold_map::lookup(read.reader(), ino, FileBlock(block)).unwrap().map(|e| {
            let skip = block - e.first.0;
            (e.start.0 + skip, e.crcs[skip as usize])
        });
        assert_eq!(found, model[block as usize]);
    }
}
