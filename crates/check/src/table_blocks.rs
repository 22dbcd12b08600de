//! The blocks of all files, as a block table has them that is the file map.

use terrace_format::homes::Homes;

/// A block of a file, as the table has it.
#[derive(Clone, Copy)]
pub(crate) struct TableBlock {
    pub(crate) ino: u64,
    pub(crate) block: u64,
    pub(crate) place: u64,
    pub(crate) unwritten: bool,
}

/// The blocks of all files by inode and block, and the reach of the map.
pub(crate) struct TableMap {
    pub(crate) blocks: Vec<TableBlock>,
    pub(crate) homes: Homes,
    pub(crate) reach: u64,
}

impl TableMap {
    /// The blocks of a file in a range.
    pub(crate) fn range(&self, ino: u64, (from, end): (u64, u64)) -> &[TableBlock] {
        let before = |key: (u64, u64)| self.blocks.partition_point(|found| (found.ino, found.block) < key);
        self.blocks.get(before((ino, from))..before((ino, end))).unwrap_or(&[])
    }
}
