//! Opening media: the error that says why a medium could not be opened, and the exclusive lock.
//!
//! Invariant: a medium opened with a lock is held by one opener only, readers included: a second
//! daemon, or check beside a daemon, gets [`OpenError::Busy`] and never sees a half-written state.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use terrace_runtime::{Clock, SystemClock};

/// A medium that could not be opened or made.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Somebody else holds the lock.
    #[error("{}: in use by another process", .path.display())]
    Busy {
        /// The medium.
        path: PathBuf,
    },
    /// The file system (or memory, on tmpfs) cannot hold the file.
    #[error("{}: no room for {size_bytes} bytes ({reason})", .path.display())]
    NoSpace {
        /// The medium.
        path: PathBuf,
        /// The size that the medium needs.
        size_bytes: u64,
        /// The resource that ran out.
        reason: String,
    },
    /// The size is zero or not a multiple of 4096 bytes.
    #[error("{}: {size_bytes} bytes: the size must be a positive multiple of 4096", .path.display())]
    InvalidSize {
        /// The medium.
        path: PathBuf,
        /// The size that was asked for or found.
        size_bytes: u64,
    },
    /// A kind of file that this medium cannot use.
    #[error("{}: {reason}", .path.display())]
    Unsupported {
        /// The medium.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The operating system's answer.
    #[error("{}: {operation}: {source}", .path.display())]
    Io {
        /// The medium.
        path: PathBuf,
        /// open, map, size, …
        operation: &'static str,
        /// The answer.
        source: io::Error,
    },
}

impl OpenError {
    /// Whether somebody else holds the medium.
    pub fn is_busy(&self) -> bool {
        matches!(self, OpenError::Busy { .. })
    }

    pub(crate) fn io(path: &Path, operation: &'static str, source: impl Into<io::Error>) -> Self {
        OpenError::Io { path: path.to_path_buf(), operation, source: source.into() }
    }
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> io::Error {
        let kind = match &error {
            OpenError::Busy { .. } => io::ErrorKind::ResourceBusy,
            OpenError::NoSpace { .. } => io::ErrorKind::StorageFull,
            OpenError::InvalidSize { .. } => io::ErrorKind::InvalidInput,
            OpenError::Unsupported { .. } => io::ErrorKind::Unsupported,
            OpenError::Io { source, .. } => source.kind(),
        };
        io::Error::new(kind, error)
    }
}

/// Time that an opener waits for a holder of the lock that is just closing.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Tries again for a while as long as somebody else holds the medium. A process that was killed lets go
/// only after its end: the kernel closes what an io_uring used in the background.
pub(crate) fn patiently<T>(mut attempt: impl FnMut() -> Result<T, OpenError>) -> Result<T, OpenError> {
    let clock = SystemClock::default();
    loop {
        match attempt() {
            Err(error) if error.is_busy() && clock.monotonic_ns() < LOCK_PATIENCE.as_nanos() as u64 => {
                clock.sleep(LOCK_PAUSE);
            }
            result => return result,
        }
    }
}

/// Takes the exclusive lock of an open medium; it lasts as long as the file is open.
pub(crate) fn lock_exclusive(file: &File, path: &Path) -> Result<(), OpenError> {
    patiently(|| {
        loop {
            match flock(file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => {
                    return Err(OpenError::Busy { path: path.to_path_buf() });
                }
                Err(error) => return Err(OpenError::io(path, "lock", error)),
            }
        }
    })
}

/// A size that a medium can have.
pub(crate) fn check_size(path: &Path, size_bytes: u64) -> Result<(), OpenError> {
    if size_bytes == 0 || !size_bytes.is_multiple_of(terrace_format::BLOCK_SIZE) {
        return Err(OpenError::InvalidSize { path: path.to_path_buf(), size_bytes });
    }
    Ok(())
}
