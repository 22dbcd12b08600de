//! Row regret: the waits of policies, compared with the offline optimum. Traces are recorded on files without
//! data and replayed on the cost machine (crate::regret): through every policy, through `predictive` with
//! each of its predictors left out, and with clean copies that the engine does not keep. With `--engine` also
//! on the engine, for its time.
//!
//! Every run records the same traces: loads are bounded by turns, not by time, and run on one thread. The
//! machine is deterministic; only the engine's times differ from run to run.

use crate::regret::candidates::{CANDIDATES, Candidate, Copies};
use crate::regret::optimum::{Bound, bound};
use crate::regret::replay::run as replay_on_machine;
use crate::regret::scripts::{Traced, VARIANTS, Variant, scripts};
use crate::regret::setup::Setup;
use crate::regret::waits::Waits;
use crate::regret::{breakdown, past};
use serde_json::json;
use std::fmt::Write as _;
use terrace_bench::comparison::figure::Figure;
use terrace_bench::comparison::options::Options;
use terrace_bench::comparison::outcome::Result;
use terrace_bench::comparison::plan::{Cell, Metric, Plan, Scale, Work};
use terrace_bench::comparison::{Row, scale};
use terrace_bench::failure::Outcome;
use terrace_bench::failure::say;
use terrace_bench::site::Site;
use terrace_bench::site::class::Class;
use terrace_bench::site::mounted::Place;
use terrace_bench::site::subject::{Peer, Subject, Tuning};
use terrace_bench::stats::median;
use terrace_bench::workload::load::{Kind, Load};
use terrace_bench::workload::target::FileTarget;

/// PM and DRAM of the main figures, as parts of the data: a 16th and an 8th.
const MAIN: (u64, u64) = (16, 8);
/// Further machines: device class (`None`: the class of the row), parts of PM and DRAM.
const OTHERS: [(Option<&str>, u64, u64); 5] =
    [(None, 32, 8), (None, 16, 64), (None, 4, 8), (Some("optane"), 16, 8), (Some("disk"), 16, 8)];
/// A smaller difference counts as no difference.
const NOISE: f64 = 0.005;

/// A trace on a machine: the optimum, and the waits of each candidate.
struct Replayed {
    bound: Bound,
    waits: Vec<Waits>,
}

impl Replayed {
    fn score(&self, candidate: usize) -> f64 {
        self.bound.demand_ns as f64 / self.waits[candidate].total_ns().max(1) as f64
    }
}

fn replayed(traces: &[Traced], setup: Setup) -> Vec<Replayed> {
    let one = |trace: &Traced| Replayed {
        bound: bound(&trace.steps, &setup),
        waits: CANDIDATES.iter().map(|it| replay_on_machine(&trace.steps, setup, it)).collect(),
    };
    traces.iter().map(one).collect()
}

/// The mean of scores against the best fixed choice of resident blocks in place of the optimum.
fn mean_of_fixed(all: &[Replayed], candidate: usize) -> f64 {
    let score = |it: &Replayed| it.bound.fixed_ns as f64 / it.waits[candidate].total_ns().max(1) as f64;
    all.iter().map(score).sum::<f64>() / all.len().max(1) as f64
}

/// The mean of scores against the tighter bound, from prices.
fn mean_of_priced(all: &[Replayed], candidate: usize) -> f64 {
    let score = |it: &Replayed| it.bound.priced_ns as f64 / it.waits[candidate].total_ns().max(1) as f64;
    all.iter().map(score).sum::<f64>() / all.len().max(1) as f64
}

/// The mean of scores against a feasible schedule near the optimum; the schedule is no bound.
fn mean_of_schedule(all: &[Replayed], candidate: usize) -> f64 {
    let score = |it: &Replayed| it.bound.schedule_ns as f64 / it.waits[candidate].total_ns().max(1) as f64;
    all.iter().map(score).sum::<f64>() / all.len().max(1) as f64
}

