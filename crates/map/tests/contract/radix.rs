//! The radix map: numbers of nodes, the cost of single calls, answers at the edges; the inode file.

use crate::for_radix;
use crate::modelled_map::{ModelledMap, PAGE_RECORD_BYTES, image, next_mapped, set};
use crate::unit::modelled;
use std::sync::Arc;
use terrace_blocks::{Purpose, Target};
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::below::Below;
use terrace_format::map_kind::MapKind;
use terrace_format::table::{Owner, PageKind};
use terrace_format::{DeviceBlock, DeviceId, FileBlock, Ino, PmBlock};
use terrace_map::file_map::MapChange;
use terrace_map::{InodeFileMap, Mapping, RadixTree};
use terrace_media::PmMedium;
use terrace_media::pm::RecordedPm;
use terrace_wal::{Error, PageBelow, Tx};

#[test]
fn a_new_file_is_unmapped_and_its_first_eight_blocks_need_no_node() {
    for_radix(|row, seed| {
        let maps = modelled(row, seed);
        let inode = maps.inode(1);
        assert_eq!(next_mapped(&*maps.map, &inode, 0, u64::MAX).unwrap(), None);
        assert_eq!(maps.map.lookup(&inode, FileBlock(u64::MAX)).unwrap(), None);
        assert_eq!(maps.missing(1, 0, 8), 0);
        assert!(maps.map.is_empty(inode.ino, &maps.slot(1)));
        let radix = RadixTree::new(Arc::clone(&maps.blocks));
        let missing = |first, count| radix.missing_nodes(&inode, FileBlock(first), count).unwrap();
        assert_eq!(missing(8, 1), 1);
        assert_eq!(missing(512, 512), 2);
        assert_eq!(missing(500, 20), 3);
        assert_eq!(missing(1 << 18, 1), 3);
        assert_eq!(missing(MAX_FILE_BLOCK.0, 1), 4);
        assert_eq!(missing(MAX_FILE_BLOCK.0 + 1, 5), 0);
        assert_eq!(missing(0, 1 << 32), (1 << 23) + (1 << 14) + 32 + 1);
    });
}

#[test]
fn neighbouring_words_are_one_write() {
    for_radix(|row, seed| {
        let mut maps = modelled(row, seed);
        let inode = maps.inode(1);
        maps.ensure_room(1, 512, 400).unwrap();
        let mappings: Vec<_> = (0..400).map(|b| Some(Mapping::written(PmBlock(50 + b)))).collect();
        let mut tx = Tx::new();
        let before = tx.record_size();
        set(&*maps.map, &mut tx, &inode, 512, &mappings).unwrap();
        assert_eq!(tx.record_size() - before, 8 + 8 * 400);
        let mut direct = Tx::new();
        set(&*maps.map, &mut direct, &inode, 3, &mappings[..1]).unwrap();
        assert_eq!(direct.record_size() - before, 16);
        let pair = [mappings[1]; 2];
        set(&*maps.map, &mut direct, &inode, 6, &pair).unwrap();
        assert_eq!(direct.record_size() - before, 32);
        let reservation = maps.wal.reserve(direct.record_size()).unwrap();
        maps.wal.commit(reservation, &direct).unwrap();
        assert_eq!(maps.map.lookup(&inode, FileBlock(3)).unwrap(), mappings[0]);
        assert_eq!(maps.map.lookup(&inode, FileBlock(2)).unwrap(), None);
    });
}

#[test]
fn set_without_a_node_is_an_error_and_clearing_is_not() {
    for_radix(|row, seed| {
        let mut maps = modelled(row, seed);
        let inode = maps.inode(1);
        // as tall as a tree gets
        maps.ensure_room(1, MAX_FILE_BLOCK.0, 1).unwrap();
        for first in [100, 1 << 20, MAX_FILE_BLOCK.0 + 1, u64::MAX - 5] {
            let mut tx = Tx::new();
            set(&*maps.map, &mut tx, &inode, first, &[None; 100]).unwrap();
            assert!(tx.is_empty());
            let some = [Some(Mapping::written(PmBlock(50)))];
            let done = set(&*maps.map, &mut tx, &inode, first, &some);
            assert!(matches!(done, Err(Error::Corrupt(_))), "{done:?}");
        }
    });
}

