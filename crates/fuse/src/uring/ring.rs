//! A ring: the entries of some queues of the kernel, served by one thread.
//!
//! A request comes with the completion of its entry's command. Its answer and the wait for the next request are one
//! command; the commands of all answers that are ready go to the kernel in one system call, which also waits.
//!
//! Invariants: half of the first entries of a queue wait for requests as long as entries can be had: else the next request
//! of that processor would wait for a device of another one's file. No completion is dropped.

pub(super) mod begin;

use super::backlog::Backlog;
use super::commands::{Commands, commit, push, submit};
use super::entries::{Entries, Gauge, Lost};
use super::policy::Policy;
use super::ticket::{Answer, Content, Shared, Ticket};
use crate::fuse_device::Device;
use crate::notifier::Notifier;
use crate::protocol::layout::opcode;
use crate::protocol::{Input, Reply};
use crate::server::{Server, dispatch, is_unanswered};
use io_uring::squeue::Entry128;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;
use terrace_runtime::{Clock, SystemClock};

/// Completions that are no entry's.
const WAKE: u64 = u64::MAX;
/// Time between two looks for large payloads to give back and for entries to register again.
const PAUSE: Duration = Duration::from_secs(1);

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
    /// Answers that a failed ring did not take.
    unsent: Vec<(usize, u64)>,
    /// Waits until now.
    round: u64,
    /// Whether there was no memory for more entries.
    cannot_grow: bool,
    is_ending: bool,
    /// The kernel takes no more answers by rings.
    is_refused: bool,
    policy: Policy,
    clock: SystemClock,
    /// Time of the next look at large payloads and refused entries.
    next_look_ns: u64,
}

impl Ring {
    /// Has the kernel read all commands.
    fn submit(&mut self) -> io::Result<()> {
        submit(&self.ring)?;
        if self.ring.submission().is_empty() {
            self.unread.clear();
        }
        Ok(())
    }

    /// Has the ring tell of answers of other threads.
    fn watch(&mut self) -> io::Result<()> {
        let wake = Fd(self.shared.wake_descriptor().as_raw_fd());
        let read = io_uring::opcode::Read::new(wake, (&raw mut *self.woken).cast(), size_of::<u64>() as u32);
        self.push(&Entry128::from(read.build().user_data(WAKE)), None)
    }

    fn push(&mut self, command: &Entry128, answer: Option<(usize, u64)>) -> io::Result<()> {
        // SAFETY: entries keep memory and parts until the ring is closed, and so do the counter and the descriptors, which
        // are fields behind the ring.
        unsafe { push(&mut self.ring, command) }?;
        self.unread.push(answer);
        Ok(())
    }

    /// Serves until every entry is over, or the kernel takes no more answers by rings.
    ///
    /// # Errors
    /// The kernel's for the ring itself.
    fn serve_until_it_fails(&mut self, server: &dyn Server) -> io::Result<()> {
        loop {
            self.handle_completions(server)?;
            self.commit()?;
            if self.is_refused {
                return Ok(());
            }
            self.keep_entries_free()?;
            if self.entries.are_over() {
                return Ok(());
            }
            self.policy.before_wait();
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
            let next =
                if number == WAKE { self.watch() } else { self.completed(number as usize, result, server) };
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
        self.entries.has_large()
            || self.entries.has_refused()
            || self.cannot_grow
            || self.backlog.is_to_fetch()
    }

    /// Once in a while gives back the memory of large requests that are over, and has refused entries tried again.
    fn look(&mut self) {
        if !self.has_work_later() {
            return;
        }
        let now = self.clock.monotonic_ns();
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
            self.backlog.fetch_later();
            if self.push(&command, None).is_err() {
                break;
            }
        }
    }

    /// An entry has come back from the kernel.
    fn completed(&mut self, slot: usize, result: i32, server: &dyn Server) -> io::Result<()> {
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
            Reply::in_entry(header.unique, ticket).done();
            return self.commit();
        }
        let input = Input::Apart { fixed: &headers.fixed, rest };
        dispatch(server, &header, input, || Reply::in_entry(header.unique, ticket));
        self.commit()?;
        if lies_in_payload {
            // The request waits with a copy of its bytes; its answer is kept beside the payload.
            // SAFETY: the request has been served: its borrow of the payload is over, and its ticket has no room.
            unsafe { self.entries.give_back_waiting(slot) };
        }
        Ok(())
    }

    /// An entry has come back without a request.
    ///
    /// # Errors
    /// The kernel refuses answers for good, or a ring that fails.
    #[cold]
    fn lost(&mut self, slot: usize, errno: i32) -> io::Result<()> {
        let queue = self.entries.queue(self.entries.queue_of(slot)).number;
        match self.entries.lost(slot, errno) {
            Lost::Ended => {
                self.is_ending = true;
                self.entries.give_up_refused();
            }
            Lost::Refused if self.is_ending => self.entries.give_up_refused(),
            Lost::Refused => tracing::warn!(queue, errno, "the kernel refuses an entry of a ring"),
            Lost::Nobody => tracing::debug!(queue, errno, "nobody waits for the answer of an entry"),
            Lost::Answer(commit_id) => {
                tracing::error!(
                    queue,
                    errno,
                    "the kernel refuses the answer of an entry; it is committed again"
                );
                self.clock.sleep(Duration::from_millis(1));
                let command = commit(queue, commit_id).user_data(slot as u64);
                if let Err(error) = self.push(&command, Some((slot, commit_id))) {
                    self.unsent.push((slot, commit_id));
                    return Err(error);
                }
            }
            Lost::Transport => self.is_refused = true,
        }
        Ok(())
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
            if let Err(error) = self.push(&command, Some((slot, commit_id))) {
                self.unsent.push((slot, commit_id));
                ended = Err(error);
            }
        }
        self.answers = answers;
        ended
    }

    /// Registers more entries of a queue whose entries are nearly all away.
    fn keep_entries_free(&mut self) -> io::Result<()> {
        if self.is_ending || self.entries.has_refused() {
            return Ok(());
        }
        let mut is_short = false;
        for queue in 0..self.entries.queues() {
            let missing = self.entries.missing(queue);
            if missing == 0 {
                continue;
            }
            for _ in 0..missing {
                let Ok(command) = self.entries.add(queue) else {
                    is_short = true;
                    break;
                };
                self.push(&command, None)?;
            }
            self.fetch_after_growth(queue)?;
        }
        if is_short && !self.cannot_grow {
            tracing::warn!("no memory for more entries of a ring");
        }
        self.cannot_grow = is_short;
        Ok(())
    }

    /// New entries take no request that waits in the kernel already.
    fn fetch_after_growth(&mut self, queue: usize) -> io::Result<()> {
        if self.entries.queue(queue).is_own {
            self.submit()?;
            self.backlog.fetch();
        }
        Ok(())
    }
}

/// Runs a request that the kernel sends without waiting for an answer.
fn dispatch_unanswered(server: &dyn Server, header: &crate::protocol::layout::InHeader, input: Input<'_>) {
    dispatch(server, header, input, || unreachable!("no answer is due"));
}
