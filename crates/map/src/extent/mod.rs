//! Extent tree: a B-tree of extents per file, in place in PM ([HashFS] section 3.1.1; docs/format.md "Extent map").
//!
//! Small files have up to two extents in the slot and no page. A node keeps its entries where they were put and an order
//! of their places, so an insertion writes a few words. The publication's flag for valid entries is not needed: a record
//! makes a change whole.
//!
//! Invariants: extents of a tree do not overlap, and an extent lies in the leaf that its first block leads to, as a
//! whole; a node has one parent and its owner in the block table, which is checked before the node is changed or
//! freed. Walks go forward and are bounded by the height and by the pool's blocks, so damage cannot make them endless.

mod change;
mod exchange;
mod leaf;
mod node;
mod read;
mod room;
mod tree;

pub use tree::ExtentTree;

use self::tree::{ENTRY_BYTES, HEAD_BYTES, MOST_BLOCKS};
use crate::cursor::Cursor;
use crate::file_map::{FileMap, Freed, MapChange, MapGuard, MapInode, MapRecord, Mapped, Mapping};
use crate::map_row::MapRow;
use std::sync::Arc;
use terrace_blocks::Claim;
use terrace_format::inode::InodeSlot;
use terrace_format::map_kind::MapKind;
use terrace_format::{FileBlock, Ino, PmBlock};
use terrace_wal::{MapRoom, Result, Tx};

/// The row of this map.
pub(crate) const ROW: MapRow = MapRow {
    kind: MapKind::Extent,
    name: "extent",
    sentence: "A B-tree of extents per file: for files that are not overwritten in small pieces",
    make: |blocks| Ok(Box::new(ExtentTree::new(Arc::clone(blocks)))),
};

impl FileMap for ExtentTree {
    fn lookup(&self, inode: &MapInode, block: FileBlock) -> Result<Option<Mapping>> {
        self.lookup_one(None, inode, block.0)
    }

    fn lookup_run(&self, inode: &MapInode, first: FileBlock, out: &mut [Option<Mapping>]) -> Result<()> {
        self.lookup_many(None, inode, first.0, out)
    }

    fn lookup_with(&self, cursor: &Cursor, inode: &MapInode, block: FileBlock) -> Result<Option<Mapping>> {
        self.lookup_one(Some(cursor), inode, block.0)
    }

    fn lookup_run_with(
        &self,
        cursor: &Cursor,
        inode: &MapInode,
        first: FileBlock,
        out: &mut [Option<Mapping>],
    ) -> Result<()> {
        self.lookup_many(Some(cursor), inode, first.0, out)
    }

    fn mapped(
        &self,
        inode: &MapInode,
        from: FileBlock,
        to: FileBlock,
        most: usize,
        out: &mut Vec<Mapped>,
    ) -> Result<Option<FileBlock>> {
        self.list(inode, (from.0, to.0), most, out)
    }

    fn is_empty(&self, _: Ino, slot: &InodeSlot) -> bool {
        slot.root.get() == 0 && slot.direct.iter().all(|pointer| pointer.get() == 0)
    }

    fn missing_room(&self, earlier: &[MapChange], change: &MapChange) -> Result<Option<MapRoom>> {
        self.lacking(earlier, change)
    }

    fn make_room(
        &self,
        tx: &mut Tx,
        inode: &MapInode,
        room: &MapRoom,
        claim: &mut Claim<'_>,
    ) -> Result<MapGuard<'_>> {
        self.split_for(tx, inode, room, claim)
    }

    fn record(&self) -> MapRecord {
        // An extent at each end stays in part.
        MapRecord { run: HEAD_BYTES + 2 * ENTRY_BYTES, block: ENTRY_BYTES, most_blocks: MOST_BLOCKS }
    }

    fn change(
        &self,
        tx: &mut Tx,
        changes: &[MapChange],
        limit: usize,
        freed: &mut Freed,
    ) -> Result<MapGuard<'_>> {
        for change in changes {
            self.change_extents(tx, change, limit, freed)?;
        }
        Ok(MapGuard::default())
    }

    fn exchange<'s>(
        &'s self,
        cursor: Option<&Cursor>,
        tx: &mut Tx,
        inode: &MapInode,
        (block, new): (FileBlock, Mapping),
        _: &mut MapGuard<'s>,
    ) -> Result<Option<Option<Mapping>>> {
        self.exchange_one(cursor, tx, inode, block, new)
    }

    fn prune(
        &self,
        tx: &mut Tx,
        inode: &MapInode,
        range: (FileBlock, usize),
        limit: usize,
        freed: &mut Freed,
    ) -> Result<Option<FileBlock>> {
        self.free_empty(tx, inode, range, limit, freed)
    }

    fn visit_pages(&self, inode: &MapInode, visit: &mut dyn FnMut(PmBlock, u8)) -> Result<()> {
        self.visit_nodes(inode, visit)
    }
}
