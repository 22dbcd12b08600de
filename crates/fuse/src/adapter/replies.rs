//! Replies: the result of a request, turned into the answer that the kernel expects.

use crate::convert::{attributes, errno};
use crate::set_id::valid;
use crate::validity::VALID;
use fuser::{
    Errno, Generation, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
};
use terrace_engine::Attributes;

/// The result of a request.
pub(super) type Answer<T> = Result<T, rustix::io::Errno>;

/// Replies that can carry an error.
pub(super) trait Refuse {
    fn refuse(self, errno: Errno);
}

macro_rules! refuse {
    ($($reply:ty),*) => { $(impl Refuse for $reply {
        fn refuse(self, errno: Errno) {
            self.error(errno);
        }
    })* };
}
refuse!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyEmpty,
    ReplyEntry,
    ReplyLseek,
    ReplyOpen,
    ReplyStatfs,
    ReplyWrite,
    ReplyXattr
);

/// Answers a request: `accept` sends the value.
pub(super) fn answer<R: Refuse, T>(reply: R, result: Answer<T>, accept: impl FnOnce(R, T)) {
    match result {
        Ok(value) => accept(reply, value),
        Err(error) => reply.refuse(errno(error)),
    }
}

/// Replies that are filled entry by entry.
pub(super) trait Listing {
    fn end(self, result: Answer<()>);
}

macro_rules! listing {
    ($($reply:ty),*) => { $(impl Listing for $reply {
        fn end(self, result: Answer<()>) {
            match result {
                Ok(()) => self.ok(),
                Err(error) => self.error(errno(error)),
            }
        }
    })* };
}
listing!(ReplyDirectory, ReplyDirectoryPlus);

pub(super) fn generation(attributes: &Attributes) -> Generation {
    Generation(attributes.generation.into())
}

/// Answers with an inode by its name.
pub(super) fn entry(reply: ReplyEntry, result: Answer<Attributes>) {
    answer(reply, result, |reply, found| {
        reply.entry_with_ttls(&valid(&found), &VALID, &attributes(&found), generation(&found));
    });
}

/// Answers without a value.
pub(super) fn done(reply: ReplyEmpty, result: Answer<()>) {
    answer(reply, result, |reply, ()| reply.ok());
}

/// Answers with the attributes of an inode.
pub(super) fn attr(reply: ReplyAttr, result: Answer<Attributes>) {
    answer(reply, result, |reply, found| reply.attr(&valid(&found), &attributes(&found)));
}

/// Answers with an extended attribute, or with its length if the caller gave no room.
pub(super) fn value(reply: ReplyXattr, size: u32, result: Answer<&[u8]>) {
    answer(reply, result, |reply, value| {
        if size == 0 {
            reply.size(value.len() as u32);
        } else if value.len() > size as usize {
            reply.error(Errno::ERANGE);
        } else {
            reply.data(value);
        }
    });
}
