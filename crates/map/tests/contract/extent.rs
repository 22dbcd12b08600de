//! The extent map: shapes of its tree, sizes of records, damage.

use crate::modelled_map::{self, ModelledMap, image, set};
use rand::Rng;
use rand::seq::SliceRandom;
use std::sync::Arc;
use terrace_format::extent_map::{Extent, ExtentRoot, NODE_ENTRIES, NodeHead, entry_at};
use terrace_format::inode::InodeSlot;
use terrace_format::{FileBlock, PmBlock, PmOffset};
use terrace_map::file_map::MapChange;
use terrace_map::{MAPS, Mapping};
use terrace_media::pm::RecordedPm;
use terrace_wal::{Error, Tx};

fn modelled(size: u64) -> ModelledMap {
    let row = MAPS.iter().find(|row| row.name == "extent").unwrap();
    let (bytes, geometry) = image(row.kind, size, u64::MAX / 2);
    ModelledMap::open(Arc::new(RecordedPm::from_image(bytes)), geometry, row, 7)
}

/// Maps blocks, with room where it is lacking; gives the bytes of the record without its header.
fn map(maps: &mut ModelledMap, first: u64, mappings: &[Option<Mapping>]) -> usize {
    let inode = maps.inode(1);
    loop {
        let mut tx = Tx::new();
        let change = MapChange { inode, first: FileBlock(first), mappings: mappings.into() };
        let room = match maps.map.missing_room(&[], &change).unwrap() {
            Some(room) => room,
            None => match set(&*maps.map, &mut tx, &inode, first, mappings) {
                Err(Error::MapRoom(room)) => *room,
                done => {
                    done.unwrap();
                    let reservation = maps.wal.reserve(tx.record_size()).unwrap();
                    maps.wal.commit(reservation, &tx).unwrap();
                    return tx.record_size() - Tx::new().record_size();
                }
            },
        };
        maps.make_room(1, &room).unwrap();
    }
}

fn written(block: u64) -> Option<Mapping> {
    Some(Mapping::written(PmBlock(block)))
}

fn root(maps: &ModelledMap) -> ExtentRoot {
    ExtentRoot::decode(maps.slot(1).root.get()).unwrap()
}

fn lookup(maps: &ModelledMap, block: u64) -> Option<u64> {
    maps.map.lookup(&maps.inode(1), FileBlock(block)).unwrap().map(|mapping| mapping.block.0)
}

#[test]
fn a_file_written_in_order_is_one_extent_in_its_slot() {
    let mut maps = modelled(2 << 20);
    for block in 0..100 {
        map(&mut maps, block, &[written(30 + block)]);
    }
    assert_eq!(root(&maps), ExtentRoot::Inline(1));
    // In the midst it splits into three: a leaf takes them. With the block from before it is whole again.
    map(&mut maps, 50, &[written(200)]);
    assert_eq!((lookup(&maps, 49), lookup(&maps, 50), lookup(&maps, 51)), (Some(79), Some(200), Some(81)));
    assert!(matches!(root(&maps), ExtentRoot::Tree { height: 1, .. }));
    map(&mut maps, 50, &[written(80)]);
    let ExtentRoot::Tree { block, .. } = root(&maps) else { panic!("no tree") };
    assert_eq!(maps.pm.load_u64(block.offset()).unwrap() & 0xff, 1, "extents in the leaf");
    // Unwritten blocks are no part of it.
    map(&mut maps, 100, &[Some(Mapping { block: PmBlock(130), unwritten: true })]);
    assert_eq!(maps.pm.load_u64(block.offset()).unwrap() & 0xff, 2, "extents in the leaf");
}

/// Exchanges a block; gives the earlier one, and the bytes of the record without its header.
fn exchange(maps: &ModelledMap, block: u64, new: u64) -> (Option<u64>, usize) {
    let (mut tx, new) = (Tx::new(), Mapping::written(PmBlock(new)));
    let exchanged =
        modelled_map::exchange(&*maps.map, &mut tx, &maps.inode(1), FileBlock(block), new).unwrap().unwrap();
    let reservation = maps.wal.reserve(tx.record_size()).unwrap();
    maps.wal.commit(reservation, &tx).unwrap();
    exchanged.guard.committed();
    let old = exchanged.old.map(|old| old.block.0);
    (old, tx.record_size() - Tx::new().record_size())
}

