//! The volatile space of lower tiers: promises, totals, devices left out, and the accounts that simulators judge by.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

#[path = "../../catalog/tests/common/mod.rs"]
mod common;

use common::{VecPm, apply, format, mount, pool_of_chunks};
use std::sync::Arc;
use terrace_catalog::{Catalog, DeviceRun, chunks};
use terrace_format::keys::Key;
use terrace_format::{DeviceBlock, DeviceId, Lsn};
use terrace_media::PmMedium;
use terrace_space::{ChunkAccounts, ChunkSpace};

/// Blocks of a chunk in the pools of these tests.
const CHUNK: u64 = 16;
/// Two devices behind their headers: four chunks; three of which the last is short.
const SIZES: [(DeviceId, u64); 2] = [(DeviceId(0), 1 + 4 * CHUNK), (DeviceId(1), 1 + 2 * CHUNK + 5)];
const BOTH: [DeviceId; 2] = [DeviceId(0), DeviceId(1)];

fn pool() -> (Arc<Catalog>, Arc<ChunkSpace>) {
    let pm: Arc<dyn PmMedium> = VecPm::new(4 << 20);
    format(&pm);
    let catalog = Arc::new(mount(&pm).unwrap());
    assert_eq!(u64::from(catalog.wal().geometry().chunk_blocks), CHUNK);
    let space = ChunkSpace::new(Arc::clone(&catalog), &SIZES);
    (catalog, space)
}

fn run(device: u8, start: u64, length: u64) -> DeviceRun {
    DeviceRun { device: DeviceId(device), start: DeviceBlock(start), length }
}

fn mark(catalog: &Catalog, run: DeviceRun, used: bool) -> Lsn {
    let mut lsn = Lsn(0);
    apply(catalog, &chunks::shards(catalog, run), |guard, tx| {
        lsn = catalog.wal().next_lsn();
        chunks::mark(guard, tx, run, used)
    })
    .unwrap();
    lsn
}

fn singles(runs: &[DeviceRun]) -> Vec<DeviceRun> {
    let single = |of: &DeviceRun| {
        let device = of.device;
        (of.start.0..of.start.0 + of.length).map(move |start| DeviceRun {
            device,
            start: DeviceBlock(start),
            length: 1,
        })
    };
    runs.iter().flat_map(single).collect()
}

#[test]
fn accounts_of_space_at_rest_are_empty() {
    let (catalog, space) = pool();
    mark(&catalog, run(0, 20, 3), true);
    assert_eq!(space.accounts(), ChunkAccounts::default(), "nothing is loaded");
    assert!(!space.is_loaded());
    assert_eq!(space.totals(&BOTH).unwrap().free, 4 * CHUNK + 2 * CHUNK + 5 - 3);
    assert!(space.is_loaded());
    assert_eq!(space.accounts(), ChunkAccounts::default());
    let claimed = space.allocate(&BOTH, 7).unwrap().unwrap();
    mark(&catalog, claimed, true);
    let rest: Vec<DeviceRun> = std::iter::from_fn(|| space.allocate(&[DeviceId(1)], 16).unwrap()).collect();
    assert!(rest.iter().any(|run| run.start.0 + run.length == SIZES[1].1), "the short chunk too");
    rest.iter().for_each(|run| _ = mark(&catalog, *run, true));
    assert_eq!(space.accounts(), ChunkAccounts::default());
    let freed = rest[0];
    let lsn = mark(&catalog, freed, false);
    space.freed(freed, lsn);
    assert_eq!(space.accounts(), ChunkAccounts::default());
}

#[test]
fn accounts_list_claims_without_marks_and_marks_without_claims() {
    let (catalog, space) = pool();
    let claims = [space.allocate(&[DeviceId(0)], 3), space.allocate(&[DeviceId(1)], 16)];
    let claims = claims.map(|claim| claim.unwrap().unwrap());
    space.totals(&BOTH).unwrap();
    let accounts = space.accounts();
    assert_eq!(accounts, ChunkAccounts { claimed: singles(&claims), ..ChunkAccounts::default() });
    claims.iter().for_each(|run| space.release_claim(*run));
    let marked = [run(0, 33, 2), run(1, 33, 5)];
    marked.iter().for_each(|run| _ = mark(&catalog, *run, true));
    let accounts = space.accounts();
    assert_eq!(accounts, ChunkAccounts { given: singles(&marked), ..ChunkAccounts::default() });
}

#[test]
fn accounts_list_io_pins_and_promised_blocks() {
    let (_catalog, space) = pool();
    let pins = vec![run(0, 4, 2), run(1, 9, 1)];
    let held: Vec<_> = pins.iter().map(|run| space.pin(*run)).collect();
    assert!(space.reserve(5).unwrap());
    assert_eq!(space.accounts(), ChunkAccounts { pins, reserved: 5, ..ChunkAccounts::default() });
    drop(held);
    space.unreserve(5);
    assert_eq!(space.accounts(), ChunkAccounts::default());
}

