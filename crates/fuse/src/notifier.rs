//! Notifications: what the kernel is to forget. They go by the FUSE device, whatever way requests take.
//!
//! Rule of callers: a notification is sent while no lock is held, because the kernel may wait for a request that this
//! thread would have to answer.

use crate::fuse_device::Device;
use crate::protocol::layout::{InvalidateInodeOut, OutHeader, RetrieveOut, notification};
use rustix::io::Errno;
use std::io;
use zerocopy::IntoBytes;

/// Node of the root directory, in the protocol.
const ROOT: u64 = 1;

/// Sends notifications to the kernel.
#[derive(Debug, Clone)]
pub struct Notifier(Device);

impl Notifier {
    pub(crate) fn new(device: Device) -> Notifier {
        Notifier(device)
    }

    /// Has the kernel forget the attributes of an inode and its pages from `offset` on: `length` bytes, 0 for all of them.
    ///
    /// # Errors
    /// The kernel's. An inode that the kernel does not know is no error.
    pub fn invalidate_inode(&self, node: u64, offset: i64, length: i64) -> io::Result<()> {
        let body = InvalidateInodeOut { node, offset, length };
        self.send(notification::INVALIDATE_INODE, body.as_bytes())
    }

    /// Has the kernel send a request, of no pages of the root directory, into the queue of the calling thread's processor.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn ask_for_a_request(&self) -> io::Result<()> {
        self.send(notification::RETRIEVE, RetrieveOut { node: ROOT, ..RetrieveOut::default() }.as_bytes())
    }

    fn send(&self, code: i32, body: &[u8]) -> io::Result<()> {
        let length = (size_of::<OutHeader>() + body.len()) as u32;
        let header = OutHeader { length, error: code, unique: 0 };
        match self.0.send(&header, [body, &[]]) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
