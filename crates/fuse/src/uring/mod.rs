//! The transport by io_uring (FUSE_OVER_IO_URING, Linux 6.14): a queue of the kernel and a thread for each processor, so
//! that a request is served on the processor of its caller and wakes no other one.
//!
//! A ring is made before the session begins, so that a kernel or a container that forbids io_uring is known in time; its
//! entries are registered after the first exchange, in which the kernel offers the capability. Requests wait meanwhile.
//! FORGET, INTERRUPT and notifications go by the FUSE device as before.
//!
//! Invariant: once the kernel has agreed on rings, a ring that cannot be registered or can serve no longer ends the
//! session: the kernel has no other way for requests, and programs would wait for ever.

#![allow(unsafe_code)] // memory that the kernel writes, and commands that point at it

mod backlog;
mod commands;
mod entries;
mod memory;
pub(crate) mod policy;
mod ring;
pub(crate) mod ticket;

use crate::connection::Connection;
use crate::fuse_device::Device;
use crate::notifier::Notifier;
use crate::server::Server;
use entries::Gauge;
use ring::begin::Prepared;
use ring::{Ring, Role};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use terrace_runtime::affinity::{allowed_processors, stay_on};
use terrace_runtime::thread::{Urgency, spawn};

/// The parameter of the kernel that offers the transport.
pub(crate) const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Entries of all queues at first, and the least of a queue.
const ENTRIES: usize = 64;
const LEAST_ENTRIES: usize = 16;

/// A session that rings are to serve.
pub(crate) struct Session<S> {
    pub device: Device,
    pub notifier: Notifier,
    pub connection: Connection,
    pub server: Arc<S>,
    /// Bytes of the largest payload.
    pub payload_bytes: usize,
    /// Entries of a queue at first, if not as many as usual.
    pub entries: Option<usize>,
}

impl<S> Clone for Session<S> {
    fn clone(&self) -> Self {
        let Session { device, notifier, connection, server, payload_bytes, entries } = self;
        let (connection, payload_bytes, entries) = (*connection, *payload_bytes, *entries);
        let (device, notifier, server) = (device.clone(), notifier.clone(), Arc::clone(server));
        Session { device, notifier, connection, server, payload_bytes, entries }
    }
}

/// A thread with its ring.
struct Thread<S> {
    /// Without a message the thread ends.
    go: Sender<Session<S>>,
    registered: Receiver<io::Result<()>>,
    /// As above, after the registration.
    serve: Sender<()>,
    thread: JoinHandle<io::Result<()>>,
    gauge: Arc<Gauge>,
}

/// Threads with rings that wait for their session.
pub(crate) struct Rings<S>(Vec<Thread<S>>);

/// The entries of a session's rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RingFigures {
    /// All entries that the kernel has taken or is to take.
    pub entries: usize,
    /// Entries with a request that is not answered.
    pub away: usize,
    /// Rings that failed and were replaced.
    pub replaced: usize,
}

/// Rings that serve a session, or none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gauges(Vec<Arc<Gauge>>);

impl Gauges {
    pub(crate) fn read(&self) -> Option<RingFigures> {
        let sum = |of: fn(&Gauge) -> usize| self.0.iter().map(|gauge| of(gauge)).sum();
        (!self.0.is_empty()).then(|| RingFigures {
            entries: sum(|gauge| gauge.entries.load(Ordering::Relaxed)),
            away: sum(|gauge| gauge.away.load(Ordering::Relaxed)),
            replaced: sum(|gauge| gauge.replaced.load(Ordering::Relaxed)),
        })
    }
}

/// The threads of a session's rings.
pub(crate) type Threads = Vec<JoinHandle<io::Result<()>>>;

impl<S: Server> Rings<S> {
    /// Makes a ring for each processor that this process may use.
    ///
    /// # Errors
    /// The kernel's, where io_uring cannot be had.
    pub(crate) fn prepare() -> io::Result<Rings<S>> {
        let threads = shares(possible_processors()?, &allowed_processors());
        let threads: io::Result<Vec<_>> =
            threads.into_iter().map(|(own, queues)| Thread::start(own, queues)).collect();
        threads.map(Rings)
    }

