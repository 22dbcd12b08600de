//! The deviation of emulated media from the requested times, on this machine: the tables of
//! docs/benchmarks.md. `cargo run --release -p terrace-media --example emulated_accuracy`
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use terrace_format::{DeviceBlock, PmOffset};
use terrace_media::block::{AlignedBlock, EmulatedBlock, FileDevice};
use terrace_media::pm::{EmulatedPm, PmModel, PmSpeed, RamPm};
use terrace_media::speed::{CLASSES, Speed};
use terrace_media::{BlockMedium, PmMedium};
use terrace_runtime::{Clock, SystemClock, thread};

const PM_BYTES: u64 = 64 << 20;
const TURNS: u64 = 4000;

fn median(mut samples: Vec<u64>) -> f64 {
    samples.sort_unstable();
    samples[samples.len() / 2] as f64
}

fn row(what: &str, unit: &str, asked: f64, found: f64) {
    println!("| {what} | {unit} | {asked:.0} | {found:.0} | {:+.1} % |", (found / asked - 1.0) * 100.0);
}

/// Operations timed together, so that reading the clock does not count.
const TOGETHER: u64 = 10;

/// Time of one of `turns` operations, the median in nanoseconds.
fn each_ns(clock: &dyn Clock, turns: u64, mut turn: impl FnMut(u64)) -> f64 {
    let batch = |number: u64| {
        let begin = clock.monotonic_ns();
        (0..TOGETHER).for_each(|index| turn(number * TOGETHER + index));
        clock.monotonic_ns() - begin
    };
    median((0..turns / TOGETHER).map(batch).collect()) / TOGETHER as f64
}

/// Writes of a size, each with its fence.
fn write_ns(pm: &dyn PmMedium, clock: &dyn Clock, bytes: u64) -> f64 {
    let data = vec![7; bytes as usize];
    each_ns(clock, TURNS, |index| {
        pm.write_streaming(PmOffset(index * 8192 % PM_BYTES), &data).unwrap();
        pm.persist();
    })
}

