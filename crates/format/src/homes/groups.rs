//! The sequence of slots in groups.
//!
//! A group is 16 slots whose first one has a multiple of 16 as its number. The hash of (inode, block / 16) picks a slot of the
//! pool, whose group is the home group, and by its low four bits a shift; the preferred slot of a block is number
//! (block + shift) mod 16 of a group. A search passes the groups from the home group on in their order, the first one behind
//! the last, in windows of 8 groups (the last window has those that are left). In a window come
//! 1. the preferred slots of its groups, in the order of the groups;
//! 2. the other slots of its groups, in the order of the groups, and in each one from the slot behind the preferred slot on,
//!    slot 0 behind slot 15.
//!
//! Distances count on over places of the first and the last group that are no slots of the pool.

use crate::address::PmBlock;
use std::ops::Range;

/// Slots of a group.
pub const GROUP_SLOTS: u64 = 16;
/// Groups of a window: a search tries the preferred slots of so many groups before their other slots.
pub const NEAR_GROUPS: u64 = 8;
/// Distances of a whole window.
pub(super) const WINDOW_SLOTS: u64 = GROUP_SLOTS * NEAR_GROUPS;

/// The groups of a pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Groups {
    /// The first slot of the pool.
    pub first: u64,
    /// The slot behind the last.
    pub end: u64,
}

/// The preferred slot of a block in the group of a slot.
#[inline]
pub(super) fn preferred(slot: PmBlock, hash: u64, block: u64) -> PmBlock {
    PmBlock(slot.0 / GROUP_SLOTS * GROUP_SLOTS + (block + hash) % GROUP_SLOTS)
}

impl Groups {
    /// Groups of the pool.
    #[inline]
    pub fn count(self) -> u64 {
        self.end.div_ceil(GROUP_SLOTS) - self.first / GROUP_SLOTS
    }

    /// The first place of the group that lies so many groups behind that of a home; at most the number of groups.
    #[inline]
    fn group_ahead(self, home: PmBlock, ahead: u64) -> u64 {
        let (first, groups) = (self.first / GROUP_SLOTS, self.count());
        debug_assert!(ahead <= groups, "{ahead} of {groups} groups ahead");
        let group = home.0 / GROUP_SLOTS + ahead;
        GROUP_SLOTS * if group < first + groups { group } else { group - groups }
    }

    /// Groups from that of a home to that of a slot.
    #[inline]
    fn between(self, home: PmBlock, slot: PmBlock) -> u64 {
        let (home, group) = (home.0 / GROUP_SLOTS, slot.0 / GROUP_SLOTS);
        if group >= home { group - home } else { group + self.count() - home }
    }

    /// Groups of the window with a number.
    #[inline]
    pub fn window_groups(self, window: u64) -> u64 {
        self.count().saturating_sub(window * NEAR_GROUPS).min(NEAR_GROUPS)
    }

    /// The distance of a slot of the pool from a home.
    #[inline]
    pub fn distance(self, home: PmBlock, slot: PmBlock) -> u64 {
        let ahead = self.between(home, slot);
        let (window, within) = (ahead / NEAR_GROUPS, ahead % NEAR_GROUPS);
        let behind = (slot.0 % GROUP_SLOTS + GROUP_SLOTS - home.0 % GROUP_SLOTS) % GROUP_SLOTS;
        let begin = window * WINDOW_SLOTS;
        match behind {
            0 => begin + within,
            _ => begin + self.window_groups(window) + within * (GROUP_SLOTS - 1) + behind - 1,
        }
    }

    /// The groups of a window from the group of a home on, each by its first place; no groups behind the last window.
    pub fn window(self, home: PmBlock, window: u64) -> impl Iterator<Item = u64> + Clone {
        let begin = window * NEAR_GROUPS;
        (begin..begin + self.window_groups(window)).map(move |ahead| self.group_ahead(home, ahead))
    }

    /// The window in which a search from a home meets a slot of the pool.
    pub fn window_of(self, home: PmBlock, slot: PmBlock) -> u64 {
        self.between(home, slot) / NEAR_GROUPS
    }

    /// The groups that have slots at a distance below `reach`, in the order of a search: the slots of each that are in the
    /// pool.
    pub fn near(self, home: PmBlock, reach: u64) -> impl Iterator<Item = Range<u64>> {
        let is_near = move |ahead: &u64| ahead / NEAR_GROUPS * WINDOW_SLOTS + ahead % NEAR_GROUPS < reach;
        (0..self.count()).take_while(is_near).map(move |ahead| self.slots_from(home, ahead, 0, GROUP_SLOTS))
    }

    /// The slots of the pool among `count` places of a group ahead, from place `from` on.
    #[inline]
    pub fn slots_from(self, home: PmBlock, ahead: u64, from: u64, count: u64) -> Range<u64> {
        let begin = self.group_ahead(home, ahead) + from;
        let begin_in = begin.max(self.first);
        begin_in..(begin + count).min(self.end).max(begin_in)
    }
}
