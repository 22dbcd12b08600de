//! Changes of one key inside the caller's transaction: only changed bytes are logged.
//!
//! Invariant: an edit that fails has added nothing to the transaction. A leaf that loses its last cell
//! stays until [`ShardsWrite::unlink_emptied`], which the caller calls last before the commit: so a
//! put after a remove in one transaction finds the leaf that the committed tree has.

use crate::node::{CAPACITY_BYTES, Cell, Node, damaged};
use crate::reader::Path;
use crate::shards::ShardsWrite;
use smallvec::SmallVec;
use std::ops::ControlFlow;
use terrace_blocks::BlockPool;
use terrace_format::keys::{Key, MAX_KEY, MAX_VALUE};
use terrace_format::page::{PAGE_HEADER, Page};
use terrace_format::table::{Owner, PageKind};
use terrace_format::{Lsn, PmBlock};
use terrace_wal::{Error, Result, Tx};

/// Room that a leaf lacks; give it to `Catalog::make_room_for`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    /// The shard.
    pub shard: u32,
    /// The key whose leaf is full.
    pub key: Key,
    /// Bytes that the leaf must have, counting what the abandoned transaction had already used.
    pub room: usize,
}

/// Why an edit was not made.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Edit {
    /// The leaf is full: abandon the transaction, drop the locks, make room, start over.
    #[error("no room in the leaf of {:02x?}", .0.key.0)]
    Full(Shortage),
    /// It exists already.
    #[error("exists already")]
    Exists,
    /// It does not exist.
    #[error("does not exist")]
    Missing,
    /// The value is too large.
    #[error("value too large")]
    TooLarge,
    /// The engine failed.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// Pages that a transaction releases. Call exactly one of the two methods.
#[derive(Debug, Default)]
#[must_use]
pub struct Freed(pub SmallVec<[PmBlock; 4]>);

impl Freed {
    /// The transaction was committed: the pages are reused after the checkpoint has passed it.
    pub fn committed(&mut self, blocks: &BlockPool, lsn: Lsn) {
        if !self.0.is_empty() {
            blocks.freed(lsn, &self.0);
            self.0.clear();
        }
    }
    /// The transaction was given up: the pages stay in use.
    pub fn abandoned(&mut self, blocks: &BlockPool) {
        self.0.drain(..).for_each(|block| blocks.keep(block));
    }
}

/// A leaf that falls below this is looked at, whether a neighbour has room for what is left.
const SPARSE_BYTES: usize = CAPACITY_BYTES / 4;

/// Whether a leaf with so many bytes in use became sparse, or half of what it was then: what was forgotten is noted again.
fn is_sparser(before: usize, after: usize) -> bool {
    after < SPARSE_BYTES && (before >= SPARSE_BYTES || before.max(1).ilog2() > after.max(1).ilog2())
}

