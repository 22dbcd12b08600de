//! The time that predictors cost an operation of 4 KiB: policy=predictive with its predictors at work and
//! resting, in this process, on one thread, PM on /dev/shm. Batches of both take turns on one pool, because
//! the addresses of memory make a larger difference. The result is the median of the paired differences with
//! its 95 % interval, and the counters that prove that the predictors ran.
//!
//! To count instructions, it runs without a clock under callgrind, which counts exactly and needs no counters
//! of the processor. The difference between two runs with N more operations, divided by N, is the cost of one
//! operation:
//!
//! `valgrind --tool=callgrind terrace-lab micro predictor_cost count static|resting|predictive OPERATION NUMBER`

use super::fixture::{CALLER, ROOT, format_options, mount, number, pm_in};
use std::sync::Arc;
use terrace_bench::failure::Outcome;
use terrace_engine::{Engine, MountOptions, PolicyKind, PoolMedia, Simulation, Wait, WriteFlags, format};
use terrace_format::Ino;
use terrace_media::block::SimulatedDevice;
use terrace_runtime::{Clock, ManualClock, Next, SystemClock};

const BATCH: u64 = 500;
const BLOCKS: u64 = 1024;
const MAILS: u64 = 1000;
const PM_BYTES: u64 = 96 << 20;

/// A mounted pool with one file.
fn mount_with_file(policy: PolicyKind, clock: &Arc<dyn Clock>) -> Outcome<(Arc<Engine>, Ino)> {
    let pm = pm_in("/dev/shm", PM_BYTES)?;
    let media = PoolMedia { pm, block: vec![Arc::new(SimulatedDevice::new(4096))] };
    format(&media, &format_options(policy, 16))?;
    let fs = mount(&media, MountOptions::default(), Arc::clone(clock))?;
    let ino = fs.mknod(ROOT, b"a", 0o100644, 0, CALLER, Wait::Allowed)?.ino;
    fs.write(ino, 0, &vec![1; (BLOCKS * 4096) as usize], WriteFlags::default(), Wait::Allowed)?;
    Ok((fs, ino))
}

/// The operation of a batch.
#[derive(Clone, Copy)]
enum Operation {
    Overwrite,
    OverwriteSynced,
    Read,
    /// Five requests: see [`mail`].
    Mail,
    /// Fourteen requests: see [`turn`].
    Turn,
}

const OPERATIONS: [(&str, Operation); 5] = [
    ("overwrite", Operation::Overwrite),
    ("overwrite+fsync", Operation::OverwriteSynced),
    ("read", Operation::Read),
    ("mail", Operation::Mail),
    ("turn", Operation::Turn),
];

/// Opens, writes 8 KiB, syncs, reads them, closes.
fn mail(fs: &Engine, ino: Ino, offset: u64) {
    let mut content = [5; 8192];
    fs.open(ino, false, true, Wait::Allowed).unwrap();
    fs.write(ino, offset, &content, WriteFlags::default(), Wait::Allowed).unwrap();
    fs.fsync(ino, false, Wait::Allowed).unwrap();
    fs.read(ino, offset, &mut content, Wait::Allowed).unwrap();
    fs.release(ino);
}

/// A mail is removed and another one made, written and synced; it is read, longer by as much again and
/// synced.
fn turn(fs: &Engine, pick: u64) {
    let name = format!("mail{}", pick % MAILS);
    let mut content = [7; 16384];
    if let Ok(old) = fs.lookup(ROOT, name.as_bytes()) {
        fs.unlink(ROOT, name.as_bytes(), Wait::Allowed).unwrap();
        fs.forget(old.ino, 1);
    }
    let ino = fs.mknod(ROOT, name.as_bytes(), 0o100644, 0, CALLER, Wait::Allowed).unwrap().ino;
    fs.open(ino, false, true, Wait::Allowed).unwrap();
    for part in [0, 1] {
        fs.write(ino, part * 16384, &content, WriteFlags::default(), Wait::Allowed).unwrap();
        fs.fsync(ino, false, Wait::Allowed).unwrap();
        fs.release(ino);
        fs.open(ino, false, true, Wait::Allowed).unwrap();
        fs.read(ino, 0, &mut content, Wait::Allowed).unwrap();
    }
    fs.release(ino);
    fs.forget(ino, 1);
}

