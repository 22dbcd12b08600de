//! Random edits against a BTreeMap: splits, growth in place, shrink, remounts, on a small pool.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

mod common;

use common::{VecPm, apply, format, mount};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use terrace_blocks::Purpose;
use terrace_catalog::Catalog;
use terrace_format::keys::{Key, Kind};
use terrace_media::PmMedium;

type Model = BTreeMap<Key, Vec<u8>>;

fn random_key(rng: &mut StdRng, inodes: u64, names: u32) -> Key {
    let ino = 1 + rng.random_range(0..inodes);
    let number = rng.random_range(0..names);
    match rng.random_range(0..3) {
        0 => Key::dentry(terrace_format::Ino(ino), u64::from(number) << 30 | 99),
        1 => {
            let name = vec![b'a' + (number % 7) as u8; 1 + (number as usize * 37) % 240];
            Key::xattr(terrace_format::Ino(ino), &name, number as u16)
        }
        _ => Key::new(ino, Kind::Cold, &number.to_be_bytes()),
    }
}

fn random_value(rng: &mut StdRng) -> Vec<u8> {
    let length = match rng.random_range(0..4) {
        0 => rng.random_range(0..1024),
        1 => 12,
        _ => rng.random_range(0..60),
    };
    (0..length).map(|_| rng.random_range(0..4)).collect()
}

fn compare(catalog: &Catalog, model: &Model, inodes: u64) {
    for ino in 1..=inodes {
        let read = catalog.read(catalog.shard_of(ino));
        let from = Key((ino as u32).to_be_bytes().to_vec());
        let mut found = Vec::new();
        read.reader()
            .scan(&from, &from.0, |key, value| {
                found.push((Key(key.to_vec()), value.to_vec()));
                ControlFlow::Continue(())
            })
            .unwrap();
        let expected: Vec<_> = model
            .iter()
            .filter(|(key, _)| key.0.starts_with(&from.0))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        assert_eq!(found, expected, "inode {ino}");
    }
}

fn run(seed: u64, inodes: u64, names: u32, steps: u32) {
    println!("seed {seed}: cargo test -p terrace-catalog --test model");
    let mut rng = StdRng::seed_from_u64(seed);
    let pm: Arc<dyn PmMedium> = VecPm::new(6 << 20);
    format(&pm);
    let mut catalog = mount(&pm).unwrap();
    let mut model = Model::new();
    let mut emptying = false;
    for step in 0..steps {
        if step % 1000 == 0 {
            emptying = rng.random_range(0..3) == 0;
        }
        let key = random_key(&mut rng, inodes, names);
        let shard = catalog.shard_of_key(&key.0);
        let put = rng.random_range(0..10) < if emptying { 2 } else { 6 };
        if put {
            let value = random_value(&mut rng);
            apply(&catalog, &[shard], |guard, tx| guard.put(tx, &key, &value)).unwrap();
            model.insert(key, value);
        } else if rng.random_range(0..3) > 0 {
            let victim = model.range(&key..).next().map(|(k, _)| k.clone()).unwrap_or(key);
            let shard = catalog.shard_of_key(&victim.0);
            let was = apply(&catalog, &[shard], |guard, tx| Ok(guard.remove(tx, &victim)?)).unwrap();
            assert_eq!(was, model.remove(&victim).is_some());
        } else {
            let read = catalog.read(shard);
            let reader = read.reader();
            assert_eq!(reader.get(&key).unwrap().as_ref(), model.get(&key));
            let prefix = &key.0[..5];
            let next = model.range(&key..).next().filter(|(k, _)| k.0.starts_with(prefix));
            let found = reader.next(&key, prefix).unwrap();
            assert_eq!(found, next.map(|(k, v)| (k.0.clone(), v.clone())));
            let before = model.range(..=&key).next_back().filter(|(k, _)| k.0.starts_with(prefix));
            let found = reader.previous(&key, prefix).unwrap();
            assert_eq!(found, before.map(|(k, v)| (k.0.clone(), v.clone())));
        }
        if rng.random_range(0..20) == 0 {
            let key = random_key(&mut rng, inodes, names);
            catalog.shrink(&key, Purpose::Reclaim).unwrap();
        }
        if step % 2500 == 2499 {
            compare(&catalog, &model, inodes);
            drop(catalog);
            catalog = mount(&pm).unwrap();
        }
    }
    compare(&catalog, &model, inodes);
    // Emptied, every page comes back.
    for key in model.keys() {
        let shard = catalog.shard_of_key(&key.0);
        assert!(apply(&catalog, &[shard], |guard, tx| Ok(guard.remove(tx, key)?)).unwrap());
    }
    catalog.wal().checkpoint().unwrap();
    while catalog.blocks().scan_step().unwrap() {}
    catalog.blocks().drain_quarantine();
    let usage = catalog.blocks().usage();
    assert_eq!((usage.free, usage.quarantined), (usage.total, 0));
}

