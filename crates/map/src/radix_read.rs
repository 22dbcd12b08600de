//! Radix tree: lookups and walks.

use crate::file_map::{Mapped, Mapping};
use crate::radix::{
    BITS, FANOUT, MAX_HEIGHT, RadixTree, Root, RootPlace, entry_at, height_for, index, position,
};
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::inode::{DIRECT_BLOCKS, DIRECT_UNWRITTEN, ENTRY_UNWRITTEN};
use terrace_format::{Corrupt, FileBlock, PmBlock, PmOffset};
use terrace_wal::{Result, Tx};
use zerocopy::FromZeros;
use zerocopy::little_endian::U64;

/// Entries that a walk reads at once.
const PIECE: usize = 64;

/// A walk over the mapped blocks of a range.
struct Walk<'a> {
    /// The last block of the range.
    last: u64,
    /// The length of `out` at which the walk ends.
    full: usize,
    /// Nodes that the walk may still come to before it finds a block.
    left: u64,
    out: &'a mut Vec<Mapped>,
}

/// A leaf entry as a direct pointer.
pub(crate) fn to_direct(entry: u64) -> u32 {
    (entry & !ENTRY_UNWRITTEN) as u32 | if entry & ENTRY_UNWRITTEN == 0 { 0 } else { DIRECT_UNWRITTEN }
}

/// A direct pointer as a leaf entry.
#[inline]
fn from_direct(pointer: u32) -> u64 {
    let unwritten = if pointer & DIRECT_UNWRITTEN == 0 { 0 } else { ENTRY_UNWRITTEN };
    u64::from(pointer & !DIRECT_UNWRITTEN) | unwritten
}

/// The half of a word of two direct pointers that is `block`'s.
#[inline]
pub(crate) fn half(word: u64, block: u64) -> u64 {
    from_direct((word >> (32 * (block % 2))) as u32)
}

impl RadixTree {
    #[inline]
    pub(crate) fn lookup_at(&self, place: &RootPlace, block: FileBlock) -> Result<Option<Mapping>> {
        if let Some(direct) = place.direct
            && block.0 < DIRECT_BLOCKS
        {
            let word = self.word(None, direct.plus(block.0 / 2 * 8))?;
            return self.decode(half(word, block.0));
        }
        match self.leaf_here(None, place, block.0)? {
            None => Ok(None),
            Some(leaf) => self.decode(self.word(None, entry_at(leaf, index(block.0, 0)))?),
        }
    }

    /// The leaf that holds a block's entry, if it exists.
    pub(crate) fn leaf(&self, tx: Option<&Tx>, place: &RootPlace, block: u64) -> Result<Option<PmBlock>> {
        self.leaf_here(tx, place, block)
    }

    /// As [`Self::leaf`], as a part of the caller: for look-ups, which a hot read consists of.
    #[inline(always)]
    pub(crate) fn leaf_here(
        &self,
        tx: Option<&Tx>,
        place: &RootPlace,
        block: u64,
    ) -> Result<Option<PmBlock>> {
        let Some(root) = self.root_here(tx, place)? else {
            return Ok(None);
        };
        if block > MAX_FILE_BLOCK.0 || position(block, root.height - 1) != 0 {
            return Ok(None);
        }
        let mut node = root.block;
        for level in (1..root.height).rev() {
            let entry = self.word(tx, entry_at(node, index(block, level)))?;
            if entry == 0 {
                return Ok(None);
            }
            node = self.child(entry)?;
        }
        Ok(Some(node))
    }

    pub(crate) fn lookup_run_at(
        &self,
        place: &RootPlace,
        first: FileBlock,
        out: &mut [Option<Mapping>],
    ) -> Result<()> {
        let (mut block, mut rest) = (first.0, out);
        while !rest.is_empty() {
            if block > MAX_FILE_BLOCK.0 {
                rest.fill(None);
                break;
            }
            let direct = place.direct.filter(|_| block < DIRECT_BLOCKS);
            let length = piece(block, direct.is_some(), rest.len());
            let (part, tail) = rest.split_at_mut(length);
            match direct {
                Some(direct) => self.read_direct(direct, block, part)?,
                None => match self.leaf(None, place, block)? {
                    None => part.fill(None),
                    Some(leaf) => {
                        let at = entry_at(leaf, index(block, 0));
                        if length <= 32 {
                            self.read_entries::<32>(at, part)?;
                        } else {
                            self.read_entries::<FANOUT>(at, part)?;
                        }
                    }
                },
            }
            block += length as u64;
            rest = tail;
        }
        Ok(())
    }

