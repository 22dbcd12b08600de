//! Runs a plan: sets subjects up, makes the files, and measures in interleaved rounds. A subject that cannot
//! be set up, or fails in a round, is left out from then on, with the reason.

use super::figure::Figure;
use super::outcome::Result;
use super::plan::{Cell, Plan, Work};
use crate::failure::Outcome;
use crate::site::Site;
use crate::site::mounted::{Mounted, Place};
use crate::site::run::{Act, Passed};
use crate::trace::Recorder;
use crate::workload::burst::Arrivals;
use crate::workload::load::{Demoted, Kind, Load};
use crate::workload::worker::Measure;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Runs a plan on a site; figures go into `result`.
pub fn run(
    plan: &Plan,
    site: &Site,
    rounds: usize,
    warm: bool,
    recorder: Option<&Arc<Recorder>>,
    result: &mut Result,
) -> Outcome<()> {
    let mut mounted = set_up(plan, site, recorder, result);
    pause(plan, site)?;
    for (subject, made) in plan.subjects.iter().zip(&mounted) {
        if let Some(made) = made.as_ref().filter(|_| subject.peer.is_terrace()) {
            result.status_before.insert(subject.label.clone(), site.whole_status(made));
        }
    }
    // For each cell the figure of the plan's metric, then the figures of the further metrics.
    for cell in &plan.cells {
        result.figures.push(Figure::new(cell, "", plan.metric));
        result.figures.extend(plan.also.iter().map(|(words, metric)| Figure::new(cell, words, *metric)));
    }
    let mut capacity = vec![0.0; plan.subjects.len()];
    // A program that begins with an empty directory in each round gains nothing from a warm-up round.
    let anew =
        plan.cells.iter().all(|cell| matches!(&cell.work, Work::Program(program) if program.begins_anew()));
    let first = usize::from(warm && !anew);
    for round in 0..rounds + first {
        eprintln!(
            "  round {} of {rounds}{}",
            round + 1 - first,
            if round < first { " (warms up)" } else { "" }
        );
        measure_round(plan, site, (round, first), &mut mounted, &mut capacity, result)?;
    }
    for sum in &plan.sums {
        result.add_sum(sum);
    }
    take_down(plan, site, mounted, result);
    // A signal also makes figures fail: such figures must not be written.
    site.teardown.go_on()
}

/// Sets up the subjects with their files; none in place of a subject that failed.
fn set_up(
    plan: &Plan,
    site: &Site,
    recorder: Option<&Arc<Recorder>>,
    result: &mut Result,
) -> Vec<Option<Mounted>> {
    let mut mounted = Vec::new();
    for (index, subject) in plan.subjects.iter().enumerate() {
        eprintln!("  {}: set up", subject.label);
        site.turn_to(subject);
        let made = programs_there(plan, index)
            .and_then(|()| site.mount(subject, recorder.cloned()))
            .and_then(|made| populate(plan, index, site, &made).map(|()| made));
        mounted.push(made.map_err(|error| result.missing(&subject.label, &*error)).ok());
    }
    mounted
}

/// Measures every cell once. The samples of rounds before the round `first` do not count.
fn measure_round(
    plan: &Plan,
    site: &Site,
    (round, first): (usize, usize),
    mounted: &mut [Option<Mounted>],
    capacity: &mut [f64],
    result: &mut Result,
) -> Outcome<()> {
    let each = 1 + plan.also.len();
    for (index, cell) in plan.cells.iter().enumerate() {
        let Some(subject) = mounted[cell.subject].as_ref() else { continue };
        site.teardown.go_on()?;
        site.turn_to(&plan.subjects[cell.subject]);
        match measure(plan, cell, round, site, subject, &mut capacity[cell.subject]) {
            Ok((value, measure)) if round >= first => {
                let figures = &mut result.figures[index * each..][..each];
                let threads = if let Work::Load(load) = &cell.work { Some(load.threads) } else { None };
                if let Some(measure) = &measure {
                    for (figure, (_, metric)) in figures[1..].iter_mut().zip(&plan.also) {
                        // Nothing but requests is known of a program.
                        if threads.is_some() || metric.counts_requests() {
                            figure.push(round - first, metric.of(measure, threads.unwrap_or(1)), None);
                        }
                    }
                }
                figures[0].push(round - first, value, measure.filter(|_| threads.is_some()));
            }
            Ok(_) => {}
            Err(error) => {
                result.missing(&format!("{} at {}", cell.series, cell.at), &*error);
                mounted[cell.subject] = None;
            }
        }
    }
    Ok(())
}

/// Notes the status of Terrace subjects and takes all subjects down.
fn take_down(plan: &Plan, site: &Site, mounted: Vec<Option<Mounted>>, result: &mut Result) {
    for (subject, made) in plan.subjects.iter().zip(mounted) {
        let Some(made) = made else { continue };
        if subject.peer.is_terrace() {
            result.status.insert(subject.label.clone(), site.whole_status(&made));
        }
        if let Err(error) = made.finish(site) {
            result.missing(&format!("{}: end", subject.label), &*error);
        }
    }
}

