//! The pool of PM blocks against a naive model: claims and their shares of the reserve, frees and the quarantine, pins, owners,
//! the scan after a mount, and blocks that the table and a map do not agree on.
#![allow(clippy::unwrap_used)]

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use terrace_blocks::{BlockPool, Claim, Purpose, State};
use terrace_format::table::{Entry, MASK_FULL, Owner, PageKind};
use terrace_format::{FileBlock, Geometry, Ino, LineMask, Lsn, PmBlock};
use terrace_media::PmMedium;
use terrace_media::pm::RecordedPm;
use terrace_wal::{Error, NoSpace, Tx, Wal};

const UUID: [u8; 16] = [5; 16];
const SMALL: u64 = 2 << 20;
/// More blocks than one step of the scan takes.
const LARGE: u64 = 40 << 20;
const PURPOSES: [Purpose; 5] =
    [Purpose::User, Purpose::Overwrite, Purpose::Fetch, Purpose::Demotion, Purpose::Reclaim];

fn formatted(size: u64) -> Arc<RecordedPm> {
    let pm = Arc::new(RecordedPm::new(size));
    Wal::format(pm.clone() as Arc<dyn PmMedium>, UUID, Geometry::choose(size, 16).unwrap()).unwrap();
    pm
}

/// A pool as it is after a mount.
fn mounted(pm: &Arc<RecordedPm>) -> BlockPool {
    let geometry = Geometry::choose(pm.size(), 16).unwrap();
    BlockPool::new(Arc::new(Wal::open(pm.clone() as Arc<dyn PmMedium>, UUID, geometry).unwrap().0))
}

fn scanned(pm: &Arc<RecordedPm>) -> BlockPool {
    let pool = mounted(pm);
    while pool.scan_step().unwrap() {}
    pool
}

fn commit(pool: &BlockPool, change: impl FnOnce(&mut Tx)) -> Lsn {
    let mut tx = Tx::new();
    change(&mut tx);
    pool.wal().commit(pool.wal().reserve(tx.record_size()).unwrap(), &tx).unwrap()
}

fn file(ino: u64, block: u64) -> Owner {
    Owner::File { ino: Ino(ino), block: FileBlock(block), unwritten: false }
}

/// Sets the owners of blocks in the table, as a run before the mount has left them.
fn table(pm: &RecordedPm, entries: &[(PmBlock, Owner, u64)]) {
    let geometry = Geometry::choose(pm.size(), 16).unwrap();
    for (block, owner, lines) in entries {
        let at = geometry.table_entry(*block);
        pm.write(at, &owner.encode().to_le_bytes()).unwrap();
        pm.write(at.plus(8), &lines.to_le_bytes()).unwrap();
    }
}

fn entry(pool: &BlockPool, block: PmBlock) -> (Owner, u64) {
    let at = pool.wal().geometry().table_entry(block);
    (pool.owner(block).unwrap(), pool.wal().pm().load_u64(at.plus(8)).unwrap())
}

fn is_full(error: Result<Claim<'_>, Error>) -> bool {
    matches!(error, Err(Error::NoSpace(NoSpace::Pm)))
}

fn taken(mut claim: Claim<'_>) -> Vec<PmBlock> {
    std::iter::from_fn(|| claim.take()).collect()
}

fn nth(pool: &BlockPool, index: u64) -> PmBlock {
    PmBlock(pool.first_block().0 + index)
}

/// What a reader of the design expects of the pool, in sets.
struct Model {
    free: BTreeSet<PmBlock>,
    owned: BTreeMap<PmBlock, (Owner, u64)>,
    quarantine: Vec<(Lsn, PmBlock)>,
    pinned: BTreeSet<PmBlock>,
    freed: u64,
    versions: BTreeSet<u64>,
}

impl Model {
    fn drain(&mut self, passed: Lsn) {
        let reached = self.quarantine.iter().position(|(lsn, _)| *lsn >= passed);
        let queue: Vec<_> = self.quarantine.drain(..reached.unwrap_or(self.quarantine.len())).collect();
        for (lsn, block) in queue {
            if self.pinned.contains(&block) {
                // In line once more.
                self.quarantine.push((lsn, block));
            } else {
                self.freed += 1;
                self.free.insert(block);
            }
        }
    }

    /// Notes that a block has a version that none had before.
    fn new_version(&mut self, pool: &BlockPool, block: PmBlock) {
        assert!(self.versions.insert(pool.descriptor(block).version()), "version of {block}");
    }

