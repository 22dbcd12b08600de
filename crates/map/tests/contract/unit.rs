//! What one call costs and how it answers at the edges.

use crate::world::{World, image};
use crate::{Row, for_each_map};
use std::sync::Arc;
use terrace_blocks::Purpose;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::table::{Owner, PageKind};
use terrace_format::{FileBlock, PmBlock};
use terrace_map::{InodeFileMap, Mapping};
use terrace_media::PmMedium;
use terrace_media::pm::RecordedPm;
use terrace_wal::{Error, Tx};

fn world(row: &Row, seed: u64) -> World {
    let (bytes, geometry) = image(2 << 20, u64::MAX / 2);
    World::open(Arc::new(RecordedPm::from_image(bytes)), geometry, row, seed)
}

#[test]
fn a_new_file_maps_nothing_and_the_first_eight_blocks_need_no_node() {
    for_each_map(0..1, |row, seed| {
        let world = world(row, seed);
        let inode = world.inode(1);
        let all = (FileBlock(0), FileBlock(u64::MAX));
        assert_eq!(world.map.next_mapped(&inode, all.0, all.1).unwrap(), None);
        assert_eq!(world.map.lookup(None, &inode, FileBlock(u64::MAX)).unwrap(), None);
        assert_eq!(world.map.missing_nodes(&inode, FileBlock(0), 8).unwrap(), 0);
        if row.name == "radix" {
            let missing = |first, count| world.map.missing_nodes(&inode, FileBlock(first), count).unwrap();
            assert_eq!(missing(8, 1), 1);
            assert_eq!(missing(512, 512), 2);
            assert_eq!(missing(500, 20), 3);
            assert_eq!(missing(1 << 18, 1), 3);
            assert_eq!(missing(MAX_FILE_BLOCK.0, 1), 4);
            assert_eq!(missing(MAX_FILE_BLOCK.0 + 1, 5), 0);
            assert_eq!(missing(0, 1 << 32), (1 << 23) + (1 << 14) + 32 + 1);
        }
    });
}

#[test]
fn neighbouring_words_are_one_write() {
    for_each_map(0..1, |row, seed| {
        let mut world = world(row, seed);
        let inode = world.inode(1);
        world.ensure_nodes(1, 512, 400).unwrap();
        let mappings: Vec<_> = (0..400).map(|b| Some(Mapping::written(PmBlock(50 + b)))).collect();
        let mut tx = Tx::new();
        let before = tx.record_size();
        world.map.set(&mut tx, &inode, FileBlock(512), &mappings).unwrap();
        assert_eq!(tx.record_size() - before, 8 + 8 * 400);
        let mut direct = Tx::new();
        world.map.set(&mut direct, &inode, FileBlock(3), &mappings[..1]).unwrap();
        assert_eq!(direct.record_size() - before, 16);
        let pair = [mappings[1]; 2];
        world.map.set(&mut direct, &inode, FileBlock(6), &pair).unwrap();
        assert_eq!(direct.record_size() - before, 32);
        let seen = world.map.lookup(Some(&direct), &inode, FileBlock(3)).unwrap();
        assert_eq!(seen, mappings[0]);
        assert_eq!(world.map.lookup(Some(&direct), &inode, FileBlock(2)).unwrap(), None);
    });
}

#[test]
fn set_without_a_node_is_an_error_and_clearing_is_not() {
    for_each_map(0..1, |row, seed| {
        let mut world = world(row, seed);
        let inode = world.inode(1);
        // as tall as a tree gets
        world.ensure_nodes(1, MAX_FILE_BLOCK.0, 1).unwrap();
        for first in [100, 1 << 20, MAX_FILE_BLOCK.0 + 1, u64::MAX - 5] {
            let mut tx = Tx::new();
            world.map.set(&mut tx, &inode, FileBlock(first), &[None; 100]).unwrap();
            assert!(tx.is_empty());
            let some = [Some(Mapping::written(PmBlock(50)))];
            let done = world.map.set(&mut tx, &inode, FileBlock(first), &some);
            if first > MAX_FILE_BLOCK.0 || row.name == "radix" {
                assert!(matches!(done, Err(Error::Corrupt(_))), "{done:?}");
            }
        }
    });
}

#[test]
fn nodes_are_added_up_to_a_full_record() {
    for_each_map(0..1, |row, seed| {
        let (bytes, geometry) = image(2 << 20, u64::MAX / 2);
        let mut world = World::open(Arc::new(RecordedPm::from_image(bytes)), geometry, row, seed);
        let inode = world.inode(2);
        let mut claim = world.blocks.claim(300, Purpose::Reclaim).unwrap();
        let mut tx = Tx::new();
        let added = world.map.add_nodes(&mut tx, &inode, FileBlock(0), 250 * 512, &mut claim).unwrap();
        let missing = world.map.missing_nodes(&inode, FileBlock(0), 250 * 512).unwrap();
        assert!(added == missing || added > 50, "{added}");
        assert_eq!(claim.left(), 300 - added);
        assert!(tx.record_size() <= world.wal.max_record());
        let reservation = world.wal.reserve(tx.record_size()).unwrap();
        world.wal.commit(reservation, &tx).unwrap();
        let left = world.map.missing_nodes(&inode, FileBlock(0), 250 * 512).unwrap();
        assert_eq!(left, missing - added);
        // more empty nodes than one call frees
        drop(claim);
        world.prune_all(2).unwrap();
        assert!(world.nodes().is_empty());
    });
}

