//! Times as the reference knows them: intervals of nanoseconds.

/// An interval of time with both ends included. Exact when the ends are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Not earlier than this.
    pub from: i64,
    /// Not later than this.
    pub to: i64,
}

impl Stamp {
    /// Exactly this time.
    pub fn at(ns: i64) -> Stamp {
        Stamp { from: ns, to: ns }
    }

    /// Whether the engine's time fits.
    pub fn allows(self, ns: i64) -> bool {
        self.from <= ns && ns <= self.to
    }

    /// Not later than `other`. Intervals of two operations do not overlap, and equal intervals are one
    /// reading of the clock.
    pub(crate) fn not_after(self, other: Stamp) -> bool {
        self.to <= other.to
    }

    pub(crate) fn max(self, other: Stamp) -> Stamp {
        Stamp { from: self.from.max(other.from), to: self.to.max(other.to) }
    }

    /// The interval from the earlier to the later of two times.
    pub(crate) fn or(self, other: Stamp) -> Stamp {
        Stamp { from: self.from.min(other.from), to: self.to.max(other.to) }
    }

    pub(crate) fn plus(self, ns: i64) -> Stamp {
        Stamp { from: self.from + ns, to: self.to + ns }
    }
}
