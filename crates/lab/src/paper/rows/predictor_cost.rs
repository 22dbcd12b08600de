//! Row predictor-cost: the time that predictors, temperature and thresholds add to a request when no
//! migration can gain from them.
//!
//! In this process, on a pool with policy=predictive and eight times the data in PM: batches of requests with
//! working and with resting predictors take turns; the order changes with every pair. The verdict is about
//! these pairs. A pool with policy=static runs the same batches and is only shown: the location of two pools
//! in memory makes a larger difference than the predictors. Each personality and each round has new pools,
//! because file sizes differ. A migration would add device time to a pair. So DRAM has no room for clean
//! pages, and PM is so large that the policy never expects a shortage, even from the pace of the writes that
//! make the files. (With PM four times the data it did: some files were demoted, and reads of the device hid
//! the cost of the predictors.) A round with a migration is an error. A request is one call of the file
//! system: lookup, open, read, write, fsync, close.

use serde::Serialize;
use std::fmt::Write as _;
use terrace_bench::comparison::options::Options;
use terrace_bench::comparison::plan::Scale;
use terrace_bench::comparison::{Row, pin, scale};
use terrace_bench::failure::{Outcome, say};
use terrace_bench::site::Site;
use terrace_bench::site::mounted::{Mounted, Place};
use terrace_bench::site::run::Act;
use terrace_bench::site::subject::{Peer, Tuning};
use terrace_bench::stats::Difference;
use terrace_bench::stats::short;
use terrace_bench::workload::load::Load;
use terrace_bench::workload::personality::Personality;
use terrace_engine::Simulation;

/// The largest difference that the row allows.
const MOST_DIFFERENCE_NS: f64 = 40.0;
/// Pairs of a round.
const PAIRS: usize = 200;
/// Further pairs at the beginning, which warm up a pool and are not counted.
const WARM: usize = 4;
/// Too little for migration into DRAM to begin (`migration/promote/into_dram.rs`).
const CACHE_BYTES: u64 = 32 << 10;
/// PM by data.
const PM_PER_DATA: f64 = 8.0;
/// Turns of a batch: about a millisecond, so a disturbance hits few pairs.
const TURNS: [(Personality, u64); 4] = [
    (Personality::Fileserver, 2),
    (Personality::Webserver, 1),
    (Personality::Webproxy, 4),
    (Personality::Varmail, 8),
];

/// A personality's line.
#[derive(Debug, Serialize)]
struct Line {
    personality: &'static str,
    requests: u64,
    /// With the predictors resting.
    resting_ns: f64,
    predictors_more_ns: Difference,
    /// Against the pool with policy=static.
    more_than_static_ns: Difference,
    /// Whether the bound is met; absent while the interval allows both answers.
    held: Option<bool>,
    /// Sections of `status` under policy=predictive at the end of each round.
    placement: Vec<serde_json::Value>,
    migration: Vec<serde_json::Value>,
}

/// The results of the row.
#[derive(Debug, Serialize)]
pub(crate) struct Cost {
    pairs: usize,
    lines: Vec<Line>,
}

/// Nanoseconds of a batch's turns, and the number of requests, including the look-ups before the first turn.
fn batch(site: &Site, mounted: &Mounted, load: &Load) -> Outcome<(u64, u64)> {
    let Place::Local { target, .. } = &mounted.place else { return Err("not in process".into()) };
    let before = target.requests();
    let measure = site.perform(mounted, load, Act::Run)?.ok_or("the load measured nothing")?;
    Ok((measure.elapsed_ns, target.requests() - before))
}

fn load(scale: &Scale, which: Personality, turns: u64) -> Load {
    let mut load = scale.load(scale.personality(which, false), 1);
    load.limit_ns = u64::MAX / 2;
    load.operations = turns;
    load
}

/// Measures all personalities.
///
/// # Errors
/// When a pool cannot be made, or its file system fails.
pub(crate) fn run(site: &Site, scale: &Scale, rounds: usize) -> Outcome<Cost> {
    let pairs = if scale.quick { 4 } else { PAIRS };
    let mut lines = Vec::new();
    for (which, turns) in TURNS {
        eprintln!("  {}: {rounds} times {pairs} pairs", which.name());
        let (load, mut seen) = (load(scale, which, turns), Seen::default());
        for _ in 0..rounds {
            round(site, scale, &load, pairs, &mut seen)?;
        }
        lines.push(seen.line(which)?);
    }
    Ok(Cost { pairs: rounds * pairs, lines })
}

/// Results of a personality's rounds: nanoseconds per request of each pair.
#[derive(Default)]
struct Seen {
    resting: Vec<f64>,
    working: Vec<f64>,
    fixed: Vec<f64>,
    requests: u64,
    placement: Vec<serde_json::Value>,
    migration: Vec<serde_json::Value>,
}

impl Seen {
    fn line(self, which: Personality) -> Outcome<Line> {
        let more = Difference::of(&self.working, &self.resting).ok_or("no pairs")?;
        Ok(Line {
            personality: which.name(),
            requests: self.requests,
            resting_ns: terrace_bench::stats::median(&self.resting),
            held: more.at_most(MOST_DIFFERENCE_NS),
            predictors_more_ns: more,
            more_than_static_ns: Difference::of(&self.working, &self.fixed).ok_or("no pairs")?,
            placement: self.placement,
            migration: self.migration,
        })
    }
}

