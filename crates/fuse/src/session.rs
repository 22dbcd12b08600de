//! Sessions: mounting, negotiation with the kernel, request threads, unmounting.
//!
//! Shared by the adapter and by the null server of the bench, so that both are measured with the same flags,
//! threads and options. This module mounts by itself, without `fuser`, so that the type shows as
//! `fuse.terrace` for root too. Root calls mount(2); an ordinary user mounts through fusermount3.

use crate::connection::Connection;
use crate::validity::VALID;
use fuser::{
    Config, FileAttr, FileType, Filesystem, Generation, INodeNo, InitFlags, KernelConfig, Notifier,
    ReplyEntry, Session, SessionACL,
};
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
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, UNIX_EPOCH};
use terrace_runtime::thread::{Urgency, spawn};

/// Largest write request.
const MAX_WRITE: u32 = 1 << 20;
/// Largest read request. Before a request the kernel locks the caller's whole buffer, up to this size, in
/// memory: programs that read small files with a buffer of 1 MiB paid for 256 pages each time, a quarter of
/// the time of a mail server's work. Reads of large files are as fast as with 1 MiB; with 128 KiB they are
/// slower by a third.
const MAX_READ: u32 = 256 << 10;
/// Requests under way at once for which no thread waits (read-ahead, write-back of mappings). When so many
/// wait for a hanging device, the kernel sends no further background request, whatever the file.
const MAX_BACKGROUND: u16 = 4096;
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

/// A mounted session whose requests are being served.
pub struct Running {
    mountpoint: PathBuf,
    connection: Connection,
    notifier: Notifier,
    thread: JoinHandle<()>,
    end: Receiver<io::Result<()>>,
}

/// Tells the kernel that this process writes back pages of other processes: so the kernel never makes its
/// allocations wait for a write-back that it serves itself. Inherited by threads started later. False without
/// the privilege (CAP_SYS_RESOURCE).
pub fn become_io_flusher() -> bool {
    rustix::process::configure_io_flusher_behavior(true).is_ok()
}

/// Programs started from now on inherit standard input, output and error only: a daemon must not keep its
/// starter's locks and pipes open.
pub fn keep_descriptors_private() {
    // SAFETY: CLOSE_RANGE_CLOEXEC closes nothing, it sets a flag on descriptors that exist.
    #[allow(unsafe_code)] // rustix has no safe form for descriptors one does not own
    let _ = unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) };
}

/// Negotiates the capabilities of each session; capabilities that an older kernel lacks are left out.
pub(crate) fn negotiate(config: &mut KernelConfig) -> io::Result<()> {
    let wanted = [
        InitFlags::FUSE_PARALLEL_DIROPS,
        // File handles (open_by_handle_at, NFS) of inodes that the kernel has forgotten: it looks up "." and
        // "..".
        InitFlags::FUSE_EXPORT_SUPPORT,
        // Not FUSE_ASYNC_DIO: the kernel drops pages before it sends an asynchronous direct write and not
        // again after it. A reader that fills a page in between keeps the old content (xfstests generic/451).
        // Not FUSE_ATOMIC_O_TRUNC: the daemon would truncate before the kernel knows whether the open is
        // allowed (ETXTBSY is judged after it for O_RDONLY | O_TRUNC).
        InitFlags::FUSE_DO_READDIRPLUS,
        InitFlags::FUSE_READDIRPLUS_AUTO,
        // Shared mappings of files opened for direct I/O (Linux 6.6).
        InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        // The daemon removes set-id bits; without this flag each buffered write asks for security.capability.
        InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        // All changes pass this kernel: a changed mtime must not drop cached pages.
        InitFlags::FUSE_EXPLICIT_INVAL_DATA,
        InitFlags::FUSE_CACHE_SYMLINKS,
    ];
    negotiate_only(config, &wanted)
}

/// Threads that take requests from the kernel.
pub(crate) fn request_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(2, |count| count.get());
    (2 * cores).clamp(4, 16)
}

