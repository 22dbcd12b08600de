//! Durable copies: a flush is the only source of a [`Durable`] value, so code that destroys an older copy can ask for
//! one and the compiler shows that a flush came first (M1).
//!
//! Invariants: a flush serves a caller only if it began after the call; a flush that failed for any caller since a
//! [`FlushMark`] was taken makes all writes since then not durable. A failure is counted before another flush begins. Lock order: `flushing` is held for one flush,
//! with no other lock of this crate.
//!
//! Without a flush nothing is durable:
//!
//! ```compile_fail
//! let _ = terrace_media::Durable { written: 7 };
//! ```
//!
//! ```compile_fail
//! let _ = terrace_media::Flushed { _minted_here: () };
//! ```

use crate::{BlockMedium, DeviceError, MediaError};
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::ReentrantMutex;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

/// The failed flushes of a device at one moment. A caller takes a mark before the first write that its flush covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlushMark {
    failed: u64,
}

/// Proof that all writes of one device between a mark and the flush are durable.
#[derive(Debug)]
pub struct Flushed {
    _minted_here: (),
}

impl Flushed {
    /// Marks something that was written between mark and flush as durable.
    pub fn durable<T>(&self, written: T) -> Durable<T> {
        Durable { written }
    }
}

/// The name of bytes on a device that a flush made durable.
#[derive(Debug, Clone)]
pub struct Durable<T> {
    written: T,
}

impl<T> Durable<T> {
    /// The name of the bytes.
    pub fn get(&self) -> &T {
        &self.written
    }
}

/// The flushes of one device, shared by all of its writers.
pub struct SharedFlush {
    /// Flushes that failed so far.
    failed: AtomicU64,
    /// Flushes that began so far, and the number of the last of them that succeeded.
    begun: AtomicU64,
    last_good: AtomicU64,
    /// Held while a flush is under way. Work that a simulator runs meanwhile on the same thread may flush too.
    flushing: ReentrantMutex<()>,
}

impl Default for SharedFlush {
    fn default() -> SharedFlush {
        SharedFlush {
            failed: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            last_good: AtomicU64::new(0),
            flushing: ReentrantMutex::new(()),
        }
    }
}

impl SharedFlush {
    /// A mark of this moment.
    pub fn mark(&self) -> FlushMark {
        FlushMark { failed: self.failed.load(Ordering::Acquire) }
    }

    /// Makes the writes since `mark` durable. A flush that failed meanwhile for any caller may have dropped the
    /// writes: a device reports a loss once, so a later success proves nothing (M1). A flush of another caller
    /// serves as well, if it began after this call.
    ///
    /// # Errors
    /// The device's error; EIO when an earlier flush has failed since the mark.
    #[track_caller]
    pub fn flush(&self, medium: &dyn BlockMedium, mark: FlushMark) -> Result<Flushed, MediaError> {
        let FlushMark { failed: failed_before } = mark;
        let FlushMark { failed } = self.mark();
        assert!(failed_before <= failed, "{failed_before} failures of another device, {failed} of this (M1)");
        let begun = self.begun.load(Ordering::Acquire);
        // Flushes of a device run one after the other, so a waiting caller sees whether the last flush serves
        // for it.
        let _one = self.flushing.lock();
        if self.last_good.load(Ordering::Acquire) <= begun {
            let number = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
            assert!(number > begun, "flush {number} serves a call that came after {begun} (M1)");
            if let Err(error) = medium.flush() {
                self.failed.fetch_add(1, Ordering::AcqRel);
                return Err(error);
            }
            self.last_good.fetch_max(number, Ordering::AcqRel);
        }
        if self.mark() == mark {
            return Ok(Flushed { _minted_here: () });
        }
        Err(MediaError::from(DeviceError {
            device: medium.name().to_string(),
            operation: "flush",
            offset: 0,
            length: 0,
            errno: libc::EIO,
        }))
    }

    /// Does a durable write while no flush is under way, as the write may be a flush: its failure counts for all writers. `None`:
    /// another flush is under way, and nothing was done.
    pub fn alone(&self, write: impl FnOnce() -> Result<(), MediaError>) -> Option<Result<(), MediaError>> {
        let _one = self.flushing.try_lock()?;
        let written = write();
        if written.is_err() {
            self.failed.fetch_add(1, Ordering::AcqRel);
        }
        Some(written)
    }

    /// The flush of a planted mistake that leaves it out; without that mistake nothing is minted.
    pub fn left_out(&self, mistake: Mistake) -> Option<Flushed> {
        planted(mistake).then_some(Flushed { _minted_here: () })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::block::{AlignedBlock, Operation, SimulatedDevice, Times};
    use terrace_format::DeviceBlock;

    fn written() -> SimulatedDevice {
        let device = SimulatedDevice::new(8);
        device.write(DeviceBlock(1), &[AlignedBlock([7; 4096])]).unwrap();
        device
    }

    #[test]
    fn a_successful_flush_mints_a_durable_value() {
        let (flushes, device) = (SharedFlush::default(), written());
        let flushed = flushes.flush(&device, flushes.mark()).unwrap();
        assert_eq!(device.snapshot().image_none().block(DeviceBlock(1)).0[0], 7);
        assert_eq!(*flushed.durable(DeviceBlock(1)).get(), DeviceBlock(1));
    }

    #[test]
    fn a_flush_fails_when_another_flush_failed_since_its_mark() {
        let (flushes, device) = (SharedFlush::default(), written());
        let mark = flushes.mark();
        device.fail_next(Operation::Flush, 0..8, libc::EIO, Times::Count(1));
        assert!(flushes.flush(&device, flushes.mark()).is_err(), "the device fails once");
        assert!(flushes.flush(&device, mark).is_err(), "the writes since the mark may be lost");
        assert!(flushes.flush(&device, flushes.mark()).is_ok(), "a later mark is not concerned");
    }

    #[test]
    fn a_failed_durable_write_counts_as_a_failed_flush() {
        let (flushes, device) = (SharedFlush::default(), written());
        let mark = flushes.mark();
        device.fail_next(Operation::Flush, 0..8, libc::EIO, Times::Count(1));
        let block = [AlignedBlock::zeroed()];
        let write = || device.write_durable(&[(DeviceBlock(2), block.as_slice())]);
        assert!(flushes.alone(write).unwrap().is_err());
        assert!(flushes.flush(&device, mark).is_err(), "the writes since the mark may be lost");
        assert!(flushes.alone(write).unwrap().is_ok());
        assert_eq!(
            device.snapshot().image_none().block(DeviceBlock(1)).0[0],
            0,
            "an abandoned write is lost"
        );
    }

    #[test]
    fn a_flush_is_left_out_only_by_a_planted_mistake() {
        assert!(SharedFlush::default().left_out(Mistake::DropBeforeFlush).is_none());
    }
}
