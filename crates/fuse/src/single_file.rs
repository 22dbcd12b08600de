//! The names and attributes of a server that has one file in its root.

use crate::protocol::layout::{Attributes, InHeader};
use crate::protocol::reply::Entry;
use crate::protocol::{Listing, Operation, Reply};
use crate::validity::VALID;
use rustix::io::Errno;

/// Node of the root directory, in the protocol.
const ROOT: u64 = 1;
/// Node of the file.
pub(crate) const FILE: u64 = 2;
/// Flags of the open file: direct I/O, no request at its close, writes side by side.
pub(crate) const OPEN_FLAGS: u32 = 1 << 0 | 1 << 5 | 1 << 6;
const BLOCK_BYTES: u32 = 4096;

/// The one file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SingleFile {
    /// Its name.
    pub name: &'static str,
    /// Bytes.
    pub size_bytes: u64,
    /// Permissions.
    pub mode: u32,
}

impl SingleFile {
    pub(crate) fn attributes(&self, node: u64) -> Attributes {
        let is_directory = node == ROOT;
        let size = if is_directory { 0 } else { self.size_bytes };
        Attributes {
            ino: node,
            size,
            blocks: size.div_ceil(512),
            mode: if is_directory { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | self.mode },
            nlink: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            blksize: BLOCK_BYTES,
            ..Attributes::default()
        }
    }

    /// Answers requests on names, attributes and open files.
    pub(crate) fn serve(&self, asker: &InHeader, operation: Operation<'_>, reply: Reply) {
        match operation {
            Operation::Lookup { name } if asker.node == ROOT && name == self.name.as_bytes() => {
                let attributes = self.attributes(FILE);
                reply.entry(&Entry { generation: 1, attributes, attributes_valid: VALID, name_valid: VALID });
            }
            Operation::Lookup { .. } => reply.absent(VALID),
            Operation::GetAttributes => reply.attributes(&self.attributes(asker.node), VALID),
            Operation::Open { .. } => reply.opened(0, OPEN_FLAGS),
            Operation::OpenDirectory => reply.opened(0, 0),
            Operation::Release { .. } | Operation::ReleaseDirectory | Operation::Flush => reply.done(),
            Operation::ReadDirectory { cookie, size } => {
                let mut listing = Listing::new(reply, size);
                let kind = libc::S_IFREG >> 12;
                if cookie > 0 || listing.add(self.name.as_bytes(), (FILE, kind, 1), None) {
                    listing.done();
                } else {
                    listing.error(Errno::INVAL);
                }
            }
            _ => reply.error(Errno::NOSYS),
        }
    }
}
