//! `cargo run --release -p terrace-sim -- --seconds 60`: runs histories of the whole file system on simulated
//! media until time is up or a rule is violated. The failing history is shortened and printed with its seed
//! and the command that repeats it; the last line sums up; the exit status is 1 after a violation, 2 after a
//! wrong argument.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::HashSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrace_runtime::planted::{JOURNALED, MISTAKES, Mistake};
use terrace_runtime::sync::Mutex;
use terrace_runtime::{Clock, SystemClock, thread};
use terrace_sim::config::Config;
use terrace_sim::counts::Counts;
use terrace_sim::drivers::run::{Seen, Violation, Wrong, describe, run, shrink};
use terrace_sim::kinds::CONFIGS;

/// Runs the whole file system on simulated media and simulated time, with crashes everywhere.
#[derive(Parser)]
#[command(
    after_help = "Example: terrace-sim --seconds 3600 --jobs 2\nA failure is repeated by the command it prints."
)]
struct Arguments {
    /// Stop after so many seconds.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// First seed; others follow. Default: from the clock.
    #[arg(long)]
    seed: Option<u64>,
    /// Run only this kind of run instead of all kinds in turn.
    #[arg(long, value_parser = config)]
    config: Option<Config>,
    /// Operations of one history.
    #[arg(long, default_value_t = 4000)]
    operations: u64,
    /// Run one history for each job: that of the seed, and those after it.
    #[arg(long)]
    once: bool,
    /// Histories at a time, each on a thread of its own.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Plant a mistake: exit status 1 when it is found, 3 when not.
    #[arg(long, value_parser = mistake)]
    mistake: Option<Mistake>,
    /// Shorter histories to try after a violation.
    #[arg(long, default_value_t = 400)]
    shrink: usize,
}

fn config(name: &str) -> Result<Config, String> {
    let names: Vec<&str> = CONFIGS.iter().map(|config| config.name).collect();
    let found = CONFIGS.iter().find(|config| config.name == name).copied();
    found.ok_or_else(|| format!("one of: {}", names.join(", ")))
}

fn mistake(name: &str) -> Result<Mistake, String> {
    let names: Vec<&str> = MISTAKES.iter().chain(JOURNALED).map(|(_, name, _)| *name).collect();
    let found =
        MISTAKES.iter().chain(JOURNALED).find(|(_, found, _)| *found == name).map(|(mistake, _, _)| *mistake);
    found.ok_or_else(|| format!("one of: {}", names.join(", ")))
}

/// State that all jobs share.
struct Progress {
    next: AtomicU64,
    stop: AtomicBool,
    /// The counts, and the number of histories.
    totals: Mutex<(Counts, u64)>,
    /// Hashes of the images that the jobs have judged.
    states: Mutex<HashSet<u64>>,
    found: Mutex<Option<(Config, u64, Violation)>>,
    clock: SystemClock,
    bar: ProgressBar,
    /// The last minute printed if no terminal shows the bar.
    minutes: AtomicU64,
}

fn main() -> ExitCode {
    let arguments = Arc::new(Arguments::parse());
    let seed = arguments.seed.unwrap_or_else(|| SystemClock::default().wall_ns() as u64 % 1_000_000_007);
    let style = ProgressStyle::with_template("{elapsed_precise} {msg}");
    let bar =
        ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    let progress = Arc::new(Progress {
        next: AtomicU64::new(seed),
        stop: AtomicBool::new(false),
        totals: Mutex::default(),
        states: Mutex::default(),
        found: Mutex::new(None),
        clock: SystemClock::default(),
        bar,
        minutes: AtomicU64::new(0),
    });
    println!("first seed {seed}");
    let jobs = (0..arguments.jobs.max(1)).map(|job| {
        let (arguments, progress) = (Arc::clone(&arguments), Arc::clone(&progress));
        thread::spawn(&format!("sim-{job}"), move || work(&arguments, &progress))
    });
    let jobs: Vec<_> = jobs.collect();
    for job in jobs {
        if job.map_or(true, |job| job.join().is_err()) {
            eprintln!("a job ended early");
            return ExitCode::from(2);
        }
    }
    progress.bar.finish_and_clear();
    report(&arguments, &progress)
}

