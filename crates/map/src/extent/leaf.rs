//! A leaf, or the extents of a slot, under change: edited in memory, then logged as the words that differ.
//!
//! Invariant: until it is logged nothing has happened, so an edit that finds no room is dropped.

use super::node::{Node, place_twice};
use super::read::{Descent, inline_at, mapping_at, out_of_order};
use super::tree::{ExtentTree, MOST_ROOM};
use crate::cursor::{Cursor, KnownLeaf};
use crate::file_map::{MapInode, Mapping};
use crate::log_words::log_changes;
use smallvec::SmallVec;
use terrace_format::PmBlock;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::extent_map::{
    Entry, Extent, ExtentRoot, INLINE_EXTENTS, NODE_ENTRIES, NODE_HEAD_WORDS, NodeHead, entry_at,
};
use terrace_format::inode::InodeSlot;
use terrace_wal::{Result, Tx};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

const _: () = assert!(NODE_ENTRIES - NODE_ENTRIES / 2 > MOST_ROOM, "a split leaf takes a largest change");

/// Where the edited extents lie.
#[derive(Clone, Copy)]
enum Place {
    Slot,
    Node(PmBlock),
}

/// Where entries are read that were not edited.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub map: &'a ExtentTree,
    pub tx: Option<&'a Tx>,
}

/// An entry that was edited: its place, its content on the medium where that is known, its new content.
type Edited = (u8, Option<Entry>, Entry);

/// A leaf, or the extents of a slot, under change.
pub(super) struct Leaf {
    place: Place,
    before: NodeHead,
    head: NodeHead,
    edited: SmallVec<[Edited; 4]>,
    /// Inner nodes from the root on, each with the position of the child that was taken.
    pub path: SmallVec<[(Node, usize); 3]>,
    /// The first block that an extent here may have, and the block behind the last one.
    pub begin: u64,
    pub end: u64,
}

impl Leaf {
    /// The leaf that a block's extent lies in.
    pub fn of(source: Source<'_>, inode: &MapInode, block: u64) -> Result<Leaf> {
        Leaf::near(None, source, inode, block)
    }

    /// As [`Self::of`], without a walk where a cursor knows the leaf: then without its path, and its range may be larger.
    pub fn near(cursor: Option<&Cursor>, source: Source<'_>, inode: &MapInode, block: u64) -> Result<Leaf> {
        let (map, tx) = (source.map, source.tx);
        let count = match map.root(tx, inode)? {
            ExtentRoot::Tree { height, block: root } => {
                return Leaf::of_tree(cursor, source, inode, (height, root), block);
            }
            ExtentRoot::Inline(count) => count,
            ExtentRoot::Empty => 0,
        };
        let extents = map.inline(tx, inode, count)?;
        let edited =
            (0..).zip(&extents).map(|(place, extent)| (place, Some(extent.encode()), extent.encode()));
        let (edited, head) = (edited.collect(), NodeHead::of(0, count));
        let (path, end) = (SmallVec::new(), MAX_FILE_BLOCK.0 + 1);
        Ok(Leaf { place: Place::Slot, before: head, head, edited, path, begin: 0, end })
    }

    fn of_tree(
        cursor: Option<&Cursor>,
        source: Source<'_>,
        inode: &MapInode,
        root: (u8, PmBlock),
        block: u64,
    ) -> Result<Leaf> {
        let (map, blocks) = (source.map, &*source.map.pages.blocks);
        let way = match cursor.and_then(|cursor| cursor.find(blocks, inode.ino, block)) {
            Some(KnownLeaf { page, begin, end }) => {
                Descent { leaf: map.node(source.tx, page.0, 0)?, path: SmallVec::new(), begin, end }
            }
            None => {
                let way = map.descend(source.tx, root, block)?;
                if let Some(cursor) = cursor {
                    let known = KnownLeaf { page: way.leaf.block, begin: way.begin, end: way.end };
                    cursor.note(blocks, inode.ino, known);
                }
                way
            }
        };
        let Descent { leaf: Node { block: page, head }, path, begin, end } = way;
        Ok(Leaf { place: Place::Node(page), before: head, head, edited: SmallVec::new(), path, begin, end })
    }

    /// The node; `None` for the extents of a slot.
    pub fn node(&self) -> Option<PmBlock> {
        match self.place {
            Place::Slot => None,
            Place::Node(block) => Some(block),
        }
    }

