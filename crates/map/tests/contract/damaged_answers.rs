//! Answers of the maps where words are damaged or lines cannot be read, and after changes that were given up.

use crate::clustered::{line_of, opened, recorded};
use crate::modelled_map::{ModelledMap, UUID, exchange, image, set};
use std::sync::Arc;
use terrace_format::clustered_map::{Line, Lines, Piece, Place};
use terrace_format::extent_map::{ExtentRoot, order_at};
use terrace_format::{FileBlock, Ino, PmBlock};
use terrace_map::{MAPS, Mapping};
use terrace_media::PmMedium;
use terrace_media::pm::RecordedPm;
use terrace_wal::{Error, Tx};
use zerocopy::IntoBytes;

/// A damaged value of a block that no file can have (file block 2^32 - 1), or that lies in the slot, was entered in
/// presence by a change of another block of the line, before the end of the scan: a panic, or a bit for ever.
#[test]
fn a_damaged_value_behind_the_last_block_is_no_panic() {
    damaged_value(0xffff_fff0, 15);
}

#[test]
fn a_damaged_value_of_a_block_in_the_slot_gets_no_bit() {
    damaged_value(8, 3);
}

fn damaged_value(block: u64, index: usize) {
    {
        let (pm, geometry) = recorded(2 << 20);
        let mut maps = opened(&pm, geometry, 3);
        maps.put(1, block, 1, false).unwrap();
        let line = line_of(&maps, 1, block).unwrap();
        maps.wal.close().unwrap();
        let at = Lines::new(UUID, &geometry).at(line);
        let mut words = Line::default();
        pm.read(at, words.0.as_mut_bytes()).unwrap();
        words.set(index, Some(Place { block: PmBlock(400), unwritten: false }));
        pm.write(at, words.0.as_bytes()).unwrap();
        pm.write(geometry.checksum_word(at.block()), &[0; 8]).unwrap();
        // Not scanned.
        let maps = opened(&pm, geometry, 3);
        let (inode, new) = (maps.inode(1), Mapping::written(PmBlock(401)));
        let exchanged = exchange(&*maps.map, &mut Tx::new(), &inode, FileBlock(block), new);
        drop(exchanged);
        let wrong = FileBlock(Piece::of(Ino(1), FileBlock(block)).first().0 + index as u64);
        let presence = &maps.blocks.hashed().unwrap().presence;
        assert!(!presence.contains(Ino(1), wrong), "a bit for block {wrong}");
    }
}

/// A block in the slot that is kept after a transaction was given up got a bit of presence, which nothing takes out.
#[test]
fn a_kept_block_of_the_slot_gets_no_bit() {
    let (pm, geometry) = recorded(2 << 20);
    let mut maps = opened(&pm, geometry, 2);
    maps.put(1, 3, 1, false).unwrap();
    let block = maps.model[&(1, 3)].block;
    maps.blocks.release(&mut Tx::new(), block);
    maps.blocks.keep(block);
    maps.clear(1, 3, 1, 1.0).unwrap();
    assert!(maps.map.lookup(&maps.inode(1), FileBlock(3)).unwrap().is_none());
    assert!(maps.map.is_empty(Ino(1), &maps.slot(1)), "a file without a block is not empty");
}

/// A damaged order of a leaf names a used place as free: an insertion wrote over a sound extent.
#[test]
fn a_used_place_named_as_free_is_not_overwritten() {
    for is_general in [false, true] {
        let row = MAPS.iter().find(|row| row.name == "extent").unwrap();
        let (bytes, geometry) = image(row.kind, 2 << 20, u64::MAX / 2);
        let pm = Arc::new(RecordedPm::from_image(bytes));
        let open = || ModelledMap::open(Arc::clone(&pm) as Arc<dyn PmMedium>, geometry, row, 2);
        let mut maps = open();
        for block in 0..10 {
            maps.put(1, 100 * block, 1, false).unwrap();
        }
        let ExtentRoot::Tree { block: leaf, .. } = ExtentRoot::decode(maps.slot(1).root.get()).unwrap()
        else {
            panic!("no tree")
        };
        maps.wal.close().unwrap();
        let mut order = [0; 240];
        pm.read(order_at(leaf), &mut order).unwrap();
        // The first free place is that of the first extent.
        order[10] = order[0];
        pm.write(order_at(leaf), &order).unwrap();
        pm.write(geometry.checksum_word(leaf), &[0; 8]).unwrap();
        let maps = open();
        let inode = maps.inode(1);
        let first = || maps.map.lookup(&inode, FileBlock(0));
        let before = first().unwrap();
        assert!(before.is_some());
        let new = Mapping::written(PmBlock(400));
        let mut tx = Tx::new();
        if is_general {
            let _ = set(&*maps.map, &mut tx, &inode, 5000, &[Some(new)]);
        } else if let Ok(Some(exchanged)) = exchange(&*maps.map, &mut tx, &inode, FileBlock(5000), new) {
            exchanged.guard.committed();
        }
        if !tx.is_empty() {
            let reservation = maps.wal.reserve(tx.record_size()).unwrap();
            maps.wal.commit(reservation, &tx).unwrap();
        }
        let after = first();
        assert!(after.is_err() || after.as_ref().unwrap() == &before, "{before:?} became {after:?}");
    }
}

