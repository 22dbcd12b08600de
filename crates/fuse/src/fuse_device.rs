//! The FUSE device of a session: messages from the kernel are read from it, messages to the kernel are written to it.

use crate::protocol::layout::OutHeader;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use zerocopy::IntoBytes;

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

    /// Writes a message: its header and the parts behind it.
    pub(crate) fn send(&self, header: &OutHeader, [first, second]: [&[u8]; 2]) -> rustix::io::Result<()> {
        let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(first), IoSlice::new(second)];
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let sent = rustix::io::writev(&self.0, &parts)?;
        // The kernel takes a message whole, or refuses it.
        debug_assert_eq!(sent, length, "bytes of a message that the kernel took");
        Ok(())
    }

    /// Writes the reply to a request.
    pub(crate) fn reply(&self, header: &OutHeader, parts: [&[u8]; 2]) {
        match self.send(header, parts) {
            // The caller is gone with its connection.
            Ok(()) | Err(Errno::NOENT | Errno::NODEV) => {}
            Err(errno) => {
                let OutHeader { length, unique, .. } = header;
                tracing::error!(unique, length, %errno, "the kernel refused a reply");
            }
        }
    }

    /// Reads the next request, and gives its length; `None` when the session is over.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.0, &mut *buffer) {
                Ok(length) => return Ok(Some(length)),
                // An interrupted caller took its request back, or a signal came.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}
