//! Row regret: traces are recorded in process, replayed through every policy and through `predictive` without each of
//! its predictors on the machine of costs (crate::regret), beside the offline optimum; and on the engine, for time.
//!
//! The traces are the same in every run: their loads are bounded by turns, not by time, and one thread does them on a
//! pool that holds all in PM. The machine repeats; only the engine's times differ from run to run.

use crate::Outcome;
use crate::paper::options::Options;
use crate::paper::outcome::{Figure, Result};
use crate::paper::plan::{Cell, Metric, Plan, Scale, Work};
use crate::paper::rows::filebench;
use crate::paper::{Row, scale};
use crate::regret::machine::{CANDIDATES, Candidate, Setup, Waits, run as replay_on_machine};
use crate::regret::optimum::{Bound, bound};
use crate::regret::steps::Steps;
use crate::site::Site;
use crate::site::device::Class;
use crate::site::peer::{Peer, Place, Subject, Tuning};
use crate::stats::median;
use crate::trace::{Event, Recorder};
use crate::workload::load::{Kind, Load, Sync};
use crate::workload::personality::{Order, Personality};
use crate::workload::programs::{RocksDb, Sqlite};
use crate::workload::target::FileTarget;
use serde_json::json;
use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use terrace_runtime::Clock;

/// PM and DRAM of the figures that count, as shares of the data: one in 16 and one in 8.
const MAIN: (u64, u64) = (16, 8);
/// Further machines: class (`None`: that of the row), shares of PM and DRAM.
const OTHERS: [(Option<&str>, u64, u64); 5] =
    [(None, 32, 8), (None, 16, 64), (None, 4, 8), (Some("optane"), 16, 8), (Some("disk"), 16, 8)];
/// Between making the files and the measured part: the whole of every file is write-cold then.
const REST_NS: u64 = 60_000_000_000;
/// Largest difference of a predictor that is called one.
const NOISE: f64 = 0.005;

/// A piece of a trace.
enum Part {
    Load(Load),
    /// A file read from the beginning to its end by 1 MiB.
    Scan(String),
    /// So many small files of directory `clone`, made and never synced.
    Clone(std::ops::Range<u64>),
    /// Transactions; seed.
    Sqlite(Sqlite, u64, u64),
    /// Memtables, point reads during each; seed.
    RocksDb(RocksDb, u64, u64, u64),
}

/// How a trace is made.
struct Script {
    name: &'static str,
    parts: Vec<Part>,
}

/// A trace.
struct Traced {
    name: &'static str,
    events: Vec<Event>,
    /// Events that make the files.
    populated: usize,
    steps: Steps,
}

impl Part {
    fn populate(&self, target: &dyn FileTarget) -> io::Result<()> {
        match self {
            Part::Load(load) => load.populate(target),
            Part::Scan(_) => Ok(()),
            Part::Sqlite(sqlite, ..) => sqlite.populate(target),
            Part::RocksDb(rocksdb, ..) => rocksdb.populate(target),
            Part::Clone(_) => target.make_directory("clone"),
        }
    }

    fn perform(&self, target: &Arc<dyn FileTarget>, clock: &Arc<dyn Clock>) -> io::Result<()> {
        match self {
            Part::Load(load) => load.run(target, clock).map(|_| ()),
            Part::Sqlite(sqlite, transactions, seed) => sqlite.run(&**target, *transactions, *seed),
            Part::RocksDb(rocksdb, memtables, reads, seed) => {
                rocksdb.run(&**target, *memtables, *reads, *seed)
            }
            Part::Scan(path) => {
                let (mut file, mut at) = (target.open(path, false)?, 0);
                let mut piece = vec![0; 1 << 20];
                loop {
                    match file.read_at(&mut piece, at)? {
                        0 => return Ok(()),
                        bytes => at += bytes as u64,
                    }
                }
            }
            Part::Clone(numbers) => numbers.clone().try_for_each(|number| {
                let mut file = target.open(&format!("clone/{number}"), true)?;
                file.write_at(&vec![0x21; 2000 + (number as usize * 977) % 14_000], 0, false)
            }),
        }
    }
}

fn load(kind: Kind, operations: u64, seed: u64) -> Part {
    Part::Load(Load { kind, threads: 1, limit_ns: u64::MAX, operations, seed })
}

