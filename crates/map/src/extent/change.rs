//! Extent tree: changes of mappings, and leaves that they emptied.

use super::leaf::{Leaf, Source, log_head};
use super::node::Node;
use super::tree::{ExtentTree, FREED_BYTES, HEAD_BYTES, MOST_ROOM};
use crate::cursor::Cursor;
use crate::file_map::{Freed, MapChange, MapInode, Mapping};
use smallvec::SmallVec;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::extent_map::{ExtentRoot, last_block};
use terrace_format::inode::InodeSlot;
use terrace_format::record::write_size;
use terrace_format::{Corrupt, FileBlock, PmBlock};
use terrace_wal::{MapRoom, Result, Tx};

/// Leaves that one call looks at before it says where to go on.
const MAX_VISITS: usize = 256;

/// The part of a change from a block on that lies before another.
fn part(change: &MapChange, from: u64, to: u64) -> &[Option<Mapping>] {
    let first = change.first.0;
    change.mappings.get((from - first) as usize..(to - first) as usize).unwrap_or(&[])
}

impl ExtentTree {
    /// The request for room that the part of a change lacks.
    fn room_for(change: &MapChange, from: u64, to: u64) -> MapRoom {
        let part = MapChange {
            inode: change.inode,
            first: FileBlock(from),
            mappings: SmallVec::from_slice(part(change, from, to)),
        };
        MapRoom {
            ino: change.inode.ino,
            first: part.first,
            count: part.mappings.len(),
            runs: part.runs(),
            pages: 1,
            before: Vec::new(),
        }
    }

    pub(super) fn lacking(&self, earlier: &[MapChange], change: &MapChange) -> Result<Option<MapRoom>> {
        let source = Source { map: self, tx: None };
        let end = last_block(change.first, change.mappings.len());
        let mut at = change.first.0;
        let same = || earlier.iter().filter(|other| other.inode == change.inode);
        // A change that lies inside an extent leaves a part of it on either side.
        let taken: usize = same().map(|other| other.runs() + 1).sum();
        while at < end {
            let mut leaf = Leaf::of(source, &change.inode, at)?;
            let to = leaf.end.min(end);
            let room = Self::room_for(change, at, to);
            let is_roomy = leaf.count() + taken + room.runs < leaf.capacity();
            if !is_roomy {
                let begin = leaf.begin;
                let mut fits = true;
                for other in same() {
                    let (from, behind) = (other.first.0.max(begin), other.end().0.min(leaf.end));
                    fits = fits && (from >= behind || leaf.apply(source, from, part(other, from, behind))?);
                }
                if !fits || !leaf.apply(source, at, part(change, at, to))? {
                    let runs = if taken == 0 { room.runs } else { MOST_ROOM };
                    return Ok(Some(MapRoom { runs, ..room }));
                }
            }
            at = to;
        }
        Ok(None)
    }

    pub(super) fn change_extents(
        &self,
        tx: &mut Tx,
        change: &MapChange,
        limit: usize,
        freed: &mut Freed,
    ) -> Result<()> {
        let inode = &change.inode;
        let end = last_block(change.first, change.mappings.len());
        let beyond = change.mappings.iter().skip(end.saturating_sub(change.first.0) as usize);
        if inode.is_nowhere() || beyond.flatten().next().is_some() {
            let site = format!("extents of inode {}", inode.ino);
            return Err(
                Corrupt::new(site, format!("a slot, and blocks up to {MAX_FILE_BLOCK}"), "others").into()
            );
        }
        let mut at = change.first.0;
        while at < end {
            let mut leaf = Leaf::of(Source { map: self, tx: Some(tx) }, inode, at)?;
            let to = leaf.end.min(end);
            if !leaf.apply(Source { map: self, tx: Some(tx) }, at, part(change, at, to))? {
                // Earlier changes of this transaction have used room, which the request cannot know.
                return Err(MapRoom { runs: MOST_ROOM, ..Self::room_for(change, at, to) }.into());
            }
            if let Some(node) = leaf.node() {
                self.check_owner(Some(tx), inode.ino, node)?;
            }
            leaf.log(tx, inode);
            if let Some(node) = leaf.node()
                && leaf.count() == 0
                && Self::has_room(tx, leaf.path.len(), limit)
            {
                self.free_leaf(tx, inode, node, leaf.path, freed)?;
            }
            at = to;
        }
        Ok(())
    }