#[test]
fn nodes_are_added_up_to_a_full_record() {
    for_radix(|row, seed| {
        let (bytes, geometry) = image(row.kind, 2 << 20, u64::MAX / 2);
        let mut maps = ModelledMap::open(Arc::new(RecordedPm::from_image(bytes)), geometry, row, seed);
        let inode = maps.inode(2);
        let mut claim = maps.blocks.claim(300, Purpose::Reclaim).unwrap();
        let mut tx = Tx::new();
        let room = maps.map.missing_room(&[], &maps.wanted(2, 0, 250 * 512)).unwrap().unwrap();
        maps.map.make_room(&mut tx, &inode, &room, &mut claim).unwrap().committed();
        let (added, missing) = (300 - claim.left(), room.pages);
        assert!(added == missing || added > 50, "{added}");
        assert!(tx.record_size() <= maps.wal.max_record());
        let reservation = maps.wal.reserve(tx.record_size()).unwrap();
        maps.wal.commit(reservation, &tx).unwrap();
        let left = maps.missing(2, 0, 250 * 512);
        assert_eq!(left, missing - added);
        // more empty nodes than one call frees
        drop(claim);
        maps.prune_all(2).unwrap();
        assert!(maps.nodes().is_empty());
    });
}

#[test]
fn the_inode_file_maps_pages() {
    let (bytes, geometry) = image(MapKind::Radix, 4 << 20, u64::MAX / 2);
    let pm: Arc<dyn PmMedium> = Arc::new(RecordedPm::from_image(bytes));
    let maps = ModelledMap::open(pm, geometry, &terrace_map::MAPS[0], 0);
    let map = InodeFileMap::new(Arc::clone(&maps.blocks));
    assert_eq!(map.lookup(None, 0).unwrap(), None);
    let pages = [0, 1, 7, 8, 511, 512, 513, 1 << 18, (0x7fff_feff) / 32];
    let mut blocks = Vec::new();
    for page in pages {
        let missing = map.missing_nodes(page).unwrap();
        if missing != 0 {
            let mut claim = maps.blocks.claim(missing, Purpose::User).unwrap();
            let mut tx = Tx::new();
            assert_eq!(map.add_nodes(&mut tx, page, &mut claim).unwrap(), missing);
            assert!(tx.record_size() <= 32 + map.node_record_bytes(missing));
            let reservation = maps.wal.reserve(tx.record_size()).unwrap();
            maps.wal.commit(reservation, &tx).unwrap();
        }
        assert_eq!(map.missing_nodes(page).unwrap(), 0);
        let mut claim = maps.blocks.claim(1, Purpose::User).unwrap();
        let block = claim.take(Target::Page).unwrap();
        let mut tx = Tx::new();
        map.set(&mut tx, page, Some(block)).unwrap();
        assert_eq!(map.lookup(Some(&tx), page).unwrap(), Some(block));
        assert_eq!(map.lookup(None, page).unwrap(), None);
        assert_eq!(tx.record_size(), 32 + 16);
        let reservation = maps.wal.reserve(tx.record_size()).unwrap();
        maps.wal.commit(reservation, &tx).unwrap();
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
    let slot = |ino| map.slot(None, Ino(ino)).unwrap();
    assert_eq!(slot(33), Some(blocks[1].1.offset().plus(128)));
    assert_eq!(slot(8 * 32 + 5), Some(blocks[3].1.offset().plus(5 * 128)));
    assert_eq!(slot(2 * 32), None, "no such page");
    // A page goes below, and is still there.
    let below = Below::new(DeviceId(0), DeviceBlock(77), 5, false).encode();
    let mut tx = Tx::new();
    map.set_location(&mut tx, 1, below).unwrap();
    let reservation = maps.wal.reserve(tx.record_size()).unwrap();
    maps.wal.commit(reservation, &tx).unwrap();
    assert_eq!(map.location(None, 1).unwrap(), Some(below));
    let Err(Error::PageBelow(place)) = map.lookup(None, 1) else { panic!("the page is not in PM") };
    assert_eq!(*place, PageBelow::Inodes { index: 1 });
    let mut levels = [0; 4];
    map.visit_nodes(&mut |block, level| {
        let kind = PageKind::InodeNode;
        let datum = u32::from(level);
        assert_eq!(maps.blocks.owner(block).unwrap(), Owner::Page { kind, datum });
        levels[usize::from(level)] += 1;
    })
    .unwrap();
    // leaves of 0, 512, 2^18 and the last page
    assert_eq!(levels, [4, 3, 1, 0]);
}

/// While a record that grows the tree is stored in place, a reader without a lock finds every older page.
#[test]
fn readers_of_the_inode_file_need_no_lock() {
    let (bytes, geometry) = image(MapKind::Radix, 4 << 20, u64::MAX / 2);
    let pm = Arc::new(RecordedPm::from_image(bytes));
    let maps = ModelledMap::open(pm.clone(), geometry, &terrace_map::MAPS[0], 0);
    let map = Arc::new(InodeFileMap::new(Arc::clone(&maps.blocks)));
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
        let mut claim = maps.blocks.claim(5, Purpose::User).unwrap();
        let mut tx = Tx::new();
        map.add_nodes(&mut tx, page, &mut claim).unwrap();
        let reservation = maps.wal.reserve(tx.record_size()).unwrap();
        maps.wal.commit(reservation, &tx).unwrap();
        let block = claim.take(Target::Page).unwrap();
        let mut tx = Tx::new();
        map.set(&mut tx, page, Some(block)).unwrap();
        let reservation = maps.wal.reserve(tx.record_size()).unwrap();
        maps.wal.commit(reservation, &tx).unwrap();
        known.push((page, block));
    }
    pm.clock().on_event(None);
}

