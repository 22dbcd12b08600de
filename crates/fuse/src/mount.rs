//! Mounts and unmounts.
//!
//! The type of a mount shows as `fuse.terrace`. Root calls mount(2); an ordinary user mounts through fusermount3.

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::ffi::{CString, OsString};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Largest read request. Before a request the kernel locks the caller's whole buffer, up to this size, in
/// memory: programs that read small files with a buffer of 1 MiB paid for 256 pages each time, a quarter of
/// the time of a mail server's work. Reads of large files are as fast as with 1 MiB; with 128 KiB they are
/// slower by a third.
const MAX_READ_BYTES: u32 = 256 << 10;
/// Program for users who may not mount.
const FUSERMOUNT: &str = "fusermount3";

/// How a session is mounted and served.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// First column of /proc/mounts.
    pub source: PathBuf,
    /// The mount point; must be a directory.
    pub mountpoint: PathBuf,
    /// Whether all users may use the mount, and not only the mounting user.
    pub allow_other: bool,
    /// Mount flags by their names in mount(8): ro, nosuid, nodev, noexec, noatime, …
    pub flags: Vec<String>,
    /// Whether each request thread has a /dev/fuse descriptor.
    pub clone_fd: bool,
    /// The file system type shows as `fuse.` and this subtype.
    pub subtype: &'static str,
    /// The way of requests.
    pub transport: Transport,
    /// Entries of a queue at first, for tests of rings that run dry.
    pub entries: Option<usize>,
}

/// The way of requests from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// By io_uring where the kernel offers it, else by the FUSE device.
    Auto,
    /// By io_uring.
    Uring,
    /// By the FUSE device.
    Classic,
}

impl Transport {
    /// Its name in options and in the status.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Auto => "auto",
            Transport::Uring => "uring",
            Transport::Classic => "classic",
        }
    }

    /// The transport of a name.
    pub fn named(name: &str) -> Option<Transport> {
        [Transport::Auto, Transport::Uring, Transport::Classic].into_iter().find(|one| one.name() == name)
    }
}

impl SessionOptions {
    /// The usual options for a mount of `source` at `mountpoint`.
    pub fn new(source: impl Into<PathBuf>, mountpoint: impl Into<PathBuf>) -> SessionOptions {
        SessionOptions {
            source: source.into(),
            mountpoint: mountpoint.into(),
            allow_other: rustix::process::geteuid().is_root(),
            flags: Vec::new(),
            clone_fd: true,
            subtype: "terrace",
            transport: Transport::Auto,
            entries: None,
        }
    }
}

/// Why a mount failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The FUSE device cannot be opened.
    #[error("/dev/fuse: {0}; load the kernel module (modprobe fuse) or allow the device in this container")]
    NoDevice(io::Error),
    /// This user may not open the FUSE device.
    #[error(
        "/dev/fuse: {0}; this user may not open it: let the user (chmod 666 /dev/fuse), or mount as root"
    )]
    Forbidden(io::Error),
    /// mount(2) refused.
    #[error("{}: mount: {error}", .path.display())]
    Refused {
        /// The directory.
        path: PathBuf,
        /// The answer.
        error: io::Error,
    },
    /// An ordinary user without fusermount3.
    #[error("{FUSERMOUNT}: {0}; install the package fuse3, or mount as root")]
    NoHelper(io::Error),
    /// fusermount3 refused.
    #[error("{0}")]
    Helper(String),
    /// io_uring was asked for and cannot be had.
    #[error("io_uring: {0}{cause}; mount with transport=auto or transport=classic", cause = crate::uring::cause(.0))]
    NoUring(io::Error),
    /// The kernel did not agree on a session.
    #[error("{}: FUSE handshake: {error}", .path.display())]
    Handshake {
        /// The directory.
        path: PathBuf,
        /// The answer.
        error: io::Error,
    },
}

/// How to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmount {
    /// Fails with EBUSY while the mount is in use.
    Plain,
    /// The mount disappears at once; the session ends when its last file is closed.
    Detach,
    /// Aborts the connection: users get ENOTCONN.
    Abort,
}

/// Mounts, and gives the device of the session.
pub(crate) fn mount(options: &SessionOptions) -> Result<OwnedFd, MountError> {
    match mount_directly(options) {
        Err(MountError::Refused { error, .. }) if error.raw_os_error() == Some(libc::EPERM) => {
            mount_by_helper(options)
        }
        result => result,
    }
}

pub(crate) fn mount_flags(names: &[String]) -> MountFlags {
    let mut flags = MountFlags::empty();
    for name in names {
        flags |= match name.as_str() {
            "ro" => MountFlags::RDONLY,
            "nosuid" => MountFlags::NOSUID,
            "nodev" => MountFlags::NODEV,
            "noexec" => MountFlags::NOEXEC,
            "noatime" => MountFlags::NOATIME,
            "nodiratime" => MountFlags::NODIRATIME,
            "dirsync" => MountFlags::DIRSYNC,
            "sync" => MountFlags::SYNCHRONOUS,
            _ => MountFlags::empty(),
        };
    }
    flags
}

