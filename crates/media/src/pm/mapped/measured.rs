//! Mapped PM for measurements: sparse files, and lines that leave the processor's caches.

use super::RamPm;
use crate::found::{Access, create_new};
use crate::open::{OpenError, check_size, lock_exclusive};
use std::path::Path;
use terrace_format::PmOffset;

impl RamPm {
    /// As [`Self::create`], but the kernel gives memory to a page when it is touched first. For measurements of structures
    /// whose blocks are never touched: a store may meet a lack of memory, which a pool with content may not.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn create_sparse(path: impl AsRef<Path>, size: u64) -> Result<RamPm, OpenError> {
        let path = path.as_ref();
        check_size(path, size)?;
        let file = create_new(path)?;
        let access = Access { uid: rustix::process::geteuid().as_raw(), mode: 0o600, block_device: false };
        let resized = lock_exclusive(&file, path)
            .and_then(|()| file.set_len(size).map_err(|error| OpenError::io(path, "set the size", error)));
        resized.inspect_err(|_| {
            // the first error is the one to report
            let _ = std::fs::remove_file(path);
        })?;
        Ok(RamPm { sparse: true, ..Self::map_whole(file, path, access, (size, true))? })
    }

    /// Takes the lines of a range out of the processor's caches: the next access finds them in memory. For measurements.
    pub fn drop_from_caches(&self, offset: PmOffset, length: u64) {
        if self.holds(offset.0, length) {
            // SAFETY: in bounds.
            unsafe { self.kernels.drop_lines(self.base.add(offset.0 as usize), length as usize) };
        }
    }
}