/// The short way must see when an extent joins a neighbour: else files that are written over never get smaller maps.
#[test]
fn an_exchange_of_a_single_block_logs_a_word_and_joins_neighbours() {
    let mut maps = modelled(2 << 20);
    (0..5).for_each(|block| _ = map(&mut maps, block, &[written(100 + 10 * block)]));
    let ExtentRoot::Tree { block: leaf, .. } = root(&maps) else { panic!("no tree") };
    let extents = |maps: &ModelledMap| maps.pm.load_u64(leaf.offset()).unwrap() & 0xff;
    assert_eq!((exchange(&maps, 2, 300), extents(&maps)), ((Some(120), 16), 5));
    assert_eq!((exchange(&maps, 2, 111).0, extents(&maps)), (Some(300), 4), "behind block 1");
    assert_eq!((exchange(&maps, 3, 139).0, extents(&maps)), (Some(130), 3), "before block 4");
    assert_eq!((exchange(&maps, 5, 200), extents(&maps)), ((None, 40), 4), "behind the last");
    assert_eq!((exchange(&maps, 6, 201), extents(&maps)), ((None, 16), 4), "with the last");
    assert_eq!((exchange(&maps, 6, 210).0, extents(&maps)), (Some(201), 5), "the end of an extent");
    assert_eq!((exchange(&maps, 1, 400).0, extents(&maps)), (Some(110), 6), "the begin of an extent");
    let expected = [100, 400, 111, 139, 140, 200, 210].map(Some);
    assert_eq!([0, 1, 2, 3, 4, 5, 6].map(|block| lookup(&maps, block)), expected);
}

#[test]
fn tens_of_thousands_of_extents_are_found_and_leave_no_page_behind() {
    let mut maps = modelled(8 << 20);
    let inode = maps.inode(1);
    let mut blocks: Vec<u64> = (0..50_000).map(|index| index * 3).collect();
    blocks.shuffle(&mut maps.rng);
    for part in blocks.chunks(20) {
        for block in part {
            let bytes = map(&mut maps, *block, &[written(200 + block % 1700)]);
            assert!(bytes <= 512, "an insertion takes {bytes} bytes of a record");
        }
    }
    let ExtentRoot::Tree { height, .. } = root(&maps) else { panic!("no tree") };
    assert_eq!(height, 3);
    for _ in 0..2000 {
        let block = maps.rng.random_range(0..150_010);
        let expected = (block % 3 == 0 && block < 150_000).then_some(200 + block % 1700);
        assert_eq!(lookup(&maps, block), expected, "block {block}");
    }
    let mut found = Vec::new();
    let next = maps.map.mapped(&inode, FileBlock(5), FileBlock(150_000), 20_000, &mut found).unwrap();
    assert_eq!((found.len(), next), (20_000, Some(FileBlock(60_006))));
    assert!(found.iter().zip(2..).all(|((block, _), index)| block.0 == 3 * index));
    // All of it goes, in steps of what a record takes.
    for first in (0..150_000).step_by(60) {
        let mut tx = Tx::new();
        let mappings = std::iter::repeat_n(None, 60).collect();
        let change = MapChange { inode, first: FileBlock(first), mappings };
        let mut freed = Default::default();
        let limit = maps.wal.max_record();
        drop(maps.map.change(&mut tx, &[change], limit, &mut freed).unwrap());
        let reservation = maps.wal.reserve(tx.record_size()).unwrap();
        let lsn = maps.wal.commit(reservation, &tx).unwrap();
        maps.blocks.freed(lsn, &freed);
    }
    assert_eq!(root(&maps), ExtentRoot::Empty);
    assert!(maps.nodes().is_empty());
}

/// Each removal has room by itself; together they overfill the leaf.
#[test]
fn room_is_made_for_all_removals_in_a_full_leaf() {
    let mut maps = modelled(2 << 20);
    let inode = maps.inode(1);
    for index in 0..(NODE_ENTRIES as u64 - 2) {
        map(&mut maps, index * 4, &[written(30 + index)]);
    }
    let long: Vec<_> = (0..40).map(|block| written(300 + block)).collect();
    map(&mut maps, 4000, &long);
    let none = |block: u64| MapChange { inode, first: FileBlock(block), mappings: vec![None].into() };
    let removed: Vec<_> = (0..15).map(|index| none(4001 + 2 * index)).collect();
    let mut steps = 0;
    loop {
        assert!(
            removed.iter().all(|change| steps > 0 || maps.map.missing_room(&[], change).unwrap().is_none())
        );
        let (mut tx, mut freed) = (Tx::new(), Default::default());
        let map = Arc::clone(&maps.map);
        match map.change(&mut tx, &removed, 0, &mut freed) {
            Err(Error::MapRoom(room)) => maps.make_room(1, &room).unwrap(),
            done => {
                done.unwrap().committed();
                let reservation = maps.wal.reserve(tx.record_size()).unwrap();
                maps.wal.commit(reservation, &tx).unwrap();
                break;
            }
        }
        steps += 1;
        assert!(steps < 3, "room that was made is not enough");
    }
    assert_eq!(steps, 1);
    let seen: Vec<_> = (4000..4040).map(|block| lookup(&maps, block).is_some()).collect();
    assert!((0..40).all(|index| seen[index] == (index % 2 == 0 || index > 29)));
}

