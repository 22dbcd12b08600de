//! Anonymous memory as a medium: the image of `journaled`, and for comparisons with PM.

use super::{Access, RamPm, check_size, fill, unreadable};
use crate::{MediaError, OpenError};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use terrace_format::PmOffset;

impl RamPm {
    /// Anonymous memory of `size` zero bytes, by the same stores as PM.
    ///
    /// # Errors
    /// [`OpenError::InvalidSize`], and what the operating system says.
    pub fn anonymous(size: u64) -> Result<RamPm, OpenError> {
        let path = Path::new("anonymous memory");
        check_size(path, size)?;
        let failed = |error: rustix::io::Errno| OpenError::io(path, "create", std::io::Error::from(error));
        let made = memfd_create("terrace", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let file = File::from(made.map_err(failed)?);
        fill(&file, path, size)?;
        // The size of the mapping is that of the file for ever: no access can meet its end.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).map_err(failed)?;
        let access = Access { uid: rustix::process::geteuid().as_raw(), mode: 0o600, block_device: false };
        Self::map_whole(file, path, access, (size, true))
    }

    /// An error unless the whole range lies below `end`.
    #[inline]
    pub(crate) fn check(&self, offset: PmOffset, length: u64, end: u64) -> Result<(), MediaError> {
        let is_inside = offset.0.checked_add(length).is_some_and(|last| last <= end);
        if is_inside { Ok(()) } else { Err(unreadable(offset.0, length)) }
    }

    /// An aligned word of the memory.
    #[inline]
    pub(crate) fn word(&self, offset: u64) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && self.holds(offset, 8), "no word at {offset}");
        // SAFETY: aligned, in bounds, and as long mapped as `self` lives; all accesses to it are atomic.
        unsafe { &*self.base.add(offset as usize).cast::<AtomicU64>() }
    }
}
