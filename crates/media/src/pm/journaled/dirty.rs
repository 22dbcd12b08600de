//! The pages of the image that home lacks: two bits for each page, behind the image in the same memory file, which outlives the
//! process (J13).
//!
//! A page is *dirty* from a store on until a home round takes the page, then *going* until the round's anchor is durable. Invariants: the dirty bit is set before the store. Bits of a page change under its lock, but for the end of a
//! round, which clears going bits alone.

use crate::pm::RamPm;
use std::sync::atomic::Ordering;

/// Bits of a word.
const BITS: u64 = 64;

/// Places of the bits.
pub(super) struct DirtyPages {
    /// Byte of the first word.
    start: u64,
    pages: u64,
}

impl DirtyPages {
    /// Bytes behind an image of so many pages.
    pub fn bytes(pages: u64) -> u64 {
        (2 * pages.div_ceil(BITS) * 8).next_multiple_of(4096)
    }

    /// The bits behind an image of so many bytes and pages.
    pub fn new(start: u64, pages: u64) -> DirtyPages {
        DirtyPages { start, pages }
    }

    fn dirty(&self, word: u64) -> u64 {
        self.start + word * 8
    }

    fn going_word(&self, word: u64) -> u64 {
        self.start + (self.pages.div_ceil(BITS) + word) * 8
    }

    fn words(&self) -> u64 {
        self.pages.div_ceil(BITS)
    }

    /// A page is about to be stored to.
    #[inline]
    pub fn mark(&self, image: &RamPm, page: u64) {
        let word = image.word(self.dirty(page / BITS));
        let bit = 1 << (page % BITS);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// Dirty pages from `from` on, at most so many, in order.
    pub fn list(&self, image: &RamPm, from: u64, most: usize) -> Vec<u64> {
        let mut found = Vec::new();
        for number in from / BITS..self.words() {
            let mut word = image.word(self.dirty(number)).load(Ordering::SeqCst);
            if number == from / BITS {
                word &= u64::MAX << (from % BITS);
            }
            while word != 0 && found.len() < most {
                found.push(number * BITS + u64::from(word.trailing_zeros()));
                word &= word - 1;
            }
            if found.len() == most {
                break;
            }
        }
        found
    }

    /// Dirty pages, and pages that go home.
    pub fn count(&self, image: &RamPm) -> u64 {
        let ones = |at| u64::from(image.word(at).load(Ordering::Relaxed).count_ones());
        (0..self.words()).map(|word| ones(self.dirty(word)) + ones(self.going_word(word))).sum()
    }

    /// Pages that a round has taken.
    pub fn going(&self, image: &RamPm) -> Vec<u64> {
        let bits = |number: u64| {
            let word = image.word(self.going_word(number)).load(Ordering::SeqCst);
            (0..BITS).filter(move |bit| word & 1 << bit != 0).map(move |bit| number * BITS + bit)
        };
        (0..self.words()).flat_map(bits).collect()
    }

    /// A round takes a page, under the page's lock.
    pub fn take(&self, image: &RamPm, page: u64) {
        let bit = 1 << (page % BITS);
        image.word(self.going_word(page / BITS)).fetch_or(bit, Ordering::SeqCst);
        image.word(self.dirty(page / BITS)).fetch_and(!bit, Ordering::SeqCst);
    }

    /// Takes a page if it is dirty, under the page's lock.
    pub fn take_dirty(&self, image: &RamPm, page: u64) {
        if image.word(self.dirty(page / BITS)).load(Ordering::SeqCst) & 1 << (page % BITS) != 0 {
            self.take(image, page);
        }
    }

    /// The content of a page means nothing from now on, under the page's lock.
    pub fn forget(&self, image: &RamPm, page: u64) {
        image.word(self.dirty(page / BITS)).fetch_and(!(1 << (page % BITS)), Ordering::SeqCst);
    }

    /// The anchor of a round is durable.
    pub fn end_round(&self, image: &RamPm) {
        (0..self.words()).for_each(|word| image.word(self.going_word(word)).store(0, Ordering::SeqCst));
    }

    /// A round failed: its pages are dirty again.
    pub fn give_back(&self, image: &RamPm) {
        for word in 0..self.words() {
            let going = image.word(self.going_word(word)).load(Ordering::SeqCst);
            image.word(self.dirty(word)).fetch_or(going, Ordering::SeqCst);
        }
        self.end_round(image);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_dirty_until_its_round_ends_and_again_after_a_failure() {
        let image = RamPm::anonymous(1 << 20).unwrap();
        let dirty = DirtyPages::new(4096, 200);
        for page in [0, 63, 64, 150, 199] {
            dirty.mark(&image, page);
        }
        assert_eq!(dirty.list(&image, 0, 99), [0, 63, 64, 150, 199]);
        assert_eq!(dirty.list(&image, 1, 2), [63, 64]);
        assert_eq!(dirty.list(&image, 151, 9), [199]);
        dirty.take(&image, 64);
        dirty.forget(&image, 150);
        assert_eq!((dirty.list(&image, 0, 99), dirty.count(&image)), (vec![0, 63, 199], 4));
        dirty.give_back(&image);
        assert_eq!(dirty.list(&image, 0, 99), [0, 63, 64, 199]);
        dirty.take(&image, 0);
        dirty.end_round(&image);
        assert_eq!((dirty.list(&image, 0, 99), dirty.count(&image)), (vec![63, 64, 199], 3));
    }
}
