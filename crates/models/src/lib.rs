//! Models of concurrent work: the engine's own code under a scheduler that decides, at every lock and every
//! atomic, which thread goes on, and tries many such schedules.
//!
//! Nothing here is built without the feature `shuttle`, which makes the engine's threads, locks and atomics
//! the scheduler's: `cargo test -p terrace-models --features shuttle`, in a call of cargo of its own.
//!
//! `TERRACE_SEED` chooses other schedules, `TERRACE_SCHEDULES` the percentage of the usual number of
//! schedules; `TERRACE_SCHEDULE` repeats the schedule in a file. All schedules are sequentially consistent:
//! an `Ordering` that is too weak is not found.
#![forbid(unsafe_code)]
#![cfg(feature = "shuttle")]

pub mod file;
pub mod pool;
pub mod slow;

use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, Runner};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use terrace_format::table::Owner;
use terrace_format::{FileBlock, Geometry, Ino};
use terrace_media::PmMedium;
use terrace_media::pm::RecordedPm;
use terrace_runtime::planted::{Mistake, plant};
use terrace_wal::Wal;

/// The numbers of schedules that a model tries.
#[derive(Debug, Clone, Copy)]
pub struct Schedules {
    /// Schedules with the next thread chosen at random at every point.
    pub random: usize,
    /// Schedules with random priorities that change at a few points (PCT: Burckhardt and others, ASPLOS
    /// 2010).
    pub priorities: usize,
}

/// At how many points priorities change, minus one: the depth of the mistakes that PCT finds.
const DEPTH: usize = 4;

fn variable<T: FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

fn config() -> Config {
    let mut config = Config::new();
    // Several functions of the engine have blocks of 4 KiB on their stack.
    config.stack_size = 1 << 20;
    config.failure_persistence = FailurePersistence::File(Some(std::env::temp_dir()));
    config.silence_warnings = true;
    // A schedule that is repeated ends where the first thread failed.
    config.ungraceful_shutdown_config.immediately_return_on_panic = true;
    config
}

fn run<S: Scheduler + 'static>(
    name: &str,
    kind: &str,
    scheduler: S,
    model: impl Fn() + Send + Sync + 'static,
) {
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let runner = Runner::new(scheduler, config());
    let body = move || {
        count.fetch_add(1, Ordering::Relaxed);
        model();
    };
    let result = catch_unwind(AssertUnwindSafe(|| runner.run(body)));
    let schedules = begun.load(Ordering::Relaxed);
    if let Err(panic) = result {
        println!("{name}: {kind}: wrong in schedule {schedules}; repeat it, with the file named above:");
        println!("TERRACE_SCHEDULE=FILE cargo test -p terrace-models --features shuttle --test {name}");
        resume_unwind(panic);
    }
    println!("{name}: {kind}: {schedules} schedules");
}

/// Runs the model of the test `name` under many schedules. Each run makes its own state: state kept outside
/// the model would make a schedule unrepeatable.
pub fn explore(name: &str, schedules: Schedules, model: impl Fn() + Clone + Send + Sync + 'static) {
    if let Some(file) = variable::<String>("TERRACE_SCHEDULE") {
        let replay = ReplayScheduler::new_from_file(&file);
        let replay = replay.unwrap_or_else(|error| panic!("TERRACE_SCHEDULE: {file}: {error}"));
        return run(name, "the schedule of a file", replay, model);
    }
    let seed: u64 = variable("TERRACE_SEED").unwrap_or(1);
    let percent: usize = variable("TERRACE_SCHEDULES").unwrap_or(100);
    println!("TERRACE_SEED={seed} cargo test -p terrace-models --features shuttle --test {name}");
    let count = |usual: usize| (usual * percent / 100).max(1);
    run(name, "at random", RandomScheduler::new_from_seed(seed, count(schedules.random)), model.clone());
    let priorities = PctScheduler::new_from_seed(seed, DEPTH, count(schedules.priorities));
    run(name, "by priorities", priorities, model);
}

/// Whether a model is wrong in some schedule with a planted mistake. A thread of its own: one in which a schedule has failed
/// fails in every later schedule, whatever the model.
#[allow(clippy::disallowed_methods)] // the scheduler's own thread is none of the engine's
pub fn finds(
    name: &'static str,
    mistake: Mistake,
    schedules: Schedules,
    model: impl Fn() + Clone + Send + Sync + 'static,
) -> bool {
    let wrong = move || {
        plant(Some(mistake));
        model();
    };
    std::thread::spawn(move || explore(name, schedules, wrong)).join().is_err()
}

/// Makes the state from which every schedule starts: engine code runs only under a scheduler.
pub fn once<T: Send + Sync + 'static>(make: fn() -> T) -> T {
    let made = Arc::new(OnceLock::new());
    let place = Arc::clone(&made);
    let body = move || drop(place.set(make()));
    Runner::new(RandomScheduler::new_from_seed(0, 1), config()).run(body);
    Arc::into_inner(made).and_then(OnceLock::into_inner).unwrap_or_else(|| panic!("nothing was made"))
}

/// A number below `bound`, drawn from the schedule's own random numbers.
pub fn below(bound: u64) -> u64 {
    use shuttle::rand::Rng;
    shuttle::rand::thread_rng().gen_range(0..bound)
}

/// Identity of the models' pools.
pub const UUID: [u8; 16] = [3; 16];
/// Bytes of the PM of these pools: the least that a pool can have.
pub const PM_SIZE: u64 = 2 << 20;

/// Geometry of these pools.
pub fn geometry() -> Geometry {
    Geometry::choose(PM_SIZE, 8).unwrap_or_else(|error| panic!("{error}"))
}

/// A log just opened over a pool in which all blocks but the last `free` have an owner.
///
/// # Errors
/// None: the medium is new.
pub fn small_pool(free: u64) -> terrace_wal::Result<(Arc<RecordedPm>, Arc<Wal>)> {
    let geometry = geometry();
    let pm = Arc::new(RecordedPm::new(PM_SIZE));
    let medium = || Arc::clone(&pm) as Arc<dyn PmMedium>;
    let first = geometry.first_pool_block();
    let used = geometry.block_count() - free - first.0;
    let owner = Owner::File { ino: Ino(5), block: FileBlock(0), unwritten: false }.encode().to_le_bytes();
    let entry = [owner, [0; 8]].concat();
    pm.write(geometry.table_entry(first), &entry.repeat(used as usize))?;
    Wal::format(medium(), UUID, geometry)?;
    let (wal, _) = Wal::open(medium(), UUID, geometry)?;
    Ok((pm, Arc::new(wal)))
}
