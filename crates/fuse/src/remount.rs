//! Flags of a mount that is there, as `mount -o remount` changes them: the kernel's alone, the session's server is not asked.

use rustix::mount::{MountFlags, mount_remount};
use std::io;
use std::path::Path;

/// Sets the flags of a mount, all of them, by their names in mount(8); see [`crate::SessionOptions::flags`].
///
/// # Errors
/// `EBUSY` for `ro` while files are open for writing; what the operating system says.
pub fn remount(mountpoint: &Path, flags: &[String]) -> io::Result<()> {
    let flags: MountFlags = crate::session::mount_flags(flags);
    Ok(mount_remount(mountpoint, flags, "")?)
}
