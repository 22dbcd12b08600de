//! `fuser::Filesystem` over `Engine`: each handler turns arguments into a call and the result into a reply.
//!
//! Every call runs first in the request thread with `Wait::Never`; when it answers `WouldBlock` the request,
//! its data copied, goes to a thread that may wait (design L2). See [`Adapter::attempt`]. Reads may wait in
//! request threads too, as long as enough free request threads are left ([`crate::waiting::Here`]). A long
//! request is done in turns ([`Adapter::in_turns`]).
//!
//! Kernel caching. The daemon is the only writer, so names (absent ones too) and attributes are valid for a
//! day; the kernel itself invalidates what its own requests change: size, blocks, mtime and ctime after
//! writes, atime after reads that reach the daemon, a directory after a change in it. Migration changes
//! neither names nor attributes. Two cases need more: the mode of a file with set-id bits is not remembered
//! ([`crate::set_id`]); and if a file was open for direct I/O, the kernel's pages of it are dropped before
//! the first cached open is answered (decision 0020).

use crate::convert::{allocate, attributes, errno, file_type, ino, open_flags, set_time, xattr_mode};
use crate::held::PACE;
use crate::long::{Long, Turn};
use crate::session;
use crate::set_id::{Changes, Changing, Rights, has_set_id, is_to_run, valid};
use crate::validity::VALID;
use crate::waiting::Waiting;
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    IoctlFlags, KernelConfig, LockOwner, Notifier, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::cell::{OnceCell, RefCell};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;
use terrace_engine::{
    Attributes, Caller, Engine, FsError, FsResult, OpenMode, Progress, Seek, SetAttributes, Space, Wait,
};
use terrace_format::Ino;
use terrace_runtime::{Clock, SystemClock};

/// Extended attribute of every inode, in no listing, with the path of the daemon's control socket. For names
/// that begin with `system.` the kernel does not read the inode first, so the answer comes even if the inode
/// cannot be read.
pub const CONTROL_XATTR: &str = "system.terrace_control";

/// The attribute's name until 2026.
pub const EARLIER_CONTROL_XATTR: &str = "terrace.control";

thread_local! {
    /// A request thread's buffer for reads.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The kernel's requests, answered by a file system.
pub struct Adapter {
    fs: Arc<Engine>,
    waiting: Option<Waiting>,
    /// Lives as long as the session; all other holders are weak references.
    _kernel: Arc<OnceLock<Notifier>>,
    changes: Arc<Changes>,
    control: Vec<u8>,
}

/// Runs a piece of a handler; a panic becomes EIO for that request.
fn guarded<T>(operation: &'static str, body: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        tracing::error!(operation, "request panicked; answered EIO");
        Err(Errno::EIO)
    })
}

/// The result of a call; `None` when the call would have to wait.
fn unless_it_waits<T>(result: FsResult<T>) -> Result<Option<T>, Errno> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(FsError::WouldBlock) => Ok(None),
        Err(error) => Err(errno(&error)),
    }
}

fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid() }
}

fn generation(attributes: &Attributes) -> Generation {
    Generation(attributes.generation.into())
}

