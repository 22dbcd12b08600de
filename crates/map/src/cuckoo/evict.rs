//! Cuckoo map: places freed by moves of other entries, in transactions of their own (T7).
//!
//! Invariant: the record of a move copies an entry and clears its old place together. Readers see a sequence change; a
//! crash leaves both or none.

use super::group::Group;
use super::lines::Lines;
use super::table::CuckooMap;
use crate::file_map::MapGuard;
use std::collections::HashSet;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::cuckoo_map::{BUCKET_ENTRIES, Entry, Line, Move, Slot, find_moves, is_free};
use terrace_format::{Corrupt, Ino};
use terrace_wal::{MapRoom, NoSpace, Result, Tx};

/// Searches for moves whose entries stay until they are locked.
const TRIES: usize = 8;
/// Words of a place that is no entry, and not free.
const TAKEN: [u64; 2] = [u64::MAX; 2];

impl CuckooMap {
    /// Frees a place for the first block of the changes of a transaction that finds none, once the blocks before it have taken
    /// theirs.
    ///
    /// The blocks take places as the change will: else a move for one could fill the place that was made for another.
    pub(super) fn evict_for(&self, tx: &mut Tx, room: &MapRoom) -> Result<MapGuard<'_>> {
        for _ in 0..TRIES {
            let Some((pair, taken)) = self.first_without_place(room)? else {
                return Ok(MapGuard::default());
            };
            // An unreadable line has no place, and keeps its entries.
            let mut read = |line| -> Result<Line> {
                let mut entries = self.read_whole_line(line).unwrap_or([TAKEN; BUCKET_ENTRIES]);
                let taken = entries.iter_mut().enumerate().filter(|(slot, _)| taken.contains(&(line, *slot)));
                taken.for_each(|(_, words)| *words = TAKEN);
                Ok(entries)
            };
            let moves = match find_moves(&self.buckets, pair, &mut read)? {
                Some(moves) => moves,
                None => self.move_into_stash(pair)?,
            };
            if let Some(lines) = self.locked_moves(&moves)? {
                let mut held = lines.log_into(tx);
                held.note_moves(self.hashed()?, moves.len() as u64);
                wrong::clear_first(self, &moves)?;
                return Ok(MapGuard::stripes(held, None));
            }
        }
        // Others were quicker each time: the operation looks again.
        Ok(MapGuard::default())
    }

    /// The buckets of the first block that has no entry and finds no place, and the places of the blocks before it.
    fn first_without_place(&self, room: &MapRoom) -> Result<Option<([u64; 2], HashSet<Slot>)>> {
        let mut taken = HashSet::new();
        let mut known: Option<(Ino, Group)> = None;
        let all = room.before.iter().copied().chain([(room.ino, room.first, room.count)]);
        let blocks = all.flat_map(|(ino, first, count)| {
            let end = first.0.saturating_add(count as u64).min(MAX_FILE_BLOCK.0 + 1);
            (first.0..end).map(move |block| (ino, block))
        });
        for (ino, block) in blocks {
            let group = known.take().filter(|(of, group)| *of == ino && group.has(block));
            let (_, group) = group.unwrap_or_else(|| (ino, Group::of(self, ino, block)));
            let key = group.key(ino, block);
            known = Some((ino, group));
            let is_absent = self.is_absent(ino, key.block)?;
            if self.search_judged(&key, self.first_look(&key), &|| is_absent)?.is_some() {
                continue;
            }
            let mut place = None;
            for line in key.pair {
                let Ok(entries) = self.read_whole_line(line) else { continue };
                let free = (0..).zip(&entries).filter(|(_, words)| is_free(words));
                let slot = free.map(|(slot, _)| (line, slot)).find(|slot| !taken.contains(slot));
                place = place.or(slot);
            }
            let Some(place) = place else { return Ok(Some((key.pair, taken))) };
            taken.insert(place);
        }
        Ok(None)
    }

    /// The move of an entry of two full buckets into the stash.
    ///
    /// # Errors
    /// The damage where no entry of the buckets can be read, or a line of the stash cannot and the others are full; no space
    /// where all of the stash is full.
    fn move_into_stash(&self, pair: [u64; 2]) -> Result<Vec<Move>> {
        let (mut from, mut damage) = (None, None);
        for line in pair {
            let is_movable = |words: &[u64; 2]| {
                Entry::decode(*words).is_some_and(|entry| self.buckets.is_home(&entry, line))
            };
            match self.read_whole_line(line) {
                Ok(entries) => from = from.or(entries.iter().position(is_movable).map(|slot| (line, slot))),
                Err(error) => damage = damage.or(Some(error)),
            }
        }
        let Some(from) = from else {
            return Err(damage.unwrap_or_else(|| {
                let site = format!("cuckoo table, buckets {} and {}", pair[0], pair[1]);
                Corrupt::new(site, "an entry that belongs there", "none").into()
            }));
        };
        for line in self.buckets.stash() {
            match self.read_whole_line(line) {
                Ok(entries) => {
                    if let Some(slot) = entries.iter().position(is_free) {
                        return Ok(vec![Move { from, to: (line, slot) }]);
                    }
                }
                Err(error) => damage = damage.or(Some(error)),
            }
        }
        Err(damage.unwrap_or(NoSpace::Pm.into()))
    }

    /// The lines of moves with the moves done; `None` when an entry or a place has changed before the locks were taken.
    fn locked_moves(&self, moves: &[Move]) -> Result<Option<Lines<'_>>> {
        let held = self.stripes.lock(moves.iter().flat_map(|step| [step.from.0, step.to.0]));
        let mut lines = Lines::new(self, held);
        for Move { from, to } in moves {
            let words = lines.line(from.0)?.get(from.1).copied().unwrap_or(TAKEN);
            let target = lines.line(to.0)?.get(to.1).copied().unwrap_or(TAKEN);
            let is_home =
                |entry: &Entry| self.buckets.is_home(entry, from.0) && self.buckets.is_home(entry, to.0);
            let entry = Entry::decode(words).filter(|entry| is_free(&target) && is_home(entry));
            let Some(entry) = entry else { return Ok(None) };
            // It may come to a line that a search for all entries has passed.
            self.hashed()?.presence.insert(entry.ino, entry.block);
            lines.set(*to, words)?;
            lines.set(*from, [0; 2])?;
            if self.buckets.stash().contains(&to.0) {
                // Before the record: whoever finds the old place empty looks into the stash.
                self.note_stash_used();
            }
        }
        Ok(Some(lines))
    }
}

/// The branches of planted mistakes.
mod wrong {
    use super::*;
    use terrace_runtime::planted::{Mistake, planted};

    /// `eviction-clears-first`: the entry that moves is cleared in place before the record that copies it.
    pub(super) fn clear_first(map: &CuckooMap, moves: &[Move]) -> Result<()> {
        if planted(Mistake::EvictionClearsFirst)
            && let Some(Move { from: (line, slot), .. }) = moves.first()
        {
            map.pages.pm.write(map.buckets.line(*line).plus(16 * *slot as u64), &[0; 16])?;
        }
        Ok(())
    }
}