    pub(super) fn exchange_one(
        &self,
        cursor: Option<&Cursor>,
        tx: &mut Tx,
        inode: &MapInode,
        block: FileBlock,
        new: Mapping,
    ) -> Result<Option<Option<Mapping>>> {
        if block > MAX_FILE_BLOCK || inode.is_nowhere() {
            return Ok(None);
        }
        if let Some(old) = self.exchange_in_place(cursor, tx, inode, block.0, new)? {
            return Ok(Some(old));
        }
        let source = Source { map: self, tx: None };
        let mut leaf = Leaf::near(cursor, source, inode, block.0)?;
        let old = leaf.mappings(source, block.0, 1)?.first().copied().flatten();
        if !leaf.apply(source, block.0, &[Some(new)])? {
            return Ok(None);
        }
        if let Some(node) = leaf.node() {
            self.check_owner(None, inode.ino, node)?;
        }
        leaf.log(tx, inode);
        Ok(Some(old))
    }

    /// Whether a record takes a leaf and all that is above it: all of them freed, or the head of the last that stays.
    fn has_room(tx: &Tx, above: usize, limit: usize) -> bool {
        tx.record_size() + (above + 1) * FREED_BYTES + HEAD_BYTES + write_size(8) <= limit
    }

    /// Frees an empty leaf, and inner nodes that it was the only child of.
    fn free_leaf(
        &self,
        tx: &mut Tx,
        inode: &MapInode,
        leaf: PmBlock,
        mut path: SmallVec<[(Node, usize); 3]>,
        freed: &mut Freed,
    ) -> Result<()> {
        self.free_node(tx, inode, leaf, freed)?;
        let root_word = inode.slot.plus(InodeSlot::ROOT);
        while let Some((mut node, position)) = path.pop() {
            if node.head.count == 1 {
                self.free_node(tx, inode, node.block, freed)?;
                continue;
            }
            self.check_owner(Some(tx), inode.ino, node.block)?;
            let before = node.head;
            node.head.remove(position);
            let is_root = path.is_empty();
            if is_root && node.head.count == 1 {
                // A root with a single child would only make the tree higher.
                let child = self.entry(Some(tx), &node, 0)?[1];
                let child = self.node(Some(tx), child, node.head.level - 1)?.block;
                let root = ExtentRoot::Tree { height: node.head.level, block: child };
                tx.write_u64(root_word, root.encode());
                return self.free_node(tx, inode, node.block, freed);
            }
            log_head(tx, node.block, &before, &node.head);
            return Ok(());
        }
        tx.write_u64(root_word, ExtentRoot::Empty.encode());
        Ok(())
    }

    fn free_node(&self, tx: &mut Tx, inode: &MapInode, node: PmBlock, freed: &mut Freed) -> Result<()> {
        // Also catches a node that two parents name: it is free by now, as seen in this transaction.
        self.check_owner(Some(tx), inode.ino, node)?;
        self.pages.blocks.release(tx, node);
        freed.push(node);
        Ok(())
    }

    pub(super) fn free_empty(
        &self,
        tx: &mut Tx,
        inode: &MapInode,
        (first, count): (FileBlock, usize),
        limit: usize,
        freed: &mut Freed,
    ) -> Result<Option<FileBlock>> {
        let (mut at, end) = (first.0, last_block(first, count));
        for _ in 0..MAX_VISITS {
            let ExtentRoot::Tree { height, block } = self.root(Some(tx), inode)? else { return Ok(None) };
            if at >= end {
                return Ok(None);
            }
            let way = self.descend(Some(tx), (height, block), at)?;
            if way.leaf.head.count > 0 {
                at = way.end;
            } else if Self::has_room(tx, way.path.len(), limit) {
                self.free_leaf(tx, inode, way.leaf.block, way.path, freed)?;
            } else {
                break;
            }
        }
        Ok(Some(FileBlock(at)).filter(|at| at.0 < end))
    }
}
