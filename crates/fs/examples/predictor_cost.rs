//! What predictors and temperature cost an operation: policy=predictive against policy=static, in this process, on one
//! thread, PM on /dev/shm. Batches of both take turns; the result is the median of the paired differences with its
//! 95 % interval, and the counters that show that the predictors ran.
//!
//! `cargo run --release -p terrace-fs --example predictor_cost [ROUNDS]`
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use terrace_format::Ino;
use terrace_fs::{
    Caller, DeviceClass, FormatOptions, Fs, MountOptions, NewDevice, PolicyKind, PoolMedia, Wait, WriteFlags,
    format, read_superblock,
};
use terrace_media::block::SimulatedDevice;
use terrace_media::pm::RamPm;
use terrace_runtime::{Clock, SystemClock};

const BATCH: u64 = 500;
const BLOCKS: u64 = 1024;
const PM_BYTES: u64 = 96 << 20;

fn mount(path: &std::path::Path, policy: PolicyKind, clock: &Arc<dyn Clock>) -> (Arc<Fs>, Ino) {
    let pm = Arc::new(RamPm::create(path, PM_BYTES).unwrap());
    let media = PoolMedia { pm: pm.clone(), block: vec![Arc::new(SimulatedDevice::new(4096))] };
    let device = NewDevice { tier: 1, class: DeviceClass::Ssd, uuid: [2; 16], path: "/tier".into() };
    let options = FormatOptions {
        label: String::new(),
        uuid: [1; 16],
        hash_key: [3; 16],
        policy,
        data_ordered: false,
        chunk_blocks: 16,
        created_ns: 1,
        root: Default::default(),
        devices: vec![device],
    };
    format(&media, &options).unwrap();
    let (superblock, _) = read_superblock(&*pm, true).unwrap();
    let fs = Fs::mount(media, superblock, MountOptions::default(), Arc::clone(clock)).unwrap();
    let caller = Caller { uid: 0, gid: 0 };
    let ino = fs.mknod(Ino(1), b"a", 0o100644, 0, caller, Wait::Allowed).unwrap().ino;
    fs.write(ino, 0, &vec![1; (BLOCKS * 4096) as usize], WriteFlags::default(), Wait::Allowed).unwrap();
    (fs, ino)
}

/// Nanoseconds per operation of a batch.
fn batch(fs: &Fs, ino: Ino, write: bool, picks: &mut u64, clock: &dyn Clock) -> f64 {
    let mut block = [5; 4096];
    let begin = clock.monotonic_ns();
    for _ in 0..BATCH {
        *picks = picks.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let offset = (*picks >> 40) % BLOCKS * 4096;
        if write {
            fs.write(ino, offset, &block, WriteFlags::default(), Wait::Allowed).unwrap();
        } else {
            fs.read(ino, offset, &mut block, Wait::Allowed).unwrap();
        }
    }
    (clock.monotonic_ns() - begin) as f64 / BATCH as f64
}

fn main() {
    let rounds: usize = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(400);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let (fixed, fixed_ino) = mount(&directory.path().join("static"), PolicyKind::Static, &clock);
    let (learning, learning_ino) =
        mount(&directory.path().join("predictive"), PolicyKind::Predictive, &clock);
    for (name, write) in [("4 KiB overwrite", true), ("4 KiB read", false)] {
        let (mut differences, mut base) = (Vec::new(), Vec::new());
        for round in 0..rounds as u64 {
            let one = |fs: &Fs, ino| batch(fs, ino, write, &mut (round + 1), &*clock);
            // Who goes first changes with every round.
            let (without, with) = if round % 2 == 0 {
                let without = one(&fixed, fixed_ino);
                (without, one(&learning, learning_ino))
            } else {
                let with = one(&learning, learning_ino);
                (one(&fixed, fixed_ino), with)
            };
            differences.push(with - without);
            base.push(without);
        }
        differences.sort_by(f64::total_cmp);
        base.sort_by(f64::total_cmp);
        // Order statistics: the interval of a median.
        let spread = (1.96 * (rounds as f64).sqrt() / 2.0).ceil() as usize;
        let at = |index: usize| differences[index.min(rounds - 1)];
        let (low, high) = (at((rounds / 2).saturating_sub(spread)), at(rounds / 2 + spread));
        let (median, without) = (at(rounds / 2), base[rounds / 2]);
        println!("{name}: static {without:.0} ns, predictive {median:+.1} ns [{low:+.1}, {high:+.1}]");
    }
    let placement = learning.status().unwrap().placement.unwrap();
    println!("writes seen by the predictors: {}", placement.writes_seen);
    assert!(placement.writes_seen >= rounds as u64 * BATCH);
}
