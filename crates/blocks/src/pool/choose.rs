//! The choice of a promised block, where file blocks have homes: a file block gets the first free slot of its sequence.
//!
//! Invariants:
//! 1. A promised block is free and known as free, so every search for a slot ends with a slot (I9).
//! 2. No free slot of the pool is nearer to the home than the chosen slot.
//!
//! Groups that the scan after the mount has not come to are read here.
//!
//! A block that is overwritten again and again leaves quarantined slots in front of its sequence. A choice that has passed 32
//! of them moves the checkpoint, which makes them free, and is made again, once. The caller may hold inodes and catalog
//! shards, and has drawn no LSN: a checkpoint waits for no transaction, this one is left to a thread that moves it already,
//! and it takes no lock but those of lanes, which come last. The allocator's lock is not held meanwhile; the promise is.

use super::{BlockPool, Hashed, Known, Space, Target};
use crate::descriptor::State;
use terrace_format::PmBlock;
use terrace_format::homes::{GROUP_SLOTS, Home, Placement};

/// Groups that a search for an empty group looks at.
const GROUPS_LOOKED_AT: usize = 8;
/// Quarantined slots that a choice passes before it moves the checkpoint.
const CROWDED_SLOTS: usize = 32;
/// Far choices of which the last looks at the slots that it has passed: a look takes as long as a choice.
const JUDGED_CHOICES: u32 = 8;
/// Distance to which passed slots are looked at, at most the slots of a window: beyond it most are in use.
const MOST_JUDGED_SLOTS: u64 = 256;
/// Windows of groups that a search walks. Where all of them are full, few slots of the pool are free, and the search compares
/// these.
const WALKED_WINDOWS: u64 = 64;

