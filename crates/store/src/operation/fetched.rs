//! Cold blocks that were read for an operation.

use std::collections::BTreeMap;
use terrace_cache::Page;
use terrace_format::FileBlock;

/// Cold blocks read for one operation, with the versions they were read at.
#[derive(Default)]
pub struct Fetched {
    /// Pages by file block, each with its version when it was read.
    pub pages: BTreeMap<FileBlock, (u64, Page)>,
    /// A requested block whose cold copy could not be read, and was taken for one that no reader needs.
    pub(crate) passed_over: Option<FileBlock>,
}
