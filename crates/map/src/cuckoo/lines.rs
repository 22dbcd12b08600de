//! Lines of the table that a change works on, as stored and as they are to be.
//!
//! Invariant: a line is loaded while its stripe is held, once.

use super::stripes::Held;
use super::table::{CuckooMap, Found, Key, hit};
use crate::log_words::log_changes;
use smallvec::SmallVec;
use std::collections::HashMap;
use terrace_format::cuckoo_map::{Line, Slot, Words, is_free};
use terrace_wal::{Result, Tx};
use zerocopy::little_endian::U64;

/// Lines that are searched one by one; more have an index.
const FEW_LINES: usize = 16;

struct Loaded {
    number: u64,
    old: Line,
    new: Line,
}

/// The lines of a change, under their locks.
pub(super) struct Lines<'m> {
    map: &'m CuckooMap,
    pub held: Held<'m>,
    loaded: SmallVec<[Loaded; 4]>,
    /// The places of lines in `loaded`, once they are many.
    index: HashMap<u64, usize>,
}

impl<'m> Lines<'m> {
    pub fn new(map: &'m CuckooMap, held: Held<'m>) -> Lines<'m> {
        Lines { map, held, loaded: SmallVec::new(), index: HashMap::new() }
    }

    fn load(&mut self, number: u64) -> Result<&mut Loaded> {
        let known = match self.loaded.len() {
            0..=FEW_LINES => self.loaded.iter().position(|line| line.number == number),
            _ => self.index.get(&number).copied(),
        };
        let at = match known {
            Some(at) => at,
            None => {
                assert!(self.held.holds(number), "line {number} of the map is read unlocked (T2)");
                let old = self.map.read_line(number)?;
                self.loaded.push(Loaded { number, old, new: old });
                let at = self.loaded.len() - 1;
                if at == FEW_LINES {
                    self.index.extend(self.loaded.iter().enumerate().map(|(at, line)| (line.number, at)));
                } else if at > FEW_LINES {
                    self.index.insert(number, at);
                }
                at
            }
        };
        self.loaded.get_mut(at).ok_or_else(|| unreachable!("line {at} was loaded"))
    }

    /// A line as it is to be.
    pub fn line(&mut self, number: u64) -> Result<Line> {
        Ok(self.load(number)?.new)
    }

    /// Gives a place new words.
    pub fn set(&mut self, (line, slot): Slot, words: Words) -> Result<()> {
        if let Some(place) = self.load(line)?.new.get_mut(slot) {
            *place = words;
        }
        Ok(())
    }

    /// The entry of a key. A line that cannot be read hides an entry only where the key may be there.
    pub fn find(&mut self, key: &Key) -> Result<Option<Found>> {
        let mut unreadable = None;
        for line in key.pair {
            match self.line(line).and_then(|entries| hit(line, &entries, key)) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                Err(error) => unreadable = unreadable.or(Some(error)),
            }
        }
        // Asked with the buckets locked: a move into the stash holds them.
        if self.map.is_stash_used() && !self.map.is_absent(key.ino, key.block)? {
            self.held.add_stash(self.map.buckets.stash().start);
            for line in self.map.buckets.stash() {
                match self.line(line).and_then(|entries| hit(line, &entries, key)) {
                    Ok(None) => {}
                    Ok(found) => return Ok(found),
                    Err(error) => unreadable = unreadable.or(Some(error)),
                }
            }
        }
        self.map.judge_missing(key, unreadable).map(|()| None)
    }

    /// A free place in the buckets of a key. A bucket that cannot be read has none.
    pub fn free_slot(&mut self, key: &Key) -> Option<Slot> {
        key.pair.into_iter().find_map(|line| {
            let slot = self.line(line).ok()?.iter().position(is_free)?;
            Some((line, slot))
        })
    }

    /// Logs the words that differ, and tells readers of the stores to come. Gives the locks.
    pub fn log_into(mut self, tx: &mut Tx) -> Held<'m> {
        let words =
            |line: &Line| line.as_flattened().iter().copied().map(U64::new).collect::<SmallVec<[U64; 8]>>();
        let is_changed = |line: &&Loaded| line.old != line.new;
        for line in self.loaded.iter().filter(is_changed) {
            log_changes(tx, self.map.buckets.line(line.number), &words(&line.old), &words(&line.new));
        }
        let changed = self.loaded.iter().filter(is_changed).map(|line| line.number);
        self.held.begin_stores(changed);
        self.held
    }
}
