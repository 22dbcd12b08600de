//! Checksums of metadata pages in PM, each in a word of an area of its own, that the first access after a mount compares
//! (docs/decisions/0024, I8).
//!
//! ```text
//! word of a page: CRC32C of page, block number and pool in the low half, its complement in the high half; 0: open
//! ```
//! A page that is being changed is *open*: its word is zero and proves nothing. A page that was not changed
//! for a while is covered in the background; a clean unmount covers all pages.
//!
//! Invariants: 1. A page differs from the content that its word covers only by records above the checkpoint.
//! Recovery replays these records and opens their pages. So the checkpoint opens each page that a record
//! changed before it passes the record. 2. No record changes a page that was not checked since the mount. 3.
//! A block that becomes a metadata page is opened with the record that gives it this owner: by the engine
//! before the record's fence, and by recovery in a replay.
//! 4. Pages are covered under the checkpoint's lock: no page is freed and used again meanwhile (T6).

use crate::error::{Error, Result};
use std::sync::Arc;
use terrace_format::geometry::{Geometry, ROOTS_BLOCK};
use terrace_format::page_checksum::{ChecksumWord, new_pages, page_checksum};
use terrace_format::table::Owner;
use terrace_format::{BLOCK_SIZE, Corrupt, PmBlock, PmOffset};
use terrace_media::PmMedium;
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Not checked since the mount.
const UNKNOWN: u8 = 0;
/// Open, and changed since the background step came by.
const CHANGED: u8 = 1;
/// Open, and not changed since the background step came by.
const QUIET: u8 = 2;
/// The word covers the page.
const COVERED: u8 = 3;
/// The page does not match its word.
const DAMAGED: u8 = 4;
/// The word could not be read or written: the page is never covered, and the word is opened anew with each
/// change.
const WITHOUT: u8 = 5;

/// Pages covered under one hold of the checkpoint's lock, and states looked at.
const AT_ONCE: (usize, usize) = (32, 16384);

/// The checksums of a pool; in a pool without the feature every page counts as sound.
pub struct PageChecksums {
    pm: Arc<dyn PmMedium>,
    geometry: Geometry,
    pool_uuid: [u8; 16],
    /// By block; empty in a pool without them.
    states: Vec<AtomicU8>,
    damaged: AtomicU64,
    next: AtomicU64,
    /// Pages that have to be open and whose words could not be written: no checkpoint moves before they are.
    unopened: Mutex<Vec<PmBlock>>,
}

impl PageChecksums {
    pub(crate) fn new(pm: Arc<dyn PmMedium>, geometry: Geometry, pool_uuid: [u8; 16]) -> PageChecksums {
        let count = if geometry.checksummed { geometry.block_count() } else { 0 };
        let states = (0..count).map(|_| AtomicU8::new(UNKNOWN)).collect();
        PageChecksums {
            pm,
            geometry,
            pool_uuid,
            states,
            damaged: AtomicU64::new(0),
            next: AtomicU64::new(0),
            unopened: Mutex::default(),
        }
    }

    /// Pages that were found not to match.
    pub fn damaged(&self) -> u64 {
        self.damaged.load(Ordering::Relaxed)
    }

    /// Refuses a metadata page that does not match its checksum. Costs a look at one byte but for the first time.
    ///
    /// # Errors
    /// `Corrupt`; the medium's.
    #[inline]
    pub fn ensure(&self, page: PmBlock) -> Result<()> {
        match self.states.get(page.0 as usize) {
            None => Ok(()),
            Some(state) if (CHANGED..=COVERED).contains(&state.load(Ordering::Relaxed)) => Ok(()),
            Some(state) => self.look(page, state),
        }
    }

