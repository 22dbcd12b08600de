//! Space of a lower tier is reserved, claimed, given back, freed and read from chunk bitmaps at the same
//! time. No block has two holders, a space reservation always finds its blocks, and at the end only the
//! blocks used in the bitmaps are held.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use terrace_blocks::{BlockPool, Purpose};
use terrace_catalog::{Catalog, DeviceRun, Edit, Freed, chunks};
use terrace_format::{DeviceBlock, DeviceId, Lsn};
use terrace_models::{Schedules, below, explore, small_pool};
use terrace_runtime::thread::spawn;
use terrace_space::ChunkSpace;

const DEVICE: DeviceId = DeviceId(0);
/// A chunk of eight blocks behind the header, and half a chunk.
const BLOCKS: u64 = 12;
/// Blocks of the first chunk that are used from the start.
const USED: DeviceRun = DeviceRun { device: DEVICE, start: DeviceBlock(3), length: 3 };
const ROUNDS: usize = 3;

struct Model {
    catalog: Arc<Catalog>,
    space: Arc<ChunkSpace>,
    /// Whether a block has a holder. Plain atomics: a look at them is no point where the scheduler changes
    /// threads.
    held: Vec<AtomicBool>,
}

impl Model {
    /// A model whose chunk bitmaps are not loaded.
    fn mount() -> Model {
        let (_, wal) = small_pool(40).unwrap();
        let catalog = Arc::new(Catalog::new(Arc::new(BlockPool::new(wal))));
        mark(&catalog, USED, true);
        let space = ChunkSpace::new(Arc::clone(&catalog), &[(DEVICE, 1 + BLOCKS)]);
        let held = (0..=BLOCKS).map(|_| AtomicBool::new(false)).collect();
        let model = Model { catalog, space, held };
        model.take(USED);
        model
    }

    fn blocks_of(&self, run: DeviceRun) -> impl Iterator<Item = &AtomicBool> {
        (run.start.0..run.start.0 + run.length).map(|block| &self.held[block as usize])
    }

    fn take(&self, run: DeviceRun) {
        let taken = self.blocks_of(run).all(|held| !held.swap(true, Ordering::Relaxed));
        assert!(taken, "{run:?} has another holder");
    }

    fn let_go(&self, run: DeviceRun) {
        self.blocks_of(run).for_each(|held| held.store(false, Ordering::Relaxed));
    }

    /// Reserves space for dirty pages. They are dropped, or blocks are claimed for them; then the claim is
    /// given back to the space reservation, or the blocks are used and freed again.
    fn promise(&self) {
        // Two threads together may ask for more blocks than are free.
        let promised = 1 + below(6);
        if !self.space.reserve(promised).unwrap() {
            return;
        }
        let mut left = promised;
        if below(4) > 0 {
            let mut runs = Vec::new();
            // Claims all reserved blocks, or a part.
            while left > 0 && (runs.is_empty() || below(4) > 0) {
                let found = self.space.allocate_runs(&[DEVICE], left, true).unwrap();
                assert!(!found.is_empty(), "{left} blocks of a promise of {promised} are not there");
                left -= found.iter().map(|run| run.length).sum::<u64>();
                found.iter().for_each(|run| self.take(*run));
                runs.extend(found);
            }
            let fails = below(2) == 0;
            for run in runs {
                if fails {
                    self.let_go(run);
                    self.space.release_to_reservation(run);
                    left += run.length;
                } else {
                    self.use_and_free(run);
                }
            }
        }
        self.space.unreserve(left);
    }

    fn use_and_free(&self, run: DeviceRun) {
        mark(&self.catalog, run, true);
        let lsn = mark(&self.catalog, run, false);
        self.let_go(run);
        self.catalog.wal().pm().persist().unwrap();
        self.space.freed(run, lsn);
    }

    /// Claims without a space reservation; the claim is used in part, or not at all.
    fn claim(&self) {
        let want = 1 + below(5);
        let mut runs = match below(2) {
            0 => Vec::from_iter(self.space.allocate(&[DEVICE], want).unwrap()),
            _ => self.space.allocate_runs(&[DEVICE], want, false).unwrap(),
        };
        runs.iter().for_each(|run| self.take(*run));
        let Some(run) = runs.pop() else { return };
        for other in runs {
            self.let_go(other);
            self.space.release_claim(other);
        }
        let spare = DeviceRun { start: run.start.plus(1), length: run.length - 1, ..run };
        if spare.length > 0 {
            self.let_go(spare);
            self.space.release_claim(spare);
        }
        let used = DeviceRun { length: 1, ..run };
        if below(2) == 0 {
            return self.use_and_free(used);
        }
        self.let_go(used);
        self.space.release_claim(used);
    }

    /// Loads chunk bitmaps, and takes exclusive I/O pins as a write-back in place does.
    fn load(&self) {
        self.space.load_step().unwrap();
        if let Some(pin) = self.space.pin_alone(USED) {
            assert!(self.space.pin_alone(USED).is_none(), "two overwrite one block");
            drop(pin);
        }
    }
}

/// Marks blocks used, or free.
fn mark(catalog: &Catalog, run: DeviceRun, used: bool) -> Lsn {
    loop {
        let reservation = catalog.wal().reserve(1024).unwrap();
        let mut guard = catalog.write(&chunks::shards(catalog, run));
        let mut tx = terrace_wal::Tx::new();
        let mut pages = Freed::default();
        match chunks::mark(&mut guard, &mut tx, run, used) {
            Ok(()) => {
                guard.unlink_emptied(&mut tx, &mut pages).unwrap();
                let lsn = catalog.wal().commit(reservation, &tx).unwrap();
                pages.committed(catalog.blocks(), lsn);
                return lsn;
            }
            Err(Edit::Full(shortage)) => {
                drop(guard);
                drop(reservation);
                catalog.make_room_for(&shortage, Purpose::User).unwrap();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn model() {
    let model = Arc::new(Model::mount());
    let bodies: [fn(&Model); 4] = [Model::promise, Model::promise, Model::claim, Model::load];
    let start = |body: fn(&Model)| {
        let model = Arc::clone(&model);
        spawn("model", move || (0..ROUNDS).for_each(|_| body(&model))).unwrap()
    };
    let threads: Vec<_> = bodies.map(start).into_iter().collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let free = BLOCKS - USED.length;
    assert_eq!(model.space.totals(&[DEVICE]).unwrap().free, free, "in memory");
    assert_eq!(model.space.accounts(), Default::default(), "held when all have ended");
    assert!(model.space.reserve_now(free) && !model.space.reserve_now(1), "promised when all have ended");
}

#[test]
fn space_of_a_lower_tier_is_reserved_claimed_and_given_back() {
    explore("space", Schedules { random: 1500, priorities: 1500 }, model);
}
