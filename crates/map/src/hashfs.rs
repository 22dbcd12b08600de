//! HashFS as published, and in groups: the block table is the map ([HashFS] section 3.2; docs/format.md "HashFS").
//!
//! Slot i of the table is PM block i. The home of a file block is a keyed hash; a block lies in the first free slot of its
//! sequence (`format::homes`). A look-up compares owner words. Nothing but the owners of its blocks is logged for a change.
//!
//! A search never ends at a free slot, so nothing that a crash takes back can cut it, and there are no tombstones.
//! Instead memory knows which blocks are there (`blocks::presence`): a search for any other block ends at its first line.
//! The word `map_reach` in the roots block bounds all searches: no block lies as far from its home.
//!
//! Invariants: a key is in the table once, at a distance below `map_reach`. Presence is exact when nothing is under way.
//!
//! Locks: the entry of a block is under its inode's lock. A search reads owner words of other inodes, and compares them
//! with its own key only.

use crate::cursor::{ANNOUNCED, Cursor};
use crate::file_map::{
    FileMap, Freed, MapChange, MapGuard, MapInode, MapRecord, Mapped, Mapping, PresenceChange, Raise, Witness,
};
use crate::hashfs_search::TableSearch;
use crate::hidden::{is_known_cold, is_whole, keep_shown, note_left};
use crate::map_row::MapRow;
use crate::pages::Pages;
use crate::recent::Recent;
use std::sync::Arc;
use terrace_blocks::pool::{Hashed, Known};
use terrace_blocks::{BlockPool, Claim};
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::homes::{Home, Placement};
use terrace_format::inode::InodeSlot;
use terrace_format::map_kind::MapKind;
use terrace_format::{Corrupt, FileBlock, Ino, PmBlock};
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::AtomicU64;
use terrace_wal::{Error, MapRoom, Result, Tx};
use zerocopy::little_endian::U64;

/// The row of this map.
pub(crate) const ROW: MapRow = MapRow {
    kind: MapKind::HashfsLinear,
    name: "hashfs-linear",
    sentence: "The block table as hash table of all files, for comparison; the fast tier can never grow",
    make: |blocks| Ok(Box::new(HashfsMap::open(Arc::clone(blocks))?)),
};

/// The row of the same map with homes in groups.
pub(crate) const GROUPS_ROW: MapRow = MapRow {
    kind: MapKind::Hashfs,
    name: "hashfs",
    sentence: "As hashfs-linear, 16 blocks side by side; the fast tier can never grow",
    make: ROW.make,
};

/// Homes that are computed together.
const BATCH: usize = 16;

/// The block table as file map.
pub struct HashfsMap {
    table: TableSearch,
    /// Held while `map_reach` is raised.
    raising: Mutex<()>,
}

impl HashfsMap {
    /// The map of a pool with homes.
    ///
    /// # Errors
    /// The medium's; `Corrupt` for a pool without homes or an impossible reach.
    pub fn open(blocks: Arc<BlockPool>) -> Result<HashfsMap> {
        let at = blocks.wal().geometry().map_reach();
        let pages = Pages::new(blocks);
        let mut word = [U64::ZERO];
        pages.table_words(at, &mut word)?;
        let [reach] = word.map(U64::get);
        let table = TableSearch { pages, reach: AtomicU64::new(reach), recent: Recent::new() };
        let map = HashfsMap { table, raising: Mutex::new(()) };
        let most = map.hashed()?.homes.most_reach();
        if reach == 0 || reach > most {
            let expected = format!("1 to {most}");
            return Err(Corrupt::new("map reach", expected, reach.to_string()).into());
        }
        map.hashed()?.hidden.set_reach(reach);
        Ok(map)
    }

    fn hashed(&self) -> Result<&Hashed> {
        let missing = || Corrupt::new("block pool", "homes of file blocks", "none").into();
        self.table.pages.blocks.hashed().ok_or_else(missing)
    }

