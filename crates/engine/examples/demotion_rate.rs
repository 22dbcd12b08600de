//! Synchronous random writes of 4 KiB over a dataset that is 33 times as large as PM: the rate of the
//! foreground, and the share of the bandwidth of the device that demotion reaches. Emulated devices of each
//! class over memory, in process.
//!
//! `cargo run --release -p terrace-engine --example demotion_rate [seconds] [data MiB] [threads] [class…]`
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stdout)]

use std::panic::Location;
use std::sync::Arc;
use terrace_engine::{
    Caller, DeviceClass, Engine, FormatOptions, MountOptions, NewDevice, PolicyKind, PoolMedia, Wait,
    WriteFlags, format, read_superblock,
};
use terrace_format::{DeviceBlock, Ino, PmOffset};
use terrace_media::block::{AlignedBlock, EmulatedBlock};
use terrace_media::pm::RamPm;
use terrace_media::speed::named;
use terrace_media::{BlockMedium, MediaError, PmMedium};
use terrace_runtime::sync::RwLock;
use terrace_runtime::{Clock, SystemClock};

const W: Wait = Wait::Allowed;
const SYNC: WriteFlags = WriteFlags { sync: true, kill_set_id: false, pages: false };
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

fn main() {
    let mut args = std::env::args().skip(1);
    let mut number = |default| args.next().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (seconds, mib, threads) = (number(5u64), number(1024u64), number(4u64));
    let mut classes: Vec<String> = args.collect();
    if classes.is_empty() {
        classes = ["sata", "disk"].map(String::from).to_vec();
    }
    let clock = Arc::new(SystemClock::default());
    println!(
        "4 KiB, O_SYNC, random over {mib} MiB, PM 3 %, {threads} threads; {seconds} s each, after as long as PM takes to fill"
    );
    classes.iter().for_each(|name| run(name, seconds, mib, threads, &clock));
}

/// Fills the file, writes on until PM is full, then measures.
fn run(name: &str, seconds: u64, mib: u64, threads: u64, clock: &Arc<SystemClock>) {
    let speed = named(name).unwrap().speed;
    let path = format!("/dev/shm/terrace-demotion-{}", std::process::id());
    let pm = Arc::new(RamPm::create(&path, ((mib << 20) * 3 / 100) & !0x1f_ffff).unwrap());
    std::fs::remove_file(&path).unwrap();
    pm.prepare(PmOffset(0), pm.size());
    let memory = Arc::new(Memory(RwLock::new(vec![AlignedBlock::zeroed(); ((mib + 256) << 8) as usize])));
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
    let (superblock, _) = read_superblock(&*pm, true).unwrap();
    let fs = Engine::mount(media(), superblock, MountOptions::default(), clock.clone()).unwrap();
    let _background = fs.start_background().unwrap();
    let blocks = (mib << 8) / threads;
    let files: Vec<Ino> = (0..threads)
        .map(|file| {
            let name = format!("file{file}");
            let ino = fs.mknod(Ino(1), name.as_bytes(), 0o100644, 0, CALLER, W).unwrap().ino;
            for piece in 0..blocks / 256 {
                let bytes = vec![piece as u8; 1 << 20];
                fs.write(ino, piece << 20, &bytes, WriteFlags::default(), W).unwrap();
            }
            fs.fsync(ino, false, W).unwrap();
            ino
        })
        .collect();
    let write = |ino: Ino, state: &mut u64| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        fs.write(ino, ((*state >> 33) % blocks) << 12, &[7u8; 4096], SYNC, W).unwrap();
    };
    let mut state = 1;
    (0..pm.size() >> 12).for_each(|count| write(files[(count % threads) as usize], &mut state));
    let written_below = || fs.io_report().unwrap().tiers[1].sums.write_bytes;
    let (begin, before, moved) = (clock.monotonic_ns(), written_below(), fs.status().unwrap().migration);
    let end = begin + seconds * 1_000_000_000;
    let mut took: Vec<u64> = std::thread::scope(|scope| {
        let one = |ino: Ino| {
            let (mut state, mut took, mut at) = (ino.0, Vec::new(), clock.monotonic_ns());
            while at < end {
                write(ino, &mut state);
                let now = clock.monotonic_ns();
                took.push(now - at);
                at = now;
            }
            took
        };
        let workers: Vec<_> = files.iter().map(|ino| scope.spawn(move || one(*ino))).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let passed = (clock.monotonic_ns() - begin) as f64 / 1e9;
    let bytes = (written_below() - before) as f64;
    let after = fs.status().unwrap().migration;
    let demoted = (after.demoted_bytes - moved.demoted_bytes) as f64;
    let skipped = (after.skipped_bytes - moved.skipped_bytes) as f64;
    took.sort_unstable();
    let at = |share: f64| took[(took.len() as f64 * share) as usize] as f64 / 1e3;
    println!(
        "{name:6}: foreground {:.0} MB/s, device {:.0} MB/s ({:.2} of its limit), written per byte demoted {:.3}, skipped {:.3}; \
         a write {:.1} µs, p99 {:.0} µs, p99.9 {:.0} µs, longest {:.0} µs",
        took.len() as f64 * 4096.0 / passed / 1e6,
        bytes / passed / 1e6,
        bytes / passed / speed.write_bytes_per_s as f64,
        bytes / demoted,
        skipped / demoted,
        at(0.5),
        at(0.99),
        at(0.999),
        *took.last().unwrap() as f64 / 1e3,
    );
}
