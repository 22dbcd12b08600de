//! Synchronous random writes of 4 KiB over a dataset that is 33 times as large as PM: the rate of the
//! foreground, and the share of the bandwidth of the device that demotion reaches. Emulated devices of each
//! class over memory, in process.

use super::fixture::{CALLER, MemoryDevice, ROOT, format_options, mount, number, prepared_pm};
use std::sync::Arc;
use terrace_bench::failure::Outcome;
use terrace_engine::{
    Engine, MigrationReport, MountOptions, PolicyKind, PoolMedia, Wait, WriteFlags, format,
};
use terrace_format::Ino;
use terrace_media::block::EmulatedBlock;
use terrace_media::speed::{Speed, named};
use terrace_media::{BlockMedium, PmMedium};
use terrace_runtime::{Clock, SystemClock};

const W: Wait = Wait::Allowed;
const SYNC: WriteFlags = WriteFlags { sync: true, kill_set_id: false, pages: false };

/// Files over a device, and the numbers that the writers need.
struct Dataset {
    fs: Arc<Engine>,
    files: Vec<Ino>,
    blocks_of_a_file: u64,
}

pub(super) fn run(args: &[String]) -> Outcome<()> {
    let (seconds, mib, threads) = (number(args, 0, 5), number(args, 1, 1024), number(args, 2, 4));
    let mut classes: Vec<&str> = args.iter().skip(3).map(String::as_str).collect();
    if classes.is_empty() {
        classes = vec!["sata", "disk"];
    }
    println!(
        "4 KiB, O_SYNC, random over {mib} MiB, PM 3 %, {threads} threads; {seconds} s each, after as long as PM \
         takes to fill"
    );
    let clock = Arc::new(SystemClock::default());
    classes.iter().try_for_each(|name| run_class(name, seconds, (mib, threads), &clock))
}

/// Fills the files, writes on until PM is full, then measures.
fn run_class(name: &str, seconds: u64, (mib, threads): (u64, u64), clock: &Arc<SystemClock>) -> Outcome<()> {
    let speed = named(name).ok_or_else(|| format!("no class {name}"))?.speed;
    let pm = prepared_pm(((mib << 20) * 3 / 100) & !0x1f_ffff)?;
    let pm_blocks = pm.size() >> 12;
    let memory = Arc::new(MemoryDevice::new((mib + 256) << 8));
    let device: Arc<dyn BlockMedium> = Arc::new(EmulatedBlock::new(memory, speed, clock.clone()));
    let media = PoolMedia { pm, block: vec![device] };
    format(&media, &format_options(PolicyKind::PREDICTIVE, 4096))?;
    let fs = mount(&media, MountOptions::default(), clock.clone())?;
    let _background = fs.start_background()?;
    let dataset = Dataset::new(fs, (mib << 8) / threads, threads)?;
    let mut state = 1;
    for count in 0..pm_blocks {
        dataset.write(dataset.files[(count % threads) as usize], &mut state);
    }
    let written_below =
        || Ok::<u64, Box<dyn std::error::Error>>(dataset.fs.io_report()?.tiers[1].sums.write_bytes);
    let (begin, before, moved) = (clock.monotonic_ns(), written_below()?, dataset.fs.status()?.migration);
    let mut took = dataset.write_for(seconds, clock);
    let passed = (clock.monotonic_ns() - begin) as f64 / 1e9;
    took.sort_unstable();
    let bytes = (written_below()? - before) as f64;
    report(name, speed, &took, (passed, bytes), (&moved, &dataset.fs.status()?.migration));
    Ok(())
}

impl Dataset {
    fn new(fs: Arc<Engine>, blocks_of_a_file: u64, files: u64) -> Outcome<Dataset> {
        let mut made = Vec::new();
        for file in 0..files {
            let name = format!("file{file}");
            let ino = fs.mknod(ROOT, name.as_bytes(), 0o100644, 0, CALLER, W)?.ino;
            for piece in 0..blocks_of_a_file / 256 {
                fs.write(ino, piece << 20, &vec![piece as u8; 1 << 20], WriteFlags::default(), W)?;
            }
            fs.fsync(ino, false, W)?;
            made.push(ino);
        }
        Ok(Dataset { fs, files: made, blocks_of_a_file })
    }

    /// Overwrites a random block of a file.
    fn write(&self, ino: Ino, state: &mut u64) {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let block = (*state >> 33) % self.blocks_of_a_file;
        self.fs.write(ino, block << 12, &[7u8; 4096], SYNC, W).unwrap();
    }

    /// A writer for each file; gives the time of each write in nanoseconds.
    fn write_for(&self, seconds: u64, clock: &SystemClock) -> Vec<u64> {
        let end = clock.monotonic_ns() + seconds * 1_000_000_000;
        let write_one = |ino: Ino| {
            let (mut state, mut took, mut at) = (ino.0, Vec::new(), clock.monotonic_ns());
            while at < end {
                self.write(ino, &mut state);
                let now = clock.monotonic_ns();
                took.push(now - at);
                at = now;
            }
            took
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = self.files.iter().map(|ino| scope.spawn(move || write_one(*ino))).collect();
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
        })
    }
}

/// Prints the figures of a class: sorted times of writes, seconds passed and bytes that the device got.
fn report(
    name: &str,
    speed: Speed,
    took: &[u64],
    (passed, bytes): (f64, f64),
    (before, after): (&MigrationReport, &MigrationReport),
) {
    let demoted = (after.demoted_bytes - before.demoted_bytes) as f64;
    let skipped = (after.skipped_bytes - before.skipped_bytes) as f64;
    let at = |share: f64| took[(took.len() as f64 * share) as usize] as f64 / 1e3;
    println!(
        "{name:6}: foreground {:.0} MB/s, device {:.0} MB/s ({:.2} of its limit), written per byte demoted {:.3}, \
         skipped {:.3}; a write {:.1} µs, p99 {:.0} µs, p99.9 {:.0} µs, longest {:.0} µs",
        took.len() as f64 * 4096.0 / passed / 1e6,
        bytes / passed / 1e6,
        bytes / passed / speed.write_bytes_per_s as f64,
        bytes / demoted,
        skipped / demoted,
        at(0.5),
        at(0.99),
        at(0.999),
        took[took.len() - 1] as f64 / 1e3,
    );
}
