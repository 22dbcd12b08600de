//! Write entries: length and counter of the run that one write produced (design 5), by 64 KiB of file.
//!
//! The publication keeps write entries in the log entry of the write. Here a fixed hashed table holds a word
//! for each 64 KiB region, for blocks of any tier, so that an entry outlives a demotion and takes no room in
//! a block. If two regions share a word, the later entry displaces the earlier. A write shorter than
//! `large_min` is never large: it leaves no entry, and ends the entry that it replaces. A writer holds the
//! file's lock.

use crate::types::BlockRange;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_placement::write_size::{Before, Entry};
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

/// Blocks of a region, as a power of two.
const REGION_SHIFT: u32 = 4;

const LEAST: u64 = 1 << 10;

const MOST: u64 = 1 << 17;

/// Tag in the upper 32 bits, then counter in 8, then blocks of the run in 24. Zero is none.
pub struct WriteHistory {
    words: Vec<AtomicU64>,
}

impl WriteHistory {
    /// A table for a PM of `pm_blocks` blocks.
    pub fn new(pm_blocks: u64) -> WriteHistory {
        let count = pm_blocks.clamp(LEAST, MOST).next_power_of_two();
        WriteHistory { words: (0..count).map(|_| AtomicU64::new(0)).collect() }
    }

    #[inline]
    fn word(&self, ino: Ino, generation: u32, region: u64) -> (&AtomicU64, u64) {
        let file = (ino.0 << 32 | u64::from(generation)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // Neighbouring regions lie side by side: a long run is a few cache lines.
        let index = (file >> 20).wrapping_add(region) as usize & (self.words.len() - 1);
        let tag = (file ^ region.wrapping_mul(0xc2b2_ae3d_27d4_eb4f)) >> 32 | 1;
        (&self.words[index], tag << 32)
    }

    fn get(&self, ino: Ino, generation: u32, block: FileBlock) -> Option<Entry> {
        let (word, tag) = self.word(ino, generation, block.0 >> REGION_SHIFT);
        let found = word.load(Ordering::Relaxed);
        let entry = || Entry { bytes: (found & 0xff_ffff) * BLOCK_SIZE, counter: (found >> 24) as u8 };
        (found & !u64::from(u32::MAX) == tag).then(entry)
    }

    /// How a write to `range` of a file of `size` bytes relates to earlier writes: it replaces an entry,
    /// continues the file's last run, or does neither. The last run was `run` and ended before block
    /// `run_end`.
    #[inline]
    pub fn before(
        &self,
        (ino, generation, size): (Ino, u32, u64),
        range: BlockRange,
        (run, run_end): (Entry, u64),
    ) -> Before {
        let (first, end) = (range.first.0 * BLOCK_SIZE, range.end.0 * BLOCK_SIZE);
        let place = (range.first.0, end > size, first < size);
        Before::of(place, (run, run_end), || self.get(ino, generation, range.first))
    }

    /// A short write to `range` ends the entries there.
    #[inline]
    pub fn forget(&self, ino: Ino, generation: u32, range: BlockRange) {
        let end = (range.end.0 + (1 << REGION_SHIFT) - 1) >> REGION_SHIFT;
        for region in range.first.0 >> REGION_SHIFT..end {
            let (word, tag) = self.word(ino, generation, region);
            if word.load(Ordering::Relaxed) & !u64::from(u32::MAX) == tag {
                word.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Puts the entry that a write to `range` leaves into each region of the range.
    #[inline]
    pub fn put(&self, ino: Ino, generation: u32, range: BlockRange, entry: Entry) {
        let blocks = (entry.bytes / BLOCK_SIZE).clamp(1, 0xff_ffff);
        let value = u64::from(entry.counter) << 24 | blocks;
        let last = range.end.0.max(range.first.0 + 1) - 1;
        for region in range.first.0 >> REGION_SHIFT..=last >> REGION_SHIFT {
            let (word, tag) = self.word(ino, generation, region);
            if word.load(Ordering::Relaxed) != tag | value {
                word.store(tag | value, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, count: u64) -> BlockRange {
        BlockRange::new(FileBlock(first), FileBlock(first + count))
    }

    #[test]
    fn a_write_replaces_or_continues_the_entry_of_an_earlier_write() {
        let entries = WriteHistory::new(0);
        let none = (Entry::default(), 0);
        let file = |size| (Ino(5), 1, size);
        assert_eq!(entries.before(file(0), range(0, 32), none), Before::Nothing);
        let entry = Entry { bytes: 32 * 4096, counter: 3 };
        entries.put(Ino(5), 1, range(0, 32), entry);
        let run = (entry, 32);
        assert_eq!(entries.before(file(32 * 4096), range(16, 16), run), Before::Replaces(entry));
        entries.forget(Ino(5), 1, range(16, 1));
        entries.forget(Ino(6), 1, range(0, 16));
        assert_eq!(
            entries.before(file(32 * 4096), range(16, 16), none),
            Before::Nothing,
            "a short write ended it"
        );
        assert_eq!(entries.before(file(32 * 4096), range(0, 16), none), Before::Replaces(entry));
        assert_eq!(entries.before(file(32 * 4096), range(32, 32), run), Before::Continues(entry));
        assert_eq!(entries.before(file(32 * 4096 - 100), range(31, 33), run), Before::Continues(entry));
        assert_eq!(entries.before(file(32 * 4096), range(40, 1), run), Before::Nothing);
        assert_eq!(entries.before((Ino(5), 2, 1 << 20), range(0, 16), none), Before::Nothing, "another life");
        assert_eq!(entries.before((Ino(6), 1, 1 << 20), range(0, 16), none), Before::Nothing);
    }
}
