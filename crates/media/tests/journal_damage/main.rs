//! Damaged journals (I11): journals in several states, damaged at random, opened, and read page by page.
//!
//! The rule of a damage that no checksum can miss: opening refuses and writes nothing; or the image is the state at a batch
//! boundary. Only batches that are damaged, and whose acknowledgement no sound batch or anchor proves, may be missing. Each page
//! has the bytes of that state, or its read fails; it fails only if its block of home or of a table is damaged, or if a batch that
//! names the page is missing. Weaker rules:
//! 1. A damaged page that was going home at the crash has the bytes that the log stored; no checksum tells damage from a tear.
//! 2. Without a sound block of the table no checksum covers a page: zeros in home count as never written. A block of a table put
//!    back from an earlier time is sound by its own checksum: its pages have bytes of the past, or zeros.
//! 3. Where the end of the log is damaged together with the newest anchor or a block of the table, a page may have bytes that are
//!    newer than the log: home, and the other table, were written after the batches that are missing.
//! 4. A structure forged with a right checksum may say anything: only panics, loops and memory are failures.
//!
//! `TERRACE_DAMAGED=100000` judges so many journals, and `TERRACE_SEED=7` begins with seed 7.

mod cases;
mod damage;
mod oracle;
mod states;

use states::{Random, State};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use terrace_runtime::sync::Mutex;
use terrace_runtime::{Clock, SystemClock};

const JOURNALS: u64 = 5000;
const THREADS: usize = 2;
/// The time after which a journal counts as never ending; a normal one takes milliseconds.
const HANG_NS: u64 = 60_000_000_000;
/// More memory than all journals under way ever need.
const MEMORY_KIB: u64 = 1 << 20;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// The results of all journals.
#[derive(Default)]
struct Totals {
    opened: AtomicU64,
    /// Opened with a later state missing.
    shorter: AtomicU64,
    condemned: AtomicU64,
    healed: AtomicU64,
}

fn one(states: &[State], seed: u64, totals: &Totals) {
    let mut random = Random(seed);
    let state = &states[random.below(states.len() as u64) as usize];
    let damaged = damage::damage(state, &mut random);
    if number("TERRACE_DAMAGED", 0) == 1 {
        eprintln!("seed {seed}: {}, {:?}", state.name, damaged.story);
    }
    let Some(verdict) = oracle::judge(state, &damaged, &mut random) else { return };
    totals.opened.fetch_add(1, Ordering::Relaxed);
    totals.shorter.fetch_add(u64::from(verdict.is_shorter), Ordering::Relaxed);
    totals.condemned.fetch_add(u64::from(verdict.condemned > 0), Ordering::Relaxed);
    totals.healed.fetch_add(u64::from(verdict.healed > 0), Ordering::Relaxed);
}

#[test]
fn damaged_journals_give_right_bytes_or_errors() {
    let states = states::all();
    let first = number("TERRACE_SEED", 0);
    let count = number("TERRACE_DAMAGED", JOURNALS);
    let (next, clock, totals) = (AtomicU64::new(first), SystemClock::default(), Totals::default());
    let failures: Mutex<BTreeMap<String, (u64, u64)>> = Mutex::default();
    let now: [(AtomicU64, AtomicU64); THREADS] = Default::default();
    let (tell, ended) = mpsc::channel();
    let command = |seed| {
        format!("TERRACE_SEED={seed} TERRACE_DAMAGED=1 cargo test -p terrace-media --test journal_damage")
    };
    std::thread::scope(|scope| {
        for (seed_now, since) in &now {
            let (states, next, clock, totals, failures) = (&states, &next, &clock, &totals, &failures);
            let tell = tell.clone();
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        break;
                    }
                    seed_now.store(seed, Ordering::SeqCst);
                    since.store(clock.monotonic_ns(), Ordering::SeqCst);
                    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| one(states, seed, totals))) {
                        let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                        let text = text.replace(|c: char| c.is_ascii_digit(), "");
                        failures.lock().entry(text).or_insert((seed, 0)).1 += 1;
                    }
                }
                since.store(0, Ordering::SeqCst);
                let _ = tell.send(());
            });
        }
        let mut left = THREADS;
        while left > 0 {
            left -= usize::from(ended.recv_timeout(Duration::from_millis(500)).is_ok());
            for (seed, since) in &now {
                let since = since.load(Ordering::SeqCst);
                let is_stuck = since != 0 && clock.monotonic_ns() > since + HANG_NS;
                if is_stuck {
                    eprintln!("never ends: {}", command(seed.load(Ordering::SeqCst)));
                    std::process::exit(1);
                }
            }
        }
    });
    for (text, (seed, times)) in failures.lock().iter() {
        eprintln!("{times} times: {text}\n  {}", command(*seed));
    }
    assert!(failures.lock().is_empty(), "see above");
    let of = |total: &AtomicU64| total.load(Ordering::Relaxed);
    eprintln!(
        "{count} journals, {} opened, {} of them with a shorter log, {} with damaged pages, {} with healed pages; {} MiB at most",
        of(&totals.opened),
        of(&totals.shorter),
        of(&totals.condemned),
        of(&totals.healed),
        peak_kib() >> 10
    );
    assert!(peak_kib() < MEMORY_KIB, "memory beyond the images");
    if count >= 1000 {
        // With other shares the damage would be too rare or too heavy to test anything.
        assert!(of(&totals.opened) * 3 > count && of(&totals.opened) * 20 < count * 19);
        for total in [&totals.shorter, &totals.condemned, &totals.healed] {
            assert!(of(total) * 100 > count);
        }
    }
}
