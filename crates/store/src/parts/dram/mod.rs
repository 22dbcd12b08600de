//! Content in DRAM: the block cache with clean copies and dirty pages, and volatile knowledge about both.

pub mod cold_versions;
pub mod kept_copies;
pub mod lazy_counts;
pub mod lazy_writes;
pub mod mapped_files;
pub mod promotions;
pub mod read_ahead;
pub mod volatile_size;
pub mod write_back;
pub mod write_errors;

use cold_versions::ColdVersions;
use kept_copies::Kept;
use lazy_writes::LazyWrites;
use mapped_files::MappedFiles;
use promotions::Promotions;
use read_ahead::ReadAhead;
use terrace_cache::BlockCache;
use volatile_size::Unwritten;
use write_back::WriteBack;

/// Content in DRAM.
pub struct Dram {
    cache: BlockCache,
    cold_versions: ColdVersions,
    volatile_sizes: Unwritten,
    read_ahead: ReadAhead,
    write_back: WriteBack,
    lazy_writes: LazyWrites,
    mapped_files: MappedFiles,
    promotions: Promotions,
    kept_copies: Kept,
}

impl Dram {
    /// `most_cache_blocks`: blocks that the cache may come to hold.
    pub fn new(
        cache: BlockCache,
        most_cache_blocks: u64,
        read_ahead: ReadAhead,
        write_back: WriteBack,
        lazy_writes: LazyWrites,
    ) -> Dram {
        Dram {
            cache,
            cold_versions: ColdVersions::new(most_cache_blocks),
            volatile_sizes: Unwritten::new(),
            read_ahead,
            write_back,
            lazy_writes,
            mapped_files: MappedFiles::default(),
            promotions: Promotions::default(),
            kept_copies: Kept::default(),
        }
    }

    /// Clean copies of cold blocks, and dirty pages.
    #[inline]
    pub fn cache(&self) -> &BlockCache {
        &self.cache
    }

    /// Versions of cold blocks and holes (S6).
    #[inline]
    pub fn cold_versions(&self) -> &ColdVersions {
        &self.cold_versions
    }

    /// Visible sizes and times that are not durable yet.
    #[inline]
    pub fn volatile_sizes(&self) -> &Unwritten {
        &self.volatile_sizes
    }

    /// Files that are read on, and windows ahead of their readers.
    #[inline]
    pub fn read_ahead(&self) -> &ReadAhead {
        &self.read_ahead
    }

    /// State of write-back.
    #[inline]
    pub fn write_back(&self) -> &WriteBack {
        &self.write_back
    }

    /// Whether writes with home PM may wait in DRAM.
    #[inline]
    pub fn lazy_writes(&self) -> &LazyWrites {
        &self.lazy_writes
    }

    /// Files that programs have mapped: their writes are eager.
    #[inline]
    pub fn mapped_files(&self) -> &MappedFiles {
        &self.mapped_files
    }

    /// Cold blocks that were read again and are to come into PM.
    #[inline]
    pub fn promotions(&self) -> &Promotions {
        &self.promotions
    }

    /// Counts of copies that stayed in DRAM when their blocks were demoted.
    #[inline]
    pub fn kept_copies(&self) -> &Kept {
        &self.kept_copies
    }
}
