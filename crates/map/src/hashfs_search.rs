//! Searches in a block table that is the file map: owner words of a line, or of a group of 16 slots, are compared at once.
//!
//! A search never ends at a free slot. It ends at the reach, or at its first line where the block is known to be absent.
//!
//! Called by `hashfs`, under the inode's lock.

use crate::file_map::Mapping;
use crate::hidden::{refuse_hidden, refuse_impossible};
use crate::pages::Pages;
use crate::recent::Recent;
use terrace_blocks::pool::{Hashed, Known};
use terrace_format::address::{LINE_SIZE, PmBlock};
use terrace_format::homes::{GROUP_SLOTS, Home};
use terrace_format::table::{Entry, Owner, TABLE_ENTRY_SIZE};
use terrace_format::{Corrupt, FileBlock, Ino};
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};
use terrace_simd::compare::{Words, matching_part};
use terrace_wal::{Error, Result};

/// Entries in a line of the block table.
const LINE_ENTRIES: u64 = LINE_SIZE / TABLE_ENTRY_SIZE;
/// Bits of an owner word without the bit of unwritten blocks.
const NOT_UNWRITTEN: u64 = !1;
/// Bits of an owner word that the blocks of a sixteen share.
const OF_SIXTEEN: u64 = !(GROUP_SLOTS * 2 - 1);
/// Sixteens whose homes are computed together.
const BATCH: u64 = 16;
/// Fewer blocks of a sixteen are searched for one by one: a group has four lines.
const LEAST_TOGETHER: usize = 4;

/// The owner word of a written block.
fn key(ino: Ino, block: FileBlock) -> u64 {
    Owner::File { ino, block, unwritten: false }.encode()
}

/// The file block and the mapping that an entry in a slot stands for; `None` for another use.
fn mapping(entry: Words, slot: u64) -> Option<(FileBlock, Mapping)> {
    match Entry::decode(entry)?.owner {
        Owner::File { block, unwritten, .. } => Some((block, Mapping { block: PmBlock(slot), unwritten })),
        _ => None,
    }
}

/// The error of a search that found nothing and passed an entry that it could not read: before the end of the scan nothing tells
/// whether the block is there, and the operation waits for it.
#[cold]
fn before_scan(known: Known, error: Error) -> Error {
    if known == Known::Part { Error::TableUnread } else { error }
}

/// The set bits of a comparison.
fn places(mut bits: u16) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (place < 16).then_some(place)
    })
}

/// The block table as searches see it.
pub(crate) struct TableSearch {
    pub pages: Pages,
    /// `map_reach` as stored.
    pub reach: AtomicU64,
    /// Hints of where blocks are.
    pub recent: Recent,
}

impl TableSearch {
    /// The stored reach.
    #[inline]
    pub fn reach(&self) -> u64 {
        self.reach.load(Ordering::Acquire)
    }

    /// Reads entries of the block table from a slot on.
    #[inline]
    fn read_entries(&self, slot: u64, entries: &mut [Words]) -> Result<()> {
        let at = self.pages.blocks.wal().geometry().table_entry(PmBlock(slot));
        self.pages.table_entries(at, entries)
    }

    /// As [`Self::read_entries`]; an entry that cannot be read is one of nobody, and the first error is given. A block that
    /// is found in another entry is the block: it is in the table once.
    #[inline]
    fn read_slots(&self, slot: u64, entries: &mut [Words]) -> Option<Error> {
        match self.read_entries(slot, entries) {
            Ok(()) => None,
            Err(_) => self.read_singly(slot, entries),
        }
    }

    #[cold]
    fn read_singly(&self, slot: u64, entries: &mut [Words]) -> Option<Error> {
        let mut unreadable = None;
        for (slot, entry) in (slot..).zip(entries.chunks_mut(1)) {
            if let Err(error) = self.read_entries(slot, entry) {
                entry.fill([0; 2]);
                unreadable = unreadable.or(Some(error));
            }
        }
        unreadable
    }

    /// Announces that the line of a slot will be read.
    #[inline]
    pub fn expect(&self, slot: u64) {
        self.pages.pm.expect_load(self.pages.blocks.wal().geometry().table_entry(PmBlock(slot)));
    }

