//! The adaptive thresholds of [TPFS] section 5.1: equations (1) and (2), on windows of seconds.

use crate::decision::Idle;

/// Least and most PM use above which data goes down, in percent.
pub const LEAST_PERCENT: i64 = 50;
/// See [`LEAST_PERCENT`].
pub const MOST_PERCENT: i64 = 90;
/// Both sides of a ratio count as at least so many bytes: an idle system has the threshold of an even one.
const FLOOR: u64 = 1 << 20;
/// A second's bytes lose an eighth with each second: half of their weight in five.
const DECAY_SHIFT: u32 = 3;
/// Seconds in a row that equation (2) asks for.
pub const SECONDS: usize = 4;

/// Bytes that moved in an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flow {
    /// Read from PM.
    pub pm_read: u64,
    /// Written to PM.
    pub pm_written: u64,
    /// Read from DRAM: cached blocks of lower tiers.
    pub dram_read: u64,
}

impl Flow {
    /// What has been added since `before`, of counters that only rise.
    pub fn since(&self, before: &Flow) -> Flow {
        Flow {
            pm_read: self.pm_read.saturating_sub(before.pm_read),
            pm_written: self.pm_written.saturating_sub(before.pm_written),
            dram_read: self.dram_read.saturating_sub(before.dram_read),
        }
    }
}

/// Base-2 logarithm in 256ths, by repeated squaring: the same on every machine.
fn log2_256(value: u64) -> i64 {
    let value = value.max(1);
    let whole = value.ilog2();
    // 1 ≤ mantissa < 2, with 31 bits behind the point.
    let mut mantissa = ((u128::from(value) << 31) >> whole) as u64;
    let mut result = i64::from(whole);
    for _ in 0..8 {
        mantissa = (mantissa * mantissa) >> 31;
        let bit = mantissa >> 32;
        mantissa >>= bit;
        result = (result << 1) | bit as i64;
    }
    result
}

/// Equation (1): 70 % + 5 % · log2(bytes read from PM / bytes written to PM), from 50 to 90 %.
pub fn utilisation_percent(pm_read: u64, pm_written: u64) -> u8 {
    let log = log2_256(pm_read.max(FLOOR)) - log2_256(pm_written.max(FLOOR));
    (70 + 5 * log / 256).clamp(LEAST_PERCENT, MOST_PERCENT) as u8
}

/// Equation (2) of one second: which side idles. A second in which nothing to speak of was read says nothing.
fn idle_in(flow: &Flow) -> Idle {
    let (pm, dram) = (flow.pm_read, flow.dram_read);
    if pm.max(dram) < FLOOR {
        Idle::Neither
    } else if pm > dram.saturating_mul(2) {
        Idle::Dram
    } else if pm.saturating_mul(2) < dram {
        Idle::Pm
    } else {
        Idle::Neither
    }
}

/// Both thresholds' memory: a decayed sum and the last seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Window {
    decayed: Flow,
    last: [Flow; SECONDS],
}

impl Window {
    /// One second passed in which `flow` moved.
    pub fn second(&mut self, flow: Flow) {
        let decay = |sum: u64, new: u64| (sum - (sum >> DECAY_SHIFT)).saturating_add(new);
        self.decayed = Flow {
            pm_read: decay(self.decayed.pm_read, flow.pm_read),
            pm_written: decay(self.decayed.pm_written, flow.pm_written),
            dram_read: decay(self.decayed.dram_read, flow.dram_read),
        };
        self.last.rotate_left(1);
        self.last[SECONDS - 1] = flow;
    }

    /// What equation (1) divides.
    pub fn decayed(&self) -> Flow {
        self.decayed
    }

    /// The side that idled in each of the last four seconds.
    pub fn idle(&self) -> Idle {
        let first = idle_in(&self.last[0]);
        if self.last.iter().all(|flow| idle_in(flow) == first) { first } else { Idle::Neither }
    }

    /// Equation (2) over the last four seconds together, for status; `None` when nothing was read from DRAM.
    pub fn dataflow_ratio(&self) -> Option<f64> {
        let sum = |of: fn(&Flow) -> u64| self.last.iter().map(of).sum::<u64>();
        let (pm, dram) = (sum(|flow| flow.pm_read), sum(|flow| flow.dram_read));
        (dram > 0).then(|| pm as f64 / dram as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    #[test]
    fn the_logarithm() {
        for (value, expected) in [(1, 0), (2, 256), (3, 405), (1 << 40, 40 * 256), (u64::MAX, 64 * 256 - 1)] {
            assert_eq!(log2_256(value), expected, "{value}");
        }
    }

    #[test]
    fn equation_1() {
        let at = |read, written| utilisation_percent(read * MB, written * MB);
        assert_eq!([at(0, 0), at(5, 5), at(800, 200), at(200, 800)], [70, 70, 80, 60]);
        assert_eq!([at(100_000, 0), at(0, 100_000), at(16, 1), at(1, 16)], [90, 50, 90, 50]);
    }

    #[test]
    fn equation_2_needs_four_seconds_in_a_row() {
        let mut window = Window::default();
        let reads = |pm, dram| Flow { pm_read: pm * MB, dram_read: dram * MB, pm_written: 0 };
        for _ in 0..3 {
            window.second(reads(30, 10));
            assert_eq!(window.idle(), Idle::Neither);
        }
        window.second(reads(30, 10));
        assert_eq!(window.idle(), Idle::Dram);
        assert_eq!(window.dataflow_ratio(), Some(3.0));
        window.second(reads(20, 10));
        assert_eq!(window.idle(), Idle::Neither, "not above 2");
        (0..4).for_each(|_| window.second(reads(4, 10)));
        assert_eq!(window.idle(), Idle::Pm);
        (0..4).for_each(|_| window.second(reads(0, 0)));
        assert_eq!((window.idle(), window.dataflow_ratio()), (Idle::Neither, None));
    }

    #[test]
    fn the_past_counts_less_with_each_second() {
        let mut window = Window::default();
        window.second(Flow { pm_written: 1 << 30, ..Flow::default() });
        assert_eq!(utilisation_percent(window.decayed().pm_read, window.decayed().pm_written), 50);
        for _ in 0..60 {
            window.second(Flow { pm_read: 8 * MB, ..Flow::default() });
        }
        assert_eq!(utilisation_percent(window.decayed().pm_read, window.decayed().pm_written), 90);
    }
}
