//! The adaptive thresholds of [TPFS] section 5.1: equations (1) and (2), on windows of seconds.

/// The medium whose bandwidth idles by equation (2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Idle {
    /// Neither medium.
    #[default]
    Neither,
    /// Reads come from PM more than twice as much as from DRAM.
    Dram,
    /// Reads come from PM less than half as much as from DRAM.
    Pm,
}

/// Least bytes that each side of a ratio counts as: an idle system has the threshold of equal reads and
/// writes.
const FLOOR: u64 = 1 << 20;
/// Most seconds in a row that equation (2) can ask for.
pub const MOST_SECONDS: usize = 16;

/// The numbers of equation (1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Utilisation {
    /// PM use, in percent, above which blocks are demoted when reads and writes are equal.
    pub even_percent: u8,
    /// The rise of the threshold, in percent, when the reads double.
    pub step_percent: u8,
    /// Least and most.
    pub least_percent: u8,
    /// See [`Self::least_percent`].
    pub most_percent: u8,
    /// With each second the bytes of earlier seconds lose a part of 1 / `decay`.
    pub decay: u32,
}

/// The numbers of equation (2), in hundredths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dataflow {
    /// DRAM idles when the ratio was above this in each of the last `seconds` seconds.
    pub high_percent: u32,
    /// PM idles when the ratio was below this in each of the last `seconds` seconds.
    pub low_percent: u32,
    /// Seconds that are looked at, from 1 to [`MOST_SECONDS`].
    pub seconds: u8,
}

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
    /// The growth of the counters since `before`.
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

impl Utilisation {
    /// 70 % + 5 % · log2, from 50 to 90 %; half of a second's weight is gone in five.
    pub const PUBLISHED: Utilisation =
        Utilisation { even_percent: 70, step_percent: 5, least_percent: 50, most_percent: 90, decay: 8 };

    /// Equation (1): 70 % + 5 % · log2(bytes read from PM / bytes written to PM), from 50 to 90 %.
    #[inline]
    pub fn percent(&self, pm_read: u64, pm_written: u64) -> u8 {
        let log = log2_256(pm_read.max(FLOOR)) - log2_256(pm_written.max(FLOOR));
        let percent = i64::from(self.even_percent) + i64::from(self.step_percent) * log / 256;
        percent.min(self.most_percent.into()).max(self.least_percent.into()) as u8
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let Utilisation { least_percent: least, most_percent: most, .. } = *self;
        if least > most {
            return Err(format!("threshold_min={least} is above threshold_max={most}"));
        }
        if most > 99 || self.decay == 0 {
            return Err("threshold_max must be at most 99, threshold_decay at least 1".to_string());
        }
        Ok(())
    }
}

impl Dataflow {
    /// Above 2 or below 0.5 in each of four seconds.
    pub const PUBLISHED: Dataflow = Dataflow { high_percent: 200, low_percent: 50, seconds: 4 };

    /// Equation (2) of one second: the side that idles. A second with few reads counts for neither side.
    fn idle_in(&self, flow: &Flow) -> Idle {
        let (pm, dram) = (flow.pm_read, flow.dram_read);
        let times = |bytes: u64, percent: u32| bytes.saturating_mul(percent.into());
        if pm.max(dram) < FLOOR {
            Idle::Neither
        } else if times(pm, 100) > times(dram, self.high_percent) {
            Idle::Dram
        } else if times(pm, 100) < times(dram, self.low_percent) {
            Idle::Pm
        } else {
            Idle::Neither
        }
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        if self.low_percent > self.high_percent {
            return Err("dataflow_low is above dataflow_high".to_string());
        }
        if self.seconds == 0 || usize::from(self.seconds) > MOST_SECONDS {
            return Err(format!("dataflow_s must be from 1 to {MOST_SECONDS}"));
        }
        Ok(())
    }
}

/// The memory of both thresholds: a decayed sum for equation (1), the last seconds for equation (2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    decay: u64,
    dataflow: Dataflow,
    decayed: Flow,
    /// The youngest at the end.
    last: [Flow; MOST_SECONDS],
}

impl Default for Window {
    fn default() -> Self {
        Window::new(&Utilisation::PUBLISHED, &Dataflow::PUBLISHED)
    }
}

impl Window {
    /// A window without any flow yet.
    pub fn new(utilisation: &Utilisation, dataflow: &Dataflow) -> Window {
        Window {
            decay: u64::from(utilisation.decay).max(1),
            dataflow: *dataflow,
            decayed: Flow::default(),
            last: [Flow::default(); MOST_SECONDS],
        }
    }

