//! Cuckoo map: loads of a range that are announced to the medium before the first load, so that loads run side by side.
//!
//! Most groups of 16 blocks are a run, which a single entry tells. So the first block of each group is announced, 16 groups
//! together; in a group whose blocks lie in several runs, from the third run on all that are left.

use super::group::Group;
use super::table::{CuckooMap, Key};
use terrace_format::cuckoo_map::RUN_BLOCKS;
use terrace_format::{FileBlock, Ino};

/// Groups whose first blocks are announced together.
const GROUPS_TOGETHER: usize = 16;

/// The loads of a look-up of a range.
pub(super) struct Announced<'m> {
    map: &'m CuckooMap,
    ino: Ino,
    /// The block behind the range.
    end: u64,
    /// The first block whose group is not announced.
    next: u64,
    /// The group of the last search, by its first block, and the number of searches in it.
    group: (u64, u32),
}

impl<'m> Announced<'m> {
    /// Nothing is announced of a range of a block: its second bucket is mostly not read.
    pub fn new(map: &'m CuckooMap, ino: Ino, first: u64, end: u64) -> Announced<'m> {
        let next = if end - first > 1 { first } else { end };
        Announced { map, ino, end, next, group: (u64::MAX, 0) }
    }

    /// A search for a block follows. The blocks of a range come in ascending order.
    pub fn before(&mut self, group: &Group, block: u64) {
        let begin = block - block % RUN_BLOCKS;
        if self.group.0 != begin {
            self.group = (begin, 0);
        }
        self.group.1 += 1;
        match self.group.1 {
            1 if block >= self.next => self.announce_groups(group, block),
            2 => self.announce(&group.key(self.ino, block)),
            3 => {
                let end = self.end.min(begin + RUN_BLOCKS);
                (block..end).for_each(|block| self.announce(&group.key(self.ino, block)));
            }
            _ => {}
        }
    }

    fn announce_groups(&mut self, group: &Group, block: u64) {
        self.announce(&group.key(self.ino, block));
        self.next = block - block % RUN_BLOCKS + RUN_BLOCKS;
        for _ in 1..GROUPS_TOGETHER {
            if self.next >= self.end {
                return;
            }
            self.announce(&self.map.key(self.ino, FileBlock(self.next)));
            self.next += RUN_BLOCKS;
        }
    }

    fn announce(&self, key: &Key) {
        key.pair.iter().for_each(|line| self.map.pages.pm.expect_load(self.map.buckets.line(*line)));
    }
}

impl CuckooMap {
    /// Announces the first buckets of 16 aligned blocks, where look-ups of single blocks come in order: most blocks are there.
    #[cold]
    pub(super) fn announce_first_buckets(&self, ino: Ino, first: FileBlock) {
        let group = Group::of(self, ino, first.0);
        for block in first.0..first.0 + RUN_BLOCKS {
            let [bucket, _] = group.key(ino, block).pair;
            self.pages.pm.expect_load(self.buckets.line(bucket));
        }
    }
}