/// Lane reservations follow these sizes: too large sizes fill the lanes, and the checkpoint runs without
/// need.
#[test]
fn a_record_takes_nearly_all_of_its_reservation() {
    for_radix(|row, seed| {
        let mut maps = modelled(row, seed);
        let inode = maps.inode(1);
        // Every second block is mapped anew: no two words are one write.
        maps.ensure_room(1, 512, 100).unwrap();
        let other: Vec<_> =
            (0..100).map(|b| Some(Mapping::written(PmBlock(60))).filter(|_| b % 2 == 0)).collect();
        let mut tx = Tx::new();
        set(&*maps.map, &mut tx, &inode, 512, &other).unwrap();
        assert_eq!(tx.record_size(), Tx::new().record_size() + maps.map.record().bytes(1, 50));
        maps.ensure_room(1, 512, 1).unwrap();
        // A root above the old one; there is a leaf to add as well.
        maps.ensure_room(1, 1 << 17, 1).unwrap();
        let mut claim = maps.blocks.claim(1, Purpose::Reclaim).unwrap();
        let mut tx = Tx::new();
        let room = maps.map.missing_room(&[], &maps.wanted(1, 1 << 18, 1)).unwrap().unwrap();
        maps.map.make_room(&mut tx, &inode, &room, &mut claim).unwrap().committed();
        assert_eq!(claim.left(), 0);
        assert_eq!(tx.record_size(), Tx::new().record_size() + PAGE_RECORD_BYTES);
        claim.give_back_all();
    });
}

#[test]
fn a_node_is_added_when_the_record_has_just_room_for_it() {
    for_radix(|row, seed| {
        let maps = modelled(row, seed);
        let inode = maps.inode(1);
        let limit = maps.wal.max_record() - PAGE_RECORD_BYTES;
        let place = maps.blocks.first_block().offset().plus(2048);
        for (size, added) in [(limit, 1), (limit + 8, 0)] {
            let mut tx = Tx::new();
            let odd = (size - tx.record_size()) / 8 % 2 == 1;
            if odd {
                tx.write(place, &[1; 16]);
            }
            while tx.record_size() < size {
                tx.write_u64(place, 1);
            }
            assert_eq!(tx.record_size(), size);
            let mut claim = maps.blocks.claim(1, Purpose::Reclaim).unwrap();
            let room = maps.map.missing_room(&[], &maps.wanted(1, 8, 1)).unwrap().unwrap();
            maps.map.make_room(&mut tx, &inode, &room, &mut claim).unwrap().committed();
            assert_eq!(1 - claim.left(), added);
            claim.give_back_all();
        }
    });
}