    /// The least reach with which a change fits; `None` when it fits.
    fn lacking(&self, hashed: &Hashed, change: &MapChange) -> Option<u64> {
        Self::lacking_of(self.table.reach(), hashed, change)
    }

    /// As [`Self::lacking`], by a reach.
    fn lacking_of(reach: u64, hashed: &Hashed, change: &MapChange) -> Option<u64> {
        let blocks = (change.first.0..).map(FileBlock).zip(&change.mappings);
        let distances = blocks.filter_map(|(block, mapping)| {
            let slot = mapping.as_ref()?.block;
            Some(hashed.homes.distance(hashed.homes.home(change.inode.ino, block), slot))
        });
        distances.max().map(|most| most + 1).filter(|needed| *needed > reach)
    }

    fn room(&self, change: &MapChange, needed: u64) -> MapRoom {
        MapRoom {
            ino: change.inode.ino,
            first: change.first,
            count: change.mappings.len(),
            runs: needed as usize,
            pages: 0,
            before: Vec::new(),
        }
    }

    /// Announces the loads of 16 aligned blocks.
    #[cold]
    fn announce(&self, ino: Ino, first: FileBlock) -> Result<()> {
        let homes_of = &self.hashed()?.homes;
        if homes_of.placement() == Placement::Groups {
            self.table.expect_group(homes_of.home(ino, first).slot.0);
            return Ok(());
        }
        let mut homes = [Home::default(); ANNOUNCED as usize];
        homes_of.homes(ino, first, &mut homes);
        homes.iter().for_each(|home| self.table.expect(home.slot.0));
        Ok(())
    }

    /// Sets the bits of new blocks; the bits of removed blocks are cleared when the change is committed.
    fn enter(&self, change: &MapChange, guard: &mut PresenceChange<'_>) -> Result<()> {
        let blocks = (change.first.0..).map(FileBlock).zip(&change.mappings);
        for (block, mapping) in blocks {
            if block > MAX_FILE_BLOCK && mapping.is_some() {
                let site = format!("blocks of inode {}", change.inode.ino);
                return Err(Corrupt::new(site, format!("up to {MAX_FILE_BLOCK}"), block.to_string()).into());
            }
            match mapping {
                Some(_) => _ = guard.add(change.inode.ino, block),
                None if block <= MAX_FILE_BLOCK => guard.remove(change.inode.ino, block),
                None => {}
            }
        }
        Ok(())
    }

    /// The mapping of a block that gets a slot at a distance, and its bit, when memory knows all blocks. A block that is
    /// found has its bit; a block whose bit is new is nowhere. So a write asks memory once at most.
    fn enter_found(
        &self,
        hashed: &Hashed,
        (ino, block): (Ino, FileBlock),
        (home, distance): (Home, u64),
        guard: &mut PresenceChange<'_>,
    ) -> Result<Option<Mapping>> {
        if let Some(found) = self.table.find_recent(ino, block) {
            return Ok(Some(found));
        }
        let mut is_new = None;
        // The first slot of the sequence was free: the block is elsewhere, if at all.
        if distance == 0 && *is_new.insert(guard.add(ino, block)) {
            return Ok(None);
        }
        let found = self.table.search(hashed, (ino, block), home, || {
            is_new.is_none() && *is_new.insert(guard.add(ino, block))
        })?;
        // No line was read where those within the reach lie beside the pool.
        if found.is_none() && !is_new.unwrap_or_else(|| guard.add(ino, block)) {
            self.table.judge_absent(hashed, Known::All, (ino, block), home)?;
        }
        Ok(found)
    }
}

impl Witness for HashfsMap {
    fn table(&self) -> Option<&Hashed> {
        self.table.pages.blocks.hashed()
    }

    fn has_entry(&self, ino: Ino, block: FileBlock) -> Result<bool> {
        let hashed = self.hashed()?;
        let home = hashed.homes.home(ino, block);
        Ok(self.table.search(hashed, (ino, block), home, || false)?.is_some())
    }

