//! Versions of cold blocks and holes (S6).

use crate::types::BlockRange;
use terrace_format::{FileBlock, Ino};
use terrace_runtime::sync::atomic::AtomicU64;
use terrace_runtime::sync::zeroed_words;

/// Versions of cold blocks and holes, one for each, in a hashed table (design S6). If two blocks share a
/// word, a change of the first costs a second look at the other, or its clean page. With a version for 2 MiB
/// of a file each demoted block made all clean pages of its neighbours stale: after an append a mail was read
/// from its device again.
pub struct ColdVersions {
    /// The words; their number is a power of two.
    words: Vec<AtomicU64>,
}

/// Blocks of a file whose words lie side by side, as a power of two.
const SIDE_BY_SIDE: u32 = 4;

/// Words for each block that the cache can hold, and how many at least and at most: 128 KiB and 32 MiB.
const OF_CACHED: u64 = 8;

const LEAST_WORDS: u64 = 1 << 14;

const MOST_WORDS: u64 = 1 << 22;

const _: () = assert!(
    LEAST_WORDS.is_power_of_two() && MOST_WORDS.is_power_of_two(),
    "no number of words is rounded up past the most"
);

/// No file has this block: the count of what changes a whole inode.
const WHOLE_INODE: u64 = u64::MAX;

/// The longest range in which each block is counted by itself.
const MOST_BLOCKS: u64 = 1 << 12;

impl ColdVersions {
    /// The versions for a cache of `cached_blocks` blocks.
    pub fn new(cached_blocks: u64) -> ColdVersions {
        let words =
            cached_blocks.saturating_mul(OF_CACHED).clamp(LEAST_WORDS, MOST_WORDS).next_power_of_two();
        // Untouched words take no memory: the pages of the table are zero until a version rises.
        ColdVersions { words: zeroed_words(words as usize) }
    }

    #[inline]
    fn word(&self, ino: Ino, block: u64) -> &AtomicU64 {
        let mix = (ino.0 << 23 ^ block >> SIDE_BY_SIDE).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let index = (mix >> 32) << SIDE_BY_SIDE | block & ((1 << SIDE_BY_SIDE) - 1);
        &self.words[index as usize & (self.words.len() - 1)]
    }

    /// The block's version: the sum of its own count and that of the whole inode, both of which only rise.
    #[inline]
    pub fn get(&self, ino: Ino, block: FileBlock) -> u64 {
        let order = terrace_runtime::sync::atomic::Ordering::Acquire;
        let own = self.word(ino, block.0).load(order);
        own.wrapping_add(self.word(ino, WHOLE_INODE).load(order))
    }

    /// The versions of all blocks of a range.
    pub(crate) fn of_range(&self, ino: Ino, range: BlockRange) -> Vec<u64> {
        (range.first.0..range.end.0).map(|block| self.get(ino, FileBlock(block))).collect()
    }

    /// Bumps the versions of all blocks of a range. Call under the exclusive inode lock, before the change
    /// can be seen. A long range, such as the whole of a removed file, raises the count of the whole inode:
    /// visiting a word for each block would make the cached blocks of all other files stale too.
    #[inline]
    pub fn bump(&self, ino: Ino, range: BlockRange) {
        if range.is_empty() {
            return;
        }
        let order = terrace_runtime::sync::atomic::Ordering::AcqRel;
        if range.count() > MOST_BLOCKS {
            self.word(ino, WHOLE_INODE).fetch_add(1, order);
            return;
        }
        for block in range.first.0..range.end.0 {
            self.word(ino, block).fetch_add(1, order);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::BlockRange;
    use crate::types::WHOLE_FILE;

    /// The whole file's bump went through all words once: each removed file made every cached block stale.
    #[test]
    fn a_removed_file_changes_few_versions_of_remaining_files() {
        let versions = ColdVersions::new(0);
        let blocks = [0, 1, 511, 512, 100_000, 0xffff_fffe].map(FileBlock);
        let all = |ino: u64| blocks.map(|block| versions.get(Ino(ino), block));
        let (own, others) = (all(7), (8..500).map(all).collect::<Vec<_>>());
        versions.bump(Ino(7), WHOLE_FILE);
        assert!(all(7).iter().zip(&own).all(|(new, old)| new > old));
        let changed = (8..500).zip(&others).filter(|(ino, before)| all(*ino) != **before).count();
        assert!(changed < 10, "{changed} of 492");
    }

    /// A changed block leaves the cached copies of its neighbours valid.
    #[test]
    fn each_block_has_a_version() {
        let versions = ColdVersions::new(1000);
        let range = BlockRange::new(FileBlock(500), FileBlock(540));
        let before = versions.of_range(Ino(7), range);
        versions.bump(Ino(7), BlockRange::new(FileBlock(510), FileBlock(514)));
        let changed = |(at, (new, old)): (usize, (u64, u64))| (new > old).then_some(500 + at);
        let pairs = versions.of_range(Ino(7), range).into_iter().zip(before).enumerate();
        assert_eq!(pairs.filter_map(changed).collect::<Vec<_>>(), [510, 511, 512, 513]);
    }
}
