//! Home rounds: pages of the image go home, and the log before them is free (J7).
//!
//! A round has this order:
//! 1. A boundary C of the log, and a wait for every store with a place before C: all of them have marked their pages.
//! 2. For at most 128 dirty pages at a time: each is taken and copied under its lock; an entry names them; the log becomes
//!    durable up to that entry; the pages are written.
//! 3. The changed blocks of the table that is not in use; a flush; the anchor, which names C and that table.
//! 4. Only then the log before C is free.
//!
//! Invariants: a page in home is never newer than the durable log. A crash tears only pages that an entry behind the anchor's C
//! names. An anchor whose write failed may be durable: the next round writes the same anchor first. Lock order: the home lock
//! comes before page locks.

use super::commits::Boundary;
use super::image::Image;
use super::log::Log;
use super::pieces::{runs_of, writes_home};
use super::ring::{Full, MARGIN_BYTES};
use crate::block::{AlignedBlock, Run};
use crate::durable::FlushMark;
use crate::{MediaError, PmMedium};
use std::collections::{BTreeMap, BTreeSet};
use terrace_format::journal::{
    ANCHOR_COPIES, Anchor, Entry, EntryKind, TABLE_ENTRIES, encode_table, page_checksum,
};
use terrace_format::{BLOCK_SIZE, DeviceBlock, PmOffset};
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Pages written together: 512 KiB, the longest wait of a commit for a home write (J6).
pub(super) const PAGES_AT_ONCE: usize = 128;

/// The pages in home.
pub(super) struct HomeState {
    /// Checksums of the pages in home; 0 for a page that was never written there.
    pub checksums: Vec<u32>,
    /// The table in use.
    pub table: usize,
    /// Pages that may be torn in home: opening found them so, or their writes failed. Each is dirty, or forgotten.
    pub torn: BTreeSet<u64>,
    /// Blocks of each table that are older than `checksums`.
    pub stale: [BTreeSet<u64>; 2],
    /// Number of the last anchor.
    pub number: u64,
    /// Pages that opening found damaged, each with a checksum that its content in home does not have.
    pub condemned: BTreeMap<u64, u32>,
    /// Pages that an entry behind the anchor names, with the entry's position: a crash may tear these in home.
    pub named: BTreeMap<u64, u64>,
    /// An anchor that is not known to be durable.
    pub unsure: Option<Anchor>,
    /// The round under way: its boundary, and the first page that it has not looked at.
    pub round: Option<(u64, u64)>,
    /// Before the first page written since the last anchor: a flush that failed since may have dropped it.
    pub mark: Option<FlushMark>,
    /// Room for copies of pages.
    pub copies: Vec<AlignedBlock>,
}

impl HomeState {
    /// Gives a damaged page its wrong checksum.
    fn condemn(&mut self, page: u64) {
        if let (Some(checksum), Some(wrong)) =
            (self.checksums.get_mut(page as usize), self.condemned.get(&page))
        {
            *checksum = *wrong;
        }
        self.make_stale(page);
    }

    /// Gives the round under way up: its pages are dirty again, unless an anchor that may be durable counts them as home's.
    pub fn give_up_round(&mut self, image: &Image) {
        self.round = None;
        if self.unsure.is_none() {
            // The device may have dropped these writes, also after a failed flush. A page that is forgotten now stays so.
            let going = image.dirty.going(&image.memory);
            let is_whole = |page: &u64| !self.condemned.contains_key(page);
            self.torn.extend(going.into_iter().filter(is_whole));
            image.dirty.give_back(&image.memory);
            self.mark = None;
        }
    }

    /// The checksum of a page changed: both tables are older.
    fn make_stale(&mut self, page: u64) {
        let block = page / TABLE_ENTRIES as u64;
        self.stale.iter_mut().for_each(|stale| {
            stale.insert(block);
        });
    }
}

/// Bytes of the log for a group of pages, beside their numbers.
const GROUP_BYTES: u64 = 3 * BLOCK_SIZE;

