//! The owners of PM blocks: as the block table was found, and after the repair.
//!
//! Invariants: `new` has the new owner of each block, and a block gets one owner only, until it is released. Blocks
//! outside of the pool never get an owner.

use super::inodes::MAX_HEIGHT;
use super::pool::Pool;
use std::collections::BTreeMap;
use std::ops::Range;
use terrace_check::sets::Dense;
use terrace_format::inode::SLOTS_PER_PAGE;
use terrace_format::table::{MASK_FULL, Owner, PageKind};
use terrace_format::{Geometry, LineMask};

/// Owner word of a table entry that cannot be read or decoded.
const UNKNOWN: u64 = u64::MAX;
/// Table entries in a line of PM.
const ENTRIES_PER_LINE: usize = 4;

/// Owners by block.
pub(crate) struct Owners {
    /// Blocks that may be handed out.
    pool: Range<u64>,
    /// Owner words as found, `UNKNOWN` where unreadable or not decodable.
    found: Vec<u64>,
    /// Blocks whose table entry has a full line mask or a checksum, as a whole owned block has.
    masked: Dense,
    /// Line masks of possible partial shadows, as found. A block whose mask is lost counts as whole.
    partial: BTreeMap<u64, LineMask>,
    /// Metadata pages by owner word, as found.
    pages_of: BTreeMap<u64, Vec<u64>>,
    /// Owner words after the repair.
    new: Vec<u64>,
    /// Blocks to which a found structure points.
    seen: Dense,
}

impl Owners {
    /// Reads the block table.
    pub fn read(pool: &Pool<'_>) -> Owners {
        let count = pool.geometry.block_count();
        let mut owners = Owners {
            pool: pool.geometry.first_pool_block().0..count,
            found: vec![UNKNOWN; count as usize],
            masked: Dense::new(count),
            partial: BTreeMap::new(),
            pages_of: BTreeMap::new(),
            new: vec![0; count as usize],
            seen: Dense::new(count),
        };
        let pages = pool.word(pool.geometry.inode_pages()).unwrap_or(0);
        let inodes = if (1..=count).contains(&pages) { pages } else { count } * SLOTS_PER_PAGE;
        let mut found = std::mem::take(&mut owners.found);
        // Reads a line at a time: an unreadable line must not hide the entries of its neighbours.
        for (block, line) in (0..).step_by(ENTRIES_PER_LINE).zip(found.chunks_mut(ENTRIES_PER_LINE)) {
            owners.read_line(pool, block, line, inodes);
        }
        owners.found = found;
        assert_eq!(owners.found.len(), owners.new.len(), "each block has an owner word");
        for (block, owner) in owners.owned() {
            if matches!(owner, Owner::Page { .. }) {
                owners.pages_of.entry(owner.encode()).or_default().push(block);
            }
        }
        owners
    }

    /// Reads the entries of a line; `block` has the first of them.
    fn read_line(&mut self, pool: &Pool<'_>, block: u64, line: &mut [u64], inodes: u64) {
        let mut bytes = [0; 64];
        let (into, _) = bytes.split_at_mut(line.len() * 16);
        if !pool.read(pool.geometry.table_offset().plus(block * 16), into) {
            return;
        }
        for ((at, place), entry) in (block..).zip(line.iter_mut()).zip(bytes.as_chunks::<16>().0) {
            if entry.ends_with(&MASK_FULL.to_le_bytes()) {
                self.masked.insert(at);
            } else if pool.superblock.has_partial_shadows() && !entry.ends_with(&[0; 8]) {
                let mask = entry.last_chunk().map_or(0, |mask| u64::from_le_bytes(*mask));
                self.partial.insert(at, LineMask(mask));
            }
            let mut word = entry.first_chunk().map_or(UNKNOWN, |word| u64::from_le_bytes(*word));
            if let Some(owner) = pool.checksummed(entry) {
                (word, _) = (owner.encode(), self.masked.insert(at));
                self.partial.remove(&at);
            }
            let possible =
                Owner::decode(word).is_some_and(|owner| is_possible(&pool.geometry, owner, inodes));
            *place = if possible { word } else { UNKNOWN };
        }
    }

