//! Mends the cuckoo table of all files: entries that are right stay where they are.

use crate::find::cuckoo::line_of;
use crate::state::Round;
use crate::state::actions::Stuck;
use crate::state::maps::Mapped;
use std::collections::BTreeMap;
use std::convert::Infallible;
use terrace_format::cuckoo_map::{Buckets, Entry, Line, Move, RUN_BLOCKS, Slot, find_moves, is_free};
use terrace_format::{FileBlock, Ino, PmBlock};

/// Inode and block.
type Key = (u32, u64);

/// The lines of a table, in memory.
struct Table {
    buckets: Buckets,
    lines: BTreeMap<u64, Line>,
    places: BTreeMap<Key, Slot>,
}

impl Table {
    fn words(&mut self, (line, slot): Slot) -> Option<&mut [u64; 2]> {
        self.lines.get_mut(&line)?.get_mut(slot)
    }

    fn entry(&self, key: Key) -> Option<Entry> {
        let (line, slot) = self.places.get(&key)?;
        Entry::decode(*self.lines.get(line)?.get(*slot)?)
    }

    /// Clears all entries but those of the blocks that files have; gives the number of cleared ones.
    fn clear_wrong(&mut self, wanted: &BTreeMap<Key, Mapped>) -> usize {
        let mut cleared = 0;
        for (line, words) in &mut self.lines {
            for (slot, words) in words.iter_mut().enumerate().filter(|(_, words)| !is_free(words)) {
                let entry = Entry::decode(*words).filter(|entry| self.buckets.is_home(entry, *line));
                let key = entry.and_then(|entry| Some((u32::try_from(entry.ino.0).ok()?, entry.block.0)));
                let is_right = |(entry, key): (Entry, Key)| {
                    let mapped = Mapped { block: entry.place.0, unwritten: entry.unwritten };
                    wanted.get(&key) == Some(&mapped) && !self.places.contains_key(&key)
                };
                match key.filter(|key| entry.is_some_and(|entry| is_right((entry, *key)))) {
                    Some(key) => _ = self.places.insert(key, (*line, slot)),
                    None => {
                        *words = [0; 2];
                        cleared += 1;
                    }
                }
            }
        }
        cleared
    }

    /// Puts an entry in, with moves of others.
    fn insert(&mut self, (ino, block): Key, mapped: &Mapped) -> Result<(), Stuck> {
        let entry = Entry {
            ino: Ino(ino.into()),
            block: FileBlock(block),
            place: PmBlock(mapped.block),
            unwritten: mapped.unwritten,
            before: 0,
            behind: 0,
        };
        let pair = self.buckets.pair(entry.ino, entry.block);
        let mut read = |line| Ok::<_, Infallible>(self.lines.get(&line).copied().unwrap_or_default());
        let Ok(moves) = find_moves(&self.buckets, pair, &mut read);
        for Move { from, to } in moves.iter().flatten() {
            let words = self.words(*from).map(std::mem::take).unwrap_or_default();
            if let (Some(place), Some(moved)) = (self.words(*to), Entry::decode(words)) {
                *place = words;
                self.places.insert((moved.ino.0 as u32, moved.block.0), *to);
            }
        }
        let stash = if moves.is_none() { self.buckets.stash() } else { 0..0 };
        for line in pair.into_iter().chain(stash) {
            let slot = self.lines.get(&line).and_then(|words| words.iter().position(is_free));
            if let Some(slot) = slot {
                if let Some(place) = self.words((line, slot)) {
                    *place = entry.encode();
                }
                self.places.insert((ino, block), (line, slot));
                return Ok(());
            }
        }
        Err(Stuck(format!("the cuckoo table has no place for block {block} of inode {ino}")))
    }

    /// Tells runs anew where the entries of 16 blocks disagree; gives the number of such places.
    fn mend_runs(&mut self) -> usize {
        let keys: Vec<Key> = self.places.keys().copied().collect();
        let mut mended = 0;
        for group in keys.chunk_by(|a, b| a.0 == b.0 && a.1 / RUN_BLOCKS == b.1 / RUN_BLOCKS) {
            let entries: Vec<Entry> = group.iter().filter_map(|key| self.entry(*key)).collect();
            let follows = |a: &Entry, b: &Entry| {
                a.block.0 + 1 == b.block.0 && a.place.0 + 1 == b.place.0 && a.unwritten == b.unwritten
            };
            let is_run = |run: &[Entry]| {
                let mut at = run.iter().zip((0u8..).zip((0..run.len() as u8).rev()));
                at.all(|(entry, counts)| (entry.before, entry.behind) == counts)
            };
            // As they are told: a run ends where none is behind.
            let told = entries.chunk_by(|a, b| a.behind > 0 && follows(a, b));
            if told.into_iter().all(is_run) {
                continue;
            }
            mended += 1;
            for run in entries.chunk_by(follows) {
                for (before, entry) in run.iter().enumerate() {
                    let behind = (run.len() - 1 - before) as u8;
                    let new = Entry { before: before as u8, behind, ..*entry };
                    let slot = self.places.get(&(entry.ino.0 as u32, entry.block.0)).copied();
                    if let Some(place) = slot.and_then(|slot| self.words(slot)) {
                        *place = new.encode();
                    }
                }
            }
        }
        mended
    }
}

/// Writes the lines that change.
pub(crate) fn emit_cuckoo(round: &mut Round<'_>) -> Result<(), Stuck> {
    let mut wanted = BTreeMap::new();
    for (ino, map) in &round.maps {
        if !round.inodes.slots.contains_key(ino) {
            continue;
        }
        wanted.extend(map.entries.iter().map(|(block, mapped)| ((*ino, *block), *mapped)));
        let gone = map.found.keys().filter(|block| !map.entries.contains_key(block)).count();
        if gone > 0 {
            let text = format!("{gone} mapped blocks are another's or free; they are given up");
            round.actions.lose(*ino, text);
        }
    }
    let buckets = Buckets::new(round.pool.superblock.hash_key, &round.pool.geometry);
    let lines = buckets.lines().map(|line| (line, line_of(round, &buckets, line).unwrap_or_default()));
    let mut table = Table { lines: lines.collect(), buckets, places: BTreeMap::new() };
    let cleared = table.clear_wrong(&wanted);
    let missing: Vec<Key> = wanted.keys().filter(|key| !table.places.contains_key(key)).copied().collect();
    for key in &missing {
        if let Some(mapped) = wanted.get(key) {
            table.insert(*key, mapped)?;
        }
    }
    let mended = table.mend_runs();
    assert_eq!(table.places.len(), wanted.len(), "each block has an entry");
    if cleared + missing.len() + mended > 0 {
        let added = missing.len();
        round.actions.add(format!(
            "the cuckoo table: {cleared} entries cleared, {added} added, runs of {mended} places told anew"
        ));
    }
    for (line, words) in table.lines {
        let bytes: Vec<u8> = words.as_flattened().iter().flat_map(|word| word.to_le_bytes()).collect();
        round.pool.put(table.buckets.line(line), &bytes);
    }
    Ok(())
}
