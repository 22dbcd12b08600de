//! Cuckoo map: look-ups and lists where lines of the table cannot be read.
//!
//! A block without a readable entry is absent when memory knows the blocks of its file from the block table. Where entries
//! of the block table are lost, too, the map is read once, and a file is judged by the number of its blocks at its first
//! question (`blocks::hidden`). A block is never taken for absent while it may lie in a lost entry (I8).

use super::table::{CuckooMap, FirstLook, Found, Key, damaged_entry};
use crate::hidden::judge_missing;
use smallvec::smallvec;
use std::collections::BTreeMap;
use terrace_blocks::pool::{Hashed, Known};
use terrace_blocks::unreadable::LostLines;
use terrace_format::cuckoo_map::{Entry, Words, is_free};
use terrace_format::{FileBlock, Ino};
use terrace_wal::{Error, Result};

impl CuckooMap {
    /// As [`Self::search_from`]; a block that is found nowhere is absent, or the answer is an error.
    pub(super) fn search_judged(
        &self,
        key: &Key,
        first: FirstLook,
        is_absent: &dyn Fn() -> bool,
    ) -> Result<Option<Found>> {
        match self.search_from(key, first, is_absent) {
            Ok(None) => self.judge_missing(key, None).map(|()| None),
            Err(error) => self.judge_missing(key, Some(error)).map(|()| None),
            found => found,
        }
    }

    /// Refuses a block without a readable entry, unless it is absent. `error` comes from an unreadable line.
    pub(super) fn judge_missing(&self, key: &Key, error: Option<Error>) -> Result<()> {
        let at = (key.ino, key.block);
        judge_missing(self.hashed()?, at, error.as_ref(), || self.is_sound_around(key))
    }

    /// Whether all entries of the lines of a key belong there: a damaged word may be that of the key.
    fn is_sound_around(&self, key: &Key) -> bool {
        let stash = self.is_stash_used().then(|| self.buckets.stash());
        let mut lines = key.pair.into_iter().chain(stash.into_iter().flatten());
        lines.all(|line| {
            let is_home = |words: &Words| self.home_entry(line, words).is_some();
            self.read_whole_line(line)
                .is_ok_and(|line| line.iter().all(|words| is_free(words) || is_home(words)))
        })
    }

    /// The entry that words stand for, if it may lie in a line.
    fn home_entry(&self, line: u64, words: &Words) -> Option<Entry> {
        Entry::decode(*words).filter(|entry| self.buckets.is_home(entry, line))
    }

    /// Enters the blocks of the table in memory, where the scan of the block table has met an unreadable line. Once in a
    /// mount; the change of a block that comes or goes meanwhile enters it or takes it out. The caller holds no stripe.
    pub(super) fn learn_all(&self, hashed: &Hashed) -> Result<()> {
        if hashed.known() != Known::Doubtful || hashed.hidden.has_lost_lines() {
            return Ok(());
        }
        let mut lost = BTreeMap::new();
        for line in self.buckets.lines() {
            // A change that clears an entry holds the stripe, and takes the bit out afterwards.
            let _held = self.stripes.lock([line]);
            let entries = match self.read_line(line) {
                Ok(entries) => entries,
                Err(error) => {
                    lost.insert(line, error);
                    continue;
                }
            };
            for words in entries.iter().filter(|words| !is_free(words)) {
                match self.home_entry(line, words) {
                    Some(entry) => _ = hashed.presence.insert(entry.ino, entry.block),
                    None => _ = lost.entry(line).or_insert_with(|| damaged_entry(line, words)),
                }
            }
        }
        if lost.is_empty() {
            hashed.learned_from_map();
        } else {
            let buckets = self.buckets.clone();
            let lines_of = move |ino: Ino, block: FileBlock| {
                let [first, second] = buckets.pair(ino, block);
                smallvec![first..first + 1, second..second + 1, buckets.stash()]
            };
            hashed.hidden.set_lost_lines(LostLines::new(Box::new(lines_of), lost));
        }
        Ok(())
    }
}
