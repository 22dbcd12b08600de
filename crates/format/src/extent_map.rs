//! Extent map of a file: extents, nodes and the root (docs/format.md "Extent map").
//!
//! ```text
//! root word    0: no block; below 2^8: number of extents in the slot, at its direct pointers; else the height (1 to 12)
//!              in the top 8 bits and the PM block of the root node
//! extent       first file block | length << 32,  PM block | unwritten << 63
//! inner entry  first file block,  PM block of the child; of the first entry the key counts as 0
//! node         word 0: magic << 48 | level << 8 | number of entries; word 1: 0
//!              bytes 16 to 255: order, the places of the entries by their keys; behind the used ones the free places
//!              from byte 256 on: 240 places of 16 bytes
//! ```
//! An insertion so writes a place, a part of the order and the number, and moves no other entry.

use crate::address::{BLOCK_SIZE, FileBlock, MAX_FILE_BLOCK, PmBlock, PmOffset};
use crate::inode::{pack_root, unpack_root};

/// Extents in the slot.
pub const INLINE_EXTENTS: usize = 2;
/// Places of a node.
pub const NODE_ENTRIES: usize = 240;
/// Words of a node before its places.
pub const NODE_HEAD_WORDS: usize = 32;
/// Largest height of a tree.
pub const MAX_HEIGHT: u8 = 12;
/// Bytes of a place.
const ENTRY_BYTES: u64 = 16;
/// First byte of the order.
const ORDER_BYTES: usize = 16;
/// First 16 bits of a node.
const MAGIC: u64 = 0x4558;
const UNWRITTEN: u64 = 1 << 63;

const _: () = assert!(ORDER_BYTES + NODE_ENTRIES == 8 * NODE_HEAD_WORDS);
const _: () = assert!(8 * NODE_HEAD_WORDS + NODE_ENTRIES * 16 == BLOCK_SIZE as usize);

/// A place of a node, or an extent of the slot, as stored.
pub type Entry = [u64; 2];

/// Consecutive blocks of a file in consecutive PM blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The first block of the file.
    pub first: u64,
    /// Blocks, at least one.
    pub length: u64,
    /// The first PM block.
    pub block: PmBlock,
    /// Allocated, but reads as zeros.
    pub unwritten: bool,
}

impl Extent {
    /// The file block behind the last one.
    pub fn end(&self) -> u64 {
        self.first + self.length
    }

    /// The PM block of a block of the file, which lies in the extent.
    pub fn at(&self, block: u64) -> PmBlock {
        debug_assert!((self.first..self.end()).contains(&block), "block {block} of {self:?}");
        PmBlock(self.block.0 + (block - self.first))
    }

    /// The part before a block of the file.
    pub fn before(&self, block: u64) -> Extent {
        Extent { length: block - self.first, ..*self }
    }

    /// The part from a block of the file on.
    pub fn from(&self, block: u64) -> Extent {
        Extent { first: block, length: self.end() - block, block: self.at(block), ..*self }
    }

    /// Whether another extent continues this one in the file and in PM.
    pub fn is_continued_by(&self, next: &Extent) -> bool {
        self.end() == next.first
            && self.block.0 + self.length == next.block.0
            && self.unwritten == next.unwritten
    }

    /// As stored.
    pub fn encode(&self) -> Entry {
        let unwritten = if self.unwritten { UNWRITTEN } else { 0 };
        [self.first | self.length << 32, self.block.0 | unwritten]
    }

    /// As stored; `None` for an extent that cannot be: of no block, beyond the last file block or PM block.
    pub fn decode(entry: Entry) -> Option<Extent> {
        let [span, place] = entry;
        let extent = Extent {
            first: span & 0xffff_ffff,
            length: span >> 32,
            block: PmBlock(place & !UNWRITTEN),
            unwritten: place & UNWRITTEN != 0,
        };
        let is_possible =
            extent.length > 0 && extent.end() <= MAX_FILE_BLOCK.0 + 1 && extent.block.0 >> 40 == 0;
        is_possible.then_some(extent)
    }
}

/// The first file block of an entry, of a leaf or of an inner node.
pub fn key_of(entry: Entry) -> u64 {
    entry[0] & 0xffff_ffff
}

