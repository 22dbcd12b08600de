//! The structures in PM: log, block table, file map, inode file, catalog.

pub mod metadata_pages;

use crate::error::{FsError, FsResult};
use metadata_pages::MetadataPages;
use std::sync::Arc;
use terrace_blocks::BlockPool;
use terrace_catalog::Catalog;
use terrace_catalog::dentry::NameHash;
use terrace_format::seal::SealKey;
use terrace_format::superblock::Superblock;
use terrace_map::{FileMap, InodeFileMap};
use terrace_media::PmMedium;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};
use terrace_wal::Wal;

/// The structures in PM, each of which has its own locks.
pub struct Persistent {
    superblock: Superblock,
    pm: Arc<dyn PmMedium>,
    wal: Arc<Wal>,
    blocks: Arc<BlockPool>,
    map: Box<dyn FileMap>,
    inode_map: InodeFileMap,
    catalog: Arc<Catalog>,
    metadata_pages: Arc<MetadataPages>,
    name_hash: NameHash,
    seal_key: SealKey,
    /// How often data in PM did not match its checksum.
    damaged_data: AtomicU64,
}

/// The persistent structures of a pool, as a mount opens them in turn.
pub struct Opened {
    /// The superblock in use.
    pub superblock: Superblock,
    /// The PM medium.
    pub pm: Arc<dyn PmMedium>,
    /// The log, recovered.
    pub wal: Arc<Wal>,
    /// The block table and the allocator.
    pub blocks: Arc<BlockPool>,
    /// The file map that the superblock names.
    pub map: Box<dyn FileMap>,
    /// All other metadata.
    pub catalog: Arc<Catalog>,
    /// State of metadata pages that move below PM and back.
    pub metadata_pages: MetadataPages,
}

impl Persistent {
    /// The part, from structures that were opened on one medium.
    pub fn new(opened: Opened) -> Persistent {
        let Opened { superblock, pm, wal, blocks, map, catalog, metadata_pages } = opened;
        Persistent {
            pm,
            wal,
            map,
            inode_map: InodeFileMap::new(Arc::clone(&blocks)),
            blocks,
            catalog,
            metadata_pages: Arc::new(metadata_pages),
            name_hash: NameHash::new(&superblock.hash_key),
            seal_key: superblock.seal_key(),
            damaged_data: AtomicU64::new(0),
            superblock,
        }
    }

    /// The superblock as it was when the pool was mounted.
    #[inline]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The PM medium.
    #[inline]
    pub fn pm(&self) -> &dyn PmMedium {
        &*self.pm
    }

    /// The log.
    #[inline]
    pub fn wal(&self) -> &Arc<Wal> {
        &self.wal
    }

    /// Everything committed so far is durable; a failure stops all changes ([`Wal::persist`]).
    ///
    /// # Errors
    /// [`FsError::NotDurable`]: the log tells the cause.
    #[inline]
    #[track_caller]
    pub fn persist(&self) -> FsResult<()> {
        self.wal.persist().map_err(|_| FsError::NotDurable)
    }

    /// The block table and the allocator.
    #[inline]
    pub fn blocks(&self) -> &Arc<BlockPool> {
        &self.blocks
    }

    /// The map from file blocks to PM blocks.
    #[inline]
    pub fn map(&self) -> &dyn FileMap {
        &*self.map
    }

    /// The map of the inode file.
    #[inline]
    pub fn inode_map(&self) -> &InodeFileMap {
        &self.inode_map
    }

    /// All other metadata.
    #[inline]
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// State of metadata pages that move below PM and back.
    #[inline]
    pub fn metadata_pages(&self) -> &Arc<MetadataPages> {
        &self.metadata_pages
    }

    /// The hash of names in directories.
    #[inline]
    pub fn name_hash(&self) -> &NameHash {
        &self.name_hash
    }

    /// The key of the seals of pages and summaries on lower tiers.
    #[inline]
    pub fn seal_key(&self) -> &SealKey {
        &self.seal_key
    }

    /// Notes that data in PM did not match its checksum; how often that was found since the mount.
    #[inline]
    pub(crate) fn note_damaged_data(&self) -> u64 {
        1 + self.damaged_data.fetch_add(1, Ordering::Relaxed)
    }

    /// How often data in PM did not match its checksum since the mount.
    #[inline]
    pub fn damaged_data(&self) -> u64 {
        self.damaged_data.load(Ordering::Relaxed)
    }
}
