//! Homes of file blocks, in a pool whose file map is the block table ([HashFS] section 3.2): the slot in which a search
//! for a block begins.
//!
//! The hash has the superblock's key, so that nobody can choose files whose blocks share a home (docs/format.md "HashFS").

use crate::address::{FileBlock, Ino, PmBlock};
use terrace_simd::hash::{HashKey, hash, hash_run};

/// Homes over the blocks of a pool.
#[derive(Debug, Clone)]
pub struct Homes {
    key: HashKey,
    first: u64,
    slots: u64,
}

impl Homes {
    /// Homes in `first..end`.
    pub fn new(key: [u8; 16], first: PmBlock, end: PmBlock) -> Homes {
        let slots = end.0 - first.0;
        assert!(slots > 0 && slots >> 32 == 0, "homes in {slots} blocks");
        Homes { key: HashKey::new(key), first: first.0, slots }
    }

    /// The home of a block.
    #[inline]
    pub fn home(&self, ino: Ino, block: FileBlock) -> PmBlock {
        self.of_hash(hash(&self.key, ino.0 as u32, block.0 as u32))
    }

    /// The homes of consecutive blocks from `first` on.
    pub fn homes(&self, ino: Ino, first: FileBlock, out: &mut [u64]) {
        hash_run(&self.key, ino.0 as u32, first.0 as u32, out);
        out.iter_mut().for_each(|hash| *hash = self.of_hash(*hash).0);
    }

    #[inline]
    fn of_hash(&self, hash: u64) -> PmBlock {
        PmBlock(self.first + (((hash >> 32) * self.slots) >> 32))
    }

    /// Slots from a home to a slot; the search goes on at the first block behind the last.
    #[inline]
    pub fn distance(&self, home: PmBlock, slot: PmBlock) -> u64 {
        if slot >= home { slot.0 - home.0 } else { slot.0 + self.slots - home.0 }
    }

    /// The slot at a distance below the number of slots.
    #[inline]
    pub fn slot(&self, home: PmBlock, distance: u64) -> PmBlock {
        let slot = home.0 + distance;
        PmBlock(if slot < self.first + self.slots { slot } else { slot - self.slots })
    }

    /// Slots of the pool.
    pub fn slots(&self) -> u64 {
        self.slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_the_homes_of_its_blocks_spread_over_the_pool() {
        let homes = Homes::new([3; 16], PmBlock(19), PmBlock(519));
        let mut run = [0; 1000];
        homes.homes(Ino(7), FileBlock(5), &mut run);
        let mut taken = [0; 500];
        for (block, home) in (5..).zip(run) {
            assert_eq!(PmBlock(home), homes.home(Ino(7), FileBlock(block)));
            taken.iter_mut().skip(home as usize - 19).take(1).for_each(|count| *count += 1);
        }
        assert!(taken.iter().filter(|count| **count == 0).count() < 120, "{taken:?}");
        assert!(taken.iter().all(|count| *count < 12), "{taken:?}");
        let home = PmBlock(510);
        assert_eq!((homes.distance(home, PmBlock(512)), homes.distance(home, PmBlock(20))), (2, 10));
        assert_eq!((homes.slot(home, 2), homes.slot(home, 10)), (PmBlock(512), PmBlock(20)));
    }
}
