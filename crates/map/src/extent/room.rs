//! Extent tree: room for a change, a page at a time.
//!
//! Crash rule: a step splits a node, or makes the tree higher, and leaves all mappings as they are, so a crash between
//! steps loses nothing.

use super::leaf::log_head;
use super::node::{Node, place_twice};
use super::read::{Descent, inline_at};
use super::tree::{ExtentTree, MOST_ROOM, node_owner};
use crate::cursor::LeafChange;
use crate::file_map::{MapGuard, MapInode};
use smallvec::SmallVec;
use terrace_blocks::{Claim, Target};
use terrace_format::extent_map::{
    Entry, ExtentRoot, INLINE_EXTENTS, MAX_HEIGHT, NODE_ENTRIES, NodeHead, encode_child, entry_at,
    entry_word, key_of,
};
use terrace_format::inode::InodeSlot;
use terrace_format::{Corrupt, PmBlock};
use terrace_wal::{MapRoom, Result, Tx};
use zerocopy::little_endian::U64;
use zerocopy::{FromZeros, IntoBytes};

/// Words of a node.
const NODE_WORDS: usize = 512;

impl ExtentTree {
    /// Splits, or makes the tree higher, towards the leaf of a request.
    pub(super) fn split_for(
        &self,
        tx: &mut Tx,
        inode: &MapInode,
        room: &MapRoom,
        claim: &mut Claim<'_>,
    ) -> Result<MapGuard<'_>> {
        let needed = room.runs.min(MOST_ROOM) + 1;
        let (height, root) = match self.root(None, inode)? {
            ExtentRoot::Tree { height, block } => (height, block),
            ExtentRoot::Empty => return self.leave_slot(tx, inode, 0, claim).map(|()| MapGuard::default()),
            ExtentRoot::Inline(count) => {
                return self.leave_slot(tx, inode, count, claim).map(|()| MapGuard::default());
            }
        };
        let Descent { leaf, mut path, .. } = self.descend(None, (height, root), room.first.0)?;
        if leaf.head.count + needed <= NODE_ENTRIES {
            return Ok(MapGuard::default());
        }
        let mut node = leaf;
        loop {
            match path.pop() {
                None => {
                    self.grow(tx, inode, height, root, claim)?;
                    return Ok(MapGuard::default());
                }
                Some((parent, position)) if parent.head.count < NODE_ENTRIES => {
                    return self.split(tx, inode, node, (parent, position), claim);
                }
                Some((parent, _)) => node = parent,
            }
        }
    }

    /// Puts the extents of the slot into a leaf.
    fn leave_slot(&self, tx: &mut Tx, inode: &MapInode, count: usize, claim: &mut Claim<'_>) -> Result<()> {
        let entries: SmallVec<[Entry; INLINE_EXTENTS]> =
            self.inline(None, inode, count)?.iter().map(|extent| extent.encode()).collect();
        let Some(leaf) = self.new_node(tx, inode, 0, &entries, claim)? else { return Ok(()) };
        tx.write(inline_at(inode), [[U64::ZERO; 2]; INLINE_EXTENTS].as_bytes());
        let root = ExtentRoot::Tree { height: 1, block: leaf };
        tx.write_u64(inode.slot.plus(InodeSlot::ROOT), root.encode());
        Ok(())
    }

    /// A root above the root.
    fn grow(
        &self,
        tx: &mut Tx,
        inode: &MapInode,
        height: u8,
        root: PmBlock,
        claim: &mut Claim<'_>,
    ) -> Result<()> {
        if height == MAX_HEIGHT {
            let site = format!("extent tree of inode {}", inode.ino);
            return Err(Corrupt::new(site, format!("a height up to {MAX_HEIGHT}"), "a full root").into());
        }
        // Owner of the old root first: a damaged root word must not be buried in a sound node.
        self.check_owner(None, inode.ino, root)?;
        let entries = [encode_child(0, root)];
        let Some(block) = self.new_node(tx, inode, height, &entries, claim)? else { return Ok(()) };
        let root = ExtentRoot::Tree { height: height + 1, block };
        tx.write_u64(inode.slot.plus(InodeSlot::ROOT), root.encode());
        Ok(())
    }

    /// Moves the upper half of a node's entries to a new node beside it.
    fn split(
        &self,
        tx: &mut Tx,
        inode: &MapInode,
        node: Node,
        (mut parent, position): (Node, usize),
        claim: &mut Claim<'_>,
    ) -> Result<MapGuard<'_>> {
        self.check_owner(None, inode.ino, node.block)?;
        self.check_owner(None, inode.ino, parent.block)?;
        let half = node.head.count / 2;
        let upper: Result<Vec<Entry>> =
            (half..node.head.count).map(|position| self.entry(None, &node, position)).collect();
        let upper = upper?;
        let Some(first) = upper.first() else {
            let site = format!("extent node {}", node.block);
            return Err(Corrupt::new(site, "a full node to split", "no entry").into());
        };
        let key = key_of(*first);
        let Some(new) = self.new_node(tx, inode, node.head.level, &upper, claim)? else {
            return Ok(MapGuard::default());
        };
        let guard = match node.head.level {
            0 => MapGuard::leaf(LeafChange::begin(&self.pages.blocks, node.block)),
            _ => MapGuard::default(),
        };
        log_head(tx, node.block, &node.head, &NodeHead { count: half, ..node.head });
        let before = parent.head;
        if !before.is_next_free() {
            return Err(place_twice(parent.block));
        }
        if let Some(place) = parent.head.insert(position + 1) {
            let entry = encode_child(key, new).map(U64::new);
            tx.write(entry_at(parent.block, place), entry.as_bytes());
            log_head(tx, parent.block, &before, &parent.head);
        }
        Ok(guard)
    }

    /// A streamed node with its owner logged, not yet linked; `None` when the claim is used up.
    fn new_node(
        &self,
        tx: &mut Tx,
        inode: &MapInode,
        level: u8,
        entries: &[Entry],
        claim: &mut Claim<'_>,
    ) -> Result<Option<PmBlock>> {
        let Some(node) = claim.take(Target::Page) else { return Ok(None) };
        let head = NodeHead::of(level, entries.len());
        let mut words = <[U64; NODE_WORDS]>::new_zeroed();
        for (word, value) in words.iter_mut().zip(head.encode()) {
            word.set(value);
        }
        for (place, entry) in (0..).zip(entries) {
            for (word, value) in words.iter_mut().skip(entry_word(place)).zip(entry) {
                word.set(*value);
            }
        }
        self.pages.pm.write_streaming(node.offset(), words.as_bytes())?;
        self.pages.blocks.set_owner(tx, node, node_owner(inode.ino));
        // A crash must never leave a record that links a node whose content is not durable.
        self.pages.pm.order();
        Ok(Some(node))
    }
}
