//! A block of a file that PM holds, by any map.

use crate::checker::Checker;
use crate::inode_record::InodeRecord;
use terrace_format::address::{BLOCK_SIZE, MAX_FILE_BLOCK};
use terrace_format::table::Owner;
use terrace_format::{FileBlock, Ino};

impl Checker<'_> {
    /// Judges a mapped block, and counts it; false when its PM block is none of the pool or was reached before.
    pub(crate) fn file_block(
        &mut self,
        record: &mut InodeRecord,
        block: u64,
        place: u64,
        unwritten: bool,
    ) -> bool {
        assert!(block <= MAX_FILE_BLOCK.0, "block {block} of inode {} was not judged", record.ino);
        let owner = Owner::File { ino: Ino(record.ino.into()), block: FileBlock(block), unwritten };
        let is_new = self.claim(place, owner, &format_args!("inode {}, block {block}", record.ino));
        record.content.mapped += 1;
        if !unwritten {
            record.content.written_end = record.content.written_end.max(block + 1);
        }
        is_new
    }
}

/// Blocks that hold `size` bytes.
pub(crate) fn blocks_of(size: u64) -> u64 {
    size.div_ceil(BLOCK_SIZE)
}
