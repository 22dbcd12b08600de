//! The deviation of emulated media from the requested times, on this machine: the tables of
//! docs/benchmarks.md.

use super::fixture::{device_in, prepared_pm};
use std::sync::Arc;
use terrace_bench::failure::Outcome;
use terrace_format::{DeviceBlock, PmOffset};
use terrace_media::block::{AlignedBlock, EmulatedBlock};
use terrace_media::pm::{EmulatedPm, PmModel, PmSpeed};
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
        pm.persist().unwrap();
    })
}

fn pm(clock: &Arc<dyn Clock>) -> Outcome<()> {
    let ram: Arc<dyn PmMedium> = prepared_pm(PM_BYTES)?;
    for bytes in [64, 512, 4096] {
        println!("not emulated: {bytes} B streamed, fence: {} ns", write_ns(&*ram, &**clock, bytes));
    }
    for text in
        ["100:2G", "200:1G", "400:1G", "800:1G", "run:100:15G:300", "run:300:2G:300", "run:1000:1G:1000"]
    {
        let speed = PmSpeed::parse(text)?;
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
        two_writers(text, &medium, speed, &**clock);
    }
    Ok(())
}

/// Two threads, each as fast as it may.
fn two_writers(text: &str, medium: &Arc<dyn PmMedium>, speed: PmSpeed, clock: &dyn Clock) {
    let begin = clock.monotonic_ns();
    let threads: Vec<_> = (0..2u64)
        .map(|number| {
            let medium = medium.clone();
            thread::spawn("writer", move || {
                let data = vec![7; 4096];
                for index in 0..TURNS {
                    let at = PmOffset((2 * index + number) * 8192 % PM_BYTES);
                    medium.write_streaming(at, &data).unwrap();
                    medium.persist().unwrap();
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

fn time(clock: &dyn Clock, turns: u64, mut turn: impl FnMut(u64)) -> f64 {
    let time_turn = |index| {
        let begin = clock.monotonic_ns();
        turn(index);
        clock.monotonic_ns() - begin
    };
    median((0..turns).map(time_turn).collect())
}

fn devices(clock: &Arc<dyn Clock>) -> Outcome<()> {
    let file: Arc<dyn BlockMedium> = device_in("/dev/shm", 64 << 20)?;
    let large = vec![AlignedBlock([7; 4096]); 256];
    for at in 0..64 {
        file.write(DeviceBlock(at * 256), &large)?;
    }
    for class in CLASSES.iter().filter(|class| !["ssd", "hdd", "pm"].contains(&class.name)) {
        let device = Arc::new(EmulatedBlock::new(file.clone(), class.speed, clock.clone()));
        let turns = if class.name == "disk" { 30 } else { 1000 };
        single_reader(class.name, class.speed, &device, turns, &**clock);
        eight_readers(class.name, class.speed, &device, turns, &**clock);
    }
    Ok(())
}

/// The time of a request in microseconds: latency and transfer.
fn asked_us(latency_ns: u64, bytes: f64, bytes_per_s: u64) -> f64 {
    (latency_ns as f64 + bytes * 1e9 / bytes_per_s as f64) / 1e3
}

fn single_reader(name: &str, speed: Speed, device: &EmulatedBlock, turns: u64, clock: &dyn Clock) {
    let Speed { read_latency_ns, write_latency_ns, read_bytes_per_s, write_bytes_per_s } = speed;
    let (block, mega) = (4096.0, (1 << 20) as f64);
    let mut small = [AlignedBlock([7; 4096])];
    let mut large = vec![AlignedBlock([7; 4096]); 256];
    let small_at = |at: u64| DeviceBlock(at * 7 % 16384);
    let large_at = |at: u64| DeviceBlock(at % 64 * 256);
    let tell = |what: &str, asked: f64, found: f64| row(&format!("{name}: {what}"), "µs", asked, found / 1e3);
    let found = time(clock, turns, |at| device.read(small_at(at), &mut small).unwrap());
    tell("read 4 KiB", asked_us(read_latency_ns, block, read_bytes_per_s), found);
    let found = time(clock, turns, |at| device.write(small_at(at), &small).unwrap());
    tell("write 4 KiB", asked_us(write_latency_ns, block, write_bytes_per_s), found);
    let found = time(clock, turns / 10, |at| device.read(large_at(at), &mut large).unwrap());
    tell("read 1 MiB", asked_us(read_latency_ns, mega, read_bytes_per_s), found);
    let found = time(clock, turns / 10, |at| device.write(large_at(at), &large).unwrap());
    tell("write 1 MiB", asked_us(write_latency_ns, mega, write_bytes_per_s), found);
}

/// Eight readers: latencies overlap, the bandwidth is shared.
fn eight_readers(name: &str, speed: Speed, device: &Arc<EmulatedBlock>, turns: u64, clock: &dyn Clock) {
    let begin = clock.monotonic_ns();
    let threads: Vec<_> = (0..8u64)
        .map(|number| {
            let device = Arc::clone(device);
            thread::spawn("reader", move || {
                let mut block = [AlignedBlock::zeroed()];
                for at in 0..turns {
                    device.read(DeviceBlock((at * 7 + number) % 16384), &mut block).unwrap();
                }
            })
            .unwrap()
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let per_read = (clock.monotonic_ns() - begin) as f64 / (8 * turns) as f64 / 1e3;
    let transfer_us = 4096e6 / speed.read_bytes_per_s as f64;
    let alone_us = asked_us(speed.read_latency_ns, 4096.0, speed.read_bytes_per_s);
    row(&format!("{name}: eight readers, a read"), "µs", transfer_us.max(alone_us / 8.0), per_read);
}

pub(super) fn run(_: &[String]) -> Outcome<()> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    println!("| what | unit | asked | found | off |\n|---|---|---|---|---|");
    pm(&clock)?;
    devices(&clock)
}
