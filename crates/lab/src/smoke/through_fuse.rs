//! Row c: the time that the file system adds to the kernel path. The null server answers through the same
//! session code, with the same flags and threads. On one core batches of both take turns, and the difference
//! is taken pair by pair. Unpinned, a single server runs at a time, and both are started anew in every round:
//! a woken thread stays on its core if that is idle. So of two servers that take turns, chance leaves one on
//! the other core, where a call takes five times as long.

use super::args::Args;
use super::io_loop::{Subject, Turn};
use super::pool::Pool;
use super::report::{Must, Report};
use super::series::{Series, paired};
use rustix::thread::CpuSet;
use std::time::Duration;
use terrace_bench::affinity;
use terrace_bench::failure::Outcome;
use terrace_bench::process::null_server;
use terrace_bench::scratch::Scratch;
use terrace_fuse::Transport;

const BATCHES: usize = 40;
const TURNS: u64 = 200;
const PM_BYTES: u64 = 512 << 20;
const TIER_BYTES: u64 = 1 << 30;
const MUST_US: f64 = 1.0;

pub(crate) fn run(args: &Args, scratch: &Scratch, report: &mut Report) -> Outcome<()> {
    scratch.need_mounts()?;
    scratch.need(512 << 20, 0)?;
    let cores = affinity::all()?;
    let measured = same_core(args, scratch, report, &affinity::last(&cores));
    affinity::pin_process(std::process::id(), &cores)?;
    measured?;
    unpinned(args, scratch, report)
}

fn same_core(args: &Args, scratch: &Scratch, report: &mut Report, core: &CpuSet) -> Outcome<()> {
    let pool = Pool::make(args, scratch, "fuse", PM_BYTES, TIER_BYTES)?;
    let ours = pool.mount(scratch, &scratch.mount_point("ours")?)?;
    let null = null_server(scratch, &scratch.mount_point("null")?, Transport::Auto)?;
    let mut our_file = Subject::make(&ours.mount.join("file"))?;
    let mut null_file = Subject::open(&null.mount.join("file"))?;
    for pid in [ours.pid(), null.pid(), std::process::id()] {
        affinity::pin_process(pid, core)?;
    }
    for turn in Turn::ALL {
        let mut samples = Samples::default();
        for _ in 0..args.rounds * BATCHES {
            batch(scratch, &mut null_file, turn, &mut samples.null)?;
            batch(scratch, &mut our_file, turn, &mut samples.ours)?;
        }
        samples.report(report, &format!("{}, same core", turn.name()), Must::AtMost(MUST_US));
    }
    drop((our_file, null_file));
    null.stop(scratch)?;
    ours.stop(scratch)
}

fn unpinned(args: &Args, scratch: &Scratch, report: &mut Report) -> Outcome<()> {
    let mut samples: [Samples; 3] = Default::default();
    for _ in 0..args.rounds {
        let null = null_server(scratch, &scratch.mount_point("null")?, Transport::Auto)?;
        let mut file = Subject::open(&null.mount.join("file"))?;
        for (turn, samples) in Turn::ALL.into_iter().zip(&mut samples) {
            (0..BATCHES).try_for_each(|_| batch(scratch, &mut file, turn, &mut samples.null))?;
        }
        drop(file);
        null.stop(scratch)?;
        let pool = Pool::make(args, scratch, "fuse", PM_BYTES, TIER_BYTES)?;
        let ours = pool.mount(scratch, &scratch.mount_point("ours")?)?;
        let mut file = Subject::make(&ours.mount.join("file"))?;
        for (turn, samples) in Turn::ALL.into_iter().zip(&mut samples) {
            (0..BATCHES).try_for_each(|_| batch(scratch, &mut file, turn, &mut samples.ours))?;
        }
        drop(file);
        ours.stop(scratch)?;
    }
    for (turn, samples) in Turn::ALL.into_iter().zip(&samples) {
        samples.report(report, &format!("{}, unpinned", turn.name()), Must::Nothing);
    }
    Ok(())
}

/// Both servers' microseconds per turn, batch by batch.
#[derive(Default)]
struct Samples {
    null: Series,
    ours: Series,
}

impl Samples {
    fn report(&self, report: &mut Report, name: &str, must: Must) {
        report.figure('c', format!("{name}: null server"), "µs", &self.null, Must::Nothing);
        report.figure('c', format!("{name}: terrace"), "µs", &self.ours, Must::Nothing);
        let added = paired(&self.ours, &self.null, |ours, null| ours - null);
        report.figure('c', format!("{name}: added"), "µs", &added, must);
    }
}

fn batch(scratch: &Scratch, file: &mut Subject, turn: Turn, samples: &mut Series) -> Outcome<()> {
    file.batch(scratch, turn, 50, Duration::from_secs(2))?;
    samples.push(file.batch(scratch, turn, TURNS, Duration::from_secs(2))? / 1000.0);
    Ok(())
}
