//! Requests on content: reads, writes, fsync, space, holes.

use super::replies::{answer, done};
use super::state::{Adapter, asked};
use crate::convert::allocate;
use crate::protocol::Reply;
use crate::protocol::layout::InHeader;
use crate::protocol::request::Transfer;
use crate::set_id::is_to_run;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use terrace_engine::{Durability, FsError, FsResult, Progress, Seek, Wait};
use terrace_format::Ino;
use terrace_transport::Served;
use terrace_transport::requests::{Part, Write};

/// More than the kernel asks for at once.
const MOST_READ_BYTES: u32 = 4 << 20;
/// Flags of a write request: its data are pages of the kernel's cache; the writer has no CAP_FSETID.
const WRITE_CACHE: u32 = 1 << 0;
const WRITE_KILL_SET_ID: u32 = 1 << 2;
/// Flag of a read request: a program asks for the bytes, and no page of the kernel takes them.
const READ_LOCK_OWNER: u32 = 1 << 1;

pub(super) fn read(adapter: &Adapter, asker: &InHeader, part: &Transfer, reply: Reply) {
    if is_to_run(part.flags) && adapter.changes.overtook(asker.node, part.handle) {
        return reply.error(Errno::TXTBSY);
    }
    if part.request_flags & READ_LOCK_OWNER == 0 {
        adapter.requests.served().fills_pages(Ino(asker.node));
    }
    let touch = part.flags & libc::O_NOATIME as u32 == 0;
    let part = Part {
        ino: Ino(asker.node),
        offset: part.offset,
        size: part.size.min(MOST_READ_BYTES) as usize,
        touch,
    };
    adapter.requests.read(asker.uid, part, reply);
}

/// A write under way. The bytes that the request thread has written are not written again by the waiting thread.
struct Writing {
    ino: Ino,
    offset: u64,
    flags: terrace_engine::WriteFlags,
    written: Arc<AtomicUsize>,
}

impl Writing {
    /// Writes on from the bytes that are written. The result counts all bytes of the request.
    fn go_on(&self, served: &Served, data: &[u8], wait: Wait) -> FsResult<usize> {
        let is_write_back = self.flags.pages;
        loop {
            let before = self.written.load(Ordering::Relaxed);
            let rest = data.get(before..).unwrap_or_default();
            let offset = self.offset + before as u64;
            let done = match served.fs().write_ordered(self.ino, offset, rest, self.flags, wait) {
                Ok(count) => before + count,
                Err(FsError::WouldBlock) => return Err(FsError::WouldBlock),
                // A short write; the caller meets the error when it writes the rest.
                Err(_) if before > 0 && !is_write_back => return Ok(before),
                Err(error) => return Err(error),
            };
            assert!(done <= data.len(), "{done} bytes of a request of {} are written", data.len());
            self.written.store(done, Ordering::Relaxed);
            if done >= data.len() {
                return Ok(done);
            }
            if wait != Wait::Allowed {
                return Err(FsError::WouldBlock);
            }
            if !is_write_back {
                return Ok(done);
            }
        }
    }
}

pub(super) fn write(adapter: &Adapter, asker: &InHeader, part: &Transfer, data: &[u8], reply: Reply) {
    let ino = Ino(asker.node);
    let kills = part.request_flags & WRITE_KILL_SET_ID != 0;
    let loses = kills && adapter.may_have_set_id(ino);
    let changing = loses.then(|| adapter.begin_change(ino));
    // Pages of a mapping: the kernel marks all of them clean after a short write too, so only an error
    // keeps them dirty.
    let is_write_back = part.request_flags & WRITE_CACHE != 0;
    let flags = terrace_engine::WriteFlags {
        sync: part.flags & libc::O_DSYNC as u32 != 0, // O_SYNC contains it
        kill_set_id: kills,
        pages: is_write_back,
    };
    let written = Arc::new(AtomicUsize::new(0));
    let before = Arc::clone(&written);
    let writing = Writing { ino, offset: part.offset, flags, written };
    let call = move |served: &Served, data: &[u8], wait| writing.go_on(served, data, wait);
    let least = || (!is_write_back).then(|| before.load(Ordering::Relaxed));
    let asked = Write { user: asker.uid, ino, is_synchronous: flags.sync };
    adapter.requests.write(asked, data, call, least, |result| {
        answer(reply, result, |reply, count| {
            drop(changing);
            reply.written(count as u32);
        });
    });
}

pub(super) fn fsync(adapter: &Adapter, asker: &InHeader, handle: u64, data_only: bool, reply: Reply) {
    let ino = Ino(asker.node);
    let begin = move |served: &Served| served.fs().begin_fsync_handle(ino, handle);
    let whole = move |served: &Served| served.fs().fsync_handle(ino, handle, data_only, Wait::Allowed);
    adapter.requests.sync(asked(asker, "fsync"), begin, whole, |result| done(reply, result));
}

/// Where fsync of a directory has nothing to do the kernel is told so by ENOSYS, and asks no more (decision 0033).
pub(super) fn fsyncdir(adapter: &Adapter, asker: &InHeader, reply: Reply) {
    if adapter.requests.fs().needs_no_fsyncdir() {
        return reply.error(Errno::NOSYS);
    }
    let ino = Ino(asker.node);
    let begin = move |served: &Served| served.fs().begin_fsyncdir(ino);
    let whole = move |served: &Served| served.fs().fsyncdir(ino);
    adapter.requests.sync(asked(asker, "fsyncdir"), begin, whole, |result| done(reply, result));
}

pub(super) fn fallocate(
    adapter: &Adapter,
    asker: &InHeader,
    (offset, length): (u64, u64),
    mode: u32,
    reply: Reply,
) {
    let Some(how) = allocate(mode) else {
        return reply.error(Errno::OPNOTSUPP);
    };
    let ino = Ino(asker.node);
    let (mut in_group, changing) = adapter.takes_set_id(asker, ino).unzip();
    let call = move |served: &Served, progress: &mut Progress, wait| {
        if let Some(group) = in_group {
            served.fs().lose_set_id(ino, group, wait)?;
            in_group = None;
        }
        served.fs().fallocate_turn(ino, (offset, length), how, progress, wait)
    };
    adapter.requests.in_turns(asked(asker, "fallocate"), call, |result| {
        answer(reply, result, |reply, ()| {
            drop(changing);
            reply.done();
        });
    });
}

pub(super) fn seek(adapter: &Adapter, asker: &InHeader, (offset, whence): (u64, u32), reply: Reply) {
    let what = match whence as i32 {
        libc::SEEK_DATA => Seek::Data,
        libc::SEEK_HOLE => Seek::Hole,
        _ => return reply.error(Errno::INVAL),
    };
    // The protocol's number has a sign.
    if i64::try_from(offset).is_err() {
        return reply.error(Errno::NXIO);
    }
    let ino = Ino(asker.node);
    let call = move |served: &Served, progress: &mut Progress, wait| {
        served.fs().seek_turn(ino, offset, what, progress, wait)
    };
    adapter.requests.in_turns(asked(asker, "lseek"), call, |result| {
        answer(reply, result, |reply, found| reply.place(found));
    });
}
