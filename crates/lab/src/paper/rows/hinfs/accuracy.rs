//! Rows hinfs-2 and hinfs-4: the share of bytes that are synced, and how often a block is in the state that hindsight prefers.

use super::jobs::{Job, Run};
use super::pool::{LAZY, LazyPool, PUBLISHED, Size, Way};
use super::traces::TRACES;
use super::watch::{Seen, Watched};
use super::{BUFFER_SHARE, Comparison};
use crate::paper::rows::maps::sheet::Sheet;
use std::sync::Arc;
use terrace_bench::comparison::Row;
use terrace_bench::comparison::options::Options;
use terrace_bench::comparison::plan::{Metric, Must};
use terrace_bench::failure::Outcome;
use terrace_bench::site::Site;
use terrace_bench::workload::personality::Personality;
use terrace_bench::workload::target::FileTarget;
use terrace_cache::LineCosts;

/// A line of the emulated PM, and of DRAM, for the oracle.
const COSTS: LineCosts = LineCosts { dram_ns: 10.0, pm_ns: 200.0 };
/// Turns of varmail's flow that are not counted at first, each of which makes a file.
const FIRST_FILES: u64 = 100;

/// The files and turns of a job that count.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Counted {
    All,
    /// Not the first turns of a personality's flow.
    After(u64),
    /// Not the files that exist at first, either.
    New,
}

/// Runs a job on watched files; gives the sums of what counts.
fn watch(site: &Site, way: &Way, run: &Run<'_>, counted: Counted) -> Outcome<Seen> {
    let pool = LazyPool::create(site, way, run.size)?;
    let watched = Arc::new(Watched::new(pool.fs.clone(), COSTS));
    let target: Arc<dyn FileTarget> = watched.clone();
    run.prepare(&pool, &*target)?;
    watched.forget(counted == Counted::New);
    let turns = match counted {
        Counted::All => 0,
        Counted::After(turns) => turns,
        Counted::New => FIRST_FILES,
    };
    run.warm_up(site, &target, turns)?;
    watched.take_seen();
    run.work(site, &target)()?;
    let seen = watched.take_seen();
    drop((target, watched));
    pool.finish()?;
    Ok(seen)
}

/// A quotient; without a divisor 0.
fn of(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// The trace without syncs.
const LASR: &str = "LASR-like";

/// Row hinfs-2.
pub(crate) fn synced_shares(row: &Row, options: &Options) -> Outcome<()> {
    let size = Size::of(options, BUFFER_SHARE);
    let personalities = Personality::ALL.map(Job::Personality);
    let traces = TRACES.iter().map(Job::Trace);
    let jobs: Vec<Job> =
        personalities.into_iter().chain(traces).chain([Job::Postmark, Job::Postgres]).collect();
    let measure = |site: &Site, way: &Way, round: usize, sheet: &mut Sheet| {
        jobs.iter().try_for_each(|job| {
            let run = Run { job: *job, size: &size, options, seed: round as u64 + 1 };
            let seen = watch(site, way, &run, Counted::All)?;
            let share = of(seen.synced_bytes, seen.written_bytes);
            sheet.add(round, ("synced", ""), Metric::ShareOfBytes, job.name(), share);
            Ok(())
        })
    };
    let claims = |sheet: &mut Sheet| {
        for job in &jobs {
            // A claim about zeros cannot be a ratio.
            let must = if job.name() == LASR { Must::Never(0.0) } else { Must::Shown };
            sheet.claim("of all bytes written", "synced", "", job.name(), must);
        }
    };
    let notes = vec![
        "Bytes that a file has from writes since its last sync count as synced when the file is synced, and those of files that \
         are removed before do not. In process; the files that exist at first are not counted."
            .into(),
    ];
    let (axis, metric) = ("load", Metric::ShareOfBytes);
    Comparison { ways: &[LAZY], axis, metric, notes, measure: &measure, claims: &claims }.run(row, options)
}

/// The first files of varmail tell the predictors what follows.
const LATER_MAILS: &str = "varmail, after 100 files";

/// The files that exist at first were made without a sync, which says that they are not synced.
const NEW_MAILS: &str = "varmail, after 100 files, new files";

/// Row hinfs-4.
pub(crate) fn accuracy(row: &Row, options: &Options) -> Outcome<()> {
    let size = Size::of(options, BUFFER_SHARE);
    let [usr0, usr1, _, facebook] = &TRACES;
    let varmail = Job::Personality(Personality::Varmail);
    let traces = [usr0, usr1, facebook].map(|trace| (Job::Trace(trace), trace.name, Counted::All));
    let others = [
        (varmail, varmail.name(), Counted::All),
        (varmail, LATER_MAILS, Counted::After(FIRST_FILES)),
        (varmail, NEW_MAILS, Counted::New),
        (Job::Postgres, Job::Postgres.name(), Counted::All),
    ];
    let jobs = [&traces[..], &others].concat();
    let measure = |site: &Site, way: &Way, round: usize, sheet: &mut Sheet| {
        jobs.iter().try_for_each(|(job, at, counted)| {
            let run = Run { job: *job, size: &size, options, seed: round as u64 + 1 };
            let seen = watch(site, way, &run, *counted)?;
            let mut add = |words, part, whole| {
                sheet.add(round, (way.name, words), Metric::Ratio, at, of(part, whole));
            };
            add("", seen.right, seen.intervals);
            add("by the published inequality", seen.right_as_published, seen.intervals);
            add("without a choice", seen.forced, seen.intervals + seen.forced);
            add("copied twice", seen.copied_twice, seen.lines);
            add("as before", seen.same, seen.repeated);
            Ok(())
        })
    };
    let claims = |sheet: &mut Sheet| {
        for (_, at, counted) in &jobs {
            sheet.claim("as the oracle chooses", LAZY.name, "", at, Must::AtLeast(0.9));
            let most = if *counted == Counted::All { 0.05 } else { 0.01 };
            sheet.claim("synced lines", "lazy copied twice", "", at, Must::Never(most));
            sheet.claim("published: about 0.9 at worst", "lazy as before", "", at, Must::Shown);
            sheet.claim("as the oracle chooses", PUBLISHED.name, "", at, Must::Shown);
        }
    };
    let notes = vec![
        "Each sync looks at the blocks of its file that were written since the sync before. The oracle knows these writes: by way \
         of DRAM they cost 10 ns for each line written and 200 ns for each different line, the direct way 200 ns for each line \
         stored: all of a block where a part of its bytes is overwritten, else those written. The series is the share of blocks that were in the cheaper of the two states, by where most of their lines \
         went. `by the published inequality`: the same where a direct write stores its own lines alone. `without a choice`: blocks \
         behind bytes that are in DRAM alone (C28), which the other series leave out. `copied twice`: lines in DRAM that a sync wrote to PM although the direct way was cheaper, by lines written \
         before syncs. `as before`: blocks whose cheaper state is that of their sync before, the accuracy of the publication. \
         `published first states`: without the predictors. `new files` leaves out the files that exist at first: they were made \
         without a sync, and their history says so."
            .into(),
    ];
    let (axis, metric) = ("load", Metric::Ratio);
    let ways = &[LAZY, PUBLISHED];
    Comparison { ways, axis, metric, notes, measure: &measure, claims: &claims }.run(row, options)
}
