//! Calls of block devices.

use crate::open::OpenError;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Size of a block device in bytes.
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272;
/// Discards {offset, length} of a block device.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// Size of a block device in bytes.
///
/// # Errors
/// The operating system's.
pub(super) fn device_size(file: &File, path: &Path) -> Result<u64, OpenError> {
    let mut bytes: u64 = 0;
    // SAFETY: BLKGETSIZE64 writes one u64 through the pointer.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut bytes) };
    if answer != 0 {
        return Err(OpenError::io(path, "size", io::Error::last_os_error()));
    }
    Ok(bytes)
}

/// Discards a range of bytes of a block device.
///
/// # Errors
/// The operating system's: most devices discard nothing.
pub(super) fn discard(file: &File, offset: u64, length: u64) -> io::Result<()> {
    let range = [offset, length];
    // SAFETY: BLKDISCARD reads two u64 through the pointer.
    match unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD, range.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
