//! The classic transport: requests are read from the FUSE device, replies are written to it, one system call each.
//!
//! A thread that sleeps in the device has to be woken, often on another processor than the caller's, and that takes longer
//! than a request. So one thread at a time looks for the next request a while before it sleeps, as long as that pays.
//!
//! Invariant: a thread reads into a buffer of its own, which holds the largest request.

use crate::fuse_device::Device;
use crate::protocol::layout::opcode;
use crate::protocol::request::{Malformed, header};
use crate::protocol::{Input, Reply};
use crate::server::{Server, dispatch, is_unanswered};
use rustix::event::{Timespec, poll};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use terrace_runtime::affinity::allowed_processors;
use terrace_runtime::thread::processors;
use terrace_runtime::{Clock, SystemClock};

/// Room for a request's header and arguments beside the data of the largest write.
const BESIDE_DATA_BYTES: usize = 4096;

/// A buffer for requests whose data is at most `max_write` bytes.
pub(crate) fn buffer(max_write: u32) -> Vec<u8> {
    vec![0; max_write as usize + BESIDE_DATA_BYTES]
}

/// Time between two looks for references that the kernel gives up, where the device brings nothing else.
const FORGET_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// Whether a descriptor hands out all requests, or those that rings do not bring.
#[derive(Debug, Clone)]
pub(crate) enum Share {
    /// All; the flag is set while a thread of the session looks for a request without sleeping.
    All(Arc<AtomicBool>),
    /// References given up by the kernel. They are collected for a while: waking this thread for each removed file takes a
    /// processor from the program or from a ring.
    BesideRings,
}

/// Time for which a thread looks for the next request before it sleeps: a program that is about to ask does so within it.
const LOOK_NS: u64 = 20_000;
/// So many looks in vain make a thread sleep at once, for so many requests.
const IN_VAIN: u32 = 3;
const REST: u32 = 50;
/// Requests in a row, found without a wait, after which a thread does not look: many programs ask and need the processor.
const BUSY: u32 = 3;
/// On a single processor the program that asks cannot run meanwhile.
const LONG_REST: u32 = 10_000;

/// Looks for requests without sleeping.
struct Looks {
    /// Reads do not wait.
    device: Device,
    is_taken: Arc<AtomicBool>,
    clock: SystemClock,
    in_vain: u32,
    rest: u32,
    /// Requests that were there without a wait.
    in_a_row: u32,
}

impl Looks {
    /// `None` where no processor idles while a program waits, or no descriptor is left.
    fn new(device: &Device, share: &Share) -> Option<Looks> {
        let Share::All(is_taken) = share else { return None };
        let device = (processors() > 1).then(|| device.nonblocking().ok()).flatten()?;
        let (is_taken, clock) = (Arc::clone(is_taken), SystemClock::default());
        Some(Looks { device, is_taken, clock, in_vain: 0, rest: 0, in_a_row: 0 })
    }

    /// The length of a request that came meanwhile.
    fn look(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        if self.rest > 0 || self.is_taken.swap(true, Ordering::Relaxed) {
            self.rest = self.rest.saturating_sub(1);
            return Ok(None);
        }
        let mut found = self.device.receive_now(buffer);
        let was_busy = self.in_a_row >= BUSY;
        self.in_a_row = if matches!(found, Ok(Some(_))) { self.in_a_row + 1 } else { 0 };
        if matches!(found, Ok(None)) && was_busy {
            self.is_taken.store(false, Ordering::Relaxed);
            return found;
        }
        let until = self.clock.monotonic_ns() + LOOK_NS;
        while matches!(found, Ok(None)) && self.clock.monotonic_ns() < until {
            std::hint::spin_loop();
            found = self.device.receive_now(buffer);
        }
        self.is_taken.store(false, Ordering::Relaxed);
        self.in_vain = if matches!(found, Ok(None)) { self.in_vain + 1 } else { 0 };
        if self.in_vain > IN_VAIN {
            let rest = if allowed_processors().len() > 1 { REST } else { LONG_REST };
            (self.in_vain, self.rest) = (0, rest);
        }
        found
    }
}

/// Serves the requests that one descriptor hands out, until the session is over.
pub(crate) fn serve(device: &Device, share: &Share, server: &dyn Server, max_write: u32) -> io::Result<()> {
    let mut buffer = buffer(max_write);
    let mut looks = Looks::new(device, share);
    loop {
        let found = match &mut looks {
            Some(looks) => looks.look(&mut buffer)?.map(|length| (&looks.device, length)),
            None => None,
        };
        // A reply goes back by the descriptor of its request.
        let (device, length) = match found {
            Some(found) => found,
            None => match device.receive(&mut buffer)? {
                Some(length) => (device, length),
                None => return Ok(()),
            },
        };
        let message = buffer.get(..length).unwrap_or_default();
        let (header, body) = header(message)
            .map_err(|malformed: Malformed| io::Error::new(io::ErrorKind::InvalidData, malformed))?;
        if header.opcode == opcode::DESTROY {
            Reply::new(header.unique, device.clone()).done();
            return Ok(());
        }
        dispatch(server, &header, Input::Joined(body), || Reply::new(header.unique, device.clone()));
        if matches!(share, Share::BesideRings) && is_unanswered(header.opcode) {
            let _ = poll(&mut [], Some(&FORGET_PAUSE));
        }
    }
}
