//! Anonymous memory as a medium: the image of `journaled`, and for comparisons with PM.

use super::{Access, RamPm, check_size, fill, unreadable};
use crate::pm::mapping::{refuse_scarce, reserve};
use crate::{MediaError, OpenError};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use terrace_format::PmOffset;

/// An empty memory file.
fn memory_file(path: &Path) -> Result<File, OpenError> {
    let made = memfd_create("terrace", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    made.map(File::from).map_err(|error| failed(path, error))
}

fn failed(path: &Path, error: rustix::io::Errno) -> OpenError {
    OpenError::io(path, "create", std::io::Error::from(error))
}

impl RamPm {
    /// Anonymous memory of `size` zero bytes, by the same stores as PM.
    ///
    /// # Errors
    /// [`OpenError::InvalidSize`], and what the operating system says.
    pub fn anonymous(size: u64) -> Result<RamPm, OpenError> {
        let path = Path::new("anonymous memory");
        check_size(path, size)?;
        let file = memory_file(path)?;
        fill(&file, path, size)?;
        Self::map_sealed(file, path, size)
    }

    fn map_sealed(file: File, path: &Path, size: u64) -> Result<RamPm, OpenError> {
        // The size of the mapping is that of the file for ever: no access can meet its end.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).map_err(|error| failed(path, error))?;
        let access = Access { uid: rustix::process::geteuid().as_raw(), mode: 0o600, block_device: false };
        Self::map_whole(file, path, access, (size, true))
    }

    /// As [`Self::anonymous`], in large pages where the kernel gives them to memory files, and locked in memory where that is
    /// allowed; else with the operating system's reason against the lock.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn resident(size: u64) -> Result<(RamPm, Option<std::io::Error>), OpenError> {
        let path = Path::new("anonymous memory");
        check_size(path, size)?;
        let file = memory_file(path)?;
        file.set_len(size).map_err(|error| OpenError::io(path, "set the size", error))?;
        refuse_scarce(&file, path, size)?;
        let memory = Self::map_sealed(file, path, size)?;
        // Before the allocation, which would take small pages first. Small pages get their page tables at the first access:
        // in advance that takes longer than the allocation.
        memory.mapping.collapse();
        reserve(memory.file(), path, size)?;
        let unlocked = memory.mapping.lock().err();
        Ok((memory, unlocked))
    }

    /// The memory of a file that [`Self::anonymous`] or [`Self::resident`] made, with its content; if `resident`, as there.
    ///
    /// # Errors
    /// A file of another size, or without their seals; what the operating system says.
    pub(crate) fn of_sealed(
        file: File,
        size: u64,
        resident: bool,
    ) -> Result<(RamPm, Option<std::io::Error>), OpenError> {
        let path = Path::new("memory file");
        let found = file.metadata().map_err(|error| OpenError::io(path, "size", error))?.len();
        let seals = fcntl_get_seals(&file).map_err(|error| failed(path, error))?;
        if found != size || !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            let reason = format!("{found} bytes with {seals:?}, expected {size} bytes of a fixed size");
            return Err(OpenError::Unsupported { path: path.to_path_buf(), reason });
        }
        let access = Access { uid: rustix::process::geteuid().as_raw(), mode: 0o600, block_device: false };
        let memory = Self::map_whole(file, path, access, (size, true))?;
        let unlocked = if resident {
            memory.mapping.collapse();
            memory.mapping.lock().err()
        } else {
            None
        };
        Ok((memory, unlocked))
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