/// Scores of the replacement that knows the whole past and has no limits of an engine (regret/past.rs): means
/// against the optimum and the tighter bound, and the score of each trace.
fn past_scores(traces: &[Traced], all: &[Replayed], setup: Setup) -> String {
    let waited: Vec<u64> = traces.iter().map(|trace| past::waited_ns(&trace.steps, setup).max(1)).collect();
    let scores = |of: fn(&Bound) -> u64| -> Vec<f64> {
        all.iter().zip(&waited).map(|(it, waited_ns)| of(&it.bound) as f64 / *waited_ns as f64).collect()
    };
    let mean = |scores: &[f64]| scores.iter().sum::<f64>() / scores.len().max(1) as f64;
    let (optimum, priced) = (scores(|it| it.demand_ns), scores(|it| it.priced_ns));
    let each: Vec<String> =
        traces.iter().zip(&optimum).map(|(trace, score)| format!("{} {score:.3}", trace.name)).collect();
    format!("{:.3}; against the tighter bound {:.3} ({})", mean(&optimum), mean(&priced), each.join(", "))
}

/// The table of waits by cause.
fn breakdown_table(traces: &[Traced], all: &[Replayed], setup: &Setup, title: &str) -> String {
    let of = traces.iter().zip(all).map(|(trace, it)| (trace.name, &it.bound, it.waits.as_slice()));
    breakdown::table(of, setup, title)
}

/// Arithmetic mean of the scores of a candidate over the traces.
fn mean(all: &[Replayed], candidate: usize) -> f64 {
    all.iter().map(|it| it.score(candidate)).sum::<f64>() / all.len().max(1) as f64
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Waits of the optimum and of the candidates, trace by trace.
fn waits_table(traces: &[Traced], all: &[Replayed], title: &str) -> String {
    let names: Vec<&str> = CANDIDATES.iter().map(|it| it.name).collect();
    let mut text = format!("Waits in seconds, {title}; read / sync / room of predictive are its parts:\n\n");
    let _ = writeln!(
        text,
        "| trace | any | optimum | tighter | schedule | fixed | {} | read / sync / room |",
        names.join(" | ")
    );
    let _ = writeln!(text, "|---|---|---|---|---|---|{}---|", "---|".repeat(names.len()));
    for (trace, found) in traces.iter().zip(all) {
        let waits: Vec<String> =
            found.waits.iter().map(|it| format!("{:.3}", seconds(it.total_ns()))).collect();
        let own = &found.waits[0];
        let parts = [own.read_ns, own.sync_ns, own.room_ns].map(|ns| format!("{:.3}", seconds(ns)));
        let Bound { any_ns, demand_ns, priced_ns, schedule_ns, fixed_ns, .. } = found.bound;
        let bounds = [any_ns, demand_ns, priced_ns, schedule_ns, fixed_ns];
        let bounds = bounds.map(|ns| format!("{:.3}", seconds(ns))).join(" | ");
        let _ =
            writeln!(text, "| {} | {bounds} | {} | {} |", trace.name, waits.join(" | "), parts.join(" / "));
    }
    text
}

fn others_table(title: &str, rows: &[(String, Vec<Replayed>)]) -> String {
    let names: Vec<&str> = CANDIDATES.iter().map(|it| it.name).collect();
    let mut text = format!(
        "{title}:\n\n| | {} | against the best fixed choice |\n|---|{}---|\n",
        names.join(" | "),
        "---|".repeat(names.len())
    );
    for (title, all) in rows {
        let means: Vec<String> = (0..CANDIDATES.len()).map(|it| format!("{:.3}", mean(all, it))).collect();
        let _ = writeln!(text, "| {title} | {} | {:.3} |", means.join(" | "), mean_of_fixed(all, 0));
    }
    text
}

/// The change of the mean score when a predictor is left out.
fn worth(all: &[Replayed], traces: &[Traced], candidate: usize) -> String {
    let difference = mean(all, 0) - mean(all, candidate);
    let by_trace = traces.iter().zip(all).map(|(trace, it)| (trace.name, it.score(0) - it.score(candidate)));
    let most = by_trace.max_by(|a, b| a.1.abs().total_cmp(&b.1.abs())).unwrap_or(("none", 0.0));
    let verdict = match difference {
        it if it > NOISE => "worth",
        it if it < -NOISE => "**costs**",
        _ => "makes no difference",
    };
    format!("{verdict} {:.3} of the mean; most on {}: {:+.3}", difference.abs(), most.0, most.1)
}

/// The candidates that the engine can run.
fn on_engine() -> impl Iterator<Item = &'static Candidate> {
    CANDIDATES.iter().filter(|candidate| candidate.copies == Copies::Engine)
}

