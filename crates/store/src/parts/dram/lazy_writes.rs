//! Lazy writes: whether writes with home PM may wait in DRAM, the costs by which blocks are chosen, and counts ([HiNFS]).

use crate::parts::dram::lazy_counts::LazyCounts;
use std::time::Duration;
use terrace_cache::{LineCosts, STATE_BYTES, SyncAges};
use terrace_format::BLOCK_SIZE;
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrace_runtime::thread;

/// The choices of a mount for writes that wait in DRAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferOptions {
    /// Most dirty pages, in bytes; 0: every write goes to PM.
    pub bytes: u64,
    /// Whether writes with home PM may wait.
    pub lazy: LazyOption,
    /// Free pages in percent at which write-back begins.
    pub low_percent: u8,
    /// Free pages in percent at which write-back ends.
    pub high_percent: u8,
    /// The period of the search for old pages.
    pub period: Duration,
    /// No page stays dirty longer.
    pub age: Duration,
    /// A file without a sync for as long is lazy.
    pub idle: Duration,
    /// Threads that write lazy pages back; 0: as many as processors but one, at most [`MOST_STEPS`].
    pub steps: usize,
    /// A part of the choice that is switched off, to measure its value.
    pub ablation: LazyAblation,
}

/// Most threads that write lazy pages back.
pub const MOST_STEPS: usize = 4;

impl BufferOptions {
    /// Threads that write lazy pages back: a store to PM keeps its processor busy, so one processor is left to programs.
    pub fn lazy_steps(&self) -> usize {
        let steps = if self.steps == 0 { thread::processors() - 1 } else { self.steps };
        steps.clamp(1, MOST_STEPS)
    }

    /// Whether a page has room.
    pub fn has_page(&self) -> bool {
        self.bytes >= BLOCK_SIZE
    }

    /// Room for some bytes; the rest as by default.
    pub fn of(bytes: u64) -> BufferOptions {
        BufferOptions { bytes, ..BufferOptions::default() }
    }
}

impl Default for BufferOptions {
    fn default() -> BufferOptions {
        BufferOptions {
            bytes: 64 << 20,
            lazy: LazyOption::default(),
            low_percent: 5,
            high_percent: 20,
            period: Duration::from_secs(5),
            age: Duration::from_secs(30),
            idle: Duration::from_secs(5),
            steps: 0,
            ablation: LazyAblation::default(),
        }
    }
}

/// Whether writes with home PM may wait in DRAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LazyOption {
    /// They may where PM was measured slow.
    #[default]
    Auto,
    /// They may.
    On,
    /// Every write with home PM is in PM when it returns.
    Off,
}

/// A part of the choice that is switched off: for measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LazyAblation {
    /// None.
    #[default]
    Nothing,
    /// The model: every write but of O_SYNC is lazy (HiNFS-WB).
    Always,
    /// The predictors: a block without a choice is lazy, as published.
    Published,
    /// The wait of a lazy write for room in a full buffer: it goes the direct way at once.
    PastFull,
    /// The masks: a page gets every line of its block when it is made, and all of them are written back (HiNFS-NCLFW).
    Blocks,
}

/// Measurements of the costs of a line in a mount, of which each has to find PM slow.
const MEASUREMENTS: usize = 3;

/// PM is slow from this multiple of DRAM's cost on,
const SLOW_TIMES: f64 = 1.5;
/// and from this difference for a line on: a page in DRAM and its write-back cost about 2.5 µs beside their stores, so that a
/// smaller difference is not earned back (row hinfs-13; decision 0041).
const SLOW_BY_NS: f64 = 40.0;

/// The share of the budget that states of blocks without a page take at most ([HiNFS] section 3.2: below 1 %).
const STATES_SHARE: f64 = 0.008;

/// Costs that stand for those of slow PM where nothing was measured.
const ASSUMED: LineCosts = LineCosts { dram_ns: 10.0, pm_ns: 200.0 };

/// The state of lazy writes in a mount.
#[derive(Debug)]
pub struct LazyWrites {
    options: BufferOptions,
    is_on: AtomicBool,
    /// Whether the costs cannot be measured in this mount.
    is_given_up: AtomicBool,
    /// Costs that were measured until now.
    found: Mutex<Vec<LineCosts>>,
    /// Picoseconds for a line of DRAM and of PM; 0: not measured.
    costs_ps: [AtomicU64; 2],
    counts: LazyCounts,
}

impl LazyWrites {
    /// By the choices of the mount.
    pub fn new(options: &BufferOptions) -> LazyWrites {
        LazyWrites {
            options: *options,
            is_on: AtomicBool::new(options.lazy == LazyOption::On && options.has_page()),
            is_given_up: AtomicBool::new(false),
            found: Mutex::default(),
            costs_ps: Default::default(),
            counts: LazyCounts::default(),
        }
    }

    /// Whether writes with home PM may wait in DRAM.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// The choices of the mount.
    pub fn options(&self) -> &BufferOptions {
        &self.options
    }

