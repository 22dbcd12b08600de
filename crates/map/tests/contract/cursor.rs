//! Cursors that are stale in every way: a map gives the same answers as without.
//!
//! The maps of a test have one cursor, as inodes of a lock have. Each test fills it, changes the map without it, and asks
//! again.

use crate::for_each_map;
use crate::modelled_map::{ModelledMap, image};
use crate::{Row, model};
use rand::Rng;
use std::sync::Arc;
use terrace_blocks::{Purpose, Target};
use terrace_format::table::Owner;
use terrace_format::{FileBlock, Ino, PmBlock};
use terrace_map::Mapping;
use terrace_map::file_map::{Freed, MapChange, MapGuard};
use terrace_media::pm::RecordedPm;
use terrace_wal::{MapRoom, Tx};

/// Extents of a file: more than a leaf of an extent tree has.
const PIECES: u64 = 400;

fn opened(row: &Row, seed: u64) -> ModelledMap {
    let (bytes, geometry) = image(row.kind, 8 << 20, u64::MAX / 2);
    ModelledMap::open(Arc::new(RecordedPm::from_image(bytes)), geometry, row, seed)
}

/// A file with every second block.
fn fill(maps: &mut ModelledMap, ino: u64, pieces: std::ops::Range<u64>) {
    pieces.for_each(|piece| maps.put(ino, 2 * piece, 1, false).unwrap());
}

fn with_cursor(maps: &ModelledMap, ino: u64, block: u64) -> Option<Mapping> {
    maps.map.lookup_with(&maps.cursor, &maps.inode(ino), FileBlock(block)).unwrap()
}

/// Compares the whole file with the model, by blocks and by runs, each after a look-up of another block.
fn compare(maps: &ModelledMap, ino: u64) {
    for block in 0..2 * PIECES + 20 {
        let expected = maps.model.get(&(ino, block)).copied();
        assert_eq!(with_cursor(maps, ino, block), expected, "block {block} of {ino}");
    }
    for first in (0..2 * PIECES).step_by(97) {
        with_cursor(maps, ino, first + 50);
        let mut seen = vec![None; 300];
        maps.map.lookup_run_with(&maps.cursor, &maps.inode(ino), FileBlock(first), &mut seen).unwrap();
        for (block, seen) in (first..).zip(seen) {
            assert_eq!(seen, maps.model.get(&(ino, block)).copied(), "block {block} of {ino}, in a run");
        }
    }
}

#[test]
fn another_writer_replaces_blocks_under_a_cursor() {
    for_each_map(0..2, |row, seed| {
        let mut maps = opened(row, seed);
        fill(&mut maps, 1, 0..PIECES);
        for block in (0..2 * PIECES).step_by(14) {
            assert!(with_cursor(&maps, 1, block).is_some());
            maps.clear(1, block, 1, 1.0).unwrap();
            assert_eq!(with_cursor(&maps, 1, block), None);
            maps.put(1, block, 2, true).unwrap();
            assert_eq!(with_cursor(&maps, 1, block + 1), maps.model.get(&(1, block + 1)).copied());
        }
        compare(&maps, 1);
    });
}

/// The upper half of a leaf that splits is found in its new leaf.
#[test]
fn a_leaf_splits_under_a_cursor() {
    for_each_map(0..2, |row, seed| {
        let mut maps = opened(row, seed);
        for piece in 0..PIECES {
            maps.put(1, 2 * piece, 1, false).unwrap();
            // The cursor knows the leaf with the last blocks, then another part of the file is looked at.
            for block in [2 * piece, 0, piece, 2 * piece, 2 * piece + 2] {
                let expected = maps.model.get(&(1, block)).copied();
                assert_eq!(with_cursor(&maps, 1, block), expected, "block {block} of {}", piece + 1);
            }
        }
        compare(&maps, 1);
    });
}

/// Pages of the truncated part belong to another file afterwards, or to another part of the same file.
#[test]
fn a_file_is_truncated_and_grows_under_a_cursor() {
    for_each_map(0..2, |row, seed| {
        let mut maps = opened(row, seed);
        fill(&mut maps, 1, 0..PIECES);
        for (ino, begin) in [(2, 0), (1, 1_000_000)] {
            assert!(with_cursor(&maps, 1, 2 * PIECES - 2).is_some());
            for block in (0..2 * PIECES).step_by(40) {
                maps.clear(1, block, 40, 1.0).unwrap();
            }
            assert_eq!(with_cursor(&maps, 1, 2 * PIECES - 2), None);
            maps.wal.checkpoint().unwrap();
            maps.blocks.drain_quarantine();
            for piece in 0..PIECES {
                maps.put(ino, begin + 2 * piece, 1, false).unwrap();
            }
            compare(&maps, 1);
            compare(&maps, ino);
            fill(&mut maps, 1, 0..PIECES);
            compare(&maps, 1);
        }
    });
}

