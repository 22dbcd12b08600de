//! Inode numbers: which slots of the inode file are free (volatile, found by scanning pages after mount).
//!
//! Invariant: a number is handed out only when its page was scanned (or just added), its slot is free on
//! the medium and no transaction that frees it is under way.

use crate::errno::FsResult;
use crate::fs::Fs;
use crate::op::{Attempt, Need};
use crate::reclaim_queue::Job;
use std::collections::BTreeSet;
use terrace_blocks::Purpose;
use terrace_format::below::Below;
use terrace_format::inode::{InodeSlot, SLOT_SIZE, SLOTS_PER_PAGE, flag};
use terrace_format::table::{Owner, PageKind};
use terrace_format::{BLOCK_SIZE, Ino};
use terrace_wal::{NoSpace, Tx};
use zerocopy::FromBytes;

/// One in so many pages of the inode file may lie below with free slots before one is fetched for them.
const FETCHED_SHARE: u64 = 4;

/// Free slots of the scanned pages.
#[derive(Default)]
pub(crate) struct InodeNumbers {
    /// One bit per slot, 1 is free; the index is the page.
    free: Vec<u32>,
    /// Pages that may have a free slot.
    candidates: Vec<u32>,
    /// Pages of the inode file.
    pub pages: u64,
    /// Pages that lay below when they were to be scanned: their free slots are not known.
    unknown: BTreeSet<u64>,
    /// Those of them that have some, by their location.
    unknown_free: Vec<u64>,
    /// Numbers whose freeing transaction is not yet applied: as many as threads that free.
    freeing: Vec<u64>,
}

impl InodeNumbers {
    /// Nothing is known of the `pages` pages yet.
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

    /// Whether nobody has taken a number of a page, or frees one, who has not yet changed its slot.
    pub fn is_settled(&self, index: u64, bytes: &[u8; BLOCK_SIZE as usize]) -> bool {
        self.free.get(index as usize) == Some(&free_word(index, bytes))
    }

    /// A settled page moved below: what is made meanwhile gets a number of another page.
    pub fn unlearn(&mut self, index: u64) {
        let Some(word) = self.free.get_mut(index as usize) else { return };
        self.unknown.insert(index);
        if std::mem::take(word) != 0 {
            self.unknown_free.push(index);
        }
    }

    /// A page below that is to be fetched for its free slots: when they are many. Else a new page, which takes as much
    /// of PM and waits for no device, is better.
    fn worth_fetching(&self) -> Option<u64> {
        let many = self.unknown_free.len() as u64 * FETCHED_SHARE >= self.pages;
        self.unknown_free.last().copied().filter(|_| many)
    }

    /// Looks for no free slots in pages below any more.
    pub fn give_up_below(&mut self) {
        self.unknown_free.clear();
    }

    fn insert(&mut self, ino: Ino) {
        let (page, bit) = (ino.0 / SLOTS_PER_PAGE, ino.0 % SLOTS_PER_PAGE);
        if let Some(word) = self.free.get_mut(page as usize) {
            if *word == 0 {
                self.candidates.push(page as u32);
            }
            *word |= 1 << bit;
        }
    }

    fn take(&mut self) -> Option<Ino> {
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

/// A number taken for a new inode; goes back unless the inode was committed.
pub(crate) struct NewNumber<'a> {
    fs: &'a Fs,
    pub ino: Ino,
    pub kept: bool,
}

impl Drop for NewNumber<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.fs.numbers.lock().insert(self.ino);
        }
    }
}

/// The free slots of a page, one bit each.
fn free_word(index: u64, bytes: &[u8; BLOCK_SIZE as usize]) -> u32 {
    let free = slots_of(index, bytes).filter(|(ino, slot)| slot.is_free() && ino.0 > 1);
    free.fold(0, |word, (ino, _)| word | 1 << (ino.0 % SLOTS_PER_PAGE))
}

/// The slots of a page.
fn slots_of(index: u64, bytes: &[u8; BLOCK_SIZE as usize]) -> impl Iterator<Item = (Ino, InodeSlot)> {
    let slots = bytes.as_chunks::<{ SLOT_SIZE as usize }>().0.iter().zip(index * SLOTS_PER_PAGE..);
    slots.filter_map(|(raw, ino)| Some((Ino(ino), InodeSlot::read_from_bytes(raw).ok()?)))
}

