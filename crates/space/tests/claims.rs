//! Claims, frees and I/O pins against the bitmaps on the medium.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

#[path = "../../catalog/tests/common/mod.rs"]
mod common;

use common::{VecPm, apply, format, mount};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;
use std::sync::Arc;
use terrace_catalog::{Catalog, DeviceRun, Edit, chunks};
use terrace_format::{DeviceBlock, DeviceId};
use terrace_media::PmMedium;
use terrace_space::ChunkSpace;
use terrace_wal::Error;

#[test]
fn chunk_space_agrees_with_the_bitmaps() {
    let pm: Arc<dyn PmMedium> = VecPm::new(4 << 20);
    format(&pm);
    let devices = [DeviceId(0), DeviceId(1)];
    let sizes = [(devices[0], 1 + 16 * 40 + 5), (devices[1], 1 + 16 * 700)];
    let mut catalog = Arc::new(mount(&pm).unwrap());
    let mut space = ChunkSpace::new(Arc::clone(&catalog), &sizes);
    let mut rng = StdRng::seed_from_u64(2);
    let (mut used, mut claims): (BTreeSet<DeviceRun>, u32) = Default::default();
    let mark = |catalog: &Catalog, run: DeviceRun, value: bool| {
        let shards = chunks::shards(catalog, run);
        let mut lsn = terrace_format::Lsn(0);
        apply(catalog, &shards, |guard, tx| {
            lsn = catalog.wal().next_lsn();
            chunks::mark(guard, tx, run, value)
        })
        .map(|()| lsn)
    };
    for step in 0..6000 {
        if rng.random_range(0..5) < 3 {
            let want = *[1u64, 2, 5, 8, 16, 16].choose(&mut rng).unwrap();
            let device = devices[rng.random_range(0..2)];
            if let Some(run) = space.allocate(&[device], want).unwrap() {
                claims += 1;
                assert!(run.length <= want && run.start.0 > 0);
                assert!(run.start.0 + run.length <= sizes[device.0 as usize].1);
                assert_eq!((run.start.0 - 1) / 16, (run.start.0 + run.length - 2) / 16, "one chunk");
                if step % 9 == 0 {
                    space.release_claim(run);
                } else {
                    mark(&catalog, run, true).unwrap();
                    used.insert(run);
                }
            }
        } else if let Some(run) = used.iter().nth(rng.random_range(0..used.len().max(1))).copied() {
            let pin = space.pin(run);
            let lsn = mark(&catalog, run, false).unwrap();
            assert!(matches!(mark(&catalog, run, false), Err(Edit::Failed(Error::Corrupt(_)))));
            if rng.random_range(0..2) == 0 {
                // Reported late: a load may have seen the record already.
                space.load_step().unwrap();
            }
            space.freed(run, lsn);
            used.remove(&run);
            for want in [1, 16] {
                if let Some(other) = space.allocate(&[run.device], want).unwrap() {
                    let apart = other.start.0 + other.length <= run.start.0
                        || run.start.0 + run.length <= other.start.0;
                    assert!(apart, "{other:?} is pinned by {run:?}");
                    space.release_claim(other);
                }
            }
            drop(pin);
        }
        if step % 700 == 699 {
            let totals = space.totals(&devices).unwrap();
            let marked: u64 = used.iter().map(|run| run.length).sum();
            assert_eq!(totals.free, totals.total - marked);
            drop(space);
            catalog = Arc::new(mount(&pm).unwrap());
            space = ChunkSpace::new(Arc::clone(&catalog), &sizes);
            assert_eq!(space.totals_now(&devices).free, 0);
            if step % 1400 == 1399 {
                assert_eq!(space.totals(&devices).unwrap(), totals);
            }
        }
    }
    assert_eq!(space.damaged_chunks(), 0);
    assert!(claims > 3000, "{claims} claims");
    // The remaining free blocks can be claimed to the last block.
    let mut left = 0;
    while let Some(run) = space.allocate(&devices, 16).unwrap() {
        left += run.length;
    }
    let totals = space.totals(&devices).unwrap();
    assert_eq!((totals.free, left), (0, totals.total - used.iter().map(|r| r.length).sum::<u64>()));
}

