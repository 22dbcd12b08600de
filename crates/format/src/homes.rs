//! Homes of file blocks, in a pool whose file map is the block table ([HashFS] section 3.2): the slot in which a search
//! for a block begins, and the sequence of slots that the search passes.
//!
//! The hash has the superblock's key, so that nobody can choose files whose blocks share a home (docs/format.md "HashFS").
//!
//! Invariant: of each home the sequence has every slot of the pool, at a distance of its own below [`Homes::length`]. In
//! groups some distances have no slot: those of places outside of the pool in its first and last group.

mod groups;
mod lines;

use crate::address::{FileBlock, Ino, PmBlock};
use crate::geometry::Geometry;
use crate::map_kind::MapKind;
pub use groups::{GROUP_SLOTS, NEAR_GROUPS};
use groups::{Groups, preferred};
pub use lines::{Lines, Placement};
use lines::{TABLE_LINE_SLOTS, WORD_LINE_SLOTS};
use std::ops::Range;
use terrace_simd::hash::{HashKey, hash, hash_run};

/// Homes over the blocks of a pool.
#[derive(Debug, Clone)]
pub struct Homes {
    key: HashKey,
    placement: Placement,
    line_slots: u64,
    first: u64,
    slots: u64,
}

impl Homes {
    /// The homes of a pool, by its file map and the key of its superblock.
    pub fn of(geometry: &Geometry, key: [u8; 16]) -> Homes {
        let placement = match geometry.map {
            MapKind::Hashfs | MapKind::Packed => Placement::Groups,
            _ => Placement::Linear,
        };
        let end = PmBlock(geometry.block_count());
        let line_slots = if geometry.map.has_words() { WORD_LINE_SLOTS } else { TABLE_LINE_SLOTS };
        Homes::with(key, (placement, line_slots), geometry.first_pool_block(), end)
    }

    /// The homes of a pool of blocks, in the block table.
    pub fn over(key: [u8; 16], placement: Placement, first: PmBlock, end: PmBlock) -> Homes {
        Homes::with(key, (placement, TABLE_LINE_SLOTS), first, end)
    }

    fn with(key: [u8; 16], (placement, line_slots): (Placement, u64), first: PmBlock, end: PmBlock) -> Homes {
        let slots = end.0 - first.0;
        assert!(slots > 0 && slots >> 32 == 0, "homes in {slots} blocks");
        Homes { key: HashKey::new(key), placement, line_slots, first: first.0, slots }
    }

    /// The order of the slots.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// Lines of a group.
    pub fn group_lines(&self) -> u64 {
        GROUP_SLOTS / self.line_slots
    }

    /// The home of a block. In groups it may lie beside the pool, in its first or last group.
    #[inline]
    pub fn home(&self, ino: Ino, block: FileBlock) -> PmBlock {
        match self.placement {
            Placement::Linear => self.of_hash(hash(&self.key, ino.0 as u32, block.0 as u32)),
            Placement::Groups => {
                let hash = hash(&self.key, ino.0 as u32, (block.0 / GROUP_SLOTS) as u32);
                preferred(self.of_hash(hash), hash, block.0)
            }
        }
    }

    /// The homes of consecutive blocks from `first` on, at most 16. In groups the blocks are of the same sixteen.
    pub fn homes(&self, ino: Ino, first: FileBlock, out: &mut [u64]) {
        match self.placement {
            Placement::Linear => {
                hash_run(&self.key, ino.0 as u32, first.0 as u32, out);
                out.iter_mut().for_each(|hash| *hash = self.of_hash(*hash).0);
            }
            Placement::Groups => {
                let last = first.0 + (out.len() as u64).max(1) - 1;
                assert!(
                    last / GROUP_SLOTS == first.0 / GROUP_SLOTS,
                    "blocks {first} to {last} have two groups"
                );
                let hash = hash(&self.key, ino.0 as u32, (first.0 / GROUP_SLOTS) as u32);
                let slot = self.of_hash(hash);
                let homes = (first.0..).map(|block| preferred(slot, hash, block).0);
                out.iter_mut().zip(homes).for_each(|(out, home)| *out = home);
            }
        }
    }

    /// A hashed place for pages of metadata, which have no home: a slot of the pool, by a running number.
    pub fn page_home(&self, number: u64) -> PmBlock {
        // Inode 0 is no file.
        self.of_hash(hash(&self.key, 0, number as u32))
    }

    #[inline]
    fn of_hash(&self, hash: u64) -> PmBlock {
        PmBlock(self.first + (((hash >> 32) * self.slots) >> 32))
    }

    /// The distance of a slot of the pool from a home, in the order of the search.
    #[inline]
    pub fn distance(&self, home: PmBlock, slot: PmBlock) -> u64 {
        match self.placement {
            Placement::Linear if slot >= home => slot.0 - home.0,
            Placement::Linear => slot.0 + self.slots - home.0,
            Placement::Groups => self.groups().distance(home, slot),
        }
    }

    /// The lines of the table that a search reads, in its order: all slots at a distance below `reach`, and others of
    /// the same lines. Each range of slots is in a single line.
    #[inline]
    pub fn lines(&self, home: PmBlock, reach: u64) -> Lines {
        Lines::from((self.placement, self.line_slots), self.groups(), home, reach.min(self.length()))
    }

    /// The home group of a sixteen of file blocks, as the home of its first block.
    #[inline]
    pub fn sixteen_home(&self, ino: Ino, sixteen: u64) -> PmBlock {
        let hash = hash(&self.key, ino.0 as u32, sixteen as u32);
        preferred(self.of_hash(hash), hash, 0)
    }

    /// The groups of a window from the group of a home on, each by its first place; no groups behind the last window.
    pub fn window(&self, home: PmBlock, window: u64) -> impl Iterator<Item = u64> + Clone {
        self.groups().window(home, window)
    }

    /// The window in which a search from a home meets a slot of the pool.
    pub fn window_of(&self, home: PmBlock, slot: PmBlock) -> u64 {
        self.groups().window_of(home, slot)
    }

    /// The groups that have slots at a distance below `reach`, in the order of a search: the slots of each that are in the
    /// pool.
    pub fn near_groups(&self, home: PmBlock, reach: u64) -> impl Iterator<Item = Range<u64>> {
        self.groups().near(home, reach)
    }

    /// Slots of the pool.
    pub fn slots(&self) -> u64 {
        self.slots
    }

    /// All distances are below this number.
    #[inline]
    pub fn length(&self) -> u64 {
        match self.placement {
            Placement::Linear => self.slots,
            Placement::Groups => self.groups().count() * GROUP_SLOTS,
        }
    }

    /// The largest reach that a search may have.
    pub fn most_reach(&self) -> u64 {
        self.length().next_power_of_two()
    }

    #[inline]
    fn groups(&self) -> Groups {
        Groups { first: self.first, end: self.first + self.slots }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests;