/// Asks for these capabilities, and for large requests.
pub(crate) fn negotiate_only(config: &mut KernelConfig, wanted: &[InitFlags]) -> io::Result<()> {
    for &flag in wanted {
        if config.add_capabilities(flag).is_err() {
            tracing::debug!(?flag, "not offered by the kernel");
        }
    }
    config.set_max_write(MAX_WRITE).map_err(|_| io::Error::from(Errno::INVAL))?;
    config.set_max_background(MAX_BACKGROUND).map_err(|_| io::Error::from(Errno::INVAL))?;
    Ok(())
}

/// Answers a lookup with "no such name", and lets the kernel remember it: names appear only through this
/// kernel.
pub(crate) fn absent(reply: ReplyEntry) {
    let nothing = FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    };
    reply.entry_with_ttls(&Duration::ZERO, &VALID, &nothing, Generation(0));
}

/// Mounts and serves. `publish` gets the notifier before the first request is answered.
///
/// # Errors
/// [`MountError`]; no mount is left behind.
pub fn start<F: Filesystem>(
    filesystem: F,
    options: &SessionOptions,
    publish: impl FnOnce(Notifier),
) -> Result<Running, MountError> {
    let device = mount(options)?;
    let handshake = |error| MountError::Handshake { path: options.mountpoint.clone(), error };
    let mut config = Config::default();
    config.n_threads = Some(request_threads());
    config.clone_fd = options.clone_fd && has_room(&device, request_threads());
    // The kernel decides who may use the mount (allow_other); fuser's own filter would refuse set-id programs
    // of the owner.
    let serve = || {
        // The handshake: after it the mount answers as soon as the threads below run.
        let session = Session::from_fd(filesystem, device, SessionACL::All, config)?;
        let connection = Connection::of(&options.mountpoint)?;
        let notifier = session.notifier();
        publish(session.notifier());
        let (tell, end) = channel();
        let thread = spawn("terrace-session", move || {
            // The request threads are started by this thread and inherit its urgency.
            Urgency::Requests.take();
            let _ = tell.send(session.run());
        })?;
        Ok((connection, notifier, thread, end))
    };
    match serve() {
        Ok((connection, notifier, thread, end)) => {
            Ok(Running { mountpoint: options.mountpoint.clone(), connection, notifier, thread, end })
        }
        Err(error) => {
            let _ = unmount(&options.mountpoint, Unmount::Abort);
            Err(handshake(error))
        }
    }
}

/// Whether this process may open `count` further descriptors, and a few besides.
fn has_room(device: &OwnedFd, count: usize) -> bool {
    const OTHERS: usize = 8;
    let copies = (0..count + OTHERS).map(|_| rustix::io::fcntl_dupfd_cloexec(device, 0));
    copies.collect::<Result<Vec<_>, _>>().is_ok()
}

impl Running {
    /// Sends notifications to the kernel; only from a thread that holds no lock.
    pub fn notifier(&self) -> &Notifier {
        &self.notifier
    }
    /// The kernel's side.
    pub fn connection(&self) -> Connection {
        self.connection
    }
    /// The mount point.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }
    /// Whether requests are still being served.
    pub fn is_running(&self) -> bool {
        !self.thread.is_finished()
    }
    /// Waits until the file system has been unmounted and all requests are answered.
    ///
    /// # Errors
    /// The error that ended the session, if no unmount did.
    pub fn join(self) -> io::Result<()> {
        let panicked = || io::Error::other("session thread panicked");
        self.thread.join().map_err(|_| panicked())?;
        self.end.recv().map_err(|_| panicked())?
    }
}

fn mount(options: &SessionOptions) -> Result<OwnedFd, MountError> {
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
        "fd={},rootmode={mode:o},user_id={uid},group_id={gid},default_permissions,max_read={MAX_READ}{other}",
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
        OsString::from(format!("subtype={},default_permissions,max_read={MAX_READ}", options.subtype));
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