    pub fn count(&self) -> usize {
        self.head.count
    }

    /// Extents that it takes.
    pub fn capacity(&self) -> usize {
        match self.place {
            Place::Slot => INLINE_EXTENTS,
            Place::Node(_) => NODE_ENTRIES,
        }
    }

    fn get(&self, source: Source<'_>, position: usize) -> Result<Extent> {
        let place = self.head.place(position);
        let edited = self.edited.iter().find(|(at, ..)| *at == place).map(|(_, _, entry)| *entry);
        let entry = match (edited, self.place) {
            (Some(entry), _) => entry,
            (None, Place::Node(block)) => source.map.place(source.tx, block, place)?,
            (None, Place::Slot) => [0; 2],
        };
        source.map.decode(entry)
    }

    fn put(&mut self, place: u8, old: Option<Entry>, new: Entry) {
        match self.edited.iter_mut().find(|(at, ..)| *at == place) {
            Some((_, _, entry)) => *entry = new,
            None => self.edited.push((place, old, new)),
        }
    }

    fn set(&mut self, position: usize, old: &Extent, new: &Extent) {
        self.put(self.head.place(position), Some(old.encode()), new.encode());
    }

    /// False without room. A damaged node is not changed: the new entry could take the place of another.
    fn insert(&mut self, position: usize, extent: &Extent) -> Result<bool> {
        if self.head.count >= self.capacity() {
            return Ok(false);
        }
        if let Place::Node(block) = self.place
            && !self.head.is_next_free()
        {
            return Err(place_twice(block));
        }
        let place = self.head.insert(position);
        if let Some(place) = place {
            self.put(place, None, extent.encode());
        }
        Ok(place.is_some())
    }

