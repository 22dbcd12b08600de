//! The catalog of a pool: the locks of its shards, and which shard a key belongs to.
//!
//! Lock order: shards by number (L1). The set of sparse leaves and the table of copies are locked last, each alone.

use crate::aside::Aside;
use std::collections::BTreeSet;
use std::sync::Arc;
use terrace_blocks::BlockPool;
use terrace_format::keys::Key;
use terrace_media::PmMedium;
use terrace_runtime::sync::{LockKind, Mutex, RankedRwLock};
use terrace_wal::Wal;

/// A shard's lock, on a cache line of its own.
#[repr(align(128))]
struct Shard(RankedRwLock<()>);

/// The catalog of a pool. Keeps nothing volatile but locks.
pub struct Catalog {
    blocks: Arc<BlockPool>,
    wal: Arc<Wal>,
    pm: Arc<dyn PmMedium>,
    shards: Box<[Shard]>,
    /// A key of each leaf that lost most of its keys, for [`Catalog::shrink_step`]. Locked last.
    sparse: Mutex<BTreeSet<Key>>,
    aside: Aside,
}

/// Leaves that are remembered as sparse at a time. A leaf beyond this limit is remembered later, when it has lost half of
/// its remaining bytes.
const MAX_SPARSE_LEAVES: usize = 4096;

impl Catalog {
    /// The catalog of an opened pool. Reads nothing.
    pub fn new(blocks: Arc<BlockPool>) -> Catalog {
        let wal = Arc::clone(blocks.wal());
        let locks = wal.locks();
        let rank = |shard| locks.rank(LockKind::CatalogShard, shard);
        let shards = 0..wal.geometry().catalog_shards;
        let shards = shards.map(|shard| Shard(RankedRwLock::new(rank(shard), ())));
        Catalog {
            pm: Arc::clone(wal.pm()),
            shards: shards.collect(),
            sparse: Mutex::default(),
            aside: Aside::default(),
            wal,
            blocks,
        }
    }

    /// The block pool.
    pub fn blocks(&self) -> &Arc<BlockPool> {
        &self.blocks
    }
    /// The log.
    pub fn wal(&self) -> &Arc<Wal> {
        &self.wal
    }
    /// Copies of pages below PM, catalog leaves and inode pages.
    pub fn aside(&self) -> &Aside {
        &self.aside
    }
    pub(crate) fn pm(&self) -> &dyn PmMedium {
        &*self.pm
    }
    pub(crate) fn checksums(&self) -> &terrace_wal::PageChecksums {
        self.wal.checksums()
    }
    /// Number of shards.
    pub fn shard_count(&self) -> u32 {
        self.shards.len() as u32
    }
    /// Shards without a page: the first key of each takes a block. Looks without locks, at a word for each shard.
    pub fn empty_shards(&self) -> u32 {
        let root = |shard| self.pm.load_u64(self.wal.geometry().shard_root(shard)).unwrap_or(0);
        (0..self.shard_count()).filter(|shard| root(*shard) == 0).count() as u32
    }
    /// The shard of an inode number, or of a chunk number for chunk keys.
    pub fn shard_of(&self, ino: u64) -> u32 {
        (ino % self.shards.len() as u64) as u32
    }
    /// The shard of a key, or of a key's first four bytes.
    pub fn shard_of_key(&self, key: &[u8]) -> u32 {
        let ino = key.first_chunk::<4>();
        self.shard_of(ino.map_or(0, |ino| u64::from(u32::from_be_bytes(*ino))))
    }

    pub(crate) fn lock_of(&self, shard: u32) -> &RankedRwLock<()> {
        let place = shard as usize % self.shards.len();
        match self.shards.get(place) {
            Some(shard) => &shard.0,
            None => unreachable!("a pool has at least one shard"),
        }
    }

    /// Remembers a leaf that lost most of its keys.
    pub(crate) fn note_sparse(&self, key: &Key) {
        let mut sparse = self.sparse.lock();
        if sparse.len() < MAX_SPARSE_LEAVES {
            sparse.insert(key.clone());
        }
    }

    /// Takes a remembered sparse leaf out of the set.
    pub(crate) fn take_sparse(&self) -> Option<Key> {
        self.sparse.lock().pop_first()
    }
}