    /// Has all rings register their entries.
    ///
    /// # Errors
    /// The first error of a ring. No thread is left; the session cannot go on.
    pub(crate) fn register(self, session: &Session<S>) -> io::Result<Registered> {
        for thread in &self.0 {
            let _ = thread.go.send(session.clone());
        }
        let ended = || io::Error::other("the thread of a ring ended");
        let mut result = Ok(());
        for thread in &self.0 {
            result = result.and(thread.registered.recv().map_err(|_| ended()).flatten());
        }
        let Rings(threads) = self;
        let (rings, gauges): (Vec<_>, Vec<_>) =
            threads.into_iter().map(|thread| ((thread.serve, thread.thread), thread.gauge)).unzip();
        match result {
            Ok(()) => Ok(Registered { rings, gauges }),
            Err(error) => {
                // Each thread ends when its sender is dropped.
                rings.into_iter().map(|(_, thread)| thread).for_each(|thread| drop(thread.join()));
                Err(error)
            }
        }
    }
}

/// Rings with entries that wait for requests. Requests that come are answered from [`Registered::serve`] on.
pub(crate) struct Registered {
    rings: Vec<(Sender<()>, JoinHandle<io::Result<()>>)>,
    gauges: Vec<Arc<Gauge>>,
}

impl Registered {
    /// Has all rings serve.
    pub(crate) fn serve(self) -> (Threads, Gauges) {
        let start = |(serve, thread): (Sender<()>, JoinHandle<io::Result<()>>)| {
            let _ = serve.send(());
            thread
        };
        (self.rings.into_iter().map(start).collect(), Gauges(self.gauges))
    }
}

/// A processor for each thread, and the queues that it serves: its own, and a share of those of processors that this
/// process may not use. The kernel has a queue for each processor that the machine may ever have.
fn shares(possible: u16, allowed: &[usize]) -> Vec<(usize, Vec<(u16, bool)>)> {
    let is_own = |queue: &u16| allowed.contains(&usize::from(*queue));
    let (own, others): (Vec<u16>, Vec<u16>) = (0..possible).partition(is_own);
    let mut shares: Vec<(usize, Vec<(u16, bool)>)> =
        own.iter().map(|&queue| (usize::from(queue), vec![(queue, true)])).collect();
    if shares.is_empty() {
        shares.push((allowed.first().copied().unwrap_or(0), Vec::new()));
    }
    let count = shares.len();
    for (number, &queue) in others.iter().enumerate() {
        shares[number % count].1.push((queue, false));
    }
    shares
}

impl<S: Server> Thread<S> {
    fn start(processor: usize, queues: Vec<(u16, bool)>) -> io::Result<Thread<S>> {
        let (go, gone) = channel::<Session<S>>();
        let (tell, made) = channel();
        let (registers, registered) = channel();
        let (serve, serves) = channel();
        let gauge: Arc<Gauge> = Arc::default();
        let theirs = Arc::clone(&gauge);
        let thread = spawn(&format!("terrace-ring-{processor}"), move || {
            let (prepared, result) =
                Prepared::new().map_or_else(|error| (None, Err(error)), |made| (Some(made), Ok(())));
            let _ = tell.send(result);
            let Some((prepared, session)) = prepared.zip(gone.recv().ok()) else { return Ok(()) };
            let (connection, server, role) = role(processor, queues, session, theirs);
            let (ring, result) =
                prepared.register(role).map_or_else(|error| (None, Err(error)), |ring| (Some(ring), Ok(())));
            let _ = registers.send(result);
            match ring.zip(serves.recv().ok()) {
                Some((ring, ())) => serve_ring(ring, processor, connection, &*server),
                None => Ok(()),
            }
        })?;
        made.recv().map_err(|_| io::Error::other("the thread of a ring ended"))??;
        Ok(Thread { go, registered, serve, thread, gauge })
    }
}