/// Replies that can carry an error.
trait Refuse {
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

fn answer<R: Refuse, T>(reply: R, result: Result<T, Errno>, accept: impl FnOnce(R, T)) {
    match result {
        Ok(value) => accept(reply, value),
        Err(errno) => reply.refuse(errno),
    }
}

/// Replies that are filled entry by entry.
trait Listing {
    fn end(self, result: Result<(), Errno>);
}

macro_rules! listing {
    ($($reply:ty),*) => { $(impl Listing for $reply {
        fn end(self, result: Result<(), Errno>) {
            match result {
                Ok(()) => self.ok(),
                Err(errno) => self.error(errno),
            }
        }
    })* };
}
listing!(ReplyDirectory, ReplyDirectoryPlus);

fn entry(reply: ReplyEntry, found: Attributes) {
    reply.entry_with_ttls(&valid(&found), &VALID, &attributes(&found), generation(&found));
}

fn done(reply: ReplyEmpty, (): ()) {
    reply.ok();
}

impl Adapter {
    /// An adapter over `fs`. `control` is the value of [`CONTROL_XATTR`]; `kernel` is set when the session
    /// has begun.
    pub fn new(fs: Arc<Engine>, control: Vec<u8>, kernel: Arc<OnceLock<Notifier>>) -> Adapter {
        // A weak reference: a strong one would keep the session's FUSE device open.
        let notifier = Arc::downgrade(&kernel);
        // Runs in a waiting thread before the file's only open is answered, so no request holds a page of the
        // file.
        fs.set_drop_pages(move |number| {
            let notifier = notifier.upgrade();
            let kernel = notifier.as_ref().and_then(|notifier| notifier.get());
            kernel.is_some_and(|kernel| kernel.inval_inode(INodeNo(number.0), 0, 0).is_ok())
        });
        let waiting = Some(Waiting::new(fs.buffer_bytes()));
        Adapter { fs, waiting, _kernel: kernel, changes: Arc::default(), control }
    }

    /// Runs `call` in this thread, or, when it would have to wait, in a waiting thread with its own copy of
    /// `payload`; replies from there.
    fn attempt<R, T, C, A>(
        &self,
        request: &Request,
        operation: &'static str,
        payload: &[u8],
        reply: R,
        call: C,
        accept: A,
    ) where
        R: Refuse + Send + 'static,
        C: Fn(&Engine, &[u8], Wait) -> FsResult<T> + Send + 'static,
        A: FnOnce(R, T) + Send + 'static,
    {
        let first = guarded(operation, || unless_it_waits(call(&self.fs, payload, Wait::Never)));
        match (first, &self.waiting) {
            (Ok(Some(value)), _) => accept(reply, value),
            (Err(errno), _) => reply.refuse(errno),
            (Ok(None), None) => reply.refuse(Errno::EIO),
            (Ok(None), Some(waiting)) => {
                // The payload is never cut: a value or a name is short.
                let (fs, payload) = (Arc::clone(&self.fs), waiting.hold(request.uid(), payload, usize::MAX));
                let waits = move || {
                    let result = guarded(operation, || {
                        call(&fs, payload.bytes(), Wait::Allowed).map_err(|error| errno(&error))
                    });
                    answer(reply, result, accept);
                };
                waiting.changes.submit(request.uid(), Box::new(waits));
            }
        }
    }

    /// Runs a long request, one turn of `call` after the other: the first in this thread, the later turns in
    /// the pool in which users take turns; replies from there.
    fn in_turns<R, T, C, A>(
        &self,
        request: &Request,
        operation: &'static str,
        reply: R,
        mut call: C,
        accept: A,
    ) where
        R: Refuse + Send + 'static,
        T: 'static,
        C: FnMut(&Engine, &mut Progress, Wait) -> FsResult<T> + Send + 'static,
        A: FnOnce(R, T) + Send + 'static,
    {
        let Some(waiting) = &self.waiting else { return reply.refuse(Errno::EIO) };
        let (fs, mut progress) = (Arc::clone(&self.fs), Progress::default());
        let turn = move |wait| {
            guarded(operation, || {
                Turn::of(call(&fs, &mut progress, wait), wait).map_err(|error| errno(&error))
            })
        };
        waiting.begin(Long::new(request.uid(), turn, move |result| answer(reply, result, accept)));
    }

