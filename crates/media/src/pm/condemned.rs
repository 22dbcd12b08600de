//! Pages of a mapping whose content is known to be wrong: a bitmap, made with the first of them.
//!
//! Invariant: a condemned page stays condemned until the medium is opened anew; no call takes a bit back.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const BITS: u64 = 64;

/// The condemned pages of a mapping.
pub(super) struct CondemnedPages {
    pages: u64,
    words: OnceLock<Box<[AtomicU64]>>,
}

impl CondemnedPages {
    /// None, of a mapping of so many pages.
    pub fn new(pages: u64) -> CondemnedPages {
        CondemnedPages { pages, words: OnceLock::new() }
    }

    /// Condemns pages; those behind the mapping are left out.
    pub fn add(&self, pages: Range<u64>) {
        let words =
            self.words.get_or_init(|| (0..self.pages.div_ceil(BITS)).map(|_| AtomicU64::new(0)).collect());
        for page in pages.start..pages.end.min(self.pages) {
            if let Some(word) = words.get((page / BITS) as usize) {
                word.fetch_or(1 << (page % BITS), Ordering::Release);
            }
        }
    }

    /// Whether a page of the range is condemned.
    pub fn touch(&self, pages: Range<u64>) -> bool {
        let mut page = pages.start;
        while page < pages.end {
            let Some(word) = self.words().get((page / BITS) as usize) else { return false };
            let end = ((page / BITS + 1) * BITS).min(pages.end);
            let bits = word.load(Ordering::Acquire) >> (page % BITS);
            if u64::from(bits.trailing_zeros()) < end - page {
                return true;
            }
            page = end;
        }
        false
    }

    /// The number of condemned pages.
    pub fn count(&self) -> u64 {
        self.words().iter().map(|word| u64::from(word.load(Ordering::Acquire).count_ones())).sum()
    }

    /// The condemned pages as ranges, neighbours in one range.
    pub fn runs(&self) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for (number, word) in (0..).zip(self.words()) {
            let mut bits = word.load(Ordering::Acquire);
            while bits != 0 {
                let page = number * BITS + u64::from(bits.trailing_zeros());
                bits &= bits - 1;
                match runs.last_mut() {
                    Some(run) if run.end == page => run.end += 1,
                    _ => runs.push(page..page + 1),
                }
            }
        }
        runs
    }

    fn words(&self) -> &[AtomicU64] {
        self.words.get().map_or(&[], |words| words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn condemned_pages_are_found_counted_and_merged() {
        let pages = CondemnedPages::new(200);
        assert!(!pages.touch(0..200) && pages.runs().is_empty() && pages.count() == 0);
        pages.add(60..70);
        pages.add(64..65);
        pages.add(127..128);
        pages.add(128..129);
        pages.add(199..300);
        assert_eq!(pages.runs(), [60..70, 127..129, 199..200]);
        assert_eq!(pages.count(), 13);
        for page in 0..250 {
            let expected = pages.runs().iter().any(|run| run.contains(&page));
            assert_eq!(pages.touch(page..page + 1), expected, "page {page}");
        }
        assert!(!pages.touch(70..127) && pages.touch(70..128) && pages.touch(0..61) && !pages.touch(0..60));
        assert!(!pages.touch(129..199) && !pages.touch(65..65), "ranges between them");
    }
}
