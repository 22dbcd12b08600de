//! Metadata that is larger than PM: makes many empty files over a small PM, and prints the time, the PM
//! blocks of metadata, the demoted pages, and the latency of a lookup with attributes, with its pages in PM
//! and on the lower tier. The lower tier is a file in the given directory, opened without the page cache.
//!
//! `cargo run --release -p terrace-engine --example metadata_below DIRECTORY [FILES [PM_MIB]]`
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::path::Path;
use std::sync::Arc;
use terrace_check::{Options, PoolView, check};
use terrace_engine::{
    Caller, DeviceClass, Engine, FormatOptions, MountOptions, NewDevice, PolicyKind, PoolMedia, Wait, format,
    read_superblock,
};
use terrace_format::Ino;
use terrace_media::block::FileDevice;
use terrace_media::pm::RamPm;
use terrace_runtime::{Clock, SystemClock};

const CALLER: Caller = Caller { uid: 0, gid: 0 };
const ROOT: Ino = Ino(1);
/// Number of lookups behind each figure.
const SAMPLES: u64 = 5000;

fn name(index: u64) -> Vec<u8> {
    format!("file-{index:07}").into_bytes()
}

fn mount(media: &PoolMedia, clock: &Arc<dyn Clock>) -> Arc<Engine> {
    let (superblock, _) = read_superblock(&*media.pm, true).unwrap();
    let media = PoolMedia { pm: media.pm.clone(), block: media.block.clone() };
    Engine::mount(media, superblock, MountOptions::default(), Arc::clone(clock)).unwrap()
}

fn make_pool(shm: &Path, below: &Path, pm_bytes: u64) -> PoolMedia {
    let pm = Arc::new(RamPm::create(shm.join("pm"), pm_bytes).unwrap());
    let device = Arc::new(FileDevice::create(below.join("tier"), 1 << 30).unwrap());
    let media = PoolMedia { pm, block: vec![device] };
    let device = NewDevice { tier: 1, class: DeviceClass::Ssd, uuid: [2; 16], path: "tier".into() };
    let options = FormatOptions {
        label: String::new(),
        uuid: [1; 16],
        hash_key: [3; 16],
        seal_secret: Some([3; 16]),
        policy: PolicyKind::PREDICTIVE,
        data_ordered: false,
        data_checksums: false,
        chunk_blocks: 4096,
        created_ns: 1,
        root: Default::default(),
        devices: vec![device],
    };
    format(&media, &options).unwrap();
    media
}

/// Prints the metadata figures of `terrace status`.
fn tell(fs: &Engine, when: &str) {
    let status = fs.status().unwrap();
    let metadata = &status.metadata;
    println!(
        "{when}: PM {} of {} KiB used, {} KiB of metadata below ({} pages moved down, {} fetched)",
        status.tiers[0].used_bytes >> 10,
        status.tiers[0].capacity_bytes >> 10,
        metadata.below_bytes >> 10,
        metadata.lowered_pages,
        metadata.fetched_pages
    );
}

/// Median, 99th percentile and mean of lookups with attributes, in microseconds, and fetched pages for each
/// lookup.
fn look_up(fs: &Engine, directory: Ino, picks: impl Iterator<Item = u64>, clock: &dyn Clock) -> String {
    let before = fs.status().unwrap().metadata.fetched_pages;
    let mut times: Vec<u64> = picks
        .map(|index| {
            let begin = clock.monotonic_ns();
            let found = fs.lookup(directory, &name(index)).unwrap();
            fs.getattr(found.ino).unwrap();
            fs.forget(found.ino, 1);
            clock.monotonic_ns() - begin
        })
        .collect();
    times.sort_unstable();
    let count = times.len();
    let mean = times.iter().sum::<u64>() as f64 / count as f64;
    let fetched = fs.status().unwrap().metadata.fetched_pages - before;
    format!(
        "median {:.2} µs, p99 {:.1} µs, mean {:.2} µs, {:.2} pages fetched each",
        times[count / 2] as f64 / 1e3,
        times[count * 99 / 100] as f64 / 1e3,
        mean / 1e3,
        fetched as f64 / count as f64
    )
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let below = arguments.next().unwrap_or_else(|| "/tmp".into());
    let files: u64 = arguments.next().map_or(200_000, |text| text.parse().unwrap());
    let pm_mib: u64 = arguments.next().map_or(32, |text| text.parse().unwrap());
    let (shm, below) = (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir_in(below).unwrap());
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let media = make_pool(shm.path(), below.path(), pm_mib << 20);
    let fs = mount(&media, &clock);
    let background = fs.start_background().unwrap();
    let directory = fs.mkdir(ROOT, b"directory", 0o755, CALLER, Wait::Allowed).unwrap().ino;
    let seconds = |begin: u64| (clock.monotonic_ns() - begin) as f64 / 1e9;
    let begin = clock.monotonic_ns();
    for index in 0..files {
        let made = fs.mknod(directory, &name(index), 0o100644, 0, CALLER, Wait::Allowed).unwrap();
        fs.forget(made.ino, 1);
    }
    let took = seconds(begin);
    println!("{files} files made in {took:.2} s, {:.2} µs each", took * 1e6 / files as f64);
    tell(&fs, "then");
    let mut random = 1u64;
    let mut pick = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % files
    };
    let few: Vec<u64> = (0..50).map(|_| pick()).collect();
    let all: Vec<u64> = (0..SAMPLES).map(|_| pick()).collect();
    println!("random names:   {}", look_up(&fs, directory, all.into_iter(), &*clock));
    look_up(&fs, directory, few.iter().copied(), &*clock);
    let again = (0..SAMPLES).map(|index| few[index as usize % few.len()]);
    println!("50 names again: {}", look_up(&fs, directory, again, &*clock));
    let begin = clock.monotonic_ns();
    let mut listed = 0;
    fs.readdir(directory, 0, &mut |_| {
        listed += 1;
        true
    })
    .unwrap();
    println!("readdir of {} names: {:.2} s", listed - 2, seconds(begin));
    drop(background);
    fs.unmount().unwrap();
    drop(fs);
    let begin = clock.monotonic_ns();
    let fs = mount(&media, &clock);
    println!("mount: {:.2} ms", seconds(begin) * 1e3);
    let background = fs.start_background().unwrap();
    let begin = clock.monotonic_ns();
    for index in 0..files {
        fs.unlink(directory, &name(index), Wait::Allowed).unwrap();
    }
    let took = seconds(begin);
    println!("{files} files removed in {took:.2} s, {:.2} µs each", took * 1e6 / files as f64);
    tell(&fs, "then");
    drop(background);
    fs.unmount().unwrap();
    drop(fs);
    let report = check(
        &PoolView::new(media.pm.clone(), media.block.iter().cloned().map(Some).collect()),
        &Options::default(),
    );
    println!(
        "check: {}",
        if report.is_clean() { "clean".to_string() } else { format!("{:?}", report.findings) }
    );
}
