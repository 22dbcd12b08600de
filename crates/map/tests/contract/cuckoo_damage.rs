//! The cuckoo map where lines of it are lost or damaged.

use crate::cuckoo::{colliding, counted, line_of, lines, opened, recorded};
use crate::modelled_map::{UUID, exchange};
use terrace_format::cuckoo_map::{BUCKET_ENTRIES, Buckets, Entry, STASH_LINES, is_free};
use terrace_format::{FileBlock, Geometry, Ino, PmBlock};
use terrace_map::Mapping;
use terrace_media::PmMedium;
use terrace_media::pm::RecordedPm;
use terrace_wal::{Error, NoSpace, Tx};

/// Makes lines unreadable.
fn poison(pm: &RecordedPm, geometry: &Geometry, lines: impl IntoIterator<Item = u64>) {
    let buckets = Buckets::new(UUID, geometry);
    lines.into_iter().map(|line| buckets.line(line).0).for_each(|at| pm.poison(at..at + 64));
}

/// A new block has two full buckets, and the line of a bucket is lost: an entry of the readable bucket goes to the stash. The
/// insertion failed.
#[test]
fn a_move_into_the_stash_passes_an_unreadable_bucket() {
    for lost in 0..2 {
        let (pm, geometry) = recorded(2 << 20);
        let blocks = colliding(&geometry, 9);
        let mut maps = opened(&pm, geometry, 2);
        blocks[..8].iter().for_each(|block| maps.put(1, *block, 1, false).unwrap());
        let pair = Buckets::new(UUID, &geometry).pair(Ino(1), FileBlock(blocks[8]));
        poison(&pm, &geometry, [pair[lost]]);
        maps.put(1, blocks[8], 1, false).unwrap();
        pm.clear_poison();
        assert_eq!(counted(&maps), (8, 1), "{lost}");
        assert_eq!(maps.content().unwrap(), maps.model);
        maps.check_table(&maps.model);
    }
}

/// An entry in the stash changes and goes though another line of the stash is lost. Only look-ups found the entry.
#[test]
fn an_entry_beside_an_unreadable_line_of_the_stash_changes() {
    let (pm, geometry) = recorded(2 << 20);
    let blocks = colliding(&geometry, 8 + 2 * BUCKET_ENTRIES);
    let mut maps = opened(&pm, geometry, 2);
    blocks.iter().for_each(|block| maps.put(1, *block, 1, false).unwrap());
    let stash = Buckets::new(UUID, &geometry).stash();
    let beside = *blocks.iter().find(|block| line_of(&maps, **block) == stash.start + 1).unwrap();
    poison(&pm, &geometry, [stash.start]);
    maps.put(1, beside, 1, true).unwrap();
    let found = maps.map.lookup(&maps.inode(1), FileBlock(beside)).unwrap();
    assert_eq!(found, Some(maps.model[&(1, beside)]));
    maps.clear(1, beside, 1, 1.0).unwrap();
    pm.clear_poison();
    assert_eq!(maps.content().unwrap(), maps.model);
    maps.check_table(&maps.model);
}

/// Two buckets full of words that are no entries are damage. Such buckets looked like a full fast tier, for which blocks are demoted.
#[test]
fn buckets_of_damaged_entries_are_no_lack_of_space() {
    let (pm, geometry) = recorded(2 << 20);
    let mut maps = opened(&pm, geometry, 2);
    let buckets = Buckets::new(UUID, &geometry);
    let pair = buckets.pair(Ino(1), FileBlock(0));
    for line in pair {
        (0..8).for_each(|word| pm.write(buckets.line(line).plus(8 * word), &[0xff; 8]).unwrap());
    }
    let refused = maps.put(1, 0, 1, false);
    let Err(Error::Corrupt(corrupt)) = refused else { panic!("{refused:?}") };
    assert!(corrupt.site.contains(&format!("buckets {} and {}", pair[0], pair[1])), "{corrupt}");
}

/// An insertion that needs a lost line of the stash names the damage, and not a lack of space. Entries in other lines are found.
#[test]
fn an_insertion_into_a_full_stash_with_a_lost_line_names_the_damage() {
    let places = 2 * BUCKET_ENTRIES + STASH_LINES as usize * BUCKET_ENTRIES;
    for (filled, lost) in [(8, STASH_LINES), (places, 1), (places, 0)] {
        let (pm, geometry) = recorded(2 << 20);
        let blocks = colliding(&geometry, filled + 1);
        let (last, blocks) = blocks.split_last().unwrap();
        let mut maps = opened(&pm, geometry, 2);
        blocks.iter().for_each(|block| maps.put(1, *block, 1, false).unwrap());
        let stash = Buckets::new(UUID, &geometry).stash();
        poison(&pm, &geometry, stash.start..stash.start + lost);
        let refused = maps.put(1, *last, 1, false);
        match (lost, &refused) {
            (0, Err(Error::NoSpace(NoSpace::Pm))) | (1.., Err(Error::Media(_))) => {}
            _ => panic!("{filled} entries, {lost} lines lost: {refused:?}"),
        }
        let of_line = lines(&maps);
        for block in blocks {
            let key = Entry::key(Ino(1), FileBlock(*block));
            let is_readable = of_line.values().flatten().any(|words| words[0] >> 1 == key);
            let found = maps.map.lookup(&maps.inode(1), FileBlock(*block));
            assert_eq!(found.is_ok(), is_readable, "block {block}: {found:?}");
        }
        assert_eq!(maps.map.lookup(&maps.inode(1), FileBlock(*last)).unwrap(), None);
        // Blocks with a free bucket come and go.
        maps.put(2, 5, 1, false).unwrap();
        maps.clear(2, 5, 1, 1.0).unwrap();
    }
}

