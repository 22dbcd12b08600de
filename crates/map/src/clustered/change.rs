//! Clustered map: changes of lines.
//!
//! Invariant: a line is loaded once in a change, while the lock of its inode is held. A line without a block gets key 0 and
//! keeps its other words; a line that gets a key is written whole.

use super::claims::Claimed;
use super::table::{ClusteredMap, Found};
use crate::file_map::{MapChange, MapGuard, MapInode, Mapping, PresenceChange};
use crate::log_words::log_changes;
use smallvec::SmallVec;
use terrace_blocks::pool::Known;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::clustered_map::{LINE_WORDS, Line, PIECE_BLOCKS, Piece, Place};
use terrace_format::inode::DIRECT_BLOCKS;
use terrace_format::record::write_size;
use terrace_format::{Corrupt, FileBlock, Ino};
use terrace_wal::{MapRoom, NoSpace, Result, Tx};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

/// Bytes of a line in a record, at most: words of a line that differ in several places take no more.
const LINE_BYTES: usize = write_size(8 * LINE_WORDS);
/// Bytes of a run of file blocks in a record: it may begin and end within pieces.
pub(super) const RUN_BYTES: usize = 2 * LINE_BYTES;
/// Bytes of a block beside: more than a sixteenth of a line.
pub(super) const BLOCK_BYTES: usize = 8;

const _: () = assert!(BLOCK_BYTES * PIECE_BLOCKS as usize >= LINE_BYTES);

struct Loaded {
    piece: Piece,
    number: u64,
    /// As stored; without blocks where the line is claimed.
    old: Line,
    new: Line,
    is_claimed: bool,
}

/// The lines of a change.
struct Changing<'m> {
    map: &'m ClusteredMap,
    claimed: Claimed<'m>,
    loaded: SmallVec<[Loaded; 2]>,
}

/// The part of a change in a piece.
struct Part<'a> {
    piece: Piece,
    /// The first changed block by its number in the piece.
    from: usize,
    mappings: &'a [Option<Mapping>],
}

impl<'m> Changing<'m> {
    fn new(map: &'m ClusteredMap) -> Changing<'m> {
        Changing { map, claimed: Claimed::none(&map.claims), loaded: SmallVec::new() }
    }

    fn loaded(&mut self, piece: Piece) -> Result<Option<&mut Loaded>> {
        let known = self.loaded.iter().rposition(|loaded| loaded.piece == piece);
        let at = match known {
            Some(at) => at,
            None => {
                let home = self.map.lines.home(piece);
                let Some(Found { number, line }) = self.map.find(piece, home, u16::MAX)? else {
                    return Ok(None);
                };
                self.load(piece, Found { number, line });
                self.loaded.len() - 1
            }
        };
        Ok(self.loaded.get_mut(at))
    }

    fn load(&mut self, piece: Piece, Found { number, line }: Found) {
        let mut new = line;
        // Damage, which would keep the line for ever.
        piece.impossible().for_each(|index| new.set(index, None));
        self.loaded.push(Loaded { piece, number, old: line, new, is_claimed: false });
    }

    /// Claims the first free line of a piece. Gives the reach that it needs, if that is not the stored one yet.
    fn claim(&mut self, piece: Piece) -> Result<Option<u64>> {
        let (map, home) = (self.map, self.map.lines.home(piece));
        let mut lost = None;
        for distance in 0..map.lines.count() {
            let number = map.lines.ahead(home, distance);
            // A line that cannot be read is not free.
            let is_free = match map.read_key(number) {
                // Without a block in memory, by damage: a second line of the piece would hide behind it.
                Ok(key) if key == piece.key() => {
                    let line = map.read_line(number)?;
                    self.load(piece, Found { number, line });
                    return Ok(Some(distance + 1).filter(|needed| *needed > map.reach()));
                }
                Ok(key) => key == 0,
                Err(error) => {
                    lost = lost.or(Some(error));
                    false
                }
            };
            if !is_free || !self.claimed.take(number, || map.read_key(number).is_ok_and(|key| key == 0)) {
                continue;
            }
            map.hashed()?.note_distance(distance);
            let line = Line::of(piece);
            self.loaded.push(Loaded { piece, number, old: line, new: line, is_claimed: true });
            return Ok(Some(distance + 1).filter(|needed| *needed > map.reach()));
        }
        // There are more lines than blocks: some cannot be read, or are damaged.
        Err(lost.unwrap_or_else(|| NoSpace::Pm.into()))
    }

    /// Puts a part of a change into its line. Gives the reach that it lacks.
    fn apply(&mut self, part: &Part<'_>) -> Result<Option<u64>> {
        let mut needed = None;
        if self.loaded(part.piece)?.is_none() {
            if part.mappings.iter().all(Option::is_none) {
                return Ok(None);
            }
            needed = self.claim(part.piece)?;
        }
        if let Some(loaded) = self.loaded(part.piece)? {
            for (index, mapping) in (part.from..).zip(part.mappings) {
                let place = mapping.map(|Mapping { block, unwritten }| Place { block, unwritten });
                if loaded.new.get(index) != place {
                    loaded.new.set(index, place);
                }
            }
        }
        Ok(needed)
    }

    /// Puts the blocks of a change behind those in the slot into lines. Gives the reach that it lacks.
    fn apply_all(&mut self, change: &MapChange) -> Result<Option<u64>> {
        let mut needed = None;
        for part in parts(change) {
            needed = needed.max(self.apply(&part?)?);
        }
        Ok(needed)
    }

    /// Logs the words that differ. The guard ends claims when the stores are issued.
    fn log_into(self, tx: &mut Tx) -> MapGuard<'m> {
        let (map, claimed) = (self.map, self.claimed);
        let knows_all = map.hashed().is_ok_and(|hashed| hashed.known() == Known::All);
        let mut presence: Option<PresenceChange<'m>> = None;
        for loaded in &self.loaded {
            log_line(map, tx, loaded);
            if loaded.old == loaded.new && knows_all {
                continue;
            }
            let presence = presence.get_or_insert_with(|| PresenceChange::new(map));
            for index in (0..PIECE_BLOCKS as usize).filter(|index| loaded.piece.has(*index)) {
                let (ino, block) = (loaded.piece.ino, loaded.piece.first().plus(index as u64));
                match (loaded.old.get(index), loaded.new.get(index)) {
                    (None, Some(_)) => _ = presence.add(ino, block),
                    (Some(_), None) => presence.remove(ino, block),
                    // The scan of the block table passes a block that a change has met.
                    (Some(_), Some(_)) if !knows_all => _ = presence.add(ino, block),
                    _ => {}
                }
            }
        }
        MapGuard::lines(claimed, presence)
    }
}

