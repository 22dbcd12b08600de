//! Part `calls`: medians and 99th percentiles of single calls of a program with one thread. A sample is the figure of
//! a turn; a contestant has a turn in every round.

use super::client::{Call, Client, Count};
use super::contestant::{Contestant, Kind, Room, rounds};
use super::ground::{Ground, ROW};
use crate::smoke::grid::Grid;
use crate::smoke::report::Report;
use rustix::thread::CpuSet;
use terrace_bench::affinity;
use terrace_bench::failure::Outcome;
use terrace_bench::stats::quantile;
use terrace_fuse::Transport;

const ROOM: Room = Room { pm: 512 << 20, disk: 1 << 30 };
/// The first of all contestants that are servers.
const SERVERS: usize = 5;
const KINDS: [Kind; 8] = [
    Kind::Terrace(Transport::Uring),
    Kind::Terrace(Transport::Classic),
    Kind::Before,
    Kind::Null(Transport::Uring),
    Kind::Null(Transport::Classic),
    Kind::Ext4,
    Kind::Xfs,
    Kind::Tmpfs,
];

pub(super) fn run(ground: &Ground<'_>, report: &mut Report) -> Outcome<()> {
    ground.scratch.need(ROOM.pm + (64 << 20), 2 * ROOM.disk)?;
    measure(ground, report, "calls, unpinned", &KINDS, None)?;
    measure(ground, report, "calls, one core", &KINDS[..SERVERS], Some(&affinity::last(&affinity::all()?)))
}

/// Measures all calls; with `core` client and server are on these cores alone.
fn measure(
    ground: &Ground<'_>,
    report: &mut Report,
    title: &str,
    kinds: &[Kind],
    core: Option<&CpuSet>,
) -> Outcome<()> {
    let kinds = Kind::present(ground, kinds);
    let columns: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    let lines = Call::ALL.map(Call::name);
    let (mut medians, mut tails) = (Grid::new(&lines, &columns), Grid::new(&lines, &columns));
    rounds(ground, report, title, (&kinds, ROOM), |column, contestant| {
        let take = |line: usize, times: &[f64]| {
            medians.push(line, column, quantile(times, 0.5));
            tails.push(line, column, quantile(times, 0.99));
        };
        match (core, contestant.pid()) {
            (Some(core), Some(server)) => on_core(server, core, || turns(ground, contestant, take)),
            _ => turns(ground, contestant, take),
        }
    })?;
    report.grid(ROW, &format!("{title}, median"), "µs", &medians);
    report.grid(ROW, &format!("{title}, p99"), "µs", &tails);
    Ok(())
}

/// Runs `body` with the server and this process on a core. Afterwards this process may use all cores again: the next
/// server inherits them, and starts as many threads.
fn on_core(server: u32, core: &CpuSet, body: impl FnOnce() -> Outcome<()>) -> Outcome<()> {
    let cores = affinity::all()?;
    affinity::pin_process(server, core)?;
    affinity::pin_process(std::process::id(), core)?;
    let done = body();
    affinity::pin_process(std::process::id(), &cores)?;
    done
}

/// A turn of every call; `take` gets the line and the times.
fn turns(ground: &Ground<'_>, contestant: &Contestant, mut take: impl FnMut(usize, &[f64])) -> Outcome<()> {
    let short = Count { warm: 10, measured: 40, limit_ns: 300_000_000 };
    let count = ground.either(Count { warm: 100, measured: 2000, limit_ns: 2_000_000_000 }, short);
    let one_file = matches!(contestant.kind, Kind::Null(_));
    let mut client = Client::new(&*ground.scratch.clock, &contestant.root, one_file)?;
    for (line, call) in Call::ALL.into_iter().enumerate() {
        if let Some(times) = client.turn(call, count)? {
            take(line, &times);
        }
    }
    Ok(())
}
