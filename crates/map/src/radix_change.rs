//! Radix tree: adding nodes, setting and clearing entries.

use crate::file_map::Mapping;
use crate::log_words::log_changes;
use crate::radix::{BITS, FANOUT, NODE_BYTES, RadixTree, Root, RootPlace, entry_at, height_for, index};
use crate::radix_read::{half, piece, span, to_direct};
use smallvec::SmallVec;
use terrace_blocks::{Claim, Target};
use terrace_format::address::{BLOCK_SIZE, MAX_FILE_BLOCK};
use terrace_format::inode::{DIRECT_BLOCKS, ENTRY_UNWRITTEN, pack_root};
use terrace_format::{Corrupt, FileBlock, PmBlock, PmOffset};
use terrace_wal::{Result, Tx};
use zerocopy::FromZeros;
use zerocopy::little_endian::U64;

static ZEROS: [u8; BLOCK_SIZE as usize] = [0; BLOCK_SIZE as usize];

/// A leaf entry.
fn encode(mapping: Option<Mapping>) -> u64 {
    mapping.map_or(0, |m| m.block.0 | if m.unwritten { ENTRY_UNWRITTEN } else { 0 })
}

/// Nodes being added in one transaction.
struct Growth<'a, 'b, 'c> {
    tree: &'a RadixTree,
    place: &'a RootPlace,
    tx: &'a mut Tx,
    claim: &'b mut Claim<'c>,
    limit: usize,
    added: usize,
}

