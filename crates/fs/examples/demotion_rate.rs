//! Synchronous random writes of 4 KiB over a dataset that PM holds 3 % of: what the foreground gets, and how near its
//! demotions come to what the device can write. Emulated devices of each class over memory, in process.
//! `cargo run --release -p terrace-fs --example demotion_rate [seconds] [data MiB] [class…]`
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stdout)]

use std::panic::Location;
use std::sync::Arc;
use terrace_format::{DeviceBlock, Ino, PmOffset};
use terrace_fs::{
    Caller, DeviceClass, FormatOptions, Fs, MountOptions, NewDevice, PolicyKind, PoolMedia, Wait, WriteFlags,
    format, read_superblock,
};
use terrace_media::block::{AlignedBlock, EmulatedBlock};
use terrace_media::pm::RamPm;
use terrace_media::speed::named;
use terrace_media::{BlockMedium, MediaError, PmMedium};
use terrace_runtime::sync::RwLock;
use terrace_runtime::{Clock, SystemClock};

const W: Wait = Wait::Allowed;
const SYNC: WriteFlags = WriteFlags { sync: true, kill_set_id: false };
const CALLER: Caller = Caller { uid: 0, gid: 0 };

/// Memory as a device: what is above it is what takes time.
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
    let (seconds, mib) = (number(5u64), number(1024u64));
    let mut classes: Vec<String> = args.collect();
    if classes.is_empty() {
        classes = ["sata", "nvme", "optane"].map(String::from).to_vec();
    }
    let clock = Arc::new(SystemClock::default());
    println!(
        "4 KiB, O_SYNC, random over {mib} MiB, PM 3 %; {seconds} s each, after as long as PM takes to fill"
    );
    classes.iter().for_each(|name| run(name, seconds, mib, &clock));
}

/// Fills the file, goes on until PM is full, then measures.
fn run(name: &str, seconds: u64, mib: u64, clock: &Arc<SystemClock>) {
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
        policy: PolicyKind::Predictive,
        data_ordered: false,
        chunk_blocks: 4096,
        created_ns: 1,
        root: Default::default(),
        devices: vec![NewDevice { tier: 1, class: DeviceClass::Ssd, uuid: [3; 16], path: "/d".into() }],
    };
    format(&media(), &options).unwrap();
    let (superblock, _) = read_superblock(&*pm, true).unwrap();
    let fs = Fs::mount(media(), superblock, MountOptions::default(), clock.clone()).unwrap();
    let file = fs.mknod(Ino(1), b"file", 0o100644, 0, CALLER, W).unwrap().ino;
    let _background = fs.start_background().unwrap();
    for piece in 0..mib {
        fs.write(file, piece << 20, &vec![piece as u8; 1 << 20], WriteFlags::default(), W).unwrap();
    }
    fs.fsync(file, false, W).unwrap();
    let (mut state, block) = (1u64, [7u8; 4096]);
    let mut write = |count: u64| {
        for _ in 0..count {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            fs.write(file, ((state >> 33) % (mib << 8)) << 12, &block, SYNC, W).unwrap();
        }
    };
    write(pm.size() >> 12);
    let device = |fs: &Fs| fs.io_report().unwrap().tiers[1].sums.write_bytes;
    let (begin, before, moved) = (clock.monotonic_ns(), device(&fs), fs.status().unwrap().migration);
    let mut writes = 0;
    while clock.monotonic_ns() - begin < seconds * 1_000_000_000 {
        write(100);
        writes += 100;
    }
    let passed = (clock.monotonic_ns() - begin) as f64 / 1e9;
    let bytes = (device(&fs) - before) as f64;
    let after = fs.status().unwrap().migration;
    let demoted = after.demoted_bytes - after.skipped_bytes - (moved.demoted_bytes - moved.skipped_bytes);
    println!(
        "{name:6}: foreground {:.0} MB/s, device writes {:.0} MB/s ({:.2} of its limit), written for each byte demoted {:.3}",
        writes as f64 * 4096.0 / passed / 1e6,
        bytes / passed / 1e6,
        bytes / passed / speed.write_bytes_per_s as f64,
        (after.device_written_bytes - moved.device_written_bytes) as f64 / demoted as f64
    );
}
