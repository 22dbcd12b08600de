//! Model test: random operations on a tiny pool and on a file system in memory (terrace-reference, which
//! shares no code with the engine) must give the same answers, trees, contents and attributes, with
//! background work in between and operations in the middle of migrations, with remounts, and with
//! crashes after which any image that the media may hold must hold every operation that had returned.
//!
//! PM has 2 MiB, chunks 64 KiB, lanes 16 KiB, so that blocks are demoted, promoted and shadowed all the
//! time: the runs with a tier assert that at least a tenth of the operations on contents meets such a block.
//!
//! `TERRACE_SEED=n` repeats a run; a run that fails prints the command for it and its last operations.
//! `TERRACE_OPERATIONS=n` changes its length.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod apply;
mod compare;
mod media;
#[path = "../common/old_content.rs"]
mod old_content;
mod ops;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{SystemTime, UNIX_EPOCH};
use terrace_fs::PolicyKind;
use terrace_runtime::sync::Mutex;
use terrace_runtime::thread;
use world::{Config, Counts, World};

/// One at a time: thread indexes choose lanes, and a run must repeat exactly.
static RUNNING: Mutex<()> = Mutex::new(());

const BASE: Config = Config {
    name: "",
    operations: 100_000,
    device_blocks: 5120,
    data_ordered: false,
    policy: PolicyKind::Anticache,
    promote_first_touch: false,
    threshold_percent: 60,
    most_blocks: 1800,
    files: 50,
    directories: 12,
    names: 30,
    fills: false,
};

#[allow(clippy::disallowed_methods)] // a seed, nothing else
fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number")))
}

#[allow(clippy::disallowed_methods)] // a seed, nothing else
fn new_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64 % 1_000_000_007)
}

/// Runs `body` on a thread whose index is even or odd: the index chooses the lane.
fn on_thread<T: Send>(odd: bool, mut body: impl FnMut() -> T + Send) -> T {
    loop {
        let run = || (thread::index().is_multiple_of(2) != odd).then(&mut body);
        match std::thread::scope(|scope| scope.spawn(run).join()) {
            Ok(Some(result)) => return result,
            Ok(None) => {}
            Err(panic) => resume_unwind(panic),
        }
    }
}

fn run(mut config: Config) -> Counts {
    let _one = RUNNING.lock();
    let seed = number("TERRACE_SEED").unwrap_or_else(new_seed);
    config.operations = number("TERRACE_OPERATIONS").unwrap_or(config.operations);
    println!("model {}: seed {seed}, {} operations", config.name, config.operations);
    let counts = on_thread(false, || {
        let mut world = World::new(config, seed);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| world.run())) {
            eprintln!("model {}: the last operations:", config.name);
            world.log.iter().for_each(|line| eprintln!("  {line:.400}"));
            eprintln!(
                "model {}: failed after {} operations; repeat with",
                config.name, world.counts.operations
            );
            eprintln!(
                "  TERRACE_SEED={seed} cargo test -p terrace-fs --test model {} -- --nocapture",
                config.name
            );
            // What is left of the mount may hang or fail again: leave it.
            std::mem::forget(world);
            resume_unwind(panic);
        }
        world.counts
    });
    println!("model {}: {counts:?}", config.name);
    if !config.fills {
        assert!(counts.no_space * 100 <= counts.operations, "too many ENOSPC: {counts:?}");
    }
    counts
}

fn assert_meets_cold(counts: &Counts) {
    let share = counts.met_cold * 100 / counts.file_operations.max(1);
    println!("  {share} % of the operations on contents met a demoted or shadowed block");
    assert!(share >= 10, "only {share} % of the operations met a cold block");
}

/// data=atomic, anticache: the default pool.
#[test]
fn atomic() {
    assert_meets_cold(&run(Config { name: "atomic", ..BASE }));
}

/// Overwrites in place; every block read from below comes into PM.
#[test]
fn ordered() {
    let config = Config {
        name: "ordered",
        operations: 100_000,
        data_ordered: true,
        promote_first_touch: true,
        ..BASE
    };
    assert_meets_cold(&run(config));
}

/// Nothing moves unless `sync_to` or a shortage of PM asks for it.
#[test]
fn fixed() {
    let config = Config { name: "fixed", operations: 50_000, policy: PolicyKind::Static, ..BASE };
    assert_meets_cold(&run(config));
}

/// PM alone.
#[test]
fn no_tier() {
    let config = Config {
        name: "no_tier",
        operations: 100_000,
        device_blocks: 0,
        most_blocks: 180,
        files: 30,
        names: 20,
        ..BASE
    };
    run(config);
}

/// A pool that is full most of the time: ENOSPC is right then, and changes nothing.
#[test]
fn full() {
    let config = Config {
        name: "full",
        operations: 50_000,
        device_blocks: 512,
        most_blocks: 860,
        files: 60,
        fills: true,
        ..BASE
    };
    let counts = run(config);
    assert!(counts.no_space > 0, "the pool was never full: {counts:?}");
}