    fn compare(&self, pool: &BlockPool) {
        let usage = pool.usage();
        assert_eq!(usage.free, self.free.len() as u64);
        assert_eq!((pool.free_hint(), pool.freed_so_far()), (usage.free, self.freed));
        assert_eq!((usage.quarantined, usage.unknown), (self.quarantine.len() as u64, 0));
        let quarantined: BTreeSet<PmBlock> = self.quarantine.iter().map(|(_, block)| *block).collect();
        for block in (0..pool.end_block().0).map(PmBlock) {
            let expected = match () {
                () if self.free.contains(&block) => State::Free,
                () if quarantined.contains(&block) => State::Quarantined,
                () => State::Used,
            };
            assert_eq!(pool.descriptor(block).state(), expected, "{block}");
        }
    }
}

fn kept(purpose: Purpose, reserve: u64) -> u64 {
    match purpose {
        Purpose::User => reserve,
        Purpose::Fetch => reserve * 3 / 4,
        Purpose::Overwrite => reserve * 5 / 8,
        Purpose::Demotion => reserve / 2,
        Purpose::Reclaim => 0,
    }
}

/// Claims, and gives owners, or gives back.
fn claim(pool: &BlockPool, model: &mut Model, rng: &mut StdRng) {
    let purpose = PURPOSES[rng.random_range(0..PURPOSES.len())];
    let count = if rng.random_bool(0.1) { rng.random_range(0..60) } else { rng.random_range(0..6) };
    let needed = count as u64 + kept(purpose, pool.usage().reserve);
    if count > 0 && (model.free.len() as u64) < needed {
        model.drain(pool.wal().checkpoint_lsn());
    }
    let claim = pool.claim(count, purpose);
    if count > 0 && (model.free.len() as u64) < needed {
        assert!(is_full(claim), "{count} for {purpose:?}");
        return;
    }
    let mut claim = claim.unwrap();
    assert_eq!(claim.left(), count);
    let take = rng.random_range(0..=count);
    let blocks: Vec<PmBlock> = (0..take).map(|_| claim.take().unwrap()).collect();
    assert_eq!(claim.left(), count - take);
    for block in &blocks {
        assert!(model.free.contains(block), "{block} was not free");
        model.new_version(pool, *block);
    }
    model.freed += (count - take) as u64;
    if rng.random_bool(0.2) {
        model.freed += take as u64;
        return claim.give_back_all();
    }
    drop(claim);
    blocks.iter().for_each(|block| assert!(model.free.remove(block)));
    commit(pool, |tx| {
        for block in &blocks {
            let owner = match rng.random_bool(0.8) {
                true => file(rng.random_range(1..100), rng.random_range(0..1 << 20)),
                false => Owner::Page { kind: PageKind::MapNode, datum: 9 },
            };
            pool.set_owner(tx, *block, owner);
            model.owned.insert(*block, (owner, MASK_FULL));
        }
    });
}

/// Frees some blocks, or almost.
fn free(pool: &BlockPool, model: &mut Model, rng: &mut StdRng) {
    let count = rng.random_range(1..20);
    let blocks: Vec<PmBlock> =
        model.owned.keys().copied().filter(|_| rng.random_bool(0.3)).take(count).collect();
    let mut tx = Tx::new();
    for block in &blocks {
        pool.release(&mut tx, *block);
        model.new_version(pool, *block);
        assert_eq!(pool.descriptor(*block).state(), State::Quarantined);
    }
    if rng.random_bool(0.2) {
        return blocks.iter().for_each(|block| pool.keep(*block));
    }
    let lsn = pool.wal().commit(pool.wal().reserve(tx.record_size()).unwrap(), &tx).unwrap();
    pool.freed(lsn, &blocks);
    for block in blocks {
        model.owned.remove(&block);
        model.quarantine.push((lsn, block));
    }
}

fn pin_or_unpin(pool: &BlockPool, model: &mut Model, rng: &mut StdRng) {
    if rng.random_bool(0.5) {
        if let Some(block) = model.owned.keys().find(|_| rng.random_bool(0.1)).copied()
            && model.pinned.insert(block)
        {
            pool.descriptor(block).pin();
        }
    } else if let Some(block) = model.pinned.pop_first() {
        pool.descriptor(block).unpin();
    }
}

