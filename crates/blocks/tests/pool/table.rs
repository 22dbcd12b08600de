//! The block table: the lines that it names, the scan after a mount, disputes between it and a map, and its damage.

use super::{LARGE, SMALL, commit, entry, file, formatted, mounted, nth, scanned, table, taken};
use terrace_blocks::{BlockPool, Purpose, State, Target};
use terrace_format::table::{Entry, MASK_FULL, Owner, PageKind};
use terrace_format::{FileBlock, Geometry, Ino, LineMask, PmBlock};
use terrace_media::PmMedium;
use terrace_wal::{Error, Tx};

#[test]
fn files_are_visited_in_the_order_of_the_table() {
    let pm = formatted(LARGE);
    let pool = mounted(&pm);
    let total = pool.usage().total;
    let at = [0, 1, 700, 8191, 8192, 8193, total - 2, total - 1];
    let owned: Vec<_> =
        at.into_iter().map(|index| (nth(&pool, index), file(index + 1, 7 * index), MASK_FULL)).collect();
    table(&pm, &owned);
    table(&pm, &[(nth(&pool, 5), Owner::Page { kind: PageKind::CatalogPage, datum: 1 }, MASK_FULL)]);
    let visited = |pool: &BlockPool| {
        let mut seen = Vec::new();
        pool.visit_files(&mut |block, descriptor, ino, of| {
            assert!(std::ptr::eq(descriptor, pool.descriptor(block)));
            seen.push((block, file(ino.0, of.0), MASK_FULL));
        });
        seen
    };
    assert_eq!(visited(&pool), [], "no block is known yet");
    while pool.scan_step().unwrap() {}
    assert_eq!(visited(&pool), owned);
    // Freed, and not used again yet.
    let mut tx = Tx::new();
    pool.release(&mut tx, owned[2].0);
    assert_eq!(visited(&pool).len(), owned.len() - 1);
}

#[test]
fn lines_of_new_blocks_equal_the_logged_lines() {
    let pool = scanned(&formatted(SMALL));
    let first = pool.claim(3, Purpose::User).unwrap().take(Target::Page).unwrap();
    let owners = [
        (file(4, 10), LineMask::FULL),
        (file(4, 11), LineMask(0xff00)),
        (Owner::Page { kind: PageKind::MapNode, datum: 4 }, LineMask::FULL),
    ];
    let entries = owners.map(|(owner, lines)| Entry::new(owner, lines));
    commit(&pool, |tx| pool.set_entries(tx, first, &entries));
    for (index, (owner, lines)) in owners.iter().enumerate() {
        assert_eq!(entry(&pool, PmBlock(first.0 + index as u64)), (*owner, lines.0));
    }
    let partial = PmBlock(first.0 + 1);
    for _ in 0..2 {
        assert_eq!(pool.lines(first, Ino(4), FileBlock(10)).unwrap(), LineMask::FULL);
        assert_eq!(pool.lines(partial, Ino(4), FileBlock(11)).unwrap(), LineMask(0xff00));
    }
    commit(&pool, |tx| pool.set_lines(tx, partial, LineMask(0xff01)));
    assert_eq!(pool.lines(partial, Ino(4), FileBlock(11)).unwrap(), LineMask(0xff01));
    commit(&pool, |tx| pool.set_lines(tx, partial, LineMask::EMPTY));
    assert!(pool.lines(partial, Ino(4), FileBlock(11)).is_err(), "an owned block has lines");
}

#[test]
fn lines_after_a_mount_equal_the_table_before_and_after_the_scan() {
    for scan in [false, true] {
        let pm = formatted(SMALL);
        let pool = mounted(&pm);
        let (full, partial) = (nth(&pool, 30), nth(&pool, 31));
        table(&pm, &[(full, file(6, 1), MASK_FULL), (partial, file(6, 2), 7)]);
        if scan {
            while pool.scan_step().unwrap() {}
        }
        for _ in 0..2 {
            assert_eq!(pool.lines(full, Ino(6), FileBlock(1)).unwrap(), LineMask::FULL);
            assert_eq!(pool.lines(partial, Ino(6), FileBlock(2)).unwrap(), LineMask(7));
        }
        // Almost freed.
        let mut tx = Tx::new();
        pool.release(&mut tx, partial);
        pool.keep(partial);
        assert_eq!(pool.lines(partial, Ino(6), FileBlock(2)).unwrap(), LineMask(7));
        while pool.scan_step().unwrap() {}
        assert_eq!(pool.usage().unknown, 0);
        assert_eq!(pool.usage().free, pool.usage().total - 2);
    }
}