    /// As [`Self::attempt`], for writes. `written`: bytes of the payload that the first attempt has written,
    /// `None` when the rest must not be cut.
    #[allow(clippy::too_many_arguments)]
    fn attempt_write<C, A>(
        &self,
        request: &Request,
        node: INodeNo,
        payload: &[u8],
        reply: ReplyWrite,
        call: C,
        written: impl FnOnce() -> Option<usize>,
        accept: A,
    ) where
        C: Fn(&Engine, &[u8], Wait) -> FsResult<usize> + Send + 'static,
        A: FnOnce(ReplyWrite, usize) + Send + 'static,
    {
        // A write goes behind the waiting writes of its file: in this thread it would block at the file's
        // lock, and a request thread would be lost.
        let is_behind = self.waiting.as_ref().is_some_and(|waiting| waiting.writes.stand_in_line(node.0));
        let first = match is_behind {
            true => Ok(None),
            false => guarded("write", || unless_it_waits(call(&self.fs, payload, Wait::Never))),
        };
        match (first, &self.waiting) {
            (Ok(Some(count)), _) => accept(reply, count),
            (Err(errno), _) => reply.refuse(errno),
            (Ok(None), None) => reply.refuse(Errno::EIO),
            (Ok(None), Some(waiting)) => {
                let least = written().unwrap_or(usize::MAX);
                let (fs, payload) = (Arc::clone(&self.fs), waiting.hold(request.uid(), payload, least));
                let (user, paced) = (request.uid(), payload.is_cut().then(|| waiting.paced()));
                waiting.writes.submit(
                    request.uid(),
                    node.0,
                    move |wait| guarded("write", || unless_it_waits(call(&fs, payload.bytes(), wait))),
                    move |result| match paced {
                        None => answer(reply, result, accept),
                        Some(paced) => {
                            let later = move || {
                                SystemClock::default().sleep(PACE);
                                answer(reply, result, accept);
                            };
                            paced.submit(user, Box::new(later));
                        }
                    },
                );
            }
        }
    }

    /// Reads in this thread and replies; gives the reply back when the read would have to wait.
    fn read_here(
        &self,
        node: INodeNo,
        (offset, size, touch): (u64, usize, bool),
        wait: Wait,
        reply: ReplyData,
    ) -> Option<ReplyData> {
        READ_BUFFER.with_borrow_mut(|buffer| {
            let read = || unless_it_waits(self.fs.read_to(ino(node), offset, size, buffer, touch, wait));
            match guarded("read", read) {
                Ok(None) => return Some(reply),
                Ok(Some(count)) => reply.data(&buffer[..count]),
                Err(errno) => reply.error(errno),
            }
            None
        })
    }

