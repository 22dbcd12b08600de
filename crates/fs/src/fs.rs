//! The mounted file system and its parts.

use crate::device::Devices;
use crate::files::Files;
use crate::io_count::IoCount;
use crate::locks::InodeLocks;
use crate::memory::MemorySource;
use crate::migration::Migration;
use crate::migration::by_hand::ByHand;
use crate::migration::promote::Promotions;
use crate::migration::to_dram::Kept;
use crate::mount::InPlace;
use crate::numbers::InodeNumbers;
use crate::pages::MetadataPages;
use crate::pin::Pins;
use crate::pressure::Pressure;
use crate::read_ahead::ReadAhead;
use crate::reclaim_queue::ReclaimQueue;
use crate::references::References;
use crate::relatives::Relatives;
use crate::slot::InodePages;
use crate::tally::Tally;
use crate::temperature::Flows;
use crate::types::Atime;
use crate::unwritten::Unwritten;
use crate::write_back_step::WriteBack;
use crate::write_entries::WriteEntries;
use crate::xattr::NameBytes;
use std::sync::{Arc, OnceLock};
use terrace_blocks::BlockPool;
use terrace_cache::BlockCache;
use terrace_catalog::Catalog;
use terrace_catalog::dentry::NameHash;
use terrace_format::seal::SealKey;
use terrace_format::superblock::Superblock;
use terrace_format::{FileBlock, Ino};
use terrace_map::{FileMap, InodeFileMap};
use terrace_media::PmMedium;
use terrace_placement::{Home, Parameters, Policy};
use terrace_runtime::Clock;
use terrace_runtime::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use terrace_runtime::sync::{Mutex, zeroed_words};
use terrace_runtime::thread::Panics;
use terrace_wal::{RecoveryReport, Wal};

/// Has the kernel drop the pages of an inode; true when it did.
pub(crate) type DropPages = Box<dyn Fn(Ino) -> bool + Send + Sync>;

/// A mounted pool.
pub struct Fs {
    pub(crate) pm: Arc<dyn PmMedium>,
    pub(crate) wal: Arc<Wal>,
    pub(crate) blocks: Arc<BlockPool>,
    pub(crate) map: Box<dyn FileMap>,
    pub(crate) inode_map: InodeFileMap,
    pub(crate) inode_pages: InodePages,
    pub(crate) metadata: Arc<MetadataPages>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) names: NameHash,
    /// What is written below is sealed with.
    pub(crate) seal_key: SealKey,
    pub(crate) name_bytes: NameBytes,
    pub(crate) devices: Devices,
    pub(crate) io: IoCount,
    pub(crate) cache: BlockCache,
    /// What the cache has a share of, if it has one, and what it has at least.
    pub(crate) memory: Option<Arc<dyn MemorySource>>,
    pub(crate) least_cache_bytes: u64,
    pub(crate) unwritten: Unwritten,
    pub(crate) write_back: WriteBack,
    pub(crate) cold_versions: ColdVersions,
    pub(crate) locks: InodeLocks,
    pub(crate) rename_lock: Mutex<()>,
    pub(crate) orphan_locks: Vec<Mutex<()>>,
    pub(crate) numbers: Mutex<InodeNumbers>,
    pub(crate) references: References,
    /// Of background steps.
    pub(crate) panics: Arc<Panics>,
    /// [`Fs::set_drop_pages`].
    pub(crate) drop_pages: OnceLock<DropPages>,
    pub(crate) reclaim: ReclaimQueue,
    pub(crate) migration: Migration,
    pub(crate) by_hand: ByHand,
    pub(crate) pressure: Pressure,
    pub(crate) promotions: Promotions,
    pub(crate) kept_copies: Kept,
    pub(crate) pins: Pins,
    pub(crate) policy: Box<dyn Policy>,
    /// The predictors' parameters and what they remember; nothing is noted unless the policy steers writes.
    pub(crate) parameters: Parameters,
    /// The policy `anticache` demotes above this PM use.
    pub(crate) threshold_percent: u8,
    /// Lifetime of a prefetched page.
    pub(crate) prefetch_ms: u64,
    pub(crate) steers: AtomicBool,
    /// Whether blocks get the times of their uses; only a bench switches it off.
    pub(crate) stamps: AtomicBool,
    pub(crate) files: Files,
    pub(crate) entries: WriteEntries,
    pub(crate) flows: Flows,
    pub(crate) tally: Tally,
    pub(crate) relatives: Relatives,
    /// Forced by the mount.
    pub(crate) home: Option<Home>,
    pub(crate) clock: Arc<dyn Clock>,
    /// When it was mounted, by the monotonic clock.
    pub(crate) mounted_ns: u64,
    /// Coarse time for the use of PM blocks: one tick each 10 ms since the mount.
    pub(crate) tick: AtomicU32,
    pub(crate) superblock: Superblock,
    pub(crate) read_only: bool,
    pub(crate) data_ordered: bool,
    /// The pool's blocks may hold some lines only of a cold block.
    pub(crate) has_partial: bool,
    /// Whether data in PM has checksums.
    pub(crate) has_checksums: bool,
    /// How often data in PM did not match its checksum.
    pub(crate) damaged_data: AtomicU64,
    /// A small write to a cold block reads it first.
    pub(crate) read_first: bool,
    pub(crate) atime: Atime,
    pub(crate) read_ahead: ReadAhead,
    pub(crate) group_blocks: u64,
    pub(crate) in_place: InPlace,
    pub(crate) recovery: RecoveryReport,
    pub(crate) recovery_ns: u64,
}

