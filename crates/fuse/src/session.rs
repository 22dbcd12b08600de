//! Sessions: negotiation with the kernel, request threads, the end of serving.
//!
//! Shared by the adapter and by the null server of the bench, so that both are measured with the same flags,
//! threads and options.

use crate::connection::Connection;
use crate::mount::{MountError, SessionOptions, Unmount, mount, unmount};
use crate::validity::VALID;
use fuser::{
    Config, FileAttr, FileType, Filesystem, Generation, INodeNo, InitFlags, KernelConfig, Notifier,
    ReplyEntry, Session, SessionACL,
};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, UNIX_EPOCH};
use terrace_runtime::thread::{Urgency, spawn};
use terrace_transport::request_threads;

/// Largest write request.
const MAX_WRITE_BYTES: u32 = 1 << 20;
/// Requests under way at once for which no thread waits (read-ahead, write-back of mappings). When so many
/// wait for a hanging device, the kernel sends no further background request, whatever the file.
const MAX_BACKGROUND_REQUESTS: u16 = 4096;
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

/// Asks for these capabilities, and for large requests.
pub(crate) fn negotiate_only(config: &mut KernelConfig, wanted: &[InitFlags]) -> io::Result<()> {
    for &flag in wanted {
        if config.add_capabilities(flag).is_err() {
            tracing::debug!(?flag, "not offered by the kernel");
        }
    }
    config.set_max_write(MAX_WRITE_BYTES).map_err(|_| io::Error::from(Errno::INVAL))?;
    config.set_max_background(MAX_BACKGROUND_REQUESTS).map_err(|_| io::Error::from(Errno::INVAL))?;
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

/// Descriptors that a session needs beside the device.
const OTHER_DESCRIPTORS: usize = 8;

/// Whether this process may open `count` further descriptors, and a few besides.
fn has_room(device: &OwnedFd, count: usize) -> bool {
    let copies = (0..count + OTHER_DESCRIPTORS).map(|_| rustix::io::fcntl_dupfd_cloexec(device, 0));
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