/// A round: makes new pools with files, and measures `pairs` pairs.
fn round(site: &Site, scale: &Scale, load: &Load, pairs: usize, seen: &mut Seen) -> Outcome<()> {
    let pool = |policy| {
        let tuning = Tuning { policy: Some(policy), cache_bytes: Some(CACHE_BYTES), ..Tuning::default() };
        let subject = scale.subject(policy, Peer::Local, PM_PER_DATA, tuning);
        site.scratch.need(subject.pm_bytes, 0)?;
        site.mount(&subject, None)
    };
    let (fixed, learning) = (pool("static")?, pool("predictive")?);
    for mounted in [&fixed, &learning] {
        site.perform(mounted, load, Act::Populate)?;
    }
    let Place::Local { fs, .. } = &learning.place else { return Err("not in process".into()) };
    // Requests that a load sends before its first turn.
    let beside = batch(site, &fixed, &Load { operations: 0, ..load.clone() })?.1;
    let mut each = |mounted: &Mounted, seed: usize| -> Outcome<f64> {
        let (ns, requests) = batch(site, mounted, &Load { seed: seed as u64, ..load.clone() })?;
        let requests = requests.saturating_sub(beside).max(1);
        seen.requests += requests;
        Ok(ns as f64 / requests as f64)
    };
    let (mut working, mut resting, mut static_ns) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..pairs + WARM {
        site.teardown.go_on()?;
        for rest in [pair % 2 == 0, pair % 2 != 0] {
            fs.let_predictors_rest(rest);
            let of = if rest { &mut resting } else { &mut working };
            of.push(each(&learning, pair)?);
        }
        static_ns.push(each(&fixed, pair)?);
    }
    seen.working.extend(&working[WARM..]);
    seen.resting.extend(&resting[WARM..]);
    seen.fixed.extend(&static_ns[WARM..]);
    let status = site.status(&learning);
    if let Some(bytes) = status["migration"]["demoted_bytes"].as_u64().filter(|bytes| *bytes > 0) {
        return Err(format!("{bytes} bytes migrated: the two did not do the same").into());
    }
    seen.placement.push(status["placement"].clone());
    seen.migration.push(status["migration"].clone());
    fixed.finish(site)?;
    learning.finish(site)
}

impl Cost {
    /// The table in the form of docs/evaluation.md.
    pub fn table(&self, quick: bool) -> String {
        let mut text = String::from(
            "| personality | requests | predictors resting, ns | at work, ns more | 95 % | ≤ 40 | more than policy=static | 95 % |\n\
             |---|---|---|---|---|---|---|---|\n",
        );
        for line in &self.lines {
            let (more, against) = (&line.predictors_more_ns, &line.more_than_static_ns);
            let held = match line.held {
                Some(_) if quick => "(quick: means nothing)",
                Some(true) => "held",
                Some(false) => "**not held**",
                None => "",
            };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {:+.1} | {:+.1} to {:+.1} | {held} | {:+.1} | {:+.1} to {:+.1} |",
                line.personality,
                line.requests,
                short(Some(line.resting_ns)),
                more.median,
                more.low,
                more.high,
                against.median,
                against.low,
                against.high
            );
        }
        let sum = |of: fn(&Line) -> &[serde_json::Value], name: &str| -> u64 {
            self.lines.iter().flat_map(of).filter_map(|status| status[name].as_u64()).sum()
        };
        let _ = writeln!(
            text,
            "\n{} pairs. Writes that the predictors saw: {}; migrated down: {} bytes, up: {}.",
            self.pairs,
            sum(|line| &line.placement, "writes_seen"),
            sum(|line| &line.migration, "demoted_bytes"),
            sum(|line| &line.migration, "promoted_bytes")
        );
        text
    }
}

/// Row predictor-cost, which has no plan.
pub(crate) fn measured(row: &Row, options: &Options) -> Outcome<()> {
    let device_cores = pin(options)?;
    let mut site = Site::new(&options.site, 0, None)?;
    site.device_cores = device_cores;
    eprintln!("row {}: {}", row.id, row.sentence);
    let found = run(&site, &scale(options), options.rounds)?;
    std::fs::create_dir_all(&options.output.directory)?;
    let path = options.output.directory.join(format!("{}.json", row.id));
    let json = serde_json::json!({
        "output_version": 1,
        "row": row.id,
        "quick": options.quick,
        "one_core": options.one_core,
        "machine": terrace_bench::machine::describe(),
        "dataset_bytes": scale(options).dataset_bytes,
        "found": found,
    });
    std::fs::write(&path, serde_json::to_string_pretty(&json)? + "\n")?;
    say(if options.output.json { json.to_string() } else { found.table(options.quick) })?;
    eprintln!("  {} written", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_bench::workload::load::Kind;

    /// Both batches of a pair do the same work only if turns, not time, end a batch.
    #[test]
    fn every_personality_is_there_and_bounded_by_turns() {
        let scale = Scale { dataset_bytes: 64 << 20, limit_ns: 1, quick: false, fio: false };
        for personality in Personality::ALL {
            let turns = TURNS.iter().find(|(which, _)| *which == personality).unwrap().1;
            let load = load(&scale, personality, turns);
            assert!(matches!(load.kind, Kind::Personality { which, .. } if which == personality));
            assert!(load.operations == turns && load.limit_ns > 1 << 60, "{}", personality.name());
        }
    }
}
