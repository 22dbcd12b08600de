//! The spill: when a lower tier that is nearly full relocates blocks to slower tiers (design 7, "between any
//! two tiers"), the number of blocks, and the order of files.
//!
//! A spill has two marks. It begins above the high mark, early enough for demoted blocks to find room on the
//! faster tier still; it ends at the low mark, far enough down for the search for cold files to pay.

/// The marks, in percent of a tier's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spill {
    /// Use above which a tier begins to spill; 100: never.
    pub high_percent: u8,
    /// Use at which the spill ends.
    pub low_percent: u8,
}

impl Spill {
    /// From 95 % down to 90 %.
    pub const DEFAULT: Spill = Spill { high_percent: 95, low_percent: 90 };

    /// Whether a tier with `used` of its `total` blocks in use begins to spill.
    pub fn is_due(&self, total: u64, used: u64) -> bool {
        u128::from(used) * 100 > u128::from(total) * u128::from(self.high_percent)
    }

    /// The number of blocks that such a tier relocates once it has begun.
    pub fn surplus(&self, total: u64, used: u64) -> u64 {
        let low = u128::from(total) * u128::from(self.low_percent) / 100;
        used.saturating_sub(low.min(u128::from(u64::MAX)) as u64)
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let Spill { high_percent: high, low_percent: low } = *self;
        if low > high {
            return Err(format!("spill_low={low} is above spill_high={high}"));
        }
        if high > 100 {
            return Err("spill_high must be at most 100".to_string());
        }
        Ok(())
    }
}

/// The last use of a file, in nanoseconds of the wall clock: the latest of its ctime (programs cannot set it,
/// unlike the mtime), its atime if it is not in the future, and the last use that this mount remembers
/// (`seen`, as an age).
pub fn last_used(now_ns: i64, ctime_ns: i64, atime_ns: i64, seen: Option<i64>) -> i64 {
    let read = if atime_ns > now_ns { i64::MIN } else { atime_ns };
    let seen = seen.map_or(i64::MIN, |ago| now_ns.saturating_sub(ago));
    ctime_ns.min(now_ns).max(read).max(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_the_high_mark_down_to_the_low_one() {
        let marks = Spill::DEFAULT;
        assert_eq!([949, 950, 951].map(|used| marks.is_due(1000, used)), [false, false, true]);
        assert_eq!([951, 901, 900, 0].map(|used| marks.surplus(1000, used)), [51, 1, 0, 0]);
        assert!(!marks.is_due(0, 0) && marks.surplus(0, 0) == 0);
        let never = Spill { high_percent: 100, low_percent: 100 };
        assert!(!never.is_due(1000, 1000) && !never.is_due(u64::MAX, u64::MAX));
        assert_eq!(Spill { high_percent: 50, low_percent: 0 }.surplus(1000, 501), 501);
    }

    #[test]
    fn impossible_spill_marks_are_refused() {
        let check = |high_percent, low_percent| Spill { high_percent, low_percent }.check().is_ok();
        assert!(check(95, 90) && check(90, 90) && check(100, 1));
        assert!(!check(90, 91) && !check(101, 50));
    }

    #[test]
    fn the_last_use_is_the_latest_time_not_in_the_future() {
        assert_eq!(last_used(1000, 300, 200, None), 300);
        assert_eq!(last_used(1000, 300, 400, None), 400);
        assert_eq!(last_used(1000, 300, 400, Some(50)), 950);
        assert_eq!(last_used(1000, 300, 5000, None), 300, "an atime of tomorrow");
        assert_eq!(last_used(1000, 5000, 5000, None), 1000, "the clock was set back");
    }
}
