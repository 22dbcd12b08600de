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
pub use groups::{GROUP_SLOTS, Home, NEAR_GROUPS};
use groups::{Groups, WINDOW_SLOTS};
pub use lines::{Lines, Placement};
use std::ops::Range;
use terrace_simd::hash::{HashKey, hash, hash_run};

/// Homes that are computed together.
const BATCH: usize = 16;

/// Homes over the blocks of a pool.
#[derive(Debug, Clone)]
pub struct Homes {
    key: HashKey,
    placement: Placement,
    first: u64,
    slots: u64,
    groups: Groups,
}

impl Homes {
    /// The homes of a pool, by its file map and the key of its superblock.
    pub fn of(geometry: &Geometry, key: [u8; 16]) -> Homes {
        let placement = match geometry.map {
            MapKind::Hashfs => Placement::Groups,
            _ => Placement::Linear,
        };
        let end = PmBlock(geometry.block_count());
        Homes::with(key, placement, geometry.first_pool_block(), end)
    }

    /// The homes of a pool of blocks, in the block table.
    pub fn over(key: [u8; 16], placement: Placement, first: PmBlock, end: PmBlock) -> Homes {
        Homes::with(key, placement, first, end)
    }

    fn with(key: [u8; 16], placement: Placement, first: PmBlock, end: PmBlock) -> Homes {
        let slots = end.0 - first.0;
        assert!(slots > 0 && slots >> 32 == 0, "homes in {slots} blocks");
        let groups = Groups::new(first.0, end.0);
        Homes { key: HashKey::new(key), placement, first: first.0, slots, groups }
    }

    /// The order of the slots.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// The home of a block.
    #[inline]
    pub fn home(&self, ino: Ino, block: FileBlock) -> Home {
        match self.placement {
            Placement::Linear => self.linear(hash(&self.key, ino.0 as u32, block.0 as u32)),
            Placement::Groups => {
                let hash = hash(&self.key, ino.0 as u32, (block.0 / GROUP_SLOTS) as u32);
                Groups::home(hash, self.of_hash(hash), block.0)
            }
        }
    }

    /// The homes of at most 16 consecutive blocks from `first` on.
    pub fn homes(&self, ino: Ino, first: FileBlock, out: &mut [Home]) {
        if self.placement == Placement::Groups {
            let homes = (first.0..).map(|block| self.home(ino, FileBlock(block)));
            return out.iter_mut().zip(homes).for_each(|(out, home)| *out = home);
        }
        let mut hashes = [0; BATCH];
        let (hashes, _) = hashes.split_at_mut(out.len());
        hash_run(&self.key, ino.0 as u32, first.0 as u32, hashes);
        out.iter_mut().zip(hashes).for_each(|(out, hash)| *out = self.linear(*hash));
    }

    #[inline]
    fn linear(&self, hash: u64) -> Home {
        Home { slot: self.of_hash(hash), stride: 0 }
    }

    /// A hashed place for pages of metadata, which have no home: a slot of the pool, by a running number.
    pub fn page_home(&self, number: u64) -> Home {
        // Inode 0 is no file.
        self.linear(hash(&self.key, 0, number as u32))
    }

    #[inline]
    fn of_hash(&self, hash: u64) -> PmBlock {
        PmBlock(self.first + (((hash >> 32) * self.slots) >> 32))
    }

    /// The distance of a slot of the pool from a home, in the order of the search.
    #[inline]
    pub fn distance(&self, home: Home, slot: PmBlock) -> u64 {
        match self.placement {
            Placement::Linear if slot >= home.slot => slot.0 - home.slot.0,
            Placement::Linear => slot.0 + self.slots - home.slot.0,
            Placement::Groups => self.groups.distance(home, slot),
        }
    }

    /// The lines of the block table that a search reads, in its order: all slots at a distance below `reach`, and others of
    /// the same lines. Each range of slots is in a single line.
    #[inline]
    pub fn lines(&self, home: Home, reach: u64) -> Lines<'_> {
        Lines::from(self.placement, &self.groups, home, reach.min(self.length()))
    }

    /// The home groups of at most 16 consecutive sixteens of file blocks, each as the home of its first block.
    pub fn sixteen_homes(&self, ino: Ino, first: u64, out: &mut [Home]) {
        let mut hashes = [0; BATCH];
        let (hashes, _) = hashes.split_at_mut(out.len());
        hash_run(&self.key, ino.0 as u32, first as u32, hashes);
        for (out, hash) in out.iter_mut().zip(hashes) {
            *out = Groups::home(*hash, self.of_hash(*hash), 0);
        }
    }

    /// The groups of a window from the group of a home on, each by its first place; no groups behind the last window.
    pub fn window(&self, home: Home, window: u64) -> impl Iterator<Item = u64> + Clone + '_ {
        self.groups.window(home, window)
    }

    /// The distance of the preferred slot of the first group of a window; that of the next group is one more.
    #[inline]
    pub fn window_begin(&self, window: u64) -> u64 {
        window * WINDOW_SLOTS
    }

    /// The window in which a search from a home meets a slot of the pool.
    pub fn window_of(&self, home: Home, slot: PmBlock) -> u64 {
        self.groups.window_of(home, slot)
    }

    /// The groups that have slots at a distance below `reach`, in the order of a search: the slots of each that are in the
    /// pool.
    pub fn near_groups(&self, home: Home, reach: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        self.groups.near(home, reach)
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
            Placement::Groups => self.groups.count() * GROUP_SLOTS,
        }
    }

    /// The largest reach that a search may have.
    pub fn most_reach(&self) -> u64 {
        self.length().next_power_of_two()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests;
