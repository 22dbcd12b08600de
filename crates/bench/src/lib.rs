//! `terrace bench smoke`: the numbers of docs/benchmarks.md, each against what it must be; `terrace bench paper ROW`
//! (paper/): one row of docs/evaluation.md, beside the peers that this machine has.
//!
//! A row sets up what it needs below a scratch directory and on /dev/shm, measures in rounds that alternate
//! between what is compared, and takes everything down again. Mounts live in a private mount namespace;
//! processes are ended by their id. Nothing is measured that another process could be harmed by: a row
//! that would leave too little memory or disk is skipped with the reason.
#![forbid(unsafe_code)]

mod affinity;
mod args;
mod in_process;
mod io_loop;
mod machine;
mod memory;
mod null_server;
mod paper;
mod peers;
mod process;
mod recovery;
mod regret;
mod report;
mod scratch;
mod series;
mod site;
mod stats;
mod through_fuse;
mod throughput;
mod trace;
mod workload;

use args::Args;
use report::Report;
use scratch::Scratch;
use std::error::Error;
use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

/// What goes wrong is told to a person, in a sentence.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// Writes a line to standard output. Nobody reading it is not an error.
pub(crate) fn say(text: impl std::fmt::Display) -> Outcome<()> {
    match writeln!(std::io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(format!("standard output: {error}").into())
        }
        _ => Ok(()),
    }
}

/// Runs `terrace bench smoke` with the arguments after `smoke`.
pub fn main_smoke(args: &[OsString]) -> ExitCode {
    let args = match Args::parse(args) {
        Ok(Some(args)) => args,
        Ok(None) => return ended("smoke", say(args::HELP).map(|()| true)),
        Err(error) => return ended("smoke", Err(error)),
    };
    ended(
        "smoke",
        match &args.null_server {
            Some(directory) => null_server::serve(directory).map(|()| true),
            None => smoke(&args),
        },
    )
}

/// A value that an option does not take: exit status 2.
#[derive(Debug)]
pub(crate) struct BadValue(pub String);

impl std::fmt::Display for BadValue {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

impl Error for BadValue {}

/// The exit status of `terrace bench COMMAND`; false is a failure that was told already.
pub(crate) fn ended(command: &str, done: Outcome<bool>) -> ExitCode {
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr().lock(), "terrace bench {command}: {error}");
            if error.is::<BadValue>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

/// Runs `terrace bench paper` with the arguments after `paper`.
pub fn main_paper(args: &[OsString]) -> ExitCode {
    paper::main(args)
}

/// Runs `terrace bench run` with the arguments after `run`.
pub fn main_run(args: &[OsString]) -> ExitCode {
    paper::given::main(args)
}

type Row = fn(&Args, &Scratch, &mut Report) -> Outcome<()>;

/// The rows: letter, what it measures, how.
const ROWS: [(char, &str, Row); 6] = [
    ('a', "in process, with fences and lines (row b)", in_process::run),
    ('c', "through FUSE against the null server", through_fuse::run),
    ('d', "against ext4 on the disk and on a PM loop", peers::run),
    ('e', "mount after kill -9", recovery::run),
    ('f', "sequential write through a small PM", throughput::run),
    ('g', "memory of the daemon", memory::run),
];

/// Runs the rows; false when a figure misses what it must be.
fn smoke(args: &Args) -> Outcome<bool> {
    let scratch = Scratch::new(&args.dir, "smoke")?;
    let mut report = Report::new(machine::describe(), args.rounds);
    for (letter, what, run) in ROWS {
        // b is counted together with a.
        let wanted = args.rows.iter().any(|row| *row == letter || (letter == 'a' && *row == 'b'));
        if !wanted {
            continue;
        }
        eprintln!("row {letter}: {what}");
        if let Err(error) = run(args, &scratch, &mut report) {
            report.skip(letter, error.to_string());
        }
    }
    report.finish(args)
}
