//! The transport by io_uring (FUSE_OVER_IO_URING, Linux 6.14): a queue of the kernel and a thread for each processor, so
//! that a request is served on the processor of its caller and wakes no other one.
//!
//! A ring is made before the session begins, so that a kernel or a container that forbids io_uring is known in time; its
//! entries are registered after the first exchange, in which the kernel offers the capability. Requests wait meanwhile.
//! FORGET, INTERRUPT and notifications go by the FUSE device as before.

#![allow(unsafe_code)] // memory that the kernel writes, and commands that point at it

mod memory;
mod ring;
mod ticket;

pub(crate) use ticket::Ticket;

use crate::classic::Device;
use crate::session::Server;
use ring::Ring;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use terrace_runtime::thread::{Urgency, spawn};

/// The go of a session: its device, its server, and bytes of the largest payload.
type Go<S> = (Device, Arc<S>, usize);

/// A thread with its ring.
struct Thread<S> {
    /// Without a message the thread ends.
    go: Sender<Go<S>>,
    registered: Receiver<io::Result<()>>,
    thread: JoinHandle<io::Result<()>>,
}

/// Threads with rings that wait for their session.
pub(crate) struct Rings<S>(Vec<Thread<S>>);

impl<S: Server> Rings<S> {
    /// Makes a ring for each processor.
    ///
    /// # Errors
    /// The kernel's, where io_uring cannot be had.
    pub(crate) fn prepare() -> io::Result<Rings<S>> {
        let queues = possible_processors()?;
        let mine = terrace_runtime::thread::processors().min(usize::from(queues)).max(1);
        let mut threads = Vec::new();
        for number in 0..mine {
            let own: Vec<u16> = (0..queues).filter(|queue| usize::from(*queue) % mine == number).collect();
            threads.push(Thread::start(number, own)?);
        }
        Ok(Rings(threads))
    }

    /// Has all rings register their entries, and serve. Gives the threads.
    ///
    /// # Errors
    /// The first error of a ring; the session then goes on by its device.
    pub(crate) fn go(
        self,
        device: &Device,
        server: &Arc<S>,
        payload_bytes: usize,
    ) -> io::Result<Vec<JoinHandle<io::Result<()>>>> {
        for thread in &self.0 {
            let _ = thread.go.send((device.clone(), Arc::clone(server), payload_bytes));
        }
        let ended = || io::Error::other("the thread of a ring ended");
        let mut threads = Vec::new();
        for thread in self.0 {
            thread.registered.recv().map_err(|_| ended())??;
            threads.push(thread.thread);
        }
        Ok(threads)
    }
}

impl<S: Server> Thread<S> {
    fn start(number: usize, queues: Vec<u16>) -> io::Result<Thread<S>> {
        let (go, gone) = channel::<Go<S>>();
        let (tell, made) = channel();
        let (registers, registered) = channel();
        let thread = spawn(&format!("terrace-ring-{number}"), move || {
            let mut ring = match Ring::new() {
                Ok(ring) => ring,
                Err(error) => {
                    let _ = tell.send(Err(error));
                    return Ok(());
                }
            };
            let _ = tell.send(Ok(()));
            let Ok((device, server, payload_bytes)) = gone.recv() else { return Ok(()) };
            Urgency::Requests.take();
            stay_on(queues.first().copied());
            let own = device.as_fd().try_clone_to_owned()?;
            let entries = ring.register(&own, &queues, payload_bytes);
            let is_registered = entries.is_ok();
            let _ = registers.send(entries);
            if is_registered { ring.serve(&own, &*server, payload_bytes) } else { Ok(()) }
        })?;
        made.recv().map_err(|_| io::Error::other("the thread of a ring ended"))??;
        Ok(Thread { go, registered, thread })
    }
}

/// Keeps this thread on a processor, if it may run there: the kernel puts a request into the queue of its caller's.
fn stay_on(processor: Option<u16>) {
    let mut only = CpuSet::new();
    if let Some(processor) = processor {
        only.set(usize::from(processor));
        if let Err(error) = sched_setaffinity(None, &only) {
            tracing::debug!(processor, %error, "the thread of a ring runs on any processor");
        }
    }
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

/// Whether the kernel offers the transport.
pub(crate) fn is_enabled() -> bool {
    std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring").is_ok_and(|text| text.trim() == "Y")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_processor_of_a_list() {
        assert_eq!(["0\n", "0-3\n", "0-1,4-7", ""].map(last_of), [Some(0), Some(3), Some(7), None]);
    }
}