    /// Reads up to `N` neighbouring leaf entries at once.
    fn read_entries<const N: usize>(&self, at: PmOffset, out: &mut [Option<Mapping>]) -> Result<()> {
        let mut buffer = [U64::ZERO; N];
        let count = out.len().min(N);
        let (entries, _) = buffer.split_at_mut(count);
        self.words(None, at, entries)?;
        for (out, entry) in out.iter_mut().zip(entries) {
            *out = self.decode(entry.get())?;
        }
        Ok(())
    }

    fn read_direct(&self, direct: PmOffset, block: u64, out: &mut [Option<Mapping>]) -> Result<()> {
        let mut words = [U64::ZERO; DIRECT_BLOCKS as usize / 2];
        self.words(None, direct, &mut words)?;
        for (block, out) in (block..).zip(out) {
            let word = words.get(block as usize / 2).map_or(0, |word| word.get());
            *out = self.decode(half(word, block))?;
        }
        Ok(())
    }

    /// The first mapped block of a range.
    pub(crate) fn next_mapped_at(
        &self,
        place: &RootPlace,
        from: FileBlock,
        to: FileBlock,
    ) -> Result<Option<Mapped>> {
        let mut found = Vec::with_capacity(1);
        self.mapped_at(place, (from, to), 1, &mut found)?;
        Ok(found.pop())
    }

    pub(crate) fn mapped_at(
        &self,
        place: &RootPlace,
        (from, to): (FileBlock, FileBlock),
        most: usize,
        out: &mut Vec<Mapped>,
    ) -> Result<Option<FileBlock>> {
        let end = to.0.min(MAX_FILE_BLOCK.0 + 1);
        assert!(most > 0, "a list of no blocks never gets full");
        let full = out.len().saturating_add(most);
        let next = |out: &Vec<Mapped>, block: u64| (out.len() == full).then_some(block + 1);
        if let Some(direct) = place.direct
            && from.0 < DIRECT_BLOCKS.min(end)
        {
            let mut found = [None; DIRECT_BLOCKS as usize];
            self.read_direct(direct, 0, &mut found)?;
            for (block, mapping) in (0..end).zip(found).skip(from.0 as usize) {
                if let Some(mapping) = mapping {
                    out.push((FileBlock(block), mapping));
                    if let Some(next) = next(out, block) {
                        return Ok(Some(FileBlock(next)).filter(|next| next.0 < end));
                    }
                }
            }
        }
        let from = from.0.max(place.tree_start());
        if from >= end {
            return Ok(None);
        }
        let Some(root) = self.root(None, place)? else {
            return Ok(None);
        };
        let top = root.height - 1;
        if position(from, top) != 0 {
            return Ok(None);
        }
        let mut walk = Walk { last: end - 1, full, left: self.pages.blocks.end_block().0, out };
        let next = self.mapped_below(root.block, top, 0, from, &mut walk)?;
        Ok(next.map(FileBlock).filter(|next| next.0 < end))
    }

    /// Adds the mapped blocks from `from` on below a node whose first block is `base`. Gives the block to go on at when
    /// the list is full.
    fn mapped_below(
        &self,
        node: PmBlock,
        level: u8,
        base: u64,
        from: u64,
        walk: &mut Walk<'_>,
    ) -> Result<Option<u64>> {
        visited(node, level, &mut walk.left)?;
        let (mut at, end) = span(level, base, from, walk.last);
        let step = BITS * u32::from(level);
        while at < end {
            let mut buffer = [U64::ZERO; PIECE];
            let length = (end - at).min(PIECE as u64);
            let (entries, _) = buffer.split_at_mut(length as usize);
            self.words(None, entry_at(node, at), entries)?;
            for (number, entry) in (at..).zip(entries) {
                let (entry, start) = (entry.get(), base + (number << step));
                if entry == 0 {
                    continue;
                }
                if level > 0 {
                    let next = self.mapped_below(self.child(entry)?, level - 1, start, from, walk)?;
                    if next.is_some() {
                        return Ok(next);
                    }
                } else if let Some(mapping) = self.decode(entry)? {
                    // Only a walk that finds nothing can be endless.
                    walk.left = self.pages.blocks.end_block().0;
                    walk.out.push((FileBlock(start), mapping));
                    if walk.out.len() == walk.full {
                        return Ok(Some(start + 1));
                    }
                }
            }
            at += length;
        }
        Ok(None)
    }

