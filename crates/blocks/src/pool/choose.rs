//! The choice of a promised block, where file blocks have homes: a file block gets the first free slot of its sequence.
//!
//! Invariants:
//! 1. A promised block is free and known as free, so every search for a slot ends with a slot (I9).
//! 2. No free slot of the pool is nearer to the home than the chosen slot.
//!
//! Groups that the scan after the mount has not come to are read here. The allocator's lock is held throughout.

use super::{BlockPool, Hashed, Known, Space, Target};
use terrace_format::PmBlock;
use terrace_format::homes::{GROUP_SLOTS, Placement};

/// Groups that a search for an empty group looks at.
const GROUPS_LOOKED_AT: usize = 8;

impl BlockPool {
    /// Takes a promised block: of a file block the first free slot of its sequence, of a page the next in a group of
    /// pages.
    pub(super) fn choose(&self, target: Target) -> Option<PmBlock> {
        let hashed = self.hashed.as_ref()?;
        let mut space = self.space.lock();
        let bit = match target {
            Target::File { ino, block } => {
                self.choose_from(hashed, &mut space, hashed.homes.home(ino, block))
            }
            Target::Page => self.choose_page(hashed, &mut space),
        };
        assert!(space.promised > 0, "a block is taken that was not promised (P1)");
        space.promised -= 1;
        assert!(
            bit.is_none_or(|bit| (self.first.0..self.count).contains(&bit)),
            "{bit:?} is no block of the pool"
        );
        let bit = bit.filter(|bit| space.free.take(*bit));
        debug_assert!(bit.is_some(), "no block is free, {} are promised (P1)", space.promised + 1);
        self.tell_free(&space);
        drop(space);
        let block = PmBlock(bit?);
        self.use_claimed(block);
        Some(block)
    }

    /// The first free slot of the sequence of a home.
    fn choose_from(&self, hashed: &Hashed, space: &mut Space, home: PmBlock) -> Option<u64> {
        match hashed.homes.placement() {
            Placement::Linear => self.choose_linear(hashed, space, home.0),
            Placement::Groups => self.choose_in_groups(hashed, space, home),
        }
    }

    fn choose_linear(&self, hashed: &Hashed, space: &mut Space, home: u64) -> Option<u64> {
        if hashed.known() == Known::Part {
            let (first, last) = (home / GROUP_SLOTS, (self.count - 1) / GROUP_SLOTS);
            for group in (first..=last).chain(self.first.0 / GROUP_SLOTS..=first) {
                let begin = group * GROUP_SLOTS;
                self.learn_group(space, begin);
                let from = if group == first { home } else { begin };
                if let Some(bit) = (from..begin + GROUP_SLOTS).find(|bit| space.free.contains(*bit)) {
                    return Some(bit);
                }
            }
        }
        space.free.first_from(home).or_else(|| space.free.first_from(self.first.0))
    }

    /// The first free preferred slot of a window of groups, else the first free slot of these groups, else of the next window.
    fn choose_in_groups(&self, hashed: &Hashed, space: &mut Space, home: PmBlock) -> Option<u64> {
        let (homes, preferred) = (&hashed.homes, home.0 % GROUP_SLOTS);
        let is_read = hashed.known() != Known::Part;
        let mut window = 0;
        loop {
            let groups = homes.window(home, window);
            let mut behind = None;
            for group in groups.clone() {
                if !is_read {
                    self.learn_group(space, group);
                }
                if space.free.contains(group + preferred) {
                    return Some(group + preferred);
                }
                behind = Some(group + GROUP_SLOTS);
            }
            // Behind the last window.
            let behind = behind?;
            for group in groups {
                let free = space.free.sixteen(group).rotate_right(preferred as u32);
                if free != 0 {
                    return Some(group + (preferred + u64::from(free.trailing_zeros())) % GROUP_SLOTS);
                }
            }
            window += 1;
            if is_read {
                // Windows without a free slot are passed.
                let next = space.free.first_from(behind).or_else(|| space.free.first_from(self.first.0))?;
                let next = homes.window_of(home, PmBlock(next));
                assert!(next >= window, "window {next} from {home} was passed and has a free slot");
                window = next;
            }
        }
    }

    /// Pages fill groups of 16 blocks at hashed places: put lowest first they would be one long cluster, which every
    /// search with a home there passes.
    fn choose_page(&self, hashed: &Hashed, space: &mut Space) -> Option<u64> {
        let (next, end) = space.page_group;
        if let Some(bit) = (next..end).find(|bit| space.free.contains(*bit)) {
            space.page_group.0 = bit + 1;
            return Some(bit);
        }
        for _ in 0..GROUPS_LOOKED_AT {
            let number = space.page_groups;
            space.page_groups += 1;
            let group = hashed.homes.page_home(number).0 / GROUP_SLOTS * GROUP_SLOTS;
            self.learn_group(space, group);
            if space.free.has_sixteen(group) {
                space.page_group = (group + 1, group + GROUP_SLOTS);
                return Some(group);
            }
        }
        let home = hashed.homes.page_home(space.page_groups);
        self.choose_from(hashed, space, home)
    }
}