impl Fs {
    /// Takes a free inode number.
    pub(crate) fn new_number(&self) -> Attempt<NewNumber<'_>> {
        let mut numbers = self.numbers.lock();
        loop {
            if let Some(ino) = numbers.take() {
                return Ok(NewNumber { fs: self, ino, kept: false });
            }
            if !self.scan_inode_page(&mut numbers)? {
                return Err(match numbers.worth_fetching() {
                    Some(index) => Need::FreeNumbers(index).into(),
                    None => Need::InodePage.into(),
                });
            }
        }
    }

    /// Numbers that nobody takes or frees at this moment if all is well: those taken of which no inode was made, those
    /// free although there is an inode, those whose freeing has not ended. Pages below, and such as were not scanned, are
    /// left out.
    ///
    /// # Errors
    /// The medium's.
    pub(crate) fn unsettled_numbers(&self) -> FsResult<Vec<Ino>> {
        let numbers = self.numbers.lock();
        let mut found: Vec<Ino> = numbers.freeing.iter().map(|ino| Ino(*ino)).collect();
        for (index, word) in (0u64..).zip(&numbers.free) {
            if numbers.unknown.contains(&index) {
                continue;
            }
            let Some(page) = self.inode_map.lookup(None, index)? else { continue };
            let mut bytes = [0; BLOCK_SIZE as usize];
            self.pm.read(page.offset(), &mut bytes)?;
            let differs = word ^ free_word(index, &bytes);
            let of_page = (0..SLOTS_PER_PAGE).filter(|bit| differs >> bit & 1 == 1);
            found.extend(of_page.map(|bit| Ino(index * SLOTS_PER_PAGE + bit)));
        }
        Ok(found)
    }

    /// Call before the transaction that frees a slot.
    pub(crate) fn begin_free(&self, ino: Ino) {
        self.numbers.lock().freeing.push(ino.0);
    }

    /// Call after it; `freed` says whether it was committed.
    pub(crate) fn end_free(&self, ino: Ino, freed: bool) {
        let mut numbers = self.numbers.lock();
        numbers.freeing.retain(|freeing| *freeing != ino.0);
        if freed {
            numbers.insert(ino);
        }
    }

    /// A page that cannot be read: its numbers are given to nobody, and the others' go on.
    fn pass_over(&self, index: u64, error: &impl std::fmt::Display) {
        tracing::error!("inode page {index} is passed over in the search for free numbers: {error}");
    }

    /// Scans one page; false when all are scanned.
    pub(crate) fn scan_inode_page(&self, numbers: &mut InodeNumbers) -> FsResult<bool> {
        let index = numbers.scanned();
        if index >= numbers.pages {
            return Ok(false);
        }
        let mut word = 0;
        match self.inode_map.lookup(None, index) {
            Ok(Some(page)) => {
                let mut bytes = [0; BLOCK_SIZE as usize];
                let read = self.pm.read(page.offset(), &mut bytes);
                if let Err(error) = &read {
                    self.pass_over(index, error);
                }
                for (ino, slot) in slots_of(index, &bytes).filter(|_| read.is_ok()) {
                    if slot.is_free() && ino.0 > 1 && !numbers.freeing.contains(&ino.0) {
                        word |= 1 << (ino.0 % SLOTS_PER_PAGE);
                    } else if slot.has(flag::HAS_INTENT) && !slot.has(flag::ORPHAN) {
                        self.reclaim.push(Job::Intents(ino));
                    }
                }
            }
            Ok(None) => {}
            // Not read for that: its location says whether it has free slots, and it has no intents.
            Err(terrace_wal::Error::PageBelow(_)) => {
                numbers.unknown.insert(index);
                let place = self.inode_map.location(None, index)?.and_then(Below::decode);
                if place.is_some_and(|place| place.free_slots) {
                    numbers.unknown_free.push(index);
                }
            }
            Err(error) if self.wal.is_stopped() => return Err(error.into()),
            Err(error) => self.pass_over(index, &error),
        }
        numbers.free.push(word);
        if word != 0 {
            numbers.candidates.push(index as u32);
        }
        Ok(true)
    }

    /// Adds a page to the inode file, a transaction of its own (design T7).
    pub(crate) fn add_inode_page(&self, purpose: Purpose) -> FsResult<()> {
        let reservation = self.wal.reserve(crate::op::SMALL_RECORD.min(self.wal.max_record()))?;
        let mut claim = self.blocks.claim(6, purpose)?;
        let mut numbers = self.numbers.lock();
        let known = numbers.candidates.is_empty() && numbers.worth_fetching().is_none();
        if !known || numbers.scanned() < numbers.pages {
            return Ok(());
        }
        let index = numbers.pages;
        if (index + 1) * SLOTS_PER_PAGE > terrace_format::address::MAX_INO.0 {
            return Err(NoSpace::Numbers.into());
        }
        let mut tx = Tx::new();
        let mut grow = || -> FsResult<()> {
            let page = claim.take().ok_or(NoSpace::Pm)?;
            self.pm.write_streaming(page.offset(), &[0; BLOCK_SIZE as usize])?;
            self.pm.order();
            self.inode_map.add_nodes(&mut tx, index, &mut claim)?;
            self.inode_map.set(&mut tx, index, Some(page))?;
            self.blocks.set_owner(
                &mut tx,
                page,
                Owner::Page { kind: PageKind::InodePage, datum: index as u32 },
            );
            tx.write_u64(self.wal.geometry().inode_pages(), index + 1);
            Ok(())
        };
        if let Err(error) = grow() {
            claim.give_back_all();
            return Err(error);
        }
        // After a failure the page stays taken: the record may be valid.
        self.wal.commit(reservation, &tx)?;
        numbers.pages = index + 1;
        numbers.free.push(if index == 0 { u32::MAX << 2 } else { u32::MAX });
        numbers.candidates.push(index as u32);
        Ok(())
    }
}
