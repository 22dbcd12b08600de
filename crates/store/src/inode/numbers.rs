//! Inode numbers: which slots of the inode file are free (volatile, found by scanning pages after mount).
//!
//! Invariant: a number is handed out only when its page was scanned (or just added), its slot is free on
//! the medium and no transaction that frees it is under way.

use crate::error::FsResult;
use crate::operation::need::{Attempt, Need};
use crate::operation::op::SMALL_RECORD;
use crate::parts::inodes::free_numbers::{InodeNumbers, free_word, slots_of};
use crate::parts::inodes::removal_queue::Job;
use crate::store::Store;
use terrace_blocks::{Purpose, Target};
use terrace_format::below::Below;
use terrace_format::inode::{SLOTS_PER_PAGE, flag};
use terrace_format::table::{Owner, PageKind};
use terrace_format::{BLOCK_SIZE, Ino};
use terrace_wal::{NoSpace, Tx};

/// A number taken for a new inode; goes back unless the inode was committed.
pub struct NewNumber<'a> {
    store: &'a Store,
    /// The number.
    pub ino: Ino,
    /// Set when the inode was committed.
    pub kept: bool,
}

impl Drop for NewNumber<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.store.inodes.numbers().lock().insert(self.ino);
        }
    }
}

/// Takes a free inode number.
#[inline]
pub fn new_number(store: &Store) -> Attempt<NewNumber<'_>> {
    let mut numbers = store.inodes.numbers().lock();
    loop {
        if let Some(ino) = numbers.take() {
            return Ok(NewNumber { store, ino, kept: false });
        }
        if !scan_inode_page(store, &mut numbers)? {
            return Err(match numbers.worth_fetching() {
                Some(index) => Need::FreeNumbers(index).into(),
                None => Need::InodePage.into(),
            });
        }
    }
}

/// The inode numbers that are in change: taken numbers without an inode, free numbers with an inode, and
/// numbers whose freeing has not ended. While no operation runs there must be none. Demoted and unscanned
/// inode pages are left out.
///
/// # Errors
/// The medium's.
pub fn unsettled_numbers(store: &Store) -> FsResult<Vec<Ino>> {
    let numbers = store.inodes.numbers().lock();
    let mut found: Vec<Ino> = numbers.freeing.iter().map(|ino| Ino(*ino)).collect();
    for (index, word) in (0u64..).zip(&numbers.free) {
        if numbers.unknown.contains(&index) {
            continue;
        }
        let Some(page) = store.persistent.inode_map().lookup(None, index)? else { continue };
        let mut bytes = [0; BLOCK_SIZE as usize];
        store.persistent.pm().read(page.offset(), &mut bytes)?;
        let differs = word ^ free_word(index, &bytes);
        let of_page = (0..SLOTS_PER_PAGE).filter(|bit| differs >> bit & 1 == 1);
        found.extend(of_page.map(|bit| Ino(index * SLOTS_PER_PAGE + bit)));
    }
    Ok(found)
}

/// Call before the transaction that frees a slot.
pub fn begin_free(store: &Store, ino: Ino) {
    let mut numbers = store.inodes.numbers().lock();
    assert!(!numbers.freeing.contains(&ino.0), "inode {ino} is freed twice at once (C3)");
    numbers.freeing.push(ino.0);
}

/// Call after it; `freed` says whether it was committed.
pub fn end_free(store: &Store, ino: Ino, freed: bool) {
    let mut numbers = store.inodes.numbers().lock();
    let begun = numbers.freeing.len();
    numbers.freeing.retain(|freeing| *freeing != ino.0);
    let left = numbers.freeing.len();
    assert_eq!(left + 1, begun, "frees under way, of which that of inode {ino} ends (C3)");
    if freed {
        numbers.insert(ino);
    }
}

/// Passes over an inode page that cannot be read: its numbers are not given out, and the scan goes on.
fn pass_over(_store: &Store, index: u64, error: &impl std::fmt::Display) {
    tracing::error!("inode page {index} is passed over in the search for free numbers: {error}");
}

/// Scans one page; false when all are scanned.
pub fn scan_inode_page(store: &Store, numbers: &mut InodeNumbers) -> FsResult<bool> {
    let index = numbers.scanned();
    if index >= numbers.pages {
        return Ok(false);
    }
    let mut word = 0;
    match store.persistent.inode_map().lookup(None, index) {
        Ok(Some(page)) => {
            let mut bytes = [0; BLOCK_SIZE as usize];
            let read = store.persistent.pm().read(page.offset(), &mut bytes);
            if let Err(error) = &read {
                pass_over(store, index, error);
            }
            for (ino, slot) in slots_of(index, &bytes).filter(|_| read.is_ok()) {
                if slot.is_free() && ino.0 > 1 && !numbers.freeing.contains(&ino.0) {
                    word |= 1 << (ino.0 % SLOTS_PER_PAGE);
                } else if slot.has(flag::HAS_INTENT) && !slot.has(flag::ORPHAN) {
                    store.inodes.removals().push(Job::Intents(ino));
                }
            }
        }
        Ok(None) => {}
        // Not read for that: its location says whether it has free slots, and it has no intents.
        Err(terrace_wal::Error::PageBelow(_)) => {
            numbers.unknown.insert(index);
            let place = store.persistent.inode_map().location(None, index)?.and_then(Below::decode);
            if place.is_some_and(|place| place.free_slots) {
                numbers.unknown_free.push(index);
            }
        }
        Err(error) if store.persistent.wal().is_stopped() => return Err(error.into()),
        Err(error) => pass_over(store, index, &error),
    }
    numbers.free.push(word);
    if word != 0 {
        numbers.candidates.push(index as u32);
    }
    Ok(true)
}

/// Adds a page to the inode file, a transaction of its own (design T7).
pub fn add_inode_page(store: &Store, purpose: Purpose) -> FsResult<()> {
    let reservation =
        store.persistent.wal().reserve(SMALL_RECORD.min(store.persistent.wal().max_record()))?;
    let mut claim = store.persistent.blocks().claim(6, purpose)?;
    let mut numbers = store.inodes.numbers().lock();
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
        let page = claim.take(Target::Page).ok_or(NoSpace::Pm)?;
        store.persistent.pm().write_streaming(page.offset(), &[0; BLOCK_SIZE as usize])?;
        store.persistent.pm().order();
        store.persistent.inode_map().add_nodes(&mut tx, index, &mut claim)?;
        store.persistent.inode_map().set(&mut tx, index, Some(page))?;
        store.persistent.blocks().set_owner(
            &mut tx,
            page,
            Owner::Page { kind: PageKind::InodePage, datum: index as u32 },
        );
        tx.write_u64(store.persistent.wal().geometry().inode_pages(), index + 1);
        Ok(())
    };
    if let Err(error) = grow() {
        claim.give_back_all();
        return Err(error);
    }
    // After a failure the page stays taken: the record may be valid.
    store.persistent.wal().commit(reservation, &tx)?;
    numbers.pages = index + 1;
    numbers.free.push(if index == 0 { u32::MAX << 2 } else { u32::MAX });
    numbers.candidates.push(index as u32);
    assert_eq!(numbers.scanned(), numbers.pages, "inode pages whose free slots are known, of all (C3)");
    Ok(())
}
