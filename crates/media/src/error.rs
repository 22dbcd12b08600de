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
    #[error(transparent)]
    Device(#[from] Box<DeviceError>),
}

/// An error of a block device. Boxed in [`MediaError`]: results that carry it are moved on every path.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{device}: {operation} at byte {offset}, {length} bytes: {}", std::io::Error::from_raw_os_error(*.errno))]
pub struct DeviceError {
    /// Its path.
    pub device: String,
    /// read, write, flush, discard.
    pub operation: &'static str,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// The operating system's number.
    pub errno: i32,
}

impl From<DeviceError> for MediaError {
    fn from(error: DeviceError) -> MediaError {
        MediaError::Device(Box::new(error))
    }
}
