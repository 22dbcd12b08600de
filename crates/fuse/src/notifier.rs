//! Notifications: what the kernel is to forget. They go by the FUSE device, whatever way requests take.
//!
//! Rule of callers: a notification is sent while no lock is held, because the kernel may wait for a request that this
//! thread would have to answer.

use crate::fuse_device::Device;
use crate::protocol::layout::{InvalidateInodeOut, OutHeader, RetrieveOut, notification};
use rustix::io::Errno;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::IntoBytes;

/// Numbers from here on are those of requests that the daemon asks for.
const OWN_NUMBERS: u64 = 1 << 62;

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

    /// Has the kernel send a request, of no pages of a regular file, into the queue of the calling thread's processor.
    ///
    /// # Errors
    /// The kernel's: ENOENT for a file that it has forgotten.
    pub(crate) fn ask_for_a_request(&self, node: u64) -> io::Result<()> {
        // The kernel finds the entry of a committed request by its number, which must be that of no other request. It gives
        // even numbers, from small ones on.
        static NEXT: AtomicU64 = AtomicU64::new(OWN_NUMBERS);
        let unique = NEXT.fetch_add(2, Ordering::Relaxed);
        let body = RetrieveOut { unique, node, ..RetrieveOut::default() };
        self.tell(notification::RETRIEVE, body.as_bytes())?;
        Ok(())
    }

    fn tell(&self, code: i32, body: &[u8]) -> rustix::io::Result<()> {
        let length = (size_of::<OutHeader>() + body.len()) as u32;
        let header = OutHeader { length, error: code, unique: 0 };
        self.0.send(&header, [body, &[]])
    }

    fn send(&self, code: i32, body: &[u8]) -> io::Result<()> {
        match self.tell(code, body) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