/// Seconds that the engine takes for the measured part, by candidate and trace; a sample for each round.
fn on_the_engine(
    traces: &[Traced],
    scale: &Scale,
    rounds: usize,
    site: &Site,
) -> Outcome<Vec<Vec<Vec<f64>>>> {
    let mut found = vec![vec![Vec::new(); traces.len()]; on_engine().count()];
    for round in 0..rounds {
        eprintln!("  engine: round {} of {rounds}", round + 1);
        for (number, trace) in traces.iter().enumerate() {
            for (index, candidate) in on_engine().enumerate() {
                site.teardown.go_on()?;
                found[index][number].push(engine_once(trace, candidate, scale, site)?);
            }
        }
    }
    Ok(found)
}

fn engine_subject(candidate: &Candidate, scale: &Scale) -> Subject {
    let tuning = Tuning {
        policy: terrace_placement::name_of(candidate.policy),
        ablation: candidate.ablation,
        cache_bytes: Some(scale.dataset_bytes / MAIN.1),
        ..Tuning::default()
    };
    scale.subject(candidate.name, Peer::Local, 1.0 / MAIN.0 as f64, tuning)
}

fn engine_once(trace: &Traced, candidate: &Candidate, scale: &Scale, site: &Site) -> Outcome<f64> {
    let mounted = site.mount(&engine_subject(candidate, scale), None)?;
    let Place::Local { target, .. } = &mounted.place else { return Err("not in process".into()) };
    terrace_bench::trace::replay(&trace.events[..trace.populated], &**target)?;
    target.settle()?;
    terrace_bench::comparison::measure::rest(site, &mounted);
    let begin = site.scratch.now_ns();
    terrace_bench::trace::replay(&trace.events[trace.populated..], &**target)?;
    let taken = seconds(site.scratch.now_ns() - begin);
    mounted.finish(site)?;
    Ok(taken)
}

fn engine_table(traces: &[Traced], found: &[Vec<Vec<f64>>]) -> String {
    let names: Vec<&str> = on_engine().map(|it| it.name).collect();
    let mut text = format!(
        "The engine, seconds (median):\n\n| trace | {} |\n|---|{}\n",
        names.join(" | "),
        "---|".repeat(names.len())
    );
    for (number, trace) in traces.iter().enumerate() {
        let taken: Vec<String> =
            found.iter().map(|by_trace| format!("{:.2}", median(&by_trace[number]))).collect();
        let _ = writeln!(text, "| {} | {} |", trace.name, taken.join(" | "));
    }
    text
}

/// Scores as figures of the row.
fn figures(traces: &[Traced], all: &[Replayed]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (index, candidate) in CANDIDATES.iter().enumerate() {
        for (number, (trace, found)) in traces.iter().zip(all).enumerate() {
            let work = Work::Load(Load {
                kind: Kind::Bulk { file_bytes: 0 },
                threads: 1,
                limit_ns: 0,
                operations: 0,
                seed: 0,
            });
            let (series, at) = (candidate.name.to_string(), trace.name.to_string());
            let cell = Cell { subject: 0, series, x: number as f64, at, work };
            let mut figure = Figure::new(&cell, "", Metric::ShareOfOptimum);
            figure.push(0, found.score(index), None);
            figures.push(figure);
        }
    }
    figures
}