#[test]
fn random_edits_match_a_map() {
    for seed in 0..4 {
        run(seed, 3, 150, 12_000);
    }
}

#[test]
fn a_large_shard_matches_a_map() {
    for seed in 10..12 {
        run(seed, 1, 5000, 12_000);
    }
}

#[test]
fn many_large_puts_into_one_gap_find_room_together() {
    let pm: Arc<dyn PmMedium> = VecPm::new(64 << 20);
    format(&pm);
    let catalog = mount(&pm).unwrap();
    let ino = terrace_format::Ino(5);
    let puts: Vec<(Key, usize)> = (0..12).map(|part| (Key::xattr(ino, b"large", part), 1024)).collect();
    catalog.make_room_many(&puts, Purpose::User).unwrap();
    let shard = catalog.shard_of(5);
    let reservation = catalog.wal().reserve(catalog.wal().max_record()).unwrap();
    let mut guard = catalog.write(&[shard]);
    let mut tx = terrace_wal::Tx::new();
    for (key, length) in &puts {
        guard.put(&mut tx, key, &vec![1; *length]).unwrap();
    }
    catalog.wal().commit(reservation, &tx).unwrap();
    drop(guard);
    for (key, length) in &puts {
        assert_eq!(catalog.read(shard).reader().get(key).unwrap().unwrap().len(), *length);
    }
}

/// Merging inner pages: the right half's first
/// key is empty and must become the separator.
#[test]
fn a_deep_tree_shrinks_level_by_level() {
    let pm: Arc<dyn PmMedium> = VecPm::new(16 << 20);
    format(&pm);
    let catalog = mount(&pm).unwrap();
    let shard = catalog.shard_of(1);
    // Keys with a long common prefix need long separators, so an inner page holds few of them.
    let key = |number: u32| {
        let mut sub = vec![b'x'; 240];
        sub.extend_from_slice(&number.to_be_bytes());
        Key::new(1, Kind::Xattr, &sub)
    };
    for number in 0..4000 {
        apply(&catalog, &[shard], |guard, tx| guard.put(tx, &key(number), &number.to_be_bytes())).unwrap();
    }
    let level = || {
        let root = pm.load_u64(catalog.wal().geometry().shard_root(shard)).unwrap();
        let mut head = [0; 4];
        pm.read(terrace_format::PmBlock(root).offset(), &mut head).unwrap();
        head[3]
    };
    assert!(level() >= 2, "level {}", level());
    let kept: Vec<u32> = (0..4000).filter(|number| number % 9 == 0).collect();
    for number in (0..4000).filter(|number| number % 9 != 0) {
        apply(&catalog, &[shard], |guard, tx| Ok(guard.remove(tx, &key(number))?)).unwrap();
    }
    let before = level();
    while kept.iter().any(|number| catalog.shrink(&key(*number), Purpose::Reclaim).unwrap()) {
        for number in &kept {
            let value = catalog.read(shard).reader().get(&key(*number)).unwrap();
            assert_eq!(value, Some(number.to_be_bytes().to_vec()), "{number}");
        }
    }
    assert!(level() < before, "level {} was {before}", level());
}