impl Growth<'_, '_, '_> {
    /// A zeroed node with its owner logged, not yet linked; none when claim or record are used up.
    fn new_node(&mut self, level: u8) -> Result<Option<PmBlock>> {
        if self.tx.record_size() + NODE_BYTES > self.limit {
            return Ok(None);
        }
        let Some(node) = self.claim.take(Target::Page) else {
            return Ok(None);
        };
        self.tree.pages.pm.write_streaming(node.offset(), &ZEROS)?;
        let owner = self.place.node_owner(level);
        self.tree.pages.blocks.set_owner(self.tx, node, owner);
        self.added += 1;
        Ok(Some(node))
    }

    /// A root that covers `last`; none when claim or record were used up before.
    fn root(&mut self, last: u64) -> Result<Option<Root>> {
        let needed = height_for(last);
        let Some(mut root) = self.tree.root(Some(self.tx), self.place)? else {
            let Some(block) = self.new_node(needed - 1)? else {
                return Ok(None);
            };
            let root = Root { height: needed, block };
            self.set_root(root);
            return Ok(Some(root));
        };
        while root.height < needed {
            // Owner of the old root first: a damaged root word must not be buried in a sound node.
            self.tree.check_owner(self.tx, self.place, root.block, root.height - 1)?;
            let Some(block) = self.new_node(root.height)? else {
                return Ok(None);
            };
            // Entry before root word: readers without a lock see either root complete.
            self.tx.write_u64(entry_at(block, 0), root.block.0);
            root = Root { height: root.height + 1, block };
            self.set_root(root);
        }
        Ok(Some(root))
    }

    fn set_root(&mut self, root: Root) {
        let word = pack_root(root.height, root.block.0);
        self.tx.write_u64(self.place.root_word, word);
    }

    /// Adds what `first..=last` lacks below a node; false when claim or record are used up.
    fn fill(&mut self, node: PmBlock, level: u8, base: u64, first: u64, last: u64) -> Result<bool> {
        if level == 0 {
            return Ok(true);
        }
        self.tree.check_owner(self.tx, self.place, node, level)?;
        let mut entries = <[U64; FANOUT]>::new_zeroed();
        let (start, end) = span(level, base, first, last);
        let (entries, _) = entries.split_at_mut((end - start) as usize);
        let at = entry_at(node, start);
        self.tree.words(Some(self.tx), at, entries)?;
        for (number, entry) in (start..end).zip(entries) {
            let child = if entry.get() != 0 {
                self.tree.child(entry.get())?
            } else {
                let Some(child) = self.new_node(level - 1)? else {
                    return Ok(false);
                };
                self.tx.write_u64(entry_at(node, number), child.0);
                child
            };
            let child_base = base + (number << (BITS * u32::from(level)));
            if !self.fill(child, level - 1, child_base, first, last)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl RadixTree {
    pub(crate) fn add_nodes_at(
        &self,
        tx: &mut Tx,
        place: &RootPlace,
        first: FileBlock,
        count: usize,
        claim: &mut Claim<'_>,
    ) -> Result<usize> {
        let Some((first, last)) = place.tree_range(first, count) else {
            return Ok(0);
        };
        let mut growth =
            Growth { tree: self, place, tx, claim, limit: self.pages.blocks.wal().max_record(), added: 0 };
        if let Some(root) = growth.root(last)? {
            growth.fill(root.block, root.height - 1, 0, first, last)?;
        }
        let added = growth.added;
        if added != 0 {
            // A crash must never leave a record that links a node whose zeros are not durable.
            self.pages.pm.order();
        }
        Ok(added)
    }

    pub(crate) fn set_at(
        &self,
        tx: &mut Tx,
        place: &RootPlace,
        first: FileBlock,
        mappings: &[Option<Mapping>],
    ) -> Result<()> {
        let (mut block, mut rest) = (first.0, mappings);
        while !rest.is_empty() {
            let direct = place.direct.filter(|_| block < DIRECT_BLOCKS);
            // Beyond the last file block there is no leaf, only one answer for all of the rest.
            let length = match block > MAX_FILE_BLOCK.0 {
                true => rest.len(),
                false => piece(block, direct.is_some(), rest.len()),
            };
            let (part, tail) = rest.split_at(length);
            match direct {
                Some(direct) => self.set_direct(tx, direct, block, part)?,
                None => self.set_in_leaf(tx, place, block, part)?,
            }
            block = block.saturating_add(part.len() as u64);
            rest = tail;
        }
        Ok(())
    }

    pub(crate) fn exchange_at(
        &self,
        tx: &mut Tx,
        place: &RootPlace,
        block: u64,
        new: Mapping,
    ) -> Result<Option<Option<Mapping>>> {
        let new = encode(Some(new));
        if let Some(direct) = place.direct
            && block < DIRECT_BLOCKS
        {
            let at = direct.plus(block / 2 * 8);
            let word = self.word(None, at)?;
            let shift = 32 * (block % 2);
            tx.write_u64(at, word & !(0xffff_ffff << shift) | u64::from(to_direct(new)) << shift);
            return self.decode(half(word, block)).map(Some);
        }
        let Some(leaf) = self.leaf(None, place, block)? else {
            return Ok(None);
        };
        self.check_owner(tx, place, leaf, 0)?;
        let at = entry_at(leaf, index(block, 0));
        let old = self.decode(self.word(None, at)?)?;
        tx.write_u64(at, new);
        Ok(Some(old))
    }

    fn set_in_leaf(
        &self,
        tx: &mut Tx,
        place: &RootPlace,
        block: u64,
        mappings: &[Option<Mapping>],
    ) -> Result<()> {
        let Some(leaf) = self.leaf(Some(tx), place, block)? else {
            if mappings.iter().all(Option::is_none) {
                return Ok(());
            }
            let site = format!("radix tree of {:?}, leaf of block {block}", place.nodes);
            let expected = format!("a leaf, as for any block up to {MAX_FILE_BLOCK} about to be mapped");
            return Err(Corrupt::new(site, expected, "none").into());
        };
        self.check_owner(tx, place, leaf, 0)?;
        let at = entry_at(leaf, index(block, 0));
        if let [mapping] = mappings {
            let new = encode(*mapping);
            if self.word(Some(tx), at)? != new {
                tx.write_u64(at, new);
            }
            return Ok(());
        }
        let mut old: SmallVec<[U64; 32]> = SmallVec::from_elem(U64::ZERO, mappings.len());
        self.words(Some(tx), at, &mut old)?;
        let new: SmallVec<[U64; 32]> = mappings.iter().map(|m| U64::new(encode(*m))).collect();
        log_changes(tx, at, &old, &new);
        Ok(())
    }

    fn set_direct(
        &self,
        tx: &mut Tx,
        direct: PmOffset,
        block: u64,
        mappings: &[Option<Mapping>],
    ) -> Result<()> {
        let mut old = [U64::ZERO; DIRECT_BLOCKS as usize / 2];
        self.words(Some(tx), direct, &mut old)?;
        let mut new = old;
        for (block, mapping) in (block..).zip(mappings) {
            if let Some(word) = new.get_mut(block as usize / 2) {
                let shift = 32 * (block % 2);
                let pointer = u64::from(to_direct(encode(*mapping))) << shift;
                word.set(word.get() & !(0xffff_ffff << shift) | pointer);
            }
        }
        log_changes(tx, direct, &old, &new);
        Ok(())
    }
}