/// Bytes of the log that stores leave to a home round: for each group of pages a batch and the entry that names them.
pub(super) fn share_of_round(image_bytes: u64) -> u64 {
    let pages = image_bytes / BLOCK_SIZE;
    let groups = pages / PAGES_AT_ONCE as u64 + 1;
    groups * GROUP_BYTES + pages * 8 + 4 * BLOCK_SIZE
}

/// The smallest log of an image: three quarters of it are free for stores.
pub(super) fn least_log_bytes(image_bytes: u64) -> u64 {
    (4 * (share_of_round(image_bytes) + MARGIN_BYTES)).next_multiple_of(BLOCK_SIZE)
}

/// Home, and the rounds that bring pages there.
pub(super) struct Home {
    pub(super) state: Mutex<HomeState>,
    /// Pages written since the opening.
    pub pages: AtomicU64,
    /// A new home is written (J12): a step would wait for long.
    pub is_moving: AtomicBool,
}

impl Home {
    /// Home with the log behind it, which counts from `start` on.
    pub fn new(state: HomeState, log: &Log, start: u64) -> Home {
        log.set_start(start, share_of_round(log.layout.image_bytes()));
        Home { state: Mutex::new(state), pages: AtomicU64::new(0), is_moving: AtomicBool::new(false) }
    }

    /// A whole round: the log before this call is free afterwards. Does nothing if the log has room again.
    ///
    /// # Errors
    /// The device's. Pages that are not known to be in home are dirty again.
    pub fn free_log(&self, image: &Image, log: &Log) -> Result<(), MediaError> {
        let mut home = self.state.lock();
        settle_anchor(image, log, &mut home)?;
        if log.ring.full() != Some(Full::Log) {
            return Ok(());
        }
        // The boundary of a round under way would free less. Home has the pages that this round took, newer than the new boundary.
        home.round = None;
        self.run_round((image, log), &mut home, usize::MAX).map(|_| ())
    }

    /// Up to `most` groups of pages of the round under way, which begins if none is; whether the round has ended.
    ///
    /// # Errors
    /// As [`Self::free_log`].
    pub fn advance(&self, image: &Image, log: &Log, most: usize) -> Result<bool, MediaError> {
        let mut home = self.state.lock();
        settle_anchor(image, log, &mut home)?;
        self.run_round((image, log), &mut home, most)
    }

    fn run_round(
        &self,
        (image, log): (&Image, &Log),
        home: &mut HomeState,
        most: usize,
    ) -> Result<bool, MediaError> {
        let ended = self.try_round((image, log), home, most);
        if ended.is_err() {
            home.give_up_round(image);
        }
        ended
    }

    fn try_round(
        &self,
        (image, log): (&Image, &Log),
        home: &mut HomeState,
        most: usize,
    ) -> Result<bool, MediaError> {
        let (boundary, mut from) = home.round.unwrap_or_else(|| {
            let boundary = log.want_boundary();
            image.wait_for_stores();
            if planted(Mistake::LogFreeBeforeAnchor) {
                log.set_start(boundary, share_of_round(log.layout.image_bytes()));
            }
            (boundary, 0)
        });
        for _ in 0..most {
            let pages = image.dirty.list(&image.memory, from, PAGES_AT_ONCE);
            let Some(last) = pages.last() else {
                end_round(image, log, home, boundary)?;
                return Ok(true);
            };
            from = last + 1;
            self.send_home((image, log), home, (&pages, boundary))?;
            home.round = Some((boundary, from));
        }
        Ok(false)
    }

