//! A demoted file read from its beginning to its end, against the bandwidth of its device: emulated devices
//! of each class over memory, in process, by requests of 128 KiB and 1 MiB (as a kernel makes them).
//!
//! `cargo run --release -p terrace-engine --example sequential_read [MiB] [rounds] [class…]`
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stdout)]

use std::panic::Location;
use std::sync::Arc;
use terrace_engine::{
    Background, Caller, DeviceClass, Engine, FormatOptions, MountOptions, Movements, NewDevice, PolicyKind,
    PoolMedia, Wait, WriteFlags, format, read_superblock,
};
use terrace_format::{DeviceBlock, Ino, PmOffset};
use terrace_media::block::{AlignedBlock, EmulatedBlock};
use terrace_media::pm::RamPm;
use terrace_media::speed::{Speed, named};
use terrace_media::{BlockMedium, MediaError, PmMedium};
use terrace_runtime::sync::RwLock;
use terrace_runtime::{Clock, SystemClock};

const W: Wait = Wait::Allowed;
const CALLER: Caller = Caller { uid: 0, gid: 0 };

/// Memory as a device; the emulation above it takes the time.
struct Memory(RwLock<Vec<AlignedBlock>>);

impl BlockMedium for Memory {
    fn blocks(&self) -> u64 {
        self.0.read().len() as u64
    }
    fn name(&self) -> &'static str {
        "memory"
    }
    fn read(&self, first: DeviceBlock, into: &mut [AlignedBlock]) -> Result<(), MediaError> {
        let first = first.0 as usize;
        into.clone_from_slice(&self.0.read()[first..first + into.len()]);
        Ok(())
    }
    fn write(&self, first: DeviceBlock, from: &[AlignedBlock]) -> Result<(), MediaError> {
        let first = first.0 as usize;
        self.0.write()[first..first + from.len()].clone_from_slice(from);
        Ok(())
    }
    fn flush_at(&self, _: &'static Location<'static>) -> Result<(), MediaError> {
        Ok(())
    }
}

/// A mounted pool over a device with the reads of a class.
struct World {
    fs: Arc<Engine>,
    file: Ino,
    _background: Background,
}

impl World {
    fn new(speed: Speed, mib: u64, clock: &Arc<SystemClock>) -> World {
        let path = format!("/dev/shm/terrace-sequential-{}", std::process::id());
        let pm = Arc::new(RamPm::create(&path, 64 << 20).unwrap());
        std::fs::remove_file(&path).unwrap();
        pm.prepare(PmOffset(0), pm.size());
        let blocks = (mib + 64) << 8;
        let memory = Arc::new(Memory(RwLock::new(vec![AlignedBlock::zeroed(); blocks as usize])));
        // Writes take no time, because demotion is not measured.
        let speed = Speed { write_latency_ns: 0, write_bytes_per_s: 1 << 40, ..speed };
        let device: Arc<dyn BlockMedium> = Arc::new(EmulatedBlock::new(memory, speed, clock.clone()));
        let media = || PoolMedia { pm: pm.clone(), block: vec![device.clone()] };
        let options = FormatOptions {
            label: String::new(),
            uuid: [1; 16],
            hash_key: [2; 16],
            seal_secret: Some([2; 16]),
            policy: PolicyKind::PREDICTIVE,
            data_ordered: false,
            data_checksums: false,
            chunk_blocks: 4096,
            created_ns: 1,
            root: Default::default(),
            devices: vec![NewDevice { tier: 1, class: DeviceClass::Ssd, uuid: [3; 16], path: "/d".into() }],
        };
        format(&media(), &options).unwrap();
        let mount = || {
            let (superblock, _) = read_superblock(&*pm, true).unwrap();
            Engine::mount(media(), superblock, MountOptions::default(), clock.clone()).unwrap()
        };
        let fs = mount();
        let file = fs.mknod(Ino(1), b"file", 0o100644, 0, CALLER, W).unwrap().ino;
        let background = fs.start_background().unwrap();
        for piece in 0..mib {
            fs.write(file, piece << 20, &vec![piece as u8; 1 << 20], WriteFlags::default(), W).unwrap();
        }
        fs.sync_to(1, &mut |_| {}).unwrap();
        drop(background);
        fs.unmount().unwrap();
        drop(fs);
        // A second mount, with no page of the file in DRAM.
        let fs = mount();
        World { _background: fs.start_background().unwrap(), fs, file }
    }

    /// Bytes per second of the whole file read once.
    fn read(&self, mib: u64, request: usize, clock: &SystemClock) -> f64 {
        let mut into = vec![0; request];
        let begin = clock.monotonic_ns();
        let mut at = 0;
        while at < mib << 20 {
            let count = self.fs.read(self.file, at, &mut into, W).unwrap();
            assert!(count == request && into[0] == (at >> 20) as u8 && into[count - 1] == into[0]);
            at += count as u64;
        }
        at as f64 * 1e9 / (clock.monotonic_ns() - begin) as f64
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let mut number = |default| args.next().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (mib, rounds) = (number(1024u64), number(3u64));
    let mut classes: Vec<String> = args.collect();
    if classes.is_empty() {
        classes = ["disk", "sata", "nvme", "optane"].map(String::from).to_vec();
    }
    let clock = Arc::new(SystemClock::default());
    println!("{mib} MiB, demoted, read from its beginning to its end: share of the device's bandwidth");
    for name in classes {
        let speed = named(&name).unwrap().speed;
        let world = World::new(speed, mib, &clock);
        for request in [128 << 10, 1 << 20] {
            let share = |_| world.read(mib, request, &clock) / speed.read_bytes_per_s as f64;
            let mut shares: Vec<f64> = (0..rounds).map(share).collect();
            shares.sort_by(f64::total_cmp);
            println!(
                "{name:6} {:4} KiB: {:.2} ({:.2} to {:.2})",
                request >> 10,
                shares[shares.len() / 2],
                shares[0],
                shares[shares.len() - 1]
            );
        }
    }
}
