//! Damaged maps: every operation ends, with an answer or `Corrupt`, and nothing panics (I11).

use crate::model::{range, step};
use crate::modelled_map::{INODES, ModelledMap, image, next_mapped, set};
use crate::{Row, for_each_map};
use rand::Rng;
use std::sync::Arc;
use terrace_blocks::Purpose;
use terrace_format::inode::{InodeSlot, pack_root};
use terrace_format::map_kind::MapKind;
use terrace_format::table::Owner;
use terrace_format::{FileBlock, Ino, PmBlock};
use terrace_map::{Mapping, RadixTree};
use terrace_media::PmMedium;
use terrace_media::pm::RecordedPm;
use terrace_runtime::{Clock, SystemClock};
use terrace_wal::{Error, Result, Tx};

fn populated(row: &Row, seed: u64) -> ModelledMap {
    let (bytes, geometry) = image(row.kind, 8 << 20, u64::MAX / 2);
    let pm: Arc<dyn PmMedium> = Arc::new(RecordedPm::from_image(bytes));
    let mut maps = ModelledMap::open(pm, geometry, row, seed);
    for ino in 1..=INODES {
        for first in [0, 600, 1 << 18, 1 << 27, 1 << 31] {
            maps.put(ino, first, 40, false).unwrap();
        }
    }
    maps
}

fn poke(maps: &ModelledMap, at: terrace_format::PmOffset, word: u64) {
    maps.pm.write(at, &word.to_le_bytes()).unwrap();
}

/// Words that a damaged medium may show instead of an entry.
fn bad_word(maps: &mut ModelledMap, nodes: &[PmBlock]) -> u64 {
    let end = maps.blocks.end_block().0;
    let some = match nodes {
        [] => Owner::File { ino: Ino(1), block: FileBlock(maps.rng.random_range(0..700)), unwritten: false }
            .encode(),
        nodes => nodes[maps.rng.random_range(0..nodes.len())].0,
    };
    match maps.rng.random_range(0..7) {
        0 => maps.rng.random(),
        1 => some,
        2 => maps.rng.random_range(0..end + 2),
        3 => some | 1 << 63,
        4 => pack_root(maps.rng.random_range(0..8), some),
        5 => u64::MAX,
        _ => 0,
    }
}

fn tolerated<T>(result: Result<T>) {
    match result {
        Ok(_) | Err(Error::Corrupt(_) | Error::NoSpace(_) | Error::MapRoom(_) | Error::TableUnread) => {}
        Err(other) => panic!("a damaged map gave {other}"),
    }
}

fn touch_everything(maps: &mut ModelledMap) {
    for _ in 0..10 {
        let (ino, first, count) = range(maps);
        let inode = maps.inode(ino);
        let mut seen = vec![None; count];
        tolerated(maps.map.lookup(&inode, FileBlock(first)));
        tolerated(maps.map.lookup_run(&inode, FileBlock(first), &mut seen));
        tolerated(next_mapped(&*maps.map, &inode, first, u64::MAX));
        tolerated(maps.map.mapped(&inode, FileBlock(first), FileBlock(u64::MAX), 500, &mut Vec::new()));
        let wanted = maps.wanted(ino, first, count);
        let room = maps.map.missing_room(&[], &wanted);
        let radix = RadixTree::new(Arc::clone(&maps.blocks));
        tolerated(radix.missing_nodes(&inode, FileBlock(first), 1 << 33));
        tolerated(maps.map.visit_pages(&inode, &mut |_, _| {}));
        let mut tx = Tx::new();
        let new = vec![Some(Mapping::written(PmBlock(60))); count];
        tolerated(set(&*maps.map, &mut tx, &inode, first, &new));
        let mut claim = maps.blocks.claim(5, Purpose::Reclaim).unwrap();
        let mut tx = Tx::new();
        if let Ok(Some(room)) = &room {
            tolerated(maps.map.make_room(&mut tx, &inode, room, &mut claim));
        }
        tolerated(room);
        claim.give_back_all();
        let (mut tx, mut freed, limit) = (Tx::new(), Default::default(), 400);
        tolerated(maps.map.prune(&mut tx, &inode, (FileBlock(0), 1 << 33), limit, &mut freed));
        freed.iter().for_each(|block| maps.blocks.keep(*block));
    }
}