/// An inode number is given anew: the slot is empty, and the pages of the inode before it are free, or those of its
/// successor at other places.
#[test]
fn an_inode_number_has_another_generation_under_a_cursor() {
    for_each_map(0..2, |row, seed| {
        let mut maps = opened(row, seed);
        for generation in 0..4 {
            let begin = 2000 * (generation % 2);
            for piece in 0..PIECES {
                maps.put(1, begin + 2 * piece, 1, false).unwrap();
            }
            for block in [begin, begin + 2 * PIECES - 2] {
                assert!(with_cursor(&maps, 1, block).is_some(), "generation {generation}");
            }
            for block in (begin..begin + 2 * PIECES).step_by(40) {
                maps.clear(1, block, 40, 1.0).unwrap();
            }
            maps.prune_all(1).unwrap();
            maps.wal.checkpoint().unwrap();
            maps.blocks.drain_quarantine();
            for block in [begin, begin + 2 * PIECES - 2] {
                assert_eq!(with_cursor(&maps, 1, block), None, "generation {generation}");
            }
            compare(&maps, 1);
        }
    });
}

/// A leaf takes over the blocks of a neighbour that became empty, and gets an extent that lies across the end that the
/// cursor has seen.
#[test]
fn the_range_of_a_leaf_grows_under_a_cursor() {
    for_each_map(0..2, |row, seed| {
        let mut maps = opened(row, seed);
        fill(&mut maps, 1, 0..PIECES);
        // Wherever a leaf ends.
        for end in (100..2 * PIECES - 100).step_by(20) {
            assert!(with_cursor(&maps, 1, end - 2).is_some());
            for block in (end..2 * PIECES).step_by(40) {
                maps.clear(1, block, 40, 1.0).unwrap();
            }
            maps.put(1, end - 1, 4, false).unwrap();
            let mut seen = vec![None; 30];
            let inode = maps.inode(1);
            maps.map.lookup_run_with(&maps.cursor, &inode, FileBlock(end - 20), &mut seen).unwrap();
            for (block, seen) in (end - 20..).zip(seen) {
                assert_eq!(seen, maps.model.get(&(1, block)).copied(), "block {block}");
            }
            maps.clear(1, end - 1, 4, 1.0).unwrap();
            fill(&mut maps, 1, end / 2..PIECES);
        }
        compare(&maps, 1);
    });
}

/// A look-up between a removal and its commit: the leaf that the transaction frees does not get into the cursor.
#[test]
fn a_leaf_being_freed_stays_out_of_a_cursor() {
    for_each_map(0..2, |row, seed| {
        // Files that share a map have no leaves, and look-ups wait for its locks.
        if row.kind.is_shared() {
            return;
        }
        let mut maps = opened(row, seed);
        fill(&mut maps, 1, 0..PIECES);
        let (inode, map) = (maps.inode(1), Arc::clone(&maps.map));
        let mut is_freed = false;
        for piece in 0..PIECES {
            let (block, mut tx, mut freed) = (2 * piece, Tx::new(), Freed::new());
            let change = MapChange { inode, first: FileBlock(block), mappings: [None].into_iter().collect() };
            let reservation = maps.wal.reserve(maps.wal.max_record()).unwrap();
            let old = with_cursor(&maps, 1, block).unwrap();
            let guard = map.change(&mut tx, &[change], 2000, &mut freed).unwrap();
            is_freed |= !freed.is_empty();
            maps.blocks.release(&mut tx, old.block);
            freed.push(old.block);
            with_cursor(&maps, 1, block);
            let lsn = maps.wal.commit(reservation, &tx).unwrap();
            guard.committed();
            maps.blocks.freed(lsn, &freed);
            maps.model.remove(&(1, block));
            assert_eq!(with_cursor(&maps, 1, block), None, "block {block}");
            // Entries of the freed leaf are no part of the file, whatever they say.
            maps.put(1, block + 1, 1, false).unwrap();
            let expected = maps.model.get(&(1, block + 1)).copied();
            assert_eq!(with_cursor(&maps, 1, block + 1), expected, "block {}", block + 1);
            maps.clear(1, block + 1, 1, 1.0).unwrap();
        }
        assert_eq!(is_freed, map.record().block > 0, "the removal frees pages");
        compare(&maps, 1);
    });
}