fn details(traces: &[Traced], all: &[Replayed]) -> serde_json::Value {
    let one = |(trace, found): (&Traced, &Replayed)| {
        let waits: serde_json::Map<String, serde_json::Value> = CANDIDATES
            .iter()
            .zip(&found.waits)
            .map(|(it, waits)| (it.name.to_string(), json!(waits)))
            .collect();
        let (name, steps, blocks) = (trace.name, trace.steps.list.len(), trace.steps.blocks());
        json!({ "trace": name, "steps": steps, "blocks": blocks, "bound": found.bound, "waits": waits })
    };
    traces.iter().zip(all).map(one).collect()
}

/// Records the traces of a variant.
fn record(scale: &Scale, variant: Variant, site: &Site) -> Outcome<Vec<Traced>> {
    scripts(scale, variant)
        .into_iter()
        .map(|script| {
            eprintln!("  {}: record", script.name);
            site.teardown.go_on()?;
            Ok(script.record(&site.scratch.disk.join("trace"), &site.scratch.clock)?)
        })
        .collect()
}

/// The cost machine for a class of devices; PM and DRAM are parts of the data.
fn setup(scale: &Scale, class: &str, (pm, dram): (u64, u64)) -> Outcome<Setup> {
    let blocks = scale.dataset_bytes / terrace_format::BLOCK_SIZE;
    let setup = Setup::new(blocks / pm, blocks / dram, class);
    Ok(setup.ok_or_else(|| format!("{class}: not a class of devices"))?)
}

/// Adds the means of each candidate, and the differences between predictive and its variants.
fn add_scores(result: &mut Result, traces: &[Traced], all: &[Replayed]) {
    for (index, candidate) in CANDIDATES.iter().enumerate() {
        let scores = format!(
            "{:.3}; against the tighter bound {:.3}, a schedule that can be {:.3}, the best fixed choice {:.3}",
            mean(all, index),
            mean_of_priced(all, index),
            mean_of_schedule(all, index),
            mean_of_fixed(all, index)
        );
        result.derived.push((format!("mean score, {}", candidate.name), json!(scores)));
    }
    for (index, candidate) in CANDIDATES.iter().enumerate().skip(4) {
        result
            .derived
            .push((format!("predictive against {}", candidate.name), json!(worth(all, traces, index))));
    }
}

/// Adds the tables of traces on a machine.
fn add_tables(result: &mut Result, traces: &[Traced], all: &[Replayed], setup: &Setup, title: &str) {
    result.notes.push(waits_table(traces, all, title));
    result.notes.push(breakdown_table(traces, all, setup, title));
}

/// Adds the means on further machines, and of further variants of the traces.
fn add_others(
    result: &mut Result,
    traces: &[Traced],
    (scale, class): (&Scale, &str),
    site: &Site,
) -> Outcome<()> {
    let mut rows = Vec::new();
    for (other, pm, dram) in OTHERS {
        let other = other.unwrap_or(class);
        let all = replayed(traces, setup(scale, other, (pm, dram))?);
        rows.push((format!("{other}, 1/{pm}, 1/{dram}"), all));
    }
    result.notes.push(others_table("Mean scores on other machines: class, PM, DRAM", &rows));
    let main = setup(scale, class, MAIN)?;
    let mut rows = Vec::new();
    for variant in &VARIANTS[1..] {
        let traces = record(scale, *variant, site)?;
        let all = replayed(&traces, main);
        add_tables(result, &traces, &all, &main, variant.name);
        let past = past_scores(&traces, &all, main);
        result.derived.push((format!("what the past is worth, {}", variant.name), json!(past)));
        rows.push((variant.name.to_string(), all));
    }
    result.notes.push(others_table("Mean scores of other traces", &rows));
    Ok(())
}

