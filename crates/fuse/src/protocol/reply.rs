//! Encodes replies. A [`Reply`] answers one request, once, from any thread.
//!
//! Invariants: a request gets exactly one reply, because each answer takes the `Reply` by value and a `Reply` that is
//! dropped without an answer answers EIO; a reply is as long as its header says.

use super::layout::*;
use crate::fuse_device::Device;
use crate::uring::ticket::Ticket;
use rustix::io::Errno;
use std::time::Duration;
use zerocopy::{Immutable, IntoBytes};

/// The answer to a request that is still to be given.
pub struct Reply {
    unique: u64,
    /// `None` after the answer.
    port: Option<Port>,
}

/// The way back.
enum Port {
    Device(Device),
    Entry(Ticket),
}

/// A time for which the kernel may remember a name or attributes, in the form of the protocol.
fn validity(time: Duration) -> (u64, u32) {
    (time.as_secs(), time.subsec_nanos())
}

/// An inode as a reply tells of it.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Tells apart the files that have had the same number.
    pub generation: u64,
    /// Its attributes; the number of a file is its node, too.
    pub attributes: Attributes,
    /// The time for which the kernel may remember its attributes.
    pub attributes_valid: Duration,
    /// As above, for its name.
    pub name_valid: Duration,
}

impl Entry {
    fn encoded(&self) -> EntryOut {
        let (entry_valid, entry_valid_ns) = validity(self.name_valid);
        let (attributes_valid, attributes_valid_ns) = validity(self.attributes_valid);
        EntryOut {
            node: self.attributes.ino,
            generation: self.generation,
            entry_valid,
            attributes_valid,
            entry_valid_ns,
            attributes_valid_ns,
            attributes: self.attributes,
        }
    }
}

impl Reply {
    /// The reply to the request of this number that came from a device.
    pub(crate) fn new(unique: u64, device: Device) -> Reply {
        Reply { unique, port: Some(Port::Device(device)) }
    }

    /// The reply to the request of this number that came in an entry of a ring.
    pub(crate) fn in_entry(unique: u64, ticket: Ticket) -> Reply {
        Reply { unique, port: Some(Port::Entry(ticket)) }
    }

    /// Sends the header and the parts behind it.
    fn send(mut self, error: i32, parts: [&[u8]; 2]) {
        if let Some(port) = self.port.take() {
            send(port, self.unique, error, parts);
        }
    }

    fn structure<T: IntoBytes + Immutable>(self, structure: &T) {
        self.send(0, [structure.as_bytes(), &[]]);
    }

    /// The answer to the kernel's first request.
    pub fn first(self, answer: &InitOut) {
        self.structure(answer);
    }

    /// An error.
    pub fn error(self, errno: Errno) {
        self.send(-errno.raw_os_error(), [&[]; 2]);
    }

    /// Done, without a value.
    pub fn done(self) {
        self.send(0, [&[]; 2]);
    }

    /// An inode, by its name.
    pub fn entry(self, entry: &Entry) {
        self.structure(&entry.encoded());
    }

    /// No such name, which the kernel may remember.
    pub fn absent(self, valid: Duration) {
        let (entry_valid, entry_valid_ns) = validity(valid);
        self.structure(&EntryOut { entry_valid, entry_valid_ns, ..EntryOut::default() });
    }

    /// The attributes of an inode.
    pub fn attributes(self, attributes: &Attributes, valid: Duration) {
        let (valid, valid_ns) = validity(valid);
        self.structure(&AttributesOut { valid, valid_ns, unused: 0, attributes: *attributes });
    }

    /// An open file.
    pub fn opened(self, handle: u64, open_flags: u32) {
        self.structure(&OpenOut { handle, open_flags, backing: 0 });
    }

    /// A file that was made, and is open.
    pub fn created(self, entry: &Entry, handle: u64, open_flags: u32) {
        let open = OpenOut { handle, open_flags, backing: 0 };
        self.structure(&CreateOut { entry: entry.encoded(), open });
    }

    /// Bytes that were read, the target of a symbolic link, an extended attribute.
    pub fn data(self, bytes: &[u8]) {
        self.send(0, [bytes, &[]]);
    }

    /// Room for bytes to be read into, where the answer has such: then [`Self::data_in_room`] sends them without a copy.
    pub fn room(&mut self) -> Option<&mut [u8]> {
        match self.port.as_mut()? {
            Port::Entry(ticket) => ticket.room(),
            Port::Device(_) => None,
        }
    }

    /// The first `count` bytes of [`Self::room`].
    pub fn data_in_room(mut self, count: usize) {
        match self.port.take() {
            Some(Port::Entry(ticket)) => ticket.send_room(header(self.unique, 0, count), count),
            // Without room no bytes can lie there: the request is answered EIO.
            port => self.port = port,
        }
    }

    /// The number of bytes that were written.
    pub fn written(self, size: u32) {
        self.structure(&WriteOut { size, unused: 0 });
    }

    /// The length of an extended attribute or of a list of them.
    pub fn xattr_length(self, size: u32) {
        self.structure(&XattrOut { size, unused: 0 });
    }

    /// A place in a file.
    pub fn place(self, offset: u64) {
        self.structure(&SeekOut { offset });
    }

    /// The space of the file system.
    pub fn space(self, space: &StatFsOut) {
        self.structure(space);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(port) = self.port.take() {
            tracing::error!(unique = self.unique, "a request was not answered; answered EIO");
            send(port, self.unique, -Errno::IO.raw_os_error(), [&[]; 2]);
        }
    }
}

/// The header of an answer with so many bytes behind it.
fn header(unique: u64, error: i32, behind: usize) -> OutHeader {
    OutHeader { length: u32::try_from(size_of::<OutHeader>() + behind).unwrap_or(u32::MAX), error, unique }
}

fn send(port: Port, unique: u64, error: i32, parts: [&[u8]; 2]) {
    let header = header(unique, error, parts.iter().map(|part| part.len()).sum());
    match port {
        Port::Entry(ticket) => ticket.send(header, parts),
        Port::Device(device) => device.reply(&header, parts),
    }
}

/// A listing of a directory that is filled entry by entry.
pub struct Listing {
    reply: Reply,
    bytes: Vec<u8>,
    /// Bytes that the caller takes.
    most: usize,
}

impl Listing {
    /// An empty listing of at most `most` bytes.
    pub fn new(reply: Reply, most: u32) -> Listing {
        // Room for a page; a long listing grows.
        Listing { reply, bytes: Vec::with_capacity((most as usize).min(4096)), most: most as usize }
    }

    /// Adds a name, with its inode for a listing that has them. `kind`: the upper four bits of the mode. `cookie`: where
    /// a listing goes on behind this name. False when there is no room.
    #[must_use]
    pub fn add(&mut self, name: &[u8], (ino, kind, cookie): (u64, u32, u64), entry: Option<&Entry>) -> bool {
        let entry = entry.map(Entry::encoded);
        let before = entry.as_ref().map_or(&[][..], |entry| entry.as_bytes());
        let dirent = Dirent { ino, cookie, name_length: name.len() as u32, kind };
        let length = before.len() + (size_of::<Dirent>() + name.len()).next_multiple_of(8);
        if self.bytes.len() + length > self.most {
            return false;
        }
        let end = self.bytes.len() + length;
        self.bytes.extend_from_slice(before);
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }

    /// Sends the listing.
    pub fn done(self) {
        self.reply.data(&self.bytes);
    }

    /// Sends an error instead.
    pub fn error(self, errno: Errno) {
        self.reply.error(errno);
    }
}
