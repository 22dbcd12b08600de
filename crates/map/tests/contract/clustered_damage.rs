//! The clustered map where lines of it are lost or damaged.

use crate::clustered::{colliding, line_of, lines, opened, recorded};
use crate::modelled_map::{UUID, exchange};
use terrace_format::clustered_map::{Lines, Piece};
use terrace_format::{FileBlock, Geometry, Ino, PmBlock};
use terrace_map::Mapping;
use terrace_media::PmMedium;
use terrace_media::pm::RecordedPm;
use terrace_wal::{Error, Tx};
use zerocopy::IntoBytes;

fn poison(pm: &RecordedPm, geometry: &Geometry, line: u64) {
    let at = Lines::new(UUID, geometry).at(line).0;
    pm.poison(at..at + 64);
}

/// A piece whose key is damaged looked like a hole before the end of the scan: a read gave zeros, or the older bytes of a
/// lower tier.
#[test]
fn a_piece_of_a_damaged_key_is_no_hole_before_the_end_of_the_scan() {
    let odd = |line: u64, all: &Lines| {
        // The key of another piece, far from its home.
        let far = (1..).map(|piece| Piece { ino: Ino(9), number: piece });
        far.map(|piece| (piece, all.distance(all.home(piece), line))).find(|(_, distance)| *distance > 99)
    };
    for is_far in [false, true] {
        for number in 0..2 {
            let (pm, geometry) = recorded(2 << 20);
            let all = Lines::new(UUID, &geometry);
            let mut maps = opened(&pm, geometry, 2);
            let blocks = colliding(&geometry, 3);
            blocks[..2].iter().for_each(|block| maps.put(1, *block, 2, false).unwrap());
            maps.put(1, 3, 2, false).unwrap();
            let line = line_of(&maps, 1, blocks[number]).unwrap();
            maps.wal.close().unwrap();
            let key = if is_far { odd(line, &all).unwrap().0.key() } else { 77 };
            pm.write(all.at(line), &key.to_le_bytes()).unwrap();
            // A page without a checksum, which would show the damage, too.
            pm.write(geometry.checksum_word(all.at(line).block()), &[0; 8]).unwrap();
            // Not scanned.
            let maps = opened(&pm, geometry, 3);
            let inode = maps.inode(1);
            let lost = FileBlock(blocks[number]);
            let mut out = [None; 3];
            assert!(matches!(maps.map.lookup(&inode, lost), Err(Error::TableUnread)));
            assert!(matches!(maps.map.lookup_run(&inode, lost, &mut out), Err(Error::TableUnread)));
            // A new line would be one of two, once the damaged one can be read.
            let new = Mapping::written(PmBlock(400));
            let found = exchange(&*maps.map, &mut Tx::new(), &inode, lost, new);
            assert!(matches!(found, Err(Error::TableUnread)), "{:?}", found.map(|found| found.is_some()));
            assert!(maps.map.lookup(&inode, FileBlock(blocks[1 - number])).unwrap().is_some());
            assert!(maps.map.lookup(&inode, FileBlock(3)).unwrap().is_some());
            while maps.blocks.scan_step().unwrap() {}
            assert!(matches!(maps.map.lookup(&inode, lost), Err(Error::Corrupt(_))));
            // A piece that was never there is absent: memory knows all.
            assert_eq!(maps.map.lookup(&inode, FileBlock(blocks[2])).unwrap(), None);
        }
    }
}

/// Lines of the block table and of the map are lost: the file with a block in both gives errors, and the others are listed. The
/// listings of all files failed.
#[test]
fn files_without_a_block_in_both_lost_lines_are_listed() {
    for is_damaged in [false, true] {
        let (pm, geometry) = recorded(2 << 20);
        let all = Lines::new(UUID, &geometry);
        let mut maps = opened(&pm, geometry, 2);
        for ino in 1..=3 {
            // Two in the slot, six in lines.
            [1, 3].iter().for_each(|block| maps.put(ino, *block, 1, false).unwrap());
            (1..7).for_each(|piece| maps.put(ino, 160 * piece, 1, false).unwrap());
        }
        let line = line_of(&maps, 1, 320).unwrap();
        let place = maps.model[&(1, 320)].block;
        let model = std::mem::take(&mut maps.model);
        maps.wal.close().unwrap();
        if is_damaged {
            pm.write(all.at(line), &77_u64.to_le_bytes()).unwrap();
            pm.write(geometry.checksum_word(all.at(line).block()), &[0; 8]).unwrap();
        }
        let maps = opened(&pm, geometry, 3);
        let entry = geometry.table_entry(place).0 / 64 * 64;
        pm.poison(entry..entry + 64);
        if !is_damaged {
            poison(&pm, &geometry, line);
        }
        while maps.blocks.scan_step().unwrap() {}
        let hashed = maps.blocks.hashed().unwrap();
        for ino in [2, 3, 1] {
            let inode = maps.inode(ino);
            let list = || {
                let mut out = Vec::new();
                let end = FileBlock(u64::MAX);
                maps.map.mapped(&inode, FileBlock(0), end, 99, &mut out).map(|next| (out, next))
            };
            let expected: Vec<_> =
                model.range((ino, 0)..(ino + 1, 0)).map(|((_, block), m)| (FileBlock(*block), *m)).collect();
            assert_eq!(expected.len(), 8);
            assert!(matches!(list(), Err(Error::Hidden(of)) if of == Ino(ino)), "{:?}", list());
            maps.map.learn().unwrap();
            let mut slot = maps.slot(ino);
            // The oldest of them has a cold copy below, and a block beside is cold alone.
            slot.blocks = 9.into();
            hashed.judge(Ino(ino), &slot, &[(FileBlock(3), 2)]);
            if ino == 1 {
                assert!(list().is_err() && !maps.map.is_empty(Ino(1), &maps.slot(1)));
                assert!(maps.map.lookup(&inode, FileBlock(320)).is_err());
                assert!(maps.map.lookup(&inode, FileBlock(3)).unwrap().is_some(), "a block in the slot");
                assert_eq!(maps.map.lookup(&inode, FileBlock(4)).unwrap(), None);
                continue;
            }
            assert_eq!(list().unwrap(), (expected, None), "inode {ino}");
            assert_eq!(maps.map.lookup(&inode, FileBlock(321)).unwrap(), None);
        }
    }
}

