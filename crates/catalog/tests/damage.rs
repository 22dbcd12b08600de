//! Damaged pages: random bytes in catalog pages and roots never panic and never loop (I11).
#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

mod common;

use common::{VecPm, apply, format, mount};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::ops::ControlFlow;
use std::sync::Arc;
use terrace_blocks::Purpose;
use terrace_catalog::Edit;
use terrace_catalog::{cold_map, dentry, intent, symlink, xattr};
use terrace_format::keys::Key;
use terrace_format::{FileBlock, Ino, PmBlock, PmOffset};
use terrace_media::PmMedium;

fn damage(rng: &mut StdRng, image: &mut [u8], pages: &[u64], first: u64) {
    for _ in 0..rng.random_range(1..6) {
        let page = pages[rng.random_range(0..pages.len())] as usize * 4096;
        match rng.random_range(0..5) {
            // header and slots are where damage does most
            0 => image[page + rng.random_range(2..40usize)] = rng.random(),
            1 => rng.fill(&mut image[page + 2..page + 300]),
            2 => image[page + rng.random_range(0..4096usize)] = rng.random(),
            // a child pointer to another page, perhaps a parent
            3 => {
                let at = page + rng.random_range(3000..4088usize);
                let target = pages[rng.random_range(0..pages.len())];
                image[at..at + 8].copy_from_slice(&target.to_le_bytes());
            }
            _ => {
                let target = first + rng.random_range(0..40u64);
                let root = 6 * 4096 + 1024 + 8 * rng.random_range(0..4usize);
                image[root..root + 8].copy_from_slice(&target.to_le_bytes());
            }
        }
    }
}

#[test]
fn random_damage_is_reported_or_harmless() {
    let original = VecPm::new(2 << 20);
    let pm: Arc<dyn PmMedium> = original.clone();
    format(&pm);
    let catalog = mount(&pm).unwrap();
    let hash = dentry::NameHash::new(&[3; 16]);
    for number in 0..900u32 {
        let name = format!("name-{number}");
        apply(&catalog, &[1], |guard, tx| {
            dentry::insert(guard, tx, &hash, Ino(1), name.as_bytes(), Ino(7), 8)
        })
        .unwrap();
    }
    catalog.wal().close().unwrap();
    let pages: Vec<u64> = (catalog.blocks().first_block().0..catalog.blocks().end_block().0)
        .filter(|block| {
            catalog.blocks().owner(PmBlock(*block)).unwrap() != terrace_format::table::Owner::Free
        })
        .collect();
    let first = catalog.blocks().first_block().0;
    let image = original.with(|bytes| bytes.clone());
    let mut errors = 0u32;
    for seed in 0..600 {
        let mut rng = StdRng::seed_from_u64(seed);
        let damaged = VecPm::new(2 << 20);
        damaged.with(|bytes| {
            bytes.copy_from_slice(&image);
            damage(&mut rng, bytes, &pages, first);
        });
        let pm: Arc<dyn PmMedium> = damaged;
        let catalog = mount(&pm).unwrap();
        for turn in 0..60 {
            let name = format!("name-{}", rng.random_range(0..1000u32));
            let ino = Ino(rng.random_range(0..5));
            let shard = catalog.shard_of(ino.0);
            let failed = match turn % 6 {
                0 => dentry::lookup(catalog.read(shard).reader(), &hash, ino, name.as_bytes()).is_err(),
                1 => {
                    let read = catalog.read(shard);
                    let mut visited = 0u32;
                    let done = dentry::read_from(read.reader(), ino, 0, |_, _| {
                        visited += 1;
                        ControlFlow::Continue(())
                    });
                    assert!(visited < 200_000);
                    done.is_err()
                }
                2 => outcome(apply(&catalog, &[shard], |guard, tx| {
                    dentry::insert(guard, tx, &hash, ino, name.as_bytes(), Ino(7), 8)
                })),
                3 => {
                    let cookie = hash.base(name.as_bytes());
                    outcome(apply(&catalog, &[shard], |guard, tx| {
                        Ok(dentry::remove(guard, tx, ino, cookie)?)
                    }))
                }
                4 => catalog.shrink(&Key::dentry(ino, rng.random()), Purpose::Reclaim).is_err(),
                _ => {
                    let read = catalog.read(shard);
                    let reader = read.reader();
                    xattr::get(reader, ino, b"user.a").is_err()
                        | xattr::list(reader, ino, None, usize::MAX, |_| ()).is_err()
                        | intent::list(reader, ino).is_err()
                        | symlink::read(reader, ino).is_err()
                        | cold_map::range(reader, ino, FileBlock(0), FileBlock(1 << 20)).is_err()
                        | reader.previous(&Key::dentry(ino, rng.random()), &[]).is_err()
                }
            };
            errors += u32::from(failed);
        }
        assert!(pm.load_u64(PmOffset(0)).is_ok());
    }
    assert!(errors > 1000, "damage was seen: {errors}");
}

fn outcome<R>(result: Result<R, Edit>) -> bool {
    result.is_err()
}

#[test]
fn a_page_with_itself_as_child_is_reported() {
    let pm: Arc<dyn PmMedium> = VecPm::new(2 << 20);
    format(&pm);
    let catalog = mount(&pm).unwrap();
    for number in 0..400u64 {
        apply(&catalog, &[1], |guard, tx| guard.put(tx, &Key::dentry(Ino(1), number << 40), &[1; 30]))
            .unwrap();
    }
    let root = pm.load_u64(catalog.wal().geometry().shard_root(1)).unwrap();
    let mut page = terrace_format::page::Page::new(0);
    pm.read(PmBlock(root).offset(), page.0.as_mut_slice()).unwrap();
    assert_eq!(page.level(), 1);
    for index in 0..page.count() {
        let (at, length) = page.value_place(index).unwrap();
        assert_eq!(length, 8);
        pm.write(PmBlock(root).offset().plus(at as u64), &root.to_le_bytes()).unwrap();
    }
    let read = catalog.read(1);
    let reader = read.reader();
    let key = Key::dentry(Ino(1), 7);
    assert!(reader.get(&key).is_err());
    assert!(reader.next(&key, &[]).is_err());
    assert!(reader.previous(&key, &[]).is_err());
}
