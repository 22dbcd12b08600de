//! Claims and their shares of the reserve, versions and block numbers.

use super::{
    LARGE, PURPOSES, SMALL, commit, file, formatted, is_full, kept, mounted, nth, scanned, table, taken,
};
use std::collections::BTreeSet;
use terrace_blocks::{Purpose, State, Target};
use terrace_format::PmBlock;
use terrace_format::table::MASK_FULL;
use terrace_wal::{Error, NoSpace};

#[test]
fn a_claim_takes_exactly_its_share_of_the_reserve() {
    for size in [SMALL, LARGE] {
        let pool = scanned(&formatted(size));
        let reserve = if size == SMALL { 24 } else { pool.usage().total / 64 };
        assert_eq!(pool.usage().reserve, reserve);
        for purpose in PURPOSES {
            let kept = match purpose {
                Purpose::Overwrite => reserve / 8 * 5,
                Purpose::Fetch => reserve / 4 * 3,
                other => kept(other, reserve),
            };
            assert_eq!(pool.share(purpose), reserve - kept, "{purpose:?}");
            let most = (pool.free_hint() - kept) as usize;
            assert_eq!(pool.claim(most, purpose).unwrap().left(), most);
            assert!(is_full(pool.claim(most + 1, purpose)), "{purpose:?}");
        }
    }
}

#[test]
fn no_claim_takes_a_block_promised_to_a_page() {
    let pool = scanned(&formatted(SMALL));
    let (free, reserve) = (pool.free_hint(), pool.usage().reserve);
    let most = (free - reserve) as usize;
    assert!(is_full(pool.promises().give(most + 1).map(|()| pool.claim(0, Purpose::User).unwrap())));
    pool.promises().give(most).unwrap();
    assert_eq!(
        (pool.free_hint(), pool.usage().free, pool.promises().count()),
        (reserve, reserve, free - reserve)
    );
    assert!(is_full(pool.claim(1, Purpose::User)), "all are promised");
    let rest = taken(pool.claim(reserve as usize, Purpose::Reclaim).unwrap());
    assert!(is_full(pool.claim(1, Purpose::Reclaim)), "no purpose takes a promised block");
    // Pages get blocks when no other claim does.
    let pages = taken(pool.promises().claim(most - 2).unwrap());
    assert_eq!(pages.iter().chain(&rest).collect::<BTreeSet<_>>().len() as u64, free - 2);
    // A claim that is dropped makes its blocks free: they are not promised again.
    drop(pool.promises().claim(1).unwrap());
    assert_eq!((pool.free_hint(), pool.promised(), pool.promises().count()), (1, 0, 1));
    pool.promises().take_back(1);
    assert_eq!((pool.free_hint(), pool.promised(), pool.promises().count()), (2, 0, 0));
}

#[test]
#[should_panic(expected = "promised ones are given back (P1)")]
fn a_promise_is_not_given_back_twice() {
    let pool = scanned(&formatted(SMALL));
    pool.promises().give(3).unwrap();
    pool.promises().take_back(3);
    pool.promises().take_back(1);
}

#[test]
fn a_probe_tells_whether_a_user_gets_a_block() {
    let pm = formatted(SMALL);
    let pool = scanned(&pm);
    let reserve = pool.usage().reserve;
    let mut claim = pool.claim((pool.free_hint() - reserve - 1) as usize, Purpose::User).unwrap();
    while claim.take(Target::Page).is_some() {}
    assert!(pool.probe().is_ok(), "one block is left above the reserve");
    assert_eq!(pool.claim(1, Purpose::User).unwrap().take(Target::Page).map(|block| block.0 > 0), Some(true));
    let last = pool.free_hint() as usize - 1;
    assert!(matches!(pool.probe(), Err(Error::NoSpace(NoSpace::Pm))), "none is left");
    let mut rest = pool.claim(last, Purpose::Reclaim).unwrap();
    while rest.take(Target::Page).is_some() {}
    assert!(pool.probe().is_err(), "nor within the reserve");
}