/// Before the end of the scan a look-up that passes an unreadable line of the block table was an error of the medium, also
/// of a block that was never there. The scan answers it.
#[test]
fn an_absent_block_waits_for_the_scan() {
    for name in ["hashfs-linear", "hashfs"] {
        let row = MAPS.iter().find(|row| row.name == name).unwrap();
        let (bytes, geometry) = image(row.kind, 2 << 20, u64::MAX / 2);
        let pm = Arc::new(RecordedPm::from_image(bytes));
        let maps = ModelledMap::open(Arc::clone(&pm) as Arc<dyn PmMedium>, geometry, row, 3);
        let homes = &maps.blocks.hashed().unwrap().homes;
        let home = homes.home(Ino(1), FileBlock(77)).slot;
        let at = geometry.table_entry(home).0 / 64 * 64;
        pm.poison(at..at + 64);
        let found = maps.map.lookup(&maps.inode(1), FileBlock(77));
        assert!(matches!(found, Ok(None) | Err(Error::TableUnread)), "{name}: {found:?}");
    }
}

/// A write of a block that is nowhere is given up before its record (a cold block below, or a lane that is not idle), where a
/// line that the search passes cannot be read: the block was in doubt from then on, and gave errors until the unmount,
/// although it was known to be absent before.
#[test]
fn a_given_up_write_leaves_an_absent_block_absent() {
    let mut failed = Vec::new();
    for row in MAPS.iter().filter(|row| row.kind.is_shared()) {
        let (bytes, geometry) = image(row.kind, 2 << 20, u64::MAX / 2);
        let pm = Arc::new(RecordedPm::from_image(bytes));
        let maps = ModelledMap::open(Arc::clone(&pm) as Arc<dyn PmMedium>, geometry, row, 2);
        let inode = maps.inode(1);
        let hashed = maps.blocks.hashed().unwrap();
        let usable = |block: &u64| {
            let home = hashed.homes.home(Ino(1), FileBlock(*block)).slot;
            home.0 > geometry.first_pool_block().0 + 40 && home.0 + 40 < geometry.block_count()
        };
        let block = FileBlock((100..).find(usable).unwrap());
        let home = hashed.homes.home(Ino(1), block);
        let lost = match row.name {
            "cuckoo" => {
                let buckets = terrace_format::cuckoo_map::Buckets::new(UUID, &geometry);
                buckets.line(buckets.pair(Ino(1), block)[1])
            }
            "clustered" => {
                let lines = Lines::new(UUID, &geometry);
                lines.at(lines.ahead(lines.home(Piece::of(Ino(1), block)), 1))
            }
            _ => geometry.table_entry(PmBlock(hashed.homes.lines(home, 16).nth(1).unwrap().start)),
        };
        let at = lost.0 / 64 * 64;
        pm.poison(at..at + 64);
        assert_eq!(maps.map.lookup(&inode, block).unwrap(), None, "{}", row.name);
        let new = Mapping::written(home.slot);
        let exchanged = exchange(&*maps.map, &mut Tx::new(), &inode, block, new).unwrap();
        assert!(exchanged.unwrap().old.is_none(), "{}", row.name);
        let after = maps.map.lookup(&inode, block);
        if !matches!(after, Ok(None)) {
            failed.push((row.name, format!("{after:?}")));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// A transaction that clears a block and maps it again left its entry without a bit.
#[test]
fn a_block_cleared_and_mapped_in_a_transaction_stays() {
    let mut failed = Vec::new();
    for row in MAPS {
        let (bytes, geometry) = image(row.kind, 2 << 20, u64::MAX / 2);
        let pm = Arc::new(RecordedPm::from_image(bytes));
        let mut maps = ModelledMap::open(Arc::clone(&pm) as Arc<dyn PmMedium>, geometry, row, 2);
        maps.put(1, 40, 1, false).unwrap();
        let (inode, old) = (maps.inode(1), maps.model[&(1, 40)]);
        let change = |mapping| terrace_map::file_map::MapChange {
            inode,
            first: FileBlock(40),
            mappings: [mapping].into_iter().collect(),
        };
        let mut tx = Tx::new();
        let changes = [change(None), change(Some(old))];
        let Ok(guard) = maps.map.change(&mut tx, &changes, 0, &mut Default::default()) else { continue };
        if !tx.is_empty() {
            let reservation = maps.wal.reserve(tx.record_size()).unwrap();
            maps.wal.commit(reservation, &tx).unwrap();
        }
        guard.committed();
        let absent =
            maps.blocks.hashed().is_some_and(|hashed| !hashed.presence.contains(Ino(1), FileBlock(40)));
        if absent || maps.map.lookup(&inode, FileBlock(40)).unwrap() != Some(old) {
            failed.push(row.name);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}
