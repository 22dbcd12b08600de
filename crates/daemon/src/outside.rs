//! Runs calls that may wait for an answer of the mount in a process of their own.
//!
//! A thread of the daemon that waits for the daemon's own mount cannot be killed, and keeps the connection
//! alive, because its process has the FUSE device open while one of its threads lives. A separate process
//! does not have the device open.

use crate::failure::{Failure, Outcome, plain};
use crate::mounts;
use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use terrace_fuse::Unmount;

/// This program, even if its file was replaced meanwhile.
const PROGRAM: &str = "/proc/self/exe";
/// Exit status of an unmount that found the mount in use.
const BUSY: u8 = 16;

/// Has the kernel write the changed pages of shared mappings.
///
/// # Errors
/// A failure as a line of text.
pub fn write_pages(device: &str) -> Result<(), String> {
    start(&[OsStr::new("pages"), OsStr::new(device)]).map(|_| ())
}

/// Unmounts the mount on top at a directory; false when it is in use.
///
/// # Errors
/// A failure as a line of text.
pub fn unmount(dir: &Path) -> Result<bool, String> {
    start(&[OsStr::new("unmount"), OsStr::new("--"), dir.as_os_str()])
}

fn start(words: &[&OsStr]) -> Result<bool, String> {
    let mut command = Command::new(PROGRAM);
    command.arg("outside").args(words).stdin(Stdio::null()).stdout(Stdio::null());
    // Ctrl-C on a daemon in the foreground must not end this helper process as well.
    let output =
        command.process_group(0).output().map_err(|error| format!("no process for it: {}", plain(&error)))?;
    match output.status.code() {
        Some(0) => Ok(true),
        Some(code) if code == i32::from(BUSY) => Ok(false),
        _ => Err(String::from_utf8_lossy(&output.stderr).trim().to_string()),
    }
}

/// The task of `terrace outside unmount`: the exit status.
///
/// # Errors
/// When the directory cannot be unmounted, except for a mount in use.
pub fn unmount_here(dir: &Path) -> Outcome<u8> {
    match terrace_fuse::unmount(dir, Unmount::Plain) {
        Ok(()) => Ok(0),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(BUSY),
        Err(error) => Err(Failure::at(dir, plain(&error))),
    }
}

/// Has the kernel write the pages of a mount, through this or another mount namespace.
pub fn pages(device: &str) -> Outcome<()> {
    let here = mounts::all()?.into_iter().filter(|mount| mount.is_ours() && mount.device == device);
    let here = here.map(|mount| mount.mountpoint);
    let elsewhere =
        mounts::elsewhere(|mount| mount.device == device, None).into_iter().map(|mount| mount.path());
    let mut last = Failure::new("the mount is nowhere to be seen");
    for path in here.chain(elsewhere) {
        // Another file system may be mounted over it.
        let is_it = |found: std::fs::Metadata| mounts::device_text(found.dev()) == device;
        let write = || -> io::Result<bool> {
            Ok(is_it(std::fs::metadata(&path)?) && mounts::write_kernel_pages(&path).map(|()| true)?)
        };
        match write() {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => last = Failure::at(&path, plain(&error)),
        }
    }
    Err(last)
}
