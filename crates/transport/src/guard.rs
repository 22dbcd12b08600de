//! The outcome of a call: an errno for an error, EIO for a panic.

use rustix::io::Errno;
use std::panic::{AssertUnwindSafe, catch_unwind};
use terrace_engine::{FsError, FsResult};

/// Runs a piece of a request; a panic becomes EIO for that request.
pub(crate) fn guarded<T>(
    operation: &'static str,
    body: impl FnOnce() -> Result<T, Errno>,
) -> Result<T, Errno> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        tracing::error!(operation, "request panicked; answered EIO");
        Err(Errno::IO)
    })
}

/// The errno of an error of the file system.
pub(crate) fn errno(error: &FsError) -> Errno {
    Errno::from_raw_os_error(error.errno())
}

/// The result of a call that may wait, or never waits.
pub(crate) fn ended<T>(result: FsResult<T>) -> Result<T, Errno> {
    result.map_err(|error| errno(&error))
}

/// The result of a call; `None` when the call would have to wait.
pub(crate) fn unless_it_waits<T>(result: FsResult<T>) -> Result<Option<T>, Errno> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(FsError::WouldBlock) => Ok(None),
        Err(error) => Err(errno(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_eio() {
        let result = guarded("test", || -> Result<(), Errno> { panic!("on purpose") });
        assert_eq!(result, Err(Errno::IO));
        assert_eq!(guarded("test", || Ok(7)), Ok(7));
    }

    #[test]
    fn would_block_is_told_from_errors() {
        assert_eq!(unless_it_waits::<()>(Err(FsError::WouldBlock)), Ok(None));
        assert_eq!(unless_it_waits::<()>(Err(FsError::Exists)), Err(Errno::EXIST));
        assert_eq!(unless_it_waits(Ok(7)), Ok(Some(7)));
    }
}
