//! Cuckoo map: the blocks between two multiples of 16, in which runs lie.

use super::table::{CuckooMap, Key};
use terrace_format::cuckoo_map::RUN_BLOCKS;
use terrace_format::{FileBlock, Ino};

/// Buckets of the blocks between two multiples of 16, computed together.
pub(super) struct Group {
    first: u64,
    pairs: [[u64; 2]; RUN_BLOCKS as usize],
}

impl Group {
    /// The group of a block.
    pub fn of(map: &CuckooMap, ino: Ino, block: u64) -> Group {
        let first = block / RUN_BLOCKS * RUN_BLOCKS;
        let mut pairs = [[0; 2]; RUN_BLOCKS as usize];
        map.buckets.pairs(ino, FileBlock(first), &mut pairs);
        Group { first, pairs }
    }

    pub fn has(&self, block: u64) -> bool {
        block / RUN_BLOCKS * RUN_BLOCKS == self.first
    }

    pub fn key(&self, ino: Ino, block: u64) -> Key {
        let pair = self.pairs.get((block % RUN_BLOCKS) as usize).copied().unwrap_or_default();
        Key { ino, block: FileBlock(block), pair }
    }
}
