//! Metadata that is larger than PM: makes many empty files over a small PM, and prints the time, the PM
//! blocks of metadata, the demoted pages, and the latency of a lookup with attributes, with its pages in PM
//! and on the lower tier. The lower tier is a file in the given directory, opened without the page cache.

use super::fixture::{CALLER, ROOT, device_in, format_options, mount, number, pm_in};
use std::sync::Arc;
use terrace_bench::failure::Outcome;
use terrace_check::{Options, PoolView, check};
use terrace_engine::{Engine, MountOptions, PolicyKind, PoolMedia, Wait, format};
use terrace_format::Ino;
use terrace_runtime::{Clock, SystemClock};

/// Number of lookups behind each figure.
const SAMPLES: u64 = 5000;

fn name(index: u64) -> Vec<u8> {
    format!("file-{index:07}").into_bytes()
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

pub(super) fn run(args: &[String]) -> Outcome<()> {
    let below = args.first().map_or("/tmp", String::as_str);
    let (files, pm_mib) = (number(args, 1, 200_000), number(args, 2, 32));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let (pm, device) = (pm_in("/dev/shm", pm_mib << 20)?, device_in(below, 1 << 30)?);
    let media = PoolMedia { pm, block: vec![device] };
    format(&media, &format_options(PolicyKind::PREDICTIVE, 4096))?;
    let directory = make_and_look_up(&media, files, &clock)?;
    remove(&media, directory, files, &clock)?;
    let block = media.block.iter().cloned().map(Some).collect();
    let report = check(&PoolView::new(media.pm.clone(), block), &Options::default());
    println!(
        "check: {}",
        if report.is_clean() { "clean".to_string() } else { format!("{:?}", report.findings) }
    );
    Ok(())
}

/// Makes the files of a directory and looks them up; gives the directory.
fn make_and_look_up(media: &PoolMedia, files: u64, clock: &Arc<dyn Clock>) -> Outcome<Ino> {
    let fs = mount(media, MountOptions::default(), Arc::clone(clock))?;
    let background = fs.start_background()?;
    let directory = fs.mkdir(ROOT, b"directory", 0o755, CALLER, Wait::Allowed)?.ino;
    let seconds = |begin: u64| (clock.monotonic_ns() - begin) as f64 / 1e9;
    let begin = clock.monotonic_ns();
    for index in 0..files {
        let made = fs.mknod(directory, &name(index), 0o100644, 0, CALLER, Wait::Allowed)?;
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
    println!("random names:   {}", look_up(&fs, directory, all.into_iter(), &**clock));
    look_up(&fs, directory, few.iter().copied(), &**clock);
    let again = (0..SAMPLES).map(|index| few[index as usize % few.len()]);
    println!("50 names again: {}", look_up(&fs, directory, again, &**clock));
    let begin = clock.monotonic_ns();
    let mut listed = 0;
    fs.readdir(directory, 0, &mut |_| {
        listed += 1;
        true
    })?;
    println!("readdir of {} names: {:.2} s", listed - 2, seconds(begin));
    drop(background);
    fs.unmount()?;
    Ok(directory)
}

/// Mounts the pool again and removes the files.
fn remove(media: &PoolMedia, directory: Ino, files: u64, clock: &Arc<dyn Clock>) -> Outcome<()> {
    let seconds = |begin: u64| (clock.monotonic_ns() - begin) as f64 / 1e9;
    let begin = clock.monotonic_ns();
    let fs = mount(media, MountOptions::default(), Arc::clone(clock))?;
    println!("mount: {:.2} ms", seconds(begin) * 1e3);
    let background = fs.start_background()?;
    let begin = clock.monotonic_ns();
    for index in 0..files {
        fs.unlink(directory, &name(index), Wait::Allowed)?;
    }
    let took = seconds(begin);
    println!("{files} files removed in {took:.2} s, {:.2} µs each", took * 1e6 / files as f64);
    tell(&fs, "then");
    drop(background);
    Ok(fs.unmount()?)
}
