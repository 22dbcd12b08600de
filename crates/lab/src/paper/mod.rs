//! `terrace bench paper ROW`: the rows of docs/evaluation.md, each a figure or table of a publication.
//!
//! A row is an entry of [`ROWS`] (registry.rs) and a function that makes its plan (rows/). Ids are stable: results and
//! documentation name them.

mod must_show;
mod registry;
mod replay;
pub(crate) mod rows;
#[cfg(test)]
mod tests;

use registry::{Built, ROWS};
use serde::Serialize;
use std::ffi::OsString;
use std::process::ExitCode;
use terrace_bench::comparison::options::{Asked, Options};
use terrace_bench::comparison::plan;
use terrace_bench::comparison::{run_plan, scale};
use terrace_bench::failure::ended;
use terrace_bench::failure::say;
use terrace_bench::failure::{BadValue, Outcome};
use terrace_bench::site::subject::Peer;

pub(crate) const HELP: &str = "\
Measures a row of docs/evaluation.md beside the file systems that this machine has.

Usage: terrace bench paper ROW [OPTIONS]
       terrace bench paper --list
       terrace bench paper --replay TRACE [OPTIONS]
       terrace bench paper --must-show [OPTIONS]

  --list            the rows: id, what is measured, why one cannot run here
  --must-show       all rows of what the project has to show, on one core and unpinned, and their table; what
                    has results below --out is not run again
  --only NAME       of these only this one
  --limit N         of these run at most so many, then print the table (0: only the table)
  --again           run those again that have results
  --quick           tiny and short: shows that the row runs; its figures mean nothing
  --class CLASS     what the device below everyone behaves like: host (the disk of this machine, not
                    emulated) or a class of `terrace bench device`, with +N if a flush takes N microseconds (default: host,
                    or what the row is about)
  --device-memory   the file behind the device is in memory: for classes faster than the disk
  --emulate-pm SPEED  PM of Terrace with another speed: line or run, the models of docs/evaluation.md, or as the
                    mount option has it; what peers have of PM is not slowed
  --pm KIND         what tier 0 of Terrace is: memory (default), or journal, DRAM with a journal on the disk of the peers
  --peers LIST      only these of terrace,local,ext4,ext4-journal,xfs,ext4-dj,xfs-ml,ext4-pm,xfs-pm,btrfs,tmpfs,null,
                    mergerfs,device,raw
                    (default: those of the row; local is Terrace without the kernel)
  --rounds N        interleaved rounds (default 5)
  --seconds N       time of one figure in one round (default 3)
  --dataset SIZE    bytes of data, at least 8M; PM follows in the published proportion (default 512M); rows hashfs-13
                    and -14 have the published records, and run in process
  --fio             rows of random reads and writes also through fio itself, beside the own generator
  --engine          row regret also on the engine, for time (long), and on one machine of costs only
  --one-core        everything on one core; emulated devices on the others
  --record PATH     what `local`, which has to be among the peers, is asked to do, to be replayed
  --json            the result on standard output, instead of a table or a line
  --out DIR         ROW.json and ROW.svg go there (default target/bench)
  --dir DIR         directory on the disk for devices (default target/bench)
  --terrace PATH    the program for mkfs, mount, … (default: this one, or the one beside it)

Example: terrace bench paper tpfs-13 --class sata --peers terrace,ext4-dj,xfs-ml";

/// Runs `terrace bench paper` with the arguments after `paper`.
pub fn main(args: &[OsString]) -> ExitCode {
    let done = Options::parse(args).and_then(|asked| match asked {
        Asked::Help => say(HELP),
        Asked::List { json } => list(json),
        // Only `run` knows them.
        Asked::Load(..) | Asked::NullServer(..) => say(HELP),
        Asked::MustShow(options) => must_show::run(&options),
        Asked::Row(options) => match &options.replay {
            Some(trace) => replay::replay(&options, trace),
            None => run(&options),
        },
    });
    ended("paper", done.map(|()| true))
}

/// A row as `--list --json` shows it.
#[derive(Serialize)]
struct Listed {
    id: &'static str,
    sentence: &'static str,
    published: &'static str,
    shape: &'static str,
    /// Why it cannot run here.
    not_built: Option<&'static str>,
}

fn list(json: bool) -> Outcome<()> {
    let rows = ROWS.iter().map(|row| Listed {
        id: row.about.id,
        sentence: row.about.sentence,
        published: row.about.published,
        shape: row.about.shape,
        not_built: None,
    });
    if json {
        let rows: Vec<Listed> = rows.collect();
        say(serde_json::json!({ "output_version": 1, "rows": rows }))?;
        return Ok(());
    }
    for row in rows {
        say(format_args!("{:<13} {}", row.id, row.sentence))?;
    }
    Ok(())
}

fn run(options: &Options) -> Outcome<()> {
    let row = ROWS.iter().find(|row| row.about.id == options.row);
    let row = row.ok_or_else(|| format!("no row {}; terrace bench paper --list shows them", options.row))?;
    let (row, built) = (&row.about, row.built);
    let plan = match built {
        Built::Plan(plan) => plan,
        Built::Own(_) if options.record.is_some() => {
            return Err(BadValue(format!("--record: row {} asks nothing of the peer local", row.id)).into());
        }
        Built::Own(_) if options.journal => {
            return Err(BadValue(format!("--pm: row {} makes pools of its own", row.id)).into());
        }
        Built::Own(run) => return run(row, options),
    };
    let scale = scale(options);
    let mut plan = plan(&scale);
    if let Some(peers) = &options.peers {
        plan.keep(peers);
    }
    plan.emulate_pm(options.emulate_pm.as_deref());
    if options.journal {
        plan.journal();
    }
    if plan.cells.is_empty() {
        return Err(format!("row {} measures none of these peers", row.id).into());
    }
    let local = |cell: &plan::Cell| plan.subjects[cell.subject].peer == Peer::Local;
    if options.record.is_some() && !plan.cells.iter().any(local) {
        let text = "--record needs peer local, which is not among the peers; say --peers local".to_string();
        return Err(BadValue(text).into());
    }
    run_plan(options, row, plan, &scale)
}
