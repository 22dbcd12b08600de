//! The typed helpers: dentries with colliding hashes, xattrs, symlinks, intents, cold extents, chunks.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

mod common;

use common::{VecPm, apply, format, mount};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use terrace_blocks::Purpose;
use terrace_catalog::xattr::SetMode;
use terrace_catalog::{
    Catalog, ChunkSpace, DeviceRun, Edit, chunks, cold_map, dentry, intent, symlink, xattr,
};
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

    let target = vec![b't'; symlink::MAX_TARGET];
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

#[test]
fn chunk_space_agrees_with_the_bitmaps() {
    let pm: Arc<dyn PmMedium> = VecPm::new(4 << 20);
    format(&pm);
    let devices = [DeviceId(0), DeviceId(1)];
    let sizes = [(devices[0], 1 + 16 * 40 + 5), (devices[1], 1 + 16 * 700)];
    let mut catalog = Arc::new(mount(&pm).unwrap());
    let mut space = ChunkSpace::new(Arc::clone(&catalog), &sizes);
    let mut rng = StdRng::seed_from_u64(2);
    let (mut used, mut claims): (BTreeSet<DeviceRun>, u32) = Default::default();
    let mark = |catalog: &Catalog, run: DeviceRun, value: bool| {
        let shards = chunks::shards(catalog, run);
        let mut lsn = terrace_format::Lsn(0);
        apply(catalog, &shards, |guard, tx| {
            lsn = catalog.wal().next_lsn();
            chunks::mark(guard, tx, run, value)
        })
        .map(|()| lsn)
    };
    for step in 0..6000 {
        if rng.random_range(0..5) < 3 {
            let want = *[1u64, 2, 5, 8, 16, 16].choose(&mut rng).unwrap();
            let device = devices[rng.random_range(0..2)];
            if let Some(run) = space.allocate(&[device], want).unwrap() {
                claims += 1;
                assert!(run.length <= want && run.start.0 > 0);
                assert!(run.start.0 + run.length <= sizes[device.0 as usize].1);
                assert_eq!((run.start.0 - 1) / 16, (run.start.0 + run.length - 2) / 16, "one chunk");
                if step % 9 == 0 {
                    space.release_claim(run);
                } else {
                    mark(&catalog, run, true).unwrap();
                    used.insert(run);
                }
            }
        } else if let Some(run) = used.iter().nth(rng.random_range(0..used.len().max(1))).copied() {
            let pin = space.pin(run);
            let lsn = mark(&catalog, run, false).unwrap();
            assert!(matches!(mark(&catalog, run, false), Err(Edit::Failed(Error::Corrupt(_)))));
            if rng.random_range(0..2) == 0 {
                // Reported late: a load may have seen the record already.
                space.load_step().unwrap();
            }
            space.freed(run, lsn);
            used.remove(&run);
            for want in [1, 16] {
                if let Some(other) = space.allocate(&[run.device], want).unwrap() {
                    let apart = other.start.0 + other.length <= run.start.0
                        || run.start.0 + run.length <= other.start.0;
                    assert!(apart, "{other:?} is pinned by {run:?}");
                    space.release_claim(other);
                }
            }
            drop(pin);
        }
        if step % 700 == 699 {
            let totals = space.totals(&devices).unwrap();
            let marked: u64 = used.iter().map(|run| run.length).sum();
            assert_eq!(totals.free, totals.total - marked);
            drop(space);
            catalog = Arc::new(mount(&pm).unwrap());
            space = ChunkSpace::new(Arc::clone(&catalog), &sizes);
            assert_eq!(space.totals_now(&devices).free, 0);
            if step % 1400 == 1399 {
                assert_eq!(space.totals(&devices).unwrap(), totals);
            }
        }
    }
    assert_eq!(space.damaged_chunks(), 0);
    assert!(claims > 3000, "{claims} claims");
    // The remaining free blocks can be claimed to the last block.
    let mut left = 0;
    while let Some(run) = space.allocate(&devices, 16).unwrap() {
        left += run.length;
    }
    let totals = space.totals(&devices).unwrap();
    assert_eq!((totals.free, left), (0, totals.total - used.iter().map(|r| r.length).sum::<u64>()));
}