fn mount_directly(options: &SessionOptions) -> Result<OwnedFd, MountError> {
    let device =
        rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|error| {
            match error {
                Errno::ACCESS => MountError::Forbidden(error.into()),
                _ => MountError::NoDevice(error.into()),
            }
        })?;
    let refused = |error: io::Error| MountError::Refused { path: options.mountpoint.clone(), error };
    let mode = rustix::fs::stat(&options.mountpoint).map_err(|error| refused(error.into()))?.st_mode;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let other = if options.allow_other { ",allow_other" } else { "" };
    let data = format!(
        "fd={},rootmode={mode:o},user_id={uid},group_id={gid},default_permissions,max_read={MAX_READ_BYTES}{other}",
        device.as_raw_fd()
    );
    let data = CString::new(data).map_err(|error| refused(error.into()))?;
    let flags = mount_flags(&options.flags);
    let kind = format!("fuse.{}", options.subtype);
    rustix::mount::mount(&options.source, &options.mountpoint, kind, flags, data.as_c_str())
        .map_err(|error| refused(error.into()))?;
    Ok(device)
}

/// fusermount3 mounts and sends the device over a socket that it inherits.
fn mount_by_helper(options: &SessionOptions) -> Result<OwnedFd, MountError> {
    let helper = |error: io::Error| MountError::Helper(format!("{FUSERMOUNT}: {error}"));
    let (ours, theirs) = UnixStream::pair().map_err(helper)?;
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty()).map_err(|error| helper(error.into()))?;
    let mut words =
        OsString::from(format!("subtype={},default_permissions,max_read={MAX_READ_BYTES}", options.subtype));
    if options.allow_other {
        words.push(",allow_other");
    }
    for flag in &options.flags {
        words.push(",");
        words.push(flag);
    }
    words.push(",fsname=");
    words.push(escaped(&options.source));
    let child = Command::new(FUSERMOUNT)
        .arg("-o")
        .arg(words)
        .arg("--")
        .arg(&options.mountpoint)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(MountError::NoHelper)?;
    drop(theirs);
    let received = receive_descriptor(&ours);
    let output = child.wait_with_output().map_err(helper)?;
    match received {
        Ok(device) if output.status.success() => {
            rustix::io::fcntl_setfd(&device, FdFlags::CLOEXEC).map_err(|error| helper(error.into()))?;
            Ok(device)
        }
        _ => Err(MountError::Helper(first_line(&output.stderr))),
    }
}

/// In a mount option a comma ends the value, and a backslash before it prevents that.
fn escaped(source: &Path) -> OsString {
    let mut bytes = Vec::new();
    for &byte in source.as_os_str().as_bytes() {
        if byte == b',' || byte == b'\\' {
            bytes.push(b'\\');
        }
        bytes.push(byte);
    }
    std::ffi::OsStr::from_bytes(&bytes).to_os_string()
}

fn first_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let line = text.lines().next().unwrap_or("").trim();
    if line.is_empty() { format!("{FUSERMOUNT} failed without a message") } else { line.to_string() }
}

fn receive_descriptor(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    loop {
        let mut parts = [IoSliceMut::new(&mut byte)];
        match rustix::net::recvmsg(socket.as_fd(), &mut parts, &mut ancillary, RecvFlags::empty()) {
            Err(Errno::INTR) => {}
            result => {
                result?;
                break;
            }
        }
    }
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = part
            && let Some(descriptor) = descriptors.next()
        {
            return Ok(descriptor);
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

/// fusermount3 could not be run: its name must be in the message, or the error seems to be about the mount
/// point.
fn no_helper(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::NotFound => {
            let what = "is missing; install the package fuse3, or unmount as root";
            io::Error::other(format!("{FUSERMOUNT} {what}"))
        }
        _ => io::Error::other(format!("{FUSERMOUNT}: {error}")),
    }
}

/// Unmounts the mount on top at `mountpoint`.
///
/// # Errors
/// EBUSY when the mount is in use and `how` is plain; otherwise the operating system's or
/// fusermount3's.
pub fn unmount(mountpoint: &Path, how: Unmount) -> io::Result<()> {
    let flags = UnmountFlags::NOFOLLOW
        | match how {
            Unmount::Plain => UnmountFlags::empty(),
            Unmount::Detach => UnmountFlags::DETACH,
            Unmount::Abort => UnmountFlags::DETACH | UnmountFlags::FORCE,
        };
    match rustix::mount::unmount(mountpoint, flags) {
        Err(Errno::PERM) => {}
        result => return result.map_err(Into::into),
    }
    let mut helper = Command::new(FUSERMOUNT);
    helper.arg("-u");
    if how != Unmount::Plain {
        helper.arg("-z");
    }
    let output = helper.arg("--").arg(mountpoint).stdin(Stdio::null()).output().map_err(no_helper)?;
    if output.status.success() {
        return Ok(());
    }
    let text = first_line(&output.stderr);
    if text.contains("resource busy") {
        return Err(Errno::BUSY.into());
    }
    Err(io::Error::other(text))
}