#[test]
fn promised_blocks_are_refused_to_other_claims() {
    let (_catalog, space) = pool();
    let all = 6 * CHUNK + 5;
    assert!(!space.reserve_now(1), "nothing is known to be free");
    assert!(!space.reserve(all + 1).unwrap());
    assert!(space.reserve(all - 10).unwrap() && space.reserve_now(4) && !space.reserve_now(7));
    assert_eq!(space.reserved(), all - 6);
    let run = space.allocate(&BOTH, 16).unwrap().unwrap();
    assert_eq!((run.length, space.allocate(&BOTH, 1).unwrap()), (6, None));
    assert_eq!(space.allocate_runs(&BOTH, 16, false).unwrap(), []);
    let promised = space.allocate_runs(&BOTH, 16, true).unwrap();
    assert_eq!(promised.iter().map(|run| run.length).sum::<u64>(), 16);
    assert_eq!(space.reserved(), all - 22);
    space.release_to_reservation(promised[0]);
    assert_eq!(space.reserved(), all - 22 + promised[0].length);
    space.release_claim(run);
    assert_eq!(space.allocate(&BOTH, 16).unwrap().map(|run| run.length), Some(6));
}

#[test]
fn a_device_left_out_has_no_space() {
    let (_catalog, space) = pool();
    space.leave_out(DeviceId(0));
    let totals = space.totals(&BOTH).unwrap();
    assert_eq!((totals.total, totals.free), (2 * CHUNK + 5, 2 * CHUNK + 5));
    assert_eq!(space.totals(&[DeviceId(0)]).unwrap().total, 0);
    while let Some(run) = space.allocate(&BOTH, 16).unwrap() {
        assert_eq!(run.device, DeviceId(1));
    }
    assert_eq!(space.totals_now(&BOTH).free, 0);
}

#[test]
fn memory_is_needed_for_each_chunk_and_refused_past_the_last_chunk_number() {
    let needed = |blocks: &[u64]| {
        let devices: Vec<_> = blocks.iter().map(|blocks| (DeviceId(0), *blocks)).collect();
        ChunkSpace::bytes_needed(16, &devices)
    };
    let one = needed(&[1]).unwrap();
    assert!(one > 16 && needed(&[]) == Some(0));
    assert_eq!([&[16][..], &[17], &[32, 33]].map(needed), [Some(one), Some(2 * one), Some(5 * one)]);
    let most = u64::from(u32::MAX) * 16;
    assert_eq!((needed(&[most]), needed(&[most + 1])), (Some(one * u64::from(u32::MAX)), None));
    assert_eq!(ChunkSpace::bytes_needed(0, &[(DeviceId(0), 3)]), Some(3 * one));
}

/// The space of a device of one chunk of 2048 blocks, of which these runs are free.
fn with_holes(holes: &[(u64, u64)]) -> Arc<ChunkSpace> {
    let (_pm, catalog) = pool_of_chunks(2048);
    let mut at = 1;
    for (start, length) in holes.iter().copied().chain([(2049, 0)]) {
        if start > at {
            mark(&catalog, run(0, at, start - at), true);
        }
        at = start + length;
    }
    ChunkSpace::new(catalog, &[(DeviceId(0), 2049)])
}

fn claim(space: &ChunkSpace, want: u64, reserved: bool) -> Vec<(u64, u64)> {
    let runs = space.allocate_runs(&[DeviceId(0)], want, reserved).unwrap();
    runs.iter().map(|run| (run.start.0, run.length)).collect()
}

#[test]
fn bitmaps_are_loaded_in_steps_and_damaged_ones_are_counted() {
    let pm: Arc<dyn PmMedium> = VecPm::new(4 << 20);
    format(&pm);
    let catalog = Arc::new(mount(&pm).unwrap());
    for chunk in [3, 300, 301] {
        let key = Key::chunk(chunk, DeviceId(0));
        apply(&catalog, &[catalog.shard_of(chunk)], |guard, tx| guard.put(tx, &key, &[0; 7])).unwrap();
    }
    let space = ChunkSpace::new(catalog, &[(DeviceId(0), 1 + 600 * CHUNK), (DeviceId(1), 1 + 2 * CHUNK)]);
    let mut seen = Vec::new();
    while space.load_step().unwrap() {
        seen.push((space.totals_now(&BOTH).free / CHUNK, space.damaged_chunks(), space.is_loaded()));
    }
    assert_eq!(seen, [(255, 1, false), (509, 3, false), (597, 3, false), (599, 3, true)]);
    assert!(space.is_loaded() && !space.load_step().unwrap());
    while let Some(found) = space.allocate(&[DeviceId(0)], CHUNK).unwrap() {
        assert!(![3, 300, 301].contains(&((found.start.0 - 1) / CHUNK)), "{found:?} is of a damaged chunk");
    }
    assert_eq!(space.totals(&BOTH).unwrap().free, 2 * CHUNK);
}

