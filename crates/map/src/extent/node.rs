//! Extent tree: a node in memory.

use super::tree::ExtentTree;
use terrace_format::extent_map::{Entry, Extent, NODE_ENTRIES, NodeHead, entry_at, key_of, order_at};
use terrace_format::{Corrupt, PmBlock};
use terrace_wal::{Error, Result, Tx};
use zerocopy::little_endian::U64;

/// A node as read. Nodes are large: the walks read each into the place of the one above it.
#[derive(Clone)]
pub(super) struct Node {
    pub block: PmBlock,
    pub head: NodeHead,
}

impl Node {
    pub fn unread() -> Node {
        let head = NodeHead { level: 0, count: 0, order: [0; NODE_ENTRIES] };
        Node { block: PmBlock(0), head }
    }
}

impl ExtentTree {
    /// A node of a level, checked.
    pub(super) fn node(&self, tx: Option<&Tx>, block: u64, level: u8) -> Result<Node> {
        let mut node = Node::unread();
        self.read_node(tx, block, level, &mut node)?;
        Ok(node)
    }

    /// As [`Self::node`], into the place of another.
    pub(super) fn read_node(&self, tx: Option<&Tx>, block: u64, level: u8, node: &mut Node) -> Result<()> {
        node.block = self.pages.page(block, "extent node")?;
        let mut words = [U64::ZERO; 2];
        self.pages.words(tx, node.block.offset(), &mut words)?;
        self.pages.bytes(tx, order_at(node.block), &mut node.head.order)?;
        let words = words.map(U64::get);
        let is_accepted = node.head.accept(&words);
        // Only a leaf may be empty.
        if is_accepted && node.head.level == level && (level == 0 || node.head.count > 0) {
            return Ok(());
        }
        Err(bad_node(node.block, level, words[0]))
    }

    /// The entry at a position, as stored.
    pub(super) fn entry(&self, tx: Option<&Tx>, node: &Node, position: usize) -> Result<Entry> {
        self.place(tx, node.block, node.head.place(position))
    }

    /// The content of a place.
    pub(super) fn place(&self, tx: Option<&Tx>, node: PmBlock, place: u8) -> Result<Entry> {
        let mut words = [U64::ZERO; 2];
        self.pages.words(tx, entry_at(node, place), &mut words)?;
        Ok(words.map(U64::get))
    }

    /// Entries of a node whose keys are not behind a block.
    pub(super) fn search(&self, tx: Option<&Tx>, node: &Node, block: u64) -> Result<usize> {
        let (mut low, mut high) = (0, node.head.count);
        while low < high {
            let middle = (low + high) / 2;
            let at = entry_at(node.block, node.head.place(middle));
            if key_of([self.pages.word(tx, at)?, 0]) <= block {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// An extent as stored, checked.
    pub(super) fn decode(&self, entry: Entry) -> Result<Extent> {
        let extent = Extent::decode(entry).ok_or_else(|| bad_extent(entry))?;
        self.pages.verify(extent.block.0, "extent")?;
        self.pages.verify(extent.block.0 + (extent.length - 1), "extent")?;
        Ok(extent)
    }
}

#[cold]
fn bad_node(block: PmBlock, level: u8, word: u64) -> Error {
    Corrupt::new(format!("extent node {block}"), format!("a node of level {level}"), format!("{word:#x}"))
        .into()
}

#[cold]
fn bad_extent(entry: Entry) -> Error {
    Corrupt::new("extent", "blocks of a file and of PM", format!("{entry:x?}")).into()
}

#[cold]
pub(super) fn place_twice(node: PmBlock) -> Error {
    Corrupt::new(format!("extent node {node}"), "each place once in its order", "a free place with an entry")
        .into()
}
