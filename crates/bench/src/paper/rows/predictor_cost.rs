//! Row predictor-cost: what predictors, temperature and thresholds cost a request where they cannot win anything.
//!
//! Two pools in this process with four times the data in PM, policy=static and policy=predictive, without room in DRAM
//! for copies, so that nothing migrates and everything else is the same; new ones for each personality, whose files differ
//! in size. Each round does the same turns, with the same seed, on both, one after the other; who is first changes with every round. A request is
//! one call of the file system: lookup, open, read, write, fsync, close.

use crate::Outcome;
use crate::paper::outcome::short;
use crate::paper::plan::Scale;
use crate::site::Site;
use crate::site::peer::{Mounted, Peer, Place, Tuning};
use crate::site::run::Act;
use crate::stats::Difference;
use crate::workload::load::Load;
use crate::workload::personality::Personality;
use serde::Serialize;
use std::fmt::Write as _;

/// What the row must show.
const MOST_NS: f64 = 40.0;
/// Pairs of one round of the command line.
const PAIRS: usize = 40;
/// Turns of a batch: some ten milliseconds.
const TURNS: [(Personality, u64); 4] = [
    (Personality::Fileserver, 8),
    (Personality::Webserver, 4),
    (Personality::Webproxy, 8),
    (Personality::Varmail, 16),
];

/// A personality's line.
#[derive(Debug, Serialize)]
struct Line {
    personality: &'static str,
    requests: u64,
    static_ns: f64,
    predictive_more_ns: Difference,
    /// Absent while the interval holds both answers.
    held: Option<bool>,
    /// What `status` says under policy=predictive at the end.
    placement: serde_json::Value,
    migration: serde_json::Value,
}

/// What the row found.
#[derive(Debug, Serialize)]
pub(crate) struct Cost {
    pairs: usize,
    lines: Vec<Line>,
}

/// Nanoseconds and requests of a batch.
fn batch(site: &Site, mounted: &Mounted, load: &Load) -> Outcome<(u64, u64)> {
    let Place::Local { target, .. } = &mounted.place else { return Err("not in process".into()) };
    let before = target.requests();
    let begin = site.scratch.now_ns();
    site.perform(mounted, load, Act::Run)?;
    let elapsed_ns = site.scratch.now_ns() - begin;
    Ok((elapsed_ns, target.requests() - before))
}

fn load(scale: &Scale, which: Personality, turns: u64) -> Load {
    let mut load = scale.load(super::filebench::kind(scale, which, false), 1);
    load.limit_ns = u64::MAX / 2;
    load.operations = turns;
    load
}

/// Measures it.
///
/// # Errors
/// When a pool cannot be made, or its file system fails.
pub(crate) fn run(site: &Site, scale: &Scale, rounds: usize) -> Outcome<Cost> {
    let pool = |label: &str, policy| {
        let tuning = Tuning { policy: Some(policy), cache_bytes: Some(1 << 20), ..Tuning::default() };
        let subject = scale.subject(label, Peer::Local, 4.0, tuning);
        site.scratch.need(subject.pm_bytes, 0)?;
        site.mount(&subject, None)
    };
    let pairs = if scale.quick { 4 } else { rounds * PAIRS };
    let mut lines = Vec::new();
    for (which, turns) in TURNS {
        eprintln!("  {}: {pairs} pairs", which.name());
        let (fixed, learning) = (pool("static", "static")?, pool("predictive", "predictive")?);
        let load = load(scale, which, turns);
        for mounted in [&fixed, &learning] {
            site.perform(mounted, &load, Act::Populate)?;
        }
        lines.push(line(site, [&fixed, &learning], &load, which, pairs)?);
        fixed.finish(site)?;
        learning.finish(site)?;
    }
    Ok(Cost { pairs, lines })
}

fn line(
    site: &Site,
    [fixed, learning]: [&Mounted; 2],
    load: &Load,
    which: Personality,
    pairs: usize,
) -> Outcome<Line> {
    let (mut with, mut without, mut requests) = (Vec::new(), Vec::new(), 0);
    for pair in 0..pairs + 2 {
        site.teardown.go_on()?;
        let load = Load { seed: pair as u64, ..load.clone() };
        let (first, second) = if pair % 2 == 0 { (fixed, learning) } else { (learning, fixed) };
        let (one, other) = (batch(site, first, &load)?, batch(site, second, &load)?);
        if one.1 != other.1 {
            return Err(format!("{} requests beside {}", one.1, other.1).into());
        }
        // The first two warm up.
        if pair >= 2 {
            let [a, b] = [one, other].map(|(ns, count)| ns as f64 / count.max(1) as f64);
            let (static_ns, predictive_ns) = if pair % 2 == 0 { (a, b) } else { (b, a) };
            without.push(static_ns);
            with.push(predictive_ns);
            requests += one.1;
        }
    }
    let more = Difference::of(&with, &without).ok_or("no pairs")?;
    let static_ns = crate::stats::median(&without);
    let held = more.at_most(MOST_NS);
    let status = site.status(learning);
    Ok(Line {
        personality: which.name(),
        requests,
        static_ns,
        predictive_more_ns: more,
        held,
        placement: status["placement"].clone(),
        migration: status["migration"].clone(),
    })
}

impl Cost {
    /// As docs/evaluation.md has it.
    pub fn table(&self) -> String {
        let mut text = String::from(
            "| personality | requests | static, ns | predictive, ns more | 95 % | ≤ 40 |\n|---|---|---|---|---|---|\n",
        );
        for line in &self.lines {
            let more = &line.predictive_more_ns;
            let held = match line.held {
                Some(true) => "held",
                Some(false) => "**not held**",
                None => "",
            };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {:+.1} | {:+.1} to {:+.1} | {held} |",
                line.personality,
                line.requests,
                short(Some(line.static_ns)),
                more.median,
                more.low,
                more.high
            );
        }
        let sum = |of: fn(&Line) -> &serde_json::Value| -> u64 {
            self.lines.iter().filter_map(|line| of(line).as_u64()).sum()
        };
        let _ = writeln!(
            text,
            "\n{} pairs. Writes that the predictors saw: {}; migrated down: {} bytes, up: {}.",
            self.pairs,
            sum(|line| &line.placement["writes_seen"]),
            sum(|line| &line.migration["demoted_bytes"]),
            sum(|line| &line.migration["promoted_bytes"])
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::load::Kind;

    /// Both sides of a pair do the same only if turns, and not time, end a batch.
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