    pub(crate) fn visit_nodes_at(&self, place: &RootPlace, visit: &mut dyn FnMut(PmBlock, u8)) -> Result<()> {
        let Some(root) = self.root(None, place)? else {
            return Ok(());
        };
        let mut left = self.pages.blocks.end_block().0;
        self.visit_below(root.block, root.height - 1, 0, &mut left, visit)
    }

    fn visit_below(
        &self,
        node: PmBlock,
        level: u8,
        base: u64,
        left: &mut u64,
        visit: &mut dyn FnMut(PmBlock, u8),
    ) -> Result<()> {
        visited(node, level, left)?;
        visit(node, level);
        if level == 0 {
            return Ok(());
        }
        let mut entries = <[U64; FANOUT]>::new_zeroed();
        self.words(None, node.offset(), &mut entries)?;
        let (_, end) = span(level, base, base, MAX_FILE_BLOCK.0);
        for (number, entry) in (0..end).zip(&entries) {
            if entry.get() != 0 {
                let start = base + (number << (BITS * u32::from(level)));
                self.visit_below(self.child(entry.get())?, level - 1, start, left, visit)?;
            }
        }
        Ok(())
    }

    pub(crate) fn missing_nodes_at(
        &self,
        place: &RootPlace,
        first: FileBlock,
        count: usize,
    ) -> Result<usize> {
        let Some((first, last)) = place.tree_range(first, count) else {
            return Ok(0);
        };
        if position(first, 0) == position(last, 0) && self.leaf(None, place, first)?.is_some() {
            return Ok(0);
        }
        let root = self.root(None, place)?;
        let height = root.map_or(0, |root| root.height);
        let needed = (0..height_for(last).max(height)).map(|level| {
            let nodes = position(last, level) - position(first, level) + 1;
            // Growing puts nodes above the old root, whether the range needs them or not.
            nodes + u64::from(level >= height && height != 0 && position(first, level) != 0)
        });
        let needed: u64 = needed.sum();
        let present = match root {
            None => 0,
            Some(Root { height, block }) if position(first, height - 1) == 0 => {
                self.present_below(block, height - 1, 0, first, last)?
            }
            Some(_) => 0,
        };
        // The old root itself is needed, and was counted, only where it covers part of the range.
        Ok(needed.saturating_sub(present) as usize)
    }

    /// Nodes on the way to `first..=last` that exist at and below a node.
    fn present_below(&self, node: PmBlock, level: u8, base: u64, first: u64, last: u64) -> Result<u64> {
        if level == 0 {
            return Ok(1);
        }
        let (mut at, end) = span(level, base, first, last);
        let step = BITS * u32::from(level);
        let mut present = 1;
        while at < end {
            let mut buffer = [U64::ZERO; PIECE];
            let length = (end - at).min(PIECE as u64);
            let (entries, _) = buffer.split_at_mut(length as usize);
            self.words(None, entry_at(node, at), entries)?;
            for (number, entry) in (at..).zip(entries) {
                if entry.get() != 0 {
                    let start = base + (number << step);
                    present += self.present_below(self.child(entry.get())?, level - 1, start, first, last)?;
                }
            }
            at += length;
        }
        Ok(present)
    }
}

/// Counts a node that a walk has come to: nodes that have several parents would make it endless.
fn visited(node: PmBlock, level: u8, left: &mut u64) -> Result<()> {
    *left = left.checked_sub(1).ok_or_else(|| {
        let site = format!("radix node {node}, level {level}");
        Corrupt::new(site, "a tree", "more nodes than the pool has blocks")
    })?;
    Ok(())
}

/// Blocks from `block` on, at most `most`, whose entries lie side by side.
pub(crate) fn piece(block: u64, direct: bool, most: usize) -> usize {
    let end = if direct { DIRECT_BLOCKS } else { (block | (FANOUT as u64 - 1)) + 1 };
    most.min((end - block) as usize)
}

/// Half-open range of the entries that lead to `first..=last`, in a node of a level whose first block is `base`.
pub(crate) fn span(level: u8, base: u64, first: u64, last: u64) -> (u64, u64) {
    debug_assert!(level < MAX_HEIGHT);
    let size = 1u64 << (BITS * (u32::from(level) + 1));
    let (low, high) = (first.max(base), last.min(base + size - 1));
    if low > high {
        return (0, 0);
    }
    (index(low, level), index(high, level) + 1)
}
