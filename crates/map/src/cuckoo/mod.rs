//! Cuckoo map: one table for all files, in an area before the pool of blocks ([HashFS] section 3.1.3; docs/format.md
//! "Cuckoo map").
//!
//! A file block has two buckets of four entries, each a line, by the two halves of its keyed hash. A look-up reads one or
//! both; the entry tells the run of its block, up to 16 blocks, so a range reads a line or two for each run. An insertion
//! takes a free place in either. Where none is free, entries of other blocks are moved to their other buckets before, by
//! at most 32 moves in a transaction of their own; where no moves help, one goes to the stash, a block behind the buckets.
//!
//! Memory knows which blocks are there (`blocks::presence`): a look-up for any other block ends at its first bucket, and
//! the blocks of a file are listed without the table.
//!
//! Invariants: 1. A key is in the table once, in one of its buckets or in the stash. 2. The entries of a run tell the same
//! run, PM blocks in a row, and all written or all unwritten; a run does not cross a multiple of 16. A change of a block
//! within corrects the others in the same record. 3. Presence is exact when nothing is under way.
//!
//! Locks: an entry is under its inode's lock, but for its place: moves of other files change that. So lines have stripes
//! (`stripes`): whatever changes a line holds its stripe until the stores are issued, and readers look at sequences.

mod announce;
mod change;
mod evict;
mod group;
mod lines;
mod lost;
mod one_block;
mod places;
mod read;
mod stripes;
mod table;

pub(crate) use stripes::Held;
pub use table::CuckooMap;

use self::change::{ENTRY_BYTES, RUN_BYTES};
use crate::cursor::Cursor;
use crate::file_map::{FileMap, Freed, MapChange, MapGuard, MapInode, MapRecord, Mapped, Mapping};
use crate::hidden::is_whole;
use crate::map_row::MapRow;
use std::sync::Arc;
use terrace_blocks::Claim;
use terrace_format::inode::InodeSlot;
use terrace_format::map_kind::MapKind;
use terrace_format::{FileBlock, Ino, PmBlock};
use terrace_wal::{MapRoom, Result, Tx};

/// The row of this map.
pub(crate) const ROW: MapRow = MapRow {
    kind: MapKind::Cuckoo,
    name: "cuckoo",
    sentence: "A cuckoo table of all files; the fast tier can never grow",
    make: |blocks| Ok(Box::new(CuckooMap::open(Arc::clone(blocks))?)),
};

impl FileMap for CuckooMap {
    fn lookup(&self, inode: &MapInode, block: FileBlock) -> Result<Option<Mapping>> {
        self.lookup_one(inode, block)
    }

    fn lookup_with(&self, cursor: &Cursor, inode: &MapInode, block: FileBlock) -> Result<Option<Mapping>> {
        if let Some(next) = cursor.announces(block) {
            self.announce_first_buckets(inode.ino, next);
        }
        self.lookup_one(inode, block)
    }

    fn lookup_run(&self, inode: &MapInode, first: FileBlock, out: &mut [Option<Mapping>]) -> Result<()> {
        self.lookup_many(inode, first, out)
    }

    fn mapped(
        &self,
        inode: &MapInode,
        from: FileBlock,
        to: FileBlock,
        most: usize,
        out: &mut Vec<Mapped>,
    ) -> Result<Option<FileBlock>> {
        self.list(inode, (from, to), most, out)
    }

    fn is_empty(&self, ino: Ino, _: &InodeSlot) -> bool {
        self.hashed().is_ok_and(|hashed| is_whole(hashed, ino) && hashed.presence.is_empty(ino))
    }

    fn learn(&self) -> Result<()> {
        self.learn_all(self.hashed()?)
    }

    fn missing_room(&self, earlier: &[MapChange], change: &MapChange) -> Result<Option<MapRoom>> {
        self.lacking(earlier, change)
    }

    fn make_room(
        &self,
        tx: &mut Tx,
        _: &MapInode,
        room: &MapRoom,
        _: &mut Claim<'_>,
    ) -> Result<MapGuard<'_>> {
        self.evict_for(tx, room)
    }

    fn record(&self) -> MapRecord {
        MapRecord { run: RUN_BYTES, block: ENTRY_BYTES, most_blocks: usize::MAX }
    }

    fn change(&self, tx: &mut Tx, changes: &[MapChange], _: usize, _: &mut Freed) -> Result<MapGuard<'_>> {
        self.change_entries(tx, changes)
    }

    fn exchange<'s>(
        &'s self,
        _: Option<&Cursor>,
        tx: &mut Tx,
        inode: &MapInode,
        (block, new): (FileBlock, Mapping),
        guard: &mut MapGuard<'s>,
    ) -> Result<Option<Option<Mapping>>> {
        self.exchange_one(tx, inode, (block, new), guard)
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
