//! Times and lines of look-ups in block tables that are file maps, by load. The table is that of 8 GiB of PM and larger
//! than most caches; of PM there is only the front with the table, as no look-up touches a block.

use super::fixture::{number, prepared_pm};
use std::hint::black_box;
use std::panic::Location;
use std::sync::Arc;
use terrace_bench::failure::Outcome;
use terrace_blocks::{BlockPool, Purpose, Target};
use terrace_format::table::{MASK_FULL, Owner};
use terrace_format::{FileBlock, Geometry, Ino, PmBlock, PmOffset};
use terrace_map::{FileMap, MAPS, MapInode, MapRow};
use terrace_media::pm::Promise;
use terrace_media::{MediaError, PmMedium};
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};
use terrace_runtime::{Clock, SystemClock};
use terrace_wal::{Result, Wal};

const KEY: [u8; 16] = [1; 16];
const LOOKUPS: u64 = 200_000;
const COUNTED: u64 = 20_000;
const ROUNDS: usize = 5;
const LOADS_PERCENT: [u64; 4] = [50, 80, 90, 95];

/// The front of a larger PM. Counts reads and the lines that they touch.
struct FrontOfPm {
    below: Arc<dyn PmMedium>,
    size: u64,
    counts: bool,
    reads: AtomicU64,
    lines: AtomicU64,
}

impl PmMedium for FrontOfPm {
    fn size(&self) -> u64 {
        self.size
    }
    fn promise(&self) -> Promise {
        self.below.promise()
    }
    fn describe(&self) -> String {
        self.below.describe()
    }
    fn read(&self, offset: PmOffset, into: &mut [u8]) -> std::result::Result<(), MediaError> {
        if self.counts {
            self.reads.fetch_add(1, Ordering::Relaxed);
            let (first, end) = (offset.0 / 64, (offset.0 + into.len() as u64).div_ceil(64));
            self.lines.fetch_add(end - first, Ordering::Relaxed);
        }
        self.below.read(offset, into)
    }
    fn load_u64(&self, offset: PmOffset) -> std::result::Result<u64, MediaError> {
        self.below.load_u64(offset)
    }
    fn write(&self, offset: PmOffset, bytes: &[u8]) -> std::result::Result<(), MediaError> {
        self.below.write(offset, bytes)
    }
    fn write_streaming(&self, offset: PmOffset, bytes: &[u8]) -> std::result::Result<(), MediaError> {
        self.below.write_streaming(offset, bytes)
    }
    fn expect_load(&self, offset: PmOffset) {
        self.below.expect_load(offset);
    }
    fn write_back(&self, offset: PmOffset, length: u64) {
        self.below.write_back(offset, length);
    }
    fn order_at(&self, at: &'static Location<'static>) {
        self.below.order_at(at);
    }
    fn persist_at(&self, at: &'static Location<'static>) -> std::result::Result<(), MediaError> {
        self.below.persist_at(at)
    }
}

/// A pool filled to a load with files of as many blocks.
struct Filled {
    counted: Arc<FrontOfPm>,
    blocks: Arc<BlockPool>,
    map: Box<dyn FileMap>,
    file_blocks: u64,
    files: u64,
    longest: u64,
}

fn filled(row: &MapRow, bytes: u64, file_blocks: u64, percent: u64) -> Outcome<Filled> {
    let geometry = Geometry::choose(bytes, 4096)?.with_map(row.kind)?;
    let below: Arc<dyn PmMedium> = prepared_pm(geometry.first_pool_block().offset().0)?;
    let front = |counts| {
        let below = Arc::clone(&below);
        Arc::new(FrontOfPm { below, size: bytes, counts, reads: 0.into(), lines: 0.into() })
    };
    let (pm, counted) = (front(false) as Arc<dyn PmMedium>, front(true));
    Wal::format(Arc::clone(&pm), [1; 16], geometry)?;
    let wal = Arc::new(Wal::open(Arc::clone(&pm), [1; 16], geometry)?.0);
    let blocks = Arc::new(BlockPool::of_map(wal, KEY));
    while blocks.scan_step()? {}
    let hashed = blocks.hashed().ok_or("no homes")?;
    let (mut longest, files) = (0, blocks.usage().total * percent / 100 / file_blocks);
    for ino in 1..=files {
        let mut claim = blocks.claim(file_blocks as usize, Purpose::Reclaim)?;
        for block in 0..file_blocks {
            let (ino, block) = (Ino(ino), FileBlock(block));
            let slot = claim.take(Target::File { ino, block }).ok_or("no block")?;
            let owner = Owner::File { ino, block, unwritten: false }.encode();
            let mut entry = [0; 16];
            entry[..8].copy_from_slice(&owner.to_le_bytes());
            entry[8..].copy_from_slice(&MASK_FULL.to_le_bytes());
            pm.write(geometry.table_entry(slot), &entry)?;
            hashed.presence.insert(ino, block);
            longest = longest.max(hashed.homes.distance(hashed.homes.home(ino, block), slot));
        }
    }
    pm.write(geometry.map_reach(), &(longest + 1).next_power_of_two().to_le_bytes())?;
    let map = (row.make)(&blocks)?;
    Ok(Filled { counted, blocks, map, file_blocks, files, longest })
}