#[test]
fn damage_ends_in_corrupt() {
    for_each_map(0..60, |row, seed| {
        let mut maps = populated(row, seed);
        let nodes: Vec<_> = maps.nodes().into_iter().collect();
        let clock = SystemClock::default();
        let start = clock.monotonic_ns();
        for _ in 0..30 {
            let word = bad_word(&mut maps, &nodes);
            let at = if row.kind == MapKind::Cuckoo && maps.rng.random_bool(0.7) {
                crate::cuckoo::random_word(&mut maps)
            } else if row.kind == MapKind::Clustered && maps.rng.random_bool(0.7) {
                crate::clustered::random_word(&mut maps)
            } else if nodes.is_empty() {
                let (first, end) = (maps.blocks.first_block().0, maps.blocks.end_block().0);
                let block = PmBlock(maps.rng.random_range(first..end));
                maps.wal.geometry().table_entry(block).plus(8 * u64::from(maps.rng.random_bool(0.2)))
            } else if maps.rng.random_bool(0.2) {
                let ino = maps.rng.random_range(1..=INODES);
                let offset = [InodeSlot::ROOT, InodeSlot::DIRECT][maps.rng.random_range(0..2)];
                maps.inode(ino).slot.plus(offset)
            } else {
                let node = nodes[maps.rng.random_range(0..nodes.len())];
                let most = if maps.rng.random_bool(0.7) { 9 } else { 512 };
                let index = maps.rng.random_range(0..most);
                node.offset().plus(8 * index)
            };
            poke(&maps, at, word);
            touch_everything(&mut maps);
        }
        let spent = clock.monotonic_ns() - start;
        assert!(spent < 60_000_000_000, "{spent} ns");
    });
}

/// The caller's protocol over a damaged map: nothing is freed twice, nothing panics in the allocator.
#[test]
fn operations_over_a_damaged_map_free_no_block_twice() {
    for_each_map(0..40, |row, seed| {
        let mut maps = populated(row, seed);
        let nodes: Vec<_> = maps.nodes().into_iter().collect();
        // empty nodes, some of which then have two parents
        for ino in 1..=INODES {
            for first in [0, 600, 1 << 18, 1 << 27, 1 << 31] {
                let mut tx = Tx::new();
                let inode = maps.inode(ino);
                set(&*maps.map, &mut tx, &inode, first, &[None; 40]).unwrap();
                let reservation = maps.wal.reserve(tx.record_size()).unwrap();
                maps.wal.commit(reservation, &tx).unwrap();
            }
        }
        for _ in 0..if nodes.is_empty() { 0 } else { 6 } {
            let word = nodes[maps.rng.random_range(0..nodes.len())].0;
            let node = nodes[maps.rng.random_range(0..nodes.len())];
            let index = maps.rng.random_range(0..20);
            poke(&maps, node.offset().plus(8 * index), word);
        }
        for ino in 1..=INODES {
            let inode = maps.inode(ino);
            for _ in 0..4 {
                let (mut tx, mut freed, limit) = (Tx::new(), Default::default(), maps.wal.max_record());
                let done = maps.map.prune(&mut tx, &inode, (FileBlock(0), 1 << 33), limit, &mut freed);
                let distinct: std::collections::BTreeSet<_> = freed.iter().collect();
                assert_eq!(distinct.len(), freed.len(), "freed twice");
                tolerated(done.clone());
                if done.is_ok() && tx.record_size() <= maps.wal.max_record() {
                    let reservation = maps.wal.reserve(tx.record_size()).unwrap();
                    let lsn = maps.wal.commit(reservation, &tx).unwrap();
                    maps.blocks.freed(lsn, &freed);
                } else {
                    freed.iter().for_each(|block| maps.blocks.keep(*block));
                }
            }
        }
        maps.wal.checkpoint().unwrap();
        maps.blocks.drain_quarantine();
    });
}