    /// [`Self::ensure`] for each page that a range touches.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn ensure_range(&self, offset: PmOffset, length: usize) -> Result<()> {
        let last = (offset.0 + (length as u64).max(1) - 1) / BLOCK_SIZE;
        (offset.0 / BLOCK_SIZE..=last).try_for_each(|page| self.ensure(PmBlock(page)))
    }

    #[cold]
    fn look(&self, page: PmBlock, state: &AtomicU8) -> Result<()> {
        if state.load(Ordering::Acquire) == UNKNOWN {
            let next = match self.pm.load_u64(self.geometry.checksum_word(page)).map(ChecksumWord::decode) {
                Err(_) => self.write_open(page).map_or(WITHOUT, |()| CHANGED),
                Ok(ChecksumWord::Open) => CHANGED,
                Ok(ChecksumWord::Damaged(word)) => {
                    tracing::warn!(
                        "the checksum word of metadata page {page} is damaged ({word:#x}); the page counts as open"
                    );
                    CHANGED
                }
                Ok(ChecksumWord::Covers(crc)) => match self.crc_of(page) {
                    Ok(found) if found == crc => COVERED,
                    Ok(_) => DAMAGED,
                    // A page with an unreadable line counts as open, so its other lines stay usable.
                    Err(_) => self.write_open(page).map_or(WITHOUT, |()| CHANGED),
                },
            };
            // Another thread may have checked and changed the page meanwhile: then the state of that thread
            // counts.
            let first = state.compare_exchange(UNKNOWN, next, Ordering::AcqRel, Ordering::Acquire).is_ok();
            if first && next == DAMAGED {
                self.damaged.fetch_add(1, Ordering::Relaxed);
                tracing::error!(
                    "metadata page {page} does not match its checksum; what it holds is not used"
                );
            }
        }
        if state.load(Ordering::Acquire) == DAMAGED {
            return Err(damaged(page));
        }
        Ok(())
    }

    fn crc_of(&self, page: PmBlock) -> Result<u32> {
        let mut bytes = [0; BLOCK_SIZE as usize];
        self.pm.read(page.offset(), &mut bytes)?;
        Ok(page_checksum(&self.pool_uuid, page, &bytes))
    }

    /// Opens the checksum word of a block that becomes a metadata page: call between the claim of the block
    /// and the commit of its owner. The open word is durable with the fence of that commit.
    pub fn open(&self, page: PmBlock) {
        if let Some(state) = self.states.get(page.0 as usize) {
            let known_open = matches!(state.load(Ordering::Acquire), CHANGED | QUIET);
            if known_open || self.is_open(page) {
                state.store(CHANGED, Ordering::Release);
            } else {
                self.open_or_note(page, state);
            }
        }
    }

    /// Notes a metadata page that the scan of the block table has met: where it is open since before the mount, as after a
    /// crash, it is covered in its turn.
    pub fn met(&self, page: PmBlock) {
        if let Some(state) = self.states.get(page.0 as usize)
            && state.load(Ordering::Relaxed) == UNKNOWN
            && self.is_open(page)
        {
            let _ = state.compare_exchange(UNKNOWN, CHANGED, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    fn is_open(&self, page: PmBlock) -> bool {
        self.pm.load_u64(self.geometry.checksum_word(page)).is_ok_and(|word| word == 0)
    }

    fn write_open(&self, page: PmBlock) -> Result<()> {
        Ok(self.pm.write(self.geometry.checksum_word(page), &[0; 8])?)
    }

    /// Opens the page of a line that a record has changed. The caller holds the checkpoint's lock, asks
    /// [`Self::expect_open`] afterwards, and fences before the checkpoint passes the record.
    #[inline]
    pub(crate) fn changed(&self, line: PmOffset) {
        let page = PmBlock(line.0 / BLOCK_SIZE);
        let Some(state) = self.states.get(page.0 as usize) else { return };
        match state.load(Ordering::Relaxed) {
            CHANGED => {}
            QUIET => state.store(CHANGED, Ordering::Release),
            _ => self.open_or_note(page, state),
        }
    }

    #[cold]
    fn open_or_note(&self, page: PmBlock, state: &AtomicU8) {
        match self.write_open(page) {
            Ok(()) => state.store(CHANGED, Ordering::Release),
            Err(_) => {
                state.store(WITHOUT, Ordering::Release);
                self.unopened.lock().push(page);
            }
        }
    }

    /// Tries again what could not be opened.
    ///
    /// # Errors
    /// The medium's: a word that can be read but not written would call a changed page damaged. A word that can be neither
    /// read nor written calls no page anything.
    pub(crate) fn expect_open(&self) -> Result<()> {
        let mut unopened = self.unopened.lock();
        while let Some(page) = unopened.last().copied() {
            match self.write_open(page) {
                Ok(()) => self.set_state(page, CHANGED),
                Err(error) if self.pm.load_u64(self.geometry.checksum_word(page)).is_ok() => {
                    return Err(error);
                }
                Err(_) => {}
            }
            unopened.pop();
        }
        Ok(())
    }

    fn set_state(&self, page: PmBlock, new: u8) {
        if let Some(state) = self.states.get(page.0 as usize) {
            state.store(new, Ordering::Release);
        }
    }

    /// Opens the pages that a replayed write of a record has changed, and the block that it makes a metadata page: the
    /// record may be durable although [`Self::open`]'s store is not. As [`Self::changed`].
    pub(crate) fn replayed(&self, offset: PmOffset, content: &[u8]) {
        let last = (offset.0 + (content.len() as u64).max(1) - 1) / BLOCK_SIZE;
        (offset.0 / BLOCK_SIZE..=last).for_each(|page| self.changed(PmOffset(page * BLOCK_SIZE)));
        let made = new_pages(&self.geometry, offset, content);
        made.into_iter().for_each(|page| self.changed(page.offset()));
    }

    /// Covers pages that were not changed for a while; true when it has come round. The caller holds the checkpoint's lock.
    pub(crate) fn cover_some(&self) -> bool {
        let (pages, states) = AT_ONCE;
        let (mut covered, mut at) = (0, self.next.load(Ordering::Relaxed) as usize);
        let end = (at + states).min(self.states.len());
        while at < end && covered < pages {
            let state = &self.states[at];
            match state.load(Ordering::Acquire) {
                CHANGED => _ = state.compare_exchange(CHANGED, QUIET, Ordering::AcqRel, Ordering::Relaxed),
                QUIET => covered += usize::from(self.cover(PmBlock(at as u64), state)),
                _ => {}
            }
            at += 1;
        }
        let round = at >= self.states.len();
        self.next.store(if round { 0 } else { at as u64 }, Ordering::Relaxed);
        round
    }

    /// Covers every open page that was looked at. No transaction may follow; the caller holds the checkpoint's lock and
    /// fences.
    pub(crate) fn cover_all(&self) {
        for (page, state) in (0..).map(PmBlock).zip(&self.states) {
            if matches!(state.load(Ordering::Acquire), CHANGED | QUIET) {
                self.cover(page, state);
            }
        }
    }

    /// Covers a page if it is metadata; true when it did. What cannot be read stays open.
    fn cover(&self, page: PmBlock, state: &AtomicU8) -> bool {
        if !self.is_metadata(page) {
            return false;
        }
        let covered = self.crc_of(page).and_then(|crc| {
            Ok(self.pm.write(
                self.geometry.checksum_word(page),
                &ChecksumWord::Covers(crc).encode().to_le_bytes(),
            )?)
        });
        let next = if covered.is_ok() { COVERED } else { WITHOUT };
        state.store(next, Ordering::Release);
        covered.is_ok()
    }

    fn is_metadata(&self, page: PmBlock) -> bool {
        if page == ROOTS_BLOCK || self.geometry.is_table(page) || self.geometry.is_map_area(page) {
            return true;
        }
        let owner = || self.pm.load_u64(self.geometry.table_entry(page)).ok().and_then(Owner::decode);
        page >= self.geometry.first_pool_block() && matches!(owner(), Some(Owner::Page { .. }))
    }
}

fn damaged(page: PmBlock) -> Error {
    Corrupt::new(format!("metadata page {page}"), "bytes that match its checksum", "others").into()
}