    /// The ages that choices look at.
    #[inline]
    pub fn ages(&self) -> SyncAges {
        let ns = |time: Duration| time.as_nanos() as u64;
        SyncAges { old_ns: ns(self.options.age), idle_ns: ns(self.options.idle) }
    }

    /// Most states of blocks without a page, in [`STATES_SHARE`] of the budget.
    pub fn most_states(&self) -> u64 {
        let states = (self.options.bytes as f64 * STATES_SHARE) as u64 / STATE_BYTES;
        if self.options.lazy == LazyOption::Off { 0 } else { states.max(1) }
    }

    /// The costs of a line, if they were measured.
    pub fn measured(&self) -> Option<LineCosts> {
        let [dram_ns, pm_ns] =
            [0, 1].map(|index| self.costs_ps[index].load(Ordering::Relaxed) as f64 / 1000.0);
        (dram_ns > 0.0 && pm_ns > 0.0).then_some(LineCosts { dram_ns, pm_ns })
    }

    /// The costs of a line by which blocks are chosen.
    pub fn costs(&self) -> LineCosts {
        self.measured().unwrap_or(ASSUMED)
    }

    /// Takes the costs of a measurement. The last one decides whether lazy writes are on until the unmount.
    pub fn note_costs(&self, costs: LineCosts) {
        let mut found = self.found.lock();
        if found.len() < MEASUREMENTS {
            found.push(costs);
            if found.len() == MEASUREMENTS {
                self.take_costs(&found);
            }
        }
    }

    /// Whether no measurement is to come.
    pub fn is_measured(&self) -> bool {
        self.is_given_up() || self.measured().is_some()
    }

    /// Takes all measured costs. By these lazy writes are on or off until the unmount: on if PM is slow in each of the
    /// measurements.
    fn take_costs(&self, measured: &[LineCosts]) {
        let Some(last) = measured.last() else { return };
        self.costs_ps[0].store((last.dram_ns * 1000.0) as u64, Ordering::Relaxed);
        self.costs_ps[1].store((last.pm_ns * 1000.0) as u64, Ordering::Relaxed);
        let is_slow = measured.iter().all(|costs| {
            costs.pm_ns >= costs.dram_ns * SLOW_TIMES && costs.pm_ns >= costs.dram_ns + SLOW_BY_NS
        });
        if self.options.lazy == LazyOption::Auto && self.options.has_page() {
            self.is_on.store(is_slow, Ordering::Release);
        }
    }

    /// Notes that the costs cannot be measured.
    pub fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }

    /// Whether the costs cannot be measured in this mount.
    pub fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed)
    }

    /// Counts of writes, of their pages, and of choices.
    #[inline]
    pub fn counts(&self) -> &LazyCounts {
        &self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::{BufferOptions, LazyOption, LazyWrites};
    use terrace_cache::LineCosts;

    const SLOW: LineCosts = LineCosts { dram_ns: 10.0, pm_ns: 200.0 };
    const FAST: LineCosts = LineCosts { dram_ns: 10.0, pm_ns: 14.0 };

    fn is_on(lazy: LazyOption, measured: &[LineCosts]) -> bool {
        let writes = LazyWrites::new(&BufferOptions { lazy, ..BufferOptions::default() });
        writes.take_costs(measured);
        writes.is_on()
    }

    #[test]
    fn the_third_measurement_decides_and_is_the_last() {
        let writes = LazyWrites::new(&BufferOptions { lazy: LazyOption::Auto, ..BufferOptions::default() });
        for _ in 0..2 {
            writes.note_costs(SLOW);
            assert!(!writes.is_measured() && !writes.is_on());
        }
        writes.note_costs(SLOW);
        assert!(writes.is_measured() && writes.is_on());
        writes.note_costs(FAST);
        assert!(writes.is_on(), "one more");
    }

    #[test]
    fn auto_is_on_where_each_measurement_finds_slow_pm() {
        assert!(is_on(LazyOption::Auto, &[SLOW; 3]));
        assert!(!is_on(LazyOption::Auto, &[SLOW, FAST, SLOW]));
        assert!(!is_on(LazyOption::Auto, &[]));
        // PM by the contiguous run, 0.1 µs each (row hinfs-13 with `--emulate-pm run`), then PM with 50 ns a line.
        assert!(!is_on(LazyOption::Auto, &[LineCosts { dram_ns: 1.7, pm_ns: 35.4 }; 3]));
        assert!(is_on(LazyOption::Auto, &[LineCosts { dram_ns: 1.7, pm_ns: 52.0 }; 3]));
        // Two measurements of the same memory.
        assert!(!is_on(LazyOption::Auto, &[LineCosts { dram_ns: 1.4, pm_ns: 2.3 }; 3]));
        assert!(is_on(LazyOption::On, &[FAST; 3]));
        assert!(!is_on(LazyOption::Off, &[SLOW; 3]));
    }
}
