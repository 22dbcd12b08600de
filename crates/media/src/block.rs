//! Block devices (design 3).

mod device_image;
mod emulated;
mod faults;
pub mod file;
mod inject;
mod missing;
pub mod probe;
mod ring;
pub mod simulated;
mod whole;

pub use device_image::{DeviceImage, DeviceSnapshot};
pub use emulated::EmulatedBlock;
pub use faults::{Begins, Operation, Times};
pub use file::FileDevice;
pub use missing::MissingDevice;
pub use simulated::{DeviceCounters, SimulatedDevice};

use crate::{MediaError, Promise};
use std::panic::Location;
use terrace_format::DeviceBlock;

/// A 4 KiB block, aligned for O_DIRECT.
#[derive(Clone)]
#[repr(C, align(4096))]
pub struct AlignedBlock(pub [u8; 4096]);

impl AlignedBlock {
    /// A block of zeros.
    pub fn zeroed() -> AlignedBlock {
        AlignedBlock([0; 4096])
    }
}

/// The bytes of blocks.
pub fn bytes_of(blocks: &[AlignedBlock]) -> &[u8] {
    // SAFETY: a block is 4096 bytes without padding.
    unsafe { std::slice::from_raw_parts(blocks.as_ptr().cast(), size_of_val(blocks)) }
}

/// A buffer of blocks aligned for O_DIRECT.
pub type Buffer = Vec<AlignedBlock>;

/// A read of one run, among the reads that [`BlockMedium::read_all`] issues together.
pub struct BlockRead<'a> {
    /// First block.
    pub first: DeviceBlock,
    /// As many blocks as it has.
    pub into: &'a mut [AlignedBlock],
    /// The outcome.
    pub result: Result<(), MediaError>,
}

impl<'a> BlockRead<'a> {
    /// A read to be done.
    pub fn new(first: DeviceBlock, into: &'a mut [AlignedBlock]) -> BlockRead<'a> {
        BlockRead { first, into, result: Ok(()) }
    }
}

/// Blocks and where on a device they go.
pub type Run<'a> = (DeviceBlock, &'a [AlignedBlock]);

/// Room on the file system that a medium's file lies on: a sparse file needs more of it as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostRoom {
    /// Number of the file system: files with the same number share its room.
    pub host: u64,
    /// Free bytes of the file system.
    pub free_bytes: u64,
    /// Bytes allocated to the file.
    pub allocated_bytes: u64,
}

/// A block device or file of 4 KiB blocks. Reads and writes are synchronous for the caller; several
/// threads may call at once. What `write` did is volatile, and may be torn at 512 bytes or reordered by
/// a crash, until a `flush` that started after it returned has succeeded. After a failed `flush`
/// everything written since the last good one is not durable (design M1).
pub trait BlockMedium: Send + Sync {
    /// Blocks.
    fn blocks(&self) -> u64;
    /// Path or name, for messages.
    fn name(&self) -> &str;
    /// Reads `into.len()` blocks.
    ///
    /// # Errors
    /// [`MediaError::Device`].
    fn read(&self, first: DeviceBlock, into: &mut [AlignedBlock]) -> Result<(), MediaError>;
    /// Does several reads, in flight together if the medium has a queue; the outcome is in each read.
    fn read_all(&self, reads: &mut [BlockRead<'_>]) {
        for read in reads {
            read.result = self.read(read.first, read.into);
        }
    }
    /// Writes blocks.
    ///
    /// # Errors
    /// [`MediaError::Device`]; any part may have been written.
    fn write(&self, first: DeviceBlock, from: &[AlignedBlock]) -> Result<(), MediaError>;
    /// Writes several runs that do not overlap. A medium with a queue has them in flight together, so many
    /// short runs take little longer than the transfer of their bytes.
    ///
    /// # Errors
    /// As [`Self::write`], the first of any of them.
    fn write_runs(&self, runs: &[Run<'_>]) -> Result<(), MediaError> {
        runs.iter().try_for_each(|(first, from)| self.write(*first, from))
    }
    /// Writes runs and makes these writes durable; earlier writes stay as durable as they were. For the source line `at`:
    /// called as `write_durable()`, which knows its caller.
    ///
    /// # Errors
    /// As [`Self::write_runs`] and [`Self::flush_at`]; any part may be durable.
    fn write_durable_at(&self, runs: &[Run<'_>], at: &'static Location<'static>) -> Result<(), MediaError> {
        self.write_runs(runs)?;
        self.flush_at(at)
    }
    /// Makes completed writes durable, for the source line `at`. Called as `flush()`, which knows its caller.
    ///
    /// # Errors
    /// [`MediaError::Device`].
    fn flush_at(&self, at: &'static Location<'static>) -> Result<(), MediaError>;
    /// Tells the device that blocks hold nothing (punches a file's hole). Best effort.
    fn discard(&self, _first: DeviceBlock, _blocks: u64) {}
    /// The promise of a flush: which failures the flushed blocks survive.
    fn promise(&self) -> Promise {
        Promise::PowerFail
    }
    /// Errors returned so far; status shows a device with errors as degraded.
    fn error_count(&self) -> u64 {
        0
    }
    /// The last of them.
    fn last_error(&self) -> Option<MediaError> {
        None
    }
    /// The room that the file system below has for the medium, if the medium is a file.
    fn host_room(&self) -> Option<HostRoom> {
        None
    }
    /// Whether the medium stands for the missing device of a degraded mount. No new block goes to such a
    /// device.
    fn is_missing(&self) -> bool {
        false
    }
}

/// Gives a medium its `flush`; see [`crate::pm`] for why it is no method of the trait.
macro_rules! flush {
    ($($medium:ty),*) => {$(
        impl $medium {
            /// Makes completed writes durable.
            ///
            /// # Errors
            /// [`MediaError::Device`].
            #[track_caller]
            pub fn flush(&self) -> Result<(), MediaError> {
                self.flush_at(Location::caller())
            }
            /// Writes runs and makes these writes durable.
            ///
            /// # Errors
            /// As [`BlockMedium::write_durable_at`].
            #[track_caller]
            pub fn write_durable(&self, runs: &[Run<'_>]) -> Result<(), MediaError> {
                self.write_durable_at(runs, Location::caller())
            }
        }
    )*};
}
flush!(dyn BlockMedium + '_, EmulatedBlock, FileDevice, SimulatedDevice);