/// Runs the row.
pub(crate) fn run(row: &Row, options: &Options) -> Outcome<()> {
    let scale = scale(options);
    let class = match &options.site.class {
        Some(Class::Emulated(name)) => name.clone(),
        Some(Class::Host) | None => "sata".to_string(),
    };
    let main = setup(&scale, &class, MAIN)?;
    let site = Site::new(&options.site, 0, None)?;
    let mut plan = Plan::new(Metric::ShareOfOptimum, "trace", 0);
    plan.subjects = on_engine().map(|candidate| engine_subject(candidate, &scale)).collect();
    let mut result = Result::new(row, options, &plan, &site, scale.dataset_bytes);
    let traces = record(&scale, VARIANTS[0], &site)?;
    eprintln!("  {} traces through {} candidates", traces.len(), CANDIDATES.len());
    let all = replayed(&traces, main);
    result.figures = figures(&traces, &all);
    add_scores(&mut result, &traces, &all);
    let past = past_scores(&traces, &all, main);
    result.derived.push(("what the past is worth, without an engine's limits".to_string(), json!(past)));
    let title = format!("{class}, PM 1/{}, DRAM 1/{}", MAIN.0, MAIN.1);
    add_tables(&mut result, &traces, &all, &main, &title);
    if !options.quick && !options.engine {
        add_others(&mut result, &traces, (&scale, &class), &site)?;
    }
    result.details = json!({ "machine": details(&traces, &all) });
    if options.engine {
        let found = on_the_engine(&traces, &scale, options.rounds, &site)?;
        result.notes.push(engine_table(&traces, &found));
        result.details["engine_seconds"] = json!(found);
    }
    let path = result.write(&options.output.directory)?;
    match options.output.json {
        true => say(serde_json::to_string_pretty(&result)?)?,
        false => say(result.table())?,
    }
    eprintln!("  {} and .svg written", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regret::scripts::REST_NS;
    use crate::regret::steps::{Act, Steps};
    use terrace_bench::trace::Event;
    use terrace_format::{BLOCK_SIZE, Ino};

    /// A file of eight blocks, two of which are read repeatedly, on a machine with room for two.
    fn trace() -> Traced {
        let event = |kind, block: u64, blocks: u64| Event {
            offset: block * BLOCK_SIZE,
            length: (blocks * BLOCK_SIZE) as u32,
            ..Event::bare(kind, Ino(9))
        };
        let made = event(terrace_bench::trace::Kind::Write, 0, 8);
        let reads = (0..40).map(|turn| event(terrace_bench::trace::Kind::Read, turn % 2, 1));
        let events: Vec<Event> = [made].into_iter().chain(reads).collect();
        let steps = Steps::of(&events, 1, REST_NS);
        Traced { name: "two blocks", events, populated: 1, steps }
    }

    #[test]
    fn a_working_set_inside_fast_memory_waits_like_the_optimum() {
        let traces = [trace()];
        assert_eq!(traces[0].steps.list.iter().filter(|step| step.act == Act::Read).count(), 40);
        // The engine's cache has 16 shards: DRAM for three blocks in each.
        let all = replayed(&traces, Setup::new(2, 64, "sata").unwrap());
        for (index, Candidate { name, .. }) in CANDIDATES.iter().enumerate() {
            assert_eq!(all[0].waits[index].blocks_missed, 2, "{name}");
            assert!((0.98..=1.0).contains(&mean(&all, index)), "{name}");
            assert!((0.98..=1.0).contains(&mean_of_fixed(&all, index)), "{name}");
            assert!((0.98..=1.0).contains(&mean_of_schedule(&all, index)), "{name}");
        }
        assert_eq!(figures(&traces, &all).len(), CANDIDATES.len());
        assert!(worth(&all, &traces, 4).starts_with("makes no difference"));
    }
}
