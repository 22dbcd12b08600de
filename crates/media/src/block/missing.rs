//! The place of a device that is not there.

use super::{AlignedBlock, BlockMedium};
use crate::{DeviceError, MediaError};
use std::panic::Location;
use terrace_format::{BLOCK_SIZE, DeviceBlock};

/// Stands for a device that a pool is mounted without: reads and writes fail (ENODEV), and a flush has nothing to do, for
/// nothing was written.
pub struct MissingDevice {
    name: String,
    blocks: u64,
}

impl MissingDevice {
    /// For a device that was expected at a path, with so many blocks.
    pub fn new(name: String, blocks: u64) -> MissingDevice {
        MissingDevice { name, blocks }
    }

    fn error(&self, operation: &'static str, first: DeviceBlock, blocks: usize) -> MediaError {
        let (offset, length) = (first.0.saturating_mul(BLOCK_SIZE), blocks as u64 * BLOCK_SIZE);
        DeviceError { device: self.name.clone(), operation, offset, length, errno: libc::ENODEV }.into()
    }
}

impl BlockMedium for MissingDevice {
    fn blocks(&self) -> u64 {
        self.blocks
    }
    fn name(&self) -> &str {
        &self.name
    }
    fn read(&self, first: DeviceBlock, into: &mut [AlignedBlock]) -> Result<(), MediaError> {
        Err(self.error("read", first, into.len()))
    }
    fn write(&self, first: DeviceBlock, from: &[AlignedBlock]) -> Result<(), MediaError> {
        Err(self.error("write", first, from.len()))
    }
    fn flush_at(&self, _at: &'static Location<'static>) -> Result<(), MediaError> {
        Ok(())
    }
    fn is_missing(&self) -> bool {
        true
    }
}
