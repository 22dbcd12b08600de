//! The state of one chunk in DRAM: used blocks, and counts of holes (runs of free blocks).
//!
//! Invariant: `free`, `largest` and `grains` equal a count over the used bits. A chunk that is not loaded counts as
//! full. Bits beyond the end of a short chunk are set.

use terrace_blocks::bits::{self, Run};
use terrace_format::Lsn;

/// Kinds of holes by their least length, one block to 1 MiB, by powers of two: longer ones are taken by themselves.
pub(crate) const GRAINS: usize = 9;
/// The bucket of wholly free chunks. Chunks with used blocks are in buckets 0 to 12, by the logarithm of their largest hole.
pub(crate) const WHOLE_BUCKET: usize = 13;

/// The used blocks of a chunk.
pub(crate) enum Content {
    /// The bitmap is not loaded.
    Unknown,
    /// No block is used.
    Free,
    /// Each block is used, or the bitmap is damaged.
    Full,
    /// Used bits; bits beyond a short chunk's end are set.
    Part(Box<[u64]>),
}

/// A chunk of a device.
pub(crate) struct Chunk {
    pub content: Content,
    /// Free blocks.
    pub free: u16,
    /// Blocks of the largest hole.
    pub largest: u16,
    /// Blocks in holes of at least `1 << grain` blocks.
    pub grains: [u16; GRAINS],
    /// Records below this were seen when the bitmap was loaded.
    pub loaded: Lsn,
}

impl Chunk {
    pub(crate) const fn unknown() -> Chunk {
        Chunk { content: Content::Unknown, free: 0, largest: 0, grains: [0; GRAINS], loaded: Lsn(u64::MAX) }
    }

    /// The bucket of the chunk; none when nothing of it is free.
    pub(crate) fn bucket(&self) -> Option<usize> {
        match self.content {
            Content::Free => Some(WHOLE_BUCKET),
            _ => self.largest.checked_ilog2().map(|log| log as usize),
        }
    }

    /// Takes over the used bits of a chunk of `capacity` blocks.
    pub(crate) fn set_words(&mut self, words: &[u64], capacity: u64) {
        self.grains = grains(words);
        let free = u64::from(self.grains[0]);
        assert!(free <= capacity, "{free} of {capacity} blocks of a chunk are free");
        self.free = free as u16;
        self.largest = bits::first_or_longest::<false>(words, u64::MAX).length as u16;
        self.content = match free {
            0 => Content::Full,
            _ if free == capacity => Content::Free,
            _ => Content::Part(words.into()),
        };
    }

    /// Clears bits of a chunk that stays partly used, where they lie: only the hole around them can be larger than the
    /// largest. The blocks that became free by it; `None`, with nothing done, when the chunk does not stay so.
    pub(crate) fn free_in_part(&mut self, run: Run, capacity: u64) -> Option<u64> {
        let Content::Part(words) = &mut self.content else { return None };
        let freed = bits::count_set(words, run);
        let free = u64::from(self.free) + freed;
        if free == capacity {
            return None;
        }
        let before = bits::length_before::<false>(words, run.start);
        let behind = bits::length_from::<false>(words, run.end());
        bits::clear(words, run, |_| ());
        let hole = before + run.length + behind;
        (self.free, self.largest) = (free as u16, self.largest.max(hole as u16));
        if freed == run.length {
            count_hole(&mut self.grains, before, false);
            count_hole(&mut self.grains, behind, false);
            count_hole(&mut self.grains, hole, true);
        } else {
            self.grains = grains(words);
        }
        Some(freed)
    }
}

/// Blocks in holes of at least `1 << grain` blocks.
pub(crate) fn grains(words: &[u64]) -> [u16; GRAINS] {
    let mut found = [0; GRAINS];
    bits::runs::<false>(words).for_each(|hole| count_hole(&mut found, hole.length, true));
    found
}

/// Takes a hole into account, or out of it.
fn count_hole(grains: &mut [u16; GRAINS], length: u64, is_there: bool) {
    let kinds = length.checked_ilog2().map_or(0, |log| log as usize + 1);
    for of in grains.iter_mut().take(kinds) {
        *of = if is_there { of.wrapping_add(length as u16) } else { of.wrapping_sub(length as u16) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grains_count_holes_of_all_lengths() {
        let mut words = vec![u64::MAX; 4];
        bits::clear(&mut words, Run::new(0, 1), |_| ());
        bits::clear(&mut words, Run::new(60, 70), |_| ());
        bits::clear(&mut words, Run::new(192, 64), |_| ());
        assert_eq!(grains(&words), [135, 134, 134, 134, 134, 134, 134, 0, 0]);
    }
}
