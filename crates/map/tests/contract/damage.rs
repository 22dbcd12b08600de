//! Damaged maps: every operation ends, with an answer or `Corrupt`, and nothing panics (I11).

use crate::model::{range, step};
use crate::world::{INODES, World, image};
use crate::{Row, for_each_map};
use rand::Rng;
use std::sync::Arc;
use terrace_blocks::Purpose;
use terrace_format::inode::{InodeSlot, pack_root};
use terrace_format::{FileBlock, PmBlock};
use terrace_map::Mapping;
use terrace_media::PmMedium;
use terrace_media::pm::RecordedPm;
use terrace_runtime::{Clock, SystemClock};
use terrace_wal::{Error, Result, Tx};

fn populated(row: &Row, seed: u64) -> World {
    let (bytes, geometry) = image(8 << 20, u64::MAX / 2);
    let pm: Arc<dyn PmMedium> = Arc::new(RecordedPm::from_image(bytes));
    let mut world = World::open(pm, geometry, row, seed);
    for ino in 1..=INODES {
        for first in [0, 600, 1 << 18, 1 << 27, 1 << 31] {
            world.put(ino, first, 40, false).unwrap();
        }
    }
    world
}

fn poke(world: &World, at: terrace_format::PmOffset, word: u64) {
    world.pm.write(at, &word.to_le_bytes()).unwrap();
}

/// Words that a damaged medium may show instead of an entry.
fn bad_word(world: &mut World, nodes: &[PmBlock]) -> u64 {
    let some = nodes[world.rng.random_range(0..nodes.len())].0;
    let end = world.blocks.end_block().0;
    match world.rng.random_range(0..7) {
        0 => world.rng.random(),
        1 => some,
        2 => world.rng.random_range(0..end + 2),
        3 => some | 1 << 63,
        4 => pack_root(world.rng.random_range(0..8), some),
        5 => u64::MAX,
        _ => 0,
    }
}

fn tolerated<T>(result: Result<T>) {
    match result {
        Ok(_) | Err(Error::Corrupt(_) | Error::NoSpace(_)) => {}
        Err(other) => panic!("a damaged map gave {other}"),
    }
}

fn touch_everything(world: &mut World) {
    for _ in 0..10 {
        let (ino, first, count) = range(world);
        let inode = world.inode(ino);
        let mut seen = vec![None; count];
        tolerated(world.map.lookup(None, &inode, FileBlock(first)));
        tolerated(world.map.lookup_run(None, &inode, FileBlock(first), &mut seen));
        tolerated(world.map.next_mapped(&inode, FileBlock(first), FileBlock(u64::MAX)));
        tolerated(world.map.missing_nodes(&inode, FileBlock(first), 1 << 33));
        tolerated(world.map.visit_nodes(&inode, &mut |_, _| {}));
        let mut tx = Tx::new();
        let new = vec![Some(Mapping::written(PmBlock(60))); count];
        tolerated(world.map.set(&mut tx, &inode, FileBlock(first), &new));
        let mut claim = world.blocks.claim(5, Purpose::Reclaim).unwrap();
        let mut tx = Tx::new();
        tolerated(world.map.add_nodes(&mut tx, &inode, FileBlock(first), count, &mut claim));
        claim.give_back_all();
        let (mut tx, mut freed) = (Tx::new(), Default::default());
        tolerated(world.map.prune(&mut tx, &inode, FileBlock(0), 1 << 33, &mut freed));
        freed.iter().for_each(|block| world.blocks.keep(*block));
    }
}

#[test]
fn damage_ends_in_corrupt() {
    for_each_map(0..60, |row, seed| {
        let mut world = populated(row, seed);
        let nodes: Vec<_> = world.nodes().into_iter().collect();
        let clock = SystemClock::default();
        let start = clock.monotonic_ns();
        for _ in 0..30 {
            let word = bad_word(&mut world, &nodes);
            let at = if world.rng.random_bool(0.2) {
                let ino = world.rng.random_range(1..=INODES);
                let offset = [InodeSlot::ROOT, InodeSlot::DIRECT][world.rng.random_range(0..2)];
                world.inode(ino).slot.plus(offset)
            } else {
                let node = nodes[world.rng.random_range(0..nodes.len())];
                let most = if world.rng.random_bool(0.7) { 9 } else { 512 };
                let index = world.rng.random_range(0..most);
                node.offset().plus(8 * index)
            };
            poke(&world, at, word);
            touch_everything(&mut world);
        }
        let spent = clock.monotonic_ns() - start;
        assert!(spent < 60_000_000_000, "{spent} ns");
    });
}

