//! Extent tree: lookups and walks.

use super::node::Node;
use super::tree::ExtentTree;
use crate::cursor::{Cursor, KnownLeaf};
use crate::file_map::{MapInode, Mapped, Mapping};
use smallvec::SmallVec;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::extent_map::{Extent, ExtentRoot, INLINE_EXTENTS, MAX_HEIGHT, entry_at, key_of};
use terrace_format::inode::InodeSlot;
use terrace_format::{Corrupt, FileBlock, PmBlock, PmOffset};
use terrace_wal::{Error, Result, Tx};
use zerocopy::little_endian::U64;

/// The way to a leaf.
pub(super) struct Descent {
    pub leaf: Node,
    /// Inner nodes from the root on, each with the position of the child that was taken.
    pub path: SmallVec<[(Node, usize); 3]>,
    /// The leaf has the extents from this block on,
    pub begin: u64,
    /// and before this block.
    pub end: u64,
}

/// The mapping that an extent gives to a block of it.
pub(super) fn mapping_at(extent: &Extent, block: u64) -> Mapping {
    Mapping { block: extent.at(block), unwritten: extent.unwritten }
}

impl ExtentTree {
    /// The root, checked.
    pub(super) fn root(&self, tx: Option<&Tx>, inode: &MapInode) -> Result<ExtentRoot> {
        if inode.is_nowhere() {
            return Ok(ExtentRoot::Empty);
        }
        let word = self.pages.word(tx, inode.slot.plus(InodeSlot::ROOT))?;
        ExtentRoot::decode(word).ok_or_else(|| bad_root(inode, word))
    }

    /// The extents of the slot.
    pub(super) fn inline(
        &self,
        tx: Option<&Tx>,
        inode: &MapInode,
        count: usize,
    ) -> Result<SmallVec<[Extent; INLINE_EXTENTS]>> {
        let mut words = [[U64::ZERO; 2]; INLINE_EXTENTS];
        self.pages.words(tx, inline_at(inode), words.as_flattened_mut())?;
        let extents: Result<SmallVec<[Extent; INLINE_EXTENTS]>> =
            words.iter().take(count).map(|words| self.decode(words.map(U64::get))).collect();
        let extents = extents?;
        if extents.windows(2).any(|pair| matches!(pair, [a, b] if a.end() > b.first)) {
            return Err(overlap(inode));
        }
        Ok(extents)
    }

    pub(super) fn lookup_one(
        &self,
        cursor: Option<&Cursor>,
        inode: &MapInode,
        block: u64,
    ) -> Result<Option<Mapping>> {
        if block > MAX_FILE_BLOCK.0 {
            return Ok(None);
        }
        match self.root(None, inode)? {
            ExtentRoot::Empty => Ok(None),
            ExtentRoot::Inline(count) => {
                let extents = self.inline(None, inode, count)?;
                let found = extents.iter().find(|extent| extent.first <= block && block < extent.end());
                Ok(found.map(|extent| mapping_at(extent, block)))
            }
            ExtentRoot::Tree { height, block: root } => {
                let mut leaf = Node::unread();
                self.leaf_of(cursor, inode, (height, root), block, &mut leaf)?;
                self.lookup_in(&leaf, block)
            }
        }
    }

    /// Reads the leaf that a block's extent lies in, by the cursor where that knows it.
    pub(super) fn leaf_of(
        &self,
        cursor: Option<&Cursor>,
        inode: &MapInode,
        root: (u8, PmBlock),
        block: u64,
        leaf: &mut Node,
    ) -> Result<()> {
        match cursor.and_then(|cursor| cursor.find(&self.pages.blocks, inode.ino, block)) {
            Some(known) => self.read_node(None, known.page.0, 0, leaf),
            None => self.walk_to_leaf(cursor, inode, root, block, leaf).map(drop),
        }
    }

    /// The mapping of a block whose extent lies in a leaf.
    fn lookup_in(&self, leaf: &Node, block: u64) -> Result<Option<Mapping>> {
        let Some(position) = self.search(None, leaf, block)?.checked_sub(1) else { return Ok(None) };
        let extent = self.decode(self.entry(None, leaf, position)?)?;
        Ok((extent.first <= block && block < extent.end()).then(|| mapping_at(&extent, block)))
    }

