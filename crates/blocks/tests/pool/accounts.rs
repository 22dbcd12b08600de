//! The pool's accounts: every kind of block whose state the table does not explain is listed, and no other.

use super::{SMALL, commit, file, formatted, mounted, nth, scanned, table};
use terrace_blocks::{BlockAccounts, Purpose, Target};
use terrace_format::table::{MASK_FULL, Owner, PageKind};
use terrace_wal::Tx;

#[test]
fn accounts_of_a_pool_at_rest_are_empty() {
    let pm = formatted(SMALL);
    let pool = mounted(&pm);
    table(&pm, &[(nth(&pool, 3), file(6, 1), MASK_FULL)]);
    assert_eq!(pool.accounts().unwrap(), BlockAccounts::default(), "before the scan");
    while pool.scan_step().unwrap() {}
    assert_eq!(pool.accounts().unwrap(), BlockAccounts::default(), "after the scan");
    let block = pool.claim(1, Purpose::User).unwrap().take(Target::Page).unwrap();
    commit(&pool, |tx| pool.set_owner(tx, block, file(7, 1)));
    let lsn = commit(&pool, |tx| pool.release(tx, nth(&pool, 3)));
    pool.freed(lsn, &[nth(&pool, 3)]);
    assert_eq!(pool.accounts().unwrap(), BlockAccounts::default(), "with a block in quarantine");
}

#[test]
fn accounts_list_claims_without_an_owner() {
    let pool = scanned(&formatted(SMALL));
    let mut claim = pool.claim(2, Purpose::User).unwrap();
    let blocks = vec![claim.take(Target::Page).unwrap(), claim.take(Target::Page).unwrap()];
    let accounts = pool.accounts().unwrap();
    assert_eq!(accounts, BlockAccounts { claimed: blocks.clone(), ..BlockAccounts::default() });
    commit(&pool, |tx| pool.set_owner(tx, blocks[0], Owner::Page { kind: PageKind::MapNode, datum: 1 }));
    assert_eq!(pool.accounts().unwrap().claimed, blocks[1..]);
}

#[test]
fn accounts_list_owned_blocks_in_a_free_or_quarantined_state() {
    let pm = formatted(SMALL);
    let pool = scanned(&pm);
    // Free blocks get an owner that nobody claimed them for.
    let blocks = vec![nth(&pool, 8), nth(&pool, 9)];
    table(&pm, &[(blocks[0], file(6, 1), MASK_FULL), (blocks[1], file(6, 2), MASK_FULL)]);
    assert_eq!(pool.accounts().unwrap(), BlockAccounts { given: blocks.clone(), ..BlockAccounts::default() });
    pool.quarantine(blocks[1]);
    assert_eq!(pool.accounts().unwrap().given, blocks, "quarantined without a record that frees it");
}

#[test]
fn accounts_list_freed_blocks_without_a_freeing_record() {
    let pool = scanned(&formatted(SMALL));
    let block = pool.claim(1, Purpose::User).unwrap().take(Target::Page).unwrap();
    let mut tx = Tx::new();
    pool.release(&mut tx, block);
    let accounts = pool.accounts().unwrap();
    assert_eq!(accounts, BlockAccounts { lost: vec![block], ..BlockAccounts::default() });
    let lsn = commit(&pool, |tx| pool.set_owner(tx, block, Owner::Free));
    pool.freed(lsn, &[block]);
    assert_eq!(pool.accounts().unwrap(), BlockAccounts::default());
}

#[test]
fn accounts_list_pins_and_how_many() {
    let pool = scanned(&formatted(SMALL));
    for (index, pins) in [(4, 1), (5, 3)] {
        (0..pins).for_each(|_| pool.descriptor(nth(&pool, index)).pin());
    }
    let pinned = vec![(nth(&pool, 4), 1), (nth(&pool, 5), 3)];
    assert_eq!(pool.accounts().unwrap(), BlockAccounts { pinned, ..BlockAccounts::default() });
}

#[test]
fn accounts_list_a_wrong_count_of_free_blocks() {
    let pool = scanned(&formatted(SMALL));
    // A free block is marked used without leaving the set of free ones.
    pool.quarantine(nth(&pool, 11));
    pool.keep(nth(&pool, 11));
    let accounts = pool.accounts().unwrap();
    assert_eq!(accounts.miscounted, Some(pool.free_hint()));
    assert_eq!(accounts.claimed, [nth(&pool, 11)]);
}
