//! Random operations against a map in memory.

use crate::world::{INODES, World, image};
use crate::{Row, for_each_map};
use rand::Rng;
use std::sync::Arc;
use terrace_format::FileBlock;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_media::PmMedium;
use terrace_media::pm::RecordedPm;

/// Where interesting things happen: direct pointers, ends of leaves and of every height, the last block.
const PLACES: [u64; 9] = [0, 8, 512, 5 * 512, 1 << 18, (1 << 18) + 512, 1 << 27, 3 << 27, MAX_FILE_BLOCK.0];

/// A range near such a place.
pub fn range(world: &mut World) -> (u64, u64, usize) {
    let rng = &mut world.rng;
    let ino = rng.random_range(1..=INODES);
    let place = PLACES[rng.random_range(0..PLACES.len())];
    let first = (place + rng.random_range(0..20)).saturating_sub(10).min(MAX_FILE_BLOCK.0);
    let most = (MAX_FILE_BLOCK.0 + 1 - first).min(if rng.random_bool(0.1) { 60 } else { 12 });
    (ino, first, rng.random_range(1..=most as usize))
}

pub fn step(world: &mut World) -> terrace_wal::Result<()> {
    let (ino, first, count) = range(world);
    match world.rng.random_range(0..10) {
        0..4 => {
            let unwritten = world.rng.random_bool(0.3);
            world.put(ino, first, count, unwritten)
        }
        4 => world.flip(ino, first, count),
        5 => world.ensure_nodes(ino, first, count),
        6 => world.prune_all(ino),
        7 => world.clear(ino, first, count, 0.5),
        _ => world.clear(ino, first.saturating_sub(30), count + 30, 1.0),
    }
}

/// Compares reads near a random place with the model.
fn compare(world: &mut World) {
    let (ino, first, count) = range(world);
    let (inode, model) = (world.inode(ino), &world.model);
    let mut seen = vec![None; count + 20];
    world.map.lookup_run(None, &inode, FileBlock(first), &mut seen).unwrap();
    for (block, seen) in (first..).zip(seen) {
        let expected = model.get(&(ino, block)).copied();
        assert_eq!(seen, expected, "lookup_run at {block} of {ino}");
        let single = world.map.lookup(None, &inode, FileBlock(block)).unwrap();
        assert_eq!(single, expected, "lookup at {block} of {ino}");
    }
    let to = first + world.rng.random_range(0..2000) * world.rng.random_range(0u64..100_000);
    let expected = model
        .range((ino, first)..(ino, to))
        .next()
        .map(|((_, block), mapping)| (FileBlock(*block), *mapping));
    let found = world.map.next_mapped(&inode, FileBlock(first), FileBlock(to)).unwrap();
    assert_eq!(found, expected, "next_mapped {first}..{to} of {ino}");
}

fn run(row: &Row, seed: u64, size: u64, steps: usize) {
    let (bytes, geometry) = image(size, u64::MAX / 2);
    let pm: Arc<dyn PmMedium> = Arc::new(RecordedPm::from_image(bytes));
    let mut world = World::open(Arc::clone(&pm), geometry, row, seed);
    for number in 0..steps {
        step(&mut world).unwrap();
        compare(&mut world);
        if number % 100 == 50 {
            assert_eq!(world.content().unwrap(), world.model);
            world.check_table(&world.model);
        }
        if number % 200 == 150 {
            // remount, sometimes after an orderly close
            if world.rng.random_bool(0.5) {
                world.wal.close().unwrap();
            }
            let model = std::mem::take(&mut world.model);
            world = World::open(Arc::clone(&pm), geometry, row, seed + number as u64);
            assert_eq!(world.content().unwrap(), model);
            world.model = model;
        }
    }
    empty(&mut world);
}

/// Clears everything: all blocks come back.
fn empty(world: &mut World) {
    let keys: Vec<_> = world.model.keys().copied().collect();
    for (ino, block) in keys {
        if world.model.contains_key(&(ino, block)) {
            let count = (MAX_FILE_BLOCK.0 + 1 - block).min(40) as usize;
            world.clear(ino, block, count, 1.0).unwrap();
        }
    }
    (1..=INODES).for_each(|ino| world.prune_all(ino).unwrap());
    assert!(world.nodes().is_empty(), "nodes left: {:?}", world.nodes());
    world.check_table(&world.model);
    world.wal.checkpoint().unwrap();
    while world.blocks.scan_step().unwrap() {}
    world.blocks.drain_quarantine();
    let usage = world.blocks.usage();
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
