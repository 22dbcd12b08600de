//! Errors of media.

use terrace_format::PmOffset;

/// A medium that could not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MediaError {
    /// A PM range that cannot be read or written (poisoned, missing page, out of bounds).
    #[error("persistent memory at {offset}, {length} bytes: unreadable")]
    Pm {
        /// First byte.
        offset: PmOffset,
        /// Bytes.
        length: u64,
    },
    /// A block device that answered with an error.
    #[error("{device}: {operation} at byte {offset}, {length} bytes: {}", std::io::Error::from_raw_os_error(*.errno))]
    Device {
        /// Its path.
        device: String,
        /// read, write, flush, discard.
        operation: &'static str,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// The operating system's number.
        errno: i32,
    },
}