fn pm(clock: &Arc<dyn Clock>) {
    let path = std::path::PathBuf::from(format!("/dev/shm/terrace-accuracy-{}", std::process::id()));
    let ram: Arc<dyn PmMedium> = Arc::new(RamPm::create(&path, PM_BYTES).unwrap());
    std::fs::remove_file(&path).unwrap();
    ram.prepare(PmOffset(0), PM_BYTES);
    for bytes in [64, 512, 4096] {
        println!("not emulated: {bytes} B streamed, fence: {} ns", write_ns(&*ram, &**clock, bytes));
    }
    for text in
        ["100:2G", "200:1G", "400:1G", "800:1G", "run:100:15G:300", "run:300:2G:300", "run:1000:1G:1000"]
    {
        let speed = PmSpeed::parse(text).unwrap();
        let medium: Arc<dyn PmMedium> = Arc::new(EmulatedPm::new(ram.clone(), speed, clock.clone()));
        println!("{}", medium.describe());
        for bytes in [64u64, 512, 4096] {
            let transfer = bytes as f64 * 1e9 / speed.bytes_per_s as f64;
            let asked = match speed.model {
                PmModel::Line => transfer.max(bytes.div_ceil(64) as f64 * speed.write_ns as f64),
                PmModel::Run => transfer + speed.write_ns as f64,
            };
            row(&format!("{text}: {bytes} B, fence"), "ns", asked, write_ns(&*medium, &**clock, bytes));
        }
        if speed.read_ns > 0 {
            let mut into = [0; 4096];
            let found = each_ns(&**clock, TURNS, |index| {
                medium.read(PmOffset(index * 8192 % PM_BYTES), &mut into).unwrap();
            });
            row(&format!("{text}: read 4096 B"), "ns", speed.read_ns as f64, found);
        }
        // Two threads, each as fast as it may.
        let begin = clock.monotonic_ns();
        let threads: Vec<_> = (0..2u64)
            .map(|number| {
                let medium = medium.clone();
                thread::spawn("writer", move || {
                    let data = vec![7; 4096];
                    for index in 0..TURNS {
                        medium
                            .write_streaming(PmOffset((2 * index + number) * 8192 % PM_BYTES), &data)
                            .unwrap();
                        medium.persist();
                    }
                })
                .unwrap()
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let found = (2 * TURNS * 4096) as f64 * 1e3 / (clock.monotonic_ns() - begin) as f64;
        let limit = speed.bytes_per_s as f64 / 1e6;
        let each = match speed.model {
            PmModel::Line => 64e3 / speed.write_ns as f64,
            PmModel::Run => 4096e3 / (speed.write_ns as f64 + 4096e9 / speed.bytes_per_s as f64),
        };
        row(&format!("{text}: two threads"), "MB/s", limit.min(2.0 * each), found);
    }
}

fn time(clock: &dyn Clock, turns: u64, mut turn: impl FnMut(u64)) -> f64 {
    let one = |index| {
        let begin = clock.monotonic_ns();
        turn(index);
        clock.monotonic_ns() - begin
    };
    median((0..turns).map(one).collect())
}

fn devices(clock: &Arc<dyn Clock>) {
    let path = std::path::PathBuf::from(format!("/dev/shm/terrace-accuracy-{}.disk", std::process::id()));
    let file: Arc<dyn BlockMedium> = Arc::new(FileDevice::create(&path, 64 << 20).unwrap());
    std::fs::remove_file(&path).unwrap();
    let mut large = vec![AlignedBlock([7; 4096]); 256];
    for at in 0..64 {
        file.write(DeviceBlock(at * 256), &large).unwrap();
    }
    for class in CLASSES.iter().filter(|class| !["ssd", "hdd", "pm"].contains(&class.name)) {
        let Speed { read_latency_ns, write_latency_ns, read_bytes_per_s, write_bytes_per_s } = class.speed;
        let device = Arc::new(EmulatedBlock::new(file.clone(), class.speed, clock.clone()));
        let turns = if class.name == "disk" { 30 } else { 1000 };
        let asked = |latency: u64, bytes: f64, rate: u64| (latency as f64 + bytes * 1e9 / rate as f64) / 1e3;
        let name = class.name;
        let mut one = [AlignedBlock([7; 4096])];
        let found = time(&**clock, turns, |at| device.read(DeviceBlock(at * 7 % 16384), &mut one).unwrap());
        row(
            &format!("{name}: read 4 KiB"),
            "µs",
            asked(read_latency_ns, 4096.0, read_bytes_per_s),
            found / 1e3,
        );
        let found = time(&**clock, turns, |at| device.write(DeviceBlock(at * 7 % 16384), &one).unwrap());
        row(
            &format!("{name}: write 4 KiB"),
            "µs",
            asked(write_latency_ns, 4096.0, write_bytes_per_s),
            found / 1e3,
        );
        let mega = (1 << 20) as f64;
        let found =
            time(&**clock, turns / 10, |at| device.read(DeviceBlock(at % 64 * 256), &mut large).unwrap());
        row(
            &format!("{name}: read 1 MiB"),
            "µs",
            asked(read_latency_ns, mega, read_bytes_per_s),
            found / 1e3,
        );
        let found =
            time(&**clock, turns / 10, |at| device.write(DeviceBlock(at % 64 * 256), &large).unwrap());
        row(
            &format!("{name}: write 1 MiB"),
            "µs",
            asked(write_latency_ns, mega, write_bytes_per_s),
            found / 1e3,
        );
        // Eight readers: latencies overlap, the bandwidth is shared.
        let begin = clock.monotonic_ns();
        let threads: Vec<_> = (0..8u64)
            .map(|number| {
                let device = Arc::clone(&device);
                thread::spawn("reader", move || {
                    let mut one = [AlignedBlock::zeroed()];
                    (0..turns).for_each(|at| {
                        device.read(DeviceBlock((at * 7 + number) % 16384), &mut one).unwrap()
                    });
                })
                .unwrap()
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let per_read = (clock.monotonic_ns() - begin) as f64 / (8 * turns) as f64 / 1e3;
        let transfer_us = 4096e6 / read_bytes_per_s as f64;
        let asked = transfer_us.max(asked(read_latency_ns, 4096.0, read_bytes_per_s) / 8.0);
        row(&format!("{name}: eight readers, a read"), "µs", asked, per_read);
    }
}

fn main() {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    println!("| what | unit | asked | found | off |\n|---|---|---|---|---|");
    pm(&clock);
    devices(&clock);
}