    /// Judges a search that found nothing.
    pub fn judge_absent(
        &self,
        hashed: &Hashed,
        known: Known,
        (ino, block): (Ino, FileBlock),
        home: Home,
    ) -> Result<()> {
        if known == Known::Part {
            let judged = refuse_impossible(&self.pages, hashed, home, self.reach());
            judged.map_err(|error| before_scan(known, error))?;
        }
        if !hashed.presence.requires(ino, block) {
            return Ok(());
        }
        let (site, reach) = (format!("block table, block {block} of inode {ino}"), self.reach());
        Err(Corrupt::new(site, format!("an entry within {reach} slots from {home}"), "none").into())
    }

    /// The mapping of a block whose home is known.
    pub fn find(&self, hashed: &Hashed, ino: Ino, block: FileBlock, home: Home) -> Result<Option<Mapping>> {
        // Before the search: the scan may end during it.
        let known = hashed.known();
        refuse_hidden(hashed, known, (ino, block), home)?;
        let is_absent = || known != Known::Part && !hashed.presence.contains(ino, block);
        let found = self.search(hashed, (ino, block), home, is_absent);
        let found = found.map_err(|error| before_scan(known, error))?;
        if found.is_none() {
            self.judge_absent(hashed, known, (ino, block), home)?;
        }
        Ok(found)
    }

    /// The mapping of a block by a hint. What the entry says decides.
    #[inline]
    pub fn find_recent(&self, ino: Ino, block: FileBlock) -> Option<Mapping> {
        let key = key(ino, block);
        let slot = self.recent.find(key)?;
        let mut entry = [[0; 2]];
        self.read_entries(slot, &mut entry).ok()?;
        let [entry] = entry;
        if entry[0] & NOT_UNWRITTEN != key {
            return None;
        }
        mapping(entry, slot).map(|(_, mapping)| mapping)
    }

    /// Notes where a block will be when its change is committed.
    #[inline]
    pub fn note(&self, (ino, block): (Ino, FileBlock), home: Home, slot: PmBlock) {
        let is_in_first_line = slot.0 / LINE_ENTRIES == home.slot.0 / LINE_ENTRIES;
        self.recent.note(key(ino, block), (!is_in_first_line).then_some(slot.0));
    }

    /// Searches the table as far as the reach; to the end of the first line where the block is absent.
    pub fn search(
        &self,
        hashed: &Hashed,
        (ino, block): (Ino, FileBlock),
        home: Home,
        mut is_absent: impl FnMut() -> bool,
    ) -> Result<Option<Mapping>> {
        let key = key(ino, block);
        if let Some(mapping) = self.find_recent(ino, block) {
            return Ok(Some(mapping));
        }
        let mut unreadable = None;
        for (number, slots) in hashed.homes.lines(home, self.reach()).enumerate() {
            let mut entries = [[0; 2]; LINE_ENTRIES as usize];
            let (entries, _) = entries.split_at_mut((slots.end - slots.start) as usize);
            unreadable = unreadable.or(self.read_slots(slots.start, entries));
            // Four words: a loop is as quick as vectors.
            let mut of_block =
                (slots.start..).zip(&*entries).filter(|(_, entry)| entry[0] & NOT_UNWRITTEN == key);
            let found = of_block.find_map(|(slot, entry)| mapping(*entry, slot));
            if let Some((_, mapping)) = found {
                if number > 0 {
                    self.recent.note(key, Some(mapping.block.0));
                }
                return Ok(Some(mapping));
            }
            if planted(Mistake::ProbeEndsAtFreeSlot) && entries.iter().any(|entry| entry[0] == 0) {
                return Ok(None);
            }
            if number == 0 && is_absent() {
                return Ok(None);
            }
        }
        unreadable.map_or(Ok(None), Err)
    }