/// What is recorded, but for what is different in another run of the same loads.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Variant {
    name: &'static str,
    /// Which files the personalities take.
    order: Order,
    /// Locality of random requests: [TPFS table 3].
    theta: f64,
    /// Added to every seed.
    seed: u64,
}

/// The first one counts. The others say what of its figures is the draw, and what the order of files is worth.
const VARIANTS: [Variant; 3] = [
    Variant { name: "as filebench", order: Order::Rotation, theta: 0.88, seed: 0 },
    Variant { name: "other seeds, θ 0.71", order: Order::Rotation, theta: 0.71, seed: 1000 },
    Variant { name: "files drawn evenly", order: Order::Even, theta: 0.88, seed: 0 },
];

/// Turns of a personality: some rounds through its files.
fn turns(which: Personality) -> u64 {
    match which {
        Personality::Fileserver | Personality::Webserver => 300,
        Personality::Webproxy => 40_000,
        Personality::Varmail => 20_000,
    }
}

/// What is recorded.
fn scripts(scale: &Scale, variant: Variant) -> Vec<Script> {
    let (share, requests, rounds) = if scale.quick { (100, 200, 2) } else { (1, 60_000, 8) };
    let (data, seed) = (scale.dataset_bytes, variant.seed);
    let part = |share: u64| Scale { dataset_bytes: data / share, ..*scale };
    let random = |write, sync, file_bytes| {
        let theta = variant.theta;
        Kind::Random { write, sync, files: 1, file_bytes, io_bytes: 4096, theta, single: None }
    };
    let files = |scale: &Scale, which| match filebench::kind(scale, which, false) {
        Kind::Personality { which, files, file_bytes, sync_every_write, .. } => {
            Kind::Personality { which, files, file_bytes, sync_every_write, order: variant.order }
        }
        kind => kind,
    };
    let personality = |which: Personality| Script {
        name: which.name(),
        parts: vec![load(files(scale, which), (turns(which) / share).max(3), 1 + seed)],
    };
    let taking_turns = |name, of: &dyn Fn(u64) -> Vec<Part>| Script {
        name,
        parts: (1 + seed..=rounds + seed).flat_map(of).collect(),
    };
    let two = |name, kind: Kind| Script {
        name,
        parts: vec![load(kind.clone(), requests, 1 + seed), load(kind, requests, 2 + seed)],
    };
    let few = requests / 10;
    let copy_and_scan = |round: u64| {
        vec![
            load(random(true, Sync::Flag, data / 2), few, round),
            load(Kind::Bulk { file_bytes: data / 8 }, 1, round),
            load(random(false, Sync::Never, data / 2), few, round),
            Part::Scan("random/0".into()),
        ]
    };
    let mix = |round: u64| {
        vec![
            load(files(&part(3), Personality::Varmail), turns(Personality::Varmail) / 8 / share, round),
            load(Kind::Bulk { file_bytes: (data / 24).max(1 << 20) }, 2, round),
            load(random(true, Sync::Fsync, data / 3), few / 4, round),
            load(Kind::AppendSync { bytes: 4096 }, few / 8, round),
            Part::Clone(round * few / 30..(round + 1) * few / 30),
        ]
    };
    let rocksdb = RocksDb { table_bytes: data / 64, tables: 48 };
    vec![
        personality(Personality::Fileserver),
        personality(Personality::Webserver),
        personality(Personality::Webproxy),
        personality(Personality::Varmail),
        two("random read", random(false, Sync::Never, data)),
        two("random write", random(true, Sync::Flag, data)),
        taking_turns("copy and scan", &copy_and_scan),
        taking_turns("mix", &mix),
        Script {
            name: "sqlite",
            parts: vec![Part::Sqlite(Sqlite { file_bytes: data }, requests / 6, 1 + seed)],
        },
        Script {
            name: "rocksdb",
            parts: vec![Part::RocksDb(rocksdb, if scale.quick { 2 } else { 24 }, requests / 10, 1 + seed)],
        },
    ]
}