/// Every read and write of a file asks for the lines: the table, in slow memory, is looked at once for a whole block.
#[test]
fn the_table_is_looked_at_once_for_a_whole_block() {
    let pm = formatted(SMALL);
    let pool = mounted(&pm);
    let block = nth(&pool, 30);
    table(&pm, &[(block, file(6, 1), MASK_FULL)]);
    while pool.scan_step().unwrap() {}
    assert_eq!(pool.lines(block, Ino(6), FileBlock(1)).unwrap(), LineMask::FULL);
    let at = pool.wal().geometry().table_entry(block).0;
    pm.poison(at..at + 16);
    assert_eq!(pool.lines(block, Ino(6), FileBlock(1)).unwrap(), LineMask::FULL);
    assert!(pool.owner(block).is_err(), "the entry cannot be read");
}

#[test]
fn a_block_disputed_by_map_and_table_is_never_handed_out() {
    for scan in [false, true] {
        let pm = formatted(SMALL);
        let pool = mounted(&pm);
        let (free, used, freed) = (nth(&pool, 0), nth(&pool, 1), nth(&pool, 2));
        table(&pm, &[(used, file(6, 1), MASK_FULL), (freed, file(6, 2), MASK_FULL)]);
        if scan {
            while pool.scan_step().unwrap() {}
        }
        let lsn = commit(&pool, |tx| pool.release(tx, freed));
        pool.freed(lsn, &[freed]);
        let state = pool.descriptor(used).state();
        let disputed = [(free, 6, 0), (used, 6, 2), (used, 7, 1), (freed, 6, 2)];
        for _ in 0..2 {
            let free_before = if scan { pool.usage().total - 3 } else { 0 };
            for (block, ino, of) in disputed {
                assert!(pool.lines(block, Ino(ino), FileBlock(of)).is_err(), "{block}");
                assert_eq!(pool.usage().free, free_before, "the first of them is free no more, at once");
            }
        }
        assert_eq!(pool.descriptor(free).state(), State::Used);
        assert_eq!(pool.descriptor(freed).state(), State::Quarantined);
        assert!(!scan || state == State::Used);
        while pool.scan_step().unwrap() {}
        let usage = pool.usage();
        assert_eq!((usage.free, usage.quarantined, usage.unknown), (usage.total - 3, 1, 0));
        assert_eq!(pool.free_hint(), usage.free);
        let all = taken(pool.claim(usage.free as usize, Purpose::Reclaim).unwrap());
        assert!(all.iter().all(|block| ![free, used, freed].contains(block)));
    }
}

#[test]
fn blocks_with_unreadable_entries_count_as_used() {
    let pm = formatted(SMALL);
    let pool = mounted(&pm);
    table(&pm, &[(nth(&pool, 30), file(6, 1), MASK_FULL)]);
    let at = pool.wal().geometry().table_entry(nth(&pool, 40)).0 / 64 * 64;
    pm.poison(at..at + 64);
    assert!(pool.scan_step().unwrap());
    assert!(matches!(pool.unreadable(), Some(Error::Media(_))), "{:?}", pool.unreadable());
    let usage = pool.usage();
    assert_eq!((usage.free, usage.unknown), (usage.total - 5, 0));
    for index in 0..usage.total {
        let entry = pool.wal().geometry().table_entry(nth(&pool, index)).0;
        let used = index == 30 || (at..at + 64).contains(&entry);
        let expected = if used { State::Used } else { State::Free };
        assert_eq!(pool.descriptor(nth(&pool, index)).state(), expected, "block {index}");
    }
}

/// Entries that can be read and do not match their page's checksum are believed no more than those that cannot.
#[test]
fn blocks_of_a_damaged_page_of_the_table_count_as_used() {
    let pm = formatted(LARGE);
    scanned(&pm).wal().close().unwrap();
    let geometry = Geometry::choose(LARGE, 16).unwrap();
    let damaged = geometry.table_entry(PmBlock(5000)).block();
    let place = geometry.table_entry(PmBlock(5000));
    pm.write(place, &(file(9, 9).encode() ^ 1).to_le_bytes()).unwrap();
    let pool = scanned(&pm);
    assert!(matches!(pool.unreadable(), Some(Error::Corrupt(_))), "{:?}", pool.unreadable());
    for block in (pool.first_block().0..pool.end_block().0).map(PmBlock) {
        let expected = if geometry.table_entry(block).block() == damaged { State::Used } else { State::Free };
        assert_eq!(pool.descriptor(block).state(), expected, "{block}");
    }
    let mut seen = 0;
    pool.visit_files(&mut |_, _, _, _| seen += 1);
    assert_eq!(seen, 0, "files that only the damaged page names");
}
