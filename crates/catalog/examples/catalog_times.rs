//! Times of catalog operations on hot PM: `cargo run --release -p terrace-catalog --example catalog_times`.
//! Needs 256 MiB in /dev/shm; deletes its file.
#![allow(clippy::unwrap_used, missing_docs)]

use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::Arc;
use terrace_blocks::{BlockPool, Purpose};
use terrace_catalog::{Catalog, Edit, Freed, cold_map, dentry};
use terrace_format::keys::ColdExtent;
use terrace_format::{DeviceBlock, DeviceId, FileBlock, Geometry, Ino};
use terrace_media::PmMedium;
use terrace_media::pm::RamPm;
use terrace_runtime::{Clock, SystemClock};
use terrace_wal::{Tx, Wal};

fn main() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let pm: Arc<dyn PmMedium> = Arc::new(RamPm::create(directory.path().join("pm"), 256 << 20).unwrap());
    pm.prepare(terrace_format::PmOffset(0), pm.size());
    let geometry = Geometry::choose(pm.size(), 4096).unwrap();
    Wal::format(Arc::clone(&pm), [1; 16], geometry).unwrap();
    let (wal, _) = Wal::open(Arc::clone(&pm), [1; 16], geometry).unwrap();
    let catalog = Catalog::new(Arc::new(BlockPool::new(Arc::new(wal))));
    let clock = SystemClock::default();
    let time = |what: &str, count: u64, body: &mut dyn FnMut(u64)| {
        let start = clock.monotonic_ns();
        (0..count).for_each(&mut *body);
        println!("{what:40} {:6} ns", (clock.monotonic_ns() - start) / count);
    };
    let hash = dentry::NameHash::new(&[9; 16]);
    for names in [5_000u64, 200_000] {
        let directory = Ino(names);
        let shard = catalog.shard_of(directory.0);
        let name = |i: u64| format!("file-{i:07}.dat").into_bytes();
        let list: Vec<Vec<u8>> = (0..names).map(name).collect();
        let spread = |i: u64| &list[(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % names) as usize];
        time("insert dentry, locks, commit, splits", names, &mut |i| {
            loop {
                let reservation = catalog.wal().reserve(2048).unwrap();
                let mut guard = catalog.write(&[shard]);
                let mut tx = Tx::new();
                match dentry::insert(&mut guard, &mut tx, &hash, directory, &list[i as usize], Ino(5), 8) {
                    Ok(_) => {
                        black_box(catalog.wal().commit(reservation, &tx).unwrap());
                        break;
                    }
                    Err(Edit::Full(shortage)) => {
                        drop((guard, reservation));
                        catalog.make_room_for(&shortage, Purpose::User).unwrap();
                    }
                    Err(other) => unreachable!("{other}"),
                }
            }
        });
        println!("{names} names:");
        time("lookup, random, lock included", 400_000, &mut |i| {
            let read = catalog.read(shard);
            black_box(dentry::lookup(read.reader(), &hash, directory, spread(i)).unwrap());
        });
        time("lookup, one name", 400_000, &mut |_| {
            let read = catalog.read(shard);
            black_box(dentry::lookup(read.reader(), &hash, directory, spread(7)).unwrap());
        });
        time("lookup, missing", 400_000, &mut |i| {
            let read = catalog.read(shard);
            let missing = i.to_le_bytes();
            black_box(dentry::lookup(read.reader(), &hash, directory, &missing).unwrap());
        });
        time("remove + insert in a tx, not committed", 200_000, &mut |i| {
            let mut guard = catalog.write(&[shard]);
            let (mut tx, mut freed) = (Tx::new(), Freed::default());
            let cookie = hash.base(spread(i));
            dentry::remove(&mut guard, &mut tx, directory, cookie).unwrap();
            guard.unlink_emptied(&mut tx, &mut freed).unwrap();
            black_box(dentry::insert(&mut guard, &mut tx, &hash, directory, b"another name", Ino(5), 8)).ok();
            freed.abandoned(catalog.blocks());
        });
        time("insert in a tx, not committed", 200_000, &mut |i| {
            let mut guard = catalog.write(&[shard]);
            let mut tx = Tx::new();
            let name = i.to_le_bytes();
            black_box(dentry::insert(&mut guard, &mut tx, &hash, directory, &name, Ino(5), 8)).ok();
        });
        let mut entries = 0u64;
        let start = clock.monotonic_ns();
        let read = catalog.read(shard);
        dentry::read_from(read.reader(), directory, 0, |_, _| {
            entries += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
        println!("{:40} {:6} ns", "read directory, per entry", (clock.monotonic_ns() - start) / entries);
    }
    let ino = Ino(3);
    let shard = catalog.shard_of(3);
    let mut freed = Vec::new();
    time("install cold extent of 128, commit", 20_000, &mut |i| {
        let extent = ColdExtent {
            first: FileBlock(i * 128),
            length: 128,
            device: DeviceId(1),
            start: DeviceBlock(1 + i * 128),
            unwritten: false,
            crcs: vec![7; 128],
        };
        loop {
            let reservation = catalog.wal().reserve(4096).unwrap();
            let mut guard = catalog.write(&[shard]);
            let mut tx = Tx::new();
            match cold_map::install(&mut guard, &mut tx, ino, &extent, &mut freed) {
                Ok(()) => {
                    black_box(catalog.wal().commit(reservation, &tx).unwrap());
                    break;
                }
                Err(Edit::Full(shortage)) => {
                    drop((guard, reservation));
                    catalog.make_room_for(&shortage, Purpose::User).unwrap();
                }
                Err(other) => unreachable!("{other}"),
            }
        }
    });
    time("lookup cold extent, random", 400_000, &mut |i| {
        let block = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (20_000 * 128);
        let read = catalog.read(shard);
        black_box(cold_map::lookup(read.reader(), ino, FileBlock(block)).unwrap());
    });
}