    /// Takes pages and writes them home.
    fn send_home(
        &self,
        (image, log): (&Image, &Log),
        home: &mut HomeState,
        (pages, boundary): (&[u64], u64),
    ) -> Result<(), MediaError> {
        let mut numbers = Vec::with_capacity(pages.len());
        // A fresh buffer of this size would be mapped and cleared by the kernel each time.
        let mut copies = std::mem::take(&mut home.copies);
        copies.resize(PAGES_AT_ONCE, AlignedBlock::zeroed());
        for page in pages {
            let copy = &mut copies[numbers.len()];
            let read = {
                let _locked = image.lock_page(*page);
                image.dirty.take(&image.memory, *page);
                image.memory.read(PmOffset(page * BLOCK_SIZE), &mut copy.0)
            };
            match read {
                Ok(()) => numbers.push(*page),
                // Home lacks entries that the anchor passes: no later opening may take the page for sound.
                Err(_) if home.condemned.contains_key(page) => home.condemn(*page),
                // The log has what this page lost; no anchor may pass it.
                Err(error) => {
                    log.fail(&error);
                    return Err(error);
                }
            }
        }
        let sent = self.send_copies((image, log), home, (&numbers, &copies[..numbers.len()]), boundary);
        home.copies = copies;
        sent
    }

