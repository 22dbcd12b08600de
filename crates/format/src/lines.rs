//! The mask of valid lines of a PM block (design 4.2): the second word of a block table entry.
//!
//! A whole block has a mask of all ones. In a *partial shadow* some bits are zero: the block's cold copy has
//! these lines (feature `partial-shadows`).

use crate::address::{BLOCK_SIZE, LINE_SIZE};
use std::ops::Range;

const LINE: usize = LINE_SIZE as usize;
const LINES: usize = (BLOCK_SIZE / LINE_SIZE) as usize;
const _: () = assert!(LINES == 64);

/// A set of lines of one block; bit `i` stands for bytes `64 i..64 (i + 1)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LineMask(pub u64);

impl LineMask {
    /// Every line.
    pub const FULL: LineMask = LineMask(u64::MAX);
    /// No line.
    pub const EMPTY: LineMask = LineMask(0);

    /// The lines that hold any of the block's bytes `from..to`.
    pub fn touching(from: usize, to: usize) -> LineMask {
        let (first, end) = (from / LINE, to.div_ceil(LINE).min(LINES));
        if first >= end {
            return LineMask::EMPTY;
        }
        LineMask((u64::MAX >> (LINES - (end - first))) << first)
    }
    /// Whether a block with these lines stands alone.
    pub fn is_full(self) -> bool {
        self == LineMask::FULL
    }
    /// Whether there is no line.
    pub fn is_empty(self) -> bool {
        self == LineMask::EMPTY
    }
    /// Whether all lines of `other` are here.
    pub fn contains(self, other: LineMask) -> bool {
        self.0 & other.0 == other.0
    }
    /// Lines of either.
    #[must_use]
    pub fn union(self, other: LineMask) -> LineMask {
        LineMask(self.0 | other.0)
    }
    /// Lines of both.
    #[must_use]
    pub fn intersection(self, other: LineMask) -> LineMask {
        LineMask(self.0 & other.0)
    }
    /// The other lines.
    #[must_use]
    pub fn missing(self) -> LineMask {
        LineMask(!self.0)
    }
    /// From the first byte of the first line to the last of the last one; empty without lines.
    pub fn hull(self) -> Range<usize> {
        if self.is_empty() {
            return 0..0;
        }
        let end = LINES - self.0.leading_zeros() as usize;
        self.0.trailing_zeros() as usize * LINE..end * LINE
    }
    /// The bytes of neighbouring lines, in ascending order.
    pub fn runs(self) -> impl Iterator<Item = Range<usize>> {
        let mut at = 0u32;
        std::iter::from_fn(move || {
            let rest = self.0.checked_shr(at).filter(|rest| *rest != 0)?;
            let first = at + rest.trailing_zeros();
            let end = first + (!(self.0 >> first)).trailing_zeros();
            at = end;
            Some(first as usize * LINE..end as usize * LINE)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_mask_covers_every_line_of_a_range() {
        assert_eq!(LineMask::touching(0, 4096), LineMask::FULL);
        assert_eq!(LineMask::touching(0, 1), LineMask(1));
        assert_eq!(LineMask::touching(63, 65), LineMask(3));
        assert_eq!(LineMask::touching(64, 64), LineMask::EMPTY);
        assert_eq!(LineMask::touching(4032, 4096), LineMask(1 << 63));
        assert_eq!(LineMask::touching(512, 1024), LineMask(0xff00));
    }

    #[test]
    fn a_line_mask_lists_runs_and_hull() {
        let runs = |mask: u64| LineMask(mask).runs().collect::<Vec<_>>();
        assert_eq!(runs(0), []);
        assert_eq!(runs(u64::MAX), vec![0..4096; 1]);
        assert_eq!(runs(0b1011), [0..128, 192..256]);
        assert_eq!(runs(1 << 63 | 1), [0..64, 4032..4096]);
        assert_eq!(LineMask(0b1010).hull(), 64..256);
        assert_eq!(LineMask(1 << 63).hull(), 4032..4096);
        assert_eq!(LineMask::EMPTY.hull(), 0..0);
        for mask in [0, 1, 1 << 63, 0x00ff_00f0_1234_5678, u64::MAX] {
            let both = LineMask(mask).runs().chain(LineMask(mask).missing().runs());
            assert_eq!(both.map(|run| run.len()).sum::<usize>(), 4096);
        }
    }
}
