//! Row c: what the file system adds to the kernel path. The null server answers through the same session
//! code, with the same flags and threads; batches of both take turns, and the difference is taken pair by pair.

use crate::Outcome;
use crate::affinity;
use crate::args::Args;
use crate::io_loop::{Subject, Turn};
use crate::process::{Pool, null_server};
use crate::report::{Must, Report};
use crate::scratch::Scratch;
use crate::series::{Series, paired};
use std::time::Duration;

const BATCHES: usize = 40;
const TURNS: u64 = 200;
const MUST_US: f64 = 1.0;

pub(crate) fn run(args: &Args, scratch: &Scratch, report: &mut Report) -> Outcome<()> {
    scratch.need_mounts()?;
    scratch.need(512 << 20, 0)?;
    let pool = Pool::make(args, scratch, "fuse", 512 << 20, 1 << 30)?;
    let ours = pool.mount(scratch, &scratch.mount_point("ours")?)?;
    let null = null_server(scratch, &scratch.mount_point("null")?)?;
    let mut our_file = Subject::make(&ours.mount.join("file"))?;
    let mut null_file = Subject::open(&null.mount.join("file"))?;
    let cores = affinity::all()?;
    for (place, set) in [("same core", affinity::last(&cores)), ("unpinned", cores)] {
        for pid in [ours.pid(), null.pid(), std::process::id()] {
            affinity::pin_process(pid, &set)?;
        }
        for turn in Turn::ALL {
            let (mut our_samples, mut null_samples) = (Series::default(), Series::default());
            for _ in 0..args.rounds * BATCHES {
                for (file, samples) in
                    [(&mut null_file, &mut null_samples), (&mut our_file, &mut our_samples)]
                {
                    file.batch(scratch, turn, 50, Duration::from_secs(2))?;
                    samples.push(file.batch(scratch, turn, TURNS, Duration::from_secs(2))? / 1000.0);
                }
            }
            let name = format!("{}, {place}", turn.name());
            report.figure('c', format!("{name}: null server"), "µs", &null_samples, Must::Nothing);
            report.figure('c', format!("{name}: terrace"), "µs", &our_samples, Must::Nothing);
            let added = paired(&our_samples, &null_samples, |ours, null| ours - null);
            let must = if place == "same core" { Must::AtMost(MUST_US) } else { Must::Nothing };
            report.figure('c', format!("{name}: added"), "µs", &added, must);
        }
    }
    drop((our_file, null_file));
    null.stop(scratch)?;
    ours.stop(scratch)
}
