//! Content of a regular file: a size and the blocks that are allocated, written or not.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a block: the grain of allocation.
pub const BLOCK: usize = 4096;
const B: u64 = BLOCK as u64;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Block {
    /// Allocated, reads as zeros, counts as a hole.
    Unwritten,
    Written(Arc<[u8; BLOCK]>),
}

/// A sparse file. Invariant: bytes past `size` in the last block are zeros.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    size: u64,
    blocks: BTreeMap<u64, Block>,
}

impl Content {
    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Allocated blocks, written or not.
    pub fn allocated_blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Numbers of the allocated blocks from `first` on, before `end`.
    pub fn allocated(&self, first: u64, end: u64) -> impl Iterator<Item = u64> {
        self.blocks.range(first..end.max(first)).map(|(number, _)| *number)
    }

    /// Blocks from `first` on, before `end`, that are allocated and were never written.
    pub fn unwritten(&self, first: u64, end: u64) -> u64 {
        let blocks = self.blocks.range(first..end.max(first));
        blocks.filter(|(_, block)| matches!(block, Block::Unwritten)).count() as u64
    }

    /// Whether a block is allocated, written or not.
    pub(crate) fn has_place(&self, number: u64) -> bool {
        self.blocks.contains_key(&number)
    }

    /// Whether a block was written.
    pub(crate) fn is_written(&self, number: u64) -> bool {
        matches!(self.blocks.get(&number), Some(Block::Written(_)))
    }

    /// The bytes of a block; zeros where it was not written.
    pub(crate) fn block(&self, number: u64) -> [u8; BLOCK] {
        match self.blocks.get(&number) {
            Some(Block::Written(bytes)) => **bytes,
            _ => [0; BLOCK],
        }
    }

    /// Marks a block as written without changing its bytes.
    pub(crate) fn give_place(&mut self, number: u64) {
        self.written(number);
    }

    /// Reads up to the end of the file; answers the number of bytes read.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> usize {
        let count = self.size.saturating_sub(offset).min(into.len() as u64) as usize;
        let mut at = 0;
        while at < count {
            let (number, skip) = split(offset + at as u64);
            let length = (BLOCK - skip).min(count - at);
            match self.blocks.get(&number) {
                Some(Block::Written(bytes)) => {
                    into[at..at + length].copy_from_slice(&bytes[skip..skip + length]);
                }
                _ => into[at..at + length].fill(0),
            }
            at += length;
        }
        count
    }

    /// Writes, and raises the size when the bytes end past it.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        let mut at = 0;
        while at < data.len() {
            let (number, skip) = split(offset + at as u64);
            let length = (BLOCK - skip).min(data.len() - at);
            self.written(number)[skip..skip + length].copy_from_slice(&data[at..at + length]);
            at += length;
        }
        self.size = self.size.max(offset + data.len() as u64);
    }

    fn written(&mut self, number: u64) -> &mut [u8; BLOCK] {
        let block = self.blocks.entry(number).or_insert(Block::Unwritten);
        if let Block::Unwritten = block {
            *block = Block::Written(Arc::new([0; BLOCK]));
        }
        match block {
            Block::Written(bytes) => Arc::make_mut(bytes),
            Block::Unwritten => unreachable!("it was just written"),
        }
    }

    /// Sets the size. Blocks wholly past a smaller size are freed, preallocated ones beyond the end too.
    pub(crate) fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, size.next_multiple_of(B));
            self.blocks.split_off(&size.div_ceil(B));
        }
        self.size = size;
    }

    /// Takes back a raise of the size; no byte was written past `size`.
    pub(crate) fn lower_size(&mut self, size: u64) {
        self.size = size;
    }

    /// Makes the written bytes of a range zeros; allocates nothing.
    fn zero(&mut self, from: u64, to: u64) {
        let mut at = from;
        while at < to {
            let (number, skip) = split(at);
            let length = (B - skip as u64).min(to - at) as usize;
            if let Some(Block::Written(bytes)) = self.blocks.get_mut(&number) {
                Arc::make_mut(bytes)[skip..skip + length].fill(0);
            }
            at += length as u64;
        }
    }

    /// Allocates the missing blocks of a range; answers how many were missing.
    pub(crate) fn allocate(&mut self, offset: u64, length: u64) -> u64 {
        let before = self.allocated_blocks();
        for number in offset / B..(offset + length).div_ceil(B) {
            self.blocks.entry(number).or_insert(Block::Unwritten);
        }
        self.allocated_blocks() - before
    }

    pub(crate) fn raise_size(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    /// Makes a hole: whole blocks are freed, the bytes at the edges become zeros. The block in which the
    /// range ends counts as whole if the file ends within the range.
    pub(crate) fn punch(&mut self, offset: u64, length: u64) {
        let end = offset + length;
        let first = offset.div_ceil(B);
        let last = if end >= self.size { end.div_ceil(B) } else { end / B };
        self.zero(offset, end.min(first * B).min(self.size));
        self.zero(offset.max(last * B), end.min(self.size));
        if first < last {
            let tail = self.blocks.split_off(&last);
            self.blocks.split_off(&first);
            self.blocks.extend(tail);
        }
    }

    /// The next written block's offset at or after `offset`, before the end of the file.
    pub(crate) fn next_data(&self, offset: u64) -> Option<u64> {
        let end = self.size.div_ceil(B);
        let written = self.blocks.range(offset / B..end.max(offset / B));
        let mut written = written.filter(|(_, block)| matches!(block, Block::Written(_)));
        written.next().map(|(number, _)| offset.max(number * B))
    }

    /// The next offset at or after `offset` that is in no written block; at most the size.
    pub(crate) fn next_hole(&self, offset: u64) -> u64 {
        let mut number = offset / B;
        while let Some(Block::Written(_)) = self.blocks.get(&number) {
            number += 1;
        }
        offset.max(number * B).min(self.size)
    }
}

