//! A ring: the entries of some queues of the kernel, served by one thread.
//!
//! A request comes with the completion of its entry's command. Its answer and the wait for the next request are one
//! command; the commands of all answers that are ready go to the kernel in one system call, which also waits.
//!
//! Invariants: half of the first entries of a queue wait for requests as long as entries can be had: else the next request
//! of that processor would wait for a device of another one's file. No completion is dropped.

use super::backlog::Backlog;
use super::commands::{Commands, commit, new_ring, push, register, register_device};
use super::entries::{Entries, Gauge, Lost};
use super::memory::Memory;
use super::ticket::{Answer, Content, Shared, Ticket};
use crate::fuse_device::Device;
use crate::notifier::Notifier;
use crate::protocol::layout::opcode;
use crate::protocol::{Input, Reply};
use crate::server::{Server, dispatch, is_unanswered};
use io_uring::squeue::Entry128;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;
use terrace_runtime::{Clock, SystemClock};

/// Completions that are no entry's.
const WAKE: u64 = u64::MAX;
/// Time between two looks for large payloads to give back and for entries to register again.
const PAUSE: Duration = Duration::from_secs(1);
/// Times that a ring is replaced, at most: a ring that fails again and again is no way for requests.
const MOST_REPLACED: usize = 100;

/// The part of a session that a ring serves.
pub(super) struct Role {
    pub device: Device,
    pub notifier: Notifier,
    /// Numbers of queues, and whether a queue is that of this thread's processor.
    pub queues: Vec<(u16, bool)>,
    /// Entries of a queue at first.
    pub first: usize,
    pub payload_bytes: usize,
    pub gauge: Arc<Gauge>,
}

/// A ring with its entries.
pub(super) struct Ring {
    ring: Commands,
    device: Device,
    shared: Arc<Shared>,
    entries: Entries,
    backlog: Backlog,
    /// Takes the counter of the event that wakes this thread.
    woken: Box<u64>,
    /// Names and values of requests, copied out of their payload.
    names: Vec<u8>,
    answers: Vec<Answer>,
    completions: Vec<(u64, i32)>,
    /// Commands that the kernel may not have read: the entry and the request of a commit.
    unread: Vec<Option<(usize, u64)>>,
    /// Waits until now.
    round: u64,
    is_ending: bool,
    /// Time of the next look at large payloads and refused entries.
    next_look_ns: u64,
}

/// Makes a ring for the calling thread, so that a kernel or a container that forbids io_uring is known in time.
pub(super) struct Prepared(Commands);

impl Prepared {
    /// # Errors
    /// The kernel's.
    pub fn new() -> io::Result<Prepared> {
        new_ring().map(Prepared)
    }

    /// Registers the first entries.
    ///
    /// # Errors
    /// The kernel's when it refuses all entries of a queue; the kernel then hands out requests by the FUSE device.
    pub fn register(self, role: Role) -> io::Result<Ring> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC)?;
        let entries = Entries::new(&role.queues, role.first, role.payload_bytes, role.gauge);
        let mut ring = Ring {
            ring: self.0,
            device: role.device,
            shared: Arc::new(Shared::new(wake)),
            entries,
            backlog: Backlog::new(role.notifier),
            woken: Box::new(0),
            names: Vec::new(),
            answers: Vec::new(),
            completions: Vec::new(),
            unread: Vec::new(),
            round: 0,
            is_ending: false,
            next_look_ns: 0,
        };
        ring.shared.adopt();
        match ring.begin() {
            Ok(()) => Ok(ring),
            Err(error) => {
                ring.decline();
                Err(error)
            }
        }
    }
}

impl Ring {
    /// Registers the first entries, and sees the kernel's refusals.
    fn begin(&mut self) -> io::Result<()> {
        register_device(&self.ring, &self.device)?;
        for queue in 0..self.entries.queues() {
            for _ in 0..self.entries.missing(queue) {
                let command = self.entries.add(queue)?;
                self.push(&command, None)?;
            }
        }
        self.watch()?;
        self.ring.submit()?;
        self.unread.clear();
        let mut refusal = None;
        let refused = self.ring.completion().filter(|entry| entry.user_data() != WAKE && entry.result() < 0);
        for (slot, result) in
            refused.map(|entry| (entry.user_data() as usize, entry.result())).collect::<Vec<_>>()
        {
            refusal = Some(io::Error::from_raw_os_error(-result));
            self.entries.lost(slot, -result);
        }
        let is_without = (0..self.entries.queues()).any(|queue| self.entries.is_dry(queue));
        if is_without && let Some(refusal) = refusal {
            return Err(refusal);
        }
        Ok(())
    }

