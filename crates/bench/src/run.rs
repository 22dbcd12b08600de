//! `terrace bench run WORKLOAD DIR…`: a workload side by side in existing directories, measured like a row.

use crate::comparison::options::{Asked, Options};
use crate::comparison::plan::{Cell, Metric, Must, Plan, Scale, Work};
use crate::comparison::{NO_SHAPE, Row, run_plan, scale};
use crate::failure::Outcome;
use crate::failure::say;
use crate::site::programs::Program;
use crate::site::subject::{Peer, Tuning};
use crate::workload::burst::Arrivals;
use crate::workload::load::{Kind, Load};
use crate::workload::personality::Personality;
use crate::workload::worker::Sync;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(crate) const HELP: &str = "\
Runs a workload side by side in directories of any file systems; the first one is compared with the others.

Usage: terrace bench run WORKLOAD DIR... [OPTIONS]

WORKLOAD
  fileserver, webserver, webproxy, varmail    filebench's personalities
  random-read, random-write                   4 KiB at Zipf-distributed places (0.71); writes O_DSYNC
  commit                                      appends of 4 KiB with fsync, a log for each thread
  burst                                       the same, then an open loop at half of that rate
  bulk                                        whole files, never made durable
  rocksdb, sqlite, postgresql, fio            programs: RocksDB fillseq synchronous, SQLite inserts with WAL,
                                              pgbench, fio's random writes; not with --threads
  trace:PATH                                  what `terrace bench paper --record PATH` has recorded

Below each DIR a directory terrace-bench-N is made, which goes at the end. The page cache is not limited: choose
--dataset larger than memory, or look at what waits for the device.

  --threads N       of the workload (default 1)
  --rounds N        interleaved rounds (default 5), and one before them that does not count
  --seconds N       time of one figure in one round (default 3)
  --dataset SIZE    bytes of data (default 512M)
  --quick           tiny and short: shows that it runs; its figures mean nothing
  --one-core        everything of this process on one core
  --json            the result on standard output, instead of a table
  --out DIR         WORKLOAD.json and WORKLOAD.svg go there (default: nowhere)
  --dir DIR         a directory for what programs print (default: the one for temporary files)

Example: terrace bench run varmail /mnt/terrace /home/mail --threads 4";

/// A workload that `terrace bench run` knows, by its stable name.
const WORKLOADS: [(&str, &str); 14] = [
    ("fileserver", "filebench fileserver"),
    ("webserver", "filebench webserver"),
    ("webproxy", "filebench webproxy"),
    ("varmail", "filebench varmail"),
    ("random-read", "Random reads of 4 KiB"),
    ("random-write", "Synchronous random writes of 4 KiB"),
    ("commit", "Appends of 4 KiB with fsync"),
    ("burst", "Appends of 4 KiB with fsync, as fast as they go and as an open loop at half of that"),
    ("bulk", "Whole files written, never made durable"),
    ("rocksdb", "RocksDB: fillseq, synchronous"),
    ("sqlite", "SQLite: inserts, WAL"),
    ("postgresql", "PostgreSQL: pgbench"),
    ("fio", "fio: synchronous random writes of 4 KiB"),
    ("trace", "A recorded trace"),
];

/// Runs `terrace bench run` with the arguments after `run`.
pub fn main(args: &[OsString]) -> ExitCode {
    let done = Options::parse_run(args).and_then(|asked| match asked {
        Asked::Row(options) => run(&options),
        Asked::Load(directory, job) => crate::site::run::child(&directory, &job),
        Asked::NullServer(directory, transport) => crate::null_server::serve(&directory, transport),
        _ => say(HELP),
    });
    crate::failure::ended("run", done.map(|()| true))
}

fn run(options: &Options) -> Outcome<()> {
    let (name, trace) = match options.row.split_once(':') {
        Some(("trace", path)) => ("trace", Some(std::path::absolute(path)?)),
        _ => (options.row.as_str(), None),
    };
    let known = WORKLOADS.iter().find(|(known, _)| *known == name);
    let (id, sentence) = known
        .filter(|_| trace.is_some() || name != "trace")
        .ok_or_else(|| format!("no workload {}; terrace bench run --help shows them", options.row))?;
    // A bad trace is refused before the setup begins.
    if let Some(path) = &trace {
        crate::trace::read(path)?;
    }
    for dir in &options.beside.dirs {
        std::fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    }
    let scale = scale(options);
    let plan = plan(&scale, id, trace.as_deref(), options)?;
    let row = Row { id, sentence, published: "nothing", shape: NO_SHAPE };
    run_plan(options, &row, plan, &scale)
}

