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

use crate::file_map::{FileMap, Freed, MapInode, Mapping};
use crate::map_row::MapRow;
use std::sync::Arc;
use terrace_blocks::{Claim, Purpose};
use terrace_format::map_kind::MapKind;
use terrace_format::{FileBlock, PmBlock};
use terrace_wal::{Result, Tx};

use crate::radix::{FANOUT, MAX_PRUNED, NODE_BYTES, OWNER_BYTES, WORD_BYTES};
pub use crate::radix::{NodeOwner, RadixTree, RootPlace};

/// The row of this map.
pub(crate) const ROW: MapRow = MapRow {
    kind: MapKind::Radix,
    name: "radix",
    sentence: "A radix tree per file",
    make: |blocks| Box::new(RadixTree::new(Arc::clone(blocks))),
};

impl FileMap for RadixTree {
    #[inline]
    fn lookup(&self, tx: Option<&Tx>, inode: &MapInode, block: FileBlock) -> Result<Option<Mapping>> {
        if inode.is_nowhere() {
            return Ok(None);
        }
        self.lookup_at(tx, &self.place(inode), block)
    }

    fn lookup_run(
        &self,
        tx: Option<&Tx>,
        inode: &MapInode,
        first: FileBlock,
        out: &mut [Option<Mapping>],
    ) -> Result<()> {
        if inode.is_nowhere() {
            out.fill(None);
            return Ok(());
        }
        self.lookup_run_at(tx, &self.place(inode), first, out)
    }

    fn next_mapped(
        &self,
        inode: &MapInode,
        from: FileBlock,
        to: FileBlock,
    ) -> Result<Option<(FileBlock, Mapping)>> {
        if inode.is_nowhere() {
            return Ok(None);
        }
        self.next_mapped_at(&self.place(inode), from, to)
    }

    fn claim(&self, _: &MapInode, _: FileBlock, count: usize, purpose: Purpose) -> Result<Claim<'_>> {
        self.blocks.claim(count, purpose)
    }

    fn missing_nodes(&self, inode: &MapInode, first: FileBlock, count: usize) -> Result<usize> {
        self.missing_nodes_at(&self.place(inode), first, count)
    }

    fn node_record_bytes(&self, nodes: usize) -> usize {
        NODE_BYTES * nodes
    }

    fn add_nodes(
        &self,
        tx: &mut Tx,
        inode: &MapInode,
        first: FileBlock,
        count: usize,
        claim: &mut Claim<'_>,
    ) -> Result<usize> {
        self.add_nodes_at(tx, &self.place(inode), first, count, claim)
    }

    fn set_record_bytes(&self, count: usize) -> usize {
        // Per leaf touched (one for the direct pointers): changed and unchanged words in turn cost most.
        8 * count + WORD_BYTES * (count / FANOUT + 3)
    }

    fn set(
        &self,
        tx: &mut Tx,
        inode: &MapInode,
        first: FileBlock,
        mappings: &[Option<Mapping>],
    ) -> Result<()> {
        self.set_at(tx, &self.place(inode), first, mappings)
    }

    fn exchange(
        &self,
        tx: &mut Tx,
        inode: &MapInode,
        block: FileBlock,
        new: Mapping,
    ) -> Result<Option<Option<Mapping>>> {
        self.exchange_at(tx, &self.place(inode), block.0, new)
    }

    fn prune_record_bytes(&self) -> usize {
        MAX_PRUNED * (OWNER_BYTES + WORD_BYTES)
    }

    fn prune(
        &self,
        tx: &mut Tx,
        inode: &MapInode,
        first: FileBlock,
        count: usize,
        freed: &mut Freed,
    ) -> Result<Option<FileBlock>> {
        self.prune_at(tx, &self.place(inode), first, count, freed)
    }

    fn visit_nodes(&self, inode: &MapInode, visit: &mut dyn FnMut(PmBlock, u8)) -> Result<()> {
        self.visit_nodes_at(&self.place(inode), visit)
    }
}
