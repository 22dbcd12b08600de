//! `terrace bench smoke`: the numbers of docs/benchmarks.md, each against its limit.

pub(crate) mod args;
mod grid;
mod in_process;
mod io_loop;
mod memory;
mod peers;
mod pool;
mod recovery;
mod report;
mod series;
mod through_fuse;
mod throughput;
mod way_in;

use args::Args;
use report::Report;
use std::ffi::OsString;
use std::process::ExitCode;
use terrace_bench::failure::{Outcome, ended, say};
use terrace_bench::machine;
use terrace_bench::scratch::Scratch;

/// Runs `terrace bench smoke` with the arguments after `smoke`.
pub fn main(args: &[OsString]) -> ExitCode {
    let args = match Args::parse(args) {
        Ok(Some(args)) => args,
        Ok(None) => return ended("smoke", say(args::HELP).map(|()| true)),
        Err(error) => return ended("smoke", Err(error)),
    };
    ended("smoke", smoke(&args))
}

type Row = fn(&Args, &Scratch, &mut Report) -> Outcome<()>;

/// The rows: name, what it measures, how.
const ROWS: [(&str, &str, Row); 7] = [
    ("a", "in process, with fences and lines (row b)", in_process::run),
    ("c", "through FUSE against the null server", through_fuse::run),
    ("d", "against ext4 on the disk and on a PM loop", peers::run),
    ("e", "mount after kill -9", recovery::run),
    ("f", "sequential write through a small PM", throughput::run),
    ("g", "memory of the daemon", memory::run),
    ("way-in", "requests by io_uring and classic", way_in::run),
];

/// Runs the rows; false when a figure misses what it must be.
fn smoke(args: &Args) -> Outcome<bool> {
    let scratch = Scratch::new(&args.dir, "smoke")?;
    let mut report = Report::new(machine::describe(), args.rounds);
    if let Some(map) = &args.map {
        report.note(format!("File map of rows a to g: {map}."));
    }
    for (name, what, run) in ROWS {
        // b is counted together with a.
        let wanted = args.wants(name) || (name == "a" && args.wants("b"));
        if !wanted {
            continue;
        }
        eprintln!("row {name}: {what}");
        if let Err(error) = run(args, &scratch, &mut report) {
            report.skip(name, error.to_string());
        }
    }
    report.finish(args)
}
