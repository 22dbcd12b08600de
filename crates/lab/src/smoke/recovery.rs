//! Row e: how long a mount takes after the daemon was killed in the middle of creates, with the lanes full
//! and an unlinked open file of 1 GiB, depending on the number of files. The lanes are full because the
//! killed mount moves its checkpoint as late as possible (`-o checkpoint=full`); the timed mount has default
//! options.

use super::args::Args;
use super::in_process::Local;
use super::pool::Pool;
use super::report::{Must, Report};
use super::series::Series;
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use terrace_bench::failure::Outcome;
use terrace_bench::process::Server;
use terrace_bench::scratch::Scratch;

const PM_BYTES: u64 = 1 << 30;
const TIER_BYTES: u64 = 4 << 30;
const MUST_MS: f64 = 200.0;
/// Threads that make files, more than the daemon has for requests of one core.
const MAKERS: usize = 4;
/// Files of each thread at one time; the thread unlinks its oldest file for each new file, so the number is
/// constant.
const ALIVE: usize = 250;
/// The daemon is killed when records fill this share of the lanes. The share is below 100 %: when the last
/// lane is full the checkpoint moves, and the lanes are empty.
const FULL_PERCENT: f64 = 85.0;
/// Longest wait for lanes filled so far.
const PATIENCE_NS: u64 = 120_000_000_000;

/// The samples of a pool with one number of files.
#[derive(Default)]
struct Samples {
    mount_ms: Series,
    records: Series,
    filled_percent: Series,
}

pub(crate) fn run(args: &Args, scratch: &Scratch, report: &mut Report) -> Outcome<()> {
    scratch.need_mounts()?;
    scratch.need(3 * PM_BYTES, 3 * TIER_BYTES)?;
    let mut pools = Vec::new();
    for files in [10_000, 100_000, 1_000_000] {
        let pool = Pool::make(args, scratch, &format!("recovery-{files}"), PM_BYTES, TIER_BYTES)?;
        let local = Local::mount(scratch, &pool)?;
        local.populate(files)?;
        local.fs.unmount()?;
        pools.push((files, pool, Samples::default()));
    }
    for _ in 0..args.rounds {
        for (_, pool, samples) in &mut pools {
            round(scratch, pool, samples)?;
        }
    }
    for (files, _, samples) in &pools {
        let what = format!("kill -9 during creates, {files} files: mount until it answers");
        report.figure('e', what, "ms", &samples.mount_ms, Must::AtMost(MUST_MS));
        report.figure('e', format!("{files} files: records replayed"), "", &samples.records, Must::Nothing);
        let what = format!("{files} files: lanes filled by them");
        report.figure('e', what, "%", &samples.filled_percent, Must::AtLeast(FULL_PERCENT - 5.0));
    }
    Ok(())
}

/// Fills the lanes, kills the daemon, mounts again.
fn round(scratch: &Scratch, pool: &Pool, samples: &mut Samples) -> Outcome<()> {
    let mount = scratch.mount_point("ours")?;
    let mut server = pool.mount_with(scratch, &mount, "checkpoint=full")?;
    disturb(scratch, pool, &mut server)?;
    let begin = scratch.now_ns();
    let server = pool.mount(scratch, &mount)?;
    fs::metadata(mount.join("d0").join("f0"))?;
    samples.mount_ms.push((scratch.now_ns() - begin) as f64 / 1e6);
    let found = status(scratch, pool, &mount)?;
    if found["recovery"]["clean"] != false {
        return Err("the pool counts as unmounted in order".into());
    }
    let number = |value: &Value| value.as_u64().map(|number| number as f64).ok_or("status lacks a number");
    samples.records.push(number(&found["recovery"]["records_replayed"])?);
    let replayed = number(&found["recovery"]["bytes_replayed"])?;
    samples.filled_percent.push(100.0 * replayed / number(&found["log"]["capacity_bytes"])?);
    server.stop(scratch)
}

/// Status, once the control socket is there: it comes after the mount.
fn status(scratch: &Scratch, pool: &Pool, mount: &Path) -> Outcome<Value> {
    let mut tries = 100;
    loop {
        match pool.terrace(&["status".as_ref(), "--json".as_ref(), mount.as_os_str()]) {
            Err(_) if tries > 0 => tries -= 1,
            answer => return Ok(serde_json::from_str(&answer?)?),
        }
        scratch.clock.sleep(Duration::from_millis(20));
    }
}

/// Unlinks an open file of 1 GiB, then kills the daemon while threads make files and the lanes are full.
fn disturb(scratch: &Scratch, pool: &Pool, server: &mut Server) -> Outcome<()> {
    let large = server.mount.join("large");
    let mut open = File::create(&large)?;
    let chunk = vec![3; 1 << 20];
    for _ in 0..1024 {
        open.write_all(&chunk)?;
    }
    fs::remove_file(&large)?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut makers = Vec::new();
    for maker in 0..MAKERS {
        let directory = server.mount.join(format!("made-{maker}"));
        let _ = fs::create_dir(&directory);
        let stop = stop.clone();
        makers.push(terrace_runtime::thread::spawn("maker", move || make_files(&directory, &stop))?);
    }
    let filled = wait_until_full(scratch, pool, &server.mount);
    server.kill();
    stop.store(true, Ordering::Relaxed);
    drop(open);
    for maker in makers {
        let _ = maker.join();
    }
    filled
}

fn wait_until_full(scratch: &Scratch, pool: &Pool, mount: &Path) -> Outcome<()> {
    let begin = scratch.now_ns();
    loop {
        let log = &status(scratch, pool, mount)?["log"];
        let (used, capacity) = (log["used_bytes"].as_f64(), log["capacity_bytes"].as_f64());
        let percent = 100.0 * used.zip(capacity).map_or(0.0, |(used, capacity)| used / capacity);
        if percent >= FULL_PERCENT {
            return Ok(());
        }
        if scratch.now_ns() - begin > PATIENCE_NS {
            return Err(format!("the lanes do not fill: {percent:.0} %").into());
        }
    }
}

fn make_files(directory: &Path, stop: &AtomicBool) {
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        if File::create(directory.join(format!("{number}"))).is_err() {
            return;
        }
        if number >= ALIVE {
            let _ = fs::remove_file(directory.join(format!("{}", number - ALIVE)));
        }
        number += 1;
    }
}