#[test]
fn claims_fill_holes_and_prefer_whole_chunks() {
    let pm: Arc<dyn PmMedium> = VecPm::new(4 << 20);
    format(&pm);
    let device = DeviceId(0);
    let space = ChunkSpace::new(Arc::new(mount(&pm).unwrap()), &[(device, 1 + 16 * 4)]);
    let claim = |want| space.allocate(&[device], want).unwrap().map(|run| (run.start.0, run.length));
    assert_eq!(claim(3), Some((1, 3)));
    assert_eq!(claim(16), Some((17, 16)), "a whole chunk for a large request");
    assert_eq!(claim(2), Some((4, 2)), "the hole behind the first for a small one");
    assert_eq!(claim(8), Some((33, 8)));
    assert_eq!(claim(4), Some((6, 4)));
    let run = DeviceRun { device, start: DeviceBlock(17), length: 16 };
    let pin = space.pin(run);
    space.release_claim(run);
    assert_eq!(claim(16), Some((49, 16)), "pinned blocks wait");
    drop(pin);
    assert_eq!(claim(16), Some((17, 16)));
}

/// Blocks that are to be overwritten in place have no other I/O pin, of a reader or a writer, whole or in
/// part.
#[test]
fn blocks_are_pinned_alone_or_not_at_all() {
    let pm: Arc<dyn PmMedium> = VecPm::new(4 << 20);
    format(&pm);
    let sizes = [(DeviceId(0), 1 + 16), (DeviceId(1), 1 + 16)];
    let space = ChunkSpace::new(Arc::new(mount(&pm).unwrap()), &sizes);
    let run =
        |device, start, length| DeviceRun { device: DeviceId(device), start: DeviceBlock(start), length };
    let reader = space.pin(run(0, 4, 4));
    for (start, length) in [(4, 4), (1, 4), (7, 1), (7, 3), (1, 16), (5, 2)] {
        assert!(space.pin_alone(run(0, start, length)).is_none(), "{length} from {start}");
    }
    let beside = [run(0, 1, 3), run(0, 8, 2), run(1, 4, 4)].map(|run| space.pin_alone(run));
    assert!(beside.iter().all(Option::is_some));
    drop(reader);
    let writer = space.pin_alone(run(0, 4, 4));
    assert!(writer.is_some() && space.pin_alone(run(0, 6, 1)).is_none());
    // A reader that comes later may look.
    drop((space.pin(run(0, 4, 1)), writer));
    assert!(space.pin_alone(run(0, 4, 4)).is_some());
}

/// A load that has already seen the freeing record must not let the late report free a new claim.
#[test]
fn a_free_reported_after_its_load_frees_no_claim() {
    let pm: Arc<dyn PmMedium> = VecPm::new(4 << 20);
    format(&pm);
    let catalog = Arc::new(mount(&pm).unwrap());
    let devices = [(DeviceId(0), 1 + 16)];
    let run = DeviceRun { device: DeviceId(0), start: DeviceBlock(1), length: 16 };
    let mark = |used| {
        let mut lsn = terrace_format::Lsn(0);
        apply(&catalog, &chunks::shards(&catalog, run), |guard, tx| {
            lsn = catalog.wal().next_lsn();
            chunks::mark(guard, tx, run, used)
        })
        .unwrap();
        lsn
    };
    mark(true);
    let space = ChunkSpace::new(Arc::clone(&catalog), &devices);
    let lsn = mark(false);
    assert_eq!(space.allocate(&[DeviceId(0)], 16).unwrap(), Some(run), "the load saw the record");
    space.freed(run, lsn);
    assert_eq!(space.allocate(&[DeviceId(0)], 1).unwrap(), None, "claimed once");
    // The other order: loaded, then freed.
    mark(true);
    let lsn = mark(false);
    space.freed(run, lsn);
    assert_eq!(space.allocate(&[DeviceId(0)], 16).unwrap(), Some(run));
}
