//! When a lower tier that is nearly full gives data to the next one (design 7): so early that what comes down from PM
//! still finds room on the faster tier, and so much at once that it is worth looking for the coldest files.

/// Use in percent above which it does.
pub const BEGIN_PERCENT: u64 = 95;
/// And down to which.
pub const END_PERCENT: u64 = 90;

/// Whether a tier of so many blocks, of which so many are free, is to begin.
pub fn is_nearly_full(total: u64, free: u64) -> bool {
    total > 0 && total.saturating_sub(free) * 100 > total * BEGIN_PERCENT
}

/// How many blocks are still to go once it has begun.
pub fn blocks_to_spill(total: u64, free: u64) -> u64 {
    total.saturating_sub(free).saturating_sub(total * END_PERCENT / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_95_percent_down_to_90() {
        assert!(!is_nearly_full(1000, 50) && is_nearly_full(1000, 49) && !is_nearly_full(0, 0));
        assert_eq!((blocks_to_spill(1000, 49), blocks_to_spill(1000, 100)), (51, 0));
        assert_eq!(blocks_to_spill(10, 20), 0);
    }
}
