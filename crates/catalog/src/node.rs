//! One page read piece by piece: the header and the first slots at once, then cell by cell. A binary
//! search touches about eight lines of a page; copying all 64 would cost more.
//!
//! Invariant: nothing here trusts a byte of the page; what does not fit gives `Corrupt`.

use crate::tree::Reader;
use smallvec::SmallVec;
use std::cmp::Ordering;
use terrace_format::keys::MAX_KEY;
use terrace_format::page::{CELL_HEADER, PAGE_HEADER, PAGE_SIZE};
use terrace_format::{Corrupt, PmBlock};
use terrace_wal::Result;

/// Bytes of a page read at once: the header and 120 slots.
const HEAD: usize = 256;
/// Cells are read by whole cache lines, one or two: the medium copies a line with one load and one
/// store, and later loads from a buffer that was stored in pieces would stall.
const LINE: usize = 64;
/// Bytes of a cell that must be in the buffer for a search: header, and a dentry's key or separator.
const CELL_HEAD: usize = CELL_HEADER + 16;
/// Deepest tree: 15 levels of two children are more than any pool holds.
pub(crate) const MAX_LEVEL: u8 = 15;
/// Bytes of a page for slots and cells.
pub(crate) const CAPACITY: usize = PAGE_SIZE - PAGE_HEADER;
/// Magic and version as `terrace_format::page::Page::new` writes them.
const MAGIC: [u8; 3] = [0x54, 0x43, 1];

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> usize {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk::<2>())
        .map_or(0, |b| usize::from(u16::from_le_bytes(*b)))
}

/// A verified page header with the first slots.
#[repr(align(64))]
pub(crate) struct Node {
    head: [u8; HEAD],
    pub block: PmBlock,
}

impl Node {
    /// Nothing yet, to be read into.
    #[inline]
    pub fn empty() -> Node {
        Node {
            head: [0; HEAD],
            block: PmBlock(0),
        }
    }
    pub fn level(&self) -> u8 {
        self.head.get(3).copied().unwrap_or(0)
    }
    pub fn count(&self) -> usize {
        u16_at(&self.head, 4)
    }
    pub fn heap(&self) -> usize {
        u16_at(&self.head, 6)
    }
    pub fn dead(&self) -> usize {
        u16_at(&self.head, 8)
    }
    /// Bytes between slots and heap.
    pub fn gap(&self) -> usize {
        self.heap().saturating_sub(PAGE_HEADER + 2 * self.count())
    }
}

/// A cell: where it lies, and the lines it starts in.
#[repr(align(64))]
pub(crate) struct Cell {
    lines: [u8; 2 * LINE],
    /// Bytes of `lines` that were read.
    read: usize,
    pub at: usize,
    pub key_length: usize,
    pub value_length: usize,
}

impl Cell {
    pub fn value_at(&self) -> usize {
        self.at + CELL_HEADER + self.key_length
    }
    pub fn size(&self) -> usize {
        CELL_HEADER + self.key_length + self.value_length
    }
    /// Bytes from the cell's start, if they were read.
    #[inline]
    fn inline(&self, from: usize, length: usize) -> Option<&[u8]> {
        let start = self.at % LINE + from;
        if start + length > self.read {
            return None;
        }
        self.lines.get(start..start + length)
    }
}

/// The order of two keys, by their first 8 bytes where these differ.
#[inline]
fn order(a: &[u8], b: &[u8]) -> Ordering {
    if let (Some((a0, _)), Some((b0, _))) = (a.split_first_chunk::<8>(), b.split_first_chunk::<8>()) {
        let (a0, b0) = (u64::from_be_bytes(*a0), u64::from_be_bytes(*b0));
        if a0 != b0 {
            return a0.cmp(&b0);
        }
    }
    a.cmp(b)
}

#[cold]
#[inline(never)]
pub(crate) fn damaged(
    block: PmBlock,
    what: &str,
    expected: &str,
    found: impl ToString,
) -> terrace_wal::Error {
    Corrupt::new(
        format!("catalog page {block}, {what}"),
        expected,
        found.to_string(),
    )
    .into()
}

