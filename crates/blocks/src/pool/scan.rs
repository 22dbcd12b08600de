//! The block table read region by region: by the scan after the mount, and for victims of demotion.
//!
//! Invariant: the scan moves only unknown blocks. A block that got an owner or was freed since the mount stays as it is.

use super::{BlockPool, Known, Space};
use crate::descriptor::{Descriptor, State};
use crate::hidden::{impossible, is_possible};
use terrace_format::table::{Entry, Owner, TABLE_ENTRY_SIZE};
use terrace_format::{FileBlock, Ino, PmBlock};
use terrace_wal::{Error, Result};

/// Blocks scanned in one step.
const REGION_BLOCKS: u64 = 8192;

impl BlockPool {
    /// Scans one region of the table; false when all of it was scanned before.
    ///
    /// # Errors
    /// The medium's; an owner word that cannot be (the block then counts as used).
    pub fn scan_step(&self) -> Result<bool> {
        self.scan_region(&mut self.space.lock())
    }

    pub(super) fn scan_region(&self, space: &mut Space) -> Result<bool> {
        let (start, end) = (space.next_region, (space.next_region + REGION_BLOCKS).min(self.count));
        if start >= end {
            self.note_end_of_scan();
            return Ok(false);
        }
        self.learn_range(space, start, end);
        self.meet_map_pages(start, end);
        space.next_region = end;
        if end == self.count {
            self.note_end_of_scan();
        }
        Ok(true)
    }

    /// Meets the share of a range in the pages of a map that lies before the pool, for their checksums.
    fn meet_map_pages(&self, start: u64, end: u64) {
        let area = self.wal.geometry().map_offset().block();
        let pages = self.first.0 - area.0;
        let share = |block: u64| {
            let share =
                u128::from(block - self.first.0) * u128::from(pages) / u128::from(self.count - self.first.0);
            area.0 + share as u64
        };
        (share(start)..share(end)).for_each(|page| self.wal.checksums().met(PmBlock(page)));
    }

    fn note_end_of_scan(&self) {
        // Once: later a map that is no block table may have told more.
        if let Some(hashed) = self.hashed.as_ref().filter(|hashed| hashed.known() == Known::Part) {
            let is_sound = hashed.hidden.is_empty();
            hashed.know(if is_sound { Known::All } else { Known::Doubtful });
        }
    }

    /// Learns the blocks of a group of 16 that the scan has not come to, where a claim has met it.
    pub(super) fn learn_group(&self, space: &mut Space, group: u64) {
        let (start, end) = (group.max(self.first.0), (group + 16).min(self.count));
        let is_unknown = |block| self.descriptor(PmBlock(block)).state() == State::Unknown;
        if start < end && (start..end).any(is_unknown) {
            self.learn_range(space, start, end);
        }
    }

    fn learn_range(&self, space: &mut Space, start: u64, end: u64) {
        let mut entries = vec![0; ((end - start) * TABLE_ENTRY_SIZE) as usize];
        let at = self.wal.geometry().table_entry(PmBlock(start));
        let sound = self.wal.checksums().ensure_range(at, entries.len()).is_ok();
        if !sound || self.wal.pm().read(at, &mut entries).is_err() {
            self.read_entries(start, &mut entries);
        }
        for (block, entry) in (start..end).zip(entries.as_chunks::<16>().0) {
            let word = entry.first_chunk::<8>().map_or(1, |b| u64::from_le_bytes(*b));
            let descriptor = self.descriptor(PmBlock(block));
            if self.hashed.is_some() && !is_possible(word) {
                self.cannot_read(PmBlock(block), impossible(PmBlock(block), word));
            }
            if matches!(Owner::decode(word), Some(Owner::Page { .. })) {
                self.wal.checksums().met(PmBlock(block));
            }
            if word != 0 {
                // The block may have a new owner by now. A needless partial mark only costs looks at the
                // table.
                if Entry::may_be_partial(Entry::words(entry)) && !wrong::counts_partial_as_full() {
                    descriptor.set_partial(true);
                }
                match (&self.hashed, Owner::decode(word)) {
                    (Some(hashed), Some(Owner::File { ino, block: of, .. })) if hashed.has_bit_of(of) => {
                        hashed.presence.insert_if(ino, of, || self.learn(PmBlock(block), State::Used));
                    }
                    _ => _ = self.learn(PmBlock(block), State::Used),
                }
            } else if self.learn(PmBlock(block), State::Free) {
                self.put_free(space, PmBlock(block));
            }
        }
    }

    /// Reads entries singly after the read of the whole region failed. Blocks with unreadable entries count
    /// as used; else a single bad line would end the search for free blocks and for victims.
    fn read_entries(&self, start: u64, entries: &mut [u8]) {
        let mut unreadable = 0;
        for (block, entry) in (start..).zip(entries.as_chunks_mut::<16>().0) {
            let at = self.wal.geometry().table_entry(PmBlock(block));
            let sound = self.wal.checksums().ensure_range(at, entry.len());
            if let Err(error) = sound.and_then(|()| Ok(self.wal.pm().read(at, entry)?)) {
                *entry = [0xff; 16];
                unreadable += 1;
                self.cannot_read(PmBlock(block), error);
            }
        }
        tracing::error!("{unreadable} entries of the block table cannot be read, from block {start} on");
    }

    /// Notes an entry that cannot be read or understood.
    fn cannot_read(&self, block: PmBlock, error: Error) {
        if let Some(hashed) = &self.hashed {
            hashed.hidden.meet(block, error.clone());
        }
        self.unreadable.lock().get_or_insert(error);
    }

    /// Why some blocks count as used that may be free.
    pub fn unreadable(&self) -> Option<Error> {
        self.unreadable.lock().clone()
    }

    /// Visits the blocks that are used and that files own, in the order of the table, which is read region by
    /// region. What cannot be read or understood is left out: who needs to know asks [`Self::owner`].
    pub fn visit_files(&self, visit: &mut dyn FnMut(PmBlock, &Descriptor, Ino, FileBlock)) {
        let mut entries = vec![0; (REGION_BLOCKS * TABLE_ENTRY_SIZE) as usize];
        let mut start = self.first.0;
        while start < self.count {
            let end = (start + REGION_BLOCKS).min(self.count);
            let part = &mut entries[..((end - start) * TABLE_ENTRY_SIZE) as usize];
            let at = self.wal.geometry().table_entry(PmBlock(start));
            let sound = self.wal.checksums().ensure_range(at, part.len()).is_ok();
            if sound && self.wal.pm().read(at, part).is_ok() {
                for (block, entry) in (start..end).zip(part.as_chunks::<16>().0) {
                    let word = entry.first_chunk::<8>().map_or(1, |b| u64::from_le_bytes(*b));
                    let descriptor = self.descriptor(PmBlock(block));
                    if word != 0
                        && descriptor.state() == State::Used
                        && let Some(Owner::File { ino, block: file_block, .. }) = Owner::decode(word)
                    {
                        visit(PmBlock(block), descriptor, ino, file_block);
                    }
                }
            }
            start = end;
        }
    }
}

/// The branches of planted mistakes.
mod wrong {
    use terrace_runtime::planted::{Mistake, planted};

    /// A partial block counts as a full block.
    pub(super) fn counts_partial_as_full() -> bool {
        planted(Mistake::PartialCountsAsFull)
    }
}
