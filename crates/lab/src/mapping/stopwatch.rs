//! Times of short sections by the processor's time stamp counter.

use rustix::time::{ClockId, clock_gettime};
use terrace_runtime::Clock;
use terrace_simd::clock::{ticks, ticks_per_second};

/// Sections to measure the stopwatch itself.
const EMPTY_SECTIONS: usize = 1001;

/// A stopwatch with a rate and the share of a section that the stopwatch takes.
pub(crate) struct Stopwatch {
    ns_per_tick: f64,
    own_ticks: u64,
}

impl Stopwatch {
    pub(crate) fn new(clock: &dyn Clock) -> Stopwatch {
        let mut empty: Vec<u64> = (0..EMPTY_SECTIONS)
            .map(|_| {
                let begin = ticks();
                ticks() - begin
            })
            .collect();
        empty.sort_unstable();
        let ns_per_tick = 1e9 / ticks_per_second(|| clock.monotonic_ns()).max(1) as f64;
        Stopwatch { ns_per_tick, own_ticks: empty[EMPTY_SECTIONS / 2] }
    }

    /// Nanoseconds of a section. The time waits for loads; stores may be on the way.
    #[inline]
    pub(crate) fn time<T>(&self, section: impl FnOnce() -> T) -> (f64, T) {
        let begin = ticks();
        let done = section();
        let taken = (ticks() - begin).saturating_sub(self.own_ticks);
        (taken as f64 * self.ns_per_tick, done)
    }
}

/// Processor time of this thread so far.
pub(crate) fn processor_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
