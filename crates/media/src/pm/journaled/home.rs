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
//! names. An anchor whose write failed may be durable, so it is written again before anything else. Lock order: the home lock
//! comes before page locks.

use super::JournaledPm;
use super::commit::Boundary;
use crate::block::{AlignedBlock, Run};
use crate::{MediaError, PmMedium};
use std::collections::BTreeSet;
use terrace_format::journal::{
    ANCHOR_COPIES, Anchor, Entry, EntryKind, TABLE_ENTRIES, encode_table, page_checksum,
};
use terrace_format::{BLOCK_SIZE, DeviceBlock, PmOffset};
use terrace_runtime::sync::MutexGuard;
use terrace_runtime::sync::atomic::Ordering;

/// Pages that are written together: 512 KiB, so that a commit waits for no more (J6).
const PAGES_AT_ONCE: usize = 128;

/// What is known of home.
pub(super) struct Home {
    /// Checksums of the pages in home; 0 for a page that was never written there.
    pub checksums: Vec<u32>,
    /// The table in use.
    pub table: usize,
    /// Blocks of each table that are older than `checksums`.
    pub stale: [BTreeSet<u64>; 2],
    /// Number of the last anchor.
    pub number: u64,
    /// Start of the log that counts.
    pub start: u64,
    /// An anchor whose write failed, and the set of stale blocks that it ends.
    pub unsure: Option<Anchor>,
    /// The round under way: its boundary, and the first page that it has not looked at.
    pub round: Option<(u64, u64)>,
}

/// Bytes of the log that stores leave to a home round: for each group of pages a batch and the entry that names them.
fn share_of_round(image_bytes: u64) -> u64 {
    let pages = image_bytes / BLOCK_SIZE;
    let groups = pages / PAGES_AT_ONCE as u64 + 1;
    groups * 3 * BLOCK_SIZE + pages * 8 + 4 * BLOCK_SIZE
}

/// The smallest log of an image: three quarters of it are free for stores.
pub(super) fn least_log_bytes(image_bytes: u64) -> u64 {
    (4 * (share_of_round(image_bytes) + super::ring::MARGIN_BYTES)).next_multiple_of(BLOCK_SIZE)
}

impl JournaledPm {
    /// End of the log: the first position whose block an anchor still needs.
    pub(super) fn log_end(&self) -> u64 {
        self.log_start.load(Ordering::Acquire) + self.layout.log_bytes()
    }

    /// The log counts from `start` on.
    pub(super) fn set_log_start(&self, start: u64) {
        self.log_start.store(start, Ordering::Release);
        self.ring.set_log_limit(start + self.layout.log_bytes() - share_of_round(self.layout.image_bytes()));
    }

    /// A whole round: the log before this call is free afterwards.
    ///
    /// # Errors
    /// The device's. Pages that are not known to be in home are dirty again.
    pub(super) fn complete_round(&self) -> Result<(), MediaError> {
        let mut home = self.home.lock();
        self.settle_anchor(&mut home)?;
        // A boundary of before would free less; pages that were taken since are in home with all that is before the new one.
        home.round = None;
        self.run_round(&mut home, usize::MAX).map(|_| ())
    }

    /// As [`Self::complete_round`], unless another thread's round has made room meanwhile.
    pub(super) fn free_log(&self) -> Result<(), MediaError> {
        let mut home = self.home.lock();
        self.settle_anchor(&mut home)?;
        if self.ring.full() != Some(super::ring::Full::Log) {
            return Ok(());
        }
        home.round = None;
        self.run_round(&mut home, usize::MAX).map(|_| ())
    }

    /// Up to `most` groups of pages of the round under way, which begins if none is; whether the round has ended.
    ///
    /// # Errors
    /// As [`Self::complete_round`].
    pub fn advance(&self, most: usize) -> Result<bool, MediaError> {
        let mut home = self.home.lock();
        self.settle_anchor(&mut home)?;
        self.run_round(&mut home, most)
    }

    fn run_round(&self, home: &mut MutexGuard<'_, Home>, most: usize) -> Result<bool, MediaError> {
        let ended = self.try_round(home, most);
        if ended.is_err() {
            home.round = None;
            if home.unsure.is_none() {
                self.dirty.give_back(&self.image);
            }
        }
        ended
    }

    fn try_round(&self, home: &mut Home, most: usize) -> Result<bool, MediaError> {
        let (boundary, mut from) = home.round.unwrap_or_else(|| {
            let boundary = self.want_boundary();
            self.wait_for_stores();
            (boundary, 0)
        });
        for _ in 0..most {
            let pages = self.dirty.list(&self.image, from, PAGES_AT_ONCE);
            let Some(last) = pages.last() else {
                self.end_round(home, boundary)?;
                return Ok(true);
            };
            from = last + 1;
            self.send_home(home, &pages)?;
            home.round = Some((boundary, from));
        }
        Ok(false)
    }

