//! Free inode numbers, found page by page.

use std::collections::BTreeSet;
use terrace_format::inode::{InodeSlot, SLOT_SIZE, SLOTS_PER_PAGE};
use terrace_format::{BLOCK_SIZE, Ino};
use zerocopy::FromBytes;

/// Once a part in `FETCHED_SHARE` of the inode pages lies below with free slots, a new inode fetches such a
/// page.
const FETCHED_SHARE: u64 = 4;

/// Free slots of the scanned pages.
#[derive(Default)]
pub struct InodeNumbers {
    /// The slots of each inode page, a bit per slot; 1 is free.
    pub free: Vec<u32>,
    /// Pages that may have a free slot.
    pub candidates: Vec<u32>,
    /// Pages of the inode file.
    pub pages: u64,
    /// Pages that lay on a lower tier when the scan reached them: their free slots are unknown.
    pub unknown: BTreeSet<u64>,
    /// The unknown pages that have free slots, as the location word of each says.
    pub(crate) unknown_free: Vec<u64>,
    /// Numbers whose freeing transaction is not yet applied: at most one of each freeing thread.
    pub freeing: Vec<u64>,
}

impl InodeNumbers {
    /// The table for `pages` inode pages, before the scan.
    pub fn new(pages: u64) -> InodeNumbers {
        InodeNumbers { pages, ..Default::default() }
    }

    /// Pages whose free slots are known, or that lay below when it was their turn.
    pub fn scanned(&self) -> u64 {
        self.free.len() as u64
    }

    /// Takes note of the slots of a page that came into PM.
    pub fn learn(&mut self, index: u64, bytes: &[u8; BLOCK_SIZE as usize]) {
        if !self.unknown.remove(&index) {
            return;
        }
        self.unknown_free.retain(|page| *page != index);
        for (ino, slot) in slots_of(index, bytes) {
            if slot.is_free() && ino.0 > 1 && !self.freeing.contains(&ino.0) {
                self.insert(ino);
            }
        }
    }

    /// Whether the slots of a page agree with its free bits: no operation has taken or freed a number and not
    /// yet changed the slot.
    pub(crate) fn is_settled(&self, index: u64, bytes: &[u8; BLOCK_SIZE as usize]) -> bool {
        self.free.get(index as usize) == Some(&free_word(index, bytes))
    }

    /// A page without numbers in change was demoted: new inodes get numbers of other pages.
    pub(crate) fn unlearn(&mut self, index: u64) {
        let Some(word) = self.free.get_mut(index as usize) else { return };
        self.unknown.insert(index);
        if std::mem::take(word) != 0 {
            self.unknown_free.push(index);
        }
    }

    /// The demoted inode page to fetch for its free slots, if many such pages exist. Otherwise a new page is
    /// better: it takes as much PM and waits for no device.
    pub(crate) fn worth_fetching(&self) -> Option<u64> {
        let many = self.unknown_free.len() as u64 * FETCHED_SHARE >= self.pages;
        self.unknown_free.last().copied().filter(|_| many)
    }

    /// Looks for no free slots in pages below any more.
    pub(crate) fn give_up_below(&mut self) {
        self.unknown_free.clear();
    }

    /// Adds a free number.
    pub fn insert(&mut self, ino: Ino) {
        let (page, bit) = (ino.0 / SLOTS_PER_PAGE, ino.0 % SLOTS_PER_PAGE);
        if let Some(word) = self.free.get_mut(page as usize) {
            if *word == 0 {
                self.candidates.push(page as u32);
            }
            *word |= 1 << bit;
        }
    }

    /// Takes a free number.
    pub fn take(&mut self) -> Option<Ino> {
        while let Some(page) = self.candidates.last().copied() {
            let word = self.free.get_mut(page as usize)?;
            if *word == 0 {
                self.candidates.pop();
                continue;
            }
            let bit = word.trailing_zeros();
            *word &= *word - 1;
            if *word == 0 {
                self.candidates.pop();
            }
            return Some(Ino(u64::from(page) * SLOTS_PER_PAGE + u64::from(bit)));
        }
        None
    }
}

/// The free slots of a page, one bit each.
pub(crate) fn free_word(index: u64, bytes: &[u8; BLOCK_SIZE as usize]) -> u32 {
    let free = slots_of(index, bytes).filter(|(ino, slot)| slot.is_free() && ino.0 > 1);
    free.fold(0, |word, (ino, _)| word | 1 << (ino.0 % SLOTS_PER_PAGE))
}

/// The slots of a page.
pub(crate) fn slots_of(
    index: u64,
    bytes: &[u8; BLOCK_SIZE as usize],
) -> impl Iterator<Item = (Ino, InodeSlot)> {
    let slots = bytes.as_chunks::<{ SLOT_SIZE as usize }>().0.iter().zip(index * SLOTS_PER_PAGE..);
    slots.filter_map(|(raw, ino)| Some((Ino(ino), InodeSlot::read_from_bytes(raw).ok()?)))
}