#[test]
fn damaged_radix_words_are_named_in_the_error() {
    let row = &terrace_map::MAPS[0];
    let corrupt = |result: Result<()>, site: &str| match result {
        Err(Error::Corrupt(corrupt)) => assert!(corrupt.site.contains(site), "{corrupt}"),
        other => panic!("{site}: {other:?}"),
    };
    let lookup = |maps: &ModelledMap, block| {
        let found = maps.map.lookup(&maps.inode(1), FileBlock(block));
        found.map(|_| ())
    };
    let top = |maps: &ModelledMap| {
        let mut nodes = Vec::new();
        let mut visit = |block, level| nodes.push((block, level));
        maps.map.visit_pages(&maps.inode(1), &mut visit).unwrap();
        nodes
    };
    // root word
    for word in [pack_root(0, 50), pack_root(5, 50), pack_root(1, 3), pack_root(1, 1 << 40)] {
        let maps = populated(row, 0);
        poke(&maps, maps.inode(1).slot.plus(InodeSlot::ROOT), word);
        corrupt(lookup(&maps, 600), "radix root word");
        corrupt(maps.map.visit_pages(&maps.inode(1), &mut |_, _| {}), "radix root word");
    }
    // direct pointer, inner entry, leaf entry
    let maps = populated(row, 0);
    poke(&maps, maps.inode(1).slot.plus(InodeSlot::DIRECT), 0x8000_0000);
    corrupt(lookup(&maps, 0), "radix leaf entry");
    let root = top(&maps)[0].0;
    poke(&maps, root.offset(), 1 << 56 | 50);
    corrupt(lookup(&maps, 600), "radix inner entry");
    let maps = populated(row, 0);
    let leaf = top(&maps).iter().find(|(_, level)| *level == 0).unwrap().0;
    poke(&maps, leaf.offset().plus(8 * 10), 5);
    corrupt(lookup(&maps, 10), "radix leaf entry");
    // a node that leads to itself
    let maps = populated(row, 0);
    let root = top(&maps)[0].0;
    (0..512).for_each(|index| poke(&maps, root.offset().plus(8 * index), root.0));
    corrupt(maps.map.visit_pages(&maps.inode(1), &mut |_, _| {}), "radix node");
    // an inner entry that names somebody's data: read as it is, but never changed or freed
    let maps = populated(row, 0);
    let data = maps.map.lookup(&maps.inode(2), FileBlock(600)).unwrap().unwrap().block;
    let (parent, _) = *top(&maps).iter().find(|(_, level)| *level == 1).unwrap();
    poke(&maps, parent.offset().plus(8), data.0);
    let mut tx = Tx::new();
    let some = [Some(Mapping::written(PmBlock(60)))];
    let done = set(&*maps.map, &mut tx, &maps.inode(1), 600, &some);
    corrupt(done, "owner of radix node");
    assert!(tx.is_empty());
}

/// Work goes on once the damage is repaired: a failed operation leaves the map unchanged.
#[test]
fn a_failed_operation_leaves_the_map_unchanged() {
    for_each_map(0..4, |row, seed| {
        let mut maps = populated(row, seed);
        let root = maps.inode(1).slot.plus(InodeSlot::ROOT);
        let sound = maps.pm.load_u64(root).unwrap();
        for _ in 0..20 {
            poke(&maps, root, pack_root(9, 1));
            let _ = step(&mut maps);
            poke(&maps, root, sound);
        }
        assert_eq!(maps.content().unwrap(), maps.model);
        maps.check_table(&maps.model);
    });
}
