//! Damaged pools (I11): the golden images, with random and aimed damage, checksums made right again; then
//! checked, mounted, walked, changed, unmounted and checked. Answers may be errors. A panic, a pool that
//! takes longer than half a minute, or memory without bounds is a failure, which prints its seed and the
//! command to repeat it. `TERRACE_DAMAGED=100000` judges 100,000 pools, and `TERRACE_SEED=7` begins with seed
//! 7.

#[path = "../golden/text.rs"]
#[allow(dead_code)]
mod text;

mod damage;
mod exercise;
mod flip;
mod journal;
mod sites;

use exercise::Outcome;
use rand::SeedableRng;
use rand::rngs::StdRng;
use sites::Sound;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use terrace_format::Ino;
use terrace_media::block::SimulatedDevice;
use terrace_media::pm::RecordedPm;
use terrace_media::{BlockMedium, PmMedium};
use terrace_runtime::sync::Mutex;
use terrace_runtime::{Clock, SystemClock};

/// The root directory.
pub const ROOT: Ino = Ino(1);
/// Pools of an ordinary run.
const POOLS: u64 = 5000;
const THREADS: u64 = 2;
/// A damaged journal has every ninth pool.
const JOURNAL_SHARE: u64 = 9;
/// The time after which a pool counts as never ending; a normal one takes milliseconds.
const HANG_S: u64 = 30;
/// The memory that counts as unbounded: more than all pools under way ever need.
const MEMORY_KIB: u64 = 1 << 20;

type Failures = Arc<Mutex<BTreeMap<String, (u64, u64)>>>;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn command(seed: u64) -> String {
    format!("TERRACE_SEED={seed} TERRACE_DAMAGED=1 cargo test -p terrace-engine --test damaged")
}

/// Largest memory of this process so far.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

fn one(sounds: &[Sound], seed: u64) -> Outcome {
    let sound = &sounds[seed as usize % sounds.len()];
    let damaged = damage::damage(sound, StdRng::seed_from_u64(seed));
    if std::env::var("TERRACE_DAMAGED").is_ok_and(|count| count == "1") {
        eprintln!("seed {seed}: {:#?}", damaged.story);
    }
    let (image, device, mut random) = (damaged.pm, damaged.device, damaged.random.into_inner());
    let pm: Arc<dyn PmMedium> = match seed % JOURNAL_SHARE {
        0 => match journal::in_journal(&image, &mut random) {
            Some(pm) => pm,
            None => return Outcome::default(),
        },
        _ => Arc::new(RecordedPm::from_image(image)),
    };
    let device: Arc<dyn BlockMedium> = Arc::new(SimulatedDevice::from_image(device));
    exercise::exercise(&(pm, device), &mut random)
}

/// State shared by all threads.
struct Shared {
    sounds: Vec<Sound>,
    next: AtomicU64,
    end: u64,
    clock: SystemClock,
    /// Seed and start time of the pool that each thread works on.
    now: Vec<(AtomicU64, AtomicU64)>,
    failures: Failures,
}

fn worker(shared: &Shared, index: usize, tell: &mpsc::Sender<Vec<Outcome>>) {
    let mut outcomes = Vec::new();
    loop {
        let seed = shared.next.fetch_add(1, Ordering::Relaxed);
        if seed >= shared.end {
            break;
        }
        shared.now[index].0.store(seed, Ordering::Release);
        shared.now[index].1.store(shared.clock.monotonic_ns(), Ordering::Release);
        let peak = peak_kib();
        match catch_unwind(AssertUnwindSafe(|| one(&shared.sounds, seed))) {
            Ok(outcome) => outcomes.push(outcome),
            Err(_) => {
                let place = PANIC.take().unwrap_or_default();
                shared.failures.lock().entry(place).or_insert((seed, 0)).1 += 1;
            }
        }
        if peak < MEMORY_KIB && peak_kib() >= MEMORY_KIB {
            shared.failures.lock().entry("memory without bounds".into()).or_insert((seed, 0)).1 += 1;
        }
    }
    let _ = tell.send(outcomes);
}