/// An inner entry as stored.
pub fn encode_child(key: u64, child: PmBlock) -> Entry {
    [key, child.0]
}

/// The root of a file's map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentRoot {
    /// No block is mapped.
    Empty,
    /// So many extents in the slot.
    Inline(usize),
    /// A tree.
    Tree {
        /// Its height, at least 1.
        height: u8,
        /// Its root node.
        block: PmBlock,
    },
}

impl ExtentRoot {
    /// As stored in the root word.
    pub fn encode(self) -> u64 {
        match self {
            ExtentRoot::Empty => 0,
            ExtentRoot::Inline(count) => count as u64,
            ExtentRoot::Tree { height, block } => pack_root(height, block.0),
        }
    }

    /// As stored in the root word; `None` for a word that no root has.
    pub fn decode(word: u64) -> Option<ExtentRoot> {
        match unpack_root(word) {
            (0, 0) => Some(ExtentRoot::Empty),
            (0, count) if count <= INLINE_EXTENTS as u64 => Some(ExtentRoot::Inline(count as usize)),
            (height @ 1..=MAX_HEIGHT, block) => Some(ExtentRoot::Tree { height, block: PmBlock(block) }),
            _ => None,
        }
    }
}

/// The first words of a node: level, number of entries and their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeHead {
    /// 0: leaf.
    pub level: u8,
    /// Entries.
    pub count: usize,
    /// Places: the first `count` by the keys of their entries, then the free places.
    pub order: [u8; NODE_ENTRIES],
}

impl NodeHead {
    /// A node with as many entries in the order of their places.
    pub fn of(level: u8, count: usize) -> NodeHead {
        assert!(count <= NODE_ENTRIES, "{count} entries in a node");
        NodeHead { level, count, order: std::array::from_fn(|place| place as u8) }
    }

    /// Word 0.
    pub fn first_word(&self) -> u64 {
        MAGIC << 48 | u64::from(self.level) << 8 | self.count as u64
    }

