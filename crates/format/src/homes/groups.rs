//! The sequence of slots in groups.
//!
//! A group is 16 slots whose first one has a multiple of 16 as its number. The hash h of (inode, block / 16) picks a slot of the
//! pool, whose group is the home group. By its low four bits it shifts the preferred slot: number (block + h) mod 16 of any
//! group. By the next four bits it picks a stride, a prime that does not divide the number of groups: a search goes on with the
//! group so many groups ahead, behind the last group from the first one on, and meets each group once. It takes the groups in
//! windows of 16 (the last window has the groups that are left). In a window come
//! 1. the preferred slots of its groups, in the order of the groups;
//! 2. the other slots of its groups, in the order of the groups, and in each one from the slot behind the preferred slot on,
//!    slot 0 behind slot 15.
//!
//! The strides keep files whose groups are full apart: with the next group for all of them full groups would grow together.
//! Distances count on over places of the first and the last group that are no slots of the pool.

use crate::address::PmBlock;
use std::fmt;
use std::ops::Range;

/// Slots of a group.
pub const GROUP_SLOTS: u64 = 16;
/// Groups of a window: a search tries the preferred slots of so many groups before their other slots.
pub const NEAR_GROUPS: u64 = 16;
/// Distances of a whole window.
pub(super) const WINDOW_SLOTS: u64 = GROUP_SLOTS * NEAR_GROUPS;
/// Strides of a pool.
const STRIDES: usize = 16;
/// Primes for strides. Fewer than ten of them divide a number of groups, which has 28 bits.
const PRIMES: [u64; 26] = [
    11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109,
    113,
];

/// The beginning of a search: a slot, and the stride by which it goes on where slots are in groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Home {
    /// The first slot of the search; in groups it may lie beside the pool, in its first or last group.
    pub slot: PmBlock,
    pub(super) stride: u8,
}

impl fmt::Display for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.slot.fmt(f)
    }
}

/// Groups that a search goes ahead, and the inverse of that number modulo the number of groups.
#[derive(Debug, Clone, Copy, Default)]
struct Stride {
    ahead: u64,
    inverse: u64,
}

/// The groups of a pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Groups {
    /// The first slot of the pool.
    pub first: u64,
    /// The slot behind the last.
    pub end: u64,
    strides: [Stride; STRIDES],
}

/// The inverse of a number modulo another, which have no common factor; 0 modulo 1.
fn inverse(number: u64, modulo: u64) -> u64 {
    let (mut before, mut rest) = (modulo as i64, (number % modulo) as i64);
    let (mut factor_before, mut factor) = (0, 1);
    while rest != 0 {
        let times = before / rest;
        (before, rest) = (rest, before - times * rest);
        (factor_before, factor) = (factor, factor_before - times * factor);
    }
    factor_before.rem_euclid(modulo as i64) as u64
}

impl Groups {
    pub fn new(first: u64, end: u64) -> Groups {
        let mut groups = Groups { first, end, strides: [Stride::default(); STRIDES] };
        let count = groups.count();
        let primes = PRIMES.into_iter().filter(|prime| !count.is_multiple_of(*prime));
        for (stride, prime) in groups.strides.iter_mut().zip(primes) {
            *stride = Stride { ahead: prime % count, inverse: inverse(prime, count) };
            assert!(stride.ahead * stride.inverse % count == 1 % count, "{stride:?} of {count} groups");
        }
        groups
    }

    /// Groups of the pool.
    #[inline]
    pub fn count(&self) -> u64 {
        self.end.div_ceil(GROUP_SLOTS) - self.first / GROUP_SLOTS
    }

    /// The home of a block by its hash and the slot that the hash picks.
    #[inline]
    pub fn home(hash: u64, slot: PmBlock, block: u64) -> Home {
        let slot = PmBlock(slot.0 / GROUP_SLOTS * GROUP_SLOTS + (block + hash) % GROUP_SLOTS);
        Home { slot, stride: (hash >> 4) as u8 % STRIDES as u8 }
    }

