//! File maps: as found, and after the repair.

use std::collections::BTreeMap;

/// A pointer or a table entry: this block holds that block of that inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub block: u64,
    pub unwritten: bool,
}

/// The map of a file.
#[derive(Default)]
pub(crate) struct FileMap {
    /// As the walk found it; where two entries name one file block the first.
    pub found: BTreeMap<u64, Mapped>,
    /// After the repair.
    pub entries: BTreeMap<u64, Mapped>,
    /// Radix nodes of the walk.
    pub nodes: Vec<u64>,
    /// The tree has to be built anew.
    pub broken: bool,
}

impl FileMap {
    /// Notes an entry that the walk found.
    pub fn note(&mut self, file_block: u64, block: u64, unwritten: bool) {
        self.found.insert(file_block, Mapped { block, unwritten });
    }
}
