//! Giving room back: empty pages, half-empty neighbours, roots of one child.

use crate::catalog::Catalog;
use crate::change::Change;
use crate::divide::{Copied, append, live};
use crate::node::{CAPACITY_BYTES, Node};
use crate::reader::{Path, Step};
use terrace_blocks::Purpose;
use terrace_format::PmBlock;
use terrace_format::keys::Key;
use terrace_format::page::Page;
use terrace_wal::Result;

/// Neighbours are merged when the result leaves a quarter of a page free.
const MAX_MERGED_BYTES: usize = CAPACITY_BYTES / 4 * 3;

impl Catalog {
    /// Gives back a page where removes left little in a leaf; false when there is no such leaf. For the background, without
    /// locks.
    ///
    /// # Errors
    /// As [`Self::shrink`], and a leaf below PM: that one is not looked at again.
    pub fn shrink_step(&self) -> Result<bool> {
        let Some(key) = self.take_sparse() else {
            return Ok(false);
        };
        // The merged leaf may fit into its next neighbour, too.
        if self.shrink(&key, Purpose::Reclaim)? {
            self.note_sparse(&key);
        }
        Ok(true)
    }

    /// Frees one page near `key` if it can: an empty leaf, a root of one child, or two neighbours on the
    /// way to `key` that fit in three quarters of a page. A transaction of its own; call it without
    /// locks. True when a page was freed; a further call may free another.
    ///
    /// # Errors
    /// `NoSpace::Pm`; a damaged page; the medium's.
    pub fn shrink(&self, key: &Key, purpose: Purpose) -> Result<bool> {
        let shard = self.shard_of_key(&key.0);
        self.change(shard, 1, purpose, |change| change.shrink(key))
    }
}

impl Change<'_, '_> {
    fn shrink(&mut self, key: &Key) -> Result<bool> {
        let mut leaf = Node::empty();
        let Some(path) = self.guard.committed().descend(&key.0, &mut leaf)? else {
            return Ok(false);
        };
        if leaf.count() == 0 {
            self.guard.unlink(self.tx, self.freed, self.shard, &path, leaf.block)?;
            return Ok(true);
        }
        if let Some(root) = path.first()
            && root.count == 1
        {
            let reader = self.guard.committed();
            let node = reader.node(root.block, Some(root.level))?;
            let Some(child) = reader.child(&node, 0)? else {
                return Ok(false);
            };
            self.guard.release(self.tx, self.freed, self.shard, root.block)?;
            self.guard.write_root(self.tx, self.shard, Some(child));
            return Ok(true);
        }
        for depth in (0..path.len()).rev() {
            if self.merge_below(&path, depth)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Merges the child taken at `depth` with a neighbour under the same parent.
    fn merge_below(&mut self, path: &Path, depth: usize) -> Result<bool> {
        let (Some(step), above) = (path.get(depth), path.get(..depth).unwrap_or_default()) else {
            return Ok(false);
        };
        for left in [step.index, step.index.wrapping_sub(1)] {
            if left < step.count && left + 1 < step.count && self.merge(above, step, left)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Merges children `left` and `left + 1` of a page if they fit.
    fn merge(&mut self, above: &[Step], step: &Step, left: usize) -> Result<bool> {
        let reader = self.guard.committed();
        let parent = reader.node(step.block, Some(step.level))?;
        let children = (reader.child(&parent, left)?, reader.child(&parent, left + 1)?);
        // A merge is not worth a fetch: a child on a lower tier stays there.
        let (Some(first), Some(second)) = children else {
            return Ok(false);
        };
        let blocks = (first, second);
        let level = step.level - 1;
        let pages = (reader.page(blocks.0, level)?, reader.page(blocks.1, level)?);
        let key = parent.key(&parent.cell(left + 1)?);
        // In an inner page the right half's first key is empty; merged, it is the separator.
        let separator = (level > 0).then_some(key);
        if live(&pages.0)? + live(&pages.1)? + separator.map_or(0, <[u8]>::len) > MAX_MERGED_BYTES {
            return Ok(false);
        }
        let mut merged = Page::new(level);
        append(&mut merged, &pages.0, 0..pages.0.count(), None, blocks.0)?;
        append(&mut merged, &pages.1, 0..pages.1.count(), separator, blocks.1)?;
        if above.is_empty() && step.count == 2 {
            return self.replace_root(step.block, blocks, merged);
        }
        self.guard.release(self.tx, self.freed, self.shard, blocks.0)?;
        self.guard.release(self.tx, self.freed, self.shard, blocks.1)?;
        let merged = self.new_page(&merged)?;
        self.guard.set_child(self.tx, &parent, left, merged.0)?;
        self.guard.remove_cell(self.tx, &parent, left + 1)?;
        Ok(true)
    }

    /// The merged page is all that was below the root: it becomes the root.
    fn replace_root(&mut self, root: PmBlock, old: (PmBlock, PmBlock), merged: Page) -> Result<bool> {
        self.guard.release(self.tx, self.freed, self.shard, old.0)?;
        self.guard.release(self.tx, self.freed, self.shard, old.1)?;
        let copied = Copied { left: merged, right: None };
        self.install(&[], root, &copied)?;
        Ok(true)
    }
}
