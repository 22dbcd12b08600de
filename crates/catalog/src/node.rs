//! A node: a catalog page copied whole from PM, then searched in the processor's cache. The copy of 4 KiB
//! takes about 60 ns if the page is cached, else a stream of misses that overlap. A binary search in PM
//! itself would be a chain of misses, and many small copies cost more than a large one (`terrace-lab micro pm_reads`).
//!
//! Invariant: nothing here trusts a byte of the page; what does not fit gives `Corrupt`.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::ops::{Deref, DerefMut};
use terrace_format::keys::MAX_KEY;
use terrace_format::page::{CELL_HEADER, PAGE_HEADER, PAGE_SIZE};
use terrace_format::{Corrupt, PmBlock};
use terrace_wal::Result;

/// Deepest tree: 15 levels of two children are more than any pool holds.
pub(crate) const MAX_LEVEL: u8 = 15;
/// Bytes of a page for slots and cells.
pub(crate) const CAPACITY_BYTES: usize = PAGE_SIZE - PAGE_HEADER;
/// Magic and version as `terrace_format::page::Page::new` writes them.
const MAGIC: [u8; 3] = [0x54, 0x43, 1];

#[inline]
fn u16_at(bytes: &[u8], at: usize) -> usize {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk::<2>())
        .map_or(0, |b| usize::from(u16::from_le_bytes(*b)))
}

/// A page with a verified header. Large: read into one again rather than move it.
#[repr(align(64))]
pub(crate) struct Node {
    bytes: [u8; PAGE_SIZE],
    pub block: PmBlock,
}

/// Where a cell lies in its page; inside it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cell {
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
}

/// The first 8 bytes of a key as a number, short keys padded by zeros: where two of these differ, the
/// keys are in the same order.
#[inline]
fn prefix(key: &[u8]) -> u64 {
    match key.first_chunk::<8>() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => key
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte))
            .checked_shl(8 * (8 - key.len() as u32))
            .unwrap_or(0),
    }
}

#[cold]
#[inline(never)]
pub(crate) fn damaged(
    block: PmBlock,
    what: &str,
    expected: &str,
    found: impl ToString,
) -> terrace_wal::Error {
    Corrupt::new(format!("catalog page {block}, {what}"), expected, found.to_string()).into()
}

thread_local! {
    static SPARE: RefCell<Vec<Box<Node>>> = const { RefCell::new(Vec::new()) };
}

/// Pages that a thread keeps to read into: the most that an operation has in use at once, on a deep path.
const MAX_SPARE_PAGES: usize = 4;

/// A page to read into, from the thread's spare ones: to zero 4 KiB for each page read cost a create and unlink 7 % of
/// their time.
pub(crate) struct NodeBuffer(Option<Box<Node>>);

impl Deref for NodeBuffer {
    type Target = Node;
    #[inline]
    fn deref(&self) -> &Node {
        let Some(node) = &self.0 else { unreachable!("taken by drop alone") };
        node
    }
}

impl DerefMut for NodeBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut Node {
        let Some(node) = &mut self.0 else { unreachable!("taken by drop alone") };
        node
    }
}

impl Drop for NodeBuffer {
    fn drop(&mut self) {
        if let Some(node) = self.0.take() {
            // A thread that ends may have dropped its spare nodes already.
            let _ = SPARE.try_with(|spare| {
                let mut spare = spare.borrow_mut();
                if spare.len() < MAX_SPARE_PAGES {
                    spare.push(node);
                }
            });
        }
    }
}

