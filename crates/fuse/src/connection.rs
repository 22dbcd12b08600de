//! The kernel's side of a session: its number, and its end from outside.
//!
//! This module sends no request to the session's server: a process that serves a mount and waits for an
//! answer from it cannot be killed. The waiting thread keeps the FUSE device open while the threads that
//! could answer are gone, so the kernel never aborts the connection.

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The directory in which fusectl is usually mounted.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// A session by its number in the kernel, which is the minor number of its mounts' device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection(u32);

impl Connection {
    /// The connection of this number.
    pub fn new(number: u32) -> Connection {
        Connection(number)
    }

    /// The connection of the mount on top at a directory.
    pub(crate) fn of(mountpoint: &Path) -> io::Result<Connection> {
        let text = std::fs::read("/proc/self/mountinfo")?;
        let number = number_at(&text, mountpoint);
        number.map(Connection).ok_or_else(|| io::Error::other("the mount is gone"))
    }

    /// The minor number of its mounts' device.
    pub fn number(self) -> u32 {
        self.0
    }

    /// Ends the session even while it is in use: its users get ENOTCONN. Root may always end it, another user
    /// only if fusectl is mounted.
    ///
    /// # Errors
    /// The operating system's. A connection that is gone already is no error.
    pub fn abort(self) -> io::Result<()> {
        let usual = File::options().write(true).open(format!("{CONNECTIONS}/{}/abort", self.0));
        let mut file = match usual {
            Ok(file) => file,
            Err(error) => match self.open_unmounted() {
                Ok(file) => file,
                Err(rustix::io::Errno::NOENT) => return Ok(()),
                Err(_) => return Err(error),
            },
        };
        file.write_all(b"1")
    }

    /// Opens the connection's `abort` file in a fusectl without a mount point.
    fn open_unmounted(self) -> rustix::io::Result<File> {
        let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        let path = format!("{}/abort", self.0);
        openat(root, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).map(File::from)
    }
}

/// The minor number of the last mount at a directory in the text of mountinfo.
fn number_at(text: &[u8], mountpoint: &Path) -> Option<u32> {
    let mut written = Vec::new();
    for &byte in mountpoint.as_os_str().as_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => written.extend(format!("\\{byte:03o}").into_bytes()),
            _ => written.push(byte),
        }
    }
    let lines = text.rsplit(|&byte| byte == b'\n');
    let words = lines.map(|line| line.split(|&byte| byte == b' '));
    let mut devices = words.filter_map(|mut words| {
        let device = words.nth(2)?;
        (words.nth(1)? == written).then_some(device)
    });
    std::str::from_utf8(devices.next()?).ok()?.split_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_mount_at_a_directory_counts() {
        let text = b"36 35 0:52 / /mnt/a\\040b rw - fuse.terrace /p rw\n\
            37 35 0:53 / /mnt/a rw - fuse.terrace /p rw\n\
            38 36 0:61 / /mnt/a\\040b rw - fuse.terrace /p rw\n";
        let found = ["/mnt/a b", "/mnt/a", "/mnt"].map(|path| number_at(text, Path::new(path)));
        assert_eq!(found, [Some(61), Some(53), None]);
    }
}
