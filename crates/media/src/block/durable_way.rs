//! The way of durable writes of a device, and trials that find the quicker way.
//!
//! A device without forced unit access may flush twice for a write that has to be durable, before and behind the write; a file
//! system below may need a transaction for either way.

use super::{AlignedBlock, BlockMedium};
use crate::MediaError;
use std::sync::atomic::{AtomicBool, Ordering};
use terrace_format::DeviceBlock;
use terrace_runtime::{Clock, SystemClock};

/// Trials of durable writes, of both ways together.
const TRIALS: usize = 64;

/// A way to write durably.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DurableWay {
    /// The quicker way, by trials.
    #[default]
    Quicker,
    /// Each write asks for durability (RWF_DSYNC): forced unit access, where the device has it.
    Dsync,
    /// A write, and a flush.
    Flush,
}

/// Whether a write and a flush take less time than a write with RWF_DSYNC: `flushes` of the device changes from trial to trial.
///
/// # Errors
/// The device's.
pub(super) fn is_flush_quicker(
    device: &dyn BlockMedium,
    flushes: &AtomicBool,
    (first, blocks): (DeviceBlock, u64),
) -> Result<bool, MediaError> {
    let content = vec![AlignedBlock::zeroed(); blocks as usize];
    let clock = SystemClock::default();
    let mut times_ns = [Vec::new(), Vec::new()];
    for trial in 0..TRIALS {
        let by_flush = trial % 2 == 1;
        flushes.store(by_flush, Ordering::Relaxed);
        let begun_ns = clock.monotonic_ns();
        device.write_durable(&[(first, &content)])?;
        times_ns[usize::from(by_flush)].push(clock.monotonic_ns() - begun_ns);
    }
    let [by_dsync_ns, by_flush_ns] = times_ns.map(|mut times_ns| {
        times_ns.sort_unstable();
        times_ns[times_ns.len() / 2]
    });
    tracing::info!(device = device.name(), by_dsync_ns, by_flush_ns, "medians of durable writes");
    Ok(by_flush_ns < by_dsync_ns)
}
