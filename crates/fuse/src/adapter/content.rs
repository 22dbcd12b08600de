//! Requests on content: reads, writes, fsync, space, holes.

use super::replies::{answer, done};
use super::state::{Adapter, asked};
use crate::convert::{allocate, ino};
use crate::set_id::is_to_run;
use fuser::{
    Errno, FileHandle, INodeNo, OpenFlags, ReplyData, ReplyEmpty, ReplyLseek, ReplyWrite, Request, WriteFlags,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use terrace_engine::{FsError, FsResult, Progress, Seek, Wait};
use terrace_format::Ino;
use terrace_transport::Served;
use terrace_transport::requests::Part;

pub(super) fn read(
    adapter: &Adapter,
    request: &Request,
    (node, handle): (INodeNo, FileHandle),
    (offset, size): (u64, u32),
    flags: OpenFlags,
    reply: ReplyData,
) {
    if is_to_run(flags) && adapter.changes.overtook(node.0, handle.0) {
        return reply.error(Errno::ETXTBSY);
    }
    let touch = flags.0 & libc::O_NOATIME == 0;
    let part = Part { ino: ino(node), offset, size: size as usize, touch };
    adapter.requests.read(request.uid(), part, |result| {
        answer(reply, result, |reply, bytes| reply.data(bytes));
    });
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
            let done = match served.fs().write(self.ino, offset, rest, self.flags, wait) {
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

pub(super) fn write(
    adapter: &Adapter,
    request: &Request,
    (node, offset): (INodeNo, u64),
    data: &[u8],
    (write_flags, flags): (WriteFlags, OpenFlags),
    reply: ReplyWrite,
) {
    let kills = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
    let loses = kills && adapter.may_have_set_id(node);
    let changing = loses.then(|| adapter.begin_change(node));
    // Pages of a mapping: the kernel marks all of them clean after a short write too, so only an error
    // keeps them dirty.
    let is_write_back = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
    let flags = terrace_engine::WriteFlags {
        sync: flags.0 & libc::O_DSYNC != 0, // O_SYNC contains it
        kill_set_id: kills,
        pages: is_write_back,
    };
    let written = Arc::new(AtomicUsize::new(0));
    let before = Arc::clone(&written);
    let writing = Writing { ino: ino(node), offset, flags, written };
    let call = move |served: &Served, data: &[u8], wait| writing.go_on(served, data, wait);
    let least = || (!is_write_back).then(|| before.load(Ordering::Relaxed));
    adapter.requests.write((request.uid(), ino(node)), data, call, least, |result| {
        answer(reply, result, |reply, count| {
            drop(changing);
            reply.written(count as u32);
        });
    });
}

pub(super) fn fsync(
    adapter: &Adapter,
    request: &Request,
    (node, handle): (INodeNo, FileHandle),
    data_only: bool,
    reply: ReplyEmpty,
) {
    let call = move |served: &Served, wait| served.fs().fsync_handle(ino(node), handle.0, data_only, wait);
    adapter.requests.sync(asked(request, "fsync"), call, |result| done(reply, result));
}

pub(super) fn fsyncdir(adapter: &Adapter, node: INodeNo, reply: ReplyEmpty) {
    done(reply, adapter.requests.direct("fsyncdir", |served| served.fs().fsyncdir(ino(node))));
}

pub(super) fn fallocate(
    adapter: &Adapter,
    request: &Request,
    node: INodeNo,
    (offset, length): (u64, u64),
    mode: i32,
    reply: ReplyEmpty,
) {
    let Some(how) = allocate(mode) else {
        return reply.error(Errno::EOPNOTSUPP);
    };
    let (mut in_group, changing) = adapter.takes_set_id(request, node).unzip();
    let call = move |served: &Served, progress: &mut Progress, wait| {
        if let Some(group) = in_group {
            served.fs().lose_set_id(ino(node), group, wait)?;
            in_group = None;
        }
        served.fs().fallocate_turn(ino(node), (offset, length), how, progress, wait)
    };
    adapter.requests.in_turns(asked(request, "fallocate"), call, |result| {
        answer(reply, result, |reply: ReplyEmpty, ()| {
            drop(changing);
            reply.ok();
        });
    });
}

pub(super) fn lseek(
    adapter: &Adapter,
    request: &Request,
    node: INodeNo,
    (offset, whence): (i64, i32),
    reply: ReplyLseek,
) {
    let what = match whence {
        libc::SEEK_DATA => Seek::Data,
        libc::SEEK_HOLE => Seek::Hole,
        _ => return reply.error(Errno::EINVAL),
    };
    let Ok(offset) = u64::try_from(offset) else {
        return reply.error(Errno::ENXIO);
    };
    let call = move |served: &Served, progress: &mut Progress, wait| {
        served.fs().seek_turn(ino(node), offset, what, progress, wait)
    };
    adapter.requests.in_turns(asked(request, "lseek"), call, |result| {
        answer(reply, result, |reply, found| reply.offset(found as i64));
    });
}
