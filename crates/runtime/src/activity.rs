//! Work of this process's threads beside its threads of requests: whether there is any now, or was lately.
//!
//! Invariant: the thread that begins to work while no other thread works runs the function for that first. A thread that
//! begins in the same moment may work before the function has ended.

use crate::clock::{Clock, SystemClock};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

static WORKING: AtomicUsize = AtomicUsize::new(0);
/// The end of ten times the length of all work, without pauses longer than that.
static WEIGHS_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
static BEGINS: OnceLock<fn()> = OnceLock::new();
static STARTS: OnceLock<fn()> = OnceLock::new();
static CLOCK: OnceLock<SystemClock> = OnceLock::new();

/// Work weighs in the scheduler's averages after its end. The averages halve each 32 ms. Work of a tenth of the time and less
/// does not add up, and [`FREE_NS`] is 2 ms of work.
const WEIGHS_TIMES: u64 = 10;
const FREE_NS: u64 = 20_000_000;
const WEIGHS_MOST_NS: u64 = 250_000_000;

/// Work of the calling thread, until dropped.
#[must_use]
pub struct Work {
    begun_ns: u64,
}

impl Work {
    /// Work begins. The caller holds no lock.
    pub fn begin() -> Work {
        if WORKING.fetch_add(1, Ordering::SeqCst) == 0
            && let Some(begins) = BEGINS.get()
        {
            begins();
        }
        Work { begun_ns: now_ns() }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let now = now_ns();
        let length = now.saturating_sub(self.begun_ns);
        let add = |until: u64| {
            Some(until.max(now).saturating_add(WEIGHS_TIMES.saturating_mul(length)).min(now + WEIGHS_MOST_NS))
        };
        let _ = WEIGHS_UNTIL_NS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        let before = WORKING.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "work ends that was not counted");
    }
}

/// Time of the clock by which this module counts.
pub fn now_ns() -> u64 {
    CLOCK.get_or_init(SystemClock::default).monotonic_ns()
}

/// Whether a thread works.
#[inline]
pub fn is_any() -> bool {
    WORKING.load(Ordering::SeqCst) > 0
}

/// Whether work that has ended still weighs in the scheduler's averages at a time ([`now_ns`]).
pub fn weighs_at(now_ns: u64) -> bool {
    now_ns + FREE_NS < WEIGHS_UNTIL_NS.load(Ordering::Relaxed)
}

/// Sets the function that runs first in each thread started from now on; it stays for good.
pub fn when_a_thread_starts(starts: fn()) {
    STARTS.get_or_init(|| starts);
}

/// Runs the function for threads that start.
pub(crate) fn thread_starts() {
    if let Some(starts) = STARTS.get() {
        starts();
    }
}

/// Sets the function that runs in the first thread that begins to work; it stays for good.
pub fn when_work_begins(begins: fn()) {
    BEGINS.get_or_init(|| begins);
}

#[cfg(test)]
mod tests {
    use super::*;

    static BEGUN: AtomicUsize = AtomicUsize::new(0);

    #[test]
    fn begin_of_work_runs_the_function_first() {
        when_work_begins(|| {
            BEGUN.fetch_add(1, Ordering::SeqCst);
        });
        let first = Work::begin();
        let begun = BEGUN.load(Ordering::SeqCst);
        assert!(is_any() && begun >= 1);
        let second = Work::begin();
        drop(first);
        assert!(is_any());
        drop(second);
    }

    #[test]
    fn long_work_weighs_for_a_while() {
        let clock = SystemClock::default();
        let work = Work::begin();
        clock.sleep(std::time::Duration::from_millis(20));
        let end = now_ns();
        drop(work);
        assert!(weighs_at(end));
        assert!(!weighs_at(now_ns() + WEIGHS_MOST_NS));
    }
}
