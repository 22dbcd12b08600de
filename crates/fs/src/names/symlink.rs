//! Reading symbolic links.

use crate::content::access_time::{atime_due, touch_atime};
use terrace_format::Ino;
use terrace_store::attempt::with_pages::reading;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::attributes::symlink_target;
use terrace_store::inode::slot::load_to_read;
use terrace_store::store::Store;
use terrace_store::types::Wait;

/// Target of a symbolic link.
///
/// # Errors
/// EINVAL for other inodes, EIO.
pub fn readlink(store: &Store, ino: Ino) -> FsResult<Vec<u8>> {
    try_readlink(store, ino, Wait::Allowed)
}

/// As [`readlink`]; it waits for metadata on a lower tier only if it may.
///
/// # Errors
/// As [`readlink`]; `WouldBlock`.
pub fn try_readlink(store: &Store, ino: Ino, wait: Wait) -> FsResult<Vec<u8>> {
    let (target, atime_due) = reading(store, wait, || {
        let _guard = store.inodes.locks().read(ino);
        let inode = load_to_read(store, ino)?;
        if !inode.slot.is_symlink() {
            return Err(FsError::Invalid);
        }
        Ok((symlink_target(store, &inode)?, atime_due(store, &inode)))
    })?;
    if atime_due {
        touch_atime(store, ino);
    }
    Ok(target)
}
