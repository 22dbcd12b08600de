//! Requests: each runs first in the request thread that took it, and goes to a waiting thread if it has to wait.
//!
//! Every call runs first with `Wait::Never`; when it answers `WouldBlock` the request, its data copied, goes to
//! a thread that may wait (design L2). Reads may wait in request threads too, as long as enough free request threads
//! are left ([`crate::waiting`]). A long request is done in turns ([`Requests::in_turns`]).
//!
//! Invariants: `end` of a request is called exactly once; a panic of a call is EIO for its request alone.

use crate::durable::WhenDurable;
use crate::guard::{ended, guarded, unless_it_waits};
use crate::held::PACE;
use crate::long::{Long, Turn};
use crate::served::Served;
use crate::waiting::Waiting;
use rustix::io::Errno;
use std::cell::RefCell;
use std::sync::Arc;
use terrace_engine::{Durability, Durable, Engine, FsResult, Progress, Wait};
use terrace_format::Ino;
use terrace_runtime::{Clock, SystemClock};

thread_local! {
    /// A request thread's buffer for reads.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A request, for messages and for the turns of users.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// The user.
    pub user: u32,
    /// The name of the operation.
    pub operation: &'static str,
}

/// The part of a file that a read asks for.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// The file.
    pub ino: Ino,
    /// The first byte.
    pub offset: u64,
    /// Bytes, at most.
    pub size: usize,
    /// The access time follows.
    pub touch: bool,
}

/// A write that a request asks for.
#[derive(Debug, Clone, Copy)]
pub struct Write {
    /// The user.
    pub user: u32,
    /// The file.
    pub ino: Ino,
    /// The answer waits until the write is durable.
    pub is_synchronous: bool,
}

/// The answer to a read that is still to be given.
pub trait ReadReply: Send + 'static {
    /// Room for the bytes, from which the front end sends them without a copy; `None` where there is no such.
    fn room(&mut self) -> Option<&mut [u8]>;

    /// The first `count` bytes of the room.
    fn in_room(self, count: usize);

    /// Bytes that lie elsewhere.
    fn bytes(self, bytes: &[u8]);

    /// An error.
    fn error(self, errno: Errno);
}

/// Runs the requests of one mount.
pub struct Requests {
    served: Arc<Served>,
    waiting: Option<Waiting>,
}

impl Requests {
    /// Runs requests on a mounted pool.
    pub fn new(served: Arc<Served>) -> Requests {
        let waiting = Some(Waiting::new(served.fs().buffer_bytes()));
        Requests { served, waiting }
    }

    /// No request waits in its request thread from now on: for a front end whose threads have each a processor of their
    /// own.
    pub fn never_wait_here(&self) {
        if let Some(waiting) = &self.waiting {
            waiting.here.close();
        }
    }

    /// The mounted pool.
    #[inline]
    pub fn served(&self) -> &Served {
        &self.served
    }

    /// The engine of the mounted pool.
    #[inline]
    pub fn fs(&self) -> &Arc<Engine> {
        self.served.fs()
    }

    /// After the last request: waits until the waiting threads have answered their requests.
    pub fn end(&mut self) {
        self.waiting = None;
    }

    /// Runs `call` in this thread, or, when it would have to wait, in a waiting thread with its own copy of
    /// `payload`; `end` gets the result.
    pub fn attempt<T>(
        &self,
        asked: Asked,
        payload: &[u8],
        call: impl Fn(&Served, &[u8], Wait) -> FsResult<T> + Send + 'static,
        end: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        let Asked { user, operation } = asked;
        let first = guarded(operation, || unless_it_waits(call(&self.served, payload, Wait::Never)));
        match (first.transpose(), &self.waiting) {
            (Some(result), _) => end(result),
            (None, None) => end(Err(Errno::IO)),
            (None, Some(waiting)) => {
                // The payload is never cut: a value or a name is short.
                let (served, payload) = (Arc::clone(&self.served), waiting.hold(user, payload, usize::MAX));
                let waits = move || {
                    end(guarded(operation, || ended(call(&served, payload.bytes(), Wait::Allowed))));
                };
                waiting.changes.submit(user, Box::new(waits));
            }
        }
    }

