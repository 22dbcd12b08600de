//! The device of a journal: durable writes and flushes of commits and home rounds, which share each other's failures (M1, J12).
//!
//! A flush that fails for a thread may have dropped the writes of all threads, and the device tells so once. So flushes, and
//! durable writes that may be flushes, run one after the other, and a writer takes a mark before its first write: a failure since
//! the mark is an error of the writer, too.

use crate::block::{AlignedBlock, Run};
use crate::durable::{FlushMark, SharedFlush};
use crate::{BlockMedium, MediaError, Promise};
use std::sync::Arc;
use terrace_format::journal::TRIAL_BLOCKS;
use terrace_runtime::Clock;

/// Trials of durable writes, of both ways together.
const TRIALS: usize = 64;

/// A way to write durably.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DurableWay {
    /// The quicker way, by trials.
    #[default]
    Quicker,
    /// Each write asks for durability (RWF_DSYNC): forced unit access, where the device has it. Elsewhere the kernel flushes, on
    /// some devices before and behind the write.
    Dsync,
    /// A write, and a flush.
    Flush,
}

/// The device of a journal.
pub(super) struct JournalDevice {
    medium: Arc<dyn BlockMedium>,
    flushes: SharedFlush,
    by_flush: bool,
}

impl JournalDevice {
    /// A device that is written durably in a way. [`DurableWay::Quicker`] writes the blocks for trials.
    ///
    /// # Errors
    /// The device's.
    pub fn new(medium: Arc<dyn BlockMedium>, way: DurableWay, clock: &dyn Clock) -> Result<Self, MediaError> {
        let by_flush = match way {
            DurableWay::Dsync => false,
            DurableWay::Flush => true,
            DurableWay::Quicker => is_flush_quicker(&*medium, clock)?,
        };
        Ok(JournalDevice { medium, flushes: SharedFlush::default(), by_flush })
    }

    /// The device, for writes that no other thread makes.
    pub fn medium(&self) -> &dyn BlockMedium {
        &*self.medium
    }

    pub fn name(&self) -> &str {
        self.medium.name()
    }

    pub fn promise(&self) -> Promise {
        self.medium.promise()
    }

    pub fn error_count(&self) -> u64 {
        self.medium.error_count()
    }

    /// A moment before writes that [`Self::flush`] is to cover.
    pub fn mark(&self) -> FlushMark {
        self.flushes.mark()
    }

    /// Writes runs; see [`BlockMedium::write_runs`].
    pub fn write_volatile(&self, runs: &[Run<'_>]) -> Result<(), MediaError> {
        self.medium.write_runs(runs)
    }

    /// Makes all writes since a mark durable, unless a flush of any thread has failed since.
    pub fn flush(&self, mark: FlushMark) -> Result<(), MediaError> {
        self.flushes.flush(&*self.medium, mark).map(drop)
    }

    /// Writes runs durably. After an error they are to be written again, whoever's flush failed.
    pub fn write_durable(&self, runs: &[Run<'_>]) -> Result<(), MediaError> {
        if !self.by_flush
            && let Some(written) = self.flushes.alone(|| self.medium.write_durable(runs))
        {
            return written;
        }
        let mark = self.mark();
        self.write_volatile(runs)?;
        self.flush(mark)
    }
}

/// Whether a write and a flush take less time than a durable write, by medians.
fn is_flush_quicker(medium: &dyn BlockMedium, clock: &dyn Clock) -> Result<bool, MediaError> {
    let (first, blocks) = TRIAL_BLOCKS;
    let content = vec![AlignedBlock::zeroed(); blocks as usize];
    let mut times_ns = [Vec::new(), Vec::new()];
    for trial in 0..TRIALS {
        let by_flush = trial % 2 == 1;
        let begun_ns = clock.monotonic_ns();
        if by_flush {
            medium.write(first, &content)?;
            medium.flush()?;
        } else {
            medium.write_durable(&[(first, &content)])?;
        }
        times_ns[usize::from(by_flush)].push(clock.monotonic_ns() - begun_ns);
    }
    let [by_dsync_ns, by_flush_ns] = times_ns.map(|mut times_ns| {
        times_ns.sort_unstable();
        times_ns[times_ns.len() / 2]
    });
    tracing::info!(device = medium.name(), by_dsync_ns, by_flush_ns, "medians of durable writes");
    Ok(by_flush_ns < by_dsync_ns)
}
