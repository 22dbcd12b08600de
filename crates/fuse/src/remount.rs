//! Changes the flags of an existing mount, as `mount -o remount` does: only the kernel's flags change, and
//! the session's server gets no request.

use rustix::mount::{MountFlags, mount_remount};
use std::io;
use std::path::Path;

/// Sets the flags of a mount, all of them, by their names in mount(8); see [`crate::SessionOptions::flags`].
///
/// # Errors
/// `EBUSY` for `ro` while files are open for writing; otherwise the operating system's.
pub fn remount(mountpoint: &Path, flags: &[String]) -> io::Result<()> {
    let flags: MountFlags = crate::mount::mount_flags(flags);
    Ok(mount_remount(mountpoint, flags, "")?)
}
