//! Random operations against a map in memory.

use crate::modelled_map::{INODES, ModelledMap, image, next_mapped};
use crate::{Row, for_each_map};
use rand::Rng;
use std::sync::Arc;
use terrace_format::FileBlock;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_media::PmMedium;
use terrace_media::pm::RecordedPm;
use terrace_wal::Error;

/// Where interesting things happen: direct pointers, ends of leaves and of every height, the last block.
const PLACES: [u64; 9] = [0, 8, 512, 5 * 512, 1 << 18, (1 << 18) + 512, 1 << 27, 3 << 27, MAX_FILE_BLOCK.0];

/// A range near such a place.
pub fn range(maps: &mut ModelledMap) -> (u64, u64, usize) {
    let rng = &mut maps.rng;
    let ino = rng.random_range(1..=INODES);
    let place = PLACES[rng.random_range(0..PLACES.len())];
    let first = (place + rng.random_range(0..20)).saturating_sub(10).min(MAX_FILE_BLOCK.0);
    let most = (MAX_FILE_BLOCK.0 + 1 - first).min(if rng.random_bool(0.1) { 60 } else { 12 });
    (ino, first, rng.random_range(1..=most as usize))
}

pub fn step(maps: &mut ModelledMap) -> terrace_wal::Result<()> {
    let (ino, first, count) = range(maps);
    match maps.rng.random_range(0..10) {
        0..4 => {
            let unwritten = maps.rng.random_bool(0.3);
            maps.put(ino, first, count, unwritten)
        }
        4 => maps.flip(ino, first, count),
        5 => maps.ensure_room(ino, first, count),
        6 => maps.prune_all(ino),
        7 => maps.clear(ino, first, count, 0.5),
        _ => maps.clear(ino, first.saturating_sub(30), count + 30, 1.0),
    }
}

/// Compares reads near a random place with the model.
fn compare(maps: &mut ModelledMap) {
    let (ino, first, count) = range(maps);
    let (inode, model) = (maps.inode(ino), &maps.model);
    let mut seen = vec![None; count + 20];
    maps.map.lookup_run(&inode, FileBlock(first), &mut seen).unwrap();
    let mut with_cursor = vec![None; seen.len()];
    maps.map.lookup_run_with(&maps.cursor, &inode, FileBlock(first), &mut with_cursor).unwrap();
    assert_eq!(with_cursor, seen, "lookup_run_with at {first} of {ino}");
    for (block, seen) in (first..).zip(seen) {
        let expected = model.get(&(ino, block)).copied();
        assert_eq!(seen, expected, "lookup_run at {block} of {ino}");
        let single = maps.map.lookup(&inode, FileBlock(block)).unwrap();
        assert_eq!(single, expected, "lookup at {block} of {ino}");
        let single = maps.map.lookup_with(&maps.cursor, &inode, FileBlock(block)).unwrap();
        assert_eq!(single, expected, "lookup_with at {block} of {ino}");
    }
    let to = first + maps.rng.random_range(0..2000) * maps.rng.random_range(0u64..100_000);
    let expected = model
        .range((ino, first)..(ino, to))
        .next()
        .map(|((_, block), mapping)| (FileBlock(*block), *mapping));
    let found = match next_mapped(&*maps.map, &inode, first, to) {
        Err(Error::TableUnread) => return,
        found => found.unwrap(),
    };
    assert_eq!(found, expected, "next_mapped {first}..{to} of {ino}");
}

fn run(row: &Row, seed: u64, size: u64, steps: usize) {
    let (bytes, geometry) = image(row.kind, size, u64::MAX / 2);
    let pm: Arc<dyn PmMedium> = Arc::new(RecordedPm::from_image(bytes));
    let mut maps = ModelledMap::open(Arc::clone(&pm), geometry, row, seed);
    for number in 0..steps {
        step(&mut maps).unwrap();
        compare(&mut maps);
        if number % 100 == 50 {
            assert_eq!(maps.content().unwrap(), maps.model);
            maps.check_table(&maps.model);
        }
        if number % 200 == 150 {
            // remount, sometimes after an orderly close
            if maps.rng.random_bool(0.5) {
                maps.wal.close().unwrap();
            }
            let model = std::mem::take(&mut maps.model);
            maps = ModelledMap::open(Arc::clone(&pm), geometry, row, seed + number as u64);
            assert_eq!(maps.content().unwrap(), model);
            maps.model = model;
        }
    }
    empty(&mut maps);
}

/// Clears everything: all blocks come back.
fn empty(maps: &mut ModelledMap) {
    let keys: Vec<_> = maps.model.keys().copied().collect();
    for (ino, block) in keys {
        if maps.model.contains_key(&(ino, block)) {
            let count = (MAX_FILE_BLOCK.0 + 1 - block).min(40) as usize;
            maps.clear(ino, block, count, 1.0).unwrap();
        }
    }
    (1..=INODES).for_each(|ino| maps.prune_all(ino).unwrap());
    assert!(maps.nodes().is_empty(), "nodes left: {:?}", maps.nodes());
    maps.check_table(&maps.model);
    maps.wal.checkpoint().unwrap();
    while maps.blocks.scan_step().unwrap() {}
    maps.blocks.drain_quarantine();
    let usage = maps.blocks.usage();
    assert_eq!((usage.free, usage.unknown), (usage.total - 1, 0), "not all blocks came back");
}

#[test]
fn random_operations_agree_with_a_model() {
    for_each_map(0..12, |row, seed| run(row, seed, 8 << 20, 1000));
}

#[test]
fn random_operations_on_the_smallest_pool() {
    for_each_map(100..106, |row, seed| run(row, seed, 2 << 20, 60));
}
