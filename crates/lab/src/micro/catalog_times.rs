//! Times of catalog operations on PM that is in the processor's caches. Uses 256 MiB of /dev/shm.

use super::fixture::prepared_pm;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::Arc;
use terrace_bench::failure::Outcome;
use terrace_blocks::{BlockPool, Purpose};
use terrace_catalog::{Catalog, Edit, Freed, ShardsWrite, cold_map, dentry};
use terrace_format::keys::ColdExtent;
use terrace_format::{DeviceBlock, DeviceId, FileBlock, Geometry, Ino};
use terrace_media::PmMedium;
use terrace_runtime::{Clock, SystemClock};
use terrace_wal::{Tx, Wal};

const LOOKUPS: u64 = 400_000;
const EDITS: u64 = 200_000;
const EXTENTS: u64 = 20_000;

fn time(what: &str, count: u64, mut body: impl FnMut(u64)) {
    let clock = SystemClock::default();
    let start = clock.monotonic_ns();
    (0..count).for_each(&mut body);
    println!("{what:40} {:6} ns", (clock.monotonic_ns() - start) / count);
}

/// A number that jumps over all numbers below `count`.
fn scattered(number: u64, count: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % count
}

pub(super) fn run(_: &[String]) -> Outcome<()> {
    let pm: Arc<dyn PmMedium> = prepared_pm(256 << 20)?;
    let geometry = Geometry::choose(pm.size(), 4096)?;
    Wal::format(Arc::clone(&pm), [1; 16], geometry)?;
    let (wal, _) = Wal::open(Arc::clone(&pm), [1; 16], geometry)?;
    let catalog = Catalog::new(Arc::new(BlockPool::new(Arc::new(wal))));
    for names in [5_000u64, 200_000] {
        let directory = Directory::new(&catalog, names);
        directory.time_insert();
        println!("{names} names:");
        directory.time_lookups();
        directory.time_edits();
        directory.time_listing();
    }
    time_cold_map(&catalog);
    Ok(())
}

/// Repeats an edit and its commit until the leaf has room.
fn commit(
    catalog: &Catalog,
    shard: u32,
    record_bytes: usize,
    mut edit: impl FnMut(&mut ShardsWrite<'_>, &mut Tx) -> std::result::Result<(), Edit>,
) {
    loop {
        let reservation = catalog.wal().reserve(record_bytes).unwrap();
        let mut guard = catalog.write(&[shard]);
        let mut tx = Tx::new();
        match edit(&mut guard, &mut tx) {
            Ok(()) => {
                black_box(catalog.wal().commit(reservation, &tx).unwrap());
                return;
            }
            Err(Edit::Full(shortage)) => {
                drop((guard, reservation));
                catalog.make_room_for(&shortage, Purpose::User).unwrap();
            }
            Err(other) => unreachable!("{other}"),
        }
    }
}

/// A directory with names, and its place in the catalog.
struct Directory<'a> {
    catalog: &'a Catalog,
    shard: u32,
    ino: Ino,
    hash: dentry::NameHash,
    names: Vec<Vec<u8>>,
}

impl Directory<'_> {
    fn new(catalog: &Catalog, names: u64) -> Directory<'_> {
        let name = |number: u64| format!("file-{number:07}.dat").into_bytes();
        Directory {
            catalog,
            shard: catalog.shard_of(names),
            ino: Ino(names),
            hash: dentry::NameHash::new(&[9; 16]),
            names: (0..names).map(name).collect(),
        }
    }

    /// A name, all over the directory.
    fn spread(&self, number: u64) -> &Vec<u8> {
        &self.names[scattered(number, self.names.len() as u64) as usize]
    }

    fn time_insert(&self) {
        time("insert dentry, locks, commit, splits", self.names.len() as u64, |number| {
            let name = &self.names[number as usize];
            commit(self.catalog, self.shard, 2048, |guard, tx| {
                dentry::insert(guard, tx, &self.hash, self.ino, name, Ino(5), 8).map(|_| ())
            });
        });
    }

    fn time_lookups(&self) {
        let look_up = |name: &[u8]| {
            let read = self.catalog.read(self.shard);
            black_box(dentry::lookup(read.reader(), &self.hash, self.ino, name).unwrap());
        };
        time("lookup, random, lock included", LOOKUPS, |number| look_up(self.spread(number)));
        time("lookup, one name", LOOKUPS, |_| look_up(self.spread(7)));
        time("lookup, missing", LOOKUPS, |number| look_up(&number.to_le_bytes()));
    }

    fn time_edits(&self) {
        time("remove + insert in a tx, not committed", EDITS, |number| {
            let mut guard = self.catalog.write(&[self.shard]);
            let (mut tx, mut freed) = (Tx::new(), Freed::default());
            let cookie = self.hash.base(self.spread(number));
            dentry::remove(&mut guard, &mut tx, self.ino, cookie).unwrap();
            guard.unlink_emptied(&mut tx, &mut freed).unwrap();
            let name = b"another name";
            black_box(dentry::insert(&mut guard, &mut tx, &self.hash, self.ino, name, Ino(5), 8)).ok();
            freed.abandoned(self.catalog.blocks());
        });
        time("insert in a tx, not committed", EDITS, |number| {
            let mut guard = self.catalog.write(&[self.shard]);
            let mut tx = Tx::new();
            let name = number.to_le_bytes();
            black_box(dentry::insert(&mut guard, &mut tx, &self.hash, self.ino, &name, Ino(5), 8)).ok();
        });
    }

    fn time_listing(&self) {
        let clock = SystemClock::default();
        let mut entries = 0u64;
        let start = clock.monotonic_ns();
        let read = self.catalog.read(self.shard);
        dentry::read_from(read.reader(), self.ino, 0, |_, _| {
            entries += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
        println!("{:40} {:6} ns", "read directory, per entry", (clock.monotonic_ns() - start) / entries);
    }
}

fn time_cold_map(catalog: &Catalog) {
    let ino = Ino(3);
    let shard = catalog.shard_of(ino.0);
    let mut freed = Vec::new();
    time("install cold extent of 128, commit", EXTENTS, |number| {
        let extent = ColdExtent {
            first: FileBlock(number * 128),
            length: 128,
            device: DeviceId(1),
            start: DeviceBlock(1 + number * 128),
            unwritten: false,
            crcs: vec![7; 128],
        };
        commit(catalog, shard, 4096, |guard, tx| cold_map::install(guard, tx, ino, &extent, &mut freed));
    });
    time("lookup cold extent, random", LOOKUPS, |number| {
        let block = FileBlock(scattered(number, EXTENTS * 128));
        let read = catalog.read(shard);
        black_box(cold_map::lookup(read.reader(), ino, block).unwrap());
    });
}