    /// As [`Self::attempt`], for listings: entries are collected in the reply itself. A listing that would
    /// have to wait leaves the reply empty.
    fn list<R, C>(&self, request: &Request, operation: &'static str, mut reply: R, read: C)
    where
        R: Listing + Send + 'static,
        C: Fn(&Engine, Wait, &mut R) -> FsResult<()> + Send + 'static,
    {
        let first = guarded(operation, || match read(&self.fs, Wait::Never, &mut reply) {
            Ok(()) => Ok(true),
            Err(FsError::WouldBlock) => Ok(false),
            Err(error) => Err(errno(&error)),
        });
        match (first, &self.waiting) {
            (Ok(true), _) => reply.end(Ok(())),
            (Err(errno), _) => reply.end(Err(errno)),
            (Ok(false), None) => reply.end(Err(Errno::EIO)),
            (Ok(false), Some(waiting)) => {
                let fs = Arc::clone(&self.fs);
                let waits = move || {
                    let listed = || read(&fs, Wait::Allowed, &mut reply).map_err(|error| errno(&error));
                    let result = guarded(operation, listed);
                    reply.end(result);
                };
                waiting.changes.submit(request.uid(), Box::new(waits));
            }
        }
    }

    /// Runs a call that never waits.
    fn direct<T>(
        &self,
        operation: &'static str,
        call: impl FnOnce(&Engine) -> FsResult<T>,
    ) -> Result<T, Errno> {
        guarded(operation, || call(&self.fs).map_err(|error| errno(&error)))
    }

    /// Attributes of a file that may have set-id bits to lose; `None` when it has no such bits. The kernel
    /// allows no change of the mode during a change of the content.
    fn set_id_file(&self, node: INodeNo) -> Option<Result<Attributes, Errno>> {
        let found = self.direct("getattr", |fs| fs.try_getattr(ino(node), Wait::Never));
        // If the attributes cannot be read without waiting, the file may have set-id bits.
        if found.as_ref().is_ok_and(|found| !has_set_id(found)) { None } else { Some(found) }
    }

    /// For a caller that changes content: `None` when no set-id bits are lost, else whether the caller is in
    /// the file's group.
    fn takes_set_id(&self, request: &Request, node: INodeNo) -> Option<(bool, Changing)> {
        let found = self.set_id_file(node)?;
        let rights = Rights::of(request);
        if rights.keeps_set_id {
            return None;
        }
        Some((found.is_ok_and(|found| rights.is_in(found.gid)), self.changes.begin(&self.fs, node.0)))
    }
}

fn value_reply(reply: ReplyXattr, size: u32, value: &[u8]) {
    if size == 0 {
        reply.size(value.len() as u32);
    } else if value.len() > size as usize {
        reply.error(Errno::ERANGE);
    } else {
        reply.data(value);
    }
}

/// A create under way. When a create leaves the request thread, the file that it made is not made again: with
/// O_EXCL the create would find its own file and fail.
struct Creation {
    parent: Ino,
    mode: u32,
    flags: i32,
    caller: Caller,
    /// The file, with a lookup reference, and whether it is to be truncated.
    entry: OnceCell<(Attributes, bool)>,
}

impl Creation {
    fn new(parent: Ino, mode: u32, flags: i32, caller: Caller) -> Creation {
        Creation { parent, mode, flags, caller, entry: OnceCell::new() }
    }

    /// Makes the file or looks it up.
    fn entry(&self, fs: &Engine, name: &[u8], wait: Wait) -> FsResult<(Attributes, bool)> {
        if let Some(entry) = self.entry.get() {
            return Ok(*entry);
        }
        let entry = match fs.mknod(self.parent, name, self.mode, 0, self.caller, wait) {
            Err(FsError::Exists) if self.flags & libc::O_EXCL == 0 => {
                (fs.try_lookup(self.parent, name, wait)?, self.flags & libc::O_TRUNC != 0)
            }
            made => (made?, false),
        };
        Ok(*self.entry.get_or_init(|| entry))
    }

    /// Makes the file or looks it up, and opens it. After an error the lookup reference is given back, unless
    /// the error is only that the open would have to wait.
    fn open(&self, fs: &Engine, name: &[u8], wait: Wait) -> FsResult<(Attributes, OpenMode)> {
        let (found, truncate) = self.entry(fs, name, wait)?;
        match fs.open(found.ino, truncate, wants_write(OpenFlags(self.flags)), wait) {
            Ok(open_mode) => Ok((found, open_mode)),
            Err(FsError::WouldBlock) if wait != Wait::Allowed => Err(FsError::WouldBlock),
            Err(error) => {
                fs.forget(found.ino, 1);
                Err(error)
            }
        }
    }
}

fn wants_write(flags: OpenFlags) -> bool {
    flags.acc_mode() != OpenAccMode::O_RDONLY
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        session::negotiate(config)
    }

    /// After the last request: waits until the waiting threads have answered their requests.
    fn destroy(&mut self) {
        self.waiting = None;
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let call = move |fs: &Engine, name: &[u8], wait| match fs.try_lookup(ino(parent), name, wait) {
            Err(FsError::NotFound) => Ok(None),
            found => found.map(Some),
        };
        self.attempt(request, "lookup", name.as_bytes(), reply, call, |reply, found| match found {
            Some(found) => entry(reply, found),
            None => session::absent(reply),
        });
    }

