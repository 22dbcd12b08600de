//! The times of syncs that had to wait for the log, for status.

use hdrhistogram::Histogram;
use terrace_runtime::sync::OutsideMutex;

/// The longest time that is told apart, in nanoseconds.
const MOST_NS: u64 = 3_600_000_000_000;
/// Digits of a time that are kept.
const DIGITS: u8 = 2;

/// A histogram of times.
pub(super) struct Latency(OutsideMutex<Option<Histogram<u64>>>);

impl Latency {
    pub fn new() -> Latency {
        // Without memory for it, status has no times.
        Latency(OutsideMutex::new(Histogram::new_with_max(MOST_NS, DIGITS).ok()))
    }

    /// A sync took so long.
    pub fn note(&self, took_ns: u64) {
        if let Some(times) = &mut *self.0.lock() {
            times.saturating_record(took_ns);
        }
    }

    /// Percentiles in nanoseconds; `None` before the first sync.
    pub fn percentiles<const N: usize>(&self, of: [f64; N]) -> Option<[u64; N]> {
        let times = self.0.lock();
        times
            .as_ref()
            .filter(|times| !times.is_empty())
            .map(|times| of.map(|at| times.value_at_percentile(at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_noted_times_are_within_a_hundredth() {
        let times = Latency::new();
        assert_eq!(times.percentiles([50.0]), None);
        (0..100).for_each(|number| times.note(if number < 99 { 100_000 } else { 20_000_000 }));
        let [middle, last] = times.percentiles([50.0, 99.9]).unwrap_or_default();
        assert!((99_000..=102_000).contains(&middle) && (19_900_000..=20_300_000).contains(&last));
        times.note(u64::MAX);
    }
}