    /// The first position whose extent ends behind a block.
    fn first_after(&self, source: Source<'_>, block: u64) -> Result<usize> {
        let (mut low, mut high) = (0, self.head.count);
        while low < high {
            let middle = (low + high) / 2;
            if self.get(source, middle)?.end() <= block {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// The mappings of `count` blocks from `first` on.
    pub fn mappings(
        &self,
        source: Source<'_>,
        first: u64,
        count: usize,
    ) -> Result<SmallVec<[Option<Mapping>; 4]>> {
        let mut found = SmallVec::from_elem(None, count);
        let end = first + count as u64;
        for position in self.first_after(source, first)?..self.head.count {
            let extent = self.get(source, position)?;
            if extent.first >= end {
                break;
            }
            for block in extent.first.max(first)..extent.end().min(end) {
                if let Some(found) = found.get_mut((block - first) as usize) {
                    *found = Some(mapping_at(&extent, block));
                }
            }
        }
        Ok(found)
    }

    /// Maps blocks from `first` on, which lie before the end of the leaf; false without room: the edit is dropped then.
    pub fn apply(&mut self, source: Source<'_>, first: u64, mappings: &[Option<Mapping>]) -> Result<bool> {
        debug_assert!(first + mappings.len() as u64 <= self.end, "blocks from {first} on behind their leaf");
        let old = self.mappings(source, first, mappings.len())?;
        let pairs: SmallVec<[_; 4]> = (first..).zip(old.iter().zip(mappings)).collect();
        for run in pairs.chunk_by(|(_, a), (_, b)| (a.0 == a.1) == (b.0 == b.1)) {
            let (Some((from, (old, new))), Some((last, _))) = (run.first(), run.last()) else { continue };
            if old == new {
                continue;
            }
            let news = extents_of(*from, run.iter().map(|(_, (_, new))| **new));
            if !self.replace(source, (*from, last + 1), &news)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Puts extents in the place of all that lies in `first..end`.
    fn replace(&mut self, source: Source<'_>, (first, end): (u64, u64), news: &[Extent]) -> Result<bool> {
        let mut position = self.first_after(source, first)?;
        while position < self.head.count {
            let extent = self.get(source, position)?;
            if extent.first >= end {
                break;
            }
            if extent.end() <= first {
                return Err(out_of_order(&extent, first));
            }
            match (extent.first < first, extent.end() > end) {
                (false, false) => self.head.remove(position),
                (false, true) => {
                    self.set(position, &extent, &extent.from(end));
                    break;
                }
                (true, reaches_behind) => {
                    self.set(position, &extent, &extent.before(first));
                    position += 1;
                    if reaches_behind {
                        if !self.insert(position, &extent.from(end))? {
                            return Ok(false);
                        }
                        break;
                    }
                }
            }
        }
        for new in news {
            match position.checked_sub(1).map(|before| self.get(source, before)).transpose()? {
                Some(before) if before.is_continued_by(new) => {
                    self.set(position - 1, &before, &Extent { length: before.length + new.length, ..before });
                }
                _ if self.insert(position, new)? => position += 1,
                _ => return Ok(false),
            }
        }
        if let Some(before) = position.checked_sub(1)
            && position < self.head.count
        {
            let (left, right) = (self.get(source, before)?, self.get(source, position)?);
            if left.is_continued_by(&right) {
                self.set(before, &left, &Extent { length: left.length + right.length, ..left });
                self.head.remove(position);
            }
        }
        Ok(true)
    }

    /// Logs the words that differ.
    pub fn log(&self, tx: &mut Tx, inode: &MapInode) {
        match self.place {
            Place::Node(block) => {
                for (place, old, new) in &self.edited {
                    // The content of a free place means nothing.
                    let unknown = new.map(|word| !word);
                    let words = |entry: Entry| entry.map(U64::new);
                    let is_used = self.head.order.iter().take(self.head.count).any(|used| used == place);
                    if is_used {
                        log_changes(
                            tx,
                            entry_at(block, *place),
                            &words(old.unwrap_or(unknown)),
                            &words(*new),
                        );
                    }
                }
                log_head(tx, block, &self.before, &self.head);
            }
            Place::Slot => self.log_slot(tx, inode),
        }
    }

    /// The extents of a slot stand in their order, and behind them is nothing.
    fn log_slot(&self, tx: &mut Tx, inode: &MapInode) {
        let mut old = [[U64::ZERO; 2]; INLINE_EXTENTS];
        let mut new = old;
        for (position, (old, new)) in old.iter_mut().zip(&mut new).enumerate() {
            let at = |head: &NodeHead| (position < head.count).then(|| head.place(position));
            let found = |place: Option<u8>| self.edited.iter().find(|(at, ..)| Some(*at) == place);
            if let Some((_, Some(entry), _)) = found(at(&self.before)) {
                *old = entry.map(U64::new);
            }
            if let Some((_, _, entry)) = found(at(&self.head)) {
                *new = entry.map(U64::new);
            }
        }
        log_changes(tx, inline_at(inode), old.as_flattened(), new.as_flattened());
        let root = |head: &NodeHead| match head.count {
            0 => ExtentRoot::Empty,
            count => ExtentRoot::Inline(count),
        };
        if self.before.count != self.head.count {
            tx.write_u64(inode.slot.plus(InodeSlot::ROOT), root(&self.head).encode());
        }
    }
}

/// The extents of consecutive blocks of a file from `first` on.
fn extents_of(first: u64, mappings: impl Iterator<Item = Option<Mapping>>) -> SmallVec<[Extent; 2]> {
    let mut extents: SmallVec<[Extent; 2]> = SmallVec::new();
    for (first, mapping) in (first..).zip(mappings) {
        let Some(Mapping { block, unwritten }) = mapping else { continue };
        let next = Extent { first, length: 1, block, unwritten };
        match extents.last_mut() {
            Some(last) if last.is_continued_by(&next) => last.length += 1,
            _ => extents.push(next),
        }
    }
    extents
}

/// Logs the head of a node where it differs: the number of entries, and the order from the first to the last word that
/// differs.
pub(super) fn log_head(tx: &mut Tx, node: PmBlock, before: &NodeHead, after: &NodeHead) {
    if before.first_word() != after.first_word() {
        tx.write_u64(node.offset(), after.first_word());
    }
    let (old, new) = (before.encode(), after.encode());
    let differ = |index: &usize| old.get(*index) != new.get(*index);
    let first = (2..NODE_HEAD_WORDS).find(differ);
    let last = (2..NODE_HEAD_WORDS).rfind(differ);
    if let (Some(first), Some(last)) = (first, last)
        && let Some(words) = new.get(first..=last)
    {
        let words: SmallVec<[U64; NODE_HEAD_WORDS]> = words.iter().map(|word| U64::new(*word)).collect();
        tx.write(node.offset().plus(8 * first as u64), words.as_bytes());
    }
}