    /// The owner of a block, as found; `None` when the table does not say it.
    pub fn owner(&self, block: u64) -> Option<Owner> {
        self.found.get(block as usize).copied().filter(|word| *word != UNKNOWN).and_then(Owner::decode)
    }

    /// Owned pool blocks as found, in order: only blocks whose line mask confirms it, since little damage
    /// makes a free entry look owned.
    pub fn owned(&self) -> Vec<(u64, Owner)> {
        let first = self.pool.start;
        let pool = (0u64..).zip(&self.found).skip(first as usize);
        let known =
            pool.filter(|(block, word)| **word != 0 && **word != UNKNOWN && self.masked.contains(*block));
        known.filter_map(|(block, word)| Some((block, Owner::decode(*word)?))).collect()
    }

    /// Whether the line mask of a block is that of a whole block.
    pub fn is_whole(&self, block: u64) -> bool {
        self.masked.contains(block)
    }

    /// True while the block has no new owner.
    pub fn is_open(&self, block: u64) -> bool {
        self.pool.contains(&block) && self.new.get(block as usize) == Some(&0)
    }

    /// Gives a block an owner; false when it has one or is none of the pool.
    pub fn own(&mut self, block: u64, owner: Owner) -> bool {
        if !self.is_open(block) {
            return false;
        }
        assert!(owner != Owner::Free, "block {block} is owned by nobody");
        if let Some(place) = self.new.get_mut(block as usize) {
            *place = owner.encode();
        }
        true
    }

    /// Notes that a found structure points to the block. False when it is no block of the pool.
    pub fn see(&mut self, block: u64) -> bool {
        self.seen.insert(block);
        self.pool.contains(&block)
    }

    /// Takes a block's owner away.
    pub fn release(&mut self, block: u64) {
        if let Some(place) = self.new.get_mut(block as usize) {
            *place = 0;
        }
    }

    /// Whether a found structure points to the block.
    pub fn is_seen(&self, block: u64) -> bool {
        self.seen.contains(block)
    }

    /// Whether the block table names pages of this owner that no walk has reached.
    pub fn has_unreached(&self, owner: Owner) -> bool {
        let pages = self.pages_of.get(&owner.encode());
        pages.is_some_and(|blocks| blocks.iter().any(|block| self.is_open(*block)))
    }

    /// Owner words of all blocks after the repair.
    pub fn decided(&self) -> &[u64] {
        &self.new
    }

    /// The owner after the repair, if it is the owner that the table has named before.
    pub fn kept_owner(&self, block: u64) -> Option<Owner> {
        let word = self.new.get(block as usize)?;
        Owner::decode(*word).filter(|_| self.found.get(block as usize) == Some(word))
    }

    /// Blocks with the line mask of a partial shadow.
    pub fn partial_blocks(&self) -> impl Iterator<Item = u64> {
        self.partial.keys().copied()
    }

    /// The line mask of a partial shadow.
    pub fn partial(&self, block: u64) -> Option<LineMask> {
        self.partial.get(&block).copied()
    }

    /// Takes all line masks; the masks that stay are put back.
    pub fn take_partial(&mut self) -> BTreeMap<u64, LineMask> {
        std::mem::take(&mut self.partial)
    }

    /// The block stays a partial shadow.
    pub fn keep_partial(&mut self, block: u64, lines: LineMask) {
        self.partial.insert(block, lines);
    }
}

/// Whether this pool can have such an owner: a damaged word mostly decodes to a far too high inode
/// number.
fn is_possible(geometry: &Geometry, owner: Owner, inodes: u64) -> bool {
    match owner {
        Owner::Free => true,
        Owner::File { ino, .. } => ino.0 < inodes,
        Owner::Page { kind, datum } => match kind {
            PageKind::Fixed => datum == 0,
            PageKind::InodePage => u64::from(datum) < geometry.block_count(),
            PageKind::InodeNode => datum < u32::from(MAX_HEIGHT),
            PageKind::CatalogPage => datum < geometry.catalog_shards,
            PageKind::MapNode => u64::from(datum) < inodes,
        },
    }
}
