//! The mounted file system and its parts.

use crate::device::Devices;
use crate::files::Files;
use crate::io_count::IoCount;
use crate::locks::InodeLocks;
use crate::migration::Migration;
use crate::mount::InPlace;
use crate::numbers::InodeNumbers;
use crate::pages::MetadataPages;
use crate::pin::Pins;
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
use std::sync::Arc;
use terrace_blocks::BlockPool;
use terrace_cache::BlockCache;
use terrace_catalog::Catalog;
use terrace_catalog::dentry::NameHash;
use terrace_format::superblock::Superblock;
use terrace_format::{FileBlock, Ino};
use terrace_map::{FileMap, InodeFileMap};
use terrace_media::PmMedium;
use terrace_placement::{Home, Parameters, Policy};
use terrace_runtime::Clock;
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use terrace_wal::{RecoveryReport, Wal};

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
    pub(crate) devices: Devices,
    pub(crate) io: IoCount,
    pub(crate) cache: BlockCache,
    pub(crate) unwritten: Unwritten,
    pub(crate) write_back: WriteBack,
    pub(crate) cold_versions: ColdVersions,
    pub(crate) locks: InodeLocks,
    pub(crate) rename_lock: Mutex<()>,
    pub(crate) orphan_locks: Vec<Mutex<()>>,
    pub(crate) numbers: Mutex<InodeNumbers>,
    pub(crate) references: References,
    pub(crate) reclaim: ReclaimQueue,
    pub(crate) migration: Migration,
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
    /// Writers wait a little while fewer PM blocks are free.
    pub(crate) slow_below: AtomicU64,
    pub(crate) superblock: Superblock,
    /// Set when the mount ends: nothing that may take long goes on.
    pub(crate) ending: AtomicBool,
    pub(crate) read_only: bool,
    pub(crate) data_ordered: bool,
    /// The pool's blocks may hold some lines only of a cold block.
    pub(crate) has_partial: bool,
    /// A small write to a cold block reads it first.
    pub(crate) read_first: bool,
    pub(crate) atime: Atime,
    pub(crate) read_ahead: ReadAhead,
    pub(crate) group_blocks: u64,
    pub(crate) in_place: InPlace,
    pub(crate) recovery: RecoveryReport,
    pub(crate) recovery_ns: u64,
}

/// Versions of cold blocks and holes, in a hashed table over (inode, 2 MiB) (design S6). Sharing a word
/// by two regions costs a needless second look, nothing else.
pub(crate) struct ColdVersions {
    words: Vec<AtomicU64>,
}

const REGION_SHIFT: u32 = 9;
const WORDS: usize = 1 << 14;
/// No file has this region: the count of what changes a whole inode.
const WHOLE_INODE: u64 = u64::MAX;
/// Regions that are counted one by one.
const MOST_REGIONS: u64 = 16;

impl ColdVersions {
    pub fn new() -> ColdVersions {
        ColdVersions { words: (0..WORDS).map(|_| AtomicU64::new(0)).collect() }
    }

    fn word(&self, ino: Ino, region: u64) -> &AtomicU64 {
        let mix = (ino.0 << 23 ^ region).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.words[(mix >> 50) as usize % WORDS]
    }

    /// The region's version: the sum of its own count and that of the whole inode, both of which only rise.
    pub fn get(&self, ino: Ino, block: FileBlock) -> u64 {
        let order = terrace_runtime::sync::atomic::Ordering::Acquire;
        let region = self.word(ino, block.0 >> REGION_SHIFT).load(order);
        region.wrapping_add(self.word(ino, WHOLE_INODE).load(order))
    }

    /// Bumps the versions of all regions of a range. Call under the exclusive inode lock, before the
    /// change can be seen. A long range, such as all that a removed file could have, costs one count: to visit each
    /// word for it would also tell all other files' cached blocks that they changed.
    pub fn bump(&self, ino: Ino, range: crate::types::BlockRange) {
        if range.is_empty() {
            return;
        }
        let order = terrace_runtime::sync::atomic::Ordering::AcqRel;
        let (first, last) = (range.first.0 >> REGION_SHIFT, (range.end.0 - 1) >> REGION_SHIFT);
        if last - first >= MOST_REGIONS {
            self.word(ino, WHOLE_INODE).fetch_add(1, order);
            return;
        }
        for region in first..=last {
            self.word(ino, region).fetch_add(1, order);
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
        let versions = ColdVersions::new();
        let regions = [0, 1, 511, 512, 100_000, 0xffff_fffe].map(FileBlock);
        let all = |ino: u64| regions.map(|block| versions.get(Ino(ino), block));
        let (own, others) = (all(7), (8..500).map(all).collect::<Vec<_>>());
        versions.bump(Ino(7), WHOLE_FILE);
        assert!(all(7).iter().zip(&own).all(|(new, old)| new > old));
        let changed = (8..500).zip(&others).filter(|(ino, before)| all(*ino) != **before).count();
        assert!(changed < 10, "{changed} of 492");
        versions.bump(Ino(7), BlockRange::new(FileBlock(512), FileBlock(513)));
        assert_eq!(versions.get(Ino(7), FileBlock(0)), all(7)[0]);
        assert!(versions.get(Ino(7), FileBlock(600)) >= own[3] + 2);
    }
}
