//! Row g: anonymous memory of the daemon when the kernel knows a million files and 4 GiB of data are stored.

use super::args::Args;
use super::in_process::Local;
use super::pool::Pool;
use super::report::{Must, Report};
use super::series::Series;
use std::fs::{self, File};
use std::io::Write;
use std::time::Duration;
use terrace_bench::failure::Outcome;
use terrace_bench::machine::status_kib;
use terrace_bench::scratch::Scratch;

const FILES: usize = 1_000_000;
const PM_BYTES: u64 = 1 << 30;
const TIER_BYTES: u64 = 8 << 30;
const DATA_BYTES: u64 = 4 << 30;
/// The cache size that [`Pool::mount`] gives the daemon.
const CACHE_BYTES: u64 = 64 << 20;

pub(crate) fn run(args: &Args, scratch: &Scratch, report: &mut Report) -> Outcome<()> {
    scratch.need_mounts()?;
    // The kernel's own inodes and dentries take about 1.5 KiB a file.
    scratch.need(PM_BYTES + (2 << 30), DATA_BYTES + (1 << 30))?;
    let pool = Pool::make(args, scratch, "memory", PM_BYTES, TIER_BYTES)?;
    let local = Local::mount(scratch, &pool)?;
    local.populate(FILES)?;
    local.fs.unmount()?;
    drop(local);
    let server = pool.mount(scratch, &scratch.mount_point("ours")?)?;
    let mut data = File::create(server.mount.join("data"))?;
    let chunk = vec![9; 1 << 20];
    for _ in 0..DATA_BYTES >> 20 {
        data.write_all(&chunk)?;
    }
    let mut known = 0;
    for directory in 0..FILES / 1000 {
        for entry in fs::read_dir(server.mount.join(format!("d{directory}")))? {
            known += usize::from(entry?.metadata()?.is_file());
        }
    }
    if known != FILES {
        return Err(format!("{known} of {FILES} files were found").into());
    }
    let mut samples = Series::default();
    for _ in 0..args.rounds {
        let status = fs::read_to_string(format!("/proc/{}/status", server.pid()))?;
        samples.push(status_kib(&status, "RssAnon") as f64 / f64::from(1 << 20));
        scratch.clock.sleep(Duration::from_millis(200));
    }
    let limit = (64 << 20) + 32 * (PM_BYTES / 4096) + CACHE_BYTES;
    let must = Must::AtMost((limit >> 20) as f64);
    report.figure(
        'g',
        "RssAnon of the daemon, 1 M files known, 4 GiB stored, 1 GiB PM",
        "MiB",
        &samples,
        must,
    );
    drop(data);
    server.stop(scratch)
}
