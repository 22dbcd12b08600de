//! The lines of the block table in the order of a search.
//!
//! Invariant: lines that hold no slot of the pool are left out, so each range has a slot.

use super::groups::{GROUP_SLOTS, Groups, Home, NEAR_GROUPS, WINDOW_SLOTS};
use crate::address::LINE_SIZE;
use crate::table::TABLE_ENTRY_SIZE;
use std::ops::Range;

/// Entries in a line of the block table.
const LINE_ENTRIES: u64 = LINE_SIZE / TABLE_ENTRY_SIZE;
/// Lines of a group.
const GROUP_LINES: u64 = GROUP_SLOTS / LINE_ENTRIES;

/// The order of the slots that a search passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Slot after slot; the first slot of the pool follows the last.
    Linear,
    /// Groups of 16 slots, and in each of them the same preferred slot first.
    Groups,
}

/// The lines that a search reads, each as the slots in it.
#[derive(Debug, Clone)]
pub struct Lines<'a> {
    placement: Placement,
    pool: &'a Groups,
    home: Home,
    reach: u64,
    /// Linear: the next distance. In groups: lines passed in all windows so far, those of a whole window counted for each.
    at: u64,
}

impl<'a> Lines<'a> {
    /// The lines of a search; `reach` is at most the length of the sequence.
    #[inline]
    pub(super) fn from(placement: Placement, pool: &'a Groups, home: Home, reach: u64) -> Lines<'a> {
        Lines { placement, pool, home, reach, at: 0 }
    }

    /// The places of the next line: slots in a row, to the end of the line, the pool or the reach.
    #[inline]
    fn next_linear(&mut self) -> Option<Range<u64>> {
        if self.at >= self.reach {
            return None;
        }
        let (pool, slot) = (self.pool, self.home.slot.0 + self.at);
        let slot = if slot < pool.end { slot } else { slot - pool.end + pool.first };
        let count = (LINE_ENTRIES - slot % LINE_ENTRIES).min(pool.end - slot).min(self.reach - self.at);
        self.at += count;
        Some(slot..slot + count)
    }

    /// In each window the lines with the preferred slots, then the other lines of each group.
    fn next_in_groups(&mut self) -> Option<Range<u64>> {
        const WINDOW_LINES: u64 = NEAR_GROUPS * GROUP_LINES;
        let preferred = self.home.slot.0 % GROUP_SLOTS / LINE_ENTRIES;
        loop {
            let (window, step) = (self.at / WINDOW_LINES, self.at % WINDOW_LINES);
            let (begin, count) = (window * WINDOW_SLOTS, self.pool.window_groups(window));
            // The least distance of a slot that was not in an earlier line.
            let (within, line, distance) = match step.checked_sub(NEAR_GROUPS) {
                None => (step, preferred, begin + step),
                Some(rest) => {
                    let (within, line) = (rest / (GROUP_LINES - 1), rest % (GROUP_LINES - 1));
                    let distance = begin + count + within * (GROUP_SLOTS - 1);
                    (within, (preferred + 1 + line) % GROUP_LINES, distance)
                }
            };
            if count == 0 || begin >= self.reach {
                return None;
            }
            if within >= count || distance >= self.reach {
                // The rest of this pass over the window has nothing that is near enough.
                let pass_end = if step < NEAR_GROUPS { NEAR_GROUPS } else { WINDOW_LINES };
                self.at = window * WINDOW_LINES + pass_end;
                continue;
            }
            self.at += 1;
            let ahead = window * NEAR_GROUPS + within;
            let slots = self.pool.slots_from(self.home, ahead, line * LINE_ENTRIES, LINE_ENTRIES);
            if !slots.is_empty() {
                return Some(slots);
            }
        }
    }
}

impl Iterator for Lines<'_> {
    type Item = Range<u64>;

    #[inline]
    fn next(&mut self) -> Option<Range<u64>> {
        match self.placement {
            Placement::Linear => self.next_linear(),
            Placement::Groups => self.next_in_groups(),
        }
    }
}
