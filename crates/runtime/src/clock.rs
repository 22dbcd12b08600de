//! Clocks: wall time for timestamps, monotonic time for intervals.
#![allow(clippy::disallowed_methods)] // the one place that may ask the operating system

use std::cell::Cell;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A source of time. Shared by every layer, injected at mount.
pub trait Clock: Send + Sync {
    /// Wall time in nanoseconds since the epoch (negative before 1970).
    fn wall_ns(&self) -> i64;
    /// Wall time that may lag by some milliseconds, for comparisons that need no better.
    fn wall_coarse_ns(&self) -> i64 {
        self.wall_ns()
    }
    /// Monotonic time in nanoseconds from an arbitrary start.
    fn monotonic_ns(&self) -> u64;
    /// As [`Self::monotonic_ns`], but may lag by some milliseconds, for ages of seconds.
    fn monotonic_coarse_ns(&self) -> u64 {
        self.monotonic_ns()
    }
    /// Waits; a manual clock advances itself instead.
    fn sleep(&self, duration: Duration);
    /// Waits until [`Self::monotonic_ns`] is at least this, to within some microseconds: for emulated devices.
    fn wait_until(&self, monotonic_ns: u64) {
        let now = self.monotonic_ns();
        if now < monotonic_ns {
            self.sleep(Duration::from_nanos(monotonic_ns - now));
        }
    }
}

/// Shorter waits spin: a sleep would end too late.
const SPIN_NS: u64 = 50_000;
/// So near the end the processor's pause, up to 50 ns, would be late too.
const CLOSE_NS: u64 = 2_000;
/// A sleep ends this much early, and the rest is spun.
const EARLY_NS: u64 = 25_000;

/// The operating system's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
    /// The coarse clock at the start.
    coarse_start_ns: u64,
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock { start: Instant::now(), coarse_start_ns: coarse_ns() }
    }
}

fn coarse_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Clock for SystemClock {
    fn wall_ns(&self) -> i64 {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(after) => after.as_nanos() as i64,
            Err(before) => -(before.duration().as_nanos() as i64),
        }
    }
    fn wall_coarse_ns(&self) -> i64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        now.tv_sec * 1_000_000_000 + now.tv_nsec
    }
    fn monotonic_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
    fn monotonic_coarse_ns(&self) -> u64 {
        coarse_ns().saturating_sub(self.coarse_start_ns)
    }
    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
    fn wait_until(&self, monotonic_ns: u64) {
        loop {
            let left = monotonic_ns.saturating_sub(self.monotonic_ns());
            if left == 0 {
                return;
            }
            if left > SPIN_NS {
                sleep_exactly();
                std::thread::sleep(Duration::from_nanos(left - EARLY_NS));
            } else if left > CLOSE_NS {
                std::hint::spin_loop();
            }
        }
    }
}

/// The kernel may end sleeps of a thread 50 µs late, so that several end together: not those of this thread, from
/// now on.
pub fn sleep_exactly() {
    thread_local! {
        static ASKED: Cell<bool> = const { Cell::new(false) };
    }
    if !ASKED.replace(true) {
        // Refused, sleeps stay as late as they are.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    }
}

/// A clock that moves only when told to: every reading advances it by one microsecond, so that
/// timestamps of successive operations differ and a run repeats exactly.
#[derive(Debug)]
pub struct ManualClock {
    now_ns: AtomicU64,
}

impl ManualClock {
    /// A clock that starts at `wall_ns`.
    pub fn new(wall_ns: u64) -> Self {
        ManualClock { now_ns: AtomicU64::new(wall_ns) }
    }
    /// Moves the clock forward.
    pub fn advance(&self, duration: Duration) {
        self.now_ns.fetch_add(duration.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn wall_ns(&self) -> i64 {
        self.now_ns.fetch_add(1000, Ordering::Relaxed) as i64
    }
    fn monotonic_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Relaxed)
    }
    fn sleep(&self, duration: Duration) {
        crate::interleave::point("clock:sleep");
        self.advance(duration);
    }
}