    fn left(&self, ino: Ino, block: FileBlock) {
        note_left(self.table.pages.blocks.hashed(), ino, block);
    }
}

impl FileMap for HashfsMap {
    fn lookup(&self, inode: &MapInode, block: FileBlock) -> Result<Option<Mapping>> {
        if block > MAX_FILE_BLOCK || inode.is_nowhere() {
            return Ok(None);
        }
        let hashed = self.hashed()?;
        if is_known_cold(hashed, inode, block) {
            return Ok(None);
        }
        self.table.find(hashed, inode.ino, block, hashed.homes.home(inode.ino, block))
    }

    fn lookup_with(&self, cursor: &Cursor, inode: &MapInode, block: FileBlock) -> Result<Option<Mapping>> {
        if let Some(next) = cursor.announces(block) {
            self.announce(inode.ino, next)?;
        }
        FileMap::lookup(self, inode, block)
    }

    fn lookup_run(&self, inode: &MapInode, first: FileBlock, out: &mut [Option<Mapping>]) -> Result<()> {
        let hashed = self.hashed()?;
        let end = first.0.saturating_add(out.len() as u64).min(MAX_FILE_BLOCK.0 + 1);
        let end = if inode.is_nowhere() { first.0 } else { end };
        let (out, behind) = out.split_at_mut(end.saturating_sub(first.0) as usize);
        behind.fill(None);
        if hashed.homes.placement() == Placement::Groups {
            return self.table.find_sixteens(hashed, inode.ino, first, out);
        }
        let mut homes = [Home::default(); BATCH];
        for (number, part) in out.chunks_mut(BATCH).enumerate() {
            let first = first.plus((number * BATCH) as u64);
            let (homes, _) = homes.split_at_mut(part.len());
            hashed.homes.homes(inode.ino, first, homes);
            homes.iter().for_each(|home| self.table.expect(home.slot.0));
            for (index, (out, home)) in (0..).zip(part.iter_mut().zip(&*homes)) {
                *out = self.table.find(hashed, inode.ino, first.plus(index), *home)?;
            }
        }
        Ok(())
    }

    fn mapped(
        &self,
        inode: &MapInode,
        from: FileBlock,
        to: FileBlock,
        most: usize,
        out: &mut Vec<Mapped>,
    ) -> Result<Option<FileBlock>> {
        assert!(most > 0, "a list of no blocks never gets full");
        let hashed = self.hashed()?;
        let known = hashed.known();
        if known == Known::Part {
            return Err(Error::TableUnread);
        }
        let mut blocks = Vec::new();
        let mut next = hashed.presence.list(inode.ino, (from, to), most, &mut blocks);
        if known == Known::Doubtful && !inode.is_nowhere() {
            next = keep_shown(hashed, inode.ino, (from, to), next, &mut blocks)?;
        }
        for block in blocks {
            let home = hashed.homes.home(inode.ino, block);
            if let Some(mapping) = self.table.find(hashed, inode.ino, block, home)? {
                out.push((block, mapping));
            }
        }
        Ok(next)
    }

    fn is_empty(&self, ino: Ino, _: &InodeSlot) -> bool {
        let is_empty = |hashed: &Hashed| is_whole(hashed, ino) && hashed.presence.is_empty(ino);
        self.hashed().is_ok_and(is_empty)
    }

    fn missing_room(&self, _: &[MapChange], change: &MapChange) -> Result<Option<MapRoom>> {
        let needed = self.lacking(self.hashed()?, change);
        Ok(needed.map(|needed| self.room(change, needed)))
    }