impl ShardsWrite<'_> {
    /// Inserts or replaces. Replacing by a value of the same length logs only what differs, a shorter
    /// one is written in place.
    ///
    /// # Errors
    /// `Edit::Full` when the leaf lacks room; a damaged page; the medium's.
    pub fn put(&mut self, tx: &mut Tx, key: &Key, value: &[u8]) -> std::result::Result<(), Edit> {
        assert!(
            (6..=MAX_KEY).contains(&key.0.len()) && value.len() <= MAX_VALUE,
            "catalog key of {} bytes, value of {}",
            key.0.len(),
            value.len()
        );
        let reader = self.reader(tx);
        let size = Page::cell_size(&key.0, value.len());
        let mut leaf = Node::empty();
        let Some(place) = reader.locate(&key.0, &mut leaf)? else {
            return Err(Edit::Full(Shortage { shard: reader.shard(&key.0), key: key.clone(), room: size }));
        };
        let (index, old) = match place {
            Ok(index) => (index, Some(leaf.cell(index)?)),
            Err(index) => (index, None),
        };
        match old {
            Some(cell) if cell.value_length >= value.len() => {
                self.overwrite(tx, &leaf, &cell, value);
                return Ok(());
            }
            _ => {}
        }
        let needed = if old.is_some() { size - 2 } else { size };
        if leaf.gap() < needed {
            let before = self.committed().node(leaf.block, Some(0))?.gap();
            return Err(Edit::Full(Shortage {
                shard: self.catalog.shard_of_key(&key.0),
                key: key.clone(),
                room: before.saturating_sub(leaf.gap()) + needed,
            }));
        }
        match old {
            Some(cell) => self.replace_cell(tx, &leaf, index, &cell, &key.0, value),
            None => self.insert_cell(tx, &leaf, index, &key.0, value),
        }
        Ok(())
    }

    /// Removes a key; false when the tree does not have it. Call [`Self::unlink_emptied`] before the commit.
    ///
    /// # Errors
    /// A damaged page; the medium's.
    pub fn remove(&mut self, tx: &mut Tx, key: &Key) -> Result<bool> {
        self.remove_if(tx, key, |_| true)
    }

    /// As [`Self::remove`], if the value is as expected; false also when it is not.
    ///
    /// # Errors
    /// A damaged page; the medium's.
    pub fn remove_if(
        &mut self,
        tx: &mut Tx,
        key: &Key,
        expected: impl FnOnce(&[u8]) -> bool,
    ) -> Result<bool> {
        let mut leaf = Node::empty();
        let Some(Ok(index)) = self.reader(tx).locate(&key.0, &mut leaf)? else {
            return Ok(false);
        };
        let cell = leaf.cell(index)?;
        if !expected(leaf.value(&cell)) {
            return Ok(false);
        }
        self.remove_cell(tx, &leaf, index)?;
        let before = CAPACITY_BYTES.saturating_sub(leaf.gap() + leaf.dead());
        if leaf.count() == 1 {
            self.emptied.push(key.clone());
        } else if is_sparser(before, before.saturating_sub(Page::cell_size(&key.0, cell.value_length))) {
            self.catalog.note_sparse(key);
        }
        Ok(true)
    }

    /// Removes up to `most` keys that start with `prefix`; true when none are left.
    ///
    /// # Errors
    /// A damaged page; the medium's.
    pub fn remove_prefix(&mut self, tx: &mut Tx, prefix: &Key, most: usize) -> Result<bool> {
        let mut keys: Vec<Key> = Vec::new();
        self.reader(tx).scan(prefix, &prefix.0, |key, _| {
            keys.push(Key(key.to_vec()));
            if keys.len() > most {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        for key in keys.iter().take(most) {
            self.remove(tx, key)?;
        }
        Ok(keys.len() <= most)
    }

    /// Changes bytes of a value in place; false when the key is not there.
    ///
    /// # Errors
    /// A value too short for that is damaged; the medium's.
    pub fn update_bytes(&mut self, tx: &mut Tx, key: &Key, offset: usize, bytes: &[u8]) -> Result<bool> {
        let mut leaf = Node::empty();
        let Some(Ok(index)) = self.reader(tx).locate(&key.0, &mut leaf)? else {
            return Ok(false);
        };
        let cell = leaf.cell(index)?;
        if offset + bytes.len() > cell.value_length {
            let expected = format!("at least {} bytes", offset + bytes.len());
            return Err(damaged(leaf.block, "value to change", &expected, cell.value_length));
        }
        self.write(tx, &leaf, cell.value_at() + offset, bytes);
        Ok(true)
    }

    /// Unlinks and frees the leaves that removes of this guard have emptied, and inner pages left
    /// without children. Call it last before the commit; without this call the empty pages only cost space.
    ///
    /// # Errors
    /// A damaged page; the medium's.
    pub fn unlink_emptied(&mut self, tx: &mut Tx, freed: &mut Freed) -> Result<()> {
        for key in std::mem::take(&mut self.emptied) {
            let mut leaf = Node::empty();
            let found = self.reader(tx).descend(&key.0, &mut leaf)?;
            if let Some(path) = found
                && leaf.count() == 0
            {
                let shard = self.catalog.shard_of_key(&key.0);
                self.unlink(tx, freed, shard, &path, leaf.block)?;
            }
        }
        Ok(())
    }

    /// Takes a page without children out of its parent, and parents that lose their last child with it.
    pub(crate) fn unlink(
        &mut self,
        tx: &mut Tx,
        freed: &mut Freed,
        shard: u32,
        path: &Path,
        page: PmBlock,
    ) -> Result<()> {
        self.release(tx, freed, shard, page)?;
        let mut path = path.as_slice();
        while let Some((step, above)) = path.split_last() {
            if step.count == 1 {
                self.release(tx, freed, shard, step.block)?;
                path = above;
                continue;
            }
            let parent = self.reader(tx).node(step.block, Some(step.level))?;
            // A root is always in PM: a leaf below keeps its parent.
            if above.is_empty()
                && parent.count() == 2
                && let Some(other) = self.reader(tx).child(&parent, usize::from(step.index == 0))?
            {
                self.release(tx, freed, shard, step.block)?;
                self.write_root(tx, shard, Some(other));
                return Ok(());
            }
            return self.remove_child(tx, &parent, step.index);
        }
        self.write_root(tx, shard, None);
        Ok(())
    }

    /// Removes a child's cell from an inner page of several; the first cell keeps its empty key.
    pub(crate) fn remove_child(&mut self, tx: &mut Tx, parent: &Node, index: usize) -> Result<()> {
        if index > 0 {
            return self.remove_cell(tx, parent, index);
        }
        let second = self.reader(tx).child_word(parent, 1)?;
        self.set_child(tx, parent, 0, second)?;
        self.remove_cell(tx, parent, 1)
    }

    /// Points a cell of an inner page to another child.
    pub(crate) fn set_child(&mut self, tx: &mut Tx, parent: &Node, index: usize, word: u64) -> Result<()> {
        let cell = parent.cell(index)?;
        self.write(tx, parent, cell.value_at(), &word.to_le_bytes());
        Ok(())
    }

    /// Frees a page of this tree. A page to which the block table gives another owner is damaged and stays.
    pub(crate) fn release(
        &mut self,
        tx: &mut Tx,
        freed: &mut Freed,
        shard: u32,
        block: PmBlock,
    ) -> Result<()> {
        let blocks = self.catalog.blocks();
        let expected = Owner::Page { kind: PageKind::CatalogPage, datum: shard };
        let owner = blocks.owner(block)?;
        if owner != expected || freed.0.contains(&block) {
            return Err(damaged(
                block,
                "owner of a page to free",
                &format!("{expected:?}"),
                format!("{owner:?}"),
            ));
        }
        blocks.release(tx, block);
        freed.0.push(block);
        Ok(())
    }

    pub(crate) fn write(&mut self, tx: &mut Tx, node: &Node, at: usize, bytes: &[u8]) {
        tx.write(node.block.offset().plus(at as u64), bytes);
        self.touch(node, at, bytes);
    }

    fn write_header(&mut self, tx: &mut Tx, node: &Node, count: usize, heap: usize, dead: usize) {
        let mut header: SmallVec<[u8; 8]> = SmallVec::new();
        for field in [count, heap, dead] {
            header.extend_from_slice(&(field as u16).to_le_bytes());
        }
        self.write(tx, node, 4, &header);
    }

    /// Replaces a value by one that is not longer.
    fn overwrite(&mut self, tx: &mut Tx, leaf: &Node, cell: &Cell, value: &[u8]) {
        let old = leaf.value(cell);
        let shrunk = cell.value_length - value.len();
        if shrunk > 0 {
            self.write(tx, leaf, cell.at + 2, &(value.len() as u16).to_le_bytes());
            self.write_header(tx, leaf, leaf.count(), leaf.heap(), leaf.dead() + shrunk);
        }
        let differs = |(a, b): (&u8, &u8)| a != b;
        let Some(start) = old.iter().zip(value).position(differs) else {
            return;
        };
        let end = old.iter().zip(value).rposition(differs).map_or(value.len(), |last| last + 1);
        let changed = value.get(start..end).unwrap_or_default();
        self.write(tx, leaf, cell.value_at() + start, changed);
    }

    fn cell_bytes(key: &[u8], value: &[u8]) -> SmallVec<[u8; 512]> {
        let mut bytes = SmallVec::new();
        bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&(value.len() as u16).to_le_bytes());
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
        bytes
    }

    /// Moves a cell to new place because its value grew. The caller has checked the gap.
    fn replace_cell(&mut self, tx: &mut Tx, leaf: &Node, index: usize, old: &Cell, key: &[u8], value: &[u8]) {
        let bytes = Self::cell_bytes(key, value);
        let at = leaf.heap() - bytes.len();
        self.write(tx, leaf, at, &bytes);
        self.write(tx, leaf, PAGE_HEADER + 2 * index, &(at as u16).to_le_bytes());
        self.write_header(tx, leaf, leaf.count(), at, leaf.dead() + old.size());
    }

    /// Inserts a cell before slot `index`. The caller has checked the gap.
    pub(crate) fn insert_cell(&mut self, tx: &mut Tx, node: &Node, index: usize, key: &[u8], value: &[u8]) {
        let bytes = Self::cell_bytes(key, value);
        let at = node.heap() - bytes.len();
        let mut slots: SmallVec<[u8; 512]> = SmallVec::new();
        slots.extend_from_slice(&(at as u16).to_le_bytes());
        slots.extend_from_slice(node.slots(index));
        self.write(tx, node, at, &bytes);
        self.write(tx, node, PAGE_HEADER + 2 * index, &slots);
        self.write_header(tx, node, node.count() + 1, at, node.dead());
    }

    /// Removes a cell.
    pub(crate) fn remove_cell(&mut self, tx: &mut Tx, node: &Node, index: usize) -> Result<()> {
        let cell = node.cell(index)?;
        let slots = node.slots(index + 1);
        if !slots.is_empty() {
            self.write(tx, node, PAGE_HEADER + 2 * index, slots);
        }
        let (heap, dead) = if cell.at == node.heap() {
            (cell.at + cell.size(), node.dead())
        } else {
            (node.heap(), node.dead() + cell.size())
        };
        self.write_header(tx, node, node.count() - 1, heap, dead);
        Ok(())
    }
}

impl Node {
    /// Bytes that a put of this value would take in this leaf: 0 when it fits in place.
    pub(crate) fn growth(&self, key: &[u8], value_length: usize) -> Result<usize> {
        let size = Page::cell_size(key, value_length);
        match self.search(key)? {
            Ok(index) if self.cell(index)?.value_length >= value_length => Ok(0),
            Ok(_) => Ok(size - 2),
            Err(_) => Ok(size),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_becomes_sparser_below_a_quarter_and_where_its_bytes_halve() {
        assert_eq!(SPARSE_BYTES, 1020);
        let below = [(1021, 1020), (1020, 1019), (4080, 1019), (1021, 1021)].map(|(a, b)| is_sparser(a, b));
        assert_eq!(below, [false, true, true, false]);
        let halves = [(1019, 512), (512, 511), (511, 256), (256, 255), (1, 0), (2, 1), (0, 0)];
        let halves = halves.map(|(before, after)| is_sparser(before, after));
        assert_eq!(halves, [false, true, false, true, false, true, false]);
    }
}
