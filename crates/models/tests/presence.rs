//! Threads write, overwrite and remove blocks of their files, where a table with a reach is the file map, while a thread scans the
//! table and moves the checkpoint. Blocks of different files have the same home. At every moment a file finds its own
//! blocks, at the end memory knows exactly the blocks of the table, and no slot is taken before the checkpoint has passed the
//! record that freed it (T6).
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::Arc;
use terrace_blocks::{BlockPool, Purpose, Target};
use terrace_format::clustered_map::{Lines, Piece};
use terrace_format::map_kind::MapKind;
use terrace_format::table::Owner;
use terrace_format::{FileBlock, Geometry, Ino, Lsn, PmBlock};
use terrace_map::file_map::{Freed, MapChange};
use terrace_map::{FileMap, MAPS, MapInode, MapRow, Mapping};
use terrace_media::PmMedium;
use terrace_media::pm::RecordedPm;
use terrace_models::{PM_SIZE, Schedules, UUID, below, explore, finds, geometry};
use terrace_runtime::planted::Mistake;
use terrace_runtime::sync::Mutex;
use terrace_runtime::thread::spawn;
use terrace_wal::{Result, Tx, Wal};

const WORKERS: u64 = 2;
/// Blocks of each file, all with the same home; the first is there from before the mount.
const BLOCKS: usize = 2;
const ROUNDS: usize = 4;

struct Model {
    wal: Arc<Wal>,
    blocks: Arc<BlockPool>,
    map: Box<dyn FileMap>,
    /// The record that freed a slot last.
    freed: Mutex<BTreeMap<PmBlock, Lsn>>,
    /// The blocks of each file.
    keys: Vec<Vec<FileBlock>>,
}

fn of_table() -> impl Iterator<Item = &'static MapRow> {
    MAPS.iter().filter(|row| row.kind.has_reach())
}

/// Blocks of a file, all with the home of the first block of the first file.
fn keys_of(row: &MapRow, blocks: &BlockPool, ino_of: Ino) -> Vec<FileBlock> {
    let hashed = blocks.hashed().unwrap();
    if row.kind == MapKind::Clustered {
        let lines = Lines::new(hashed.key, blocks.wal().geometry());
        let home = |ino, block| lines.home(Piece::of(ino, block));
        let same = |block: &FileBlock| home(ino_of, *block) == home(ino(0), FileBlock(16));
        return (1..).map(|piece| FileBlock(16 * piece)).filter(same).take(BLOCKS).collect();
    }
    let home = hashed.homes.home(ino(0), FileBlock(1));
    let same = |block: &FileBlock| hashed.homes.home(ino_of, *block) == home;
    (0..).map(FileBlock).filter(same).take(BLOCKS).collect()
}

fn ino(worker: u64) -> Ino {
    Ino(5 + worker)
}

impl Model {
    fn open(pm: Arc<dyn PmMedium>, geometry: Geometry, row: &MapRow) -> Model {
        let (wal, _) = Wal::open(pm, UUID, geometry).unwrap();
        let wal = Arc::new(wal);
        let blocks = Arc::new(BlockPool::of_map(Arc::clone(&wal), UUID));
        let map = (row.make)(&blocks).unwrap();
        let keys = (0..WORKERS).map(|worker| keys_of(row, &blocks, ino(worker))).collect();
        Model { wal, blocks, map, freed: Mutex::default(), keys }
    }

    /// A pool in which each file has a block, just mounted: the table was not scanned.
    fn mount(row: &MapRow) -> Model {
        let geometry = geometry().with_map(row.kind).unwrap();
        let pm: Arc<dyn PmMedium> = Arc::new(RecordedPm::new(PM_SIZE));
        Wal::format(Arc::clone(&pm), UUID, geometry).unwrap();
        pm.write(geometry.map_reach(), &64u64.to_le_bytes()).unwrap();
        let before = Model::open(Arc::clone(&pm), geometry, row);
        for worker in 0..WORKERS {
            before.put(worker, before.keys[worker as usize][0], false).unwrap();
        }
        before.wal.close().unwrap();
        Model::open(pm, geometry, row)
    }

    fn inode(&self, worker: u64) -> MapInode {
        MapInode { ino: ino(worker), slot: self.blocks.first_block().offset(), has_cold: false }
    }

    /// Logs a change and commits it, or gives up. True if it was committed.
    fn change(&self, mut tx: Tx, change: MapChange, old: Option<Mapping>, gives_up: bool) -> Result<bool> {
        let reservation = self.wal.reserve(1024)?;
        if let Some(old) = old {
            self.blocks.release(&mut tx, old.block);
        }
        let guard = self.map.change(&mut tx, &[change], 0, &mut Freed::new())?;
        if gives_up {
            drop(guard);
            old.iter().for_each(|old| self.blocks.keep(old.block));
            return Ok(false);
        }
        let lsn = self.wal.commit(reservation, &tx)?;
        guard.committed();
        if let Some(old) = old {
            self.freed.lock().insert(old.block, lsn);
            self.blocks.freed(lsn, &[old.block]);
        }
        Ok(true)
    }