    /// Has the kernel do without rings: it does so when it refuses an entry.
    fn decline(&mut self) {
        if let Ok(memory) = Memory::new(0) {
            let parts = memory.parts();
            if self.push(&register(u16::MAX, &parts).user_data(WAKE), None).is_ok() {
                let _ = self.ring.submit();
            }
        }
    }

    /// Has the ring tell of answers of other threads.
    fn watch(&mut self) -> io::Result<()> {
        let wake = Fd(self.shared.wake_descriptor().as_raw_fd());
        let read = io_uring::opcode::Read::new(wake, (&raw mut *self.woken).cast(), size_of::<u64>() as u32);
        self.push(&Entry128::from(read.build().user_data(WAKE)), None)
    }

    fn push(&mut self, command: &Entry128, answer: Option<(usize, u64)>) -> io::Result<()> {
        self.unread.push(answer);
        // SAFETY: entries keep memory and parts until the ring is closed, and so do the counter and the descriptors, which
        // are fields behind the ring.
        unsafe { push(&mut self.ring, command) }
    }

    /// Serves until every entry is over.
    ///
    /// # Errors
    /// The kernel's when a ring cannot be replaced.
    pub fn serve(&mut self, server: &dyn Server) -> io::Result<()> {
        loop {
            match self.serve_until_it_fails(server) {
                Ok(()) => return Ok(()),
                Err(error) => self.replace(&error)?,
            }
        }
    }

    fn serve_until_it_fails(&mut self, server: &dyn Server) -> io::Result<()> {
        loop {
            self.handle_completions(server)?;
            self.commit()?;
            self.keep_entries_free()?;
            if self.entries.are_over() {
                return Ok(());
            }
            let want = usize::from(self.shared.fall_asleep());
            let waited = self.wait(want);
            self.shared.wake_up();
            self.round += 1;
            match waited.map_err(|error| (error.raw_os_error().unwrap_or(0), error)) {
                Ok(_) | Err((libc::EINTR | libc::EBUSY | libc::EAGAIN | libc::ETIME, _)) => {}
                Err((_, error)) => return Err(error),
            }
            if self.ring.submission().is_empty() {
                self.unread.clear();
            }
            self.take_completions();
            self.look();
        }
    }

    fn take_completions(&mut self) {
        self.completions.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
    }

    /// Handles all completions, also when the ring fails meanwhile.
    fn handle_completions(&mut self, server: &dyn Server) -> io::Result<()> {
        let mut completions = std::mem::take(&mut self.completions);
        let mut ended = Ok(());
        for (number, result) in completions.drain(..) {
            let next = if number == WAKE {
                self.watch()
            } else {
                self.completed(number as usize, result, server);
                self.commit()
            };
            ended = ended.and(next);
        }
        self.completions = completions;
        ended
    }

    /// Submits, and waits for `want` completions; not for ever while there is something to look at later.
    fn wait(&self, want: usize) -> io::Result<usize> {
        if want == 0 || !self.has_work_later() {
            return self.ring.submit_and_wait(want);
        }
        let pause = Timespec::from(PAUSE);
        self.ring.submitter().submit_with_args(want, &SubmitArgs::new().timespec(&pause))
    }

    fn has_work_later(&self) -> bool {
        self.entries.has_large() || self.entries.has_refused() || self.backlog.is_to_fetch()
    }

    /// Once in a while gives back the memory of large requests that are over, and has refused entries tried again.
    fn look(&mut self) {
        if !self.has_work_later() {
            return;
        }
        let now = SystemClock::default().monotonic_ns();
        if now < self.next_look_ns {
            return;
        }
        self.next_look_ns = now + PAUSE.as_nanos() as u64;
        let (completions, unread) = (&self.completions, &self.unread);
        let is_busy = |slot: usize| {
            completions.iter().any(|(number, _)| *number == slot as u64)
                || unread.iter().flatten().any(|(unread, _)| *unread == slot)
        };
        // SAFETY: entries with an unseen request or an unread answer are busy; the kernel copies requests only in calls of
        // this thread (DEFER_TASKRUN), and all completions of the last one have been taken.
        unsafe { self.entries.give_back(is_busy) };
        if self.backlog.is_to_fetch() && !self.is_ending {
            self.backlog.fetch();
        }
        while let Some(command) = (!self.is_ending).then(|| self.entries.retry()).flatten() {
            if self.push(&command, None).is_err() {
                break;
            }
        }
    }

