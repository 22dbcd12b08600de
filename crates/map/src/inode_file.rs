//! The inode file's map: which PM block holds page p of 32 inode slots (design 4.3).
//!
//! A radix tree rooted in the roots block, without direct pointers, whose nodes are never freed. Readers need
//! no lock; changes happen under the one lock that the caller keeps for growing the inode file. The owner of
//! the page itself is logged by the caller.

use crate::file_map::Mapping;
use crate::radix::{NODE_BYTES, NodeOwner, RadixTree, RootPlace, entry_at, index};
use std::sync::Arc;
use terrace_blocks::{BlockPool, Claim};
use terrace_format::below::is_below;
use terrace_format::inode::{SLOTS_PER_PAGE, slot_offset};
use terrace_format::{FileBlock, Ino, PmBlock, PmOffset};
use terrace_wal::{PageBelow, Result, Tx};

/// Maps pages of the inode file to PM blocks.
pub struct InodeFileMap {
    tree: RadixTree,
    place: RootPlace,
}

impl InodeFileMap {
    /// The map of a pool's inode file.
    pub fn new(blocks: Arc<BlockPool>) -> InodeFileMap {
        let place = RootPlace {
            root_word: blocks.wal().geometry().inode_root(),
            direct: None,
            nodes: NodeOwner::InodeFile,
        };
        InodeFileMap { tree: RadixTree::new(blocks), place }
    }

    /// Location of a page: a PM block or a place below; `None` when there is no such page.
    ///
    /// # Errors
    /// The medium's; `Corrupt`.
    pub fn location(&self, tx: Option<&Tx>, page: u64) -> Result<Option<u64>> {
        let Some(leaf) = self.tree.leaf_here(tx, &self.place, page)? else {
            return Ok(None);
        };
        let word = self.tree.word(tx, entry_at(leaf, index(page, 0)))?;
        Ok((word != 0).then_some(word))
    }

    /// The PM block of a page.
    ///
    /// # Errors
    /// `PageBelow`; the medium's; `Corrupt`.
    pub fn lookup(&self, tx: Option<&Tx>, page: u64) -> Result<Option<PmBlock>> {
        match self.location(tx, page)? {
            None => Ok(None),
            Some(word) if is_below(word) => Err(PageBelow::Inodes { index: page }.into()),
            Some(word) => self.tree.node(word, "inode page").map(Some),
        }
    }

    /// The address of an inode's slot.
    ///
    /// # Errors
    /// The medium's; `Corrupt`.
    pub fn slot(&self, tx: Option<&Tx>, ino: Ino) -> Result<Option<PmOffset>> {
        let page = self.lookup(tx, ino.0 / SLOTS_PER_PAGE)?;
        Ok(page.map(|page| slot_offset(page.offset(), ino.0)))
    }

    /// Nodes that a page still needs; 0 means that `set` cannot fail for want of nodes.
    ///
    /// # Errors
    /// The medium's; `Corrupt`.
    pub fn missing_nodes(&self, page: u64) -> Result<usize> {
        self.tree.missing_nodes_at(&self.place, FileBlock(page), 1)
    }

    /// Bytes by which `add_nodes` of at most `nodes` nodes lets a record grow.
    pub fn node_record_bytes(&self, nodes: usize) -> usize {
        NODE_BYTES * nodes
    }

    /// As [`crate::FileMap::add_nodes`], for one page.
    ///
    /// # Errors
    /// The medium's; `Corrupt`.
    pub fn add_nodes(&self, tx: &mut Tx, page: u64, claim: &mut Claim<'_>) -> Result<usize> {
        self.tree.add_nodes_at(tx, &self.place, FileBlock(page), 1, claim)
    }

    /// Points an existing page at another location (16 bytes in the record).
    ///
    /// # Errors
    /// The medium's; `Corrupt`, also when the leaf is missing.
    pub fn set_location(&self, tx: &mut Tx, page: u64, word: u64) -> Result<()> {
        let entry = Mapping::written(PmBlock(word));
        self.tree.set_at(tx, &self.place, FileBlock(page), &[Some(entry)])
    }

    /// Sets or clears the PM block of a page (16 bytes in the record).
    ///
    /// # Errors
    /// The medium's; `Corrupt`, also when a node is missing.
    pub fn set(&self, tx: &mut Tx, page: u64, block: Option<PmBlock>) -> Result<()> {
        self.tree.set_at(tx, &self.place, FileBlock(page), &[block.map(Mapping::written)])
    }

    /// The first page from `from` on that exists.
    ///
    /// # Errors
    /// The medium's; `Corrupt`, also when that page lies below PM.
    pub fn next_page(&self, from: u64) -> Result<Option<(u64, PmBlock)>> {
        let end = FileBlock(u64::MAX);
        let hit = self.tree.next_mapped_at(&self.place, FileBlock(from), end)?;
        Ok(hit.map(|(page, mapping)| (page.0, mapping.block)))
    }

    /// Calls `visit` with each node's block and level (0: leaf).
    ///
    /// # Errors
    /// The medium's; `Corrupt`.
    pub fn visit_nodes(&self, visit: &mut dyn FnMut(PmBlock, u8)) -> Result<()> {
        self.tree.visit_nodes_at(&self.place, visit)
    }
}