fn log_line(map: &ClusteredMap, tx: &mut Tx, loaded: &Loaded) {
    let at = map.lines.at(loaded.number);
    let (old, new) = (loaded.old.0.map(U64::new), loaded.new.0.map(U64::new));
    match (loaded.is_claimed, loaded.new.is_empty()) {
        (true, true) => {}
        (true, false) => tx.write(at, new.as_bytes()),
        (false, true) if !loaded.old.is_empty() => tx.write_u64(at, 0),
        _ => {
            let ((_, old), (_, new)) = (old.split_at(1), new.split_at(1));
            log_changes(tx, at.plus(8), old, new);
        }
    }
}

/// The parts of a change in pieces, without the blocks in the slot.
fn parts(change: &MapChange) -> impl Iterator<Item = Result<Part<'_>>> {
    let (ino, in_slot) = (change.inode.ino, in_slot(change));
    let (mut at, mut rest) = (change.first.0 + in_slot as u64, change.mappings.split_at(in_slot).1);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        if at > MAX_FILE_BLOCK.0 {
            let is_some = rest.iter().any(Option::is_some);
            rest = &[];
            return is_some.then(|| Err(too_large(ino, at)));
        }
        let from = (at % PIECE_BLOCKS) as usize;
        let count = rest.len().min(PIECE_BLOCKS as usize - from);
        // The last piece has a block less.
        let (mappings, behind) = rest.split_at(count.min((MAX_FILE_BLOCK.0 + 1 - at) as usize));
        let part = Part { piece: Piece::of(ino, FileBlock(at)), from, mappings };
        (at, rest) = (at + mappings.len() as u64, behind);
        Some(Ok(part))
    })
}

/// Blocks of a change that lie in the slot: its first ones.
fn in_slot(change: &MapChange) -> usize {
    (DIRECT_BLOCKS.saturating_sub(change.first.0) as usize).min(change.mappings.len())
}

fn too_large(ino: Ino, block: u64) -> terrace_wal::Error {
    let site = format!("blocks of inode {ino}");
    Corrupt::new(site, format!("up to {MAX_FILE_BLOCK}"), block.to_string()).into()
}

