//! The last parts of the memory file, for the process that takes it up (J13): bits of the pages that opening found damaged, and
//! behind them a page with the name of the journal whose image this is.
//!
//! ```text
//! magic 8 B · the journal's UUID 16 B · epoch 8 B · number of an anchor 8 B · zeros
//! ```
//! Invariant: the name is there from the moment on at which image, dirty bits and these bits belong to the anchors of this epoch
//! from this number on. An older anchor lacks pages whose bits have ended.

use crate::pm::RamPm;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use terrace_format::BLOCK_SIZE;

/// Bits of a word.
const BITS: u64 = 64;
/// First word of the name.
const MAGIC: u64 = u64::from_le_bytes(*b"TERRMEM0");

/// Places of the last parts.
pub(super) struct Kept {
    /// Byte of the first word of the bits.
    start: u64,
    pages: u64,
}

impl Kept {
    /// Bytes for an image of so many pages.
    pub fn bytes(pages: u64) -> u64 {
        Self::bits_bytes(pages) + BLOCK_SIZE
    }

    fn bits_bytes(pages: u64) -> u64 {
        (pages.div_ceil(BITS) * 8).next_multiple_of(BLOCK_SIZE)
    }

    /// The last parts of a memory, from a byte on.
    pub fn new(start: u64, pages: u64) -> Kept {
        Kept { start, pages }
    }

    /// Notes a damaged page.
    pub fn condemn(&self, memory: &RamPm, page: u64) {
        assert!(page < self.pages, "page {page} of {}", self.pages);
        memory.word(self.start + page / BITS * 8).fetch_or(1 << (page % BITS), Ordering::SeqCst);
    }

    /// The damaged pages.
    pub fn condemned(&self, memory: &RamPm) -> BTreeSet<u64> {
        let has_bit = |page: &u64| {
            memory.word(self.start + page / BITS * 8).load(Ordering::SeqCst) & 1 << (page % BITS) != 0
        };
        (0..self.pages).filter(has_bit).collect()
    }

    fn name(&self, index: u64) -> u64 {
        self.start + Self::bits_bytes(self.pages) + index * 8
    }

    /// Names the journal, its epoch and its oldest anchor that suits the memory. The epoch comes last: it is never zero.
    pub fn set_name(&self, memory: &RamPm, uuid: &[u8; 16], epoch: u64, number: u64) {
        assert!(epoch > 0, "an epoch of no opening");
        for (index, word) in (0..).zip(names(uuid)) {
            memory.word(self.name(index)).store(word, Ordering::SeqCst);
        }
        self.set_number(memory, number);
        memory.word(self.name(EPOCH)).store(epoch, Ordering::SeqCst);
    }

    /// An anchor is durable, and no older anchor suits the memory from now on.
    pub fn set_number(&self, memory: &RamPm, number: u64) {
        memory.word(self.name(NUMBER)).store(number, Ordering::SeqCst);
    }

    /// Epoch and number of the oldest anchor, of a memory with the name of this journal.
    pub fn epoch_and_number(&self, memory: &RamPm, uuid: &[u8; 16]) -> Option<(u64, u64)> {
        let word = |index| memory.word(self.name(index)).load(Ordering::SeqCst);
        let is_named = (0..).zip(names(uuid)).all(|(index, expected)| word(index) == expected);
        is_named.then(|| (word(EPOCH), word(NUMBER)))
    }
}

/// Words of the name behind magic and UUID.
const EPOCH: u64 = 3;
const NUMBER: u64 = 4;

/// Magic and UUID.
fn names(uuid: &[u8; 16]) -> impl Iterator<Item = u64> {
    let words = uuid.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
    std::iter::once(MAGIC).chain(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_damaged_pages_are_kept_apart() {
        let pages = 40_000;
        let memory = RamPm::anonymous(4096 + Kept::bytes(pages)).unwrap();
        let kept = Kept::new(4096, pages);
        assert_eq!(kept.epoch_and_number(&memory, &[0; 16]), None, "zeros are no name");
        for page in [0, 63, 64, 39_999] {
            kept.condemn(&memory, page);
        }
        kept.set_name(&memory, &[7; 16], 3, 11);
        assert_eq!(kept.epoch_and_number(&memory, &[7; 16]), Some((3, 11)));
        assert_eq!(kept.epoch_and_number(&memory, &[8; 16]), None);
        kept.set_name(&memory, &[7; 16], 4, 15);
        kept.set_number(&memory, 16);
        assert_eq!(kept.epoch_and_number(&memory, &[7; 16]), Some((4, 16)));
        assert_eq!(kept.condemned(&memory), BTreeSet::from([0, 63, 64, 39_999]));
    }
}
