//! Catalog pages: slotted 4 KiB pages of a B+tree (design 4.3), as bytes. The tree itself lives in
//! crates/catalog; check reads pages through the same functions.
//!
//! ```text
//! 0 magic u16 | version u8 | level u8 | cells u16 | heap u16 | dead u16 | spare 6 bytes
//! 16 slots: u16 offset of each cell, in key order; cells are heaped from the page's end downward
//! cell: key length u16, value length u16, key, value
//! ```
//! Level 0 is a leaf. In an inner page a value is the child's tagged location (u64 LE) and the key a
//! lower bound of the child's keys; the first cell's key is empty.

// Indices are constants or checked against the page's fixed size first.
#![allow(clippy::indexing_slicing)]

use crate::address::BLOCK_SIZE;
use crate::corrupt::Corrupt;

/// Bytes of the header.
pub const PAGE_HEADER: usize = 16;
/// Bytes of a page.
pub const PAGE_SIZE: usize = BLOCK_SIZE as usize;
/// Bytes of a cell's own header.
pub const CELL_HEADER: usize = 4;
const MAGIC: u16 = 0x4354; // "TC"
/// The first bytes of every leaf: magic, version, level.
pub(crate) const LEAF_HEAD: [u8; 4] = [0x54, 0x43, 1, 0];

/// A page's bytes. Every accessor checks its bounds: a damaged page gives an error, never a panic.
#[derive(Clone)]
pub struct Page(pub Box<[u8; PAGE_SIZE]>);

impl Page {
    /// An empty page.
    pub fn new(level: u8) -> Page {
        let mut page = Page(Box::new([0; PAGE_SIZE]));
        page.set_u16(0, MAGIC);
        page.0[2] = 1;
        page.0[3] = level;
        page.set_u16(6, PAGE_SIZE as u16);
        page
    }

    fn u16_at(&self, at: usize) -> u16 {
        let at = at & (PAGE_SIZE - 2);
        u16::from_le_bytes([self.0[at], self.0[at + 1]])
    }

