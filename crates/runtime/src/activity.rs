//! Work of this process's threads beside its threads of requests: whether there is any now, or was lately.
//!
//! Invariant: the thread that begins to work while no other thread works runs the function for that first. A thread that
//! begins in the same moment may work before the function has ended.

use crate::clock::{Clock, SystemClock};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

static OF_PROCESS: Activity = Activity::new();
static STARTS: OnceLock<fn()> = OnceLock::new();
static CLOCK: OnceLock<SystemClock> = OnceLock::new();

/// Work weighs in the scheduler's averages after its end. The averages halve each 32 ms. Work of a tenth of the time and less
/// does not add up, and [`FREE_NS`] is 2 ms of work.
const WEIGHS_TIMES: u64 = 10;
const FREE_NS: u64 = 20_000_000;
const WEIGHS_MOST_NS: u64 = 250_000_000;

/// Work of some threads.
struct Activity {
    working: AtomicUsize,
    /// The end of ten times the length of all work, without pauses longer than that.
    weighs_until_ns: AtomicU64,
    begins: OnceLock<fn()>,
}

impl Activity {
    const fn new() -> Activity {
        let (working, weighs_until_ns) = (AtomicUsize::new(0), AtomicU64::new(0));
        Activity { working, weighs_until_ns, begins: OnceLock::new() }
    }

    fn begin(&'static self) -> Work {
        if self.working.fetch_add(1, Ordering::SeqCst) == 0
            && let Some(begins) = self.begins.get()
        {
            begins();
        }
        Work { begun_ns: now_ns(), of: self }
    }

    fn is_any(&self) -> bool {
        self.working.load(Ordering::SeqCst) > 0
    }

    fn weighs_at(&self, now_ns: u64) -> bool {
        now_ns + FREE_NS < self.weighs_until_ns.load(Ordering::Relaxed)
    }
}

/// Work of the calling thread, until dropped.
#[must_use]
pub struct Work {
    begun_ns: u64,
    of: &'static Activity,
}

impl Work {
    /// Work begins. The caller holds no lock.
    pub fn begin() -> Work {
        OF_PROCESS.begin()
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let now = now_ns();
        let length = now.saturating_sub(self.begun_ns);
        let add = |until: u64| {
            Some(until.max(now).saturating_add(WEIGHS_TIMES.saturating_mul(length)).min(now + WEIGHS_MOST_NS))
        };
        let _ = self.of.weighs_until_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        let before = self.of.working.fetch_sub(1, Ordering::SeqCst);
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
    OF_PROCESS.is_any()
}

/// Whether work that has ended still weighs in the scheduler's averages at a time ([`now_ns`]).
pub fn weighs_at(now_ns: u64) -> bool {
    OF_PROCESS.weighs_at(now_ns)
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
    OF_PROCESS.begins.get_or_init(|| begins);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begin_of_work_runs_the_function_while_no_other_thread_works() {
        static TESTED: Activity = Activity::new();
        static BEGUN: AtomicUsize = AtomicUsize::new(0);
        let begun = || {
            BEGUN.fetch_add(1, Ordering::SeqCst);
        };
        TESTED.begins.get_or_init(|| begun);
        let first = TESTED.begin();
        let second = TESTED.begin();
        assert_eq!(BEGUN.load(Ordering::SeqCst), 1);
        drop(first);
        assert!(TESTED.is_any());
        drop(second);
        assert!(!TESTED.is_any());
        drop(TESTED.begin());
        assert_eq!(BEGUN.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn long_work_weighs_for_a_while() {
        static TESTED: Activity = Activity::new();
        let clock = SystemClock::default();
        let work = TESTED.begin();
        clock.sleep(std::time::Duration::from_millis(20));
        let end = now_ns();
        drop(work);
        assert!(TESTED.weighs_at(end));
        assert!(!TESTED.weighs_at(now_ns() + WEIGHS_MOST_NS));
    }
}