fn pause(plan: &Plan, site: &Site) -> Outcome<()> {
    for _ in 0..plan.pause_s {
        site.teardown.go_on()?;
        site.scratch.clock.sleep(Duration::from_secs(1));
    }
    Ok(())
}

/// The loads and programs in the cells of a subject.
fn parts(plan: &Plan, subject: usize) -> impl Iterator<Item = &Work> {
    plan.cells.iter().filter(move |cell| cell.subject == subject).flat_map(|cell| cell.work.parts())
}

fn programs_there(plan: &Plan, subject: usize) -> Outcome<()> {
    for part in parts(plan, subject) {
        if let Work::Program(program) = part {
            program.available()?;
        }
    }
    Ok(())
}

/// Makes the files of all loads of a subject.
fn populate(plan: &Plan, subject: usize, site: &Site, mounted: &Mounted) -> Outcome<()> {
    let mut done: Vec<&Kind> = Vec::new();
    for part in parts(plan, subject) {
        if let Work::Load(load) = part
            && !done.contains(&&load.kind)
        {
            site.perform(mounted, load, Act::Populate)?;
            if load.kind.demoted() != Demoted::Never {
                site.demote(mounted)?;
            }
            done.push(&load.kind);
        }
    }
    Ok(())
}

/// Longest wait for background work that the previous figure left.
const QUIET: Duration = Duration::from_secs(10);

/// Measures a cell. Before the load runs, its target is synced and the caches are dropped, and migration
/// comes to rest.
fn measure(
    plan: &Plan,
    cell: &Cell,
    round: usize,
    site: &Site,
    mounted: &Mounted,
    capacity: &mut f64,
) -> Outcome<(f64, Option<Measure>)> {
    match &cell.work {
        Work::Load(load) => {
            let mut load = Load { seed: load.seed + round as u64, ..load.clone() };
            if let Kind::Burst { arrivals: arrivals @ Arrivals::PercentOfCapacity(_), .. } = &mut load.kind
                && let Arrivals::PercentOfCapacity(percent) = *arrivals
            {
                *arrivals = Arrivals::PerSecond(*capacity * percent as f64 / 100.0);
            }
            if load.kind.demoted() == Demoted::BeforeEachRun {
                site.demote(mounted)?;
            }
            site.perform(mounted, &load, Act::Settle)?;
            rest(site, mounted);
            let (before, blocks) = (site.passed(mounted), mounted.block_counts());
            let done = site.perform(mounted, &load, Act::Run)?;
            let mut measure = done.ok_or("the load measured nothing")?;
            measure.blocks = mounted.block_counts().since(blocks);
            if let (Some(before), Some(after)) = (before, site.passed(mounted)) {
                let since = |of: fn(&Passed) -> u64| of(&after).saturating_sub(of(&before));
                measure.device_written_bytes = since(|passed| passed.device_written_bytes);
                measure.demoted_bytes = since(|passed| passed.demoted_bytes);
                measure.clean_evicted_bytes = since(|passed| passed.clean_evicted_bytes);
            }
            if let Kind::Burst { arrivals: Arrivals::Closed, .. } = load.kind {
                *capacity = measure.operations_per_s();
            }
            Ok((plan.metric.of(&measure, load.threads), Some(measure)))
        }
        Work::Program(program) => match &mounted.place {
            Place::Directory(root) => {
                let before = mounted.block_counts();
                let rate = program.run(site, root)?;
                let blocks = mounted.block_counts().since(before);
                Ok((rate, Some(Measure { blocks, ..Measure::default() })))
            }
            _ => Err("a program needs a directory".into()),
        },
        Work::Together(parts) => match &mounted.place {
            Place::Directory(root) => Ok((together(parts, round, site, root)?, None)),
            _ => Err("programs need a directory".into()),
        },
    }
}

/// Begins all parts and waits for their ends; gives the seconds.
fn together(parts: &[Work], round: usize, site: &Site, root: &Path) -> Outcome<f64> {
    let begin_ns = site.scratch.now_ns();
    let (mut loads, mut programs) = (Vec::new(), Vec::new());
    for part in parts {
        match part {
            Work::Load(load) => {
                let load = Load { seed: load.seed + round as u64, ..load.clone() };
                loads.push(site.begin_load(root, &load, Act::Run)?);
            }
            Work::Program(program) => programs.push(program.begin(site, root)?),
            Work::Together(_) => return Err("a mix in a mix".into()),
        }
    }
    for load in loads {
        load.wait(site)?;
    }
    for program in programs {
        program.wait(site)?;
    }
    Ok((site.scratch.now_ns() - begin_ns) as f64 / 1e9)
}

/// Waits until Terrace does not migrate. A migration that goes on for longer than [`QUIET`] is measured too.
pub fn rest(site: &Site, mounted: &Mounted) {
    let end = site.scratch.now_ns() + QUIET.as_nanos() as u64;
    while site.scratch.now_ns() < end {
        let status = site.status(mounted);
        match status["migration"]["state"].as_str() {
            None | Some("idle") => return,
            Some(_) => site.scratch.clock.sleep(Duration::from_millis(50)),
        }
    }
}