    /// Reads the leaf that a block's extent lies in. Gives the file blocks that it has the extents of. As [`Self::descend`]
    /// without the path. The cursor takes note of the leaf.
    fn walk_to_leaf(
        &self,
        cursor: Option<&Cursor>,
        inode: &MapInode,
        (height, root): (u8, PmBlock),
        block: u64,
        node: &mut Node,
    ) -> Result<KnownLeaf> {
        let mut range = (0, MAX_FILE_BLOCK.0 + 1);
        self.read_node(None, root.0, height - 1, node)?;
        for level in (0..height - 1).rev() {
            let position = self.search(None, node, block)?.saturating_sub(1);
            let entry = self.entry(None, node, position)?;
            range = self.narrow(None, node, (position, key_of(entry)), range)?;
            self.read_node(None, entry[1], level, node)?;
        }
        let known = KnownLeaf { page: node.block, begin: range.0, end: range.1 };
        if known.end <= block {
            return Err(descending(root, block, known.end));
        }
        if let Some(cursor) = cursor {
            cursor.note(&self.pages.blocks, inode.ino, known);
        }
        Ok(known)
    }

    /// The part of a range of file blocks that the child at a position has.
    fn narrow(
        &self,
        tx: Option<&Tx>,
        node: &Node,
        (position, key): (usize, u64),
        (begin, end): (u64, u64),
    ) -> Result<(u64, u64)> {
        // The key of the first child is that of its node.
        let begin = if position == 0 { begin } else { begin.max(key) };
        if position + 1 == node.head.count {
            return Ok((begin, end));
        }
        let next = entry_at(node.block, node.head.place(position + 1));
        Ok((begin, end.min(key_of([self.pages.word(tx, next)?, 0]))))
    }

    /// The way to the leaf that a block's extent lies in.
    pub(super) fn descend(
        &self,
        tx: Option<&Tx>,
        (height, root): (u8, PmBlock),
        block: u64,
    ) -> Result<Descent> {
        debug_assert!((1..=MAX_HEIGHT).contains(&height), "a tree of height {height}");
        let (mut begin, mut end) = (0, MAX_FILE_BLOCK.0 + 1);
        let mut path = SmallVec::new();
        let mut node = self.node(tx, root.0, height - 1)?;
        for level in (0..height - 1).rev() {
            let position = self.search(tx, &node, block)?.saturating_sub(1);
            let entry = self.entry(tx, &node, position)?;
            (begin, end) = self.narrow(tx, &node, (position, key_of(entry)), (begin, end))?;
            path.push((node, position));
            node = self.node(tx, entry[1], level)?;
        }
        if end <= block {
            return Err(descending(root, block, end));
        }
        Ok(Descent { leaf: node, path, begin, end })
    }

    /// Visits the extents that reach into `from..end`, ascending, until `visit` is false.
    pub(super) fn walk(
        &self,
        cursor: Option<&Cursor>,
        inode: &MapInode,
        (from, end): (u64, u64),
        visit: &mut dyn FnMut(&Extent) -> bool,
    ) -> Result<()> {
        let (height, root) = match self.root(None, inode)? {
            ExtentRoot::Empty => return Ok(()),
            ExtentRoot::Inline(count) => {
                let extents = self.inline(None, inode, count)?;
                let meets = |extent: &&Extent| extent.end() > from && extent.first < end;
                extents.iter().filter(meets).all(visit);
                return Ok(());
            }
            ExtentRoot::Tree { height, block } => (height, block),
        };
        let (mut at, mut seen, mut left) = (from, 0, self.pages.blocks.end_block().0);
        let mut leaf = Node::unread();
        while at < end {
            // The range of a leaf that the cursor knows may have grown: the walk goes on behind what was seen of it.
            let known = cursor.and_then(|cursor| cursor.find(&self.pages.blocks, inode.ino, at));
            let (known, last) = match known {
                Some(known) => {
                    self.read_node(None, known.page.0, 0, &mut leaf)?;
                    (known, u64::MAX)
                }
                None => {
                    let known = self.walk_to_leaf(cursor, inode, (height, root), at, &mut leaf)?;
                    (known, known.end)
                }
            };
            let first = self.search(None, &leaf, at)?.saturating_sub(1);
            for position in first..leaf.head.count {
                let extent = self.decode(self.entry(None, &leaf, position)?)?;
                if extent.end() <= at {
                    continue;
                }
                if extent.first >= end {
                    return Ok(());
                }
                if extent.first < seen || extent.end() > last {
                    return Err(overlap(inode));
                }
                seen = extent.end();
                if !visit(&extent) {
                    return Ok(());
                }
            }
            at = known.end.max(seen);
            left = left.checked_sub(1).ok_or_else(|| too_many(inode))?;
        }
        Ok(())
    }

