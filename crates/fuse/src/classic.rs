//! The classic transport: requests are read from the FUSE device, replies are written to it, one system call each.
//!
//! Invariant: a thread reads into a buffer of its own, which holds the largest request.

use crate::fuse_device::Device;
use crate::protocol::layout::opcode;
use crate::protocol::request::{Malformed, header};
use crate::protocol::{Input, Reply};
use crate::server::{Server, dispatch, is_unanswered};
use crate::uring::policy::Policy;
use rustix::event::{Timespec, poll};
use std::io;

/// Room for a request's header and arguments beside the data of the largest write.
const BESIDE_DATA_BYTES: usize = 4096;

/// A buffer for requests whose data is at most `max_write` bytes.
pub(crate) fn buffer(max_write: u32) -> Vec<u8> {
    vec![0; max_write as usize + BESIDE_DATA_BYTES]
}

/// Time between two looks for references that the kernel gives up, where the device brings nothing else.
const FORGET_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// Whether a descriptor hands out all requests, or those that rings do not bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    All,
    /// References given up by the kernel. They are collected for a while: waking this thread for each removed file takes a
    /// processor from the program or from a ring.
    BesideRings,
}

/// Serves the requests that one descriptor hands out, until the session is over.
pub(crate) fn serve(device: &Device, share: Share, server: &dyn Server, max_write: u32) -> io::Result<()> {
    let mut buffer = buffer(max_write);
    // References of many files are as much work as requests.
    let policy = (share == Share::BesideRings).then(Policy::of_this_thread);
    while let Some(length) = device.receive(&mut buffer)? {
        let message = buffer.get(..length).unwrap_or_default();
        let (header, body) = header(message)
            .map_err(|malformed: Malformed| io::Error::new(io::ErrorKind::InvalidData, malformed))?;
        if header.opcode == opcode::DESTROY {
            Reply::new(header.unique, device.clone()).done();
            return Ok(());
        }
        dispatch(server, &header, Input::Joined(body), || Reply::new(header.unique, device.clone()));
        if share == Share::BesideRings && is_unanswered(header.opcode) {
            policy.iter().for_each(Policy::before_wait);
            let _ = poll(&mut [], Some(&FORGET_PAUSE));
        }
    }
    Ok(())
}