    fn forget(&self, _request: &Request, node: INodeNo, count: u64) {
        self.changes.forget(node.0);
        let _ = self.direct("forget", |fs| {
            fs.forget(ino(node), count);
            Ok(())
        });
    }

    fn getattr(&self, request: &Request, node: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let call = move |fs: &Engine, _: &[u8], wait| fs.try_getattr(ino(node), wait);
        self.attempt(request, "getattr", &[], reply, call, |reply, found| {
            reply.attr(&valid(&found), &attributes(&found));
        });
    }

    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (Some(atime), Some(mtime)) = (set_time(atime), set_time(mtime)) else {
            return reply.error(Errno::EINVAL);
        };
        let has_set_id = size.is_some() && self.set_id_file(node).is_some();
        let loss = has_set_id.then(|| self.takes_set_id(request, node)).flatten();
        let change = SetAttributes {
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            atime,
            mtime,
            // Without set-id bits the flag removes file capabilities, which a truncation by any user removes.
            kill_set_id: size.is_some() && (loss.is_some() || !has_set_id),
        };
        let call = move |fs: &Engine, progress: &mut Progress, wait| {
            fs.setattr_turn(ino(node), &change, progress, wait)
        };
        self.in_turns(request, "setattr", reply, call, |reply: ReplyAttr, found: Attributes| {
            drop(loss);
            reply.attr(&valid(&found), &attributes(&found));
        });
    }

    fn readlink(&self, request: &Request, node: INodeNo, reply: ReplyData) {
        let call = move |fs: &Engine, _: &[u8], wait| fs.try_readlink(ino(node), wait);
        self.attempt(request, "readlink", &[], reply, call, |reply, target: Vec<u8>| reply.data(&target));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let caller = caller(request);
        let call =
            move |fs: &Engine, name: &[u8], wait| fs.mknod(ino(parent), name, mode, rdev, caller, wait);
        self.attempt(request, "mknod", name.as_bytes(), reply, call, entry);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let caller = caller(request);
        let call =
            move |fs: &Engine, name: &[u8], wait| fs.mkdir(ino(parent), name, mode & 0o7777, caller, wait);
        self.attempt(request, "mkdir", name.as_bytes(), reply, call, entry);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let call = move |fs: &Engine, name: &[u8], wait| fs.unlink(ino(parent), name, wait);
        self.attempt(request, "unlink", name.as_bytes(), reply, call, done);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let call = move |fs: &Engine, name: &[u8], wait| fs.rmdir(ino(parent), name, wait);
        self.attempt(request, "rmdir", name.as_bytes(), reply, call, done);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (caller, target) = (caller(request), target.as_os_str().as_bytes().to_vec());
        let call = move |fs: &Engine, name: &[u8], wait| fs.symlink(ino(parent), name, &target, caller, wait);
        self.attempt(request, "symlink", name.as_bytes(), reply, call, entry);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !RenameFlags::RENAME_NOREPLACE.contains(flags) {
            return reply.error(Errno::EINVAL);
        }
        let (new_name, no_replace) = (new_name.as_bytes().to_vec(), !flags.is_empty());
        let call = move |fs: &Engine, name: &[u8], wait| {
            fs.rename(ino(parent), name, ino(new_parent), &new_name, no_replace, wait)
        };
        self.attempt(request, "rename", name.as_bytes(), reply, call, done);
    }

    fn link(&self, request: &Request, node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let call = move |fs: &Engine, name: &[u8], wait| fs.link(ino(node), ino(parent), name, wait);
        self.attempt(request, "link", name.as_bytes(), reply, call, entry);
    }

