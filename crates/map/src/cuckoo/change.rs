//! Cuckoo map: changes of mappings.
//!
//! A change works group by group, the blocks between two multiples of 16: runs end there.

use super::group::Group;
use super::lines::Lines;
use super::stripes::Held;
use super::table::{CuckooMap, Found, place_at, run_of};
use crate::file_map::{MapChange, MapGuard, MapInode, Mapping, PresenceChange};
use smallvec::SmallVec;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::cuckoo_map::{Entry, RUN_BLOCKS};
use terrace_format::record::write_size;
use terrace_format::{Corrupt, FileBlock, Ino, PmBlock};
use terrace_runtime::planted::{Mistake, planted};
use terrace_wal::{MapRoom, Result, Tx};

/// Bytes of a new or removed entry in a record.
pub(super) const ENTRY_BYTES: usize = write_size(16);
/// Bytes of an entry with another run in a record.
const COUNT_BYTES: usize = write_size(8);
/// Bytes of the entries whose run a change of consecutive blocks shortens from outside: at either end.
pub(super) const RUN_BYTES: usize = 2 * (RUN_BLOCKS as usize - 1) * COUNT_BYTES;

/// The blocks of a group.
type OfGroup<T> = [Option<T>; RUN_BLOCKS as usize];

/// The part of a change in a group.
struct Part<'a> {
    ino: Ino,
    group: Group,
    /// The first block of the group.
    base: u64,
    /// The first changed block in the group.
    from: usize,
    mappings: &'a [Option<Mapping>],
}

impl Part<'_> {
    /// The new mapping of a block by its number in the group; `None` where the change does not concern it.
    fn wanted(&self, index: usize) -> Option<Option<Mapping>> {
        self.mappings.get(index.checked_sub(self.from)?).copied()
    }
}

impl CuckooMap {
    /// The lines that a change may read and write, but for the stash.
    fn lines_of(&self, change: &MapChange, lines: &mut Vec<u64>) -> Result<()> {
        let (ino, first) = (change.inode.ino, change.first.0);
        let Some(last) =
            change.end().0.min(MAX_FILE_BLOCK.0 + 1).checked_sub(1).filter(|last| *last >= first)
        else {
            return Ok(());
        };
        let run = |block: u64| -> Result<Option<Entry>> {
            let key = self.key(ino, FileBlock(block));
            // The inode's lock is held: entries of its blocks move, and do not change.
            Ok(self
                .search_judged(&key, self.first_look(&key), &|| {
                    self.is_absent(ino, key.block).unwrap_or(false)
                })?
                .map(|found| found.entry))
        };
        let of_first = run(first)?;
        let of_last = if last == first { of_first } else { run(last)? };
        let from = of_first.map_or(first, |entry| *run_of(&entry).start());
        let to = of_last.map_or(last, |entry| *run_of(&entry).end());
        let mut at = from;
        while at <= to {
            let group = Group::of(self, ino, at);
            while at <= to && group.has(at) {
                lines.extend(group.key(ino, at).pair);
                at += 1;
            }
        }
        Ok(())
    }