/// The room that a change lacks: a reach.
fn room_of(change: &MapChange, needed: u64) -> MapRoom {
    MapRoom {
        ino: change.inode.ino,
        first: change.first,
        count: change.mappings.len(),
        runs: needed as usize,
        pages: 0,
        before: Vec::new(),
    }
}

impl ClusteredMap {
    pub(super) fn lacking(&self, earlier: &[MapChange], change: &MapChange) -> Result<Option<MapRoom>> {
        if change.is_removal() || in_slot(change) == change.mappings.len() {
            return Ok(None);
        }
        let mut changing = Changing::new(self);
        for earlier in earlier {
            changing.apply_all(earlier)?;
        }
        let needed = changing.apply_all(change)?;
        wrong::raise_in_memory(self, needed);
        Ok(needed.map(|needed| room_of(change, needed)))
    }

    pub(super) fn change_lines(&self, tx: &mut Tx, changes: &[MapChange]) -> Result<MapGuard<'_>> {
        let mut changing = Changing::new(self);
        for change in changes {
            if let Some(needed) = changing.apply_all(change)? {
                return Err(room_of(change, needed).into());
            }
            let (mappings, _) = change.mappings.split_at(in_slot(change));
            if !mappings.is_empty() {
                self.slots.set_at(tx, &self.slots.place(&change.inode), change.first, mappings)?;
            }
        }
        wrong::raise_late(&changing, tx)?;
        Ok(changing.log_into(tx))
    }

    pub(super) fn exchange_one<'s>(
        &'s self,
        tx: &mut Tx,
        inode: &MapInode,
        (block, new): (FileBlock, Mapping),
        guard: &mut MapGuard<'s>,
    ) -> Result<Option<Option<Mapping>>> {
        if block.0 < DIRECT_BLOCKS {
            return self.slots.exchange_at(tx, &self.slots.place(inode), block.0, new);
        }
        if block > MAX_FILE_BLOCK {
            return Ok(None);
        }
        let piece = Piece::of(inode.ino, block);
        let from = (block.0 % PIECE_BLOCKS) as usize;
        let mut changing = Changing::new(self);
        let old = changing.loaded(piece)?.and_then(|loaded| loaded.new.get(from));
        if old.is_none() && self.hashed()?.presence.requires(inode.ino, block) {
            // Its value is lost. A new one would hide that, and leave the old block without a file.
            return Ok(None);
        }
        let old = old.map(|place| self.mapping(place)).transpose()?;
        if changing.apply(&Part { piece, from, mappings: &[Some(new)] })?.is_some() {
            return Ok(None);
        }
        let [loaded] = changing.loaded.as_slice() else { unreachable!("an exchange has one line") };
        if old.is_some() && self.hashed()?.known() == Known::All {
            // The usual case: a value is replaced, and nothing comes or goes.
            log_line(self, tx, loaded);
            return Ok(Some(old));
        }
        *guard = changing.log_into(tx);
        Ok(Some(old))
    }
}

/// The branches of planted mistakes.
mod wrong {
    use super::{Changing, ClusteredMap, Result, Tx, U64};
    use terrace_runtime::planted::{Mistake, planted};
    use terrace_runtime::sync::atomic::Ordering;

    /// Raises the reach in memory, so that making room stores nothing.
    pub(super) fn raise_in_memory(map: &ClusteredMap, needed: Option<u64>) {
        if let Some(needed) = needed.filter(|_| planted(Mistake::ReachAfterInsert)) {
            let new = needed.next_power_of_two().min(map.lines.most_reach());
            map.reach.fetch_max(new, Ordering::AcqRel);
        }
    }

    /// Stores a reach that memory alone knows, along with a change that does not need it.
    pub(super) fn raise_late(changing: &Changing<'_>, tx: &mut Tx) -> Result<()> {
        if !planted(Mistake::ReachAfterInsert) {
            return Ok(());
        }
        let (map, mut word) = (changing.map, [U64::ZERO]);
        let at = map.pages.blocks.wal().geometry().map_reach();
        map.pages.table_words(at, &mut word)?;
        let [stored] = word.map(U64::get);
        let mut lines = changing.loaded.iter();
        let fits = lines.all(|at| map.lines.distance(map.lines.home(at.piece), at.number) < stored);
        if stored < map.reach() && fits {
            tx.write_u64(at, map.reach());
        }
        Ok(())
    }
}