    /// Runs a long request, one turn of `call` after the other: the first in this thread, the later turns in
    /// the pool in which users take turns; `end` gets the result.
    pub fn in_turns<T: 'static>(
        &self,
        asked: Asked,
        mut call: impl FnMut(&Served, &mut Progress, Wait) -> FsResult<T> + Send + 'static,
        end: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        let Some(waiting) = &self.waiting else { return end(Err(Errno::IO)) };
        let (served, mut progress) = (Arc::clone(&self.served), Progress::default());
        let turn = move |wait| {
            guarded(asked.operation, || ended(Turn::of(call(&served, &mut progress, wait), wait)))
        };
        waiting.begin(Long::new(asked.user, turn, end));
    }

    /// As [`Self::attempt`], for writes to a file. `written`: bytes of the payload that the first attempt has
    /// written, `None` when the rest must not be cut.
    pub fn write(
        &self,
        Write { user, ino, is_synchronous }: Write,
        payload: &[u8],
        call: impl Fn(&Served, &[u8], Wait) -> FsResult<usize> + Send + 'static,
        written: impl FnOnce() -> Option<usize>,
        end: impl FnOnce(Result<usize, Errno>) + Send + 'static,
    ) {
        let durably =
            self.waiting.as_ref().filter(|_| is_synchronous).map(|waiting| self.when_durable(waiting));
        let end = move |result: Result<usize, Errno>| match (result, durably) {
            (Ok(count), Some(durably)) => durably.then(user, move |durable| end(durable.map(|()| count))),
            (result, _) => end(result),
        };
        // A write goes behind the waiting writes of its file: in this thread it would block at the file's
        // lock, and a request thread would be lost.
        let is_behind = self.waiting.as_ref().is_some_and(|waiting| waiting.writes.stand_in_line(ino.0));
        let first = match is_behind {
            true => Ok(None),
            false => guarded("write", || unless_it_waits(call(&self.served, payload, Wait::Never))),
        };
        match (first.transpose(), &self.waiting) {
            (Some(result), _) => end(result),
            (None, None) => end(Err(Errno::IO)),
            (None, Some(waiting)) => {
                let least = written().unwrap_or(usize::MAX);
                let (served, payload) = (Arc::clone(&self.served), waiting.hold(user, payload, least));
                let paced = payload.is_cut().then(|| waiting.paced());
                let call =
                    move |wait| guarded("write", || unless_it_waits(call(&served, payload.bytes(), wait)));
                waiting.writes.submit(user, ino.0, call, move |result| match paced {
                    None => end(result),
                    Some(paced) => {
                        let later = move || {
                            SystemClock::default().sleep(PACE);
                            end(result);
                        };
                        paced.submit(user, Box::new(later));
                    }
                });
            }
        }
    }

    /// Reads in this thread; gives `reply` back when the read would have to wait.
    fn read_here<R: ReadReply>(&self, part: Part, wait: Wait, mut reply: R) -> Option<R> {
        if let Some(room) = reply.room() {
            let result = guarded("read", || unless_it_waits(read_into(self.fs(), part, room, wait)));
            match result {
                Ok(None) => return Some(reply),
                Ok(Some(count)) => reply.in_room(count),
                Err(errno) => reply.error(errno),
            }
            return None;
        }
        READ_BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < part.size {
                // Fresh zeros: pages that no read reaches take no memory.
                *buffer = vec![0; part.size];
            }
            match guarded("read", || unless_it_waits(read_into(self.fs(), part, buffer, wait))) {
                Ok(None) => return Some(reply),
                Ok(Some(count)) => reply.bytes(&buffer[..count]),
                Err(errno) => reply.error(errno),
            }
            None
        })
    }

    /// Reads: into the room of the reply, where it has such.
    pub fn read(&self, user: u32, part: Part, reply: impl ReadReply) {
        let Some(reply) = self.read_here(part, Wait::Never, reply) else { return };
        let Some(waiting) = &self.waiting else { return reply.error(Errno::IO) };
        if let Some(_allowed) = waiting.here.enter() {
            if let Some(reply) = self.read_here(part, Wait::Allowed, reply) {
                reply.error(Errno::IO);
            }
            return;
        }
        let served = Arc::clone(&self.served);
        waiting.reads.submit(user, Box::new(move || read_and_wait(served.fs(), part, reply)));
    }

    /// Runs `begin`, and for fsyncs that have to write pages back `whole` in the pool for fsyncs. A wait for the journal alone
    /// takes no thread of its own.
    pub fn sync(
        &self,
        asked: Asked,
        begin: impl Fn(&Served) -> FsResult<Durable>,
        whole: impl FnOnce(&Served) -> FsResult<()> + Send + 'static,
        end: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) {
        let first = guarded(asked.operation, || unless_it_waits(begin(&self.served)));
        match (first.transpose(), &self.waiting) {
            (Some(Ok(Durable::Now)), _) => end(Ok(())),
            (Some(Err(error)), _) => end(Err(error)),
            (_, None) => end(Err(Errno::IO)),
            (Some(Ok(Durable::Later)), Some(waiting)) => match waiting.here.enter() {
                Some(_allowed) => end(guarded(asked.operation, || ended(self.fs().barrier()))),
                None => self.when_durable(waiting).then(asked.user, end),
            },
            (None, Some(waiting)) => {
                let served = Arc::clone(&self.served);
                let waits = move || end(guarded(asked.operation, || ended(whole(&served))));
                waiting.syncs.submit(asked.user, Box::new(waits));
            }
        }
    }

    fn when_durable(&self, waiting: &Waiting) -> WhenDurable {
        WhenDurable { served: Arc::clone(&self.served), commits: waiting.commits.queue().clone() }
    }

    /// As [`Self::attempt`], for listings: entries are collected in the reply itself. A listing that would
    /// have to wait leaves the reply empty.
    pub fn list<R: Send + 'static>(
        &self,
        asked: Asked,
        mut reply: R,
        read: impl Fn(&Served, Wait, &mut R) -> FsResult<()> + Send + 'static,
        end: impl FnOnce(R, Result<(), Errno>) + Send + 'static,
    ) {
        let first = guarded(asked.operation, || unless_it_waits(read(&self.served, Wait::Never, &mut reply)));
        match (first.transpose(), &self.waiting) {
            (Some(result), _) => end(reply, result),
            (None, None) => end(reply, Err(Errno::IO)),
            (None, Some(waiting)) => {
                let served = Arc::clone(&self.served);
                let waits = move || {
                    let listed = || ended(read(&served, Wait::Allowed, &mut reply));
                    let result = guarded(asked.operation, listed);
                    end(reply, result);
                };
                waiting.changes.submit(asked.user, Box::new(waits));
            }
        }
    }

    /// Runs a call that never waits.
    pub fn direct<T>(
        &self,
        operation: &'static str,
        call: impl FnOnce(&Served) -> FsResult<T>,
    ) -> Result<T, Errno> {
        guarded(operation, || ended(call(&self.served)))
    }
}

/// Reads in a waiting thread.
fn read_and_wait<R: ReadReply>(fs: &Engine, part: Part, mut reply: R) {
    if let Some(room) = reply.room() {
        return match guarded("read", || ended(read_into(fs, part, room, Wait::Allowed))) {
            Ok(count) => reply.in_room(count),
            Err(errno) => reply.error(errno),
        };
    }
    // A buffer for this read alone: waiting threads are many, and buffers that they kept would add to the daemon's memory.
    let mut buffer = vec![0; part.size];
    match guarded("read", || ended(read_into(fs, part, &mut buffer, Wait::Allowed))) {
        Ok(count) => reply.bytes(&buffer[..count]),
        Err(errno) => reply.error(errno),
    }
}

fn read_into(fs: &Engine, part: Part, room: &mut [u8], wait: Wait) -> FsResult<usize> {
    let length = part.size.min(room.len());
    fs.read_into(part.ino, part.offset, &mut room[..length], part.touch, wait)
}
