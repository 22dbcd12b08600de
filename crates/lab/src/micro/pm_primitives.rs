//! Nanoseconds of the PM and device primitives on this machine, in the rows of the project's table of floors.
//! Uses 256 MiB of each directory and deletes them.

use std::hint::black_box;
use std::path::Path;
use terrace_bench::failure::Outcome;
use terrace_format::{DeviceBlock, PmOffset};
use terrace_media::block::{AlignedBlock, FileDevice};
use terrace_media::pm::RamPm;
use terrace_media::{BlockMedium, MediaError, PmMedium};
use terrace_runtime::{Clock, SystemClock};

const SIZE: u64 = 256 << 20;
/// Runs of each measurement; the fastest counts, since the machine may be busy.
const ROUNDS: usize = 7;

struct Bench {
    clock: SystemClock,
}

impl Bench {
    /// Time per call of the fastest round, in nanoseconds.
    fn time<F>(&self, calls: u64, mut body: F) -> Result<f64, MediaError>
    where
        F: FnMut(u64) -> Result<(), MediaError>,
    {
        let mut best = f64::INFINITY;
        for _ in 0..ROUNDS {
            let start = self.clock.monotonic_ns();
            for call in 0..calls {
                body(call)?;
            }
            let spent = self.clock.monotonic_ns() - start;
            best = best.min(spent as f64 / calls as f64);
        }
        Ok(best)
    }
}

fn row(name: &str, ns: f64) {
    println!("{name:<58} {ns:>12.1} ns");
}

/// A position that jumps over the whole medium, block by block.
fn scattered(call: u64) -> PmOffset {
    PmOffset(call.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (SIZE / 4096) * 4096)
}

fn persistent_memory(bench: &Bench, directory: &Path) -> Outcome<()> {
    let path = directory.join("pm");
    let start = bench.clock.monotonic_ns();
    drop(RamPm::create(&path, SIZE)?);
    let created = bench.clock.monotonic_ns();
    let ram = RamPm::open(&path, false)?;
    let opened = bench.clock.monotonic_ns();
    ram.prepare(PmOffset(0), SIZE);
    let prepared = bench.clock.monotonic_ns();
    drop(ram);
    let ram = RamPm::open(&path, false)?;
    let reopened = bench.clock.monotonic_ns();
    ram.prepare(PmOffset(0), SIZE);
    let again = bench.clock.monotonic_ns();
    println!("{}", ram.describe());
    row("create 256 MiB", (created - start) as f64);
    row("open 256 MiB", (opened - created) as f64);
    row("prepare 256 MiB, first time", (prepared - opened) as f64);
    row("prepare 256 MiB, after reopening", (again - reopened) as f64);

    // through the trait object, as every caller does
    let pm: &dyn PmMedium = black_box(&ram);
    let data = vec![0x5a; 1 << 20];
    for length in [64usize, 256] {
        let bytes = &data[..length];
        let ns = bench.time(200_000, |_| {
            pm.write_streaming(PmOffset(4096), bytes)?;
            pm.order();
            Ok(())
        })?;
        row(&format!("{length} B write_streaming + order"), ns);
        let ns = bench.time(200_000, |_| {
            pm.write(PmOffset(4096), bytes)?;
            pm.order();
            Ok(())
        })?;
        row(&format!("{length} B write + order"), ns);
    }
    time_blocks(bench, pm, &data[..4096])?;
    let ns = bench.time(1_000_000, |call| {
        black_box(pm.load_u64(PmOffset(call % 512 * 8))?);
        Ok(())
    })?;
    row("load_u64, hot", ns);
    let mut line = [0; 64];
    let ns = bench.time(1_000_000, |call| pm.read(PmOffset(call % 64 * 64), black_box(&mut line)))?;
    row("64 B read, hot", ns);
    let ns = bench.time(100, |call| {
        pm.write_streaming(PmOffset((call % 200) << 20), &data)?;
        pm.order();
        Ok(())
    })?;
    row("1 MiB write_streaming + order", ns);
    println!("  = {:.1} GB/s", (1 << 20) as f64 / ns);
    Ok(())
}

/// Writes and reads of a block, at a position that stays and at positions all over the medium.
fn time_blocks(bench: &Bench, pm: &dyn PmMedium, block: &[u8]) -> Outcome<()> {
    for (name, position) in [("hot", (|_| PmOffset(8192)) as fn(u64) -> PmOffset), ("cold", scattered)] {
        let ns = bench.time(100_000, |call| {
            pm.write_streaming(position(call), block)?;
            pm.order();
            Ok(())
        })?;
        row(&format!("4 KiB write_streaming + order, {name}"), ns);
        let ns = bench.time(50_000, |call| {
            pm.write(position(call), block)?;
            pm.order();
            Ok(())
        })?;
        row(&format!("4 KiB write + order, {name}"), ns);
        let mut into = vec![0; 4096];
        let ns = bench.time(100_000, |call| pm.read(position(call), black_box(&mut into)))?;
        row(&format!("4 KiB read, {name}"), ns);
    }
    let ns = bench.time(100_000, |call| {
        pm.write_streaming(scattered(call), block)?;
        pm.write_streaming(PmOffset(call % 1024 * 64), &block[..64])?;
        pm.order();
        Ok(())
    })?;
    row("4 KiB data + 64 B record, one fence", ns);
    Ok(())
}

fn device(bench: &Bench, directory: &Path) -> Outcome<()> {
    let path = directory.join("disk");
    drop(FileDevice::create(&path, SIZE)?);
    for by_calls in [false, true] {
        let mut device = FileDevice::open(&path, true, false)?;
        if by_calls {
            device = device.without_io_uring();
        }
        println!("{}", device.describe());
        let large = vec![AlignedBlock([7; 4096]); 4096];
        for group in 0..SIZE / (16 << 20) {
            device.write(DeviceBlock(group * 4096), &large)?;
        }
        device.flush()?;
        let ns = bench.time(4, |call| device.write(DeviceBlock(call * 4096), &large))?;
        row("16 MiB sequential write", ns);
        println!("  = {:.2} GB/s", (16 << 20) as f64 / ns);
        let mut back = large.clone();
        let ns = bench.time(4, |call| device.read(DeviceBlock(call * 4096), &mut back))?;
        row("16 MiB sequential read", ns);
        println!("  = {:.2} GB/s", (16 << 20) as f64 / ns);
        let mut single = vec![AlignedBlock::zeroed()];
        let ns = bench.time(500, |call| {
            let block = scattered(call).0 / 4096;
            device.read(DeviceBlock(block), &mut single)
        })?;
        row("4 KiB random read", ns);
        let ns = bench.time(10, |call| {
            device.write(DeviceBlock(call * 64), &single)?;
            device.flush()
        })?;
        row("4 KiB write + flush", ns);
    }
    Ok(())
}

pub(super) fn run(args: &[String]) -> Outcome<()> {
    let pm_parent = args.first().map_or("/dev/shm", String::as_str);
    let device_parent = args.get(1).map_or("/var/tmp", String::as_str);
    let bench = Bench { clock: SystemClock::default() };
    let directory = tempfile::tempdir_in(pm_parent)?;
    persistent_memory(&bench, directory.path())?;
    let directory = tempfile::tempdir_in(device_parent)?;
    device(&bench, directory.path())
}