    fn set_u16(&mut self, at: usize, value: u16) {
        let at = at & (PAGE_SIZE - 2);
        self.0[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    /// Checks the header; cells are checked when they are read.
    ///
    /// # Errors
    /// The damage.
    pub fn verify_header(&self, site: &str) -> Result<(), Corrupt> {
        if self.u16_at(0) != MAGIC || self.0[2] != 1 {
            return Err(Corrupt::new(
                site,
                "catalog page magic and version 1",
                format!("{:#x}", self.u16_at(0)),
            ));
        }
        if PAGE_HEADER + 2 * self.count() > self.heap() || self.heap() > PAGE_SIZE {
            let found = format!("{} cells, heap at {}", self.count(), self.heap());
            return Err(Corrupt::new(site, "slots below heap below page size", found));
        }
        Ok(())
    }

    /// 0 for a leaf.
    pub fn level(&self) -> u8 {
        self.0[3]
    }
    /// Number of cells.
    pub fn count(&self) -> usize {
        usize::from(self.u16_at(4))
    }
    /// Lowest byte used by cells.
    pub fn heap(&self) -> usize {
        usize::from(self.u16_at(6))
    }
    /// Bytes of cells that were removed.
    pub fn dead(&self) -> usize {
        usize::from(self.u16_at(8))
    }
    /// Bytes between slots and heap.
    pub fn gap(&self) -> usize {
        self.heap().saturating_sub(PAGE_HEADER + 2 * self.count())
    }
    /// Bytes that a cell takes, slot included.
    pub fn cell_size(key: &[u8], value_length: usize) -> usize {
        2 + CELL_HEADER + key.len() + value_length
    }
    /// Offset of a cell.
    pub fn cell_offset(&self, index: usize) -> usize {
        usize::from(self.u16_at(PAGE_HEADER + 2 * index))
    }

    /// Key and value of a cell.
    ///
    /// # Errors
    /// A cell that reaches out of the page.
    pub fn cell(&self, index: usize) -> Result<(&[u8], &[u8]), Corrupt> {
        let wrong =
            || Corrupt::new(format!("catalog cell {index}"), "a cell inside the page", "another offset");
        if index >= self.count() {
            return Err(wrong());
        }
        let at = self.cell_offset(index);
        let (head, rest) =
            self.0.get(at..).and_then(|c| c.split_first_chunk::<CELL_HEADER>()).ok_or_else(wrong)?;
        let key_length = usize::from(u16::from_le_bytes([head[0], head[1]]));
        let value_length = usize::from(u16::from_le_bytes([head[2], head[3]]));
        let key = rest.get(..key_length).ok_or_else(wrong)?;
        let value = rest.get(key_length..key_length + value_length).ok_or_else(wrong)?;
        Ok((key, value))
    }

    /// Offset of a cell's value in the page and its length, for updates in place.
    ///
    /// # Errors
    /// A cell that reaches out of the page.
    pub fn value_place(&self, index: usize) -> Result<(usize, usize), Corrupt> {
        let (key, value) = self.cell(index)?;
        Ok((self.cell_offset(index) + CELL_HEADER + key.len(), value.len()))
    }

    /// Where `key` is (`Ok`), or where it would be inserted (`Err`).
    ///
    /// # Errors
    /// The outer error: a damaged cell.
    pub fn search(&self, key: &[u8]) -> Result<Result<usize, usize>, Corrupt> {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = (low + high) / 2;
            match self.cell(middle)?.0.cmp(key) {
                std::cmp::Ordering::Equal => return Ok(Ok(middle)),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Ok(Err(low))
    }

    /// Inserts a cell before slot `index`. The caller has checked that [`Self::gap`] holds
    /// [`Self::cell_size`]; returns false, changing nothing, when it does not.
    #[must_use]
    pub fn insert(&mut self, index: usize, key: &[u8], value: &[u8]) -> bool {
        let count = self.count();
        let size = CELL_HEADER + key.len() + value.len();
        if index > count || self.gap() < size + 2 || self.heap() > PAGE_SIZE {
            return false;
        }
        let at = self.heap() - size;
        self.0[at..at + 2].copy_from_slice(&(key.len() as u16).to_le_bytes());
        self.0[at + 2..at + 4].copy_from_slice(&(value.len() as u16).to_le_bytes());
        self.0[at + 4..at + 4 + key.len()].copy_from_slice(key);
        self.0[at + 4 + key.len()..at + size].copy_from_slice(value);
        let slots = PAGE_HEADER + 2 * index;
        self.0.copy_within(slots..PAGE_HEADER + 2 * count, slots + 2);
        self.set_u16(slots, at as u16);
        self.set_u16(4, count as u16 + 1);
        self.set_u16(6, at as u16);
        true
    }

    /// Removes a cell; its bytes become dead.
    ///
    /// # Errors
    /// A damaged cell; nothing is changed then.
    pub fn remove(&mut self, index: usize) -> Result<(), Corrupt> {
        let (key, value) = self.cell(index)?;
        let size = CELL_HEADER + key.len() + value.len();
        let count = self.count();
        let at = self.cell_offset(index);
        let slots = PAGE_HEADER + 2 * index;
        self.0.copy_within(slots + 2..PAGE_HEADER + 2 * count, slots);
        self.set_u16(4, count as u16 - 1);
        if at == self.heap() {
            self.set_u16(6, (at + size) as u16);
        } else {
            self.set_u16(8, (self.dead() + size) as u16);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inserted_key_is_found_and_a_removed_key_is_missing() -> Result<(), Corrupt> {
        let mut page = Page::new(0);
        for key in [5u8, 1, 9, 3] {
            let Err(place) = page.search(&[key])? else { unreachable!() };
            assert!(page.insert(place, &[key], &[key; 10]));
        }
        page.verify_header("test")?;
        assert_eq!(page.0[..4], LEAF_HEAD);
        assert_eq!(page.search(&[5])?, Ok(2));
        assert_eq!(page.cell(3)?, (&[9u8][..], &[9u8; 10][..]));
        page.remove(1)?;
        assert_eq!(page.search(&[3])?, Err(1));
        assert_eq!(page.count(), 3);
        assert!(!page.insert(0, &[0], &[0; PAGE_SIZE]));
        Ok(())
    }
}
