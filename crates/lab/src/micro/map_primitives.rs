//! Nanoseconds of file-map operations on this machine, in the rows of the project's table of floors.
//! The file has 1 GiB and uses 64 MiB of PM. The mapped blocks are numbers only, and more than PM has: a table of all files
//! has no rows. "scattered": no block follows its neighbour, so an extent tree has an extent for each.

use super::fixture::pm_in;
use std::hint::black_box;
use std::sync::Arc;
use terrace_bench::failure::Outcome;
use terrace_blocks::{BlockPool, Purpose, Target};
use terrace_format::map_kind::MapKind;
use terrace_format::{FileBlock, Geometry, Ino, PmBlock};
use terrace_map::file_map::{Freed, MapChange, MapGuard};
use terrace_map::{Cursor, FileMap, InodeFileMap, MAPS, MapInode, MapRow, Mapping};
use terrace_media::PmMedium;
use terrace_runtime::{Clock, SystemClock};
use terrace_wal::{Result, Tx, Wal};

const FILE_BLOCKS: u64 = 256 << 10;
/// Blocks that the numbers of mapped blocks are taken from.
const NUMBERS: u64 = 10_007;
const ROUNDS: usize = 7;
const CALLS: u64 = 1 << 18;

/// Time per call of the fastest round.
fn row(name: &str, calls: u64, mut body: impl FnMut(u64) -> Result<()>) -> Result<()> {
    let clock = SystemClock::default();
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = clock.monotonic_ns();
        for call in 0..calls {
            body(call)?;
        }
        best = best.min((clock.monotonic_ns() - start) as f64 / calls as f64);
    }
    println!("{name:<50} {best:>10.1} ns");
    Ok(())
}

fn in_order(call: u64) -> FileBlock {
    FileBlock(call % FILE_BLOCKS)
}