    pub(super) fn lookup_many(
        &self,
        cursor: Option<&Cursor>,
        inode: &MapInode,
        first: u64,
        out: &mut [Option<Mapping>],
    ) -> Result<()> {
        out.fill(None);
        let end = first.saturating_add(out.len() as u64).min(MAX_FILE_BLOCK.0 + 1);
        self.walk(cursor, inode, (first, end), &mut |extent| {
            let (from, to) = (extent.first.max(first), extent.end().min(end));
            let part = out.get_mut((from - first) as usize..(to - first) as usize);
            for (block, out) in (from..).zip(part.into_iter().flatten()) {
                *out = Some(mapping_at(extent, block));
            }
            true
        })
    }

    pub(super) fn list(
        &self,
        inode: &MapInode,
        (from, to): (u64, u64),
        most: usize,
        out: &mut Vec<Mapped>,
    ) -> Result<Option<FileBlock>> {
        assert!(most > 0, "a list of no blocks never gets full");
        let (end, full) = (to.min(MAX_FILE_BLOCK.0 + 1), out.len().saturating_add(most));
        let mut next = None;
        self.walk(None, inode, (from, end), &mut |extent| {
            for block in extent.first.max(from)..extent.end().min(end) {
                if out.len() == full {
                    next = Some(FileBlock(block));
                    return false;
                }
                out.push((FileBlock(block), mapping_at(extent, block)));
            }
            true
        })?;
        Ok(next)
    }

    pub(super) fn visit_nodes(&self, inode: &MapInode, visit: &mut dyn FnMut(PmBlock, u8)) -> Result<()> {
        if let ExtentRoot::Tree { height, block } = self.root(None, inode)? {
            let mut left = self.pages.blocks.end_block().0;
            self.visit_below(inode, block.0, height - 1, &mut left, visit)?;
        }
        Ok(())
    }

    fn visit_below(
        &self,
        inode: &MapInode,
        block: u64,
        level: u8,
        left: &mut u64,
        visit: &mut dyn FnMut(PmBlock, u8),
    ) -> Result<()> {
        *left = left.checked_sub(1).ok_or_else(|| too_many(inode))?;
        let node = self.node(None, block, level)?;
        visit(node.block, level);
        if level > 0 {
            for position in 0..node.head.count {
                let child = self.entry(None, &node, position)?[1];
                self.visit_below(inode, child, level - 1, left, visit)?;
            }
        }
        Ok(())
    }
}

/// Address of the extents in the slot.
pub(super) fn inline_at(inode: &MapInode) -> PmOffset {
    inode.slot.plus(InodeSlot::DIRECT)
}

#[cold]
fn bad_root(inode: &MapInode, word: u64) -> Error {
    let site = format!("extent root of inode {}", inode.ino);
    Corrupt::new(
        site,
        format!("up to {INLINE_EXTENTS} extents, or a height up to {MAX_HEIGHT}"),
        format!("{word:#x}"),
    )
    .into()
}

#[cold]
fn descending(root: PmBlock, block: u64, end: u64) -> Error {
    let site = format!("extent node {root}, keys on the way to block {block}");
    Corrupt::new(site, "ascending keys", end.to_string()).into()
}

#[cold]
fn overlap(inode: &MapInode) -> Error {
    let site = format!("extents of inode {}", inode.ino);
    Corrupt::new(site, "ascending extents, each in its leaf", "an extent that reaches into the next").into()
}

#[cold]
pub(super) fn out_of_order(extent: &Extent, block: u64) -> Error {
    let site = format!("extents behind block {block} of a file");
    Corrupt::new(site, "ascending extents", format!("an extent of {} to {}", extent.first, extent.end()))
        .into()
}

#[cold]
fn too_many(inode: &MapInode) -> Error {
    let site = format!("extent nodes of inode {}", inode.ino);
    Corrupt::new(site, "a tree", "more nodes than the pool has blocks").into()
}