#[test]
fn claims_fill_holes_and_prefer_whole_chunks() {
    let pm: Arc<dyn PmMedium> = VecPm::new(4 << 20);
    format(&pm);
    let device = DeviceId(0);
    let space = ChunkSpace::new(Arc::new(mount(&pm).unwrap()), &[(device, 1 + 16 * 4)]);
    let claim = |want| space.allocate(&[device], want).unwrap().map(|run| (run.start.0, run.length));
    assert_eq!(claim(3), Some((1, 3)));
    assert_eq!(claim(16), Some((17, 16)), "a whole chunk for a large request");
    assert_eq!(claim(2), Some((4, 2)), "the hole behind the first for a small one");
    assert_eq!(claim(8), Some((33, 8)));
    assert_eq!(claim(4), Some((6, 4)));
    let run = DeviceRun { device, start: DeviceBlock(17), length: 16 };
    let pin = space.pin(run);
    space.release_claim(run);
    assert_eq!(claim(16), Some((49, 16)), "pinned blocks wait");
    drop(pin);
    assert_eq!(claim(16), Some((17, 16)));
}

/// Blocks that are to be overwritten in place have no other I/O pin, of a reader or a writer, whole or in
/// part.
#[test]
fn blocks_are_pinned_alone_or_not_at_all() {
    let pm: Arc<dyn PmMedium> = VecPm::new(4 << 20);
    format(&pm);
    let sizes = [(DeviceId(0), 1 + 16), (DeviceId(1), 1 + 16)];
    let space = ChunkSpace::new(Arc::new(mount(&pm).unwrap()), &sizes);
    let run =
        |device, start, length| DeviceRun { device: DeviceId(device), start: DeviceBlock(start), length };
    let reader = space.pin(run(0, 4, 4));
    for (start, length) in [(4, 4), (1, 4), (7, 1), (7, 3), (1, 16), (5, 2)] {
        assert!(space.pin_alone(run(0, start, length)).is_none(), "{length} from {start}");
    }
    let beside = [run(0, 1, 3), run(0, 8, 2), run(1, 4, 4)].map(|run| space.pin_alone(run));
    assert!(beside.iter().all(Option::is_some));
    drop(reader);
    let writer = space.pin_alone(run(0, 4, 4));
    assert!(writer.is_some() && space.pin_alone(run(0, 6, 1)).is_none());
    // A reader that comes later may look.
    drop((space.pin(run(0, 4, 1)), writer));
    assert!(space.pin_alone(run(0, 4, 4)).is_some());
}

/// A load that has already seen the freeing record must not let the late report free a new claim.
#[test]
fn a_free_reported_after_its_load_frees_no_claim() {
    let pm: Arc<dyn PmMedium> = VecPm::new(4 << 20);
    format(&pm);
    let catalog = Arc::new(mount(&pm).unwrap());
    let devices = [(DeviceId(0), 1 + 16)];
    let run = DeviceRun { device: DeviceId(0), start: DeviceBlock(1), length: 16 };
    let mark = |used| {
        let mut lsn = terrace_format::Lsn(0);
        apply(&catalog, &chunks::shards(&catalog, run), |guard, tx| {
            lsn = catalog.wal().next_lsn();
            chunks::mark(guard, tx, run, used)
        })
        .unwrap();
        lsn
    };
    mark(true);
    let space = ChunkSpace::new(Arc::clone(&catalog), &devices);
    let lsn = mark(false);
    assert_eq!(space.allocate(&[DeviceId(0)], 16).unwrap(), Some(run), "the load saw the record");
    space.freed(run, lsn);
    assert_eq!(space.allocate(&[DeviceId(0)], 1).unwrap(), None, "claimed once");
    // The other order: loaded, then freed.
    mark(true);
    let lsn = mark(false);
    space.freed(run, lsn);
    assert_eq!(space.allocate(&[DeviceId(0)], 16).unwrap(), Some(run));
}
