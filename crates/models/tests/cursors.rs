//! Readers and a writer of two files share a lock and its cursor (decision 0039). Readers fill the cursor at the same moment;
//! the writer splits leaves, frees leaves and replaces blocks. Each look-up gives what the lock says that the file has.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;
use terrace_blocks::{BlockPool, Purpose};
use terrace_format::{FileBlock, Ino, PmBlock};
use terrace_map::file_map::{Freed, MapChange, MapGuard};
use terrace_map::{Cursor, ExtentTree, FileMap, MapInode, Mapping};
use terrace_models::{Schedules, below, explore, small_pool};
use terrace_runtime::sync::RwLock;
use terrace_runtime::thread::spawn;
use terrace_wal::{Error, Tx, Wal};

const FILES: u64 = 2;
/// Free blocks of the pool: pages of the maps. The mapped blocks are numbers only.
const FREE: u64 = 24;
/// Mapped blocks of a file at first, each an extent: the second leaf is nearly full.
const PIECES: u64 = 238;
const ROUNDS: usize = 3;

/// The lock of both inodes, with their cursor and their mapped blocks.
type Locked = RwLock<(Cursor, BTreeMap<(u64, u64), Mapping>)>;

struct Model {
    wal: Arc<Wal>,
    blocks: Arc<BlockPool>,
    map: ExtentTree,
    inodes: Locked,
}

fn mapping(block: u64, number: u64) -> Mapping {
    Mapping::written(PmBlock(100 + (block * 7 + number * 3) % 300))
}

impl Model {
    fn mount() -> Model {
        let (_, wal) = small_pool(FREE).unwrap();
        let blocks = Arc::new(BlockPool::new(Arc::clone(&wal)));
        while blocks.scan_step().unwrap() {}
        let map = ExtentTree::new(Arc::clone(&blocks));
        let model = Model { wal, blocks, map, inodes: Default::default() };
        for ino in 1..=FILES {
            for first in (0..PIECES).step_by(34) {
                // Every block a piece: neighbours do not follow each other in PM.
                let new = (first..first + 34).map(|block| Some(mapping(block, 0))).collect();
                model.set(ino, first, new);
            }
        }
        model
    }

    fn inode(&self, ino: u64) -> MapInode {
        let page = self.wal.geometry().first_pool_block();
        MapInode { ino: Ino(ino), slot: page.offset().plus(ino * 128), has_cold: false }
    }

    /// Maps blocks; makes room in transactions of their own, each under the lock, as the engine does.
    fn set(&self, ino: u64, first: u64, mappings: Vec<Option<Mapping>>) {
        let change =
            MapChange { inode: self.inode(ino), first: FileBlock(first), mappings: mappings.clone().into() };
        loop {
            let mut inodes = self.inodes.write();
            let (mut tx, mut freed) = (Tx::new(), Freed::new());
            let room = match self.map.missing_room(&[], &change).unwrap() {
                Some(room) => room,
                None => match self.map.change(&mut tx, std::slice::from_ref(&change), 2048, &mut freed) {
                    Err(Error::MapRoom(room)) => *room,
                    guard => {
                        let guard = guard.unwrap();
                        let lsn = self.commit(&tx);
                        guard.committed();
                        self.blocks.freed(lsn, &freed);
                        for (block, mapping) in (first..).zip(mappings) {
                            match mapping {
                                Some(mapping) => inodes.1.insert((ino, block), mapping),
                                None => inodes.1.remove(&(ino, block)),
                            };
                        }
                        return;
                    }
                },
            };
            let mut claim = self.blocks.claim(room.pages, Purpose::Reclaim).unwrap();
            tx.clear();
            let guard = self.map.make_room(&mut tx, &change.inode, &room, &mut claim).unwrap();
            if below(4) == 0 {
                claim.give_back_all();
                continue;
            }
            self.commit(&tx);
            guard.committed();
        }
    }

    fn commit(&self, tx: &Tx) -> terrace_format::Lsn {
        self.wal.commit(self.wal.reserve(tx.record_size()).unwrap(), tx).unwrap()
    }

    fn write(&self) {
        let (ino, block) = (1 + below(FILES), below(PIECES + 10));
        match below(3) {
            0 => self.set(ino, PIECES + below(30), vec![Some(mapping(block, 1)), Some(mapping(block, 5))]),
            1 => self.set(ino, block / 40 * 40, vec![None; 130]),
            _ => {
                let mut inodes = self.inodes.write();
                let (mut tx, new) = (Tx::new(), mapping(block, 2));
                let inode = self.inode(ino);
                let (place, mut guard) = (FileBlock(block), MapGuard::default());
                let exchanged = self.map.exchange(Some(&inodes.0), &mut tx, &inode, (place, new), &mut guard);
                let Some(old) = exchanged.unwrap() else { return };
                assert_eq!(old, inodes.1.get(&(ino, block)).copied());
                self.commit(&tx);
                guard.committed();
                inodes.1.insert((ino, block), new);
            }
        }
    }

    fn read(&self) {
        let (ino, block) = (1 + below(FILES), below(PIECES + 30));
        let inodes = self.inodes.read();
        let (cursor, expected) = &*inodes;
        let found = self.map.lookup_with(cursor, &self.inode(ino), FileBlock(block)).unwrap();
        assert_eq!(found, expected.get(&(ino, block)).copied(), "block {block} of {ino}");
        let mut run = vec![None; 8];
        self.map.lookup_run_with(cursor, &self.inode(ino), FileBlock(block), &mut run).unwrap();
        for (block, found) in (block..).zip(run) {
            assert_eq!(found, expected.get(&(ino, block)).copied(), "block {block} of {ino}, in a run");
        }
    }
}

fn model() {
    let model = Arc::new(Model::mount());
    let works: [fn(&Model); 3] = [Model::write, Model::read, Model::read];
    let start = |work: fn(&Model)| {
        let model = Arc::clone(&model);
        spawn("model", move || (0..ROUNDS).for_each(|_| work(&model))).unwrap()
    };
    let threads: Vec<_> = works.into_iter().map(start).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    (0..4).for_each(|_| model.read());
}

#[test]
fn readers_sharing_a_cursor_find_the_blocks_of_a_file() {
    explore("cursors", Schedules { random: 600, priorities: 300 }, model);
}
