//! The classic transport: requests are read from the FUSE device, replies are written to it, one system call each.
//!
//! Invariant: a thread reads into a buffer of its own, which holds the largest request.

use crate::protocol::layout::{InHeader, opcode};
use crate::protocol::request::{Malformed, header};
use crate::protocol::{Input, Operation, Reply};
use crate::session::Server;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Room for a request's header and arguments beside the data of the largest write.
const BESIDE_DATA_BYTES: usize = 4096;

/// The FUSE device of a session, or a further descriptor of it. A reply goes back by the device that its request came
/// from.
#[derive(Debug, Clone)]
pub(crate) struct Device(Arc<OwnedFd>);

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Device {
    pub(crate) fn new(descriptor: OwnedFd) -> Device {
        Device(Arc::new(descriptor))
    }

    /// A further descriptor: the kernel hands it the requests that it reads, and no other thread waits for its lock.
    pub(crate) fn further(&self) -> io::Result<Device> {
        let new = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let own = self.0.as_raw_fd() as u32;
        const CLONE: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u32>(229, 0);
        // SAFETY: FUSE_DEV_IOC_CLONE takes a pointer to a descriptor's number, reads it and keeps nothing.
        #[allow(unsafe_code)]
        let cloned = unsafe { rustix::ioctl::ioctl(&new, rustix::ioctl::Setter::<CLONE, u32>::new(own)) };
        cloned?;
        Ok(Device::new(new))
    }

    /// Writes a reply or a notification.
    pub(crate) fn send(&self, parts: &[IoSlice<'_>]) -> rustix::io::Result<()> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let sent = rustix::io::writev(&self.0, parts)?;
        // The kernel takes a message whole, or refuses it.
        debug_assert_eq!(sent, length, "bytes of a message that the kernel took");
        Ok(())
    }

    /// Reads the next request; `None` when the session is over.
    pub(crate) fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        loop {
            match rustix::io::read(&self.0, &mut *buffer) {
                Ok(length) => return Ok(buffer.get(..length)),
                // An interrupted caller took its request back, or a signal came.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// A buffer for requests whose data is at most `max_write` bytes.
pub(crate) fn buffer(max_write: u32) -> Vec<u8> {
    vec![0; max_write as usize + BESIDE_DATA_BYTES]
}

/// Serves the requests that one descriptor hands out, until the session is over.
pub(crate) fn serve(device: &Device, server: &dyn Server, max_write: u32) -> io::Result<()> {
    let mut buffer = buffer(max_write);
    while let Some(message) = device.receive(&mut buffer)? {
        let (header, body) = header(message)
            .map_err(|malformed: Malformed| io::Error::new(io::ErrorKind::InvalidData, malformed))?;
        if header.opcode == opcode::DESTROY {
            Reply::new(header.unique, device.clone()).done();
            return Ok(());
        }
        dispatch(server, &header, Input::Joined(body), || Reply::new(header.unique, device.clone()));
    }
    Ok(())
}

/// Decodes a request and has it answered.
pub(crate) fn dispatch(
    server: &dyn Server,
    header: &InHeader,
    input: Input<'_>,
    reply: impl FnOnce() -> Reply,
) {
    match Operation::decode(header.opcode, input) {
        Ok(Operation::Forget { lookups }) => server.forget(header.node, lookups),
        Ok(Operation::BatchForget(forgets)) => {
            forgets.iter().for_each(|one| server.forget(one.node, one.lookups));
        }
        // The kernel then waits for each request that it has handed out.
        Ok(Operation::Unknown | Operation::Interrupt { .. }) => reply().error(Errno::NOSYS),
        Ok(operation) => server.serve(header, operation, reply()),
        // Nobody waits for an answer.
        Err(Malformed) if matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET) => {}
        Err(malformed) => {
            tracing::error!(
                opcode = header.opcode,
                unique = header.unique,
                "a malformed request; answered EINVAL"
            );
            reply().error(malformed.into());
        }
    }
}