/// A block whose entry is damaged looked like a hole before the end of the scan: a read gave zeros, or the older bytes of a
/// lower tier.
#[test]
fn a_damaged_entry_is_no_hole_before_the_end_of_the_scan() {
    for word in [77, 1 << 63] {
        let (pm, geometry) = recorded(2 << 20);
        let mut maps = opened(&pm, geometry, 2);
        (0..3).for_each(|block| maps.put(1, block, 1, false).unwrap());
        let buckets = Buckets::new(UUID, &geometry);
        let key = Entry::key(Ino(1), FileBlock(1));
        let line = line_of(&maps, 1);
        let slot = lines(&maps)[&line].iter().position(|words| words[0] >> 1 == key).unwrap();
        maps.wal.close().unwrap();
        let at = buckets.line(line).plus(16 * slot as u64);
        pm.write(at, &u64::to_le_bytes(word)).unwrap();
        // A page without a checksum, which would show the damage, too.
        pm.write(geometry.checksum_word(at.block()), &[0; 8]).unwrap();
        // Not scanned.
        let maps = opened(&pm, geometry, 3);
        let found = maps.map.lookup(&maps.inode(1), FileBlock(1));
        assert!(matches!(found, Err(Error::TableUnread)), "{found:?}");
        let mut out = [None; 3];
        let found = maps.map.lookup_run(&maps.inode(1), FileBlock(0), &mut out);
        assert!(matches!(found, Err(Error::TableUnread)), "{found:?}");
        // A new entry would be one of two, once the damaged one can be read.
        let new = Mapping::written(PmBlock(400));
        let found = exchange(&*maps.map, &mut Tx::new(), &maps.inode(1), FileBlock(1), new);
        assert!(matches!(found, Err(Error::TableUnread)), "{:?}", found.map(|found| found.is_some()));
        while maps.blocks.scan_step().unwrap() {}
        let found = maps.map.lookup(&maps.inode(1), FileBlock(1));
        assert!(matches!(found, Err(Error::Corrupt(_))), "{found:?}");
        // Another block with the line is absent: memory knows all.
        let beside = (9..).find(|block| buckets.pair(Ino(1), FileBlock(*block)).contains(&line)).unwrap();
        assert_eq!(maps.map.lookup(&maps.inode(1), FileBlock(beside)).unwrap(), None);
    }
}

/// Lines of both tables are lost: the file with a block there gives errors, and the others are listed. The listings of all
/// files failed.
#[test]
fn files_without_a_block_in_both_lost_lines_are_listed() {
    for lost_by_stash in [false, true] {
        let (pm, geometry) = recorded(2 << 20);
        let mut maps = opened(&pm, geometry, 2);
        for ino in 1..=3 {
            (0..6).for_each(|block| maps.put(ino, 3 * block, 1, false).unwrap());
        }
        let is_alone = |block: &u64| {
            lines(&maps)[&line_of(&maps, *block)].iter().filter(|words| !is_free(words)).count() == 1
        };
        let hidden = (0..6).map(|block| 3 * block).find(is_alone).unwrap();
        let (line, place) = (line_of(&maps, hidden), maps.model[&(1, hidden)].block);
        let model = std::mem::take(&mut maps.model);
        maps.wal.close().unwrap();
        let maps = opened(&pm, geometry, 3);
        let entry = geometry.table_entry(place).0 / 64 * 64;
        pm.poison(entry..entry + 64);
        let stash = Buckets::new(UUID, &geometry).stash();
        poison(&pm, &geometry, [if lost_by_stash { stash.start } else { line }]);
        while maps.blocks.scan_step().unwrap() {}
        let hashed = maps.blocks.hashed().unwrap();
        for ino in [2, 3, 1] {
            let inode = maps.inode(ino);
            let list = || {
                let mut out = Vec::new();
                maps.map
                    .mapped(&inode, FileBlock(0), FileBlock(u64::MAX), 99, &mut out)
                    .map(|next| (out, next))
            };
            let expected: Vec<_> =
                model.range((ino, 0)..(ino + 1, 0)).map(|((_, block), m)| (FileBlock(*block), *m)).collect();
            assert!(matches!(list(), Err(Error::Hidden(of)) if of == Ino(ino)), "{:?}", list());
            maps.map.learn().unwrap();
            hashed.hidden.judge(&hashed.homes, &hashed.presence, Ino(ino), (6, &[]), &[]);
            let is_lost = ino == 1 && !lost_by_stash;
            if is_lost {
                assert!(list().is_err());
                assert!(maps.map.lookup(&inode, FileBlock(hidden)).is_err());
                assert!(!maps.map.is_empty(Ino(ino), &maps.slot(ino)));
                continue;
            }
            // An entry of the block is in a bucket, so that a line of the stash costs nothing.
            assert_eq!(list().unwrap(), (expected, None), "inode {ino}");
            assert_eq!(maps.map.lookup(&inode, FileBlock(1)).unwrap(), None);
        }
    }
}
