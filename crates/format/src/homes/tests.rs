//! Homes and sequences of both placements.

use super::*;
use crate::table::TABLE_ENTRY_SIZE;
use std::collections::BTreeSet;

const LINE_ENTRIES: u64 = 64 / TABLE_ENTRY_SIZE;

/// The slot at a distance in groups, as the page docs/format.md defines it; `None` outside of the pool.
fn slot_in_groups(homes: &Homes, home: Home, distance: u64) -> Option<PmBlock> {
    let (first, end) = (homes.first, homes.first + homes.slots);
    let groups: Vec<u64> = (first / 16..end.div_ceil(16)).collect();
    let begin = groups.iter().position(|group| *group == home.slot.0 / 16).unwrap();
    let is_prime = |number: &u64| (2..*number).all(|factor| !number.is_multiple_of(factor));
    let mut strides = (11..).filter(is_prime).filter(|prime| !(groups.len() as u64).is_multiple_of(*prime));
    let stride = strides.nth(home.stride.into()).unwrap() as usize;
    let order: Vec<u64> =
        (0..groups.len()).map(|turn| groups[(begin + turn * stride) % groups.len()]).collect();
    let mut sequence = Vec::new();
    for window in order.chunks(16) {
        sequence.extend(window.iter().map(|group| group * 16 + home.slot.0 % 16));
        for group in window {
            sequence.extend((1..16).map(|behind| group * 16 + (home.slot.0 + behind) % 16));
        }
    }
    let slot = *sequence.get(distance as usize)?;
    (first..end).contains(&slot).then_some(PmBlock(slot))
}

/// A home by its parts.
fn home_at(slot: u64, stride: u8) -> Home {
    Home { slot: PmBlock(slot), stride }
}

#[test]
fn a_run_has_the_homes_of_its_blocks_spread_over_the_pool() {
    let homes = Homes::with([3; 16], Placement::Linear, PmBlock(19), PmBlock(519));
    let mut taken = [0; 500];
    for first in (5..1005).step_by(10) {
        let mut run = [home_at(0, 0); 10];
        homes.homes(Ino(7), FileBlock(first), &mut run);
        for (block, home) in (first..).zip(run) {
            assert_eq!(home, homes.home(Ino(7), FileBlock(block)));
            taken[home.slot.0 as usize - 19] += 1;
        }
    }
    assert!(taken.iter().filter(|count| **count == 0).count() < 120, "{taken:?}");
    assert!(taken.iter().all(|count| *count < 12), "{taken:?}");
    let home = home_at(510, 0);
    assert_eq!((homes.distance(home, PmBlock(512)), homes.distance(home, PmBlock(20))), (2, 10));
    let lines: Vec<_> = homes.lines(home, 12).collect();
    assert_eq!(lines, [510..512, 512..516, 516..519, 19..20, 20..22]);
}

#[test]
fn sixteen_blocks_have_the_slots_of_a_group_and_inodes_different_shifts() {
    let homes = Homes::with([3; 16], Placement::Groups, PmBlock(19), PmBlock(519));
    let (mut groups, mut shifts, mut strides) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for ino in 1..200 {
        let mut run = [home_at(0, 0); 16];
        homes.homes(Ino(ino), FileBlock(160), &mut run);
        let first = run[0].slot.0;
        let in_order: BTreeSet<u64> = run.iter().map(|home| home.slot.0).collect();
        assert_eq!(in_order, (first / 16 * 16..first / 16 * 16 + 16).collect());
        for (block, home) in (160..).zip(run) {
            assert_eq!((home.slot.0 % 16, home.stride), ((first + block) % 16, run[0].stride));
            assert_eq!(home, homes.home(Ino(ino), FileBlock(block)));
        }
        let mut sixteens = [home_at(0, 0); 3];
        homes.sixteen_homes(Ino(ino), 8, &mut sixteens);
        assert_eq!(sixteens[2], run[0]);
        groups.insert(first / 16);
        shifts.insert(first % 16);
        strides.insert(run[0].stride);
    }
    // The first group has 13 slots, the last one 7.
    assert_eq!((groups.len(), groups.first(), groups.last()), (32, Some(&1), Some(&32)));
    assert_eq!((shifts.len(), strides.len()), (16, 16));
}