/// Room that is made and given up: no cursor believes the split, before or after.
#[test]
fn a_split_is_given_up_under_a_cursor() {
    for_each_map(0..2, |row, seed| {
        let mut maps = opened(row, seed);
        // Into a full leaf.
        let full = (0..PIECES).find(|piece| {
            maps.put(1, 2 * piece, 1, false).unwrap();
            let last = FileBlock(2 * piece + 2);
            let mappings = [Some(Mapping::written(PmBlock(60)))].into_iter().collect();
            let next = MapChange { inode: maps.inode(1), first: last, mappings };
            *piece > 100 && maps.map.missing_room(&[], &next).unwrap().is_some()
        });
        let Some(full) = full else { return };
        let inode = maps.inode(1);
        let mappings = [Some(Mapping::written(PmBlock(60)))].into_iter().collect();
        let next = MapChange { inode, first: FileBlock(2 * full + 2), mappings };
        // The first step makes the tree higher, the second splits the leaf.
        let mut steps = 0;
        while let Some(room) = maps.map.missing_room(&[], &next).unwrap() {
            steps += 1;
            give_up_and_commit(&mut maps, &room, 2 * full);
        }
        assert_eq!(steps > 1, row.name == "extent");
    });
}

fn give_up_and_commit(maps: &mut ModelledMap, room: &MapRoom, last: u64) {
    let inode = maps.inode(1);
    for is_committed in [false, true] {
        let mut claim = maps.blocks.claim(room.pages, Purpose::Reclaim).unwrap();
        let mut tx = Tx::new();
        let guard = maps.map.make_room(&mut tx, &inode, room, &mut claim).unwrap();
        // Nobody asks between `make_room` and the end of the transaction; if somebody did, the answer would not last.
        assert_eq!(with_cursor(maps, 1, last), maps.model.get(&(1, last)).copied());
        if is_committed {
            let reservation = maps.wal.reserve(tx.record_size()).unwrap();
            maps.wal.commit(reservation, &tx).unwrap();
            guard.committed();
        } else {
            drop(guard);
            claim.give_back_all();
        }
        assert_eq!(with_cursor(maps, 1, last), maps.model.get(&(1, last)).copied());
        compare(maps, 1);
    }
}

/// Overwrites and appends by the short way, with the cursor that look-ups share.
#[test]
fn exchanges_with_a_cursor_agree_with_the_model() {
    for_each_map(0..4, |row, seed| {
        let mut maps = opened(row, seed);
        fill(&mut maps, 1, 0..PIECES);
        for step in 0..1500 {
            if step % 10 == 0 {
                model::step(&mut maps).unwrap();
            }
            let (ino, block) = (maps.rng.random_range(1..=2), maps.rng.random_range(0..2 * PIECES));
            exchange(&mut maps, ino, block);
            let near = block.saturating_sub(maps.rng.random_range(0..30));
            assert_eq!(with_cursor(&maps, ino, near), maps.model.get(&(ino, near)).copied(), "block {near}");
        }
        assert_eq!(maps.content().unwrap(), maps.model);
        maps.check_table(&maps.model);
        compare(&maps, 1);
    });
}

fn exchange(maps: &mut ModelledMap, ino: u64, block: u64) {
    let inode = maps.inode(ino);
    let reservation = maps.wal.reserve(1024).unwrap();
    let Ok(mut claim) = maps.blocks.claim(1, Purpose::User) else {
        drop(reservation);
        maps.wal.checkpoint().unwrap();
        return maps.blocks.drain_quarantine();
    };
    let target = Target::File { ino: Ino(ino), block: FileBlock(block) };
    let new = Mapping::written(claim.take(target).unwrap());
    let mut tx = Tx::new();
    let (place, mut guard) = (FileBlock(block), MapGuard::default());
    let exchanged = maps.map.exchange(Some(&maps.cursor), &mut tx, &inode, (place, new), &mut guard);
    let Some(old) = exchanged.unwrap() else { return claim.give_back_all() };
    assert_eq!(old, maps.model.get(&(ino, block)).copied(), "block {block} of {ino} before");
    maps.blocks.set_owner(
        &mut tx,
        new.block,
        Owner::File { ino: Ino(ino), block: FileBlock(block), unwritten: false },
    );
    let mut freed = Freed::new();
    if let Some(old) = old {
        maps.blocks.release(&mut tx, old.block);
        freed.push(old.block);
    }
    let lsn = maps.wal.commit(reservation, &tx).unwrap();
    guard.committed();
    maps.blocks.freed(lsn, &freed);
    maps.model.insert((ino, block), new);
    *maps.allowed.lock() = vec![maps.model.clone()];
}