/// Repeats an operation on 4 KiB.
fn repeat(fs: &Engine, ino: Ino, operation: Operation, picks: &mut u64, times: u64) {
    let mut block = [5; 4096];
    let flags = WriteFlags::default();
    for _ in 0..times {
        *picks = picks.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let offset = (*picks >> 40) % BLOCKS * 4096;
        match operation {
            Operation::Overwrite => drop(fs.write(ino, offset, &block, flags, Wait::Allowed).unwrap()),
            Operation::OverwriteSynced => {
                fs.write(ino, offset, &block, flags, Wait::Allowed).unwrap();
                fs.fsync(ino, false, Wait::Allowed).unwrap();
            }
            Operation::Read => drop(fs.read(ino, offset, &mut block, Wait::Allowed).unwrap()),
            Operation::Mail => mail(fs, ino, offset),
            Operation::Turn => turn(fs, *picks >> 40),
        }
    }
}

/// Nanoseconds per operation of a batch.
fn batch(fs: &Engine, ino: Ino, operation: Operation, picks: &mut u64, clock: &dyn Clock) -> f64 {
    let begin = clock.monotonic_ns();
    repeat(fs, ino, operation, picks, BATCH);
    (clock.monotonic_ns() - begin) as f64 / BATCH as f64
}

/// The run that callgrind counts.
fn count(words: &[String]) -> Outcome<()> {
    let [mode, operation, times] = words else {
        return Err("count static|resting|predictive OPERATION NUMBER".into());
    };
    let policy = if mode == "static" { PolicyKind::STATIC } else { PolicyKind::PREDICTIVE };
    let (_, operation) = OPERATIONS
        .into_iter()
        .find(|(name, _)| name == operation)
        .ok_or_else(|| format!("no operation {operation}"))?;
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(1));
    let (fs, ino) = mount_with_file(policy, &clock)?;
    fs.let_predictors_rest(mode == "resting");
    repeat(&fs, ino, operation, &mut 1, times.parse()?);
    let seen = fs.status()?.placement.map_or(0, |placement| placement.writes_seen);
    println!("writes seen by the predictors: {seen}");
    Ok(())
}

pub(super) fn run(words: &[String]) -> Outcome<()> {
    if words.first().is_some_and(|word| word == "count") {
        return count(&words[1..]);
    }
    let rounds = number(words, 0, 400) as usize;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let (fs, ino) = mount_with_file(PolicyKind::PREDICTIVE, &clock)?;
    let mut background = fs.background_steps();
    for (name, operation) in OPERATIONS {
        let (mut differences, mut base) = (Vec::new(), Vec::new());
        for round in 0..rounds as u64 {
            let mut run_batch = |rest| {
                fs.let_predictors_rest(rest);
                let taken = batch(&fs, ino, operation, &mut (round + 1), &*clock);
                // Removed files are reclaimed outside the measured time.
                for (step, _) in &mut background {
                    (0..1000).take_while(|_| step.step() == Next::Again).count();
                }
                taken
            };
            // Each round swaps the order of the two modes.
            let (without, with) = if round % 2 == 0 {
                let without = run_batch(true);
                (without, run_batch(false))
            } else {
                let with = run_batch(false);
                (run_batch(true), with)
            };
            differences.push(with - without);
            base.push(without);
        }
        differences.sort_by(f64::total_cmp);
        base.sort_by(f64::total_cmp);
        // The interval of a median by order statistics.
        let spread = (1.96 * (rounds as f64).sqrt() / 2.0).ceil() as usize;
        let at = |index: usize| differences[index.min(rounds - 1)];
        let (low, high) = (at((rounds / 2).saturating_sub(spread)), at(rounds / 2 + spread));
        let (median, without) = (at(rounds / 2), base[rounds / 2]);
        println!("{name}: resting {without:.0} ns, at work {median:+.1} ns [{low:+.1}, {high:+.1}]");
    }
    let placement = fs.status().unwrap().placement.unwrap();
    println!("writes seen by the predictors: {}", placement.writes_seen);
    assert!(placement.writes_seen >= rounds as u64 * BATCH);
    Ok(())
}