fn scattered(call: u64) -> FileBlock {
    FileBlock((call.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % FILE_BLOCKS)
}

fn commit(wal: &Wal, tx: &Tx) -> Result<()> {
    let reservation = wal.reserve(tx.record_size())?;
    wal.commit(reservation, tx).map(drop)
}

/// Maps consecutive blocks, as a change.
fn set(
    map: &dyn FileMap,
    tx: &mut Tx,
    inode: &MapInode,
    first: FileBlock,
    mappings: impl IntoIterator<Item = Option<Mapping>>,
) -> Result<()> {
    let change = MapChange { inode: *inode, first, mappings: mappings.into_iter().collect() };
    map.change(tx, &[change], 0, &mut Freed::new())?.committed();
    Ok(())
}

/// The mapping of a block; neighbours lie `step` blocks apart.
fn mapping(blocks: &BlockPool, block: u64, step: u64) -> Option<Mapping> {
    Some(Mapping::written(PmBlock(blocks.first_block().0 + block * step % NUMBERS)))
}

fn build(wal: &Wal, map: &dyn FileMap, blocks: &BlockPool, inode: &MapInode, step: u64) -> Result<()> {
    for first in (0..FILE_BLOCKS).step_by(64) {
        let mappings = (first..first + 64).map(|block| mapping(blocks, block, step));
        let wanted =
            MapChange { inode: *inode, first: FileBlock(first), mappings: mappings.clone().collect() };
        while let Some(room) = map.missing_room(&[], &wanted)? {
            let mut claim = blocks.claim(room.pages, Purpose::User)?;
            let mut tx = Tx::new();
            let made = map.make_room(&mut tx, inode, &room, &mut claim)?;
            commit(wal, &tx)?;
            made.committed();
        }
        let mut tx = Tx::new();
        set(map, &mut tx, inode, FileBlock(first), mappings)?;
        commit(wal, &tx)?;
    }
    Ok(())
}

pub(super) fn run(args: &[String]) -> Outcome<()> {
    let directory = args.first().map_or("/dev/shm", String::as_str);
    let only = args.get(1);
    let rows = MAPS.iter().filter(|row| !row.kind.is_shared() && only.is_none_or(|only| only == row.name));
    for map in rows {
        for (layout, step) in [("in order", 1), ("scattered", 7)] {
            println!("{} of a file {layout}", map.name);
            of_map(directory, map, step)?;
        }
    }
    Ok(())
}

fn of_map(directory: &str, kind: &MapRow, step: u64) -> Outcome<()> {
    let pm: Arc<dyn PmMedium> = pm_in(directory, 64 << 20)?;
    let geometry = Geometry::choose(64 << 20, 4096)?;
    Wal::format(Arc::clone(&pm), [1; 16], geometry)?;
    let wal = Arc::new(Wal::open(pm, [1; 16], geometry)?.0);
    let blocks = Arc::new(BlockPool::new(Arc::clone(&wal)));
    let map = (kind.make)(&blocks)?;
    let slot = blocks.claim(1, Purpose::User)?.take(Target::Page).ok_or("no block")?.offset();
    let inode = MapInode { ino: Ino(5), slot, has_cold: false };
    build(&wal, &*map, &blocks, &inode, step)?;
    let (map, inode) = (&*map, &inode);
    look_ups(map, inode)?;
    changes(&wal, map, &blocks, inode, step)?;
    if kind.kind == MapKind::Radix {
        inode_file(&wal, &blocks, slot.block())?;
    }
    Ok(())
}

/// Changes of a block at a time, in order and at random. A change gives each block its own mapping back.
fn changes(wal: &Wal, map: &dyn FileMap, blocks: &BlockPool, inode: &MapInode, step: u64) -> Result<()> {
    let (mut tx, cursor) = (Tx::new(), Cursor::default());
    for (name, place) in [("in order", in_order as fn(u64) -> FileBlock), ("random", scattered)] {
        row(&format!("missing_room of 1, {name}"), CALLS, |call| {
            let block = place(call);
            let mappings = [mapping(blocks, block.0, step)].into_iter().collect();
            black_box(map.missing_room(&[], &MapChange { inode: *inode, first: block, mappings })?);
            Ok(())
        })?;
        row(&format!("exchange of 1, {name}, without commit"), CALLS, |call| {
            tx.clear();
            let block = place(call);
            if let Some(new) = mapping(blocks, block.0, step) {
                let mut guard = MapGuard::default();
                let old = map.exchange(None, &mut tx, inode, (block, new), &mut guard)?;
                black_box(old.is_some());
            }
            Ok(())
        })?;
        row(&format!("exchange of 1, {name}, without commit, with a cursor"), CALLS, |call| {
            tx.clear();
            let block = place(call);
            if let Some(new) = mapping(blocks, block.0, step) {
                let mut guard = MapGuard::default();
                let old = map.exchange(Some(&cursor), &mut tx, inode, (block, new), &mut guard)?;
                black_box(old.is_some());
            }
            Ok(())
        })?;
        row(&format!("change of 1, {name}, with commit"), CALLS, |call| {
            tx.clear();
            let block = place(call);
            let unwritten = call % 2 == 0 && step > 1;
            let new = mapping(blocks, block.0, step).map(|mapping| Mapping { unwritten, ..mapping });
            set(map, &mut tx, inode, block, [new])?;
            commit(wal, &tx)
        })?;
    }
    Ok(())
}

fn inode_file(wal: &Wal, blocks: &Arc<BlockPool>, page: PmBlock) -> Result<()> {
    let pages = InodeFileMap::new(Arc::clone(blocks));
    let mut tx = Tx::new();
    let mut claim = blocks.claim(3, Purpose::User)?;
    pages.add_nodes(&mut tx, 600, &mut claim)?;
    pages.set(&mut tx, 600, Some(page))?;
    commit(wal, &tx)?;
    row("inode file: lookup of a page", 1 << 20, |_| {
        black_box(pages.lookup(None, black_box(600))?);
        Ok(())
    })
}

fn look_ups(map: &dyn FileMap, inode: &MapInode) -> Result<()> {
    let cursor = Cursor::default();
    for (name, place) in [("in order", in_order as fn(u64) -> FileBlock), ("random", scattered)] {
        row(&format!("lookup, {name}"), CALLS, |call| {
            black_box(map.lookup(inode, place(call))?);
            Ok(())
        })?;
        row(&format!("lookup, {name}, with a cursor"), CALLS, |call| {
            black_box(map.lookup_with(&cursor, inode, place(call))?);
            Ok(())
        })?;
        for count in [16, 256] {
            let mut out = vec![None; count];
            row(&format!("lookup_run of {count}, {name}"), CALLS / 16, |call| {
                map.lookup_run(inode, place(call * count as u64), &mut out)?;
                black_box(&out);
                Ok(())
            })?;
            row(&format!("lookup_run of {count}, {name}, with a cursor"), CALLS / 16, |call| {
                map.lookup_run_with(&cursor, inode, place(call * count as u64), &mut out)?;
                black_box(&out);
                Ok(())
            })?;
        }
    }
    row("lookup of a first block", CALLS, |call| {
        black_box(map.lookup(inode, FileBlock(call % 8))?);
        Ok(())
    })?;
    let mut found = Vec::new();
    row("mapped, random, the first one", CALLS, |call| {
        found.clear();
        black_box(map.mapped(inode, scattered(call), FileBlock(u64::MAX), 1, &mut found)?);
        Ok(())
    })
}