    #[inline]
    fn stride(&self, home: Home) -> Stride {
        self.strides.get(usize::from(home.stride)).copied().unwrap_or_default()
    }

    /// The first place of the group that a search from a home meets after so many others.
    #[inline]
    fn group_ahead(&self, home: Home, ahead: u64) -> u64 {
        if ahead == 0 {
            return home.slot.0 / GROUP_SLOTS * GROUP_SLOTS;
        }
        let first = self.first / GROUP_SLOTS;
        let group = home.slot.0 / GROUP_SLOTS - first + ahead * self.stride(home).ahead;
        (first + group % self.count()) * GROUP_SLOTS
    }

    /// Groups that a search from a home meets before that of a slot.
    #[inline]
    fn between(&self, home: Home, slot: PmBlock) -> u64 {
        let (home_group, group) = (home.slot.0 / GROUP_SLOTS, slot.0 / GROUP_SLOTS);
        if group == home_group {
            return 0;
        }
        let (count, stride) = (self.count(), self.stride(home));
        let groups = if group > home_group { group - home_group } else { group + count - home_group };
        // The group that most blocks lie in that are not in their home group.
        if groups == stride.ahead {
            return 1;
        }
        groups * stride.inverse % count
    }

    /// Groups of the window with a number.
    #[inline]
    pub fn window_groups(&self, window: u64) -> u64 {
        self.count().saturating_sub(window * NEAR_GROUPS).min(NEAR_GROUPS)
    }

    /// The distance of a slot of the pool from a home.
    #[inline]
    pub fn distance(&self, home: Home, slot: PmBlock) -> u64 {
        let ahead = self.between(home, slot);
        let (window, within) = (ahead / NEAR_GROUPS, ahead % NEAR_GROUPS);
        let behind = (slot.0 % GROUP_SLOTS + GROUP_SLOTS - home.slot.0 % GROUP_SLOTS) % GROUP_SLOTS;
        let begin = window * WINDOW_SLOTS;
        match behind {
            0 => begin + within,
            _ => begin + self.window_groups(window) + within * (GROUP_SLOTS - 1) + behind - 1,
        }
    }

    /// The groups of a window of a search from a home, each by its first place; no groups behind the last window.
    pub fn window(&self, home: Home, window: u64) -> impl Iterator<Item = u64> + Clone + '_ {
        let (begin, end) = (self.first / GROUP_SLOTS * GROUP_SLOTS, self.end.next_multiple_of(GROUP_SLOTS));
        let ahead = self.stride(home).ahead * GROUP_SLOTS;
        let first = self.group_ahead(home, window * NEAR_GROUPS);
        let next = move |group: &u64| {
            let group = group + ahead;
            Some(if group < end { group } else { group - end + begin })
        };
        std::iter::successors(Some(first), next).take(self.window_groups(window) as usize)
    }

    /// The window in which a search from a home meets a slot of the pool.
    pub fn window_of(&self, home: Home, slot: PmBlock) -> u64 {
        self.between(home, slot) / NEAR_GROUPS
    }

    /// The groups that have slots at a distance below `reach`, in the order of a search: the slots of each that are in the
    /// pool.
    pub fn near(&self, home: Home, reach: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let is_near = move |ahead: &u64| ahead / NEAR_GROUPS * WINDOW_SLOTS + ahead % NEAR_GROUPS < reach;
        (0..self.count()).take_while(is_near).map(move |ahead| self.slots_from(home, ahead, 0, GROUP_SLOTS))
    }

    /// The slots of the pool among `count` places of a group ahead, from place `from` on.
    #[inline]
    pub fn slots_from(&self, home: Home, ahead: u64, from: u64, count: u64) -> Range<u64> {
        let begin = self.group_ahead(home, ahead) + from;
        let begin_in = begin.max(self.first);
        begin_in..(begin + count).min(self.end).max(begin_in)
    }
}
