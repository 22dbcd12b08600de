//! The short way of an exchange: an extent of one block gets another PM block, or a block comes behind the last extent of
//! its leaf.
//!
//! After random overwrites under `data=atomic` most extents are single blocks, and an overwrite changes a word of an
//! entry. The short way logs the same words as the general way (leaf.rs), without an edit of the leaf in memory: a search
//! by keys, and a look at the neighbours, which the extent might join.
//!
//! Invariant: every other case, damage included, is left to the general way, with nothing logged.

use super::node::Node;
use super::read::mapping_at;
use super::tree::ExtentTree;
use crate::cursor::Cursor;
use crate::file_map::{MapInode, Mapping};
use terrace_format::extent_map::{Extent, ExtentRoot, NODE_ENTRIES, NodeHead, entry_at};
use terrace_wal::{Result, Tx};
use zerocopy::little_endian::U64;

impl ExtentTree {
    /// Exchanges the mapping of a block and gives the earlier one; `None`, with nothing logged, where the general way has to
    /// be taken.
    pub(super) fn exchange_in_place(
        &self,
        cursor: Option<&Cursor>,
        tx: &mut Tx,
        inode: &MapInode,
        block: u64,
        new: Mapping,
    ) -> Result<Option<Option<Mapping>>> {
        let ExtentRoot::Tree { height, block: root } = self.root(None, inode)? else { return Ok(None) };
        let mut leaf = Node::unread();
        self.leaf_of(cursor, inode, (height, root), block, &mut leaf)?;
        let Some(position) = self.search(None, &leaf, block)?.checked_sub(1) else { return Ok(None) };
        let extent = self.decode(self.entry(None, &leaf, position)?)?;
        let new = Extent { first: block, length: 1, block: new.block, unwritten: new.unwritten };
        if extent.first == block && extent.length == 1 {
            if self.meets_neighbour(&leaf, position, &new)? {
                return Ok(None);
            }
            self.check_owner(None, inode.ino, leaf.block)?;
            let [_, place] = new.encode();
            tx.write_u64(entry_at(leaf.block, leaf.head.place(position)).plus(8), place);
            return Ok(Some(Some(mapping_at(&extent, block))));
        }
        if extent.end() > block || position + 1 < leaf.head.count {
            return Ok(None);
        }
        let is_put = self.put_last(tx, inode, &leaf, &extent, &new)?;
        Ok(is_put.then_some(None))
    }

    /// Whether an extent in the place of the entry at a position would join or overlap a neighbour.
    fn meets_neighbour(&self, leaf: &Node, position: usize, new: &Extent) -> Result<bool> {
        if let Some(before) = position.checked_sub(1) {
            let before = self.decode(self.entry(None, leaf, before)?)?;
            if before.end() > new.first || before.is_continued_by(new) {
                return Ok(true);
            }
        }
        if position + 1 == leaf.head.count {
            return Ok(false);
        }
        let next = self.decode(self.entry(None, leaf, position + 1)?)?;
        Ok(next.first < new.end() || new.is_continued_by(&next))
    }

    /// Puts an extent behind the last extent of a leaf, or makes the last longer; false, with nothing logged, in a full leaf.
    fn put_last(
        &self,
        tx: &mut Tx,
        inode: &MapInode,
        leaf: &Node,
        last: &Extent,
        new: &Extent,
    ) -> Result<bool> {
        let count = leaf.head.count;
        let joins = last.is_continued_by(new);
        if !joins && (count >= NODE_ENTRIES || !leaf.head.is_next_free()) {
            return Ok(false);
        }
        self.check_owner(None, inode.ino, leaf.block)?;
        if joins {
            let [span, _] = Extent { length: last.length + 1, ..*last }.encode();
            tx.write_u64(entry_at(leaf.block, leaf.head.place(count - 1)), span);
            return Ok(true);
        }
        tx.write_words(entry_at(leaf.block, leaf.head.place(count)), new.encode().map(U64::new));
        let head = NodeHead { count: count + 1, ..leaf.head };
        tx.write_u64(leaf.block.offset(), head.first_word());
        Ok(true)
    }
}