fn work(arguments: &Arguments, progress: &Progress) {
    let seen = Seen::default();
    let wrong = Wrong { mistake: arguments.mistake, ..Wrong::default() };
    while !progress.stop.load(Ordering::Relaxed) {
        let seed = progress.next.fetch_add(1, Ordering::Relaxed);
        let config = arguments.config.unwrap_or(CONFIGS[seed as usize % CONFIGS.len()]);
        let ended = run(config, seed, arguments.operations, wrong, &seen);
        let seconds = progress.clock.monotonic_ns() / 1_000_000_000;
        {
            let mut totals = progress.totals.lock();
            totals.0 += ended.counts;
            totals.1 += 1;
            let (counts, histories) = *totals;
            let mut all = progress.states.lock();
            all.extend(seen.borrow().iter());
            let states = all.len() as u64;
            let rate = states / seconds.max(1);
            let message = format!(
                "{histories} histories, {} operations, {} crashes, {states} states, {rate} states/s, seed {seed}",
                counts.work.operations, counts.crashes.all
            );
            if progress.bar.is_hidden()
                && progress.minutes.swap(seconds / 60, Ordering::Relaxed) < seconds / 60
            {
                println!("{} min: {message}", seconds / 60);
            }
            progress.bar.set_message(message);
        }
        if let Some(violation) = ended.violation {
            if !progress.stop.swap(true, Ordering::Relaxed) {
                let shrunk = shrink(config, seed, &violation, wrong, arguments.shrink);
                *progress.found.lock() = Some((config, seed, shrunk));
            }
            return;
        }
        if arguments.once || seconds >= arguments.seconds {
            progress.stop.store(true, Ordering::Relaxed);
        }
    }
}

fn report(arguments: &Arguments, progress: &Progress) -> ExitCode {
    let found = progress.found.lock().take();
    if let Some((config, seed, violation)) = &found {
        println!("shortened history, {} entries:", violation.history.len());
        describe(&violation.history).iter().for_each(|line| println!("  {line}"));
        println!("its last steps:");
        violation.log.iter().rev().take(200).rev().for_each(|line| println!("  {line:.300}"));
        println!("violation: {:.2000}", violation.text);
        let mistake = arguments
            .mistake
            .map(|planted| MISTAKES.iter().chain(JOURNALED).find(|(mistake, _, _)| *mistake == planted));
        let mistake = mistake.flatten().map_or(String::new(), |(_, name, _)| format!(" --mistake {name}"));
        println!(
            "repeat: cargo run --release -p terrace-sim -- --once --config {} --seed {seed} --operations {}{mistake}",
            config.name, arguments.operations
        );
    }
    let (counts, histories) = *progress.totals.lock();
    println!(
        "below PM: {} moves by hand ({} refused), {} KiB between lower tiers ({} KiB spilled), {} KiB down, {} KiB up, {} files taken over \
         from DRAM, {} descriptors told of a failure",
        counts.moved.hand_done + counts.moved.hand_failed,
        counts.moved.hand_failed,
        counts.moved.moved_below_bytes >> 10,
        counts.moved.spilled_bytes >> 10,
        counts.moved.demoted_bytes >> 10,
        counts.moved.promoted_bytes >> 10,
        counts.taken_over,
        counts.trouble.told
    );
    println!(
        "predictors: {} KiB to lower tiers by way of DRAM, {} KiB from PM into DRAM; {} partial shadows in checked pools",
        counts.moved.steered_bytes >> 10,
        counts.moved.to_dram_bytes >> 10,
        counts.partial
    );
    let states = progress.states.lock().len();
    let seconds = progress.clock.monotonic_ns() as f64 / 1e9;
    println!(
        "{}: {histories} histories, {} operations ({} amid others), {} faults, {} metadata pages down, {} up, {} crashes ({} in \
         operations, {} in background work, {} in recovery), {states} distinct states in {seconds:.0} s, {:.0} states/s",
        match (found.is_some(), arguments.mistake.is_some()) {
            (true, _) => "VIOLATION",
            (false, true) => "the planted mistake was NOT FOUND",
            (false, false) => "no violation",
        },
        counts.work.operations,
        counts.work.amid,
        counts.trouble.faults,
        counts.moved.lowered,
        counts.moved.fetched,
        counts.crashes.all,
        counts.crashes.amid_operation,
        counts.crashes.amid_background,
        counts.crashes.amid_recovery,
        states as f64 / seconds.max(0.001),
    );
    ExitCode::from(match (found.is_some(), arguments.mistake.is_some()) {
        (true, _) => 1,
        (false, true) => 3,
        (false, false) => 0,
    })
}
