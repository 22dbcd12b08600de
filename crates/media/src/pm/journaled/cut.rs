//! Cuts a damaged log (J11).
//!
//! All positions behind the cut become zeros: a batch left there would prove the same damage again once the log has grown up to
//! it. The batches next to the cut go last, when the others are durably gone, so an interrupted cut is found as damage.

use super::replay::PROOF_BYTES;
use crate::block::AlignedBlock;
use crate::{BlockMedium, MediaError};
use terrace_format::BLOCK_SIZE;
use terrace_format::journal::Layout;

/// Blocks of a write: 1 MiB.
const BLOCKS_AT_ONCE: u64 = 256;

/// Erases the log from a position to the end of the lap that begins at `start`.
pub(super) fn cut(
    device: &dyn BlockMedium,
    layout: &Layout,
    start: u64,
    position: u64,
) -> Result<(), MediaError> {
    let end = start + layout.log_bytes();
    let near = (position + PROOF_BYTES).min(end);
    for (from, to) in [(near, end), (position, near)] {
        erase(device, layout, from, to)?;
        device.flush()?;
    }
    tracing::warn!("{}: the log was cut at position {position}", device.name());
    Ok(())
}

/// Makes positions zeros.
pub(super) fn erase(device: &dyn BlockMedium, layout: &Layout, from: u64, to: u64) -> Result<(), MediaError> {
    let zeros = vec![AlignedBlock::zeroed(); BLOCKS_AT_ONCE as usize];
    let mut at = from;
    while at < to {
        let (first, room) = layout.log_block(at);
        let count = room.min(BLOCKS_AT_ONCE).min((to - at) / BLOCK_SIZE);
        device.write(first, &zeros[..count as usize])?;
        at += count * BLOCK_SIZE;
    }
    Ok(())
}