/// Versions of cold blocks and holes, one for each, in a hashed table (design S6). Sharing a word by two blocks costs a
/// needless second look, or a copy in DRAM, nothing else. One version for 2 MiB of a file let each block that left PM take
/// all copies of its neighbours with it: a mail that was appended to had to be read from below again.
pub(crate) struct ColdVersions {
    /// A power of two of them.
    words: Vec<AtomicU64>,
}

/// Blocks of a file whose words lie side by side, as a power of two.
const SIDE_BY_SIDE: u32 = 4;
/// Words for each block that the cache can hold, and how many at least and at most: 128 KiB and 32 MiB.
const OF_CACHED: u64 = 8;
const LEAST_WORDS: u64 = 1 << 14;
const MOST_WORDS: u64 = 1 << 22;
/// No file has this block: the count of what changes a whole inode.
const WHOLE_INODE: u64 = u64::MAX;
/// Blocks that are counted one by one.
const MOST_BLOCKS: u64 = 1 << 12;

impl ColdVersions {
    /// For a cache of so many blocks.
    pub fn new(cached_blocks: u64) -> ColdVersions {
        let words =
            cached_blocks.saturating_mul(OF_CACHED).clamp(LEAST_WORDS, MOST_WORDS).next_power_of_two();
        // Those of blocks that do not change take no memory.
        ColdVersions { words: zeroed_words(words as usize) }
    }

    fn word(&self, ino: Ino, block: u64) -> &AtomicU64 {
        let mix = (ino.0 << 23 ^ block >> SIDE_BY_SIDE).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let index = (mix >> 32) << SIDE_BY_SIDE | block & ((1 << SIDE_BY_SIDE) - 1);
        &self.words[index as usize & (self.words.len() - 1)]
    }

    /// The block's version: the sum of its own count and that of the whole inode, both of which only rise.
    pub fn get(&self, ino: Ino, block: FileBlock) -> u64 {
        let order = terrace_runtime::sync::atomic::Ordering::Acquire;
        let own = self.word(ino, block.0).load(order);
        own.wrapping_add(self.word(ino, WHOLE_INODE).load(order))
    }

    /// Those of all blocks of a range.
    pub fn of_range(&self, ino: Ino, range: crate::types::BlockRange) -> Vec<u64> {
        (range.first.0..range.end.0).map(|block| self.get(ino, FileBlock(block))).collect()
    }

    /// Bumps the versions of all blocks of a range. Call under the exclusive inode lock, before the
    /// change can be seen. A long range, such as all that a removed file could have, costs one count: to visit each
    /// word for it would also tell all other files' cached blocks that they changed.
    pub fn bump(&self, ino: Ino, range: crate::types::BlockRange) {
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
    use crate::truncate::WHOLE_FILE;
    use crate::types::BlockRange;

    /// The whole file's bump went through all words once: each removed file made every cached block stale.
    #[test]
    fn a_removed_file_leaves_the_versions_of_others() {
        let versions = ColdVersions::new(0);
        let blocks = [0, 1, 511, 512, 100_000, 0xffff_fffe].map(FileBlock);
        let all = |ino: u64| blocks.map(|block| versions.get(Ino(ino), block));
        let (own, others) = (all(7), (8..500).map(all).collect::<Vec<_>>());
        versions.bump(Ino(7), WHOLE_FILE);
        assert!(all(7).iter().zip(&own).all(|(new, old)| new > old));
        let changed = (8..500).zip(&others).filter(|(ino, before)| all(*ino) != **before).count();
        assert!(changed < 10, "{changed} of 492");
    }

    /// What changes a block leaves the copies of its neighbours.
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
