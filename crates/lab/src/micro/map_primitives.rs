//! Nanoseconds of file-map operations on this machine, in the rows of the project's table of floors.
//! The file has 128 K blocks and uses 64 MiB. The mapped blocks are numbers only.

use super::fixture::pm_in;
use std::hint::black_box;
use std::sync::Arc;
use terrace_bench::failure::Outcome;
use terrace_blocks::{BlockPool, Purpose, Target};
use terrace_format::{FileBlock, Geometry, Ino, PmBlock};
use terrace_map::file_map::{Freed, MapChange};
use terrace_map::{FileMap, InodeFileMap, MapInode, Mapping, RadixTree};
use terrace_media::PmMedium;
use terrace_runtime::{Clock, SystemClock};
use terrace_wal::{Result, Tx, Wal};

const FILE_BLOCKS: u64 = 128 << 10;
const ROUNDS: usize = 7;

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

fn build(wal: &Wal, map: &dyn FileMap, blocks: &BlockPool, inode: &MapInode) -> Result<()> {
    let first = blocks.first_block().0;
    let all = (0..FILE_BLOCKS).map(|block| Some(Mapping::written(PmBlock(first + 2 * block % 10_000))));
    let wanted = MapChange { inode: *inode, first: FileBlock(0), mappings: all.collect() };
    while let Some(room) = map.missing_room(&[], &wanted)? {
        let mut claim = blocks.claim(room.pages.min(50), Purpose::User)?;
        let mut tx = Tx::new();
        let made = map.make_room(&mut tx, inode, &room, &mut claim)?;
        commit(wal, &tx)?;
        made.committed();
    }
    for start in (0..FILE_BLOCKS).step_by(256) {
        let numbers = (start..start + 256).map(|b| PmBlock(first + b % 10_000));
        let mappings = numbers.map(|block| Some(Mapping::written(block)));
        let mut tx = Tx::new();
        set(map, &mut tx, inode, FileBlock(start), mappings)?;
        commit(wal, &tx)?;
    }
    Ok(())
}

pub(super) fn run(args: &[String]) -> Outcome<()> {
    let directory = args.first().map_or("/dev/shm", String::as_str);
    let pm: Arc<dyn PmMedium> = pm_in(directory, 64 << 20)?;
    println!("{}", pm.describe());
    let geometry = Geometry::choose(64 << 20, 4096)?;
    Wal::format(Arc::clone(&pm), [1; 16], geometry)?;
    let wal = Arc::new(Wal::open(pm, [1; 16], geometry)?.0);
    let blocks = Arc::new(BlockPool::new(Arc::clone(&wal)));
    let map: Box<dyn FileMap> = Box::new(RadixTree::new(Arc::clone(&blocks)));
    let slot = blocks.claim(1, Purpose::User)?.take(Target::Page).ok_or("no block")?.offset();
    let inode = MapInode { ino: Ino(5), slot };
    build(&wal, &*map, &blocks, &inode)?;
    let (map, inode) = (&*map, &inode);
    look_ups(map, inode)?;
    let (mut tx, number) = (Tx::new(), blocks.first_block().0);
    row("set of 1, random, without commit", 1 << 18, |call| {
        tx.clear();
        let new = [Some(Mapping::written(PmBlock(number + (call * 7) % 9_999)))];
        set(map, &mut tx, inode, scattered(call), new)
    })?;
    row("set of 1, random, with commit", 1 << 18, |call| {
        tx.clear();
        let new = [Some(Mapping::written(PmBlock(number + (call * 11) % 9_998)))];
        set(map, &mut tx, inode, scattered(call), new)?;
        commit(&wal, &tx)
    })?;
    let pages = InodeFileMap::new(Arc::clone(&blocks));
    let mut tx = Tx::new();
    let mut claim = blocks.claim(3, Purpose::User)?;
    pages.add_nodes(&mut tx, 600, &mut claim)?;
    pages.set(&mut tx, 600, Some(slot.block()))?;
    commit(&wal, &tx)?;
    row("inode file: lookup of a page", 1 << 20, |_| {
        black_box(pages.lookup(None, black_box(600))?);
        Ok(())
    })?;
    Ok(())
}

fn look_ups(map: &dyn FileMap, inode: &MapInode) -> Result<()> {
    row("lookup, random", 1 << 20, |call| {
        black_box(map.lookup(inode, scattered(call))?);
        Ok(())
    })?;
    row("lookup, direct pointer", 1 << 20, |call| {
        black_box(map.lookup(inode, FileBlock(call % 8))?);
        Ok(())
    })?;
    for count in [1, 16, 256] {
        let mut out = vec![None; count];
        row(&format!("lookup_run of {count}, random"), 1 << 18, |call| {
            map.lookup_run(inode, scattered(call), &mut out)?;
            black_box(&out);
            Ok(())
        })?;
    }
    let mut found = Vec::new();
    row("mapped, random, the first one", 1 << 18, |call| {
        found.clear();
        black_box(map.mapped(inode, scattered(call), FileBlock(u64::MAX), 1, &mut found)?);
        Ok(())
    })?;
    let mappings = [Some(Mapping::written(PmBlock(1000)))].into_iter().collect();
    let mut wanted = MapChange { inode: *inode, first: FileBlock(0), mappings };
    row("missing_room, one block, random", 1 << 20, |call| {
        wanted.first = scattered(call);
        black_box(map.missing_room(&[], &wanted)?);
        Ok(())
    })?;
    Ok(())
}
