//! The volatile space of lower tiers: promises, totals, devices left out, and the accounts that simulators judge by.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

mod common;

use common::{VecPm, apply, format, mount};
use std::sync::Arc;
use terrace_catalog::chunk_space::ChunkAccounts;
use terrace_catalog::{Catalog, ChunkSpace, DeviceRun, chunks};
use terrace_format::{DeviceBlock, DeviceId, Lsn};
use terrace_media::PmMedium;

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
fn accounts_list_claims_that_nobody_marked_and_marks_that_nobody_claimed() {
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
fn accounts_tell_pins_and_promises() {
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
fn promised_blocks_are_taken_by_nobody_else() {
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
fn memory_is_needed_by_the_chunk_and_chunks_have_a_last_number() {
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
