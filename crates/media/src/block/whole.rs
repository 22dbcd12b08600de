//! Files that are written whole when they are made.

use super::{AlignedBlock, BlockMedium, FileDevice};
use crate::MediaError;
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use terrace_format::DeviceBlock;

/// Blocks of a write: 1 MiB.
const BLOCKS_AT_ONCE: u64 = 256;

impl FileDevice {
    /// Writes zeros to the whole device, without copy-on-write where its file system has that, and flushes. Tells the bytes
    /// written after each piece.
    ///
    /// # Errors
    /// As [`BlockMedium::write`] and [`BlockMedium::flush_at`].
    pub fn write_whole(&self, progress: &mut dyn FnMut(u64)) -> Result<(), MediaError> {
        // btrfs takes the flag for an empty file alone; other file systems refuse or ignore it.
        if let Ok(flags) = ioctl_getflags(self.file())
            && self.file().set_len(0).is_ok()
        {
            let _ = ioctl_setflags(self.file(), flags | IFlags::NOCOW);
            let size = DeviceBlock(self.blocks()).byte_offset();
            self.file().set_len(size).map_err(|error| self.error_of_size(&error))?;
        }
        let zeros = vec![AlignedBlock::zeroed(); BLOCKS_AT_ONCE as usize];
        for first in (0..self.blocks()).step_by(BLOCKS_AT_ONCE as usize) {
            let count = BLOCKS_AT_ONCE.min(self.blocks() - first);
            self.write(DeviceBlock(first), &zeros[..count as usize])?;
            progress(DeviceBlock(first + count).byte_offset());
        }
        self.flush()
    }
}