fn split(offset: u64) -> (u64, usize) {
    (offset / B, (offset % B) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(content: &Content) -> Vec<u8> {
        let mut all = vec![9; content.size() as usize];
        assert_eq!(content.read(0, &mut all), all.len());
        all
    }

    #[test]
    fn sparse_writes_and_holes() {
        let mut content = Content::default();
        content.write(2 * B + 5, &[7; 10]);
        assert_eq!((content.size(), content.allocated_blocks()), (2 * B + 15, 1));
        assert_eq!(content.next_data(0), Some(2 * B));
        assert_eq!(content.next_hole(0), 0);
        assert_eq!(content.next_hole(2 * B + 1), 2 * B + 15);
        content.truncate(2 * B + 8);
        content.truncate(3 * B);
        let all = bytes(&content);
        assert_eq!(all[2 * BLOCK + 5..2 * BLOCK + 8], [7; 3]);
        assert!(all[2 * BLOCK + 8..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn punch_removes_whole_blocks_and_clears_edges() {
        let mut content = Content::default();
        content.write(0, &[1; 4 * BLOCK]);
        content.punch(100, 2 * B);
        assert_eq!(content.allocated_blocks(), 3);
        let all = bytes(&content);
        let zero = |range: std::ops::Range<usize>| all[range].iter().all(|byte| *byte == 0);
        assert!(zero(100..2 * BLOCK + 100) && all[99] == 1 && all[2 * BLOCK + 100] == 1);
        content.punch(3 * B + 1, 10 * B);
        assert_eq!(content.allocated_blocks(), 3);
        content.punch(3 * B, 1);
        content.punch(3 * B, B);
        assert_eq!(content.allocated_blocks(), 2);
        // Within one block.
        content.punch(10, 5);
        assert_eq!(bytes(&content)[9..16], [1, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn allocation_reads_as_zeros_and_is_a_hole() {
        let mut content = Content::default();
        assert_eq!(content.allocate(1, 2 * B), 3);
        assert_eq!(content.size(), 0);
        content.raise_size(3 * B);
        assert_eq!((content.next_data(0), content.next_hole(0)), (None, 0));
        content.write(B, b"x");
        assert_eq!((content.next_data(0), content.next_hole(B)), (Some(B), 2 * B));
        content.truncate(B);
        assert_eq!(content.allocated_blocks(), 1);
    }
}