    /// An entry has come back from the kernel.
    fn completed(&mut self, slot: usize, result: i32, server: &dyn Server) {
        if result < 0 {
            return self.lost(slot, -result);
        }
        let (headers, memory) = self.entries.came(slot);
        // SAFETY: until the answer is committed the payload is written by the request's ticket alone. A ticket has the
        // payload only if the request was copied out of it.
        let request = unsafe { memory.request(headers.payload_bytes as usize) };
        let header = headers.request();
        self.backlog.came(slot, self.round, header.opcode, header.node);
        let lies_in_payload = matches!(header.opcode, opcode::WRITE | opcode::SETXATTR);
        let payload = (!lies_in_payload).then(|| Arc::clone(&memory));
        let rest = if lies_in_payload {
            request
        } else {
            self.names.clear();
            self.names.extend_from_slice(request);
            &self.names
        };
        let ticket = Ticket::new(&self.shared, slot, payload);
        if is_unanswered(header.opcode) {
            dispatch_unanswered(server, &header, Input::Apart { fixed: &headers.fixed, rest: &self.names });
            // The kernel waits for nothing, but has the entry back.
            return Reply::in_entry(header.unique, ticket).done();
        }
        let input = Input::Apart { fixed: &headers.fixed, rest };
        dispatch(server, &header, input, || Reply::in_entry(header.unique, ticket));
    }

    #[cold]
    fn lost(&mut self, slot: usize, errno: i32) {
        let queue = self.entries.queue(self.entries.queue_of(slot)).number;
        match self.entries.lost(slot, errno) {
            Lost::Ended => {
                self.is_ending = true;
                self.entries.give_up_refused();
            }
            Lost::Refused if self.is_ending => self.entries.give_up_refused(),
            Lost::Refused => tracing::warn!(queue, errno, "the kernel refuses an entry of a ring"),
            Lost::Answer => tracing::error!(queue, errno, "the kernel refuses the answer of an entry"),
        }
    }

    /// Hands the answers that are ready to the kernel, with the next call.
    fn commit(&mut self) -> io::Result<()> {
        let mut answers = std::mem::take(&mut self.answers);
        self.shared.take(&mut answers);
        let mut ended = Ok(());
        for Answer { slot, header, content } in answers.drain(..) {
            let (structure, length) = match &content {
                Content::InPlace(length) => (None, *length),
                Content::Structure(bytes, length) => (Some(&bytes[..*length]), *length),
            };
            let (queue, commit_id) = self.entries.answer(slot, &header, structure, length);
            let command = commit(queue, commit_id).user_data(slot as u64);
            ended = ended.and(self.push(&command, Some((slot, commit_id))));
        }
        self.answers = answers;
        ended
    }

    /// Registers more entries of a queue whose entries are nearly all away.
    fn keep_entries_free(&mut self) -> io::Result<()> {
        if self.is_ending || self.entries.has_refused() {
            return Ok(());
        }
        for queue in 0..self.entries.queues() {
            let missing = self.entries.missing(queue);
            if missing == 0 {
                continue;
            }
            let was_dry = self.entries.is_dry(queue) && self.entries.queue(queue).is_own;
            for _ in 0..missing {
                let Ok(command) = self.entries.add(queue) else {
                    tracing::warn!("no memory for more entries of a ring");
                    return Ok(());
                };
                self.push(&command, None)?;
            }
            if was_dry {
                self.ring.submit()?;
                self.backlog.fetch();
            }
        }
        Ok(())
    }

    /// Takes a new ring in the place of a failed one. Requests that are here are answered by the new ring.
    fn replace(&mut self, error: &io::Error) -> io::Result<()> {
        tracing::error!(%error, "a ring for requests failed; another takes its place");
        self.take_completions();
        // Answers that the kernel has not read are committed by the new ring.
        let left = self.ring.submission().len().min(self.unread.len());
        let unread = self.unread.split_off(self.unread.len() - left);
        let unread: Vec<(usize, u64)> = unread.into_iter().flatten().collect();
        let seen: Vec<usize> = self.completions.iter().map(|(number, _)| *number as usize).collect();
        let replaced = self
            .entries
            .ring_is_gone(|slot| seen.contains(&slot) || unread.iter().any(|(unread, _)| *unread == slot));
        if replaced > MOST_REPLACED {
            return Err(io::Error::other("rings fail again and again"));
        }
        // A ring may fail for want of memory.
        SystemClock::default().sleep(Duration::from_millis(10));
        self.ring = new_ring()?;
        // The old ring may still write the old counter.
        let _old = Box::leak(std::mem::replace(&mut self.woken, Box::new(0)));
        self.backlog.ring_is_gone();
        self.unread.clear();
        self.completions.retain(|(number, _)| *number != WAKE);
        self.begin()?;
        for (slot, commit_id) in unread {
            let queue = self.entries.queue(self.entries.queue_of(slot)).number;
            let command = commit(queue, commit_id).user_data(slot as u64);
            self.push(&command, Some((slot, commit_id)))?;
        }
        self.backlog.fetch();
        Ok(())
    }
}

/// Runs a request that the kernel sends without waiting for an answer.
fn dispatch_unanswered(server: &dyn Server, header: &crate::protocol::layout::InHeader, input: Input<'_>) {
    dispatch(server, header, input, || unreachable!("no answer is due"));
}
