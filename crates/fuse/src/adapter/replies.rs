//! Replies: the result of a request, turned into the answer that the kernel expects.

use crate::convert::entry_of;
use crate::protocol::Reply;
use rustix::io::Errno;
use terrace_engine::Attributes;
use terrace_transport::requests::ReadReply;

impl ReadReply for Reply {
    fn room(&mut self) -> Option<&mut [u8]> {
        Reply::room(self)
    }
    fn in_room(self, count: usize) {
        self.data_in_room(count);
    }
    fn bytes(self, bytes: &[u8]) {
        self.data(bytes);
    }
    fn error(self, errno: Errno) {
        Reply::error(self, errno);
    }
}

/// The result of a request.
pub(super) type Answer<T> = Result<T, Errno>;

/// Answers a request: `accept` sends the value.
pub(super) fn answer<T>(reply: Reply, result: Answer<T>, accept: impl FnOnce(Reply, T)) {
    match result {
        Ok(value) => accept(reply, value),
        Err(error) => reply.error(error),
    }
}

/// Answers with an inode by its name.
pub(super) fn entry(reply: Reply, result: Answer<Attributes>) {
    answer(reply, result, |reply, found| reply.entry(&entry_of(&found)));
}

/// Answers without a value.
pub(super) fn done(reply: Reply, result: Answer<()>) {
    answer(reply, result, |reply, ()| reply.done());
}

/// Answers with the attributes of an inode.
pub(super) fn attr(reply: Reply, result: Answer<Attributes>) {
    answer(reply, result, |reply, found| {
        let entry = entry_of(&found);
        reply.attributes(&entry.attributes, entry.attributes_valid);
    });
}

/// Answers with an extended attribute, or with its length if the caller gave no room.
pub(super) fn value(reply: Reply, size: u32, result: Answer<&[u8]>) {
    answer(reply, result, |reply, value| {
        if size == 0 {
            reply.xattr_length(value.len() as u32);
        } else if value.len() > size as usize {
            reply.error(Errno::RANGE);
        } else {
            reply.data(value);
        }
    });
}