/// Pools that begin and end inside of a group, of few groups, and of a single one.
#[test]
fn a_sequence_has_each_slot_once_and_lines_reach_as_far_as_asked() {
    let pools = [
        (19, 519),
        (32, 64),
        (17, 18),
        (31, 33),
        (19, 30),
        (16, 16 * 9),
        (47, 16 * 11),
        (5, 700),
        (0, 16 * 11 * 13),
    ];
    for (first, end) in pools {
        for placement in [Placement::Linear, Placement::Groups] {
            let homes = Homes::with([5; 16], placement, PmBlock(first), PmBlock(end));
            for block in 0..40 {
                judge_sequence(&homes, homes.home(Ino(9), FileBlock(block * 7)));
            }
        }
    }
}

fn judge_sequence(homes: &Homes, home: Home) {
    let length = homes.length();
    assert!(length <= homes.most_reach() && length < homes.slots() + 32);
    let mut distances = BTreeSet::new();
    for slot in (homes.first..homes.first + homes.slots).map(PmBlock) {
        let distance = homes.distance(home, slot);
        assert!(distance < length && distances.insert(distance), "{homes:?}: {slot} from {home}");
        if homes.placement() == Placement::Groups {
            assert_eq!(slot_in_groups(homes, home, distance), Some(slot), "{homes:?}: {home}");
        }
    }
    for reach in [0, 1, 2, 15, 16, 17, 31, 64, 255, 256, 257, length, u64::MAX] {
        let lines: Vec<_> = homes.lines(home, reach).collect();
        let passed: BTreeSet<u64> = lines.iter().cloned().flatten().collect();
        assert_eq!(passed.len(), lines.iter().map(|line| line.clone().count()).sum::<usize>(), "{lines:?}");
        for line in &lines {
            assert!(
                !line.is_empty() && line.start / LINE_ENTRIES == (line.end - 1) / LINE_ENTRIES,
                "{line:?}"
            );
            assert!(
                (homes.first..homes.first + homes.slots).contains(&line.start)
                    && line.end <= (homes.first..homes.first + homes.slots).end,
                "{line:?}"
            );
            // Not more than the rest of a window is read for nothing.
            let nearest = line.clone().map(|slot| homes.distance(home, PmBlock(slot))).min().unwrap();
            let window = if homes.placement() == Placement::Linear { 0 } else { 256 };
            assert!(nearest < reach.saturating_add(window), "{nearest} at reach {reach}");
        }
        let near = (homes.first..homes.first + homes.slots)
            .filter(|slot| homes.distance(home, PmBlock(*slot)) < reach);
        assert!(near.clone().all(|slot| passed.contains(&slot)), "{homes:?}: {home}, reach {reach}");
        if homes.placement() == Placement::Groups {
            let groups: BTreeSet<u64> = homes.near_groups(home, reach).flatten().collect();
            assert!(near.clone().all(|slot| groups.contains(&slot)), "{homes:?}: {home}, reach {reach}");
            let windows = (0..).map(|window| homes.window(home, window).collect::<Vec<_>>());
            let windows: Vec<_> = windows.take_while(|groups| !groups.is_empty()).collect();
            for slot in homes.first..homes.first + homes.slots {
                let window = homes.window_of(home, PmBlock(slot)) as usize;
                assert!(windows[window].contains(&(slot / 16 * 16)), "{slot} from {home}: {windows:?}");
            }
        }
    }
}

/// The vectors of docs/format.md: first block 19, end 519, key 00 01 … 0f.
#[test]
fn homes_of_the_format_page() {
    let key = std::array::from_fn(|byte| byte as u8);
    let linear = Homes::with(key, Placement::Linear, PmBlock(19), PmBlock(519));
    let groups = Homes::with(key, Placement::Groups, PmBlock(19), PmBlock(519));
    let found: Vec<_> = [(1, 0), (1, 1), (1, 16), (2, 0x1234_5678), (0x7fff_feff, 255)]
        .map(|(ino, block)| {
            let (ino, block) = (Ino(ino), FileBlock(block));
            let home = groups.home(ino, block);
            (linear.home(ino, block).slot.0, home.slot.0, home.stride, groups.distance(home, PmBlock(100)))
        })
        .into();
    assert_eq!(
        found,
        [(132, 140, 8, 233), (188, 141, 8, 232), (286, 177, 13, 379), (426, 18, 15, 318), (87, 186, 9, 296)]
    );
}