    /// Gives a block a new place.
    fn put(&self, worker: u64, block: FileBlock, gives_up: bool) -> Result<bool> {
        let mut claim = self.blocks.claim(1, Purpose::Reclaim)?;
        let old = self.map.lookup(&self.inode(worker), block)?;
        let new = claim.take(Target::File { ino: ino(worker), block }).unwrap();
        let passed = self.wal.checkpoint_lsn();
        let freed = self.freed.lock().get(&new).copied();
        assert!(freed.is_none_or(|lsn| lsn < passed), "slot {new} is taken before the checkpoint");
        let mut tx = Tx::new();
        self.blocks.set_owner(&mut tx, new, Owner::File { ino: ino(worker), block, unwritten: false });
        let mappings = [Some(Mapping::written(new))].into_iter().collect();
        let change = MapChange { inode: self.inode(worker), first: block, mappings };
        let done = self.change(tx, change, old, gives_up)?;
        if !done {
            claim.give_back_all();
        }
        Ok(done)
    }

    fn remove(&self, worker: u64, block: FileBlock, gives_up: bool) -> Result<bool> {
        let Some(old) = self.map.lookup(&self.inode(worker), block)? else { return Ok(false) };
        let mappings = [None].into_iter().collect();
        let change = MapChange { inode: self.inode(worker), first: block, mappings };
        self.change(Tx::new(), change, Some(old), gives_up)
    }

    /// Works on a file; gives its blocks at the end.
    fn work(&self, worker: u64) -> Vec<FileBlock> {
        let keys = &self.keys[worker as usize];
        let mut there = vec![keys[0]];
        for _ in 0..ROUNDS {
            let block = keys[below(BLOCKS as u64) as usize];
            let gives_up = below(4) == 0;
            let done = if below(3) == 0 {
                let done = self.remove(worker, block, gives_up).unwrap();
                there.retain(|there| !done || *there != block);
                done
            } else {
                let done = self.put(worker, block, gives_up).unwrap();
                if done && !there.contains(&block) {
                    there.push(block);
                }
                done
            };
            assert!(!(done && gives_up), "a change that was given up is done");
            for block in keys {
                let found = self.map.lookup(&self.inode(worker), *block).unwrap();
                assert_eq!(found.is_some(), there.contains(block), "block {block} of worker {worker}");
            }
        }
        there.sort_unstable();
        there
    }

    /// After all threads have ended memory knows the blocks that the table has, and these are the files'.
    fn judge(&self, worker: u64, there: &[FileBlock]) {
        let mut of_table = BTreeMap::new();
        for slot in (self.blocks.first_block().0..self.blocks.end_block().0).map(PmBlock) {
            if let Owner::File { ino: of, block, .. } = self.blocks.owner(slot).unwrap()
                && of == ino(worker)
            {
                let earlier = of_table.insert(block, slot);
                assert_eq!(earlier, None, "block {block} is in two slots");
            }
        }
        let mut listed = Vec::new();
        let all = (FileBlock(0), FileBlock(u64::MAX));
        assert_eq!(self.blocks.hashed().unwrap().presence.list(ino(worker), all, 99, &mut listed), None);
        assert_eq!(
            (listed.as_slice(), of_table.keys().copied().collect::<Vec<_>>().as_slice()),
            (there, there)
        );
    }
}

fn model(row: &MapRow) {
    let model = Arc::new(Model::mount(row));
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let model = Arc::clone(&model);
            spawn("worker", move || model.work(worker)).unwrap()
        })
        .collect();
    let background = Arc::clone(&model);
    let background = move || {
        while background.blocks.scan_step().unwrap() {}
        background.wal.checkpoint_if_idle().unwrap();
        background.blocks.drain_quarantine();
        background.wal.checkpoint().unwrap();
        background.blocks.drain_quarantine();
    };
    let background = spawn("background", background).unwrap();
    let there: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
    background.join().unwrap();
    while model.blocks.scan_step().unwrap() {}
    for (worker, there) in (0..).zip(&there) {
        model.judge(worker, there);
    }
}

#[test]
fn memory_knows_the_blocks_of_the_table_at_every_order_of_scan_change_and_checkpoint() {
    for row in of_table() {
        explore("presence", Schedules { random: 600, priorities: 600 }, move || model(row));
    }
}

/// The model is wrong with mistakes that it has to find.
#[test]
fn planted_mistakes_are_found() {
    let mistakes =
        [Mistake::PresenceBeforeCommit, Mistake::ClaimIgnoresQuarantine, Mistake::ClaimIgnoresClaims];
    for mistake in mistakes {
        // Only free lines of the clustered map are claimed.
        let has_it = |row: &&MapRow| mistake != Mistake::ClaimIgnoresClaims || row.kind == MapKind::Clustered;
        for row in of_table().filter(has_it) {
            let found =
                finds("presence", mistake, Schedules { random: 300, priorities: 300 }, move || model(row));
            assert!(found, "{mistake:?} is not found with {}", row.name);
        }
    }
}