    /// The lines of changes, locked.
    fn lock_for<'c>(&self, changes: impl Iterator<Item = &'c MapChange>) -> Result<Lines<'_>> {
        let mut lines = Vec::new();
        for change in changes {
            self.lines_of(change, &mut lines)?;
        }
        Ok(Lines::new(self, self.stripes.lock(lines)))
    }

    /// Puts changes into lines; gives the room that one of them lacks. The places of the changes before it belong to the
    /// room: else a move for it could fill one of theirs, or leave it theirs alone.
    fn apply_all<'c>(
        &self,
        lines: &mut Lines<'_>,
        changes: impl Iterator<Item = &'c MapChange>,
    ) -> Result<Option<MapRoom>> {
        let mut before = Vec::new();
        for change in changes {
            if !self.apply_parts(lines, change)? {
                return Ok(Some(MapRoom { before, ..room_of(change) }));
            }
            if !change.is_removal() {
                before.push((change.inode.ino, change.first, change.mappings.len()));
            }
        }
        Ok(None)
    }

    /// Puts a change into lines, group by group; false when a block finds no place.
    fn apply_parts(&self, lines: &mut Lines<'_>, change: &MapChange) -> Result<bool> {
        let ino = change.inode.ino;
        let mut at = change.first.0;
        let mut rest: &[Option<Mapping>] = &change.mappings;
        while !rest.is_empty() {
            if at > MAX_FILE_BLOCK.0 {
                return match rest.iter().any(Option::is_some) {
                    true => Err(too_large(ino, at)),
                    false => Ok(true),
                };
            }
            let from = (at % RUN_BLOCKS) as usize;
            let count = rest.len().min(RUN_BLOCKS as usize - from);
            // The last group has a block less.
            let count = count.min((MAX_FILE_BLOCK.0 + 1 - at) as usize);
            let (mappings, behind) = rest.split_at(count);
            let base = at - from as u64;
            let part = Part { ino, group: Group::of(self, ino, at), base, from, mappings };
            if !self.apply_part(lines, &part)? {
                return Ok(false);
            }
            (at, rest) = (at + count as u64, behind);
        }
        Ok(true)
    }

    fn apply_part(&self, lines: &mut Lines<'_>, part: &Part<'_>) -> Result<bool> {
        let mut found: OfGroup<Found> = [None; RUN_BLOCKS as usize];
        let mut changed = 0u32;
        for (index, place) in found.iter_mut().enumerate() {
            let Some(new) = part.wanted(index) else { continue };
            *place = lines.find(&part.group.key(part.ino, part.base + index as u64))?;
            let old =
                place.map(|found| Mapping { block: found.entry.place, unwritten: found.entry.unwritten });
            changed |= u32::from(old != new) << index;
        }
        let mut corrected = self.shorten_runs(lines, part, &mut found, changed)?;
        if planted(Mistake::RunNotCorrected) {
            corrected = [None; RUN_BLOCKS as usize];
        }
        let set = corrected.iter().zip(&found);
        for (entry, found) in set.filter_map(|(entry, found)| Some((entry.as_ref()?, found.as_ref()?))) {
            lines.set(found.slot, entry.encode())?;
        }
        let new = new_entries(part, changed);
        // Removals first: they make room.
        for (index, found) in found.iter().enumerate() {
            if let (true, Some(found), Some(None)) = (changed >> index & 1 == 1, found, new.get(index)) {
                lines.set(found.slot, [0; 2])?;
            }
        }
        for (index, entry) in new.iter().enumerate() {
            let Some(entry) = entry else { continue };
            let slot = match found.get(index).and_then(Option::as_ref) {
                Some(found) => found.slot,
                None => {
                    let key = part.group.key(part.ino, entry.block.0);
                    let Some(slot) = lines.free_slot(&key) else { return Ok(false) };
                    slot
                }
            };
            lines.set(slot, entry.encode())?;
        }
        Ok(true)
    }

    /// The entries of blocks that stay, with the rests of their runs, where a run loses a block.
    fn shorten_runs(
        &self,
        lines: &mut Lines<'_>,
        part: &Part<'_>,
        found: &mut OfGroup<Found>,
        changed: u32,
    ) -> Result<OfGroup<Entry>> {
        let mut corrected: OfGroup<Entry> = [None; RUN_BLOCKS as usize];
        let mut done = 0u32;
        for index in (0..RUN_BLOCKS as usize).filter(|index| changed >> index & 1 == 1) {
            let Some(Found { entry, .. }) = found.get(index).copied().flatten() else { continue };
            if done >> index & 1 == 1 {
                continue;
            }
            let run = run_of(&entry);
            let (start, end) = ((run.start() - part.base) as usize, (run.end() - part.base) as usize);
            let mut rest: SmallVec<[usize; 16]> = SmallVec::new();
            done |= (start..=end).fold(0, |bits, member| bits | 1 << member);
            // Behind the end the last rest ends, too.
            for member in start..=end + 1 {
                if member <= end && changed >> member & 1 == 0 {
                    rest.push(member);
                    let block = part.base + member as u64;
                    let place = found.get_mut(member).ok_or_else(|| false_run(&entry, block))?;
                    if place.is_none() {
                        let key = part.group.key(part.ino, block);
                        // The first and the last block of the change have told how far their runs reach.
                        if !key.pair.iter().all(|line| lines.held.holds(*line)) {
                            return Err(false_run(&entry, block));
                        }
                        *place = lines.find(&key)?;
                    }
                    let is_of_run = |other: &Found| {
                        run_of(&other.entry) == run
                            && other.entry.place == place_at(&entry, block)
                            && other.entry.unwritten == entry.unwritten
                    };
                    if !place.as_ref().is_some_and(is_of_run) {
                        return Err(false_run(&entry, block));
                    }
                    continue;
                }
                for (before, member) in rest.iter().enumerate() {
                    if let (Some(place), Some(Some(found))) = (corrected.get_mut(*member), found.get(*member))
                    {
                        let behind = rest.len() - 1 - before;
                        *place = Some(Entry { before: before as u8, behind: behind as u8, ..found.entry });
                    }
                }
                rest.clear();
            }
        }
        Ok(corrected)
    }

    pub(super) fn lacking(&self, earlier: &[MapChange], change: &MapChange) -> Result<Option<MapRoom>> {
        if change.is_removal() {
            return Ok(None);
        }
        let all = || earlier.iter().chain([change]);
        if self.has_places(all()) {
            return Ok(None);
        }
        let mut lines = self.lock_for(all())?;
        self.apply_all(&mut lines, all())
    }

    pub(super) fn change_entries(&self, tx: &mut Tx, changes: &[MapChange]) -> Result<MapGuard<'_>> {
        let mut lines = self.lock_for(changes.iter())?;
        if let Some(room) = self.apply_all(&mut lines, changes.iter())? {
            return Err(room.into());
        }
        Ok(self.guard_of(lines.log_into(tx), changes))
    }

    fn guard_of<'m>(&'m self, held: Held<'m>, changes: &[MapChange]) -> MapGuard<'m> {
        let mut presence = PresenceChange::new(self);
        for change in changes {
            let blocks = (change.first.0..=MAX_FILE_BLOCK.0).map(FileBlock).zip(&change.mappings);
            for (block, mapping) in blocks {
                match mapping {
                    Some(_) => _ = presence.add(change.inode.ino, block),
                    None => presence.remove(change.inode.ino, block),
                }
            }
        }
        MapGuard::stripes(held, Some(presence))
    }

    pub(super) fn exchange_one<'s>(
        &'s self,
        tx: &mut Tx,
        inode: &MapInode,
        (block, new): (FileBlock, Mapping),
        guard: &mut MapGuard<'s>,
    ) -> Result<Option<Option<Mapping>>> {
        if block > MAX_FILE_BLOCK {
            return Ok(None);
        }
        if let Some(old) = self.exchange_alone(tx, inode.ino, (block, new), guard)? {
            return Ok(Some(old));
        }
        let change = MapChange { inode: *inode, first: block, mappings: [Some(new)].into_iter().collect() };
        let mut lines = self.lock_for([&change].into_iter())?;
        let old = lines.find(&self.key(inode.ino, block))?;
        if old.is_none() && self.hashed()?.presence.requires(inode.ino, block) {
            // Its entry is lost. A new one would hide that, and leave the old block without a file.
            return Ok(None);
        }
        let old = old.map(|found| self.mapping(&found.entry, block)).transpose()?;
        if !self.apply_parts(&mut lines, &change)? {
            return Ok(None);
        }
        *guard = self.guard_of(lines.log_into(tx), &[change]);
        Ok(Some(old))
    }
}

