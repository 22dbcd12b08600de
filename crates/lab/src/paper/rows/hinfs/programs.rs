//! Rows hinfs-13 and hinfs-14: traces in process; PostMark and PostgreSQL's file operations in process, programs through the mount.

use super::jobs::{Job, Run};
use super::mounts::subject;
use super::pool::{ALWAYS, ATOMIC, DIRECT, LAZY, LAZY_ATOMIC, LAZY_ORDERED, LazyPool, ORDERED, Size, Way};
use super::traces::TRACES;
use super::{Comparison, LITTLE_BUFFER_SHARE};
use crate::paper::rows::maps::sheet::Sheet;
use terrace_bench::comparison::Row;
use terrace_bench::comparison::options::Options;
use terrace_bench::comparison::plan::{Metric, Must};
use terrace_bench::failure::Outcome;
use terrace_bench::site::Site;
use terrace_bench::site::mounted::Place;
use terrace_bench::site::programs::Program;
use terrace_bench::workload::directory::Directory;
use terrace_bench::workload::target::FileTarget;

/// The time of a job in one way, with the lines that it wrote to PM.
fn measure_job((site, way, round): (&Site, &Way, usize), sheet: &mut Sheet, run: &Run<'_>) -> Outcome<()> {
    let pool = LazyPool::create(site, way, run.size)?;
    let target = pool.target();
    run.prepare(&pool, &*target)?;
    let work = run.work(site, &target);
    let ((), taken) = pool.timed(&site.scratch.clock, work)?;
    let at = run.job.name();
    sheet.add(round, (way.name, ""), Metric::Seconds, at, taken.ns as f64 / 1e9);
    sheet.add(round, (way.name, "lines"), Metric::Lines, at, taken.pm.lines as f64);
    drop(target);
    pool.finish()
}

/// Claims about the time of a job or program.
fn claim_times(sheet: &mut Sheet, at: &str, must: Must) {
    sheet.claim("by way of DRAM", LAZY.name, DIRECT, at, must);
    sheet.claim("without the choice of eager blocks", ALWAYS.name, DIRECT, at, Must::Shown);
    sheet.claim("without the choice of eager blocks", ALWAYS.name, LAZY.name, at, Must::Shown);
    claim_modes(sheet, at);
}

/// Claims with a mode of data on each side: eager blocks are written as direct ones are.
fn claim_modes(sheet: &mut Sheet, at: &str) {
    sheet.claim("data=atomic on both sides", LAZY_ATOMIC.name, ATOMIC.name, at, Must::Shown);
    sheet.claim("data=ordered on both sides", LAZY_ORDERED.name, ORDERED.name, at, Must::Shown);
    sheet.claim("the stronger promise against the faster", LAZY_ATOMIC.name, DIRECT, at, Must::Shown);
}

/// The ways of traces and programs.
const WAYS: [Way; 5] = [LAZY_ATOMIC, LAZY_ORDERED, ALWAYS, ATOMIC, ORDERED];

/// Row hinfs-13.
pub(crate) fn replayed(row: &Row, options: &Options) -> Outcome<()> {
    let size = Size::of(options, LITTLE_BUFFER_SHARE);
    let measure = |site: &Site, way: &Way, round: usize, sheet: &mut Sheet| {
        TRACES.iter().try_for_each(|trace| {
            let run = Run { job: Job::Trace(trace), size: &size, options, seed: round as u64 + 1 };
            measure_job((site, way, round), sheet, &run)
        })
    };
    let claims = |sheet: &mut Sheet| {
        let [usr0, usr1, lasr, facebook] = TRACES.each_ref().map(|trace| trace.name);
        for at in [usr0, usr1, lasr] {
            claim_times(sheet, at, Must::AtMost(0.75));
        }
        claim_times(sheet, facebook, Must::AtMost(1.03));
    };
    let notes = vec![
        "In process, PM alone, a buffer of a tenth of the data; each trace writes six times as much, and what waits at its end is \
         written to PM inside the clock. The traces are generated (crates/lab/src/paper/rows/hinfs/traces.rs): LASR-like without \
         syncs; facebook-like with requests below 1 KiB on average and two syncs for each change of one or two pages; usr0-like \
         and usr1-like with both kinds of bytes, in shares that the text of the publication does not say (row hinfs-2 shows those \
         of here). `direct` and `lazy` are each the faster of data=atomic and data=ordered, by medians; `always lazy` has data=atomic. Series `lines`: lines written to PM."
            .into(),
    ];
    let (axis, metric) = ("trace", Metric::Seconds);
    Comparison { ways: &WAYS, axis, metric, notes, measure: &measure, claims: &claims }.run(row, options)
}