impl Reader<'_> {
    /// Reads a page's head; `level` is what its parent demands.
    pub(crate) fn node(&self, block: PmBlock, level: Option<u8>) -> Result<Node> {
        let mut node = Node::empty();
        self.node_into(block, level, &mut node)?;
        Ok(node)
    }

    /// As [`Self::node`], into an existing one: a move would copy it.
    #[inline]
    pub(crate) fn node_into(&self, block: PmBlock, level: Option<u8>, node: &mut Node) -> Result<()> {
        node.block = block;
        self.bytes(block, 0, &mut node.head)?;
        if !node.head.starts_with(&MAGIC) {
            return Err(damaged(
                block,
                "header",
                "catalog page magic and version 1",
                "something else",
            ));
        }
        match level {
            Some(level) if level != node.level() => {
                return Err(damaged(block, "level", &level.to_string(), node.level()));
            }
            None if node.level() > MAX_LEVEL => {
                return Err(damaged(block, "level of a root", "at most 15", node.level()));
            }
            _ => {}
        }
        if PAGE_HEADER + 2 * node.count() > node.heap() || node.heap() > PAGE_SIZE {
            let found = format!("{} cells, heap at {}", node.count(), node.heap());
            return Err(damaged(
                block,
                "header",
                "slots below heap below page size",
                found,
            ));
        }
        if node.count() == 0 && node.level() > 0 {
            return Err(damaged(block, "inner page", "at least one child", "none"));
        }
        Ok(())
    }

    #[inline]
    fn slot(&self, node: &Node, index: usize) -> Result<usize> {
        let at = PAGE_HEADER + 2 * index;
        if at + 2 <= HEAD {
            return Ok(u16_at(&node.head, at));
        }
        let mut slot = [0; 2];
        self.bytes(node.block, at, &mut slot)?;
        Ok(usize::from(u16::from_le_bytes(slot)))
    }

    /// The slots from `from` on, as bytes.
    pub(crate) fn slots(&self, node: &Node, from: usize) -> Result<SmallVec<[u8; 512]>> {
        let mut slots = SmallVec::new();
        slots.resize(2 * node.count().saturating_sub(from), 0);
        self.bytes(node.block, PAGE_HEADER + 2 * from, &mut slots)?;
        Ok(slots)
    }

    /// Reads a cell's header and first bytes.
    #[inline]
    pub(crate) fn cell(&self, node: &Node, index: usize) -> Result<Cell> {
        let at = self.slot(node, index)?;
        if index >= node.count() || at < node.heap() || at + CELL_HEADER > PAGE_SIZE {
            return Err(damaged(node.block, "slot", "a cell inside the heap", at));
        }
        let mut cell = Cell {
            lines: [0; 2 * LINE],
            read: LINE,
            at,
            key_length: 0,
            value_length: 0,
        };
        let start = at / LINE * LINE;
        match cell.lines.first_chunk_mut::<LINE>() {
            Some(line) if at - start + CELL_HEAD <= LINE || start + LINE >= PAGE_SIZE => {
                self.bytes(node.block, start, line)?;
            }
            _ => {
                cell.read = 2 * LINE;
                self.bytes(node.block, start, &mut cell.lines)?;
            }
        }
        cell.key_length = u16_at(&cell.lines, at - start);
        cell.value_length = u16_at(&cell.lines, at - start + 2);
        if cell.key_length > MAX_KEY || at + cell.size() > PAGE_SIZE {
            let found = format!(
                "key of {} and value of {} at {at}",
                cell.key_length, cell.value_length
            );
            return Err(damaged(node.block, "cell", "a cell inside the page", found));
        }
        Ok(cell)
    }

    /// A cell's key.
    pub(crate) fn key_of(&self, node: &Node, cell: &Cell, into: &mut SmallVec<[u8; 64]>) -> Result<()> {
        into.clear();
        if let Some(key) = cell.inline(CELL_HEADER, cell.key_length) {
            into.extend_from_slice(key);
            return Ok(());
        }
        into.resize(cell.key_length, 0);
        self.bytes(node.block, cell.at + CELL_HEADER, into)
    }

    /// Bytes of a cell's value.
    pub(crate) fn value_of(&self, node: &Node, cell: &Cell, into: &mut SmallVec<[u8; 512]>) -> Result<()> {
        into.clear();
        if let Some(value) = cell.inline(CELL_HEADER + cell.key_length, cell.value_length) {
            into.extend_from_slice(value);
            return Ok(());
        }
        into.resize(cell.value_length, 0);
        self.bytes(node.block, cell.value_at(), into)
    }

    /// Compares a cell's key with `key`.
    #[inline]
    fn compare(&self, node: &Node, cell: &Cell, key: &[u8]) -> Result<Ordering> {
        if let Some(found) = cell.inline(CELL_HEADER, cell.key_length) {
            return Ok(order(found, key));
        }
        let mut found = SmallVec::new();
        self.key_of(node, cell, &mut found)?;
        Ok(order(&found, key))
    }

    /// Where `key` is in a leaf (`Ok`), or where it would be inserted (`Err`).
    #[inline]
    pub(crate) fn search(&self, node: &Node, key: &[u8]) -> Result<std::result::Result<usize, usize>> {
        let (mut low, mut high) = (0, node.count());
        while low < high {
            let middle = (low + high) / 2;
            let cell = self.cell(node, middle)?;
            match self.compare(node, &cell, key)? {
                Ordering::Equal => return Ok(Ok(middle)),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        Ok(Err(low))
    }

    /// Which child of an inner page covers `key`.
    #[inline]
    pub(crate) fn child_index(&self, node: &Node, key: &[u8]) -> Result<usize> {
        let (mut low, mut high) = (1, node.count());
        while low < high {
            let middle = (low + high) / 2;
            let cell = self.cell(node, middle)?;
            if self.compare(node, &cell, key)? == Ordering::Greater {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Ok(low - 1)
    }

    /// The child that a cell of an inner page points to.
    pub(crate) fn child(&self, node: &Node, index: usize) -> Result<PmBlock> {
        let cell = self.cell(node, index)?;
        let mut word = [0; 8];
        if cell.value_length != 8 {
            return Err(damaged(
                node.block,
                "child location",
                "8 bytes",
                cell.value_length,
            ));
        }
        match cell.inline(CELL_HEADER + cell.key_length, 8) {
            Some(bytes) => word.copy_from_slice(bytes),
            None => self.bytes(node.block, cell.value_at(), &mut word)?,
        }
        self.location(u64::from_le_bytes(word), "catalog child")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_format::page::Page;

    #[test]
    fn magic_is_that_of_new_pages() {
        assert!(Page::new(3).0.starts_with(&MAGIC));
    }
}