/// Records a trace on a pool that holds everything in PM and never migrates.
fn record(script: Script, scale: &Scale, site: &Site) -> Outcome<Traced> {
    let path = site.scratch.disk.join("trace");
    let recorder = Arc::new(Recorder::create(&path, site.scratch.clock.clone())?);
    let tuning = Tuning { policy: Some("static"), ..Tuning::default() };
    let subject = scale.subject("recorded", Peer::Local, 3.0, tuning);
    site.scratch.need(subject.pm_bytes, subject.device_bytes)?;
    let mounted = site.mount(&subject, Some(recorder.clone()))?;
    let Place::Local { target, .. } = &mounted.place else { return Err("not in process".into()) };
    let target: Arc<dyn FileTarget> = target.clone();
    script.parts.iter().try_for_each(|part| part.populate(&*target))?;
    let populated = recorder.count() as usize;
    script.parts.iter().try_for_each(|part| part.perform(&target, &site.scratch.clock))?;
    drop(target);
    mounted.finish(site)?;
    recorder.finish()?;
    let events = crate::trace::read(&path)?;
    std::fs::remove_file(&path)?;
    let steps = Steps::of(&events, populated, REST_NS);
    Ok(Traced { name: script.name, events, populated, steps })
}

/// A trace on a machine: the optimum, and what each candidate waits.
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

