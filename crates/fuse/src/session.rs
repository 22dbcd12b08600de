//! Sessions: negotiation with the kernel, request threads, the end of serving.
//!
//! Shared by the adapter, by the emulated device and by the null server of the bench, so that all are measured with the
//! same threads and options.

use crate::classic::{self, Share};
use crate::connection::Connection;
use crate::fuse_device::Device;
use crate::mount::{MountError, SessionOptions, Transport, Unmount, mount, unmount};
use crate::notifier::Notifier;
use crate::protocol::Reply;
use crate::protocol::init::{Answer, Capabilities, Capability, Limits, answer};
use crate::protocol::layout::{InitIn, opcode};
use crate::protocol::request::header;
use crate::server::Server;
use crate::uring::{self, Gauges, Registered, RingFigures, Rings};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use terrace_runtime::thread::{Urgency, spawn};
use terrace_transport::request_threads;
use zerocopy::FromBytes;

/// Largest write request, and requests under way at once for which no thread waits (read-ahead, write-back of mappings).
/// When so many wait for a hanging device, the kernel sends no further background request, whatever the file.
const LIMITS: Limits = Limits { max_write: 1 << 20, max_background: 4096 };

/// A mounted session whose requests are being served.
pub struct Running {
    mountpoint: PathBuf,
    connection: Connection,
    notifier: Notifier,
    thread: JoinHandle<()>,
    end: Receiver<io::Result<()>>,
    transport: Transport,
    gauges: Gauges,
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

/// Agrees with the kernel on a version and on capabilities.
fn handshake(device: &Device, wanted: &[Capability], by_uring: bool) -> io::Result<Capabilities> {
    let mut wanted = wanted.to_vec();
    wanted.extend(by_uring.then_some(Capability::OverIoUring));
    let invalid = |text: &'static str| io::Error::new(io::ErrorKind::InvalidData, text);
    let mut buffer = classic::buffer(LIMITS.max_write);
    loop {
        let length = device.receive(&mut buffer)?.ok_or(io::ErrorKind::NotConnected)?;
        let message = buffer.get(..length).unwrap_or_default();
        let (header, body) = header(message).map_err(|_| invalid("the first request has no header"))?;
        let reply = Reply::new(header.unique, device.clone());
        let asked = InitIn::read_from_prefix(body).ok().filter(|_| header.opcode == opcode::INIT);
        let Some((asked, _)) = asked else {
            reply.error(Errno::IO);
            return Err(invalid("the first request does not begin a session"));
        };
        match answer(&asked, &wanted, LIMITS) {
            Answer::Agreed(answer, capabilities) => {
                tracing::debug!(minor = asked.minor, ?capabilities, "session");
                reply.first(&answer);
                return Ok(capabilities);
            }
            Answer::Again(answer) => reply.first(&answer),
            Answer::TooOld => {
                reply.error(Errno::PROTO);
                let text = format!("protocol {}.{} of the kernel is too old", asked.major, asked.minor);
                return Err(io::Error::new(io::ErrorKind::Unsupported, text));
            }
        }
    }
}

/// Mounts and serves. `publish` gets the notifier before the first request is answered.
///
/// # Errors
/// [`MountError`]; no mount is left behind.
pub fn start<S: Server>(
    server: S,
    options: &SessionOptions,
    publish: impl FnOnce(Notifier),
) -> Result<Running, MountError> {
    // Before the mount, because a refusal must not leave a session behind.
    let rings = match options.transport {
        Transport::Classic => None,
        Transport::Auto if !uring::is_offered() => None,
        Transport::Auto => Rings::prepare().map_err(|error| fall_back(&error)).ok(),
        Transport::Uring => Some(Rings::prepare().map_err(MountError::NoUring)?),
    };
    let server = Arc::new(server);
    match connect(&server, options, rings) {
        // The kernel has no way back from rings in a session that it has agreed on: a session without them is begun.
        Err(MountError::NoUring(error)) if options.transport == Transport::Auto => {
            fall_back(&error);
            connect(&server, options, None)
        }
        connected => connected,
    }
    .and_then(|connected| serve(server, options, connected, publish))
}

/// A session that the kernel has agreed on. No request of it is answered yet.
struct Connected {
    connection: Connection,
    notifier: Notifier,
    devices: Vec<Device>,
    rings: Option<Registered>,
}

/// Mounts, and agrees with the kernel on a session. After an error no mount is left.
fn connect<S: Server>(
    server: &Arc<S>,
    options: &SessionOptions,
    rings: Option<Rings<S>>,
) -> Result<Connected, MountError> {
    let device = mount(options)?;
    agree(server, options, rings, device).inspect_err(|_| {
        let _ = unmount(&options.mountpoint, Unmount::Abort);
    })
}

fn agree<S: Server>(
    server: &Arc<S>,
    options: &SessionOptions,
    rings: Option<Rings<S>>,
    device: OwnedFd,
) -> Result<Connected, MountError> {
    let failed = |error: io::Error| MountError::Handshake { path: options.mountpoint.clone(), error };
    let is_cloned = options.clone_fd && has_room(&device, request_threads());
    let device = Device::new(device);
    // After the handshake the mount answers as soon as threads serve it.
    let capabilities = handshake(&device, server.wanted(), rings.is_some()).map_err(failed)?;
    let connection = Connection::of(&options.mountpoint).map_err(failed)?;
    let notifier = Notifier::new(device.clone());
    let offered = rings.filter(|_| capabilities.has(Capability::OverIoUring));
    if offered.is_none() && options.transport == Transport::Uring {
        let error = io::Error::new(io::ErrorKind::Unsupported, "the kernel does not offer io_uring");
        return Err(MountError::NoUring(error));
    }
    let session = uring::Session {
        device: device.clone(),
        notifier: notifier.clone(),
        connection,
        server: Arc::clone(server),
        payload_bytes: LIMITS.max_write as usize,
        entries: options.entries,
    };
    let rings = offered.map(|rings| rings.register(&session)).transpose().map_err(MountError::NoUring)?;
    // Beside rings the device brings FORGET and INTERRUPT alone.
    let count = if rings.is_some() { 1 } else { request_threads() };
    let mut devices = vec![device.clone()];
    for _ in 1..count {
        devices.push(if is_cloned { device.further().map_err(failed)? } else { device.clone() });
    }
    Ok(Connected { connection, notifier, devices, rings })
}

/// Has threads answer the requests of a session.
fn serve<S: Server>(
    server: Arc<S>,
    options: &SessionOptions,
    connected: Connected,
    publish: impl FnOnce(Notifier),
) -> Result<Running, MountError> {
    let Connected { connection, notifier, devices, rings } = connected;
    publish(notifier.clone());
    let transport = if rings.is_some() { Transport::Uring } else { Transport::Classic };
    server.begins(transport);
    let share = if rings.is_some() { Share::BesideRings } else { Share::All };
    let (threads, gauges) = rings.map(Registered::serve).unwrap_or_default();
    let (tell, end) = channel();
    let thread = spawn("terrace-session", move || {
        // The request threads are started by this thread and inherit its urgency.
        Urgency::Requests.take();
        let _ = tell.send(serve_all(server, devices, share, threads));
    });
    let mountpoint = options.mountpoint.clone();
    match thread {
        Ok(thread) => Ok(Running { mountpoint, connection, notifier, thread, end, transport, gauges }),
        Err(error) => {
            let _ = unmount(&mountpoint, Unmount::Abort);
            Err(MountError::Handshake { path: mountpoint, error })
        }
    }
}

/// Says why requests come by the device although io_uring was wanted.
fn fall_back(error: &io::Error) {
    let cause = uring::cause(error);
    tracing::warn!(%error, "io_uring cannot be had for requests{cause}; they come by the FUSE device");
}

/// Serves each device in a thread of its own, beside the threads of rings, until the session is over.
fn serve_all<S: Server>(
    server: Arc<S>,
    devices: Vec<Device>,
    share: Share,
    mut threads: Vec<JoinHandle<io::Result<()>>>,
) -> io::Result<()> {
    let (_alive, ends) = channel();
    if !threads.is_empty()
        && let Err(error) = spawn("terrace-policy", move || uring::policy::watch(&ends))
    {
        tracing::warn!(%error, "threads of rings keep the usual scheduling policy");
    }
    for (number, device) in devices.into_iter().enumerate() {
        let server = Arc::clone(&server);
        let serve = move || classic::serve(&device, share, &*server, LIMITS.max_write);
        threads.push(spawn(&format!("terrace-fuse-{number}"), serve)?);
    }
    // All threads have ended when the first error is told.
    let ended = threads
        .into_iter()
        .map(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("a request thread panicked"))));
    ended.collect::<Vec<_>>().into_iter().collect()
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
    /// The way of its requests: classic, or by io_uring.
    pub fn transport(&self) -> Transport {
        self.transport
    }
    /// Gives the figures of its rings, `None` when requests come by the device.
    pub fn ring_figures(&self) -> impl Fn() -> Option<RingFigures> + Send + Sync + 'static {
        let gauges = self.gauges.clone();
        move || gauges.read()
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