#[test]
fn a_claim_of_several_blocks_takes_a_run_and_leaves_single_ones() {
    let pm = formatted(SMALL);
    let pool = mounted(&pm);
    // Every other block of the first ones is owned.
    let owned: Vec<_> = (0..40).map(|i| (nth(&pool, 2 * i), file(3, i), MASK_FULL)).collect();
    table(&pm, &owned);
    while pool.scan_step().unwrap() {}
    let run = taken(pool.claim(20, Purpose::User).unwrap());
    assert_eq!(run, (79..99).map(|index| nth(&pool, index)).collect::<Vec<_>>());
    assert_eq!(taken(pool.claim(1, Purpose::User).unwrap()), [nth(&pool, 1)]);
}

#[test]
fn a_claim_with_just_enough_free_blocks_leaves_the_quarantine_alone() {
    let pool = scanned(&formatted(SMALL));
    let block = taken(pool.claim(1, Purpose::User).unwrap())[0];
    let lsn = commit(&pool, |tx| pool.release(tx, block));
    pool.freed(lsn, &[block]);
    pool.wal().checkpoint().unwrap();
    let free = pool.usage().free;
    drop(pool.claim(free as usize, Purpose::Reclaim).unwrap());
    assert_eq!((pool.usage().quarantined, pool.usage().free), (1, free));
    drop(pool.claim(free as usize + 1, Purpose::Reclaim).unwrap());
    assert_eq!((pool.usage().quarantined, pool.usage().free), (0, free + 1));
}

#[test]
fn a_mount_leaves_all_blocks_unknown_and_a_claim_scans_only_enough() {
    let pm = formatted(LARGE);
    let pool = mounted(&pm);
    let total = pool.usage().total;
    assert_eq!((pool.usage().unknown, pool.unknown_hint(), pool.free_hint()), (total, total, 0));
    assert_eq!(pool.descriptor(pool.first_block()).state(), State::Unknown);
    assert_eq!(pool.descriptor(PmBlock(pool.first_block().0 - 1)).state(), State::Used, "the pool's own");
    assert_eq!(pool.claim(3, Purpose::User).unwrap().left(), 3);
    let known = total - pool.unknown_hint();
    assert!(known > 0 && known < total, "{known} of {total} are known");
    assert_eq!(pool.free_hint(), known);
    assert!(pool.scan_step().unwrap());
    assert!(!pool.scan_step().unwrap(), "all is scanned");
    assert_eq!((pool.unknown_hint(), pool.free_hint(), pool.freed_so_far()), (0, total, total + 3));
    assert!(pool.unreadable().is_none());
}

#[test]
fn block_numbers_outside_the_pool_are_refused() {
    let pool = mounted(&formatted(SMALL));
    let (first, end) = (pool.first_block(), pool.end_block());
    assert_eq!((first, end.0), (pool.wal().geometry().first_pool_block(), SMALL >> 12));
    for block in [first, nth(&pool, 1), PmBlock(end.0 - 1)] {
        assert_eq!(pool.verify(block, "test").unwrap(), block);
    }
    for block in [0, 1, first.0 - 1, end.0, end.0 + 1, u64::MAX] {
        assert!(pool.verify(PmBlock(block), "test").is_err(), "{block}");
    }
    for outside in [end.0, u64::MAX] {
        let descriptor = pool.descriptor(PmBlock(outside));
        assert!(std::ptr::eq(descriptor, pool.descriptor(PmBlock(0))));
        assert_eq!(descriptor.state(), State::Used);
    }
}

#[test]
fn every_bump_gives_a_version_never_seen() {
    let pool = scanned(&formatted(SMALL));
    let mut seen = BTreeSet::from([0]);
    for index in 0..20 {
        let block = nth(&pool, index % 3);
        pool.bump(block);
        assert!(seen.insert(pool.descriptor(block).version()));
        assert!(seen.insert(pool.new_version()));
    }
    // A block that replaces an old block has a new version, and the old block gets the same version.
    let new = taken(pool.claim(1, Purpose::User).unwrap())[0];
    pool.quarantine_for(nth(&pool, 7), new);
    assert_eq!(pool.descriptor(nth(&pool, 7)).version(), pool.descriptor(new).version());
    assert!(seen.insert(pool.descriptor(new).version()));
}
