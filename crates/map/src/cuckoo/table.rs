//! The parts of a cuckoo map that reading and changing share, and searches.

use super::stripes::{Held, Stripes};
use crate::file_map::{Mapping, Witness};
use crate::hidden::{is_whole, note_left_of_table};
use crate::pages::Pages;
use std::sync::Arc;
use terrace_blocks::BlockPool;
use terrace_blocks::pool::Hashed;
use terrace_format::cuckoo_map::{BUCKET_ENTRIES, Buckets, Entry, Line, Slot, Words, is_free};
use terrace_format::{Corrupt, FileBlock, Ino, PmBlock};
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::atomic::{AtomicU8, Ordering};
use terrace_wal::{Error, Result};

/// Searches without locks before a search with locks.
const TRIES: usize = 4;

/// Knowledge of the stash. The mount does not read the stash, so that the time of a mount does not depend on the map.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
enum Stash {
    Unread,
    Empty,
    Used,
}

/// The cuckoo table as file map.
pub struct CuckooMap {
    pub(super) pages: Pages,
    pub(super) buckets: Buckets,
    pub(super) stripes: Stripes,
    /// See [`Stash`]: whether an entry may lie in the stash.
    stash: AtomicU8,
}

/// An entry and its place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub slot: Slot,
    pub entry: Entry,
}

/// A key, and its buckets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key {
    pub ino: Ino,
    pub block: FileBlock,
    pub pair: [u64; 2],
}

impl CuckooMap {
    /// The map of a pool with presence.
    ///
    /// # Errors
    /// The medium's; `Corrupt` for a pool without presence.
    pub fn open(blocks: Arc<BlockPool>) -> Result<CuckooMap> {
        let key = hashed_of(&blocks)?.key;
        let buckets = Buckets::new(key, blocks.wal().geometry());
        let stripes = Stripes::new(blocks.wal().locks(), &buckets);
        let (pages, stash) = (Pages::new(blocks), AtomicU8::new(Stash::Unread as u8));
        Ok(CuckooMap { pages, buckets, stripes, stash })
    }

    /// Whether an entry may lie in the stash. A caller that holds the buckets of a key knows for the key: a move into the
    /// stash holds them. Called without the stripe of the stash, or once it was found used.
    pub(super) fn is_stash_used(&self) -> bool {
        let unread = Stash::Unread as u8;
        if self.stash.load(Ordering::Acquire) == unread {
            let _held = self.stripes.lock([self.buckets.stash().start]);
            // A line that cannot be read may hold entries.
            let is_used = |line| self.read_line(line).map_or(true, |line| !line.iter().all(is_free));
            let found = if self.buckets.stash().any(is_used) { Stash::Used } else { Stash::Empty };
            let _ = self.stash.compare_exchange(unread, found as u8, Ordering::AcqRel, Ordering::Acquire);
        }
        self.stash.load(Ordering::Acquire) != Stash::Empty as u8
    }

    /// An entry goes to the stash: called before its record, with its bucket and the stash locked.
    pub(super) fn note_stash_used(&self) {
        self.stash.store(Stash::Used as u8, Ordering::Release);
    }

    pub(super) fn hashed(&self) -> Result<&Hashed> {
        hashed_of(&self.pages.blocks)
    }

    pub(super) fn key(&self, ino: Ino, block: FileBlock) -> Key {
        Key { ino, block, pair: self.buckets.pair(ino, block) }
    }

    /// Whether memory knows that a block is not in PM.
    pub(super) fn is_absent(&self, ino: Ino, block: FileBlock) -> Result<bool> {
        let hashed = self.hashed()?;
        Ok(is_whole(hashed, ino) && !hashed.presence.contains(ino, block))
    }

    /// A line as it is at this moment, perhaps amid a change.
    #[inline]
    pub(super) fn read_line(&self, line: u64) -> Result<Line> {
        let words = self.pages.table_line(self.buckets.line(line))?;
        let mut entries = [[0; 2]; BUCKET_ENTRIES];
        entries.as_flattened_mut().copy_from_slice(&words);
        Ok(entries)
    }

    /// A line of one moment.
    pub(super) fn read_whole_line(&self, line: u64) -> Result<Line> {
        for _ in 0..TRIES {
            let Some(sequence) = self.stripes.quiet(line) else { break };
            let read = self.read_line(line);
            if self.stripes.is_same(line, sequence) {
                return read;
            }
        }
        let _held = self.stripes.lock([line]);
        self.read_line(line)
    }

    /// Reads the first bucket of a key.
    #[inline]
    pub(super) fn first_look(&self, key: &Key) -> FirstLook {
        let [first, _] = key.pair;
        let Some(sequence) = self.stripes.quiet(first) else { return FirstLook::Changing };
        let read = self.read_line(first);
        if self.stripes.is_same(first, sequence) {
            FirstLook::Line(sequence, read)
        } else {
            FirstLook::Changing
        }
    }

    /// The entry of a key. The caller holds no stripe, and the inode's lock, or does not believe the answer (S6).
    /// `is_absent` is asked when the first bucket does not have it.
    pub(super) fn search(&self, key: &Key, is_absent: &dyn Fn() -> bool) -> Result<Option<Found>> {
        self.search_from(key, self.first_look(key), is_absent)
    }

    /// As [`Self::search`], behind the first look.
    pub(super) fn search_from(
        &self,
        key: &Key,
        mut first: FirstLook,
        is_absent: &dyn Fn() -> bool,
    ) -> Result<Option<Found>> {
        for _ in 0..TRIES {
            if let Some(found) = self.try_search(key, first, is_absent) {
                return found;
            }
            first = self.first_look(key);
        }
        let stash = self.buckets.stash();
        let has_stash = self.is_stash_used();
        let held = self.stripes.lock(key.pair.into_iter().chain(has_stash.then_some(stash.start)));
        self.search_held(key, held)
    }

