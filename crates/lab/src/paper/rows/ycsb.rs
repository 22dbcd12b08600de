//! Rows hashfs-13 and hashfs-14: YCSB over LevelDB, in process, on a pool of PM alone with each file map.
//!
//! A round gives each map a new pool, loads the records, and does the operations of the workloads, one workload after
//! the other; the order of the maps changes with every round. LevelDB in Rust serves one thread at a time: with four
//! threads there are four databases with a quarter of the records each, in one pool. All databases begin a workload
//! together, and it ends with the last of them.
//!
//! LevelDB in Rust compacts inside a write, not in a thread of its own, so the time of a workload includes the
//! compactions that its writes start. Operations depend on seeds alone, so each map gets the same compactions, except
//! in workload E, whose scans LevelDB samples at random.

use crate::ycsb::client::{Client, VALUE_BYTES};
use crate::ycsb::env::{Account, Locks};
use crate::ycsb::generator::WORKLOADS;
use crate::ycsb::pool::Pool;
use serde_json::json;
use terrace_bench::comparison::figure::Figure;
use terrace_bench::comparison::options::Options;
use terrace_bench::comparison::outcome::Result;
use terrace_bench::comparison::plan::{Cell, Metric, Must, Plan, Work};
use terrace_bench::comparison::{Row, pin};
use terrace_bench::failure::{Outcome, say};
use terrace_bench::site::Site;
use terrace_bench::site::teardown::Resource;
use terrace_bench::stats::median;
use terrace_map::{MAPS, MapRow};
use terrace_media::pm::PmSpeed;

/// Name of the phase that makes the records.
const LOAD: &str = "load";
/// Operations of a workload, and records, as published.
const OPERATIONS: u64 = 100_000;
const RECORDS: u64 = 1_600_000;
/// The same of a quick run.
const QUICK_OPERATIONS: u64 = 400;
const QUICK_RECORDS: u64 = 8000;
/// PM by bytes of values: a compaction has its inputs and its outputs at the same time.
const PM_PER_DATA: u64 = 3;
/// Least PM of a pool.
const LEAST_PM_BYTES: u64 = 128 << 20;
/// Workloads that LevelDB's own work bounds [HashFS section 4.8], and the largest ratio of two maps in them.
const BOUND_BY_LEVELDB: [&str; 2] = ["A", "E"];
const ALIKE: f64 = 1.05;

/// Size of a run.
#[derive(Clone, Copy)]
struct Size {
    threads: u64,
    records: u64,
    operations: u64,
}

impl Size {
    fn of(threads: u64, quick: bool) -> Size {
        match quick {
            true => Size { threads, records: QUICK_RECORDS, operations: QUICK_OPERATIONS },
            false => Size { threads, records: RECORDS, operations: OPERATIONS },
        }
    }

    fn data_bytes(self) -> u64 {
        self.records * VALUE_BYTES as u64
    }

    fn pm_bytes(self) -> u64 {
        (self.data_bytes() * PM_PER_DATA).max(LEAST_PM_BYTES).next_multiple_of(2 << 20)
    }
}

/// A measured phase: the load or a workload.
struct Phase {
    operations_per_s: f64,
    /// Part of the threads' time that calls of the file system take.
    in_files: f64,
}

/// Names of the phases in their order.
fn phases() -> impl Iterator<Item = &'static str> {
    [LOAD].into_iter().chain(WORKLOADS.iter().map(|workload| workload.name))
}

/// Row hashfs-14.
pub(crate) fn one_thread(row: &Row, options: &Options) -> Outcome<()> {
    run(row, options, 1)
}

/// Row hashfs-13.
pub(crate) fn four_threads(row: &Row, options: &Options) -> Outcome<()> {
    run(row, options, 4)
}