#[test]
fn reservations_and_claims_load_only_needed_bitmaps() {
    let pm: Arc<dyn PmMedium> = VecPm::new(4 << 20);
    format(&pm);
    let catalog = Arc::new(mount(&pm).unwrap());
    let space = || ChunkSpace::new(Arc::clone(&catalog), &[(DeviceId(0), 1 + 600 * CHUNK)]);
    let promised = space();
    assert!(promised.reserve(1).unwrap());
    assert_eq!(promised.totals_now(&BOTH).free, 256 * CHUNK, "one step is enough");
    assert!(promised.reserve(300 * CHUNK).unwrap(), "the second step finds them");
    assert!(!promised.is_loaded() && promised.reserved() == 300 * CHUNK + 1);
    assert!(promised.reserve(300 * CHUNK - 1).unwrap() && !promised.reserve(1).unwrap());
    for (claimed, want, length) in [(space(), 0, 1), (space(), 5, 5), (space(), 1000, CHUNK)] {
        assert_eq!(claimed.allocate(&BOTH, want).unwrap().map(|run| run.length), Some(length));
        assert!(!claimed.is_loaded());
        let runs = claimed.allocate_runs(&BOTH, want, false).unwrap();
        assert_eq!(runs.iter().map(|run| run.length).collect::<Vec<_>>(), [length]);
        assert_eq!(claimed.totals_now(&BOTH).free, 256 * CHUNK - 2 * length);
    }
}

#[test]
fn a_quarter_of_a_large_request_side_by_side_is_taken_by_itself() {
    let holes = [(10, 100), (300, 256), (700, 300), (1100, 255)];
    assert_eq!(claim(&with_holes(&holes), 1024, false), [(700, 300)], "the longest");
    assert_eq!(claim(&with_holes(&holes), 1200, false), [(700, 300)], "just a quarter");
    let all = [(10, 100), (300, 256), (700, 300), (1100, 255)];
    let by_themselves = claim(&with_holes(&holes), 1204, false);
    assert_eq!(by_themselves, [all[1], all[2], all[3], all[0]], "none is a quarter");
    let small = claim(&with_holes(&holes), 1020, false);
    assert_eq!(small, [all[1], all[2], all[3], all[0]], "no large request");
    let short = [(10, 255), (300, 200), (700, 255)];
    assert_eq!(claim(&with_holes(&short), 1024, false), short, "no long hole");
    assert_eq!(claim(&with_holes(&holes), 300, false), [(700, 300)], "all of it side by side");
}

#[test]
fn holes_claimed_out_of_a_promise_are_taken_off_it() {
    let space = with_holes(&[(10, 3), (20, 2), (30, 4), (40, 1)]);
    assert!(space.reserve(9).unwrap() && !space.reserve(2).unwrap());
    assert_eq!(claim(&space, 5, false), [(30, 1)], "more is promised to others");
    assert_eq!(claim(&space, 5, false), []);
    let mut claimed = claim(&space, 8, true);
    claimed.sort_unstable();
    assert_eq!((claimed.iter().map(|(_, length)| length).sum::<u64>(), space.reserved()), (8, 1));
    assert_eq!((claim(&space, 8, true).len(), space.reserved()), (1, 0));
    assert_eq!((claim(&space, 8, true), space.reserved()), (vec![], 0));
}

#[test]
fn claims_fall_back_to_holes_of_the_next_device() {
    let (catalog, space) = pool();
    // Single blocks are free on both, and those of the emptier one are pinned.
    for (device, size, step) in [(0, 4 * CHUNK, 2), (1, 2 * CHUNK, 4)] {
        (1..=size).filter(|at| at % step == 0).for_each(|at| _ = mark(&catalog, run(device, at, 1), true));
    }
    (1..=4 * CHUNK).filter(|at| at % 4 == 1).for_each(|at| _ = mark(&catalog, run(0, at, 1), true));
    let pins: Vec<_> = (0..4).map(|chunk| space.pin(run(0, 1 + chunk * CHUNK, CHUNK))).collect();
    let pins_of_other = space.pin(run(1, 1 + 2 * CHUNK, 5));
    let found = space.allocate_runs(&BOTH, 5, false).unwrap();
    assert!(found.iter().all(|run| run.device == DeviceId(1)) && found.len() == 2, "{found:?}");
    drop((pins, pins_of_other));
}

#[test]
fn dropping_an_io_pin_leaves_other_io_pins_in_force() {
    let (_catalog, space) = pool();
    let pinned = || space.accounts().pins;
    let (first, second) = (space.pin(run(0, 1, 2)), space.pin(run(0, 5, 2)));
    let third = space.pin_alone(run(0, 9, 2)).unwrap();
    let fourth = space.pin_alone(run(0, 12, 2)).unwrap();
    drop(first);
    assert_eq!(pinned(), [run(0, 5, 2), run(0, 9, 2), run(0, 12, 2)]);
    drop(third);
    assert_eq!(pinned(), [run(0, 5, 2), run(0, 12, 2)]);
    let fifth = space.pin(run(0, 5, 2));
    drop(second);
    assert_eq!(pinned(), [run(0, 12, 2), run(0, 5, 2)]);
    drop(fourth);
    drop(fifth);
    assert_eq!(pinned(), []);
}