/// Keeps the calling thread on its processor; gives the role of its ring.
fn role<S>(
    processor: usize,
    mut queues: Vec<(u16, bool)>,
    session: Session<S>,
    gauge: Arc<Gauge>,
) -> (Connection, Arc<S>, Role) {
    let Session { device, notifier, connection, server, payload_bytes, entries } = session;
    Urgency::Requests.take();
    // The kernel puts a request into the queue of its caller's processor.
    if let Err(error) = stay_on(processor) {
        tracing::warn!(processor, %error, "the thread of a ring runs on any processor");
        queues.iter_mut().for_each(|(_, is_own)| *is_own = false);
    }
    let usual = (ENTRIES / usize::from(queues_of_machine())).max(LEAST_ENTRIES);
    let first = entries.unwrap_or(usual);
    (connection, server, Role { device, notifier, queues, first, payload_bytes, gauge })
}

/// Serves until the session is over. A ring that cannot serve any longer ends the session.
fn serve_ring(
    mut ring: Ring,
    processor: usize,
    connection: Connection,
    server: &dyn Server,
) -> io::Result<()> {
    let served = catch_unwind(AssertUnwindSafe(|| ring.serve(server)));
    let served = served.unwrap_or_else(|_| Err(io::Error::other("the thread of a ring panicked")));
    if let Err(error) = &served {
        tracing::error!(processor, %error, "a ring cannot serve; the session ends");
        if let Err(error) = connection.abort() {
            // Requests of this processor would wait for ever. The kernel aborts when the process has ended.
            tracing::error!(%error, "the session cannot be aborted; the process ends");
            std::process::abort();
        }
    }
    served
}

/// As [`possible_processors`], at least one.
fn queues_of_machine() -> u16 {
    possible_processors().unwrap_or(1).max(1)
}

/// Processors that this machine may have: the kernel has a queue for each.
fn possible_processors() -> io::Result<u16> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    last_of(&text)
        .and_then(|last| last.checked_add(1))
        .ok_or_else(|| io::Error::other("no count of processors"))
}

/// The last number of a list such as `0-3,8`.
fn last_of(list: &str) -> Option<u16> {
    list.trim().rsplit([',', '-']).next()?.parse().ok()
}

/// The usual cause of an error of the kernel when rings are made; empty for others.
pub fn cause(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            " (forbidden by the sysctl kernel.io_uring_disabled or by a container's seccomp profile)"
        }
        Some(libc::ENOMEM) => " (out of memory, or of memory that may be locked: ulimit -l)",
        Some(libc::EMFILE) => " (ulimit -n)",
        _ => "",
    }
}

/// Whether the kernel offers the transport.
pub fn is_offered() -> bool {
    std::fs::read_to_string(PARAMETER).is_ok_and(|text| text.trim() == "Y")
}

/// Has the kernel offer the transport, from now on and for all FUSE servers of the machine. True when it did not before.
///
/// # Errors
/// The operating system's: not root, or a kernel without the transport.
pub fn offer() -> io::Result<bool> {
    if is_offered() {
        return Ok(false);
    }
    if !Path::new(PARAMETER).exists() {
        let text = "this kernel has no FUSE over io_uring (Linux 6.14 and later have it)";
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    std::fs::write(PARAMETER, "Y").map(|()| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_processor_of_a_list_is_the_last_number() {
        assert_eq!(["0\n", "0-3\n", "0-1,4-7", ""].map(last_of), [Some(0), Some(3), Some(7), None]);
    }

    #[test]
    fn each_queue_has_one_thread_and_threads_stay_on_allowed_processors() {
        assert_eq!(shares(2, &[0, 1]), [(0, vec![(0, true)]), (1, vec![(1, true)])]);
        let shared = vec![(3, vec![(3, true), (0, false), (2, false)]), (4, vec![(4, true), (1, false)])];
        assert_eq!(shares(5, &[3, 4]), shared);
        assert_eq!(shares(1, &[9]), [(9, vec![(0, false)])]);
    }
}
