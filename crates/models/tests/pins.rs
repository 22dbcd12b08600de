//! Blocks of PM and of a device are freed and used again while readers outside of every lock hold them by an
//! I/O pin (design S6, S7). A reader never sees another file's content; content under an unchanged version is
//! the present content; and no space is lost when the I/O pins are gone.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_blocks::{BlockPool, Purpose, Target};
use terrace_catalog::{Catalog, DeviceRun, Edit, Freed, chunks};
use terrace_format::table::Owner;
use terrace_format::{DeviceBlock, DeviceId, FileBlock, Ino, Lsn, PmBlock, PmOffset};
use terrace_media::block::{AlignedBlock, SimulatedDevice};
use terrace_media::pm::RecordedPm;
use terrace_media::{BlockMedium, PmMedium};
use terrace_models::{Schedules, below, explore, small_pool};
use terrace_runtime::sync::RwLock;
use terrace_runtime::thread::spawn;
use terrace_space::ChunkSpace;
use terrace_wal::{Error, NoSpace, Tx, Wal};

const FILES: usize = 2;
const ROUNDS: usize = 3;

/// A content number that names its file and is used once.
fn stamp(file: usize, number: u64) -> u64 {
    number * FILES as u64 + file as u64
}

/// Runs the threads of a model: a writer and a reader for each file, and one thread more.
fn run<M: Send + Sync + 'static>(
    model: &Arc<M>,
    write: fn(&M, usize),
    read: fn(&M, usize),
    other: fn(&M, usize),
) {
    let bodies = (0..FILES).map(|file| (write, file)).chain([(read, 0), (read, 1), (other, 0)]);
    let start = |(body, file): (fn(&M, usize), usize)| {
        let model = Arc::clone(model);
        spawn("model", move || (0..ROUNDS).for_each(|_| body(&model, file))).unwrap()
    };
    let threads: Vec<_> = bodies.map(start).collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

mod pm {
    use super::*;

    const FREE: u64 = 1;
    const SHIFT: u32 = 16;
    /// Words of a block that are written and read singly.
    const WORDS: usize = 4;

    /// The block of a file and its content: the number of overwrites in the low bits, above them a number
    /// that each block given to a file gets anew.
    struct File {
        block: PmBlock,
        content: u64,
    }

    pub(super) struct Model {
        pm: Arc<RecordedPm>,
        wal: Arc<Wal>,
        blocks: BlockPool,
        files: Vec<RwLock<File>>,
        next: AtomicU64,
    }

    impl Model {
        fn mount() -> Model {
            let (pm, wal) = small_pool(FREE).unwrap();
            let first = wal.geometry().first_pool_block();
            let file = |index: usize| {
                let (block, content) = (PmBlock(first.0 + index as u64), (index as u64) << SHIFT);
                fill(&*pm, block, content);
                RwLock::new(File { block, content })
            };
            let files = (0..FILES).map(file).collect();
            let blocks = BlockPool::new(Arc::clone(&wal));
            Model { pm, wal, blocks, files, next: AtomicU64::new(FILES as u64) }
        }

        /// Replaces a file's block, or stores over it.
        fn write(&self, index: usize) {
            if below(4) == 0 {
                let mut file = self.files[index].write();
                self.blocks.bump(file.block);
                file.content += 1;
                return fill(&*self.pm, file.block, file.content);
            }
            let content = self.next.fetch_add(1, Ordering::Relaxed) << SHIFT;
            let claim = || self.blocks.claim(1, Purpose::Reclaim);
            let mut claim = match claim() {
                Err(Error::NoSpace(NoSpace::Pm)) => {
                    self.wal.checkpoint().unwrap();
                    let Ok(claim) = claim() else { return };
                    claim
                }
                other => other.unwrap_or_else(|error| panic!("{error}")),
            };
            let reservation = self.wal.reserve(512).unwrap();
            let mut file = self.files[index].write();
            let (old, new) = (file.block, claim.take(Target::Page).unwrap());
            fill(&*self.pm, new, content);
            let mut tx = Tx::new();
            let owner = Owner::File { ino: Ino(9), block: FileBlock(index as u64), unwritten: false };
            self.blocks.set_owner(&mut tx, new, owner);
            self.blocks.release(&mut tx, old);
            let lsn = self.wal.commit(reservation, &tx).unwrap();
            *file = File { block: new, content };
            self.blocks.freed(lsn, &[old]);
        }

        /// Copies a block as a demotion does.
        fn read(&self, index: usize) {
            let file = self.files[index].read();
            let (block, seen) = (file.block, file.content);
            let descriptor = self.blocks.descriptor(block);
            let version = descriptor.version();
            descriptor.pin();
            drop(file);
            let copied = words(block).map(|word| self.pm.load_u64(word).unwrap());
            descriptor.unpin();
            let whose = copied.map(|word| word >> SHIFT);
            assert_eq!(whose, [seen >> SHIFT; WORDS], "block {block} was used again although it was pinned");
            let file = self.files[index].read();
            if file.block == block && descriptor.version() == version {
                assert_eq!(copied, [seen; WORDS], "the version is unchanged");
                assert_eq!(file.content, seen, "the version is unchanged");
            }
        }

        fn checkpoint(&self, _: usize) {
            self.wal.checkpoint().unwrap();
            self.blocks.drain_quarantine();
        }
    }

    fn words(block: PmBlock) -> [PmOffset; WORDS] {
        std::array::from_fn(|word| block.offset().plus(word as u64 * 1024))
    }

    fn fill(pm: &dyn PmMedium, block: PmBlock, content: u64) {
        words(block).into_iter().for_each(|word| pm.write(word, &content.to_le_bytes()).unwrap());
    }

    pub(super) fn model() {
        let model = Arc::new(Model::mount());
        run(&model, Model::write, Model::read, Model::checkpoint);
        model.checkpoint(0);
        while model.blocks.scan_step().unwrap() {}
        let usage = model.blocks.usage();
        assert_eq!((usage.free, usage.quarantined, usage.unknown), (FREE, 0, 0), "{usage:?}");
    }
}

mod device {
    use super::*;

    const DEVICE: DeviceId = DeviceId(0);
    /// A single chunk behind the header.
    const BLOCKS: u64 = 5;

    /// A device run and its content.
    #[derive(Clone, Copy)]
    struct Copy {
        run: DeviceRun,
        content: u64,
    }

    pub(super) struct Model {
        catalog: Arc<Catalog>,
        space: Arc<ChunkSpace>,
        device: SimulatedDevice,
        /// The device run of each file; a removed file has no run.
        files: Vec<RwLock<Option<Copy>>>,
        next: AtomicU64,
    }

    impl Model {
        /// A model whose chunk bitmaps are not loaded.
        fn mount() -> Model {
            let (_, wal) = small_pool(40).unwrap();
            let catalog = Arc::new(Catalog::new(Arc::new(BlockPool::new(wal))));
            let device = SimulatedDevice::new(1 + BLOCKS);
            let file = |index: usize| {
                let start = DeviceBlock(1 + 2 * index as u64);
                let run = DeviceRun { device: DEVICE, start, length: 1 + index as u64 };
                let copy = Copy { run, content: stamp(index, 0) };
                fill(&device, &copy);
                mark(&catalog, Some(run), None);
                RwLock::new(Some(copy))
            };
            let files = (0..FILES).map(file).collect();
            let space = ChunkSpace::new(Arc::clone(&catalog), &[(DEVICE, 1 + BLOCKS)]);
            Model { catalog, space, device, files, next: AtomicU64::new(1) }
        }

        /// Moves a file to another device run, begins to move it and gives up, or removes it.
        fn write(&self, index: usize) {
            let content = stamp(index, self.next.fetch_add(1, Ordering::Relaxed));
            let kind = below(4);
            let mut new = None;
            if kind > 0 {
                let Some(run) = self.space.allocate(&[DEVICE], 1 + below(4)).unwrap() else { return };
                let copy = Copy { run, content };
                fill(&self.device, &copy);
                if kind == 1 {
                    return self.space.release_claim(run);
                }
                new = Some(copy);
            }
            let mut file = self.files[index].write();
            let old = file.map(|copy| copy.run);
            let lsn = mark(&self.catalog, new.map(|copy| copy.run), old);
            *file = new;
            drop(file);
            self.catalog.wal().pm().persist().unwrap();
            if let Some(old) = old {
                self.space.freed(old, lsn);
            }
        }

        fn read(&self, index: usize) {
            let file = self.files[index].read();
            let Some(copy) = *file else { return };
            let pin = self.space.pin(copy.run);
            drop(file);
            for block in 0..copy.run.length {
                let mut found = [AlignedBlock::zeroed()];
                self.device.read(copy.run.start.plus(block), &mut found).unwrap();
                let found = u64::from_le_bytes(*found[0].0.first_chunk().unwrap());
                assert_eq!(found, copy.content, "{:?} was used again although it was pinned", copy.run);
            }
            drop(pin);
        }

        fn load(&self, _: usize) {
            self.space.load_step().unwrap();
        }
    }

    fn fill(device: &dyn BlockMedium, copy: &Copy) {
        let mut block = AlignedBlock::zeroed();
        block.0[..8].copy_from_slice(&copy.content.to_le_bytes());
        for at in 0..copy.run.length {
            device.write(copy.run.start.plus(at), &[block.clone()]).unwrap();
        }
    }

    /// Marks the run that a transaction takes as used and the run that it gives up as free.
    fn mark(catalog: &Catalog, taken: Option<DeviceRun>, freed: Option<DeviceRun>) -> Lsn {
        loop {
            let reservation = catalog.wal().reserve(1024).unwrap();
            let mut shards: Vec<u32> =
                taken.iter().chain(&freed).flat_map(|run| chunks::shards(catalog, *run)).collect();
            shards.sort_unstable();
            shards.dedup();
            let mut guard = catalog.write(&shards);
            let mut tx = Tx::new();
            let mut pages = Freed::default();
            let both = taken.map(|run| (run, true)).into_iter().chain(freed.map(|run| (run, false)));
            let marked =
                both.into_iter().try_for_each(|(run, used)| chunks::mark(&mut guard, &mut tx, run, used));
            match marked {
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

    pub(super) fn model() {
        let model = Arc::new(Model::mount());
        run(&model, Model::write, Model::read, Model::load);
        let held: Vec<DeviceRun> = model.files.iter().filter_map(|file| Some((*file.read())?.run)).collect();
        let free = BLOCKS - held.iter().map(|run| run.length).sum::<u64>();
        let again = ChunkSpace::new(Arc::clone(&model.catalog), &[(DEVICE, 1 + BLOCKS)]);
        assert_eq!(again.totals(&[DEVICE]).unwrap().free, free, "in the bitmap");
        assert_eq!(model.space.totals(&[DEVICE]).unwrap().free, free, "in memory");
        for _ in 0..free {
            let block = model.space.allocate(&[DEVICE], 1).unwrap().unwrap().start.0;
            let inside = |run: &DeviceRun| (run.start.0..run.start.0 + run.length).contains(&block);
            assert!(!held.iter().any(inside), "device block {block} is held");
        }
        assert!(model.space.allocate(&[DEVICE], 1).unwrap().is_none());
    }
}

#[test]
fn pinned_blocks_are_not_used_again() {
    explore("pins", Schedules { random: 1500, priorities: 1500 }, pm::model);
}

#[test]
fn pinned_device_runs_are_not_used_again() {
    explore("pins", Schedules { random: 1500, priorities: 1500 }, device::model);
}
