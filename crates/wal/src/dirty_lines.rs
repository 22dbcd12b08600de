//! Cache lines that a lane's records stored in place since the last checkpoint.
//!
//! The lines stay in the processor's cache until the checkpoint writes them back (design T5). If they were
//! written back after every record, a line with frequent stores (an inode slot, a full page of the block
//! table) would have to be fetched for each store: 0.15 us per commit where it was measured.
//!
//! Invariant: a line noted since the last `take` is in `lines`; `recent` only saves most of the duplicates.

use terrace_format::PmOffset;

/// Bytes of a cache line.
pub(crate) const LINE: u64 = 64;
/// Lines remembered, by the low bits of their numbers.
const RECENT: usize = 256;

/// Lines to write back.
pub(crate) struct DirtyLines {
    lines: Vec<PmOffset>,
    /// The line last noted in each place; zero (the superblock, which no record writes) for none.
    recent: Box<[u64; RECENT]>,
}

impl Default for DirtyLines {
    fn default() -> DirtyLines {
        DirtyLines { lines: Vec::new(), recent: Box::new([0; RECENT]) }
    }
}

impl DirtyLines {
    /// Notes the lines of a range that was stored to.
    #[inline]
    pub fn note(&mut self, offset: PmOffset, length: usize) {
        let end = (offset.0 + length as u64).div_ceil(LINE);
        for line in offset.0 / LINE..end {
            let place = &mut self.recent[line as usize % RECENT];
            if *place != line || line == 0 {
                *place = line;
                self.lines.push(PmOffset(line * LINE));
            }
        }
    }

    /// Moves all lines to `into`, whose content is dropped and whose memory is kept for the next ones.
    pub fn take(&mut self, into: &mut Vec<PmOffset>) {
        into.clear();
        if !self.lines.is_empty() {
            std::mem::swap(&mut self.lines, into);
            self.recent.fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_noted_is_taken_and_again_after_a_take() {
        let mut dirty = DirtyLines::default();
        let mut taken = vec![PmOffset(1)];
        for _ in 0..2 {
            dirty.note(PmOffset(4096), 8);
            dirty.note(PmOffset(4120), 80);
            // Shares its place with the first.
            dirty.note(PmOffset(4096 + 64 * RECENT as u64), 1);
            dirty.note(PmOffset(4096), 64);
            dirty.note(PmOffset(0), 0);
            dirty.take(&mut taken);
            taken.sort();
            taken.dedup();
            assert_eq!(taken, [4096, 4160, 4096 + 64 * RECENT as u64].map(PmOffset));
        }
        dirty.take(&mut taken);
        assert!(taken.is_empty());
    }

    #[test]
    fn dirty_lines_at_any_address_are_noted_once() {
        let mut dirty = DirtyLines::default();
        let mut taken = Vec::new();
        for _ in 0..3 {
            dirty.note(PmOffset(1 << 40), 1);
            dirty.note(PmOffset((1 << 40) + 130), 1);
        }
        dirty.take(&mut taken);
        assert_eq!(taken, [1 << 40, (1 << 40) + 128].map(PmOffset), "each once");
        // The line for which the places stand when they are empty.
        dirty.note(PmOffset(8), 8);
        dirty.take(&mut taken);
        assert_eq!(taken, [PmOffset(0)]);
    }
}