    /// The mappings of consecutive blocks, sixteen by sixteen.
    pub fn find_sixteens(
        &self,
        hashed: &Hashed,
        ino: Ino,
        mut first: FileBlock,
        mut out: &mut [Option<Mapping>],
    ) -> Result<()> {
        while !out.is_empty() {
            let most = BATCH * GROUP_SLOTS - first.0 % GROUP_SLOTS;
            let (mut part, behind) = out.split_at_mut(out.len().min(most as usize));
            let sixteens = (first.0 % GROUP_SLOTS + part.len() as u64).div_ceil(GROUP_SLOTS);
            let mut homes = [Home::default(); BATCH as usize];
            let (homes, _) = homes.split_at_mut(sixteens as usize);
            hashed.homes.sixteen_homes(ino, first.0 / GROUP_SLOTS, homes);
            if homes.len() > 1 {
                homes.iter().for_each(|home| self.expect_group(home.slot.0));
            }
            for home in homes {
                let count = ((GROUP_SLOTS - first.0 % GROUP_SLOTS) as usize).min(part.len());
                let (of_sixteen, rest) = part.split_at_mut(count);
                self.find_sixteen(hashed, ino, first, *home, of_sixteen)?;
                (first, part) = (first.plus(count as u64), rest);
            }
            out = behind;
        }
        Ok(())
    }

    /// Announces that the lines of the group of a slot will be read.
    pub fn expect_group(&self, slot: u64) {
        let begin = slot / GROUP_SLOTS * GROUP_SLOTS;
        (begin..begin + GROUP_SLOTS).step_by(LINE_ENTRIES as usize).for_each(|slot| self.expect(slot));
    }

    /// The mappings of blocks of a sixteen, from `first` on: reads whole groups until all blocks that are there are found.
    fn find_sixteen(
        &self,
        hashed: &Hashed,
        ino: Ino,
        first: FileBlock,
        home: Home,
        out: &mut [Option<Mapping>],
    ) -> Result<()> {
        let (sixteen, shift) = (first.0 / GROUP_SLOTS, first.0 % GROUP_SLOTS);
        assert!(
            shift + out.len() as u64 <= GROUP_SLOTS,
            "{} blocks from {first} are no sixteen's",
            out.len()
        );
        if out.len() < LEAST_TOGETHER {
            for (block, out) in (first.0..).map(FileBlock).zip(out) {
                *out = self.find(hashed, ino, block, hashed.homes.home(ino, block))?;
            }
            return Ok(());
        }
        out.fill(None);
        let mut wanted = (u16::MAX >> (16 - out.len())) << shift;
        let known = hashed.known();
        let block_of = |at: usize| FileBlock(sixteen * GROUP_SLOTS + at as u64);
        let home_of = |block| hashed.homes.home(ino, block);
        if known != Known::Part {
            let present = hashed.presence.sixteen(ino, sixteen);
            if known == Known::Doubtful {
                let mut unknown = places(wanted & !present).map(block_of);
                unknown.try_for_each(|block| refuse_hidden(hashed, known, (ino, block), home_of(block)))?;
            }
            wanted &= present;
        }
        let mut unreadable = None;
        let key = key(ino, FileBlock(sixteen * GROUP_SLOTS));
        for slots in hashed.homes.near_groups(home, self.reach()) {
            if wanted == 0 {
                return Ok(());
            }
            let mut entries = [[0; 2]; GROUP_SLOTS as usize];
            let (entries, _) = entries.split_at_mut((slots.end - slots.start) as usize);
            unreadable = unreadable.or(self.read_slots(slots.start, entries));
            for at in places(matching_part(entries, key, OF_SIXTEEN)) {
                let entry = entries.get(at).and_then(|entry| mapping(*entry, slots.start + at as u64));
                let Some((block, mapping)) = entry else { continue };
                let bit = 1 << (block.0 % GROUP_SLOTS);
                if wanted & bit != 0
                    && let Some(out) = out.get_mut((block.0 % GROUP_SLOTS - shift) as usize)
                {
                    wanted &= !bit;
                    *out = Some(mapping);
                }
            }
        }
        if let Some(error) = unreadable.filter(|_| wanted != 0) {
            return Err(before_scan(known, error));
        }
        places(wanted)
            .map(block_of)
            .try_for_each(|block| self.judge_absent(hashed, known, (ino, block), home_of(block)))
    }
}
