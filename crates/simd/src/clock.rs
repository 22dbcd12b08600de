//! A clock for measurements of short sections: the processor's time stamp counter.
//!
//! Invariant: no decision of the engine depends on this clock, since a simulation cannot replace it; clocks of the
//! engine come from `runtime`. Counters of different processors agree on machines whose kernel uses the counter as its
//! clock source.

/// How long a calibration lasts.
const CALIBRATION_NS: u64 = 20_000_000;

/// Ticks since some moment before the start of the program, at a constant rate; 0 on processors other than x86-64.
///
/// A processor may read the counter before earlier instructions have ended, and begin later ones before the read. The
/// fence in front waits for the end of all earlier instructions, loads among them; the fence behind holds later
/// instructions back. `rdtscp` would replace the fence in front only, and not every x86-64 processor has it.
/// Earlier stores may still be on the way to the cache: a section whose stores count ends with a fence of its own.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_lfence, _rdtsc};
        // SAFETY: every x86-64 processor has these instructions, which touch no memory.
        unsafe {
            _mm_lfence();
            let ticks = _rdtsc();
            _mm_lfence();
            ticks
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// Ticks in a second, measured against a clock in nanoseconds; takes 20 ms of that clock, which must advance.
pub fn ticks_per_second(mut monotonic_ns: impl FnMut() -> u64) -> u64 {
    let (start, start_ns) = sample(&mut monotonic_ns);
    while monotonic_ns() - start_ns < CALIBRATION_NS {}
    let (end, end_ns) = sample(&mut monotonic_ns);
    (u128::from(end - start) * 1_000_000_000 / u128::from(end_ns - start_ns)) as u64
}

/// Both clocks at a moment: ticks and nanoseconds. Of some tries the quickest counts, as an interrupt may come between
/// the two clocks.
fn sample(monotonic_ns: &mut impl FnMut() -> u64) -> (u64, u64) {
    let mut quickest = (u64::MAX, (0, 0));
    for _ in 0..8 {
        let before = ticks();
        let now_ns = monotonic_ns();
        let took = ticks() - before;
        quickest = quickest.min((took, (before + took / 2, now_ns)));
    }
    quickest.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn ticks_rise() {
        let ticks: Vec<u64> = (0..1_000).map(|_| ticks()).collect();
        assert!(ticks[0] != 0 && ticks.is_sorted(), "{ticks:?}");
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn calibration_follows_the_clock_given() {
        // A clock that is the counter itself, taken for one of 2 ns a tick.
        let start = ticks();
        let rate = ticks_per_second(|| (ticks() - start) * 2);
        assert!((499_000_000..=501_000_000).contains(&rate), "{rate}");
    }
}