/// The mean of scores against the best fixed choice instead.
fn mean_of_fixed(all: &[Replayed], candidate: usize) -> f64 {
    let score = |it: &Replayed| it.bound.fixed_ns as f64 / it.waits[candidate].total_ns().max(1) as f64;
    all.iter().map(score).sum::<f64>() / all.len().max(1) as f64
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
    let _ = writeln!(text, "| trace | any | optimum | fixed | {} | read / sync / room |", names.join(" | "));
    let _ = writeln!(text, "|---|---|---|---|{}---|", "---|".repeat(names.len()));
    for (trace, found) in traces.iter().zip(all) {
        let waits: Vec<String> =
            found.waits.iter().map(|it| format!("{:.3}", seconds(it.total_ns()))).collect();
        let own = &found.waits[0];
        let parts = [own.read_ns, own.sync_ns, own.room_ns].map(|ns| format!("{:.3}", seconds(ns)));
        let bounds = [found.bound.any_ns, found.bound.demand_ns, found.bound.fixed_ns];
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

/// What leaving a predictor out changes.
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

/// Seconds that the engine takes for the measured part, by candidate and trace; a sample for each round.
fn on_the_engine(
    traces: &[Traced],
    scale: &Scale,
    rounds: usize,
    site: &Site,
) -> Outcome<Vec<Vec<Vec<f64>>>> {
    let mut found = vec![vec![Vec::new(); traces.len()]; CANDIDATES.len()];
    for round in 0..rounds {
        eprintln!("  engine: round {} of {rounds}", round + 1);
        for (number, trace) in traces.iter().enumerate() {
            for (index, candidate) in CANDIDATES.iter().enumerate() {
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
    crate::trace::replay(&trace.events[..trace.populated], &**target)?;
    target.settle()?;
    crate::paper::measure::rest(site, &mounted);
    let begin = site.scratch.now_ns();
    crate::trace::replay(&trace.events[trace.populated..], &**target)?;
    let taken = seconds(site.scratch.now_ns() - begin);
    mounted.finish(site)?;
    Ok(taken)
}

fn engine_table(traces: &[Traced], found: &[Vec<Vec<f64>>]) -> String {
    let names: Vec<&str> = CANDIDATES.iter().map(|it| it.name).collect();
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

/// Runs the row.
pub(crate) fn run(row: &Row, options: &Options) -> Outcome<()> {
    let scale = scale(options);
    let class = match &options.class {
        Some(Class::Emulated(name)) => name.clone(),
        Some(Class::Host) | None => "sata".to_string(),
    };
    let setup = |class: &str, (pm, dram): (u64, u64)| {
        let blocks = scale.dataset_bytes / terrace_format::BLOCK_SIZE;
        Setup::new(blocks / pm, blocks / dram, class)
            .ok_or_else(|| format!("{class}: not a class of devices"))
    };
    let main = setup(&class, MAIN)?;
    let site = Site::new(options, 0, None)?;
    let mut plan = Plan::new(Metric::ShareOfOptimum, "trace", 0);
    plan.subjects = CANDIDATES.iter().map(|candidate| engine_subject(candidate, &scale)).collect();
    let mut result = Result::new(row, options, &plan, &site, scale.dataset_bytes);
    let traces_of = |variant| -> Outcome<Vec<Traced>> {
        scripts(&scale, variant)
            .into_iter()
            .map(|script| {
                eprintln!("  {}: record", script.name);
                site.teardown.go_on()?;
                record(script, &scale, &site)
            })
            .collect()
    };
    let traces = traces_of(VARIANTS[0])?;
    eprintln!("  {} traces through {} candidates", traces.len(), CANDIDATES.len());
    let all = replayed(&traces, main);
    result.figures = figures(&traces, &all);
    for (index, candidate) in CANDIDATES.iter().enumerate() {
        let scores = format!(
            "{:.3}; against the best fixed choice {:.3}",
            mean(&all, index),
            mean_of_fixed(&all, index)
        );
        result.derived.push((format!("mean score, {}", candidate.name), json!(scores)));
    }
    for (index, candidate) in CANDIDATES.iter().enumerate().skip(4) {
        result
            .derived
            .push((format!("predictive against {}", candidate.name), json!(worth(&all, &traces, index))));
    }
    result.notes.push(waits_table(&traces, &all, &format!("{class}, PM 1/{}, DRAM 1/{}", MAIN.0, MAIN.1)));
    if !options.quick && !options.engine {
        let mut rows = Vec::new();
        for (other, pm, dram) in OTHERS {
            let other = other.unwrap_or(&class);
            rows.push((format!("{other}, 1/{pm}, 1/{dram}"), replayed(&traces, setup(other, (pm, dram))?)));
        }
        result.notes.push(others_table("Mean scores on other machines: class, PM, DRAM", &rows));
        let mut rows = Vec::new();
        for variant in &VARIANTS[1..] {
            let traces = traces_of(*variant)?;
            let all = replayed(&traces, main);
            result.notes.push(waits_table(&traces, &all, variant.name));
            rows.push((variant.name.to_string(), all));
        }
        result.notes.push(others_table("Mean scores of other traces", &rows));
    }
    result.details = json!({ "machine": details(&traces, &all) });
    if options.engine {
        let found = on_the_engine(&traces, &scale, options.rounds, &site)?;
        result.notes.push(engine_table(&traces, &found));
        result.details["engine_seconds"] = json!(found);
    }
    let path = result.write(options)?;
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&result)?),
        false => println!("{}", result.table()),
    }
    eprintln!("  {} and .svg written", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regret::steps::Act;
    use terrace_format::{BLOCK_SIZE, Ino};

    /// A file of eight blocks of which two are read again and again, by a machine with room for two.
    fn trace() -> Traced {
        let event = |kind, block: u64, blocks: u64| Event {
            offset: block * BLOCK_SIZE,
            length: (blocks * BLOCK_SIZE) as u32,
            ..Event::bare(kind, Ino(9))
        };
        let made = event(crate::trace::Kind::Write, 0, 8);
        let reads = (0..40).map(|turn| event(crate::trace::Kind::Read, turn % 2, 1));
        let events: Vec<Event> = [made].into_iter().chain(reads).collect();
        let steps = Steps::of(&events, 1, REST_NS);
        Traced { name: "two blocks", events, populated: 1, steps }
    }

    #[test]
    fn what_fits_is_read_as_the_optimum_reads_it() {
        let traces = [trace()];
        assert_eq!(traces[0].steps.list.iter().filter(|step| step.act == Act::Read).count(), 40);
        // The engine's cache has 16 parts: DRAM for three blocks in each.
        let all = replayed(&traces, Setup::new(2, 64, "sata").unwrap());
        for (index, Candidate { name, .. }) in CANDIDATES.iter().enumerate() {
            assert_eq!(all[0].waits[index].blocks_missed, 2, "{name}");
            assert!((0.98..=1.0).contains(&mean(&all, index)), "{name}");
            assert!((0.98..=1.0).contains(&mean_of_fixed(&all, index)), "{name}");
        }
        assert_eq!(figures(&traces, &all).len(), CANDIDATES.len());
        assert!(worth(&all, &traces, 4).starts_with("makes no difference"));
    }

    /// Every script is one thread's and bounded by turns: a trace is the same in every run.
    #[test]
    fn scripts_repeat() {
        for quick in [false, true] {
            let scale = Scale { dataset_bytes: 512 << 20, limit_ns: 1, quick, fio: false };
            let scripts = scripts(&scale, VARIANTS[0]);
            assert_eq!(scripts.len(), 10);
            for part in scripts.iter().flat_map(|script| &script.parts) {
                let Part::Load(load) = part else { continue };
                let Load { threads, limit_ns, operations, .. } = load;
                assert!(*threads == 1 && *limit_ns == u64::MAX && *operations > 0 && *operations < 1 << 20);
            }
        }
    }
}