#[test]
fn the_inode_file_maps_pages() {
    let (bytes, geometry) = image(4 << 20, u64::MAX / 2);
    let pm: Arc<dyn PmMedium> = Arc::new(RecordedPm::from_image(bytes));
    let world = World::open(pm, geometry, &crate::MAPS[0], 0);
    let map = InodeFileMap::new(Arc::clone(&world.blocks));
    assert_eq!(map.lookup(None, 0).unwrap(), None);
    let pages = [0, 1, 7, 8, 511, 512, 513, 1 << 18, (0x7fff_feff) / 32];
    let mut blocks = Vec::new();
    for page in pages {
        let missing = map.missing_nodes(page).unwrap();
        if missing != 0 {
            let mut claim = world.blocks.claim(missing, Purpose::User).unwrap();
            let mut tx = Tx::new();
            assert_eq!(map.add_nodes(&mut tx, page, &mut claim).unwrap(), missing);
            assert!(tx.record_size() <= 32 + map.node_record_bytes(missing));
            let reservation = world.wal.reserve(tx.record_size()).unwrap();
            world.wal.commit(reservation, &tx).unwrap();
        }
        assert_eq!(map.missing_nodes(page).unwrap(), 0);
        let mut claim = world.blocks.claim(1, Purpose::User).unwrap();
        let block = claim.take().unwrap();
        let mut tx = Tx::new();
        map.set(&mut tx, page, Some(block)).unwrap();
        assert_eq!(map.lookup(Some(&tx), page).unwrap(), Some(block));
        assert_eq!(map.lookup(None, page).unwrap(), None);
        assert_eq!(tx.record_size(), 32 + 16);
        let reservation = world.wal.reserve(tx.record_size()).unwrap();
        world.wal.commit(reservation, &tx).unwrap();
        blocks.push((page, block));
    }
    let mut at = 0;
    let mut found = Vec::new();
    while let Some((page, block)) = map.next_page(at).unwrap() {
        assert_eq!(map.lookup(None, page).unwrap(), Some(block));
        found.push((page, block));
        at = page + 1;
    }
    assert_eq!(found, blocks);
    let slot = map.slot(None, terrace_format::Ino(33)).unwrap();
    assert_eq!(slot, Some(blocks[1].1.offset().plus(128)));
    let mut levels = [0; 4];
    map.visit_nodes(&mut |block, level| {
        let kind = PageKind::InodeNode;
        let datum = u32::from(level);
        assert_eq!(world.blocks.owner(block).unwrap(), Owner::Page { kind, datum });
        levels[usize::from(level)] += 1;
    })
    .unwrap();
    // leaves of 0, 512, 2^18 and the last page
    assert_eq!(levels, [4, 3, 1, 0]);
}

/// While a record that grows the tree is stored in place, a reader without a lock finds every older page.
#[test]
fn readers_of_the_inode_file_need_no_lock() {
    let (bytes, geometry) = image(4 << 20, u64::MAX / 2);
    let pm = Arc::new(RecordedPm::from_image(bytes));
    let world = World::open(pm.clone(), geometry, &crate::MAPS[0], 0);
    let map = Arc::new(InodeFileMap::new(Arc::clone(&world.blocks)));
    let mut known = Vec::new();
    for page in [0, 600, 1 << 18, (1 << 18) + 600] {
        let (reader, present) = (Arc::downgrade(&map), known.clone());
        let hook = move |_| {
            for (page, block) in &present {
                let map = reader.upgrade().unwrap();
                assert_eq!(map.lookup(None, *page).unwrap(), Some(*block), "page {page}");
                drop(map);
            }
        };
        pm.clock().on_event(Some(Box::new(hook)));
        let mut claim = world.blocks.claim(5, Purpose::User).unwrap();
        let mut tx = Tx::new();
        map.add_nodes(&mut tx, page, &mut claim).unwrap();
        let reservation = world.wal.reserve(tx.record_size()).unwrap();
        world.wal.commit(reservation, &tx).unwrap();
        let block = claim.take().unwrap();
        let mut tx = Tx::new();
        map.set(&mut tx, page, Some(block)).unwrap();
        let reservation = world.wal.reserve(tx.record_size()).unwrap();
        world.wal.commit(reservation, &tx).unwrap();
        known.push((page, block));
    }
    pm.clock().on_event(None);
}