#[test]
fn the_pool_does_as_sets_of_blocks_do() {
    let pm = formatted(SMALL);
    let pool = scanned(&pm);
    let all = pool.first_block().0..pool.end_block().0;
    assert_eq!(pool.usage().total, all.end - all.start);
    let mut model = Model {
        freed: all.end - all.start,
        free: all.map(PmBlock).collect(),
        owned: BTreeMap::new(),
        quarantine: Vec::new(),
        pinned: BTreeSet::new(),
        versions: BTreeSet::from([0]),
    };
    let mut rng = StdRng::seed_from_u64(19);
    for _ in 0..1500 {
        match rng.random_range(0..10) {
            0..=4 => claim(&pool, &mut model, &mut rng),
            5..=6 => free(&pool, &mut model, &mut rng),
            7 => pin_or_unpin(&pool, &mut model, &mut rng),
            8 => pool.wal().checkpoint().unwrap(),
            _ => {
                pool.drain_quarantine();
                model.drain(pool.wal().checkpoint_lsn());
            }
        }
        model.compare(&pool);
    }
    for block in (pool.first_block().0..pool.end_block().0).map(PmBlock) {
        assert_eq!(entry(&pool, block), model.owned.get(&block).copied().unwrap_or((Owner::Free, 0)));
    }
    // A mount finds the same in the table.
    drop(pool);
    let pool = scanned(&pm);
    for block in (pool.first_block().0..pool.end_block().0).map(PmBlock) {
        let expected = if model.owned.contains_key(&block) { State::Used } else { State::Free };
        assert_eq!(pool.descriptor(block).state(), expected);
    }
}

#[test]
fn shares_of_the_reserve_end_exactly_where_they_should() {
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
fn a_probe_tells_whether_a_user_gets_a_block() {
    let pm = formatted(SMALL);
    let pool = scanned(&pm);
    let reserve = pool.usage().reserve;
    let mut claim = pool.claim((pool.free_hint() - reserve - 1) as usize, Purpose::User).unwrap();
    while claim.take().is_some() {}
    assert!(pool.probe().is_ok(), "one block is left above the reserve");
    assert_eq!(pool.claim(1, Purpose::User).unwrap().take().map(|block| block.0 > 0), Some(true));
    let last = pool.free_hint() as usize - 1;
    assert!(matches!(pool.probe(), Err(Error::NoSpace(NoSpace::Pm))), "none is left");
    let mut rest = pool.claim(last, Purpose::Reclaim).unwrap();
    while rest.take().is_some() {}
    assert!(pool.probe().is_err(), "nor within the reserve");
}

#[test]
fn a_claim_of_several_blocks_takes_a_run_and_leaves_single_ones() {
    let pm = formatted(SMALL);
    let pool = mounted(&pm);
    // Of the first blocks every other is owned.
    let owned: Vec<_> = (0..40).map(|i| (nth(&pool, 2 * i), file(3, i), MASK_FULL)).collect();
    table(&pm, &owned);
    while pool.scan_step().unwrap() {}
    let run = taken(pool.claim(20, Purpose::User).unwrap());
    assert_eq!(run, (79..99).map(|index| nth(&pool, index)).collect::<Vec<_>>());
    assert_eq!(taken(pool.claim(1, Purpose::User).unwrap()), [nth(&pool, 1)]);
}

#[test]
fn a_claim_scans_no_more_than_it_needs_and_a_mount_knows_nothing_before() {
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
    // The block that takes another's place has a new version, which serves both.
    let new = taken(pool.claim(1, Purpose::User).unwrap())[0];
    pool.quarantine_for(nth(&pool, 7), new);
    assert_eq!(pool.descriptor(nth(&pool, 7)).version(), pool.descriptor(new).version());
    assert!(seen.insert(pool.descriptor(new).version()));
}

#[test]
fn lines_of_new_blocks_are_those_logged() {
    let pool = scanned(&formatted(SMALL));
    let first = pool.claim(3, Purpose::User).unwrap().take().unwrap();
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
fn lines_after_a_mount_are_those_of_the_table_whether_scanned_or_not() {
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
fn a_block_that_a_map_and_the_table_dispute_is_handed_out_to_nobody() {
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
        for (block, ino, of) in disputed.into_iter().chain(disputed) {
            assert!(pool.lines(block, Ino(ino), FileBlock(of)).is_err(), "{block}");
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
fn blocks_whose_entries_cannot_be_read_count_as_used() {
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
