//! The cuckoo map under the scheduler: writers of two files fill three buckets, so that the entries of a third file move between
//! their buckets and into the stash. A reader of the third file finds its blocks at every moment, before and after the end of
//! the scan of the block table; at the end the table has each entry once (decision 0038).
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use terrace_blocks::{BlockPool, Purpose, Target};
use terrace_format::cuckoo_map::{Buckets, Entry, is_free};
use terrace_format::map_kind::MapKind;
use terrace_format::table::Owner;
use terrace_format::{FileBlock, Geometry, Ino};
use terrace_map::file_map::{Freed, MapChange};
use terrace_map::{CuckooMap, FileMap, MapInode, Mapping};
use terrace_media::PmMedium;
use terrace_media::pm::RecordedPm;
use terrace_models::{PM_SIZE, Schedules, UUID, below, explore, geometry};
use terrace_runtime::planted::{Mistake, plant};
use terrace_runtime::thread::spawn;
use terrace_wal::{Error, Tx, Wal};

/// The file whose blocks stay, and the files of the writers.
const STAYS: Ino = Ino(5);
const WRITERS: [Ino; 2] = [Ino(6), Ino(7)];
/// Blocks of the file that stays.
const BLOCKS: usize = 3;
/// Blocks of a writer. All blocks of the three files overflow three buckets.
const BLOCKS_OF_WRITER: usize = 6;
/// Blocks of a writer at first: a place is free.
const FIRST_OF_WRITER: usize = 4;
const ROUNDS: usize = 6;
/// Look-ups of the reader.
const LOOKUPS: usize = 20;

struct Model {
    wal: Arc<Wal>,
    blocks: Arc<BlockPool>,
    map: CuckooMap,
    buckets: Buckets,
    /// The mappings that the mount found.
    first: Mapped,
}

/// The mappings of blocks.
type Mapped = BTreeMap<(Ino, FileBlock), Mapping>;

/// Blocks of a file with two of the first three buckets. Bucket 0 is the first bucket of blocks that stay, and of two blocks
/// of each writer. The writers' blocks fill bucket 0, so that at first blocks that stay lie in their second buckets.
fn keys(buckets: &Buckets, ino: Ino) -> Vec<FileBlock> {
    let begins = |block: &FileBlock, is_first: bool| {
        let pair = buckets.pair(ino, *block);
        pair.iter().all(|line| *line < 3) && (pair[0] == 0) == is_first
    };
    let of = |is_first| (0..).map(FileBlock).filter(move |block| begins(block, is_first));
    match ino {
        STAYS => of(true).take(BLOCKS).collect(),
        _ => of(true).take(2).chain(of(false).take(BLOCKS_OF_WRITER - 2)).collect(),
    }
}

impl Model {
    fn open(pm: Arc<dyn PmMedium>, geometry: Geometry) -> Model {
        let (wal, _) = Wal::open(pm, UUID, geometry).unwrap();
        let wal = Arc::new(wal);
        let blocks = Arc::new(BlockPool::of_map(Arc::clone(&wal), UUID));
        let map = CuckooMap::open(Arc::clone(&blocks)).unwrap();
        Model { buckets: Buckets::new(UUID, &geometry), wal, blocks, map, first: Mapped::new() }
    }

    /// A pool with the blocks that stay and some of those of the writers, just mounted.
    fn mount() -> Model {
        let geometry = geometry().with_map(MapKind::Cuckoo).unwrap();
        let pm: Arc<dyn PmMedium> = Arc::new(RecordedPm::new(PM_SIZE));
        Wal::format(Arc::clone(&pm), UUID, geometry).unwrap();
        let before = Model::open(Arc::clone(&pm), geometry);
        let mut first = Mapped::new();
        let files = [(WRITERS[0], FIRST_OF_WRITER), (WRITERS[1], FIRST_OF_WRITER), (STAYS, BLOCKS)];
        for (ino, count) in files {
            for block in before.keys(ino).into_iter().take(count) {
                first.extend(before.set(ino, block, true, false).map(|new| ((ino, block), new)));
            }
        }
        before.wal.close().unwrap();
        Model { first, ..Model::open(pm, geometry) }
    }

    fn keys(&self, ino: Ino) -> Vec<FileBlock> {
        keys(&self.buckets, ino)
    }

    fn inode(&self, ino: Ino) -> MapInode {
        MapInode { ino, slot: self.blocks.first_block().offset(), has_cold: false }
    }

