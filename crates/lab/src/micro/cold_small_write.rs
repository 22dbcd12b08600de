//! The time of a small synchronous write to a cold file: 512 bytes over demoted blocks of a device with reads
//! of 10 ms, or appended to files with a demoted last block. Compared with the same writes to files in PM,
//! and with reading the block first, as all the publications do (`MountOptions::no_partial_shadows`).

use super::fixture::{CALLER, ROOT, format_options, mount, number, prepared_pm};
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;
use terrace_bench::failure::Outcome;
use terrace_engine::{
    DeviceClass, Engine, FormatOptions, MountOptions, Movements, NewDevice, PolicyKind, PoolMedia, Wait,
    WriteFlags, format,
};
use terrace_format::{DeviceBlock, Ino};
use terrace_media::block::{AlignedBlock, SimulatedDevice};
use terrace_media::{BlockMedium, MediaError};
use terrace_runtime::{Clock, SystemClock};

const READ: Duration = Duration::from_millis(10);
/// Blocks of the overwritten file, and number of files for appends.
const BLOCKS: u64 = 4096;
const FILES: u64 = 1000;
/// Operations of each kind in a round.
const TURNS: u64 = 100;
const SYNC: WriteFlags = WriteFlags { sync: true, kill_set_id: false, pages: false };
const W: Wait = Wait::Allowed;

/// A device with the read latency of a disk.
struct SlowDevice(SimulatedDevice, SystemClock);

impl BlockMedium for SlowDevice {
    fn blocks(&self) -> u64 {
        self.0.blocks()
    }
    fn name(&self) -> &str {
        self.0.name()
    }
    fn read(&self, first: DeviceBlock, into: &mut [AlignedBlock]) -> Result<(), MediaError> {
        self.1.sleep(READ);
        self.0.read(first, into)
    }
    fn write(&self, first: DeviceBlock, from: &[AlignedBlock]) -> Result<(), MediaError> {
        self.0.write(first, from)
    }
    fn flush_at(&self, at: &'static Location<'static>) -> Result<(), MediaError> {
        self.0.flush_at(at)
    }
}

/// A mounted pool with a file to overwrite and files to append to, cold ones and ones in PM.
struct ColdAndWarm {
    fs: Arc<Engine>,
    cold: Ino,
    cold_tails: Vec<Ino>,
    warm: Ino,
    warm_tails: Vec<Ino>,
}

impl ColdAndWarm {
    fn new(no_partial_shadows: bool, clock: &Arc<SystemClock>) -> Outcome<ColdAndWarm> {
        let device = Arc::new(SlowDevice(SimulatedDevice::new(16_385), SystemClock::default()));
        let media = PoolMedia { pm: prepared_pm(128 << 20)?, block: vec![device as Arc<dyn BlockMedium>] };
        let tier = NewDevice { tier: 1, class: DeviceClass::Hdd, uuid: [3; 16], path: "/d".into() };
        let options = FormatOptions { devices: vec![tier], ..format_options(PolicyKind::STATIC, 4096) };
        format(&media, &options)?;
        // Each read of the device is one block: blocks read ahead would be in DRAM for the next write.
        let options = MountOptions { no_partial_shadows, prefetch_bytes: 0, ..Default::default() };
        let fs = mount(&media, options, clock.clone())?;
        let (cold, cold_tails) = make(&fs, "cold");
        fs.sync_to(1, &mut |_| {})?;
        let (warm, warm_tails) = make(&fs, "warm");
        Ok(ColdAndWarm { fs, cold, cold_tails, warm, warm_tails })
    }

    fn overwrite(&self, ino: Ino, turn: u64) {
        let block = turn * 1021 % BLOCKS;
        self.fs.write(ino, block * 4096 + 512, &[7; 512], SYNC, W).unwrap();
    }

    fn append(&self, files: &[Ino], turn: u64) {
        self.fs.write(files[turn as usize], 4096 + 512, &[7; 512], SYNC, W).unwrap();
    }
}

fn make(fs: &Engine, name: &str) -> (Ino, Vec<Ino>) {
    let create = |name: String| fs.mknod(ROOT, name.as_bytes(), 0o100644, 0, CALLER, W).unwrap().ino;
    let file = create(name.into());
    for piece in 0..BLOCKS / 256 {
        fs.write(file, piece << 20, &vec![1; 1 << 20], WriteFlags::default(), W).unwrap();
    }
    let tail = |index| {
        let ino = create(format!("{name}-{index}"));
        fs.write(ino, 0, &[1; 4096 + 512], WriteFlags::default(), W).unwrap();
        ino
    };
    (file, (0..FILES).map(tail).collect())
}

fn median(samples: &mut [f64]) -> (f64, f64, f64) {
    samples.sort_by(f64::total_cmp);
    let last = samples.len() - 1;
    (samples[last / 2], samples[0], samples[last])
}

pub(super) fn run(args: &[String]) -> Outcome<()> {
    let rounds = number(args, 0, 10);
    let rounds = rounds.clamp(1, FILES / TURNS);
    let clock = Arc::new(SystemClock::default());
    let (lines, first) = (ColdAndWarm::new(false, &clock)?, ColdAndWarm::new(true, &clock)?);
    let run = |turn: &dyn Fn(u64), round: u64| {
        let begin = clock.monotonic_ns();
        (round * TURNS..(round + 1) * TURNS).for_each(turn);
        (clock.monotonic_ns() - begin) as f64 / TURNS as f64
    };
    let way = |files: &ColdAndWarm, append: bool, cold: bool, round: u64| match (append, cold) {
        (false, true) => run(&|turn| files.overwrite(files.cold, turn), round),
        (false, false) => run(&|turn| files.overwrite(files.warm, turn), round),
        (true, true) => run(&|turn| files.append(&files.cold_tails, turn), round),
        (true, false) => run(&|turn| files.append(&files.warm_tails, turn), round),
    };
    println!("512 bytes, O_SYNC, device reads of {READ:?}; {rounds} interleaved rounds of {TURNS}");
    for (append, name) in [(false, "overwrite"), (true, "append")] {
        let (mut resident, mut cold, mut ratio, mut read) = (vec![], vec![], vec![], vec![]);
        for round in 0..rounds {
            let in_pm = way(&lines, append, false, round);
            let below = way(&lines, append, true, round);
            read.push(way(&first, append, true, round));
            resident.push(in_pm);
            cold.push(below);
            ratio.push(below / in_pm);
        }
        let ((pm, ..), (below, ..), (read, ..)) =
            (median(&mut resident), median(&mut cold), median(&mut read));
        let (middle, least, most) = median(&mut ratio);
        println!(
            "{name:9}: in PM {pm:.0} ns, cold {below:.0} ns ({middle:.2}x, {least:.2} to {most:.2}), \
             cold and read first {read:.0} ns ({:.0}x)",
            read / pm
        );
    }
    Ok(())
}
