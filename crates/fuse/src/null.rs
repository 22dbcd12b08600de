//! A server without work of its own, with the same session as the adapter: it shows the cost of the kernel
//! path itself.
//!
//! Holds one file, `file`, that reads as zeros and takes every write; fsync is answered. Used by the bench.

use crate::protocol::init::Capability;
use crate::protocol::layout::InHeader;
use crate::protocol::{Operation, Reply};
use crate::server::{OF_A_FILE_SYSTEM, Server};
use crate::single_file::SingleFile;
use std::cell::RefCell;

/// Name of the one file.
pub const FILE_NAME: &str = "file";

thread_local! {
    static ZEROS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The null server.
#[derive(Debug)]
pub struct NullServer {
    /// Size of the file in bytes.
    pub size_bytes: u64,
}

impl Server for NullServer {
    fn wanted(&self) -> &'static [Capability] {
        OF_A_FILE_SYSTEM
    }

    fn serve(&self, asker: &InHeader, operation: Operation<'_>, mut reply: Reply) {
        match operation {
            Operation::Read(part) => {
                let count = u64::from(part.size).min(self.size_bytes.saturating_sub(part.offset)) as usize;
                if let Some(room) = reply.room().and_then(|room| room.get_mut(..count)) {
                    room.fill(0);
                    return reply.data_in_room(count);
                }
                ZEROS.with_borrow_mut(|zeros| {
                    if zeros.len() < count {
                        zeros.resize(count, 0);
                    }
                    reply.data(zeros.get(..count).unwrap_or_default());
                });
            }
            Operation::Write(part, _) => reply.written(part.size),
            Operation::Fsync { .. } => reply.done(),
            other => {
                let file = SingleFile { name: FILE_NAME, size_bytes: self.size_bytes, mode: 0o644 };
                file.serve(asker, other, reply);
            }
        }
    }

    fn forget(&self, _node: u64, _lookups: u64) {}
}
