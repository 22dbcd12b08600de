//! Runs and pieces of copied blocks, and the record room that they take.

use crate::change::new_extent::{NewExtent, adjoins};
use crate::moving::candidate::Copied;
use crate::types::BlockRange;
use terrace_catalog::DeviceRun;

/// The record room of an extent beside its blocks, counted in blocks of [`install_limit`].
const OF_EXTENT: usize = 8;

/// Bytes of a record that the slot takes at most.
pub(crate) const OF_SLOT: usize = 256;

/// The number of leading blocks that one transaction installs: blocks of one inode, as many as a record
/// takes, at least one.
pub(crate) fn piece_of(copied: &[Copied<'_>], limit: usize) -> usize {
    let Some(first) = copied.first() else { return 0 };
    let (mut count, mut weight) = (1, 1);
    for pair in copied.windows(2) {
        weight += if follows(&pair[0], &pair[1]) { 1 } else { 1 + OF_EXTENT };
        if pair[1].candidate.ino != first.candidate.ino || weight > limit {
            break;
        }
        count += 1;
    }
    count
}

/// The file blocks of a run.
pub(crate) fn range_of(run: &[Copied<'_>]) -> BlockRange {
    let first = run[0].candidate.block;
    BlockRange::new(first, first.plus(run.len() as u64))
}

/// The device blocks of a run.
pub(crate) fn place_of(run: &[Copied<'_>]) -> DeviceRun {
    DeviceRun { length: run.len() as u64, ..run[0].location.place() }
}

/// The extent of a run.
pub(crate) fn extent_of(run: &[Copied<'_>]) -> NewExtent {
    NewExtent::of(run[0].candidate.block, run.iter().map(|copied| &copied.location))
}

/// True when `b` continues `a` in the file and on the device.
pub fn follows(a: &Copied<'_>, b: &Copied<'_>) -> bool {
    a.candidate.ino == b.candidate.ino
        && b.candidate.block == a.candidate.block.plus(1)
        && adjoins(a.location.place(), b.location.place())
}