/// An insertion that finds no line because lines are lost names the damage, and not a lack of space, for which blocks would be
/// demoted.
#[test]
fn an_insertion_without_a_readable_line_names_the_damage() {
    let (pm, geometry) = recorded(2 << 20);
    let mut maps = opened(&pm, geometry, 2);
    maps.put(1, 16, 1, false).unwrap();
    let kept = line_of(&maps, 1, 16).unwrap();
    let count = Lines::new(UUID, &geometry).count();
    (0..count).filter(|line| *line != kept).for_each(|line| poison(&pm, &geometry, line));
    let refused = maps.put(1, 1600, 1, false);
    assert!(matches!(refused, Err(Error::Media(_))), "{refused:?}");
    maps.put(1, 17, 1, false).unwrap();
    pm.clear_poison();
    assert_eq!(lines(&maps).len(), 1);
    maps.check_table(&maps.model);
}

/// A sequence goes on at the first line behind the last: a block may be hidden there.
#[test]
fn a_lost_line_behind_the_end_of_the_table_hides_the_second_piece_of_the_last_line() {
    let (pm, geometry) = recorded(2 << 20);
    let all = Lines::new(UUID, &geometry);
    let mut maps = opened(&pm, geometry, 2);
    let is_last = |piece: &u64| all.home(Piece { ino: Ino(1), number: *piece }) == all.count() - 1;
    let blocks: Vec<u64> = (1..).filter(is_last).map(|piece| 16 * piece).take(2).collect();
    blocks.iter().for_each(|block| maps.put(1, *block, 1, false).unwrap());
    assert_eq!(line_of(&maps, 1, blocks[1]), Some(0));
    let place = maps.model[&(1, blocks[1])].block;
    maps.model.clear();
    maps.wal.close().unwrap();
    let maps = opened(&pm, geometry, 3);
    let entry = geometry.table_entry(place).0 / 64 * 64;
    pm.poison(entry..entry + 64);
    poison(&pm, &geometry, 0);
    while maps.blocks.scan_step().unwrap() {}
    let hashed = maps.blocks.hashed().unwrap();
    maps.map.learn().unwrap();
    let mut slot = maps.slot(1);
    slot.blocks = 2.into();
    hashed.judge(Ino(1), &slot, &[]);
    let found = |block: u64| maps.map.lookup(&maps.inode(1), FileBlock(block)).map(|found| found.is_some());
    assert!(found(blocks[0]).unwrap() && found(blocks[1]).is_err());
}

/// The line is there: the exchange would leave the old block without a file.
#[test]
fn an_exchange_of_a_lost_value_is_refused() {
    let (pm, geometry) = recorded(2 << 20);
    let mut maps = opened(&pm, geometry, 2);
    maps.put(1, 16, 2, false).unwrap();
    let (number, mut line) = lines(&maps).pop_first().unwrap();
    line.set(1, None);
    pm.write(Lines::new(UUID, &geometry).at(number), line.0.as_bytes()).unwrap();
    let inode = maps.inode(1);
    let exchange_at = |block: u64| {
        let new = Mapping::written(PmBlock(400));
        let found = exchange(&*maps.map, &mut Tx::new(), &inode, FileBlock(block), new).unwrap();
        found.map(|found| found.old.is_some())
    };
    assert_eq!([16, 17, 18].map(exchange_at), [Some(true), None, Some(false)]);
    assert!(matches!(maps.map.lookup(&inode, FileBlock(17)), Err(Error::Corrupt(_))));
}

/// A line that damage has emptied keeps its key. The piece got a second line behind it, and look-ups found the first.
#[test]
fn a_piece_takes_its_emptied_line_again() {
    let (pm, geometry) = recorded(2 << 20);
    let all = Lines::new(UUID, &geometry);
    let mut maps = opened(&pm, geometry, 2);
    let blocks = colliding(&geometry, 2);
    blocks.iter().for_each(|block| maps.put(1, *block, 1, false).unwrap());
    let emptied = line_of(&maps, 1, blocks[1]).unwrap();
    maps.clear(1, blocks[1], 1, 1.0).unwrap();
    maps.wal.close().unwrap();
    // As before the removal, but for the blocks.
    pm.write(all.at(emptied), &Piece::of(Ino(1), FileBlock(blocks[1])).key().to_le_bytes()).unwrap();
    pm.write(all.at(emptied).plus(8), &[0; 56]).unwrap();
    pm.write(geometry.checksum_word(all.at(emptied).block()), &[0; 8]).unwrap();
    let model = std::mem::take(&mut maps.model);
    let mut maps = opened(&pm, geometry, 3);
    maps.model = model;
    while maps.blocks.scan_step().unwrap() {}
    maps.put(1, blocks[1], 1, false).unwrap();
    assert_eq!(line_of(&maps, 1, blocks[1]), Some(emptied));
    assert_eq!(lines(&maps).len(), 2);
    assert!(maps.map.lookup(&maps.inode(1), FileBlock(blocks[1])).unwrap().is_some());
}
