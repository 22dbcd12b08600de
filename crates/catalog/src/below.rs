//! Leaves below PM (design C1, docs/decisions/0014): finding and changing the pointer to one.
//!
//! The content of leaves is the business of the callers. Invariant: a tree's root and leaves with a chunk key
//! never lie on a lower tier, so the way to every leaf, and the bitmaps that a fetch changes, are in PM.

use crate::node::{Node, damaged};
use crate::reader::Reader;
use crate::shards::ShardsWrite;
use terrace_format::PmBlock;
use terrace_format::keys::Key;
use terrace_wal::{Result, Tx};

impl Reader<'_> {
    /// Reads the parent of the leaf that covers `key`, and tells which child that is; `None` when the root is a leaf
    /// or there is no tree.
    fn parent_into(&self, shard: u32, key: &[u8], node: &mut Node) -> Result<Option<usize>> {
        self.must_hold(shard);
        let Some(root) = self.root(shard)? else {
            return Ok(None);
        };
        self.node_into(root, None, node)?;
        while node.level() > 1 {
            let index = node.child_index(key)?;
            let Some(child) = self.child(node, index)? else {
                return Ok(None);
            };
            self.node_into(child, Some(node.level() - 1), node)?;
        }
        if node.level() == 0 { Ok(None) } else { node.child_index(key).map(Some) }
    }

    /// Gives `use_word` the location of each leaf of a shard that lies below PM. Reads inner pages only.
    ///
    /// # Errors
    /// A damaged page; the medium's.
    pub fn leaves_below(&self, shard: u32, use_word: &mut dyn FnMut(u64)) -> Result<()> {
        self.must_hold(shard);
        let mut node = Node::empty();
        let mut next: Vec<(PmBlock, Option<u8>)> =
            self.root(shard)?.map(|root| (root, None)).into_iter().collect();
        let mut visited = 0;
        while let Some((block, level)) = next.pop() {
            self.node_into(block, level, &mut node)?;
            self.count_page(&node, &mut visited)?;
            if node.level() == 0 {
                continue; // a root
            }
            for index in 0..node.count() {
                match self.child(&node, index)? {
                    None => use_word(self.child_word(&node, index)?),
                    Some(child) if node.level() > 1 => next.push((child, Some(node.level() - 1))),
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }

    /// A lower bound of the keys of a leaf below PM that may hold some of `first..=last`, keys of one shard; `None` when
    /// all such leaves are in PM. Reads inner pages only.
    ///
    /// # Errors
    /// A damaged page; the medium's.
    pub fn leaf_below(&self, first: &Key, last: &Key) -> Result<Option<Vec<u8>>> {
        let shard = self.shard(&first.0);
        let mut node = Node::empty();
        let mut next: Vec<_> =
            self.root(shard)?.map(|root| (root, None, first.0.clone())).into_iter().collect();
        let mut visited = 0;
        while let Some((block, level, bound)) = next.pop() {
            self.node_into(block, level, &mut node)?;
            self.count_page(&node, &mut visited)?;
            if node.level() == 0 {
                continue; // a root
            }
            for index in node.child_index(&first.0)?..=node.child_index(&last.0)? {
                // The first key of an inner page is empty.
                let low = node.key(&node.cell(index)?).max(&bound).to_vec();
                match self.child(&node, index)? {
                    None => return Ok(Some(low)),
                    Some(child) if node.level() > 1 => next.push((child, Some(node.level() - 1), low)),
                    Some(_) => {}
                }
            }
        }
        Ok(None)
    }

    /// The keys that the leaf which covers `key` is the place of, there or not: from the first, which is empty for the first
    /// leaf, to before the second; without one for the last leaf.
    ///
    /// # Errors
    /// A damaged page; the medium's.
    pub fn leaf_range(&self, shard: u32, key: &[u8]) -> Result<(Vec<u8>, Option<Vec<u8>>)> {
        self.must_hold(shard);
        let (mut low, mut high, mut node) = (Vec::new(), None, Node::empty());
        let mut next = self.root(shard)?.map(|root| (root, None));
        while let Some((block, level)) = next.take() {
            self.node_into(block, level, &mut node)?;
            if node.level() == 0 {
                break; // a root
            }
            let index = node.child_index(key)?;
            if index > 0 {
                low = node.key(&node.cell(index)?).to_vec();
            }
            if index + 1 < node.count() {
                high = Some(node.key(&node.cell(index + 1)?).to_vec());
            }
            if node.level() > 1 {
                next = self.child(&node, index)?.map(|child| (child, Some(node.level() - 1)));
            }
        }
        Ok((low, high))
    }

    /// In a damaged tree pages may be reached again and again.
    fn count_page(&self, node: &Node, visited: &mut u64) -> Result<()> {
        *visited += 1;
        if *visited > self.catalog.blocks().end_block().0 {
            let expected = "at most as many pages as the pool has";
            return Err(damaged(node.block, "tree", expected, "a page reached twice"));
        }
        Ok(())
    }

    /// Location of the leaf that covers `key`, which may be a lower bound of keys; `None` when that is the root.
    ///
    /// # Errors
    /// A damaged page; the medium's.
    pub fn leaf_location(&self, shard: u32, key: &[u8]) -> Result<Option<u64>> {
        let mut parent = Node::empty();
        match self.parent_into(shard, key, &mut parent)? {
            Some(index) => self.child_word(&parent, index).map(Some),
            None => Ok(None),
        }
    }
}

impl ShardsWrite<'_> {
    /// Points to the leaf that covers `key` at another location, if it is where it is expected; false when not.
    /// A word in the record.
    ///
    /// # Errors
    /// A damaged page; the medium's.
    pub fn set_leaf_location(
        &mut self,
        tx: &mut Tx,
        shard: u32,
        key: &[u8],
        expected: u64,
        new: u64,
    ) -> Result<bool> {
        let mut parent = Node::empty();
        let reader = self.reader(tx);
        let Some(index) = reader.parent_into(shard, key, &mut parent)? else {
            return Ok(false);
        };
        if reader.child_word(&parent, index)? != expected {
            return Ok(false);
        }
        self.set_child(tx, &parent, index, new)?;
        Ok(true)
    }
}