    fn make_room(
        &self,
        tx: &mut Tx,
        _: &MapInode,
        room: &MapRoom,
        _: &mut Claim<'_>,
    ) -> Result<MapGuard<'_>> {
        let raising = self.raising.lock();
        let (reach, needed) = (self.table.reach(), room.runs as u64);
        if needed <= reach {
            return Ok(MapGuard::default());
        }
        let most = self.hashed()?.homes.most_reach();
        let new = needed.next_power_of_two().min(most);
        if wrong::raise_in_memory(self, new) {
            return Ok(MapGuard::default());
        }
        tx.write_u64(self.table.pages.blocks.wal().geometry().map_reach(), new);
        Ok(MapGuard::raising(Raise { word: &self.table.reach, new, _lock: raising }))
    }

    fn record(&self) -> MapRecord {
        MapRecord { run: 0, block: 0, most_blocks: usize::MAX }
    }

    fn change(&self, tx: &mut Tx, changes: &[MapChange], _: usize, _: &mut Freed) -> Result<MapGuard<'_>> {
        let hashed = self.hashed()?;
        // A failure takes back the bits of earlier changes.
        let mut guard = PresenceChange::new(self);
        for change in changes {
            if let Some(needed) = self.lacking(hashed, change) {
                return Err(self.room(change, needed).into());
            }
            self.enter(change, &mut guard)?;
        }
        wrong::raise_late(self, tx, changes)?;
        Ok(MapGuard::presence(guard))
    }

    fn exchange<'s>(
        &'s self,
        _: Option<&Cursor>,
        _: &mut Tx,
        inode: &MapInode,
        (block, new): (FileBlock, Mapping),
        guard: &mut MapGuard<'s>,
    ) -> Result<Option<Option<Mapping>>> {
        let hashed = self.hashed()?;
        if block > MAX_FILE_BLOCK {
            return Ok(None);
        }
        let (at, home) = ((inode.ino, block), hashed.homes.home(inode.ino, block));
        let distance = hashed.homes.distance(home, new.block);
        if distance >= self.table.reach() {
            return Ok(None);
        }
        let mut presence = PresenceChange::new(self);
        let old = if hashed.known() == Known::All {
            self.enter_found(hashed, at, (home, distance), &mut presence)?
        } else {
            let old = self.lookup(inode, block)?;
            presence.add(inode.ino, block);
            old
        };
        self.table.note(at, home, new.block);
        *guard = MapGuard::presence(presence);
        Ok(Some(old))
    }

    fn prune(
        &self,
        _: &mut Tx,
        _: &MapInode,
        _: (FileBlock, usize),
        _: usize,
        _: &mut Freed,
    ) -> Result<Option<FileBlock>> {
        Ok(None)
    }

    fn visit_pages(&self, _: &MapInode, _: &mut dyn FnMut(PmBlock, u8)) -> Result<()> {
        Ok(())
    }
}

/// The branches of planted mistakes.
mod wrong {
    use super::{HashfsMap, MapChange, Result, Tx, U64};
    use terrace_runtime::planted::{Mistake, planted};
    use terrace_runtime::sync::atomic::Ordering;

    /// Raises the reach without a record; false without the mistake.
    pub(super) fn raise_in_memory(map: &HashfsMap, new: u64) -> bool {
        if planted(Mistake::ReachAfterInsert) {
            map.table.reach.store(new, Ordering::Release);
            return true;
        }
        false
    }

    /// Stores a reach that memory alone knows, along with a change that does not need it.
    pub(super) fn raise_late(map: &HashfsMap, tx: &mut Tx, changes: &[MapChange]) -> Result<()> {
        if !planted(Mistake::ReachAfterInsert) {
            return Ok(());
        }
        let (hashed, at) = (map.hashed()?, map.table.pages.blocks.wal().geometry().map_reach());
        let mut word = [U64::ZERO];
        map.table.pages.table_words(at, &mut word)?;
        let [stored] = word.map(U64::get);
        let fits = |change: &MapChange| HashfsMap::lacking_of(stored, hashed, change).is_none();
        if stored < map.table.reach() && changes.iter().all(fits) {
            tx.write_u64(at, map.table.reach());
        }
        Ok(())
    }
}
