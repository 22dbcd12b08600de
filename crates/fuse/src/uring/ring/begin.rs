//! The begin of a ring, and the ring that takes the place of a failed one.

use super::{Ring, Role, WAKE};
use crate::server::Server;
use crate::uring::backlog::Backlog;
use crate::uring::commands::{Commands, commit, new_ring, push, register_device};
use crate::uring::entries::Entries;
use crate::uring::policy::Policy;
use crate::uring::ticket::Shared;
use io_uring::squeue::Entry128;
use io_uring::types::SubmitArgs;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use terrace_runtime::{Clock, SystemClock};

/// Times that a ring is replaced, at most: a ring that fails again and again is no way for requests.
const MOST_REPLACED: usize = 100;

/// A ring of the calling thread without a session: a kernel or a container that forbids io_uring is known in time.
pub(crate) struct Prepared {
    ring: Commands,
    wake: OwnedFd,
}

impl Prepared {
    /// # Errors
    /// The kernel's.
    pub fn new() -> io::Result<Prepared> {
        let (mut ring, wake) = (new_ring()?, eventfd(0, EventfdFlags::CLOEXEC)?);
        let nothing = Entry128::from(io_uring::opcode::Nop::new().build().user_data(WAKE));
        // SAFETY: the command points at nothing.
        unsafe { push(&mut ring, &nothing) }?;
        ring.submit_and_wait(1)?;
        ring.completion().for_each(drop);
        Ok(Prepared { ring, wake })
    }

    /// Registers the first entries.
    ///
    /// # Errors
    /// The kernel's when it refuses all entries of a queue.
    pub fn register(self, role: Role) -> io::Result<Ring> {
        let entries = Entries::new(&role.queues, role.first, role.payload_bytes, role.gauge);
        let mut ring = Ring {
            ring: self.ring,
            device: role.device,
            shared: Arc::new(Shared::new(self.wake)),
            entries,
            backlog: Backlog::new(role.notifier),
            woken: Box::new(0),
            names: Vec::new(),
            answers: Vec::new(),
            completions: Vec::new(),
            unread: Vec::new(),
            unsent: Vec::new(),
            round: 0,
            cannot_grow: false,
            is_ending: false,
            is_refused: false,
            policy: Policy::of_this_thread(),
            clock: SystemClock::default(),
            next_look_ns: 0,
        };
        ring.shared.adopt();
        ring.begin()?;
        Ok(ring)
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
        self.submit()?;
        self.take_completions();
        let mut refusal = None;
        for (number, result) in std::mem::take(&mut self.completions) {
            if number == WAKE || result >= 0 {
                self.completions.push((number, result));
            } else {
                refusal = Some(io::Error::from_raw_os_error(-result));
                self.lost(number as usize, -result)?;
            }
        }
        let is_without = (0..self.entries.queues()).any(|queue| self.entries.has_none(queue));
        if is_without && let Some(refusal) = refusal {
            return Err(refusal);
        }
        Ok(())
    }

    /// Serves until every entry is over.
    ///
    /// # Errors
    /// The kernel's when a ring cannot be replaced.
    pub(crate) fn serve(&mut self, server: &dyn Server) -> io::Result<()> {
        loop {
            match self.serve_until_it_fails(server) {
                Ok(()) if self.is_ending => return Ok(()),
                Ok(()) => return Err(io::Error::other("the kernel takes neither entries nor answers")),
                Err(error) => self.replace(&error)?,
            }
        }
    }

    /// Takes a new ring in the place of a failed one. Requests that are here are answered by the new ring.
    fn replace(&mut self, error: &io::Error) -> io::Result<()> {
        tracing::error!(%error, "a ring for requests failed; another takes its place");
        // Requests that are on their way to this thread still come, if the ring can do as much.
        let _ = self.ring.submitter().submit_with_args(0, &SubmitArgs::new());
        self.take_completions();
        // Answers that the kernel has not read are committed by the new ring.
        let left = self.ring.submission().len().min(self.unread.len());
        let unread = self.unread.split_off(self.unread.len() - left);
        let mut unread: Vec<(usize, u64)> = unread.into_iter().flatten().collect();
        unread.append(&mut self.unsent);
        let seen: Vec<usize> = self.completions.iter().map(|(number, _)| *number as usize).collect();
        let replaced = self
            .entries
            .ring_is_gone(|slot| seen.contains(&slot) || unread.iter().any(|(unread, _)| *unread == slot));
        if replaced > MOST_REPLACED {
            return Err(io::Error::other("rings fail again and again"));
        }
        // A ring may fail for want of memory.
        self.clock.sleep(Duration::from_millis(10));
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