    fn search_held(&self, key: &Key, mut held: Held<'_>) -> Result<Option<Found>> {
        let mut failed = Ok(None);
        let mut lines: Vec<u64> = key.pair.into();
        // Asked with the buckets locked: a move into the stash holds them.
        if self.is_stash_used() {
            held.add_stash(self.buckets.stash().start);
            lines.extend(self.buckets.stash());
        }
        for line in lines {
            match self.read_line(line).and_then(|entries| hit(line, &entries, key)) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        failed
    }

    /// Goes on behind the first look, without locks; `None` when entries moved meanwhile.
    fn try_search(
        &self,
        key: &Key,
        look: FirstLook,
        is_absent: &dyn Fn() -> bool,
    ) -> Option<Result<Option<Found>>> {
        let FirstLook::Line(sequence, read) = look else { return None };
        let [first, second] = key.pair;
        let from_first = read.and_then(|entries| hit(first, &entries, key));
        if matches!(from_first, Ok(Some(_))) {
            return Some(from_first);
        }
        if is_absent() {
            return Some(Ok(None));
        }
        let mut error = from_first.err();
        let from_second = self.look(second, self.stripes.quiet(second)?, key)?;
        if matches!(from_second, Ok(Some(_))) {
            return Some(from_second);
        }
        error = error.or(from_second.err());
        if self.is_stash_used() {
            for line in self.buckets.stash() {
                match self.look(line, self.stripes.quiet(line)?, key)? {
                    Ok(None) => {}
                    Ok(found) => return Some(Ok(found)),
                    Err(of_line) => error = error.or(Some(of_line)),
                }
            }
        }
        // An entry that went to the first bucket after the look at it has left the second since.
        if !self.stripes.is_same(first, sequence) && !planted(Mistake::SearchIgnoresMoves) {
            return None;
        }
        Some(error.map_or(Ok(None), Err))
    }

    /// The entry of a key in a line; `None` when the line changed since its sequence was asked.
    #[inline]
    fn look(&self, line: u64, sequence: u64, key: &Key) -> Option<Result<Option<Found>>> {
        let read = self.read_line(line);
        if !self.stripes.is_same(line, sequence) {
            return None;
        }
        Some(read.and_then(|entries| hit(line, &entries, key)))
    }

    /// The mapping of a block by the entry of a block of its run.
    #[inline]
    pub(super) fn mapping(&self, entry: &Entry, block: FileBlock) -> Result<Mapping> {
        let place = (entry.place.0 + block.0).wrapping_sub(entry.block.0);
        Ok(Mapping { block: self.pages.verify(place, "cuckoo entry")?, unwritten: entry.unwritten })
    }
}

/// The entry of a key in a line. Without it, a damaged entry is an error: that may be the entry of the key.
#[inline]
pub(super) fn hit(line: u64, entries: &Line, key: &Key) -> Result<Option<Found>> {
    let word = Entry::key(key.ino, key.block);
    for (slot, words) in entries.iter().enumerate() {
        if words[0] >> 1 == word
            && let Some(entry) = Entry::decode(*words)
        {
            return Ok(Some(Found { slot: (line, slot), entry }));
        }
    }
    let damaged = entries.iter().find(|words| !is_free(words) && Entry::decode(**words).is_none());
    damaged.map_or(Ok(None), |words| Err(damaged_entry(line, words)))
}

/// The error of words that are no entry and not free.
#[cold]
pub(super) fn damaged_entry(line: u64, words: &Words) -> Error {
    let found = format!("{:#x} {:#x}", words[0], words[1]);
    Corrupt::new(format!("cuckoo table, line {line}"), "a block of a file", found).into()
}

fn hashed_of(blocks: &BlockPool) -> Result<&Hashed> {
    let missing = || Corrupt::new("block pool", "presence of file blocks", "none").into();
    blocks.hashed().ok_or_else(missing)
}

/// The first bucket of a key, as read.
pub(super) enum FirstLook {
    /// With the sequence of its stripe, which stayed the same.
    Line(u64, Result<Line>),
    /// A change is under way.
    Changing,
}

impl FirstLook {
    /// The entry of a key, if it is in the bucket: the usual case of a look-up.
    #[inline]
    pub fn entry(&self, key: &Key) -> Option<Entry> {
        let FirstLook::Line(_, Ok(entries)) = self else { return None };
        let word = Entry::key(key.ino, key.block);
        entries.iter().find(|words| words[0] >> 1 == word).and_then(|words| Entry::decode(*words))
    }
}

/// The blocks of a run.
pub(super) fn run_of(entry: &Entry) -> std::ops::RangeInclusive<u64> {
    entry.block.0 - u64::from(entry.before)..=entry.block.0 + u64::from(entry.behind)
}

impl Witness for CuckooMap {
    fn table(&self) -> Option<&Hashed> {
        self.pages.blocks.hashed()
    }

    fn has_entry(&self, ino: Ino, block: FileBlock) -> Result<bool> {
        Ok(self.search(&self.key(ino, block), &|| false)?.is_some())
    }

    fn left(&self, ino: Ino, block: FileBlock) {
        if let Ok(hashed) = self.hashed() {
            note_left_of_table(hashed, ino, block);
        }
    }
}

/// The place of a PM block in a row.
pub(super) fn place_at(entry: &Entry, block: u64) -> PmBlock {
    PmBlock((entry.place.0 + block).wrapping_sub(entry.block.0))
}