impl Node {
    /// A page without cells, to be read into.
    #[inline]
    pub fn empty() -> NodeBuffer {
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
        NodeBuffer(Some(match spare {
            Some(mut node) => {
                // An empty header keeps the cells of the previous page from being found.
                node.bytes[..PAGE_HEADER].fill(0);
                node.block = PmBlock(0);
                node
            }
            None => Box::new(Node { bytes: [0; PAGE_SIZE], block: PmBlock(0) }),
        }))
    }
    pub fn level(&self) -> u8 {
        self.bytes[3]
    }
    pub fn count(&self) -> usize {
        u16_at(&self.bytes, 4)
    }
    pub fn heap(&self) -> usize {
        u16_at(&self.bytes, 6)
    }
    pub fn dead(&self) -> usize {
        u16_at(&self.bytes, 8)
    }
    /// Bytes between slots and heap.
    pub fn gap(&self) -> usize {
        self.heap().saturating_sub(PAGE_HEADER + 2 * self.count())
    }
    /// Checks the header; `level` is the level that the page's parent demands.
    #[inline]
    pub fn verify(&self, level: Option<u8>) -> Result<()> {
        verify_header(self, level)
    }
    /// The page, to read into. Call [`Self::verify`] afterwards.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8; PAGE_SIZE] {
        &mut self.bytes
    }
    /// The page.
    pub fn bytes(&self) -> &[u8; PAGE_SIZE] {
        &self.bytes
    }
    /// The slots from `from` on.
    pub fn slots(&self, from: usize) -> &[u8] {
        self.bytes.get(PAGE_HEADER + 2 * from..PAGE_HEADER + 2 * self.count()).unwrap_or_default()
    }

    /// Checks that a cell lies inside the page.
    #[inline]
    pub fn cell(&self, index: usize) -> Result<Cell> {
        let at = u16_at(&self.bytes, PAGE_HEADER + 2 * index);
        let cell =
            Cell { at, key_length: u16_at(&self.bytes, at), value_length: u16_at(&self.bytes, at + 2) };
        let inside = at >= self.heap() && at + cell.size() <= PAGE_SIZE && cell.key_length <= MAX_KEY;
        if index < self.count() && inside {
            Ok(cell)
        } else {
            Err(damaged(self.block, "cell", "a cell inside the heap", format!("{cell:?}")))
        }
    }
    #[inline]
    pub fn key(&self, cell: &Cell) -> &[u8] {
        self.bytes.get(cell.at + CELL_HEADER..cell.value_at()).unwrap_or_default()
    }
    #[inline]
    pub fn value(&self, cell: &Cell) -> &[u8] {
        self.bytes.get(cell.value_at()..cell.value_at() + cell.value_length).unwrap_or_default()
    }

    /// The prefix of a cell's key; `None` near the page's end, where a cell is shorter than the load.
    #[inline]
    fn prefix_at(&self, at: usize) -> Option<u64> {
        let head = self.bytes.get(at..)?.first_chunk::<12>()?;
        let [k0, k1, _, _, key @ ..] = *head;
        let shorter = 8u32.saturating_sub(u32::from(u16::from_le_bytes([k0, k1])));
        let padding = u64::MAX.checked_shl(8 * shorter).unwrap_or(0);
        Some(u64::from_be_bytes(key) & padding)
    }

    /// The first cell from `from` on whose key is not below `key` (above it, if `above`).
    #[inline]
    fn partition(&self, from: usize, key: &[u8], above: bool) -> Result<usize> {
        let target = prefix(key);
        let (mut low, mut high) = (from, self.count());
        while low < high {
            let middle = (low + high) / 2;
            let found = self.prefix_at(u16_at(&self.bytes, PAGE_HEADER + 2 * middle));
            let before = match found {
                Some(found) if found != target => found < target,
                _ => match self.key(&self.cell(middle)?).cmp(key) {
                    Ordering::Less => true,
                    Ordering::Equal => above,
                    Ordering::Greater => false,
                },
            };
            if before {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// Where `key` is in a leaf (`Ok`), or where it would be inserted (`Err`).
    #[inline]
    pub fn search(&self, key: &[u8]) -> Result<std::result::Result<usize, usize>> {
        let place = self.partition(0, key, false)?;
        let found = place < self.count() && self.key(&self.cell(place)?) == key;
        Ok(if found { Ok(place) } else { Err(place) })
    }

    /// The index of the child of an inner page that covers `key`.
    #[inline]
    pub fn child_index(&self, key: &[u8]) -> Result<usize> {
        Ok(self.partition(1, key, true)?.saturating_sub(1))
    }
}

/// Checks the header of a page that was read; `level` is the level that its parent demands.
#[inline]
fn verify_header(node: &Node, level: Option<u8>) -> Result<()> {
    let block = node.block;
    if !node.bytes.starts_with(&MAGIC) {
        return Err(damaged(block, "header", "catalog page magic and version 1", "something else"));
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
        return Err(damaged(block, "header", "slots below heap below page size", found));
    }
    if node.level() > 0 && node.count() == 0 {
        return Err(damaged(block, "inner page", "at least one child", "none"));
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;
    use terrace_format::page::Page;

    #[test]
    fn magic_equals_the_first_bytes_of_a_new_page() {
        assert!(Page::new(3).0.starts_with(&MAGIC));
    }

    #[test]
    fn prefixes_order_as_keys_do() {
        let keys: [&[u8]; 9] =
            [b"", b"\0", b"a", b"abcdefg", b"abcdefg\0", b"abcdefgh", b"abcdefgha", b"abcdefgi", b"b"];
        for a in keys {
            for b in keys {
                assert!(prefix(a) == prefix(b) || prefix(a).cmp(&prefix(b)) == a.cmp(b));
                let mut node = Node::empty();
                let mut page = Page::new(0);
                assert!(page.insert(0, a, &[0xff; 8]));
                node.bytes = *page.0;
                let expected = match a.cmp(b) {
                    Ordering::Less => Err(1),
                    Ordering::Equal => Ok(0),
                    Ordering::Greater => Err(0),
                };
                assert_eq!(node.search(b).ok(), Some(expected));
            }
        }
    }

    fn node_of(page: &Page) -> NodeBuffer {
        let mut node = Node::empty();
        node.bytes = *page.0;
        node
    }

    /// The node of a page of some cells with a field of its header changed, or a few.
    fn changed(level: u8, cells: u8, fields: &[(usize, u16)]) -> NodeBuffer {
        let mut page = Page::new(level);
        for index in 0..cells {
            assert!(page.insert(usize::from(index), &[index], &[index; 8]));
        }
        let mut node = node_of(&page);
        for (at, value) in fields {
            let [low, high] = value.to_le_bytes();
            (node.bytes[*at], node.bytes[*at + 1]) = (low, high);
        }
        node
    }

    /// The fault of a header; none when it passes.
    fn wrong(node: &Node, level: Option<u8>) -> Option<String> {
        verify_header(node, level).err().map(|error| error.to_string())
    }

    #[test]
    fn each_field_of_a_header_is_checked_by_itself() {
        assert_eq!(wrong(&changed(0, 5, &[]), Some(0)), None);
        assert_eq!((wrong(&changed(0, 0, &[]), None), wrong(&changed(1, 1, &[]), Some(1))), (None, None));
        for at in 0..3 {
            let mut node = changed(0, 5, &[]);
            for bit in 0..8 {
                node.bytes[at] ^= 1 << bit;
                assert!(wrong(&node, Some(0)).is_some_and(|text| text.contains("magic")), "byte {at}");
                node.bytes[at] ^= 1 << bit;
            }
        }
        // Five slots end at 26.
        let heap = |heap: u16| wrong(&changed(0, 5, &[(6, heap)]), Some(0));
        assert_eq!((heap(26), heap(27), heap(4095), heap(4096)), (None, None, None, None));
        for place in [0, 16, 21, 23, 25, 4097, u16::MAX] {
            assert!(heap(place).is_some_and(|text| text.contains("slots below heap")), "heap at {place}");
        }
        let count = |count: u16| wrong(&changed(0, 0, &[(4, count)]), Some(0));
        assert_eq!((count(2040), count(2041).is_some(), count(u16::MAX).is_some()), (None, true, true));
        let childless = |level, text: Option<String>| {
            assert!(text.is_some_and(|text| text.contains("at least one child")), "level {level}");
        };
        [1, 2, 15].iter().for_each(|level| childless(*level, wrong(&changed(*level, 0, &[]), Some(*level))));
    }

    #[test]
    fn a_page_needs_the_level_its_parent_demands_and_a_root_at_most_level_fifteen() {
        for level in [0, 1, 2, 15, 16, 255] {
            let node = changed(level, 2, &[]);
            for demanded in [0, 1, 2, 15, 16, 254, 255] {
                assert_eq!(wrong(&node, Some(demanded)).is_none(), level == demanded, "{level}, {demanded}");
            }
            assert_eq!(wrong(&node, None).is_none(), level <= 15, "a root of level {level}");
        }
    }

    #[test]
    fn a_cell_lies_behind_the_heap_before_the_end_and_under_the_count() {
        let node = changed(0, 3, &[]);
        // Cells of 4 + 1 + 8 bytes from the end of the page on.
        let places: Vec<_> = (0..3).filter_map(|index| node.cell(index).ok()).map(|cell| cell.at).collect();
        assert_eq!((places, node.heap()), (vec![4083, 4070, 4057], 4057));
        assert!(node.cell(3).is_err() && node.cell(4000).is_err());
        // The slot behind the last still names a cell.
        assert!(changed(0, 3, &[(4, 2)]).cell(2).is_err());
        assert!(changed(0, 3, &[(4, 2)]).cell(1).is_ok());
        let heap = changed(0, 3, &[(6, 4058)]);
        assert_eq!([0, 1, 2].map(|index| heap.cell(index).is_ok()), [true, true, false]);
        // Lengths of the key and of the value, of the cell at the end of the page.
        let first = |at: usize, length: u16| changed(0, 3, &[(at, length)]).cell(0).is_ok();
        assert!(first(4083, 1) && first(4083, 0) && !first(4083, 2) && !first(4083, 0x101));
        assert!(first(4085, 8) && first(4085, 7) && !first(4085, 9) && !first(4085, 0x108));
        // A slot beyond the page, or where the head of a cell does not end inside.
        for slot in [4093, 4095, 4096, 5000, u16::MAX] {
            assert!(changed(0, 3, &[(PAGE_HEADER, slot)]).cell(0).is_err(), "at {slot}");
        }
        // Keys are not longer than can be, although all lies inside.
        let long = |length: u16| changed(0, 3, &[(6, 3000), (PAGE_HEADER, 3000), (3000, length)]).cell(0);
        assert_eq!(long(MAX_KEY as u16).map(|cell| (cell.at, cell.size())).ok(), Some((3000, 4 + MAX_KEY)));
        assert!(long(MAX_KEY as u16 + 1).is_err());
    }

    #[test]
    fn the_gap_lies_between_slots_and_heap() {
        assert_eq!([0, 1, 3].map(|cells| changed(0, cells, &[]).gap()), [4080, 4065, 4035]);
        assert_eq!((changed(0, 5, &[(6, 26)]).gap(), changed(0, 5, &[(6, 20)]).gap()), (0, 0));
        let node = changed(0, 3, &[(8, 0x1234)]);
        assert_eq!(
            (node.dead(), node.slots(1).len(), node.slots(3).len(), node.slots(4).len()),
            (0x1234, 4, 0, 0)
        );
    }

    /// Keys of all lengths around eight bytes, in cells up to the end of the page.
    #[test]
    fn search_finds_keys_with_long_common_prefixes() {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        for length in [0, 1, 7, 8, 9, 12] {
            for last in [0, 1, 127, 128, 255] {
                let mut key = vec![b'k'; length];
                key.push(last);
                keys.push(key);
            }
        }
        keys.sort();
        let mut page = Page::new(0);
        for (index, key) in keys.iter().enumerate().filter(|(index, _)| index % 2 == 0) {
            assert!(page.insert(index / 2, key, &[]));
        }
        let node = node_of(&page);
        for (index, key) in keys.iter().enumerate() {
            let expected = if index % 2 == 0 { Ok(index / 2) } else { Err(index.div_ceil(2)) };
            assert_eq!(node.search(key).ok(), Some(expected), "{key:?}");
            let child = node.child_index(key).ok();
            assert_eq!(child, Some(index / 2), "{key:?} is in the child of the key at or before it");
        }
    }

    /// The thread's spare page is the one that was dropped before.
    #[test]
    fn a_spare_page_shows_no_cell_of_its_former_content() {
        let mut page = Page::new(0);
        assert!(page.insert(0, b"key", &[0xff; 8]));
        let mut node = Node::empty();
        (node.bytes, node.block) = (*page.0, PmBlock(7));
        let place = std::ptr::from_ref::<Node>(&node);
        assert_eq!(node.search(b"key").ok(), Some(Ok(0)));
        drop(node);
        let node = Node::empty();
        assert_eq!(std::ptr::from_ref::<Node>(&node), place);
        assert_eq!((node.search(b"key").ok(), node.count(), node.block), (Some(Err(0)), 0, PmBlock(0)));
    }
}