    /// As stored.
    pub fn encode(&self) -> [u64; NODE_HEAD_WORDS] {
        let mut words = [0; NODE_HEAD_WORDS];
        let (head, order) = words.split_at_mut(ORDER_BYTES / 8);
        if let Some(first) = head.first_mut() {
            *first = self.first_word();
        }
        for (word, bytes) in order.iter_mut().zip(self.order.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        words
    }

    /// As stored; `None` for the words of a damaged node: see [`Self::accept`].
    pub fn decode(words: &[u64; NODE_HEAD_WORDS]) -> Option<NodeHead> {
        let (first, order) = words.split_first_chunk()?;
        let mut node = NodeHead { level: 0, count: 0, order: [0; NODE_ENTRIES] };
        for (bytes, word) in node.order.as_chunks_mut::<8>().0.iter_mut().zip(order) {
            *bytes = word.to_le_bytes();
        }
        node.accept(first).then_some(node)
    }

    /// Takes level and count from words 0 and 1, where `order` is read already. False for a damaged node: another magic, more
    /// entries than places, a place out of range. A place that occurs twice is found by [`Self::is_permutation`].
    #[inline]
    pub fn accept(&mut self, [first, second]: &[u64; ORDER_BYTES / 8]) -> bool {
        (self.level, self.count) = ((first >> 8) as u8, (first & 0xff) as usize);
        // Without a way out amid the bytes: vectors compare them.
        let last = self.order.iter().fold(0, |last, place| last.max(*place));
        *second == 0
            && self.count <= NODE_ENTRIES
            && self.first_word() == *first
            && usize::from(last) < NODE_ENTRIES
    }

    /// Whether each place occurs once.
    pub fn is_permutation(&self) -> bool {
        let mut seen = [false; NODE_ENTRIES];
        self.order.iter().all(|place| {
            let seen = seen.get_mut(usize::from(*place));
            seen.is_some_and(|seen| !std::mem::replace(seen, true))
        })
    }

    /// The place of an entry by its position in the order.
    pub fn place(&self, position: usize) -> u8 {
        self.order.get(position).copied().unwrap_or(0)
    }

    /// Whether the place that an insertion takes next has no entry: false in a damaged node.
    pub fn is_next_free(&self) -> bool {
        let (used, free) = self.order.split_at(self.count.min(NODE_ENTRIES));
        free.first().is_none_or(|next| !used.contains(next))
    }

    /// Makes room for an entry at a position; gives its place. `None` in a full node.
    pub fn insert(&mut self, position: usize) -> Option<u8> {
        let place = self.order.get(self.count).copied()?;
        self.order.get_mut(position..=self.count)?.rotate_right(1);
        self.count += 1;
        Some(place)
    }

    /// Frees the place of the entry at a position.
    pub fn remove(&mut self, position: usize) {
        assert!(position < self.count, "entry {position} of {}", self.count);
        if let Some(moved) = self.order.get_mut(position..self.count) {
            moved.rotate_left(1);
        }
        self.count -= 1;
    }
}

/// Address of the order of a node.
pub fn order_at(node: PmBlock) -> PmOffset {
    node.offset().plus(ORDER_BYTES as u64)
}

/// Address of a place of a node.
pub fn entry_at(node: PmBlock, place: u8) -> PmOffset {
    node.offset().plus(8 * NODE_HEAD_WORDS as u64 + ENTRY_BYTES * u64::from(place))
}

/// The index of a place's first word in a node.
pub fn entry_word(place: u8) -> usize {
    NODE_HEAD_WORDS + 2 * usize::from(place)
}

/// The last file block of a range of so many blocks, at most the last that a map can have.
pub fn last_block(first: FileBlock, count: usize) -> u64 {
    first.0.saturating_add(count as u64).min(MAX_FILE_BLOCK.0 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_and_roots_come_back_and_impossible_words_are_refused() {
        let extent = Extent { first: 7, length: 3, block: PmBlock(1 << 33), unwritten: true };
        assert_eq!(Extent::decode(extent.encode()), Some(extent));
        assert_eq!((extent.at(9), extent.end()), (PmBlock((1 << 33) + 2), 10));
        assert!(extent.before(8).is_continued_by(&extent.from(8)));
        assert_eq!(key_of(extent.encode()), 7);
        let last = Extent { first: MAX_FILE_BLOCK.0, length: 1, block: PmBlock(5), unwritten: false };
        assert_eq!(Extent::decode(last.encode()), Some(last));
        for impossible in
            [[7, 5], [MAX_FILE_BLOCK.0 | 2 << 32, 5], [7 | 1 << 32, 1 << 40], [0xffff_ffff | 1 << 32, 5]]
        {
            assert_eq!(Extent::decode(impossible), None, "{impossible:x?}");
        }
        for root in [
            ExtentRoot::Empty,
            ExtentRoot::Inline(2),
            ExtentRoot::Tree { height: MAX_HEIGHT, block: PmBlock(9) },
        ] {
            assert_eq!(ExtentRoot::decode(root.encode()), Some(root));
        }
        for impossible in [3, 255, pack_root(MAX_HEIGHT + 1, 9), pack_root(255, 9)] {
            assert_eq!(ExtentRoot::decode(impossible), None, "{impossible:#x}");
        }
    }

    #[test]
    fn a_node_keeps_its_order_through_insertions_and_removals() {
        let mut node = NodeHead::of(3, 0);
        // Always at the front: the places come in the opposite order.
        for expected in 0..NODE_ENTRIES {
            assert_eq!(node.insert(0), Some(expected as u8));
        }
        assert_eq!(node.insert(5), None, "a full node");
        assert_eq!((node.place(0), node.place(239)), (239, 0));
        node.remove(1);
        assert_eq!((node.count, node.place(1), node.place(239)), (239, 237, 238));
        assert!(node.is_permutation());
        assert_eq!(NodeHead::decode(&node.encode()), Some(node));
        let mut twice = node;
        twice.order[3] = twice.order[4];
        assert!(!twice.is_permutation());
        let words = node.encode();
        for (word, value) in [(0, words[0] ^ 1 << 60), (0, words[0] | 0xff), (1, 1), (7, 0xf0)] {
            let mut damaged = words;
            damaged.iter_mut().skip(word).take(1).for_each(|word| *word = value);
            assert_eq!(NodeHead::decode(&damaged), None, "word {word}");
        }
    }
}