#[test]
fn damaged_words_of_extents_are_named_in_the_error() {
    let poke = |maps: &ModelledMap, at: PmOffset, words: [u64; 2]| {
        words
            .iter()
            .zip([0, 8])
            .for_each(|(word, by)| maps.pm.write(at.plus(by), &word.to_le_bytes()).unwrap());
    };
    let corrupt = |maps: &ModelledMap, block: u64, site: &str| {
        let mut out = [None; 4];
        let inode = maps.inode(1);
        let found = maps.map.lookup(&inode, FileBlock(block)).map(drop);
        let run = maps.map.lookup_run(&inode, FileBlock(block), &mut out);
        assert!(
            matches!(&run, Err(Error::Corrupt(corrupt)) if corrupt.site.contains(site)),
            "{run:?}, {site}"
        );
        found
    };
    let tree = || {
        let mut maps = modelled(2 << 20);
        for index in 0..600 {
            map(&mut maps, index * 4, &[written(30 + index % 400)]);
        }
        let ExtentRoot::Tree { height: 2, block } = root(&maps) else { panic!("no tree of two levels") };
        let leaf = PmBlock(maps.pm.load_u64(entry_at(block, 0).plus(8)).unwrap());
        (maps, block, leaf)
    };
    for word in [3, 250, 13 << 56 | 40, 255 << 56, 1 << 56 | 1, 1 << 56 | 1 << 40] {
        let (maps, ..) = tree();
        maps.pm.write(maps.inode(1).slot.plus(InodeSlot::ROOT), &u64::to_le_bytes(word)).unwrap();
        corrupt(&maps, 8, "extent").unwrap_err();
    }
    let (maps, root, leaf) = tree();
    poke(&maps, leaf.offset(), [NodeHead::of(1, 5).first_word(), 0]);
    corrupt(&maps, 8, "extent node").unwrap_err();
    let (maps, ..) = tree();
    poke(&maps, root.offset(), [NodeHead::of(1, 0).first_word(), 0]);
    corrupt(&maps, 8, "extent node").unwrap_err();
    // A node that leads to itself has the wrong level below.
    let (maps, ..) = tree();
    poke(&maps, entry_at(root, 0), [0, root.0]);
    corrupt(&maps, 8, "extent node").unwrap_err();
    let reaching = Extent { first: 8, length: 100, block: PmBlock(30), unwritten: false };
    let outside = Extent { block: PmBlock(511), ..reaching };
    let second = maps.pm.load_u64(leaf.offset().plus(16)).unwrap() >> 16 & 0xff;
    for (extent, site) in [(reaching, "extents of inode 1"), (outside, "extent")] {
        let (maps, ..) = tree();
        poke(&maps, entry_at(leaf, second as u8), extent.encode());
        let _ = corrupt(&maps, 9, site);
    }
    // A change meets an extent that lies before it: it is not lengthened over the blocks between.
    let (maps, _, leaf) = tree();
    let third = maps.pm.load_u64(leaf.offset().plus(16)).unwrap() >> 16 & 0xff;
    poke(&maps, entry_at(leaf, third as u8), Extent { first: 0, length: 1, ..reaching }.encode());
    let change = MapChange { inode: maps.inode(1), first: FileBlock(4), mappings: vec![None; 20].into() };
    let changed = maps.map.change(&mut Tx::new(), &[change], 0, &mut Default::default()).map(drop);
    assert!(
        matches!(&changed, Err(Error::Corrupt(corrupt)) if corrupt.site.contains("extents")),
        "{changed:?}"
    );
    // An inner entry that names the data of another file is read as it is, but never changed or freed.
    let (mut maps, root, leaf) = tree();
    maps.put(2, 0, 1, false).unwrap();
    let data = maps.map.lookup(&maps.inode(2), FileBlock(0)).unwrap().unwrap().block;
    let mut bytes = [0; 4096];
    maps.pm.read(leaf.offset(), &mut bytes).unwrap();
    maps.pm.write(data.offset(), &bytes).unwrap();
    poke(&maps, entry_at(root, 0), [0, data.0]);
    let mut tx = Tx::new();
    let done = set(&*maps.map, &mut tx, &maps.inode(1), 8, &[written(40)]);
    assert!(matches!(&done, Err(Error::Corrupt(corrupt)) if corrupt.site.contains("owner")), "{done:?}");
    assert!(tx.is_empty());
}