    /// O_TRUNC does not come here: the kernel sends a setattr after the open (see `negotiate`).
    fn open(&self, request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let handle = self.fs.new_handle();
        if is_to_run(flags) && self.changes.restarts(node.0, request.pid()) {
            return reply.error(Errno::ESTALE);
        }
        let call = move |fs: &Engine, _: &[u8], wait| fs.open(ino(node), false, wants_write(flags), wait);
        self.attempt(request, "open", &[], reply, call, move |reply, mode| {
            reply.opened(FileHandle(handle), open_flags(mode));
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let mode = libc::S_IFREG | (mode & 0o7777);
        let creation = Creation::new(ino(parent), mode, flags, caller(request));
        let call = move |fs: &Engine, name: &[u8], wait| creation.open(fs, name, wait);
        let handle = self.fs.new_handle();
        let accept = move |reply: ReplyCreate, (found, open_mode): (Attributes, OpenMode)| {
            let flags = open_flags(open_mode);
            let valid = valid(&found);
            reply.created(&valid, &attributes(&found), generation(&found), FileHandle(handle), flags);
        };
        self.attempt(request, "create", name.as_bytes(), reply, call, accept);
    }

    fn read(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if is_to_run(flags) && self.changes.overtook(node.0, handle.0) {
            return reply.error(Errno::ETXTBSY);
        }
        let (size, touch) = (size as usize, flags.0 & libc::O_NOATIME == 0);
        let asked = (offset, size, touch);
        let Some(reply) = self.read_here(node, asked, Wait::Never, reply) else { return };
        let Some(waiting) = &self.waiting else { return reply.error(Errno::EIO) };
        if let Some(_allowed) = waiting.here.enter() {
            if let Some(reply) = self.read_here(node, asked, Wait::Allowed, reply) {
                reply.error(Errno::EIO);
            }
            return;
        }
        let fs = Arc::clone(&self.fs);
        // A buffer for this read alone: waiting threads are many, and buffers that they kept would add to the
        // daemon's memory.
        let waits = move || {
            let mut buffer = Vec::new();
            let result = guarded("read", || {
                let read = fs.read_to(ino(node), offset, size, &mut buffer, touch, Wait::Allowed);
                read.map_err(|error| errno(&error))
            });
            answer(reply, result, |reply, count| reply.data(&buffer[..count]));
        };
        waiting.reads.submit(request.uid(), Box::new(waits));
    }

    fn write(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let kills = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let loses = kills && self.set_id_file(node).is_some();
        let changing = loses.then(|| self.changes.begin(&self.fs, node.0));
        // Pages of a mapping: the kernel marks all of them clean after a short write too, so only an error
        // keeps them dirty.
        let is_write_back = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let flags = terrace_engine::WriteFlags {
            sync: flags.0 & libc::O_DSYNC != 0, // O_SYNC contains it
            kill_set_id: kills,
            pages: is_write_back,
        };
        // Bytes that the request thread has written are not written again by the waiting thread.
        let written = Arc::new(AtomicUsize::new(0));
        let before = Arc::clone(&written);
        let call = move |fs: &Engine, data: &[u8], wait| loop {
            let before = written.load(Ordering::Relaxed);
            let rest = data.get(before..).unwrap_or_default();
            let done = match fs.write(ino(node), offset + before as u64, rest, flags, wait) {
                Ok(count) => before + count,
                Err(FsError::WouldBlock) => return Err(FsError::WouldBlock),
                // A short write; the caller meets the error when it writes the rest.
                Err(_) if before > 0 && !is_write_back => return Ok(before),
                Err(error) => return Err(error),
            };
            written.store(done, Ordering::Relaxed);
            if done >= data.len() {
                return Ok(done);
            }
            if wait != Wait::Allowed {
                return Err(FsError::WouldBlock);
            }
            if !is_write_back {
                return Ok(done);
            }
        };
        let least = || (!is_write_back).then(|| before.load(Ordering::Relaxed));
        self.attempt_write(request, node, data, reply, call, least, |reply, count: usize| {
            drop(changing);
            reply.written(count as u32);
        });
    }

    /// The kernel does not ask for it (FOPEN_NOFLUSH): a close needs no work.
    fn flush(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn release(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let result = self.direct("release", |fs| {
            fs.release(ino(node));
            Ok(())
        });
        answer(reply, result, done);
    }

    fn fsync(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let first =
            guarded("fsync", || match self.fs.fsync_handle(ino(node), handle.0, data_only, Wait::Never) {
                Err(FsError::WouldBlock) => Ok(false),
                other => other.map(|()| true).map_err(|error| errno(&error)),
            });
        match (first, &self.waiting) {
            (Ok(false), Some(waiting)) => {
                let fs = Arc::clone(&self.fs);
                let waits = move || {
                    let result = guarded("fsync", || {
                        let synced = fs.fsync_handle(ino(node), handle.0, data_only, Wait::Allowed);
                        synced.map_err(|error| errno(&error))
                    });
                    answer(reply, result, done);
                };
                waiting.syncs.submit(request.uid(), Box::new(waits));
            }
            (result, _) => answer(reply, result.map(|_| ()), done),
        }
    }

    fn opendir(&self, _request: &Request, _node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn readdir(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        cookie: u64,
        reply: ReplyDirectory,
    ) {
        self.list(request, "readdir", reply, move |fs, wait, reply| {
            fs.try_readdir(ino(node), cookie, wait, &mut |found| {
                let kind = file_type(found.file_type);
                !reply.add(INodeNo(found.ino.0), found.cookie, kind, OsStr::from_bytes(&found.name))
            })
        });
    }

    fn readdirplus(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        cookie: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.list(request, "readdirplus", reply, move |fs, wait, reply| {
            fs.try_readdir_plus(ino(node), cookie, wait, &mut |found, attr| {
                let (name, number) = (OsStr::from_bytes(&found.name), INodeNo(found.ino.0));
                !reply.add(number, found.cookie, name, &valid(attr), &attributes(attr), generation(attr))
            })
        });
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        let result = self.direct("fsyncdir", |fs| fs.fsyncdir(ino(node)));
        answer(reply, result, done);
    }

    fn statfs(&self, request: &Request, _node: INodeNo, reply: ReplyStatfs) {
        let call = |fs: &Engine, _: &[u8], wait| fs.statfs(wait);
        self.attempt(request, "statfs", &[], reply, call, |reply, space: Space| {
            let (blocks, free, available) = (space.blocks, space.free, space.available);
            reply.statfs(blocks, free, available, space.files, space.files_free, 4096, 255, 4096);
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let Some(mode) = xattr_mode(flags) else {
            return reply.error(Errno::EINVAL);
        };
        let name = name.as_bytes().to_vec();
        let call = move |fs: &Engine, value: &[u8], wait| fs.setxattr(ino(node), &name, value, mode, wait);
        self.attempt(request, "setxattr", value, reply, call, done);
    }

    fn getxattr(&self, request: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if name.as_bytes() == CONTROL_XATTR.as_bytes() {
            return value_reply(reply, size, &self.control);
        }
        let call = move |fs: &Engine, name: &[u8], wait| fs.try_getxattr(ino(node), name, wait);
        let accept = move |reply, value: Vec<u8>| value_reply(reply, size, &value);
        self.attempt(request, "getxattr", name.as_bytes(), reply, call, accept);
    }

    fn listxattr(&self, request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        let call =
            move |fs: &Engine, progress: &mut Progress, wait| fs.listxattr_turn(ino(node), progress, wait);
        let accept = move |reply, names: Vec<u8>| value_reply(reply, size, &names);
        self.in_turns(request, "listxattr", reply, call, accept);
    }

    fn removexattr(&self, request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let call = move |fs: &Engine, name: &[u8], wait| fs.removexattr(ino(node), name, wait);
        self.attempt(request, "removexattr", name.as_bytes(), reply, call, done);
    }

    fn ioctl(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _input: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    fn fallocate(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(how) = allocate(mode) else {
            return reply.error(Errno::EOPNOTSUPP);
        };
        let (mut in_group, changing) = self.takes_set_id(request, node).unzip();
        let call = move |fs: &Engine, progress: &mut Progress, wait| {
            if let Some(group) = in_group {
                fs.lose_set_id(ino(node), group, wait)?;
                in_group = None;
            }
            fs.fallocate_turn(ino(node), (offset, length), how, progress, wait)
        };
        self.in_turns(request, "fallocate", reply, call, |reply: ReplyEmpty, ()| {
            drop(changing);
            reply.ok();
        });
    }

    fn lseek(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
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
        let call = move |fs: &Engine, progress: &mut Progress, wait| {
            fs.seek_turn(ino(node), offset, what, progress, wait)
        };
        self.in_turns(request, "lseek", reply, call, |reply: ReplyLseek, found: u64| {
            reply.offset(found as i64);
        });
    }

    /// ENOSYS: the kernel copies by reads and writes from then on.
    fn copy_file_range(
        &self,
        _request: &Request,
        _from: INodeNo,
        _from_handle: FileHandle,
        _from_offset: u64,
        _to: INodeNo,
        _to_handle: FileHandle,
        _to_offset: u64,
        _length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::ENOSYS);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use terrace_engine::{
        FormatOptions, MountOptions, PolicyKind, PoolMedia, Simulation, format, read_superblock,
    };
    use terrace_format::address::ROOT_INO;
    use terrace_media::pm::RecordedPm;
    use terrace_runtime::ManualClock;

    fn pool() -> Arc<Engine> {
        let pm = Arc::new(RecordedPm::new(2 << 20));
        let media = PoolMedia { pm: pm.clone(), block: Vec::new() };
        let options = FormatOptions {
            label: "test".into(),
            uuid: [7; 16],
            hash_key: [9; 16],
            seal_secret: Some([9; 16]),
            policy: PolicyKind::STATIC,
            data_ordered: false,
            data_checksums: false,
            chunk_blocks: 16,
            created_ns: 1,
            root: Default::default(),
            devices: Vec::new(),
        };
        format(&media, &options).unwrap();
        let (superblock, _) = read_superblock(&*pm, true).unwrap();
        Engine::mount(media, superblock, MountOptions::default(), Arc::new(ManualClock::new(1))).unwrap()
    }

    /// A create once made its file, had to wait, and made the file again on another thread: EEXIST, with
    /// O_EXCL.
    #[test]
    fn a_waiting_create_keeps_its_file() {
        let fs = pool();
        let caller = Caller { uid: 0, gid: 0 };
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
        let creation = Creation::new(ROOT_INO, libc::S_IFREG | 0o600, flags, caller);
        // The first attempt ends here, as if the open had to wait.
        let (made, _) = creation.entry(&fs, b"file", Wait::Never).unwrap();
        let (found, _) = creation.open(&fs, b"file", Wait::Allowed).unwrap();
        assert_eq!((found.ino, found.generation), (made.ino, made.generation));
        // A file of another create still gives EEXIST.
        let other = Creation::new(ROOT_INO, libc::S_IFREG | 0o600, flags, caller);
        assert!(matches!(other.open(&fs, b"file", Wait::Allowed), Err(FsError::Exists)));
        // The create held one lookup reference throughout: the inode number is free when it is given back.
        fs.unlink(ROOT_INO, b"file", Wait::Allowed).unwrap();
        fs.release(found.ino);
        fs.run_background(100);
        assert!(fs.getattr(found.ino).is_ok());
        fs.forget(found.ino, 1);
        fs.run_background(100);
        assert!(matches!(fs.getattr(found.ino), Err(FsError::Stale)));
    }

    #[test]
    fn a_panic_is_eio() {
        let result = guarded("test", || -> Result<(), Errno> { panic!("on purpose") });
        assert_eq!(result.map_err(Errno::code), Err(libc::EIO));
        assert_eq!(guarded("test", || Ok(7)).ok(), Some(7));
    }
}