    /// Maps a block anew or clears it, or gives up; makes room in transactions of their own. Gives the new mapping. The caller
    /// has the inode to itself.
    fn set(&self, ino: Ino, block: FileBlock, is_new: bool, gives_up: bool) -> Option<Mapping> {
        let inode = self.inode(ino);
        let mut claim = self.blocks.claim(usize::from(is_new), Purpose::Reclaim).unwrap();
        let new = is_new.then(|| claim.take(Target::File { ino, block }).unwrap()).map(Mapping::written);
        let change = MapChange { inode, first: block, mappings: [new].into_iter().collect() };
        let old = self.map.lookup(&inode, block).unwrap();
        loop {
            let reservation = self.wal.reserve(1024).unwrap();
            let (mut tx, mut freed) = (Tx::new(), Freed::new());
            let room = match self.map.missing_room(&[], &change).unwrap() {
                Some(room) => room,
                None => match self.map.change(&mut tx, std::slice::from_ref(&change), 0, &mut freed) {
                    Err(Error::MapRoom(room)) => *room,
                    guard => {
                        let guard = guard.unwrap();
                        if gives_up {
                            drop(guard);
                            claim.give_back_all();
                            return None;
                        }
                        if let Some(new) = new {
                            self.blocks.set_owner(
                                &mut tx,
                                new.block,
                                Owner::File { ino, block, unwritten: false },
                            );
                        }
                        if let Some(old) = old {
                            self.blocks.release(&mut tx, old.block);
                            freed.push(old.block);
                        }
                        let lsn = self.wal.commit(reservation, &tx).unwrap();
                        guard.committed();
                        self.blocks.freed(lsn, &freed);
                        return new;
                    }
                },
            };
            tx.clear();
            let mut none = self.blocks.claim(0, Purpose::Reclaim).unwrap();
            let guard = self.map.make_room(&mut tx, &inode, &room, &mut none).unwrap();
            self.wal.commit(reservation, &tx).unwrap();
            guard.committed();
        }
    }

    /// Maps and clears the blocks of a file; gives those that are there at the end.
    fn write(&self, ino: Ino) -> Mapped {
        let mut there: Mapped = self
            .first
            .range((ino, FileBlock(0))..(Ino(ino.0 + 1), FileBlock(0)))
            .map(|(key, new)| (*key, *new))
            .collect();
        for _ in 0..ROUNDS {
            let block = self.keys(ino)[below(BLOCKS_OF_WRITER as u64) as usize];
            let (is_new, gives_up) = (below(4) != 0, below(5) == 0);
            match self.set(ino, block, is_new, gives_up) {
                _ if gives_up => None,
                Some(new) => there.insert((ino, block), new),
                None => there.remove(&(ino, block)),
            };
            let found = self.map.lookup(&self.inode(ino), block).unwrap();
            assert_eq!(found, there.get(&(ino, block)).copied(), "block {block} of inode {ino}");
        }
        there
    }

    fn read(&self) {
        let (keys, inode) = (self.keys(STAYS), self.inode(STAYS));
        for _ in 0..LOOKUPS {
            let block = keys[below(BLOCKS as u64) as usize];
            let mut out = [None; 2];
            let found = match below(2) {
                0 => self.map.lookup(&inode, block).unwrap(),
                _ => self.map.lookup_run(&inode, block, &mut out).map(|()| out[0]).unwrap(),
            };
            assert_eq!(found, self.first.get(&(STAYS, block)).copied(), "block {block}");
        }
    }

    /// The table has exactly these entries, each once, where they belong.
    fn judge(&self, expected: &Mapped) {
        let mut found = BTreeMap::new();
        for line in self.buckets.lines() {
            for slot in 0..4 {
                let word =
                    |at: u64| self.wal.pm().load_u64(self.buckets.line(line).plus(16 * slot + at)).unwrap();
                let words = [word(0), word(8)];
                if is_free(&words) {
                    continue;
                }
                let entry = Entry::decode(words).unwrap();
                assert!(self.buckets.is_home(&entry, line), "{entry:?} in line {line}");
                let mapping = Mapping { block: entry.place, unwritten: entry.unwritten };
                let twice = found.insert((entry.ino, entry.block), mapping);
                assert_eq!(twice, None, "{entry:?}");
            }
        }
        assert_eq!(&found, expected);
        let presence = &self.blocks.hashed().unwrap().presence;
        for ino in [STAYS].into_iter().chain(WRITERS) {
            let count = expected.keys().filter(|(of, _)| *of == ino).count() as u64;
            assert_eq!(presence.count(ino, FileBlock(0), FileBlock(u64::MAX)), count, "inode {ino}");
        }
    }
}

fn model() {
    let model = Arc::new(Model::mount());
    let reader = Arc::clone(&model);
    let reader = spawn("reader", move || reader.read()).unwrap();
    let scan = Arc::clone(&model);
    let scan = spawn("scan", move || while scan.blocks.scan_step().unwrap() {}).unwrap();
    let writers = WRITERS.map(|ino| {
        let model = Arc::clone(&model);
        spawn("writer", move || model.write(ino)).unwrap()
    });
    let mut expected = model.first.clone();
    expected.retain(|(ino, _), _| *ino == STAYS);
    writers.into_iter().for_each(|writer| expected.extend(writer.join().unwrap()));
    reader.join().unwrap();
    scan.join().unwrap();
    model.judge(&expected);
}

#[test]
fn a_file_finds_its_blocks_while_other_files_move_the_entries() {
    explore("moves", Schedules { random: 600, priorities: 600 }, model);
}

/// The model finds a planted mistake.
#[test]
fn a_planted_mistake_is_found() {
    let wrong = || {
        plant(Some(Mistake::SearchIgnoresMoves));
        model();
    };
    // The reader has to stop between its looks at two buckets: about a schedule of a thousand, none at random.
    let found = catch_unwind(AssertUnwindSafe(|| {
        explore("moves", Schedules { random: 1, priorities: 12_000 }, wrong);
    }));
    plant(None);
    assert!(found.is_err(), "the mistake is not found");
}