/// The entries of the blocks that a change maps anew: runs as long as they can be.
fn new_entries(part: &Part<'_>, changed: u32) -> OfGroup<Entry> {
    let mut entries: OfGroup<Entry> = [None; RUN_BLOCKS as usize];
    let new = |index: usize| part.wanted(index).flatten().filter(|_| changed >> index & 1 == 1);
    let mut start = 0;
    while start < RUN_BLOCKS as usize {
        let Some(first) = new(start) else {
            start += 1;
            continue;
        };
        let follows = |index: usize| {
            let next = Mapping { block: PmBlock(first.block.0 + (index - start) as u64), ..first };
            index < RUN_BLOCKS as usize && new(index) == Some(next)
        };
        let length = (start..).take_while(|index| *index == start || follows(*index)).count();
        for (before, (index, entry)) in entries.iter_mut().enumerate().skip(start).take(length).enumerate() {
            *entry = Some(Entry {
                ino: part.ino,
                block: FileBlock(part.base + index as u64),
                place: PmBlock(first.block.0 + before as u64),
                unwritten: first.unwritten,
                before: before as u8,
                behind: (length - 1 - before) as u8,
            });
        }
        start += length;
    }
    entries
}

fn room_of(change: &MapChange) -> MapRoom {
    let count = change.mappings.len();
    MapRoom {
        ino: change.inode.ino,
        first: change.first,
        count,
        runs: change.runs(),
        pages: 0,
        before: Vec::new(),
    }
}

fn too_large(ino: Ino, block: u64) -> terrace_wal::Error {
    let site = format!("blocks of inode {ino}");
    Corrupt::new(site, format!("up to {MAX_FILE_BLOCK}"), block.to_string()).into()
}

fn false_run(entry: &Entry, block: u64) -> terrace_wal::Error {
    let site = format!("cuckoo entry of block {} of inode {}", entry.block, entry.ino);
    let expected = format!("block {block} in its run of {:?}", run_of(entry));
    Corrupt::new(site, expected, "another or none").into()
}