fn run(row: &Row, options: &Options, threads: u64) -> Outcome<()> {
    let speed = options.emulate_pm.as_deref().map(PmSpeed::parse).transpose()?;
    let device_cores = pin(options)?;
    let mut site = Site::new(&options.site, 0, None)?;
    site.device_cores = device_cores;
    let size = Size::of(threads, options.quick);
    if !options.quick {
        site.scratch.need(size.pm_bytes(), 0)?;
    }
    eprintln!("row {}: {}", row.id, row.sentence);
    let plan = plan(size, options.emulate_pm.as_deref());
    let mut result = Result::new(row, options, &plan, &site, size.data_bytes());
    result.figures = plan.cells.iter().map(|cell| Figure::new(cell, "", plan.metric)).collect();
    let mut in_files = vec![Vec::new(); plan.cells.len()];
    for round in 0..options.rounds {
        eprintln!("  round {} of {}", round + 1, options.rounds);
        let mut order: Vec<usize> = (0..MAPS.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for map in order {
            let found = measure(&site, &MAPS[map], speed, size)?;
            for (number, phase) in found.iter().enumerate() {
                let cell = map * found.len() + number;
                result.figures[cell].push(round, phase.operations_per_s, None);
                in_files[cell].push(phase.in_files);
            }
        }
    }
    result.judge(&plan);
    result.derived =
        MAPS.iter().map(|map| (shares_title(map), json!(shares(map, &plan, &in_files)))).collect();
    let path = result.write(&options.output.directory)?;
    match options.output.json {
        true => say(serde_json::to_string_pretty(&result)?)?,
        false => say(result.table())?,
    }
    eprintln!("  {} and .svg written", path.display());
    Ok(())
}

fn shares_title(map: &MapRow) -> String {
    format!("part of the time in the file system, {}", map.name)
}

/// Medians of the parts of the time that calls of the file system take, by phase.
fn shares(map: &MapRow, plan: &Plan, in_files: &[Vec<f64>]) -> String {
    let own = plan.cells.iter().zip(in_files).filter(|(cell, _)| cell.series == map.name);
    let own: Vec<String> = own.map(|(cell, parts)| format!("{} {:.3}", cell.at, median(parts))).collect();
    own.join(", ")
}

/// Figures by map and phase, and the claims about them: each map beside the first one.
fn plan(size: Size, speed: Option<&str>) -> Plan {
    let mut plan = Plan::new(Metric::OperationsPerS, "workload", 0);
    for map in MAPS {
        for (number, at) in phases().enumerate() {
            let (series, at) = (map.name.to_string(), at.to_string());
            plan.cells.push(Cell { subject: 0, series, x: number as f64, at, work: Work::Together(vec![]) });
        }
    }
    for map in &MAPS[1..] {
        for at in phases() {
            match BOUND_BY_LEVELDB.contains(&at) {
                true => plan.claim_at("the same", map.name, MAPS[0].name, at, Must::Within(ALIKE)),
                false => plan.claim_at("beside", map.name, MAPS[0].name, at, Must::Shown),
            }
        }
    }
    let Size { threads, records, operations } = size;
    plan.notes.push(format!(
        "{records} records with values of {VALUE_BYTES} bytes, {operations} operations of each workload; {}. Every write \
         is durable before it returns. PM alone, {} MiB.",
        match threads {
            1 => "one database, one thread".to_string(),
            _ => format!("{threads} threads, each with a database of its own, for LevelDB in Rust serves one thread"),
        },
        size.pm_bytes() >> 20
    ));
    if let Some(speed) = speed {
        plan.notes.push(format!("PM is emulated ({speed})."));
    }
    plan
}

/// Measures a map in a new pool, which is deleted afterwards.
fn measure(site: &Site, map: &MapRow, speed: Option<PmSpeed>, size: Size) -> Outcome<Vec<Phase>> {
    let path = site.scratch.memory.join(format!("{}.pm", map.name));
    let _held = site.teardown.hold(Resource::File(path.clone()))?;
    let pool = Pool::create(&path, size.pm_bytes(), map, speed, &site.scratch.clock)?;
    let locks = Locks::default();
    let open = |number: u64| {
        let account = Account::new(pool.target(), site.scratch.clock.clone());
        Client::open(&format!("db{number}"), account, locks.clone(), number)
    };
    let mut clients = (0..size.threads).map(open).collect::<std::result::Result<Vec<_>, _>>()?;
    let mut found = Vec::new();
    for at in phases() {
        let phase;
        (clients, phase) = together(site, clients, size, at)?;
        found.push(phase);
    }
    drop(clients);
    pool.finish()?;
    Ok(found)
}

/// Runs a phase in all clients at the same time, each in a thread.
fn together(
    site: &Site,
    clients: Vec<Client>,
    size: Size,
    at: &'static str,
) -> Outcome<(Vec<Client>, Phase)> {
    site.teardown.go_on()?;
    let busy = |clients: &[Client]| clients.iter().map(Client::busy_ns).sum::<u64>();
    let busy_before = busy(&clients);
    let workload = WORKLOADS.iter().find(|workload| workload.name == at);
    let (records, operations) = (size.records / size.threads, size.operations / size.threads);
    let mut works = Vec::new();
    for (number, client) in clients.into_iter().enumerate() {
        let seed = number as u64 + 1;
        works.push((workload.map(|workload| workload.draw(client.records, operations, seed)), client));
    }
    let begin = site.scratch.now_ns();
    let mut threads = Vec::new();
    for (operations, mut client) in works {
        threads.push(terrace_runtime::thread::spawn("client", move || {
            let done = match operations {
                Some(operations) => client.run(&operations),
                None => client.load(records),
            };
            done.map(|()| client)
        })?);
    }
    // All threads end before the first error is given: their pool goes with it.
    let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
    let elapsed_ns = (site.scratch.now_ns() - begin).max(1);
    let clients = ended
        .into_iter()
        .map(|client| client.unwrap_or_else(|_| Err("a client panicked".to_string())))
        .collect::<std::result::Result<Vec<_>, _>>()
        .map_err(|error| format!("{at}: {error}"))?;
    let count = if workload.is_some() { operations } else { records } * size.threads;
    let busy_ns = busy(&clients) - busy_before;
    let phase = Phase {
        operations_per_s: count as f64 / elapsed_ns as f64 * 1e9,
        in_files: busy_ns as f64 / (elapsed_ns * size.threads) as f64,
    };
    Ok((clients, phase))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_map_is_measured_and_compared() {
        let plan = plan(Size::of(4, false), None);
        assert_eq!(plan.cells.len(), MAPS.len() * 7);
        assert_eq!(plan.claims.len(), (MAPS.len() - 1) * 7);
        for map in MAPS {
            let places: Vec<&str> = plan
                .cells
                .iter()
                .filter(|cell| cell.series == map.name)
                .map(|cell| cell.at.as_str())
                .collect();
            assert_eq!(places, ["load", "A", "B", "C", "F", "D", "E"]);
        }
    }

    /// A machine with 24 GiB has room for the row and the 6 GiB that every row leaves.
    #[test]
    fn the_published_size_fits_the_machine() {
        for threads in [1, 4] {
            let size = Size::of(threads, false);
            assert!(size.pm_bytes() <= 6 << 30, "{}", size.pm_bytes());
            assert_eq!(size.records % threads + size.operations % threads, 0);
        }
    }
}
