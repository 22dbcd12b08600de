//! Radix tree: freeing empty nodes.

use crate::file_map::{Freed, MapChange};
use crate::radix::{
    BITS, FANOUT, MAX_HEIGHT, OWNER_BYTES, RadixTree, RootPlace, WORD_BYTES, entry_at, position,
};
use crate::radix_read::span;
use terrace_format::{FileBlock, PmBlock};
use terrace_wal::{Result, Tx};
use zerocopy::FromZeros;
use zerocopy::little_endian::U64;

/// Bytes of a freed node in a record: its owner, and the word that named it.
const FREED_BYTES: usize = OWNER_BYTES + WORD_BYTES;

/// Nodes that one call looks at before it says where to go on.
const MAX_VISITS: usize = 256;

struct Prune<'a> {
    tree: &'a RadixTree,
    place: &'a RootPlace,
    tx: &'a mut Tx,
    freed: &'a mut Freed,
    first: u64,
    last: u64,
    /// Bytes that the record may have.
    limit: usize,
    visits: usize,
    /// Where to go on.
    resume: Option<u64>,
}

impl Prune<'_> {
    /// True when nothing is left in a node; prunes below it first.
    fn empty(&mut self, node: PmBlock, level: u8, base: u64) -> Result<bool> {
        self.visits += 1;
        let mut entries = <[U64; FANOUT]>::new_zeroed();
        let at = node.offset();
        self.tree.words(Some(self.tx), at, &mut entries)?;
        if level != 0 {
            let (start, end) = span(level, base, self.first, self.last);
            let children = entries.iter_mut().enumerate().take(end as usize);
            for (number, entry) in children.skip(start as usize) {
                if entry.get() == 0 {
                    continue;
                }
                let child_base = base + ((number as u64) << (BITS * u32::from(level)));
                if !self.has_room() || self.visits >= MAX_VISITS {
                    self.resume = Some(child_base.max(self.first));
                    return Ok(false);
                }
                let child = self.tree.child(entry.get())?;
                let empty = self.empty(child, level - 1, child_base)?;
                if empty {
                    self.free(child, level - 1)?;
                    self.tx.write_u64(entry_at(node, number as u64), 0);
                    entry.set(0);
                }
                if self.resume.is_some() {
                    return Ok(false);
                }
            }
        }
        Ok(entries.iter().all(|entry| entry.get() == 0))
    }

    /// Whether the record takes a child and everything above it.
    fn has_room(&self) -> bool {
        self.tx.record_size() + usize::from(MAX_HEIGHT) * FREED_BYTES <= self.limit
    }

    fn free(&mut self, node: PmBlock, level: u8) -> Result<()> {
        // Also catches a node that two parents name: it is free by now, as seen in this transaction.
        self.tree.check_owner(self.tx, self.place, node, level)?;
        self.tree.pages.blocks.release(self.tx, node);
        self.freed.push(node);
        Ok(())
    }
}

impl RadixTree {
    /// Frees the nodes that changes have emptied, in so far as the record has room.
    pub(crate) fn prune_after(
        &self,
        tx: &mut Tx,
        changes: &[MapChange],
        limit: usize,
        freed: &mut Freed,
    ) -> Result<()> {
        // Runs in the same leaf are one: it is read once.
        let meets = |a: &MapChange, b: &MapChange| {
            a.inode == b.inode && a.is_removal() && b.is_removal() && b.first >= a.end() && {
                position(a.end().0.saturating_sub(1), 0) == position(b.first.0, 0)
            }
        };
        for runs in changes.chunk_by(meets) {
            if let ([first, ..], [.., last]) = (runs, runs)
                && first.is_removal()
                && !first.mappings.is_empty()
            {
                let count = (last.end().0 - first.first.0) as usize;
                self.prune_at(tx, &self.place(&first.inode), (first.first, count), limit, freed)?;
            }
        }
        Ok(())
    }

    pub(crate) fn prune_at(
        &self,
        tx: &mut Tx,
        place: &RootPlace,
        (first, count): (FileBlock, usize),
        limit: usize,
        freed: &mut Freed,
    ) -> Result<Option<FileBlock>> {
        let Some((first, last)) = place.tree_range(first, count) else {
            return Ok(None);
        };
        let Some(root) = self.root(Some(tx), place)? else {
            return Ok(None);
        };
        if position(first, root.height - 1) != 0 {
            return Ok(None);
        }
        let mut prune = Prune { tree: self, place, tx, freed, first, last, limit, visits: 0, resume: None };
        if !prune.has_room() {
            return Ok(Some(FileBlock(first)));
        }
        if prune.empty(root.block, root.height - 1, 0)? {
            prune.free(root.block, root.height - 1)?;
            prune.tx.write_u64(place.root_word, 0);
        }
        Ok(prune.resume.map(FileBlock))
    }
}
