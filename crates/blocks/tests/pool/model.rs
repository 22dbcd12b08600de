//! Random claims, frees and pins against a model in sets, and the table after them.

use super::{PURPOSES, SMALL, commit, entry, file, formatted, is_full, kept, scanned};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use terrace_blocks::{BlockPool, State, Target};
use terrace_format::table::{MASK_FULL, Owner, PageKind};
use terrace_format::{Lsn, PmBlock};
use terrace_wal::Tx;

/// The state that the design expects of the pool, in sets.
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

    /// Notes the version of a block, and asserts that no block had this version before.
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
    let blocks: Vec<PmBlock> = (0..take).map(|_| claim.take(Target::Page).unwrap()).collect();
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
fn the_pool_agrees_with_a_model_of_block_sets() {
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
