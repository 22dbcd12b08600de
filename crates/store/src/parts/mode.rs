//! How a pool is mounted: fixed until the unmount.

use crate::types::Atime;

/// How a pool is mounted.
#[derive(Debug, Clone, Copy)]
pub struct Mode {
    /// Nothing may change.
    pub read_only: bool,
    /// `data=ordered`: overwrites in PM are made in place instead of in new blocks.
    pub data_ordered: bool,
    /// The pool's PM blocks may hold some lines only of a cold block.
    pub has_partial: bool,
    /// Data in PM has checksums.
    pub has_checksums: bool,
    /// A small write to a cold block reads it first.
    pub no_partial_shadows: bool,
    /// When access times are recorded.
    pub atime: Atime,
    /// Blocks of a group: with its summaries a group fits into a chunk.
    pub group_blocks: u64,
    /// The rule for write-back in place.
    pub in_place: InPlace,
    /// The policy `anticache` demotes above this PM use.
    pub threshold_percent: u8,
    /// Lifetime of a prefetched page.
    pub prefetch_ms: u64,
    /// A reference may be given back after the program's call that ended it has returned.
    pub late_references: bool,
}

/// When cold metadata pages are demoted (design C1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetadataMoves {
    /// Never by itself. Only a fetch of a demoted page may demote another page to make room in PM.
    Never,
    /// When PM is scarce, and demotion of data does not help or metadata has more than its share.
    WhenScarce,
    /// As soon as a page is unused: for tests.
    Always,
}

/// Which overwrites of demoted blocks are written back over their cold copies (design M5). A few scattered
/// blocks of an extent are; more changed blocks go to free space as groups of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InPlace {
    /// Fewest blocks of an extent that is worth keeping whole.
    pub extent_blocks: u32,
    /// The blocks of an extent for each block that is written in place, at least.
    pub one_of: u32,
}

impl Default for InPlace {
    fn default() -> InPlace {
        InPlace { extent_blocks: 16, one_of: 8 }
    }
}