impl Filled {
    fn inode(&self, call: u64) -> MapInode {
        let number = (call.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % self.files;
        MapInode { ino: Ino(1 + number), slot: PmBlock(0).offset(), has_cold: false }
    }

    fn absent(&self, call: u64) -> MapInode {
        MapInode { ino: Ino(self.files + 1 + call), ..self.inode(call) }
    }

    /// Time of the fastest round, and lines and reads of a call.
    fn row(&self, name: &str, look: &dyn Fn(&dyn FileMap, u64) -> Result<()>) -> Outcome<()> {
        let clock = SystemClock::default();
        let mut best = f64::INFINITY;
        for _ in 0..ROUNDS {
            let start = clock.monotonic_ns();
            for call in 0..LOOKUPS {
                look(&*self.map, call)?;
            }
            best = best.min((clock.monotonic_ns() - start) as f64 / LOOKUPS as f64);
        }
        let (lines, reads) = self.counts(look)?;
        println!("  {name:<28} {best:>9.1} ns {lines:>8.2} lines {reads:>8.2} reads");
        Ok(())
    }

    /// Lines and reads of a call, by the same map over a medium that counts.
    fn counts(&self, look: &dyn Fn(&dyn FileMap, u64) -> Result<()>) -> Outcome<(f64, f64)> {
        let (counted, geometry) = (&self.counted, *self.blocks.wal().geometry());
        let wal = Wal::open(Arc::clone(counted) as Arc<dyn PmMedium>, [1; 16], geometry)?.0;
        let blocks = Arc::new(BlockPool::of_map(Arc::new(wal), KEY));
        while blocks.scan_step()? {}
        let row = MAPS.iter().find(|row| row.kind == geometry.map).ok_or("no such map")?;
        let map = (row.make)(&blocks)?;
        // Pages of the table are checked when they are met first.
        for call in 0..COUNTED {
            look(&*map, call)?;
        }
        let before = (counted.lines.load(Ordering::Relaxed), counted.reads.load(Ordering::Relaxed));
        for call in 0..COUNTED {
            look(&*map, call)?;
        }
        let each =
            |counter: &AtomicU64, before| (counter.load(Ordering::Relaxed) - before) as f64 / COUNTED as f64;
        Ok((each(&counted.lines, before.0), each(&counted.reads, before.1)))
    }

    fn print(&self) -> Outcome<()> {
        self.row("look-up of a block", &|map, call| {
            let block = FileBlock(call % self.file_blocks);
            assert!(black_box(map.lookup(&self.inode(call), block)?).is_some(), "a block is missing");
            Ok(())
        })?;
        self.row("look-up of an absent block", &|map, call| {
            black_box(map.lookup(&self.absent(call), FileBlock(3))?);
            Ok(())
        })?;
        if self.file_blocks < 16 {
            return Ok(());
        }
        self.row("look-up of 16 blocks", &|map, call| {
            let mut out = [None; 16];
            map.lookup_run(&self.inode(call), FileBlock(0), &mut out)?;
            assert!(black_box(&out).iter().all(Option::is_some), "a block is missing");
            Ok(())
        })?;
        self.row("look-up of 16 absent blocks", &|map, call| {
            let mut out = [None; 16];
            map.lookup_run(&self.absent(call), FileBlock(0), &mut out)?;
            black_box(&out);
            Ok(())
        })
    }
}

pub(super) fn run(args: &[String]) -> Outcome<()> {
    let bytes = number(args, 0, 8) << 30;
    for row in MAPS.iter().filter(|row| row.kind.is_table()) {
        for file_blocks in [16, 1] {
            for percent in LOADS_PERCENT {
                let filled = filled(row, bytes, file_blocks, percent)?;
                println!(
                    "{}, {percent} % full with files of {file_blocks}, longest distance {}",
                    row.name, filled.longest
                );
                filled.print()?;
            }
        }
    }
    Ok(())
}
