//! The parts of a radix tree that reading, changing and pruning share: the root, nodes, entries, owners.

use crate::file_map::{MapInode, Mapping};
use crate::pages::Pages;
use std::sync::Arc;
use terrace_blocks::BlockPool;
use terrace_format::address::{BLOCK_SIZE, MAX_FILE_BLOCK};
use terrace_format::inode::{DIRECT_BLOCKS, ENTRY_UNWRITTEN, InodeSlot, RADIX_FANOUT, unpack_root};
use terrace_format::record::write_size;
use terrace_format::table::{Owner, PageKind, TABLE_ENTRY_SIZE};
use terrace_format::{Corrupt, FileBlock, Ino, PmBlock, PmOffset};
use terrace_wal::{Error, Result, Tx};
use zerocopy::little_endian::U64;

/// Bits of the block number that one level decides.
pub(crate) const BITS: u32 = 9;
/// Largest height: 36 bits, more than a file block number has.
pub(crate) const MAX_HEIGHT: u8 = 4;
/// Entries of a node, for array sizes.
pub(crate) const FANOUT: usize = RADIX_FANOUT as usize;
/// Bytes of a node's owner in a record.
pub(crate) const OWNER_BYTES: usize = write_size(TABLE_ENTRY_SIZE as usize);
/// Bytes of one word in a record.
pub(crate) const WORD_BYTES: usize = write_size(8);
/// Bytes of an added node in a record, at most: a new root takes its owner, its entry 0 and the root word.
pub(crate) const NODE_BYTES: usize = OWNER_BYTES + 2 * WORD_BYTES;

const _: () = assert!(FANOUT as u64 * 8 == BLOCK_SIZE && 1 << BITS == FANOUT);

/// Where a tree is rooted and who owns its nodes.
#[derive(Debug, Clone, Copy)]
pub struct RootPlace {
    /// Address of the root word.
    pub root_word: PmOffset,
    /// Address of the direct pointers, if there are any.
    pub direct: Option<PmOffset>,
    /// The owner of the nodes.
    pub nodes: NodeOwner,
}

/// Owner of a tree's nodes in the block table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeOwner {
    /// Map of a file: the datum is its inode number.
    File(Ino),
    /// Map of the inode file: the datum is the node's level.
    InodeFile,
}

impl RootPlace {
    /// Owner of a node of this tree.
    pub fn node_owner(&self, level: u8) -> Owner {
        match self.nodes {
            NodeOwner::File(ino) => Owner::Page { kind: PageKind::MapNode, datum: ino.0 as u32 },
            NodeOwner::InodeFile => Owner::Page { kind: PageKind::InodeNode, datum: u32::from(level) },
        }
    }

    /// First block that the tree, not a direct pointer, maps.
    pub(crate) fn tree_start(&self) -> u64 {
        if self.direct.is_some() { DIRECT_BLOCKS } else { 0 }
    }

    /// The part of a range that the tree maps, as first and last block.
    pub(crate) fn tree_range(&self, first: FileBlock, count: usize) -> Option<(u64, u64)> {
        let end = first.0.saturating_add(count as u64).min(MAX_FILE_BLOCK.0 + 1);
        let start = first.0.max(self.tree_start());
        (start < end).then(|| (start, end - 1))
    }
}

/// Root of a tree that exists.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Root {
    pub height: u8,
    pub block: PmBlock,
}

/// The radix-tree file map.
pub struct RadixTree {
    pub(crate) pages: Pages,
    direct: bool,
}

impl RadixTree {
    /// The radix trees of a pool.
    pub fn new(blocks: Arc<BlockPool>) -> RadixTree {
        let direct = blocks.end_block().0 <= 1 << 31;
        RadixTree { pages: Pages::new(blocks), direct }
    }

    #[inline]
    pub(crate) fn verify(&self, block: u64, site: &'static str) -> Result<PmBlock> {
        self.pages.verify(block, site)
    }

    #[inline]
    pub(crate) fn node(&self, block: u64, site: &'static str) -> Result<PmBlock> {
        self.pages.page(block, site)
    }

    #[inline]
    pub(crate) fn place(&self, inode: &MapInode) -> RootPlace {
        RootPlace {
            root_word: inode.slot.plus(InodeSlot::ROOT),
            direct: self.direct.then(|| inode.slot.plus(InodeSlot::DIRECT)),
            nodes: NodeOwner::File(inode.ino),
        }
    }

    #[inline]
    pub(crate) fn word(&self, tx: Option<&Tx>, offset: PmOffset) -> Result<u64> {
        self.pages.word(tx, offset)
    }

    #[inline]
    pub(crate) fn words(&self, tx: Option<&Tx>, offset: PmOffset, into: &mut [U64]) -> Result<()> {
        self.pages.words(tx, offset, into)
    }

    /// The root, checked.
    pub(crate) fn root(&self, tx: Option<&Tx>, place: &RootPlace) -> Result<Option<Root>> {
        self.root_here(tx, place)
    }

    /// As [`Self::root`], as a part of the caller: for look-ups, which a hot read consists of.
    #[inline(always)]
    pub(crate) fn root_here(&self, tx: Option<&Tx>, place: &RootPlace) -> Result<Option<Root>> {
        let word = self.word(tx, place.root_word)?;
        if word == 0 {
            return Ok(None);
        }
        let (height, block) = unpack_root(word);
        if height == 0 || height > MAX_HEIGHT {
            return Err(bad_height(place, height));
        }
        let block = self.node(block, "radix root word")?;
        Ok(Some(Root { height, block }))
    }

    /// A child named by an inner entry, checked.
    #[inline]
    pub(crate) fn child(&self, entry: u64) -> Result<PmBlock> {
        self.node(entry, "radix inner entry")
    }

    /// The mapping that a leaf entry states, checked.
    #[inline]
    pub(crate) fn decode(&self, entry: u64) -> Result<Option<Mapping>> {
        if entry == 0 {
            return Ok(None);
        }
        Ok(Some(Mapping {
            block: self.verify(entry & !ENTRY_UNWRITTEN, "radix leaf entry")?,
            unwritten: entry & ENTRY_UNWRITTEN != 0,
        }))
    }

    /// Checks that a node about to be changed or freed is one of this tree's.
    pub(crate) fn check_owner(&self, tx: &Tx, place: &RootPlace, node: PmBlock, level: u8) -> Result<()> {
        let page = || format!("radix node {node}, level {level}");
        self.pages.check_owner(Some(tx), node, place.node_owner(level), &page)
    }
}

#[cold]
fn bad_height(place: &RootPlace, height: u8) -> Error {
    let site = format!("radix root word at {}", place.root_word);
    Corrupt::new(site, "a height from 1 to 4", height.to_string()).into()
}

/// Index of a block's entry in its node of a level.
#[inline]
pub(crate) fn index(block: u64, level: u8) -> u64 {
    block >> (BITS * u32::from(level)) & (RADIX_FANOUT - 1)
}

/// Address of an entry.
#[inline]
pub(crate) fn entry_at(node: PmBlock, index: u64) -> PmOffset {
    node.offset().plus(index * 8)
}

/// Number of the node of a level, among all of that level, that leads to a block. The same as the block shifted
/// by the bits that the node and those below it decide.
#[inline]
pub(crate) fn position(block: u64, level: u8) -> u64 {
    block >> (BITS * (u32::from(level) + 1))
}

/// Smallest height of a tree that maps a block.
pub(crate) fn height_for(block: u64) -> u8 {
    (1..MAX_HEIGHT).find(|height| position(block, height - 1) == 0).unwrap_or(MAX_HEIGHT)
}