/// In process.
const JOBS: [Job; 2] = [Job::Postmark, Job::Postgres];
/// Bytes of data for each source of the tree.
const BYTES_BY_SOURCE: u64 = 2 << 20;
/// A unit of pgbench's scale, with log and templates.
const BYTES_BY_SCALE: u64 = 24 << 20;

/// The programs that run through the mount, with their names.
fn mounted_programs(size: &Size, options: &Options) -> [(&'static str, Program); 3] {
    let files = (size.data_bytes / BYTES_BY_SOURCE).max(4);
    let scale = (size.data_bytes / BYTES_BY_SCALE).max(1);
    [
        ("grep", Program::Grep { files: files * 10 }),
        ("make", Program::Make { files }),
        ("pgbench", Program::Postgres { scale, seconds: (options.seconds as u64).max(1) }),
    ]
}

/// Time of an operation of a program on a mount of its own; what waits at the end is written to PM inside the clock.
fn measure_program(
    (site, way, round): (&Site, &Way, usize),
    (sheet, at): (&mut Sheet, &str),
    (program, size): (&Program, &Size),
) -> Outcome<()> {
    let mounted = site.mount(&subject(way, size), None)?;
    let Place::Directory(root) = &mounted.place else { return Err("not a mount".into()) };
    // PostgreSQL makes its database, the others their sources, at the first run.
    program.run(site, root)?;
    site.write_back(&mounted)?;
    // A grep takes a tenth of a second.
    let runs = if matches!(program, Program::Grep { .. }) { 9 } else { 1 };
    let mut times = Vec::new();
    for _ in 0..runs {
        Directory::new(root).settle()?;
        let rate = program.run(site, root)?;
        let begin_ns = site.scratch.now_ns();
        site.write_back(&mounted)?;
        let rest_ns = (site.scratch.now_ns() - begin_ns) as f64;
        times.push(match program {
            Program::Grep { files } | Program::Make { files } => 1e9 / rate + rest_ns / *files as f64,
            _ => 1e9 / rate,
        });
    }
    times.sort_unstable_by(f64::total_cmp);
    sheet.add(round, (way.name, ""), Metric::NsPerOperation, at, times[times.len() / 2]);
    mounted.finish(site)
}

/// Row hinfs-14.
pub(crate) fn programs(row: &Row, options: &Options) -> Outcome<()> {
    let size = Size::of(options, LITTLE_BUFFER_SHARE);
    let through_mount = mounted_programs(&size, options);
    let measure = |site: &Site, way: &Way, round: usize, sheet: &mut Sheet| {
        for job in JOBS {
            let run = Run { job, size: &size, options, seed: round as u64 + 1 };
            measure_job((site, way, round), sheet, &run)?;
        }
        // The daemon has no option for it.
        if way.name == ALWAYS.name {
            return Ok(());
        }
        for (at, program) in &through_mount {
            match program.available() {
                Ok(()) => measure_program((site, way, round), (sheet, at), (program, &size))?,
                Err(error) => eprintln!("  {at}: {error}"),
            }
        }
        Ok(())
    };
    let claims = |sheet: &mut Sheet| {
        claim_times(sheet, Job::Postmark.name(), Must::AtMost(0.65));
        claim_times(sheet, Job::Postgres.name(), Must::AtMost(1.03));
        for (at, _) in &through_mount {
            sheet.claim("through the mount", LAZY.name, DIRECT, at, Must::AtMost(1.03));
            claim_modes(sheet, at);
        }
    };
    let notes = vec![
        "A buffer of a tenth of the data, one client. In process: PostMark with its defaults, which creates files of as \
         many bytes as the data, of which a twentieth lives at a time, and the file operations of PostgreSQL \
         under pgbench in place of TPC-C. Through the mount: grep for an absent word in a tree of generated C sources, make of a \
         tenth of these, pgbench (TPC-B-like); each runs once on a new pool before the run that counts, of grep the median of nine; the \
         kernel's pages are dropped between. Time of an operation: a source, or a transaction. What waits at the end is written to PM inside the \
         clock, but for pgbench. `direct` and `lazy` are each the faster of data=atomic and data=ordered, by medians; `always lazy` has data=atomic."
            .into(),
    ];
    let (axis, metric) = ("program", Metric::Seconds);
    Comparison { ways: &WAYS, axis, metric, notes, measure: &measure, claims: &claims }.run(row, options)
}