impl BlockPool {
    /// Takes a promised block: of a file block the first free slot of its sequence, of a page the next in a group of
    /// pages.
    pub(super) fn choose(&self, target: Target) -> Option<PmBlock> {
        let hashed = self.hashed.as_ref()?;
        let mut space = self.space.lock();
        let bit = match target {
            Target::File { ino, block } => {
                let home = hashed.homes.home(ino, block);
                let mut chosen = choose_from(self, hashed, &mut space, home);
                let judged = chosen.filter(|slot| is_to_judge(&mut space, slot.distance));
                if judged.is_some_and(|slot| is_crowded(self, hashed, home, slot.distance)) {
                    drop(space);
                    // Without it the choice made is as good as any.
                    self.wal.checkpoint_at_leisure().ok();
                    space = self.space.lock();
                    self.drain(&mut space);
                    chosen = choose_from(self, hashed, &mut space, home);
                }
                chosen.map(|slot| {
                    hashed.note_distance(slot.distance);
                    slot.bit
                })
            }
            Target::Page => choose_page(self, hashed, &mut space),
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
}

/// A free slot and its distance from the home.
#[derive(Debug, Clone, Copy)]
struct Slot {
    bit: u64,
    distance: u64,
}

impl Slot {
    fn at(hashed: &Hashed, home: Home, bit: u64) -> Slot {
        Slot { bit, distance: hashed.homes.distance(home, PmBlock(bit)) }
    }
}

/// Whether a choice at a distance looks at the slots in front of it: each eighth far choice does.
fn is_to_judge(space: &mut Space, distance: u64) -> bool {
    if distance < CROWDED_SLOTS as u64 {
        return false;
    }
    space.far_choices = space.far_choices.wrapping_add(1);
    space.far_choices.is_multiple_of(JUDGED_CHOICES)
}

/// Whether 32 slots in front of the slot at a distance wait for the checkpoint.
fn is_crowded(pool: &BlockPool, hashed: &Hashed, home: Home, distance: u64) -> bool {
    let waits = |slot: &u64| pool.descriptor(PmBlock(*slot)).state() == State::Quarantined;
    let is_enough =
        |waiting: &mut dyn Iterator<Item = u64>| waiting.take(CROWDED_SLOTS).count() == CROWDED_SLOTS;
    let judged = distance.min(MOST_JUDGED_SLOTS);
    match hashed.homes.placement() {
        Placement::Linear => {
            let (first, end) = (pool.first.0, pool.count);
            let passed = (home.slot.0..home.slot.0 + judged)
                .map(|slot| if slot < end { slot } else { slot - end + first });
            is_enough(&mut passed.filter(waits))
        }
        Placement::Groups => {
            let (groups, preferred) = (hashed.homes.window(home, 0), home.slot.0 % GROUP_SLOTS);
            let others = groups.clone().flat_map(|group| {
                (1..GROUP_SLOTS).map(move |behind| group + (preferred + behind) % GROUP_SLOTS)
            });
            let passed = groups.map(|group| group + preferred).chain(others).take(judged as usize);
            is_enough(&mut passed.filter(waits))
        }
    }
}

/// The first free slot of the sequence of a home.
fn choose_from(pool: &BlockPool, hashed: &Hashed, space: &mut Space, home: Home) -> Option<Slot> {
    match hashed.homes.placement() {
        Placement::Linear => {
            choose_linear(pool, hashed, space, home.slot.0).map(|bit| Slot::at(hashed, home, bit))
        }
        Placement::Groups => choose_in_groups(pool, hashed, space, home),
    }
}

fn choose_linear(pool: &BlockPool, hashed: &Hashed, space: &mut Space, home: u64) -> Option<u64> {
    if hashed.known() == Known::Part {
        let (first, last) = (home / GROUP_SLOTS, (pool.count - 1) / GROUP_SLOTS);
        for group in (first..=last).chain(pool.first.0 / GROUP_SLOTS..=first) {
            let begin = group * GROUP_SLOTS;
            pool.learn_group(space, begin);
            let from = if group == first { home } else { begin };
            if let Some(bit) = (from..begin + GROUP_SLOTS).find(|bit| space.free.contains(*bit)) {
                return Some(bit);
            }
        }
    }
    space.free.first_from(home).or_else(|| space.free.first_from(pool.first.0))
}

/// The first free preferred slot of a window of groups, else the first free slot of these groups, else of the next window.
fn choose_in_groups(pool: &BlockPool, hashed: &Hashed, space: &mut Space, home: Home) -> Option<Slot> {
    let (homes, preferred) = (&hashed.homes, home.slot.0 % GROUP_SLOTS);
    let is_read = hashed.known() != Known::Part;
    let mut window = 0;
    loop {
        if is_read && window == WALKED_WINDOWS {
            return nearest_free(hashed, space, home);
        }
        let groups = homes.window(home, window);
        let mut is_over = true;
        for (distance, group) in (hashed.homes.window_begin(window)..).zip(groups.clone()) {
            if !is_read {
                pool.learn_group(space, group);
            }
            if space.free.contains(group + preferred) {
                return Some(Slot { bit: group + preferred, distance });
            }
            is_over = false;
        }
        if is_over {
            return None;
        }
        for group in groups {
            let free = space.free.sixteen(group).rotate_right(preferred as u32);
            if free != 0 {
                let bit = group + (preferred + u64::from(free.trailing_zeros())) % GROUP_SLOTS;
                return Some(Slot::at(hashed, home, bit));
            }
        }
        window += 1;
    }
}

/// Pages fill groups of 16 blocks at hashed places: put lowest first they would be one long cluster, which every
/// search with a home there passes.
fn choose_page(pool: &BlockPool, hashed: &Hashed, space: &mut Space) -> Option<u64> {
    let (next, end) = space.page_group;
    if let Some(bit) = (next..end).find(|bit| space.free.contains(*bit)) {
        space.page_group.0 = bit + 1;
        return Some(bit);
    }
    for _ in 0..GROUPS_LOOKED_AT {
        let number = space.page_groups;
        space.page_groups += 1;
        let group = hashed.homes.page_home(number).slot.0 / GROUP_SLOTS * GROUP_SLOTS;
        pool.learn_group(space, group);
        if space.free.has_sixteen(group) {
            space.page_group = (group + 1, group + GROUP_SLOTS);
            return Some(group);
        }
    }
    let home = hashed.homes.page_home(space.page_groups);
    choose_from(pool, hashed, space, home).map(|slot| slot.bit)
}

/// The free slot with the least distance, where free slots are so few that none is in the first windows.
fn nearest_free(hashed: &Hashed, space: &mut Space, home: Home) -> Option<Slot> {
    let (mut from, mut nearest) = (0, None::<Slot>);
    while let Some(bit) = space.free.first_from(from) {
        let slot = Slot::at(hashed, home, bit);
        if nearest.is_none_or(|nearest| slot.distance < nearest.distance) {
            nearest = Some(slot);
        }
        from = bit + 1;
    }
    nearest
}