/// The caller's protocol over a damaged map: nothing is freed twice, nothing panics in the allocator.
#[test]
fn operations_over_a_damaged_map_free_no_block_twice() {
    for_each_map(0..40, |row, seed| {
        let mut world = populated(row, seed);
        let nodes: Vec<_> = world.nodes().into_iter().collect();
        // empty nodes, some of which then have two parents
        for ino in 1..=INODES {
            for first in [0, 600, 1 << 18, 1 << 27, 1 << 31] {
                let mut tx = Tx::new();
                let inode = world.inode(ino);
                world.map.set(&mut tx, &inode, FileBlock(first), &[None; 40]).unwrap();
                let reservation = world.wal.reserve(tx.record_size()).unwrap();
                world.wal.commit(reservation, &tx).unwrap();
            }
        }
        for _ in 0..6 {
            let word = nodes[world.rng.random_range(0..nodes.len())].0;
            let node = nodes[world.rng.random_range(0..nodes.len())];
            let index = world.rng.random_range(0..20);
            poke(&world, node.offset().plus(8 * index), word);
        }
        for ino in 1..=INODES {
            let inode = world.inode(ino);
            for _ in 0..4 {
                let (mut tx, mut freed) = (Tx::new(), Default::default());
                let done = world.map.prune(&mut tx, &inode, FileBlock(0), 1 << 33, &mut freed);
                let distinct: std::collections::BTreeSet<_> = freed.iter().collect();
                assert_eq!(distinct.len(), freed.len(), "freed twice");
                tolerated(done.clone());
                if done.is_ok() && tx.record_size() <= world.wal.max_record() {
                    let reservation = world.wal.reserve(tx.record_size()).unwrap();
                    let lsn = world.wal.commit(reservation, &tx).unwrap();
                    world.blocks.freed(lsn, &freed);
                } else {
                    freed.iter().for_each(|block| world.blocks.keep(*block));
                }
            }
        }
        world.wal.checkpoint().unwrap();
        world.blocks.drain_quarantine();
    });
}

#[test]
fn damaged_radix_words_are_named_in_the_error() {
    let row = &crate::MAPS[0];
    let corrupt = |result: Result<()>, site: &str| match result {
        Err(Error::Corrupt(corrupt)) => assert!(corrupt.site.contains(site), "{corrupt}"),
        other => panic!("{site}: {other:?}"),
    };
    let lookup = |world: &World, block| {
        let found = world.map.lookup(None, &world.inode(1), FileBlock(block));
        found.map(|_| ())
    };
    let top = |world: &World| {
        let mut nodes = Vec::new();
        let mut visit = |block, level| nodes.push((block, level));
        world.map.visit_nodes(&world.inode(1), &mut visit).unwrap();
        nodes
    };
    // root word
    for word in [pack_root(0, 50), pack_root(5, 50), pack_root(1, 3), pack_root(1, 1 << 40)] {
        let world = populated(row, 0);
        poke(&world, world.inode(1).slot.plus(InodeSlot::ROOT), word);
        corrupt(lookup(&world, 600), "radix root word");
        corrupt(world.map.visit_nodes(&world.inode(1), &mut |_, _| {}), "radix root word");
    }
    // direct pointer, inner entry, leaf entry
    let world = populated(row, 0);
    poke(&world, world.inode(1).slot.plus(InodeSlot::DIRECT), 0x8000_0000);
    corrupt(lookup(&world, 0), "radix leaf entry");
    let root = top(&world)[0].0;
    poke(&world, root.offset(), 1 << 56 | 50);
    corrupt(lookup(&world, 600), "radix inner entry");
    let world = populated(row, 0);
    let leaf = top(&world).iter().find(|(_, level)| *level == 0).unwrap().0;
    poke(&world, leaf.offset().plus(8 * 10), 5);
    corrupt(lookup(&world, 10), "radix leaf entry");
    // a node that leads to itself
    let world = populated(row, 0);
    let root = top(&world)[0].0;
    (0..512).for_each(|index| poke(&world, root.offset().plus(8 * index), root.0));
    corrupt(world.map.visit_nodes(&world.inode(1), &mut |_, _| {}), "radix node");
    // an inner entry that names somebody's data: read as it is, but never changed or freed
    let world = populated(row, 0);
    let data = world.map.lookup(None, &world.inode(2), FileBlock(600)).unwrap().unwrap().block;
    let (parent, _) = *top(&world).iter().find(|(_, level)| *level == 1).unwrap();
    poke(&world, parent.offset().plus(8), data.0);
    let mut tx = Tx::new();
    let some = [Some(Mapping::written(PmBlock(60)))];
    let done = world.map.set(&mut tx, &world.inode(1), FileBlock(600), &some);
    corrupt(done, "owner of radix node");
    assert!(tx.is_empty());
}

/// Work goes on once the damage is repaired: a failed operation leaves the map unchanged.
#[test]
fn a_failed_operation_leaves_the_map_unchanged() {
    for_each_map(0..4, |row, seed| {
        let mut world = populated(row, seed);
        let root = world.inode(1).slot.plus(InodeSlot::ROOT);
        let sound = world.pm.load_u64(root).unwrap();
        for _ in 0..20 {
            poke(&world, root, pack_root(9, 1));
            let _ = step(&mut world);
            poke(&world, root, sound);
        }
        assert_eq!(world.content().unwrap(), world.model);
        world.check_table(&world.model);
    });
}
