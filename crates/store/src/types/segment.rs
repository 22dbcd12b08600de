//! A piece of a write.

use crate::types::BlockRange;
use terrace_format::{BLOCK_SIZE, FileBlock};

/// Bytes to put into a file.
#[derive(Clone, Copy)]
pub struct Segment<'a> {
    /// First byte in the file.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// `None`: zeros, and only where something else would be read.
    pub data: Option<&'a [u8]>,
}

impl Segment<'_> {
    /// The blocks it touches.
    pub fn blocks(&self) -> BlockRange {
        let end = self.offset + self.length;
        BlockRange::new(FileBlock(self.offset / BLOCK_SIZE), FileBlock(end.div_ceil(BLOCK_SIZE)))
    }

    /// The part of each block: its first byte in the block, and its end.
    pub fn parts(&self) -> impl Iterator<Item = (FileBlock, usize, usize)> {
        let (begin, end, range) = (self.offset, self.offset + self.length, self.blocks());
        (range.first.0..range.end.0).map(move |block| {
            let start = block * BLOCK_SIZE;
            let (from, to) = (begin.max(start) - start, end.min(start + BLOCK_SIZE) - start);
            (FileBlock(block), from as usize, to as usize)
        })
    }
}
