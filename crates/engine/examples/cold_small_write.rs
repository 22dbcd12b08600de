//! The time of a small synchronous write to a cold file: 512 bytes over demoted blocks of a device with reads
//! of 10 ms, or appended to files with a demoted last block. Compared with the same writes to files in PM,
//! and with reading the block first, as all the publications do (`MountOptions::read_first`).
//!
//! `cargo run --release -p terrace-engine --example cold_small_write [rounds]`
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stdout)]

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;
use terrace_engine::{
    Caller, DeviceClass, Engine, FormatOptions, MountOptions, Movements, NewDevice, PolicyKind, PoolMedia,
    Wait, WriteFlags, format, read_superblock,
};
use terrace_format::{DeviceBlock, Ino, PmOffset};
use terrace_media::block::{AlignedBlock, SimulatedDevice};
use terrace_media::pm::RamPm;
use terrace_media::{BlockMedium, MediaError, PmMedium};
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
struct Slow(SimulatedDevice);

impl BlockMedium for Slow {
    fn blocks(&self) -> u64 {
        self.0.blocks()
    }
    fn name(&self) -> &str {
        self.0.name()
    }
    fn read(&self, first: DeviceBlock, into: &mut [AlignedBlock]) -> Result<(), MediaError> {
        std::thread::sleep(READ);
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
struct World {
    fs: Arc<Engine>,
    cold: Ino,
    cold_tails: Vec<Ino>,
    warm: Ino,
    warm_tails: Vec<Ino>,
}

impl World {
    fn new(read_first: bool, clock: &Arc<SystemClock>) -> World {
        let path = format!("/dev/shm/terrace-cold-{}-{read_first}", std::process::id());
        let pm = Arc::new(RamPm::create(&path, 128 << 20).unwrap());
        std::fs::remove_file(&path).unwrap();
        pm.prepare(PmOffset(0), pm.size());
        let device = Arc::new(Slow(SimulatedDevice::new(16_385)));
        let media = || PoolMedia { pm: pm.clone(), block: vec![device.clone() as Arc<dyn BlockMedium>] };
        let options = FormatOptions {
            label: String::new(),
            uuid: [1; 16],
            hash_key: [2; 16],
            seal_secret: Some([2; 16]),
            policy: PolicyKind::STATIC,
            data_ordered: false,
            data_checksums: false,
            chunk_blocks: 4096,
            created_ns: 1,
            root: Default::default(),
            devices: vec![NewDevice { tier: 1, class: DeviceClass::Hdd, uuid: [3; 16], path: "/d".into() }],
        };
        format(&media(), &options).unwrap();
        let (superblock, _) = read_superblock(&*pm, true).unwrap();
        // Each read of the device is one block: blocks read ahead would be in DRAM for the next write.
        let options = MountOptions { read_first, prefetch_bytes: 0, ..Default::default() };
        let fs = Engine::mount(media(), superblock, options, clock.clone()).unwrap();
        let (cold, cold_tails) = make(&fs, "cold");
        fs.sync_to(1, &mut |_| {}).unwrap();
        let (warm, warm_tails) = make(&fs, "warm");
        World { fs, cold, cold_tails, warm, warm_tails }
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
    let caller = Caller { uid: 0, gid: 0 };
    let root = Ino(1);
    let create = |name: String| fs.mknod(root, name.as_bytes(), 0o100644, 0, caller, W).unwrap().ino;
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

fn main() {
    let rounds: u64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(10);
    let rounds = rounds.clamp(1, FILES / TURNS);
    let clock = Arc::new(SystemClock::default());
    let (lines, first) = (World::new(false, &clock), World::new(true, &clock));
    let run = |turn: &dyn Fn(u64), round: u64| {
        let begin = clock.monotonic_ns();
        (round * TURNS..(round + 1) * TURNS).for_each(turn);
        (clock.monotonic_ns() - begin) as f64 / TURNS as f64
    };
    let way = |world: &World, append: bool, cold: bool, round: u64| match (append, cold) {
        (false, true) => run(&|turn| world.overwrite(world.cold, turn), round),
        (false, false) => run(&|turn| world.overwrite(world.warm, turn), round),
        (true, true) => run(&|turn| world.append(&world.cold_tails, turn), round),
        (true, false) => run(&|turn| world.append(&world.warm_tails, turn), round),
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
            "{name:9}: in PM {pm:.0} ns, cold {below:.0} ns ({middle:.2}x, {least:.2} to {most:.2}), cold and read first {read:.0} ns ({:.0}x)",
            read / pm
        );
    }
}
