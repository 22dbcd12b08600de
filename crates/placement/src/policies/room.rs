//! The number of blocks to demote by a threshold of PM use.

use crate::Observation;

/// Spare room: PM / `SPARE_PM_DIVISOR` blocks are to be free besides the room for the blocks that arrive while a group
/// is demoted, or the blocks that the threshold leaves free if these are fewer. The throttle mark is at half
/// of it.
const SPARE_PM_DIVISOR: u64 = 8;

/// Blocks to demote: the blocks above a threshold of PM use, or more if the blocks that arrive while a group
/// is demoted need more room. So a stream of writes finds the device at work before PM is full. A quarter of
/// the threshold, the blocks written last, always stays. While the arriving blocks have room, no block below
/// the threshold is demoted.
pub(super) fn above(threshold_percent: u8, seen: &Observation) -> u64 {
    let limit = seen.total_blocks * u64::from(threshold_percent) / 100;
    let used = seen.used_blocks();
    let beside = (seen.total_blocks / SPARE_PM_DIVISOR).min(seen.total_blocks.saturating_sub(limit));
    let in_the_way = (seen.arriving_blocks + beside).saturating_sub(seen.free_blocks);
    used.saturating_sub(limit).max(in_the_way).min(used.saturating_sub(limit / 4))
}