    /// Writes copies of pages home.
    fn send_copies(
        &self,
        (image, log): (&Image, &Log),
        home: &mut HomeState,
        (numbers, blocks): (&[u64], &[AlignedBlock]),
        boundary: u64,
    ) -> Result<(), MediaError> {
        if numbers.is_empty() {
            return Ok(());
        }
        name_pages(image, log, home, (numbers, boundary));
        if !planted(Mistake::HomeBeforeLog) {
            // Behind the copies: a copy shows stores with an earlier place alone.
            log.commit_to(image, log.ring.tail())?;
        }
        let writes = writes_home(&log.layout, numbers, blocks);
        home.torn.extend(numbers);
        home.mark.get_or_insert_with(|| log.device().mark());
        log.device().write_volatile(&writes)?;
        numbers.iter().for_each(|page| {
            home.torn.remove(page);
        });
        for (page, block) in numbers.iter().zip(blocks) {
            if let Some(checksum) = home.checksums.get_mut(*page as usize) {
                *checksum = page_checksum(&log.uuid, *page, &block.0);
            }
            home.make_stale(*page);
        }
        self.pages.fetch_add(numbers.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// The end of an orderly use: all pages go home, and the anchor says that no batch follows. No store may follow.
    ///
    /// # Errors
    /// The device's: the next opening replays the log.
    pub fn end(&self, image: &Image, log: &Log) -> Result<(), MediaError> {
        let mut home = self.state.lock();
        settle_anchor(image, log, &mut home)?;
        home.round = None;
        self.run_round((image, log), &mut home, usize::MAX)?;
        let boundary = log.want_boundary();
        image.wait_for_stores();
        log.commit_to(image, boundary)?;
        let is_whole = !image.has_dirty_pages() && home.stale[home.table].is_empty() && home.torn.is_empty();
        let (Some((end, acknowledged)), true) = (log.boundary(), is_whole) else {
            // A store was under way beside this call; its page goes home after the next opening.
            return Ok(());
        };
        let table = home.table;
        home.unsure = Some(anchor(log, &home, end, acknowledged, (table, true)));
        settle_anchor(image, log, &mut home)
    }
}

/// Appends an entry with the pages that no entry behind the anchor names yet. While the log has room beside the share of the
/// round, pages count as new that no entry behind the round's boundary names, after a round that was given up: the next anchor
/// passes the older entry, and a lost block of the table would make the page unreadable (J9).
fn name_pages(image: &Image, log: &Log, home: &mut HomeState, (pages, boundary): (&[u64], u64)) {
    let kept = share_of_round(log.layout.image_bytes()) + MARGIN_BYTES / 2 + GROUP_BYTES;
    let least = if log.left() > kept { boundary } else { 0 };
    let is_new = |page: &u64| home.named.get(page).is_none_or(|position| *position < least);
    let new: Vec<u64> = pages.iter().copied().filter(is_new).collect();
    let Some(first) = new.first() else { return };
    let numbers = runs_of(&new).into_iter().flat_map(|(first, count)| [first as u32, count as u32]);
    let bytes: Vec<u8> = numbers.flat_map(u32::to_le_bytes).collect();
    // A leader waits for each entry by the locks of pages, whatever the entry is.
    let _locked = image.lock_page(*first);
    let position = log.ring.append(&Entry { kind: EntryKind::GoingHome, offset: PmOffset(0), bytes: &bytes });
    home.named.extend(new.iter().map(|page| (*page, position)));
}

/// Makes the pages of a round count: table, flush, anchor.
fn end_round(image: &Image, log: &Log, home: &mut HomeState, boundary: u64) -> Result<(), MediaError> {
    // Not up to the boundary alone: a page that was forgotten during the round is not in home, and the record that freed it may
    // be the last of the log (J8).
    let all = if planted(Mistake::ForgottenWhenFreed) { boundary } else { log.ring.tail() };
    log.commit_to(image, all)?;
    // No page is dirty: these were forgotten. Their content means nothing, and home must not be read for it.
    for page in std::mem::take(&mut home.torn) {
        if let Some(checksum) = home.checksums.get_mut(page as usize) {
            *checksum = 0;
        }
        home.make_stale(page);
    }
    let next = 1 - home.table;
    let mark = *home.mark.get_or_insert_with(|| log.device().mark());
    write_table(log, home, next)?;
    // A single flush serves pages and table: the table is not in use before the anchor names it.
    if !planted(Mistake::AnchorBeforeFlush) {
        log.device().flush(mark)?;
    }
    let Some((found, acknowledged)) = log.boundary() else {
        unreachable!("the batch before {boundary} is acknowledged");
    };
    assert_eq!(found.position, boundary, "the boundary of another round");
    let anchor = anchor(log, home, found, acknowledged, (next, false));
    home.unsure = Some(anchor);
    settle_anchor(image, log, home)?;
    home.round = None;
    Ok(())
}

fn write_table(log: &Log, home: &HomeState, table: usize) -> Result<(), MediaError> {
    let mut blocks = Vec::with_capacity(home.stale[table].len());
    for number in &home.stale[table] {
        let from = *number as usize * TABLE_ENTRIES;
        let end = (from + TABLE_ENTRIES).min(home.checksums.len());
        let mut block = AlignedBlock::zeroed();
        block.0.copy_from_slice(&encode_table(&log.uuid, *number, &home.checksums[from..end]));
        blocks.push((log.layout.table(table).plus(*number), block));
    }
    let runs: Vec<Run<'_>> = blocks.iter().map(|(at, block)| (*at, std::slice::from_ref(block))).collect();
    log.device().write_volatile(&runs)
}

/// The next anchor.
fn anchor(
    log: &Log,
    home: &HomeState,
    start: Boundary,
    acknowledged: u64,
    (table, clean): (usize, bool),
) -> Anchor {
    Anchor {
        uuid: log.uuid,
        image_bytes: log.layout.image_bytes(),
        log_bytes: log.layout.log_bytes(),
        number: home.number + 1,
        epoch: log.epoch.load(Ordering::SeqCst),
        start: start.position,
        sequence: start.sequence,
        previous: start.previous,
        acknowledged,
        // The entries of this round are acknowledged.
        named: acknowledged,
        table,
        clean,
    }
}

/// Writes the anchor that is not known to be durable, if there is one. Then it counts.
fn settle_anchor(image: &Image, log: &Log, home: &mut HomeState) -> Result<(), MediaError> {
    let Some(anchor) = home.unsure else { return Ok(()) };
    let mut block = AlignedBlock::zeroed();
    block.0.copy_from_slice(&anchor.encode());
    log.device().write_durable(&[(copy_of(anchor.number), &[block])])?;
    home.unsure = None;
    home.number = anchor.number;
    home.table = anchor.table;
    home.stale[anchor.table].clear();
    home.named.clear();
    home.mark = None;
    // Before the bits end: an older anchor does not suit them (J13).
    image.kept.set_number(&image.memory, anchor.number);
    image.dirty.end_round(&image.memory);
    log.set_start(anchor.start, share_of_round(log.layout.image_bytes()));
    Ok(())
}

/// The place of an anchor.
pub(super) fn copy_of(number: u64) -> DeviceBlock {
    ANCHOR_COPIES[(number % ANCHOR_COPIES.len() as u64) as usize]
}