fn plan(scale: &Scale, name: &str, trace: Option<&Path>, options: &Options) -> Outcome<Plan> {
    let mut plan = Plan::new(Metric::OperationsPerS, "workload", 0);
    for dir in &options.beside.dirs {
        let label = dir.display().to_string();
        if plan.subjects.iter().any(|subject| subject.label == label) {
            return Err(format!("{label} twice").into());
        }
        let mut subject = scale.subject(label, Peer::Given, 0.0, Tuning::default());
        subject.given = Some(dir.clone());
        plan.subjects.push(subject);
    }
    if name == "burst" {
        plan.metric = Metric::MedianLatencyNs;
        plan.also = vec![("p99.9", Metric::P999LatencyNs), ("longest", Metric::MaxLatencyNs)];
    } else if !matches!(name, "rocksdb" | "sqlite" | "postgresql" | "fio") {
        plan.also = vec![("median", Metric::MedianLatencyNs), ("p99", Metric::P99LatencyNs)];
    }
    for (number, (at, work)) in works(scale, name, trace, options.beside.threads).into_iter().enumerate() {
        for (subject, found) in plan.subjects.iter().enumerate() {
            let (series, at, work) = (found.label.clone(), at.to_string(), work.clone());
            plan.cells.push(Cell { subject, series, x: number as f64, at, work });
        }
    }
    let labels: Vec<String> = plan.subjects.iter().map(|subject| subject.label.clone()).collect();
    for other in &labels[1..] {
        plan.claim("the first beside this", &labels[0], other, Must::Shown);
    }
    Ok(plan)
}

/// The loads or programs of a workload, in the order of a round, each with its place on the axis.
fn works(scale: &Scale, name: &str, trace: Option<&Path>, threads: u64) -> Vec<(&'static str, Work)> {
    let load = |kind: Kind| Work::Load(scale.load(kind, threads));
    let all = |which: Personality| vec![(which.name(), load(scale.personality(which, false)))];
    let random = |write: bool| Kind::Random {
        write,
        sync: if write { Sync::Flag } else { Sync::Never },
        files: threads,
        file_bytes: scale.dataset_bytes / threads,
        io_bytes: 4096,
        theta: 0.71,
        single: None,
    };
    let seconds = (scale.limit_ns / 1_000_000_000).max(1);
    let (keys, rows) = match scale.quick {
        true => (1000, 100),
        false => (scale.dataset_bytes / 1016, scale.dataset_bytes / 3300),
    };
    match name {
        "fileserver" => all(Personality::Fileserver),
        "webserver" => all(Personality::Webserver),
        "webproxy" => all(Personality::Webproxy),
        "varmail" => all(Personality::Varmail),
        "random-read" => vec![("random-read", load(random(false)))],
        "random-write" => vec![("random-write", load(random(true)))],
        "commit" => vec![("commit", load(Kind::Commits { cold_bytes: 0, scan: false }))],
        "burst" => [("capacity", Arrivals::Closed), ("half", Arrivals::PercentOfCapacity(50))]
            .map(|(at, arrivals)| (at, load(Kind::Burst { bytes: scale.dataset_bytes, arrivals })))
            .into(),
        "bulk" => vec![("bulk", load(Kind::Bulk { file_bytes: scale.dataset_bytes / 4 / threads }))],
        "rocksdb" => {
            let program = Program::RocksDb { benchmark: "fillseq", keys, threads: 1, seconds: 600 };
            vec![("fillseq", Work::Program(program))]
        }
        "sqlite" => {
            let inserts = if scale.quick { 20 } else { (scale.limit_ns / 100_000).max(100) };
            vec![("WAL", Work::Program(Program::Sqlite { journal: "WAL", inserts, rows }))]
        }
        "postgresql" => {
            let size = (scale.dataset_bytes / (16 << 20)).max(1);
            vec![("TPC-B", Work::Program(Program::Postgres { scale: size, seconds }))]
        }
        "fio" => {
            let (files, milliseconds) = (1, scale.limit_ns / 1_000_000);
            let file_bytes = scale.dataset_bytes;
            let theta = "0.71".to_string();
            let program = Program::Fio { write: true, theta, files, file_bytes, milliseconds };
            vec![("random-write", Work::Program(program))]
        }
        _ => {
            let path: PathBuf = trace.map(Path::to_path_buf).unwrap_or_default();
            let whole = Load { operations: 1, limit_ns: u64::MAX, ..scale.load(Kind::Trace { path }, 1) };
            vec![("trace", Work::Load(whole))]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_has_a_plan() {
        let words = ["varmail", "/a", "/b", "--threads", "2"].map(OsString::from);
        let Ok(Asked::Row(options)) = Options::parse_run(&words) else { panic!("not a run") };
        assert_eq!((options.beside.dirs.len(), options.beside.threads), (2, 2));
        let scale = scale(&options);
        for (name, _) in WORKLOADS {
            let plan = plan(&scale, name, Some(Path::new("/trace")), &options).unwrap();
            assert!(!plan.cells.is_empty() && plan.claims.len() == 1, "{name}");
            assert!(HELP.contains(name), "{name}");
        }
        let twice = ["varmail", "/a", "/a"].map(OsString::from);
        let Ok(Asked::Row(options)) = Options::parse_run(&twice) else { panic!("not a run") };
        assert!(plan(&scale, "varmail", None, &options).is_err());
        for wrong in [&["varmail"][..], &[], &["varmail", "/a", "--threads", "0"]] {
            let words: Vec<OsString> = wrong.iter().map(OsString::from).collect();
            assert!(Options::parse_run(&words).is_err(), "{wrong:?}");
        }
    }
}
