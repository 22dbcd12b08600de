//! The effort of an exploration, and its result.

use std::collections::BTreeMap;
use terrace_media::ordering::OrderingPoint;

/// The effort of an exploration.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// The most undecided lines at which all subsets are taken.
    pub lines: u32,
    /// Images of a moment with more lines, about.
    pub samples: usize,
    /// The distance of the explored moments; each case starts at another moment.
    pub stride: usize,
    /// The last step runs after a fresh mount, so that no line of an older record is undecided and nearly all
    /// moments are small enough for all subsets. Otherwise it runs on a pool in use.
    pub quiet: bool,
    /// Moments of a case after which recovery is crashed too.
    pub recoveries: usize,
    /// Moments of a case at which the daemon alone dies, is started again and goes on working; then power
    /// fails.
    pub deaths: usize,
    /// With a changed ordering point: this many moments soon after it, in place of every `stride`-th.
    pub soon: usize,
}

impl Effort {
    /// No image is judged.
    pub const NONE: Effort =
        Effort { lines: 0, samples: 0, stride: 1, quiet: true, recoveries: 0, deaths: 0, soon: 0 };

    /// The effort for runs that begin at each of many moments.
    pub(crate) fn less(self) -> Effort {
        Effort { lines: self.lines.min(2), samples: self.samples.min(6), ..self }
    }
}

/// The result of a case.
#[derive(Default)]
pub struct Explored {
    /// Distinct images judged.
    pub states: u64,
    /// Persistence events of the last step.
    pub events: u64,
    /// Moments explored with all subsets, and moments sampled.
    pub all: u64,
    pub sampled: u64,
    /// The ordering points that the last step passed, and the number of passes.
    pub points: BTreeMap<OrderingPoint, u64>,
    /// The ordering points that the whole case passed, its mount included.
    pub passed: BTreeMap<OrderingPoint, u64>,
    /// The violation.
    pub violation: Option<String>,
}
