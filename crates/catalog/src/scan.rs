//! Reading keys in order: the next, the previous, and scans from leaf to leaf.
//!
//! Invariant: keys that do not ascend, and a page reached twice, give `Error::Corrupt`: every scan ends (I11).

use crate::node::{Node, NodeBuffer, damaged};
use crate::reader::{Path, Reader, Step, step};
use smallvec::SmallVec;
use std::ops::ControlFlow;
use terrace_format::keys::Key;
use terrace_wal::{PageBelow, Result};

/// A place in a leaf.
struct Cursor {
    shard: u32,
    path: Path,
    leaf: NodeBuffer,
    index: usize,
    /// Pages visited: a sound tree has no more than the pool has blocks.
    visited: u64,
}

impl Cursor {
    #[inline]
    fn new() -> Cursor {
        Cursor { shard: 0, path: Path::new(), leaf: Node::empty(), index: 0, visited: 0 }
    }
}

impl Reader<'_> {
    /// The first key at or after `from` that starts with `prefix`, and its value.
    ///
    /// # Errors
    /// A damaged page; the medium's.
    pub fn next(&self, from: &Key, prefix: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let mut found = None;
        self.scan(from, prefix, |key, value| {
            found = Some((key.to_vec(), value.to_vec()));
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    /// Visits keys from `from` on, ascending, as long as they start with `prefix` and `visit` continues.
    /// `from` is at or after `prefix` and in the same shard.
    ///
    /// # Errors
    /// A damaged page (also keys that do not ascend); the medium's.
    pub fn scan(
        &self,
        from: &Key,
        prefix: &[u8],
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut cursor = Cursor::new();
        let Some(place) = self.start(&from.0, &mut cursor)? else {
            return Ok(());
        };
        cursor.index = place.unwrap_or_else(|after| after);
        // The first key to come may be `from` itself.
        self.scan_on(cursor, SmallVec::from_slice(&from.0), prefix, visit)
    }

    /// As [`Self::scan`], from the last key at or before `from` on if there is one that starts with `prefix`.
    ///
    /// # Errors
    /// A damaged page (also keys that do not ascend); the medium's.
    pub fn scan_around(
        &self,
        from: &Key,
        prefix: &[u8],
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut cursor = Cursor::new();
        let Some(place) = self.start(&from.0, &mut cursor)? else {
            return Ok(());
        };
        cursor.index = place.map_or_else(|after| after, |at| at + 1);
        while cursor.index == 0 {
            // A leaf whose lower bound is at most the prefix begins before all keys of the prefix. The
            // previous leaf, which may lie on a lower tier, is not needed then.
            if self.low_of(&cursor.path)?.as_slice() <= prefix || !self.previous_leaf(&mut cursor)? {
                return self.scan(from, prefix, visit);
            }
        }
        let leaf = &cursor.leaf;
        let before = leaf.key(&leaf.cell(cursor.index - 1)?);
        if before > from.0.as_slice() {
            return Err(damaged(leaf.block, "keys", "ascending keys", "a larger key"));
        }
        let last = SmallVec::from_slice(before);
        cursor.index -= usize::from(before.starts_with(prefix));
        self.scan_on(cursor, last, prefix, visit)
    }

    /// Goes on at a cursor; `last` is at or before the first key to come.
    fn scan_on(
        &self,
        mut cursor: Cursor,
        mut last: SmallVec<[u8; 64]>,
        prefix: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut first = true;
        loop {
            let (leaf, mut before) = (&cursor.leaf, last.as_slice());
            for index in cursor.index..leaf.count() {
                let cell = leaf.cell(index)?;
                let key = leaf.key(&cell);
                if key < before || (key == before && !first) {
                    return Err(damaged(leaf.block, "keys", "ascending keys", "a smaller key"));
                }
                if !key.starts_with(prefix) || visit(key, leaf.value(&cell)).is_break() {
                    return Ok(());
                }
                (before, first) = (key, false);
            }
            last = SmallVec::from_slice(before);
            if !self.next_leaf(&mut cursor, prefix)? {
                return Ok(());
            }
        }
    }

    /// The last key at or before `from` that starts with `prefix`, and its value.
    ///
    /// # Errors
    /// A damaged page; the medium's.
    pub fn previous(&self, from: &Key, prefix: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.previous_with(from, prefix, |key, value| (key.to_vec(), value.to_vec()))
    }

    /// As [`Self::previous`], without allocation.
    ///
    /// # Errors
    /// A damaged page; the medium's.
    pub fn previous_with<R>(
        &self,
        from: &Key,
        prefix: &[u8],
        use_cell: impl FnOnce(&[u8], &[u8]) -> R,
    ) -> Result<Option<R>> {
        let mut cursor = Cursor::new();
        let Some(place) = self.start(&from.0, &mut cursor)? else {
            return Ok(None);
        };
        cursor.index = place.map_or_else(|after| after, |at| at + 1);
        while cursor.index == 0 {
            // As in `scan_around`: the previous leaf has no key with the prefix, and may lie on a lower tier.
            if self.low_of(&cursor.path)?.as_slice() <= prefix || !self.previous_leaf(&mut cursor)? {
                return Ok(None);
            }
        }
        let leaf = &cursor.leaf;
        let cell = leaf.cell(cursor.index - 1)?;
        let key = leaf.key(&cell);
        if key > from.0.as_slice() {
            return Err(damaged(leaf.block, "keys", "ascending keys", "a larger key"));
        }
        Ok(key.starts_with(prefix).then(|| use_cell(key, leaf.value(&cell))))
    }

    /// Moves a cursor to the leaf that covers `key`.
    #[inline]
    fn start(&self, key: &[u8], cursor: &mut Cursor) -> Result<Option<std::result::Result<usize, usize>>> {
        cursor.shard = self.shard(key);
        let (path, leaf) = (&mut cursor.path, &mut cursor.leaf);
        if self.walk(key, leaf, |step| path.push(step))? { leaf.search(key).map(Some) } else { Ok(None) }
    }

    /// A lower bound of the keys below the last step of a path: empty for the first leaf.
    fn low_of(&self, path: &[Step]) -> Result<Vec<u8>> {
        let Some(step) = path.iter().rev().find(|step| step.index > 0) else {
            return Ok(Vec::new());
        };
        let node = self.node(step.block, Some(step.level))?;
        Ok(node.key(&node.cell(step.index)?).to_vec())
    }

    /// Moves to the start of the next leaf; false at the end of the tree, and where all that follows is behind
    /// `prefix`: that leaf need not be in PM.
    fn next_leaf(&self, cursor: &mut Cursor, prefix: &[u8]) -> Result<bool> {
        self.move_leaf(
            cursor,
            |key| key > prefix && !key.starts_with(prefix),
            |step| {
                step.index += 1;
                step.index < step.count
            },
            |_| 0,
        )
    }

    /// Moves behind the last cell of the previous leaf; false at the start of the tree.
    fn previous_leaf(&self, cursor: &mut Cursor) -> Result<bool> {
        let moved = self.move_leaf(
            cursor,
            |_| false,
            |step| {
                step.index = step.index.wrapping_sub(1);
                step.index < step.count
            },
            |node| node.count() - 1,
        )?;
        cursor.index = cursor.leaf.count();
        Ok(moved)
    }

    fn move_leaf(
        &self,
        cursor: &mut Cursor,
        behind: impl Fn(&[u8]) -> bool,
        advance: impl Fn(&mut Step) -> bool,
        enter: impl Fn(&Node) -> usize,
    ) -> Result<bool> {
        while let Some(step) = cursor.path.last_mut() {
            if advance(step) {
                break;
            }
            cursor.path.pop();
        }
        let Some(top) = cursor.path.last().copied() else {
            return Ok(false);
        };
        let node = &mut cursor.leaf;
        self.node_into(top.block, Some(top.level), node)?;
        let mut index = top.index;
        if behind(node.key(&node.cell(index)?)) {
            return Ok(false);
        }
        while node.level() > 0 {
            cursor.visited += 1;
            if cursor.visited > self.catalog.blocks().end_block().0 {
                let expected = "at most as many pages as the pool has";
                return Err(damaged(node.block, "tree", expected, "a page reached twice"));
            }
            let Some(child) = self.child(node, index)? else {
                if self.aside_into(cursor.shard, index, node)? {
                    break;
                }
                let key = self.low_of(&cursor.path)?;
                return Err(PageBelow::Leaf { shard: cursor.shard, key }.into());
            };
            self.node_into(child, Some(node.level() - 1), node)?;
            if node.level() > 0 {
                index = enter(node);
                cursor.path.push(step(node, index));
            }
        }
        cursor.index = 0;
        Ok(true)
    }
}