thread_local! {
    /// Location and message of the last panic of this thread, without numbers.
    static PANIC: std::cell::RefCell<Option<String>> = const { std::cell::RefCell::new(None) };
}

/// Waits for all threads, and panics when one is stuck.
fn watch(shared: &Shared, results: &mpsc::Receiver<Vec<Outcome>>) -> Vec<Outcome> {
    let mut all = Vec::new();
    let mut ended = 0;
    while ended < THREADS {
        match results.recv_timeout(Duration::from_millis(500)) {
            Ok(mut outcomes) => {
                all.append(&mut outcomes);
                ended += 1;
            }
            Err(_) => {
                for (seed, begin) in &shared.now {
                    let begin = begin.load(Ordering::Acquire);
                    let stuck = begin != 0
                        && shared.clock.monotonic_ns()
                            > begin + number("TERRACE_HANG_S", HANG_S) * 1_000_000_000;
                    let seed = seed.load(Ordering::Acquire);
                    assert!(!stuck || seed >= shared.end, "never ends: {}", command(seed));
                }
            }
        }
    }
    all
}

#[test]
fn damaged_pools_are_reported_and_do_no_harm() -> Result<(), Box<dyn std::error::Error>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/v1");
    let sound = |name: &str| {
        Sound::from_text(&std::fs::read_to_string(format!("{folder}/{name}.txt"))?)
            .map_err(Box::<dyn std::error::Error>::from)
    };
    let mut sounds = vec![sound("clean")?, sound("killed")?, sound("checksummed")?];
    for map in ["extents", "cuckoo", "hashfs-linear", "hashfs", "clustered"] {
        sounds.push(sound(map)?);
    }
    assert!(sounds.iter().any(|sound| sound.records.len() > 10), "an image has records");
    let first = number("TERRACE_SEED", 0);
    let pools = number("TERRACE_DAMAGED", POOLS);
    let shared = Arc::new(Shared {
        sounds,
        next: AtomicU64::new(first),
        end: first + pools,
        clock: SystemClock::default(),
        now: (0..THREADS).map(|_| Default::default()).collect(),
        failures: Failures::default(),
    });
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().name() != Some("damaged") {
            return usual(info);
        }
        if pools == 1 {
            usual(info);
        }
        let what = info.to_string();
        let (place, said) = what.split_once('\n').unwrap_or((&what, ""));
        let said = said.replace(|c: char| c.is_ascii_digit(), "");
        PANIC.replace(Some(format!("{place} {said}")));
    }));
    let (tell, results) = mpsc::channel();
    for index in 0..THREADS as usize {
        let (shared, tell) = (Arc::clone(&shared), tell.clone());
        terrace_runtime::thread::spawn("damaged", move || worker(&shared, index, &tell))?;
    }
    let all = watch(&shared, &results);
    for (what, (seed, times)) in shared.failures.lock().iter() {
        println!("{times} times: {what}\n  {}", command(*seed));
    }
    assert!(shared.failures.lock().is_empty(), "see above");
    let count = |test: fn(&Outcome) -> bool| all.iter().filter(|outcome| test(outcome)).count();
    let sum = |value: fn(&Outcome) -> u64| all.iter().map(value).sum::<u64>();
    println!(
        "{} pools, {} found clean by check, {} mounted, {} unmounted; {} of {} calls failed; {} MiB at most",
        all.len(),
        count(|outcome| outcome.clean),
        count(|outcome| outcome.mounted),
        count(|outcome| outcome.unmounted),
        sum(|outcome| outcome.failures),
        sum(|outcome| outcome.calls),
        peak_kib() >> 10,
    );
    // With other shares, damage would be too rare to test anything, or so heavy that no pool mounts.
    if pools >= 1000 {
        assert!(count(|outcome| outcome.clean) * 4 < all.len());
        assert!(count(|outcome| outcome.mounted) * 2 > all.len());
    }
    Ok(())
}