    /// Takes pages and writes them home.
    fn send_home(&self, home: &mut Home, pages: &[u64]) -> Result<(), MediaError> {
        let mut copies = Vec::with_capacity(pages.len());
        for page in pages {
            let mut copy = AlignedBlock::zeroed();
            let _locked = self.lock_page(*page);
            self.dirty.take(&self.image, *page);
            // A page that cannot be read has no content to keep.
            if self.image.read(PmOffset(page * BLOCK_SIZE), &mut copy.0).is_ok() {
                copies.push((*page, copy));
            }
        }
        let (numbers, blocks): (Vec<u64>, Vec<AlignedBlock>) = copies.into_iter().unzip();
        if numbers.is_empty() {
            return Ok(());
        }
        let runs = runs_of(&numbers);
        let names: Vec<u8> = runs
            .iter()
            .flat_map(|(first, count)| [*first as u32, *count as u32])
            .flat_map(u32::to_le_bytes)
            .collect();
        self.ring.append(&Entry { kind: EntryKind::GoingHome, offset: PmOffset(0), bytes: &names });
        // Behind the copies: every store that they show has its place before this one.
        self.commit_to(self.ring.tail())?;
        let mut writes: Vec<Run<'_>> = Vec::with_capacity(runs.len());
        let mut rest = blocks.as_slice();
        for (first, count) in &runs {
            let (now, later) = rest.split_at(*count as usize);
            writes.push((self.layout.home().plus(*first), now));
            rest = later;
        }
        self.device.write_runs(&writes)?;
        for (page, block) in numbers.iter().zip(&blocks) {
            if let Some(checksum) = home.checksums.get_mut(*page as usize) {
                *checksum = page_checksum(&self.uuid, *page, &block.0);
            }
            let number = page / TABLE_ENTRIES as u64;
            home.stale.iter_mut().for_each(|stale| {
                stale.insert(number);
            });
        }
        self.home_pages.fetch_add(numbers.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Makes the pages of a round count: table, flush, anchor.
    fn end_round(&self, home: &mut Home, boundary: u64) -> Result<(), MediaError> {
        self.commit_to(boundary)?;
        let next = 1 - home.table;
        self.write_table(home, next)?;
        // One flush for pages and table: nobody reads this table before the anchor names it.
        self.device.flush()?;
        let Some((found, acknowledged)) = self.boundary() else {
            unreachable!("the batch before {boundary} is acknowledged");
        };
        assert_eq!(found.position, boundary, "the boundary of another round");
        let anchor = self.anchor(home, found, acknowledged, next, false);
        home.unsure = Some(anchor);
        self.settle_anchor(home)?;
        home.round = None;
        Ok(())
    }

    fn write_table(&self, home: &Home, table: usize) -> Result<(), MediaError> {
        let mut blocks = Vec::with_capacity(home.stale[table].len());
        for number in &home.stale[table] {
            let from = *number as usize * TABLE_ENTRIES;
            let end = (from + TABLE_ENTRIES).min(home.checksums.len());
            let mut block = AlignedBlock::zeroed();
            block.0.copy_from_slice(&encode_table(&self.uuid, *number, &home.checksums[from..end]));
            blocks.push((self.layout.table(table).plus(*number), block));
        }
        let runs: Vec<Run<'_>> =
            blocks.iter().map(|(at, block)| (*at, std::slice::from_ref(block))).collect();
        self.device.write_runs(&runs)
    }

    /// The next anchor.
    pub(super) fn anchor(
        &self,
        home: &Home,
        start: Boundary,
        acknowledged: u64,
        table: usize,
        clean: bool,
    ) -> Anchor {
        Anchor {
            uuid: self.uuid,
            image_bytes: self.layout.image_bytes(),
            log_bytes: self.layout.log_bytes(),
            number: home.number + 1,
            epoch: self.epoch,
            start: start.position,
            sequence: start.sequence,
            previous: start.previous,
            acknowledged,
            table,
            clean,
        }
    }

    /// Writes the anchor that is not known to be durable, if there is one. Then it counts.
    pub(super) fn settle_anchor(&self, home: &mut Home) -> Result<(), MediaError> {
        let Some(anchor) = home.unsure else { return Ok(()) };
        let mut block = AlignedBlock::zeroed();
        block.0.copy_from_slice(&anchor.encode());
        self.device.write_durable(&[(copy_of(anchor.number), &[block])])?;
        home.unsure = None;
        home.number = anchor.number;
        home.start = anchor.start;
        home.table = anchor.table;
        home.stale[anchor.table].clear();
        self.dirty.end_round(&self.image);
        self.set_log_start(anchor.start);
        Ok(())
    }
}

/// The place of an anchor.
pub(super) fn copy_of(number: u64) -> DeviceBlock {
    ANCHOR_COPIES[(number % ANCHOR_COPIES.len() as u64) as usize]
}

/// Runs of neighbours among ascending numbers: first and count.
fn runs_of(numbers: &[u64]) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == *number => *count += 1,
            _ => runs.push((*number, 1)),
        }
    }
    runs
}
