//! The cuckoo map where lines of it are lost or damaged.

use crate::cuckoo::{colliding, counted, line_of, lines, opened, recorded};
use crate::modelled_map::UUID;
use terrace_format::cuckoo_map::{BUCKET_ENTRIES, Buckets, Entry, STASH_LINES};
use terrace_format::{FileBlock, Geometry, Ino};
use terrace_media::PmMedium;
use terrace_media::pm::RecordedPm;
use terrace_wal::{Error, NoSpace};

/// Makes lines unreadable.
fn poison(pm: &RecordedPm, geometry: &Geometry, lines: impl IntoIterator<Item = u64>) {
    let buckets = Buckets::new(UUID, geometry);
    lines.into_iter().map(|line| buckets.line(line).0).for_each(|at| pm.poison(at..at + 64));
}

/// Of two full buckets one is lost: an entry of the other goes to the stash. The lost bucket refused all new blocks.
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

/// An entry in the stash changes and goes though another line of the stash is lost. It was found by look-ups alone.
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

/// Two buckets full of words that are no entries are damage. They looked like a full fast tier, for which blocks are demoted.
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

/// An insertion that needs a lost line of the stash names the damage, and not a lack of space. Whatever lies elsewhere is found.
#[test]
fn an_insertion_that_needs_a_lost_line_of_the_stash_names_the_damage() {
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
