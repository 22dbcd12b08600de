//! Blocks chosen by their homes, where the block table is the file map.

use super::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;
use terrace_format::map_kind::MapKind;

const TABLE_MAPS: [MapKind; 2] = [MapKind::HashfsLinear, MapKind::Hashfs];

fn with_homes(pm: &Arc<RecordedPm>, map: MapKind) -> BlockPool {
    let geometry = Geometry::choose(pm.size(), 16).unwrap().with_map(map).unwrap();
    let wal = Wal::open(pm.clone() as Arc<dyn PmMedium>, UUID, geometry).unwrap().0;
    BlockPool::of_map(Arc::new(wal), UUID)
}

/// A pool in whose table random blocks have owners, and its free blocks.
fn partly_full(map: MapKind, percent: u32, seed: u64) -> (BlockPool, BTreeSet<u64>, SmallRng) {
    let (pm, mut rng) = (formatted(SMALL), SmallRng::seed_from_u64(seed));
    let geometry = Geometry::choose(SMALL, 16).unwrap();
    let blocks = geometry.first_pool_block().0..geometry.block_count();
    let mut owned: Vec<u64> = blocks.clone().filter(|_| rng.random_range(0..100) < percent).collect();
    if percent > 50 {
        // Groups without a free slot.
        owned.retain(|block| !(200..280).contains(block));
        owned.extend(200..280);
    }
    let entries: Vec<_> = owned.iter().map(|block| (PmBlock(*block), file(90, *block), u64::MAX)).collect();
    table(&pm, &entries);
    let free = blocks.filter(|block| !owned.contains(block)).collect();
    (with_homes(&pm, map), free, rng)
}

/// A block that stays used.
fn take(pool: &BlockPool, target: Target) -> PmBlock {
    pool.claim(1, Purpose::Reclaim).unwrap().take(target).unwrap()
}

#[test]
fn promised_blocks_get_the_nearest_free_slots_too() {
    for map in TABLE_MAPS {
        let (pool, free, _) = partly_full(map, 60, 4);
        while pool.scan_step().unwrap() {}
        let most = free.len() - pool.usage().reserve as usize;
        pool.promises().give(most).unwrap();
        assert!(is_full(pool.claim(1, Purpose::User)), "{map:?}");
        let target = Target::File { ino: Ino(3), block: FileBlock(70) };
        let mut claim = pool.promises().claim(1).unwrap();
        assert!(free.contains(&claim.take(target).unwrap().0), "{map:?}");
        drop(claim);
        assert_eq!((pool.promised(), pool.promises().count()), (0, most as u64 - 1));
        pool.promises().take_back(most - 1);
        assert_eq!((pool.promised(), pool.free_hint()), (0, free.len() as u64 - 1), "{map:?}");
    }
}

/// Full pools included: no claim fails while a block is free (I9).
#[test]
fn a_file_block_gets_the_nearest_free_slot_until_no_block_is_free() {
    for (map, is_scanned) in TABLE_MAPS.into_iter().flat_map(|map| [(map, true), (map, false)]) {
        for (percent, seed) in [(0, 1), (60, 2), (95, 3)] {
            let (pool, mut free, mut rng) = partly_full(map, percent, seed);
            while is_scanned && pool.scan_step().unwrap() {}
            let homes = pool.hashed().unwrap().homes.clone();
            while !free.is_empty() {
                let (ino, block) = (Ino(rng.random_range(1..9)), FileBlock(rng.random_range(0..99)));
                let nearest = *free
                    .iter()
                    .min_by_key(|slot| homes.distance(homes.home(ino, block), PmBlock(**slot)))
                    .unwrap();
                if rng.random_range(0..9) == 0 {
                    assert!(free.remove(&take(&pool, Target::Page).0), "{map:?}: a page in a used block");
                    continue;
                }
                let taken = take(&pool, Target::File { ino, block });
                assert_eq!(taken.0, nearest, "{map:?}, {percent} %: block {block} of inode {ino}");
                free.remove(&taken.0);
            }
            assert!(is_full(pool.claim(1, Purpose::Reclaim)), "{map:?}");
            assert_eq!((pool.usage().free, pool.promised()), (0, 0), "{map:?}");
        }
    }
}

#[test]
fn sixteen_blocks_of_a_file_lie_in_a_group() {
    let (pool, _, _) = partly_full(MapKind::Hashfs, 0, 1);
    let mut shifts = BTreeSet::new();
    for ino in 1..9 {
        let blocks =
            (32..48).map(|block| take(&pool, Target::File { ino: Ino(ino), block: FileBlock(block) }));
        let blocks: Vec<u64> = blocks.map(|block| block.0).collect();
        let follows = |pair: &[u64]| pair[1] / 16 == pair[0] / 16 && pair[1] % 16 == (pair[0] + 1) % 16;
        assert!(blocks.windows(2).all(follows), "{blocks:?}");
        shifts.insert(blocks[0] % 16);
    }
    assert!(shifts.len() > 3, "one-block files share a slot of their groups: {shifts:?}");
}

/// Quarantined slots of a block that is overwritten for ever do not pile up: the checkpoint moves for them.
#[test]
fn a_block_overwritten_again_and_again_stays_near_its_home() {
    for map in TABLE_MAPS {
        let (pool, ..) = partly_full(map, 0, 1);
        while pool.scan_step().unwrap() {}
        let homes = &pool.hashed().unwrap().homes;
        let (ino, block) = (Ino(5), FileBlock(7));
        let home = homes.home(ino, block);
        let mut old = take(&pool, Target::File { ino, block });
        commit(&pool, |tx| pool.set_owner(tx, old, file(5, 7)));
        for turn in 0..100 {
            let new = take(&pool, Target::File { ino, block });
            let lsn = commit(&pool, |tx| {
                pool.set_owner(tx, new, file(5, 7));
                pool.release(tx, old);
            });
            pool.freed(lsn, &[old]);
            let distance = homes.distance(home, new);
            assert!(distance <= 40, "{map:?}: overwrite {turn} went {distance} slots from its home");
            old = new;
        }
        assert_eq!(pool.hashed().unwrap().far_searches(), 0);
    }
}