#[test]
fn emptied_pages_are_freed_while_the_record_has_room() {
    for_radix(|row, seed| {
        let mut maps = modelled(row, seed);
        let inode = maps.inode(1);
        let blocks = [512, 515, 600, 1024, 2000, 2001, 4096];
        for block in blocks {
            maps.put(1, block, 1, false).unwrap();
        }
        let pages = maps.nodes().len();
        let change = |block| MapChange { inode, first: FileBlock(block), mappings: vec![None].into() };
        // A block of the third leaf stays.
        let removed: Vec<_> = blocks.into_iter().filter(|block| *block != 2001).map(change).collect();
        for (limit, expected) in [(0, 0), (4096, 3)] {
            let (mut tx, mut freed) = (Tx::new(), Default::default());
            drop(maps.map.change(&mut tx, &removed, limit, &mut freed).unwrap());
            freed.iter().for_each(|page| maps.blocks.keep(*page));
            assert_eq!((pages, freed.len()), (5, expected), "a limit of {limit} bytes");
        }
    });
}

/// A call is bounded even where it finds no node to free, and returns the position of the next call.
#[test]
fn pruning_a_large_tree_goes_step_by_step() {
    for_radix(|row, seed| {
        let (bytes, geometry) = image(row.kind, 4 << 20, u64::MAX / 2);
        let mut maps = ModelledMap::open(Arc::new(RecordedPm::from_image(bytes)), geometry, row, seed);
        let inode = maps.inode(1);
        maps.ensure_room(1, 512, 260 * 512).unwrap();
        let prune = |maps: &ModelledMap, from: u64| {
            let (mut tx, mut freed) = (Tx::new(), Default::default());
            let limit = Tx::new().record_size() + 8 * 40;
            let next =
                maps.map.prune(&mut tx, &inode, (FileBlock(from), 1 << 20), limit, &mut freed).unwrap();
            freed.iter().for_each(|block| maps.blocks.keep(*block));
            (next, freed.len())
        };
        let (next, freed) = prune(&maps, 512);
        assert!((5..=8).contains(&freed), "{freed} of 260 empty leaves");
        assert_eq!(next, Some(FileBlock(512 * (1 + freed as u64))));
        for leaf in 1..=260 {
            maps.put(1, leaf * 512, 1, false).unwrap();
        }
        let (next, freed) = prune(&maps, 512);
        assert_eq!(
            (next, freed),
            (Some(FileBlock(512 * 256)), 0),
            "255 leaves below the root were looked at"
        );
        assert_eq!(prune(&maps, 512 * 256), (None, 0));
        assert_eq!(prune(&maps, 1 << 30), (None, 0), "beyond the tree");
    });
}

#[test]
fn block_numbers_outside_the_pool_are_damage_in_leaves_and_direct_pointers() {
    for_radix(|row, seed| {
        let mut maps = modelled(row, seed);
        let inode = maps.inode(1);
        maps.ensure_room(1, 8, 1).unwrap();
        let (first, end) = (maps.blocks.first_block().0, maps.blocks.end_block().0);
        for at in [0, 8].map(FileBlock) {
            for (block, sound) in [(first, true), (end - 1, true), (end, false), (first - 1, false)] {
                let mut tx = Tx::new();
                set(&*maps.map, &mut tx, &inode, at.0, &[Some(Mapping::written(PmBlock(block)))]).unwrap();
                let reservation = maps.wal.reserve(tx.record_size()).unwrap();
                maps.wal.commit(reservation, &tx).unwrap();
                let seen = maps.map.lookup(&inode, at);
                assert_eq!(seen.is_ok(), sound, "{block} at {at}");
                assert!(sound || matches!(seen, Err(Error::Corrupt(_))));
            }
        }
    });
}
