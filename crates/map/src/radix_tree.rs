//! Radix tree: 512-way, indexed by the file block number, 9 bits a level, read in place (design 4.4;
//! [BPFS] for the inode file).
//!
//! ```text
//! root word    height (1 to 4) in the top 8 bits, PM block of the root node; 0: no tree
//! node         512 words; level 0 is a leaf, the root has level height - 1
//! leaf entry   PM block | ENTRY_UNWRITTEN; 0: none        inner entry  PM block of the child; 0: none
//! slot         file blocks 0 to 7 as 8 x u32, bit 31 unwritten: they need no node (not used where PM has
//!              more than 2^31 blocks)
//! ```
//! Invariants: a node has one parent; owner words of nodes say what they are, and are checked before a node is
//! changed or freed, so that a damaged pointer does not spread. Depth is bounded by the height, and a walk visits no
//! more nodes than the pool has blocks, so damage cannot make it endless. Stores of one record are applied in the order
//! logged: a new root is filled before the root word names it, so that readers of a tree that only grows
//! (the inode file) need no lock.

use crate::cursor::Cursor;
use crate::file_map::{FileMap, Freed, MapChange, MapGuard, MapInode, MapRecord, Mapped, Mapping};
use crate::map_row::MapRow;
use std::sync::Arc;
use terrace_blocks::Claim;
use terrace_format::inode::InodeSlot;
use terrace_format::map_kind::MapKind;
use terrace_format::{FileBlock, Ino, PmBlock};
use terrace_wal::{MapRoom, Result, Tx};

use crate::radix::WORD_BYTES;
pub use crate::radix::{NodeOwner, RadixTree, RootPlace};

/// The row of this map.
pub(crate) const ROW: MapRow = MapRow {
    kind: MapKind::Radix,
    name: "radix",
    sentence: "A radix tree per file: right for most pools",
    make: |blocks| Ok(Box::new(RadixTree::new(Arc::clone(blocks)))),
};

impl RadixTree {
    /// Nodes that `first..first + count` of a file still needs.
    ///
    /// # Errors
    /// See [`FileMap`].
    pub fn missing_nodes(&self, inode: &MapInode, first: FileBlock, count: usize) -> Result<usize> {
        self.missing_nodes_at(&self.place(inode), first, count)
    }
}

impl FileMap for RadixTree {
    #[inline]
    fn lookup(&self, inode: &MapInode, block: FileBlock) -> Result<Option<Mapping>> {
        if inode.is_nowhere() {
            return Ok(None);
        }
        self.lookup_at(&self.place(inode), block)
    }

    fn lookup_run(&self, inode: &MapInode, first: FileBlock, out: &mut [Option<Mapping>]) -> Result<()> {
        if inode.is_nowhere() {
            out.fill(None);
            return Ok(());
        }
        self.lookup_run_at(&self.place(inode), first, out)
    }

    fn mapped(
        &self,
        inode: &MapInode,
        from: FileBlock,
        to: FileBlock,
        most: usize,
        out: &mut Vec<Mapped>,
    ) -> Result<Option<FileBlock>> {
        if inode.is_nowhere() {
            return Ok(None);
        }
        self.mapped_at(&self.place(inode), (from, to), most, out)
    }

    fn is_empty(&self, _: Ino, slot: &InodeSlot) -> bool {
        slot.root.get() == 0 && slot.direct.iter().all(|pointer| pointer.get() == 0)
    }

    fn missing_room(&self, _: &[MapChange], change: &MapChange) -> Result<Option<MapRoom>> {
        if change.is_removal() {
            return Ok(None);
        }
        let (ino, first, count) = (change.inode.ino, change.first, change.mappings.len());
        let pages = self.missing_nodes(&change.inode, first, count)?;
        Ok((pages != 0).then(|| MapRoom {
            ino,
            first,
            count,
            runs: change.runs(),
            pages,
            before: Vec::new(),
        }))
    }

    fn make_room(
        &self,
        tx: &mut Tx,
        inode: &MapInode,
        room: &MapRoom,
        claim: &mut Claim<'_>,
    ) -> Result<MapGuard<'_>> {
        self.add_nodes_at(tx, &self.place(inode), room.first, room.count, claim)?;
        Ok(MapGuard::default())
    }

    fn record(&self) -> MapRecord {
        // Changed and unchanged words in turn cost most.
        MapRecord { run: 0, block: WORD_BYTES, most_blocks: usize::MAX }
    }

    fn change(
        &self,
        tx: &mut Tx,
        changes: &[MapChange],
        limit: usize,
        freed: &mut Freed,
    ) -> Result<MapGuard<'_>> {
        for change in changes {
            self.set_at(tx, &self.place(&change.inode), change.first, &change.mappings)?;
        }
        self.prune_after(tx, changes, limit, freed)?;
        Ok(MapGuard::default())
    }

    fn exchange<'s>(
        &'s self,
        _: Option<&Cursor>,
        tx: &mut Tx,
        inode: &MapInode,
        (block, new): (FileBlock, Mapping),
        _: &mut MapGuard<'s>,
    ) -> Result<Option<Option<Mapping>>> {
        self.exchange_at(tx, &self.place(inode), block.0, new)
    }

    fn prune(
        &self,
        tx: &mut Tx,
        inode: &MapInode,
        range: (FileBlock, usize),
        limit: usize,
        freed: &mut Freed,
    ) -> Result<Option<FileBlock>> {
        self.prune_at(tx, &self.place(inode), range, limit, freed)
    }

    fn visit_pages(&self, inode: &MapInode, visit: &mut dyn FnMut(PmBlock, u8)) -> Result<()> {
        self.visit_nodes_at(&self.place(inode), visit)
    }
}