    /// A second has passed, in which `flow` moved.
    pub fn second(&mut self, flow: Flow) {
        let decay = |sum: u64, new: u64| (sum - sum / self.decay).saturating_add(new);
        self.decayed = Flow {
            pm_read: decay(self.decayed.pm_read, flow.pm_read),
            pm_written: decay(self.decayed.pm_written, flow.pm_written),
            dram_read: decay(self.decayed.dram_read, flow.dram_read),
        };
        self.last.rotate_left(1);
        self.last[MOST_SECONDS - 1] = flow;
    }

    /// The bytes that equation (1) divides.
    pub fn decayed(&self) -> Flow {
        self.decayed
    }

    /// The seconds that equation (2) looks at.
    fn last(&self) -> &[Flow] {
        &self.last[MOST_SECONDS.saturating_sub(self.dataflow.seconds.into())..]
    }

    /// The side that idled in each of the last seconds (four by default).
    pub fn idle(&self) -> Idle {
        let mut sides = self.last().iter().map(|flow| self.dataflow.idle_in(flow));
        let first = sides.next().unwrap_or_default();
        if sides.all(|side| side == first) { first } else { Idle::Neither }
    }

    /// Equation (2) over these seconds together, for status; `None` when nothing was read from DRAM.
    pub fn dataflow_ratio(&self) -> Option<f64> {
        let sum = |of: fn(&Flow) -> u64| self.last().iter().map(of).sum::<u64>();
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
        let at = |read, written| Utilisation::PUBLISHED.percent(read * MB, written * MB);
        assert_eq!([at(0, 0), at(5, 5), at(800, 200), at(200, 800)], [70, 70, 80, 60]);
        assert_eq!([at(100_000, 0), at(0, 100_000), at(16, 1), at(1, 16)], [90, 50, 90, 50]);
        let other = Utilisation {
            even_percent: 40,
            step_percent: 10,
            least_percent: 30,
            most_percent: 45,
            ..Utilisation::PUBLISHED
        };
        let at = |read, written| other.percent(read * MB, written * MB);
        assert_eq!([at(5, 5), at(2, 1), at(1, 2), at(1, 800)], [40, 45, 30, 30]);
    }

    #[test]
    fn equation_2_with_other_numbers() {
        let dataflow = Dataflow { high_percent: 300, low_percent: 25, seconds: 1 };
        let mut window = Window::new(&Utilisation::PUBLISHED, &dataflow);
        let reads = |pm, dram| Flow { pm_read: pm * MB, dram_read: dram * MB, pm_written: 0 };
        for (pm, dram, idle) in
            [(31, 10, Idle::Dram), (30, 10, Idle::Neither), (25, 100, Idle::Neither), (24, 100, Idle::Pm)]
        {
            window.second(reads(pm, dram));
            assert_eq!(window.idle(), idle, "{pm} {dram}");
        }
        assert_eq!(window.dataflow_ratio(), Some(0.24), "of the last second alone");
        let long = Dataflow { seconds: MOST_SECONDS as u8, ..Dataflow::PUBLISHED };
        let mut window = Window::new(&Utilisation::PUBLISHED, &long);
        (1..MOST_SECONDS).for_each(|_| window.second(reads(30, 10)));
        assert_eq!(window.idle(), Idle::Neither);
        window.second(reads(30, 10));
        assert_eq!(window.idle(), Idle::Dram);
    }

    #[test]
    fn decay_is_one_part_in_so_many() {
        let every = Utilisation { decay: 1, ..Utilisation::PUBLISHED };
        for (utilisation, kept) in [(every, 0), (Utilisation::PUBLISHED, 7 * MB)] {
            let mut window = Window::new(&utilisation, &Dataflow::PUBLISHED);
            window.second(Flow { pm_read: 8 * MB, ..Flow::default() });
            window.second(Flow::default());
            assert_eq!(window.decayed().pm_read, kept);
        }
    }

    #[test]
    fn impossible_thresholds_are_refused() {
        let utilisation = |least_percent, most_percent, decay| {
            Utilisation { least_percent, most_percent, decay, ..Utilisation::PUBLISHED }.check().is_ok()
        };
        assert!(utilisation(50, 90, 8) && utilisation(60, 60, 1));
        assert!(!utilisation(61, 60, 8) && !utilisation(50, 100, 8) && !utilisation(50, 90, 0));
        let dataflow = |high_percent, low_percent, seconds| {
            Dataflow { high_percent, low_percent, seconds }.check().is_ok()
        };
        assert!(dataflow(200, 50, 4) && dataflow(100, 100, 16));
        assert!(!dataflow(50, 51, 4) && !dataflow(200, 50, 0) && !dataflow(200, 50, 17));
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
        let percent = |window: &Window| {
            Utilisation::PUBLISHED.percent(window.decayed().pm_read, window.decayed().pm_written)
        };
        assert_eq!(percent(&window), 50);
        for _ in 0..60 {
            window.second(Flow { pm_read: 8 * MB, ..Flow::default() });
        }
        assert_eq!(percent(&window), 90);
    }
}
