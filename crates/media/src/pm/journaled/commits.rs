//! The commits under way: closed, sealed and written batches, and the waiters for them.

use crate::MediaError;
use crate::pm::Done;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use terrace_format::journal::BATCH_HEADER_BYTES;
use terrace_runtime::sync::{Condvar, Mutex};

/// Batches in flight together on a device that is quick.
const MOST_IN_FLIGHT: usize = 4;
/// A device is quick if a durable write takes less: then the next batch need not gather for long.
const QUICK_NS: u64 = 200_000;
/// Weight of the last durable write in the mean: one part of this number.
const MEAN_PART: u64 = 8;

/// A place between two batches, for an anchor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Boundary {
    pub position: u64,
    /// Sequence number of the batch behind it.
    pub sequence: u64,
    /// CRC of the batch before it.
    pub previous: u32,
}

/// A closed batch in the queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Closed {
    pub start: u64,
    pub end: u64,
}

/// A sealed batch.
pub(super) struct Flight {
    pub end: Boundary,
    pub length: u64,
    pub is_written: bool,
}

/// Where a thread sleeps.
#[derive(Default)]
pub(super) struct Seat {
    is_woken: Mutex<bool>,
    changed: Condvar,
}

impl Seat {
    pub fn sleep(&self) {
        let mut is_woken = self.is_woken.lock();
        while !*is_woken {
            self.changed.wait(&mut is_woken);
        }
    }

    pub fn wake(&self) {
        *self.is_woken.lock() = true;
        self.changed.notify_one();
    }
}

/// The way to tell a waiter.
pub(super) enum Answer {
    /// The thread looks again.
    Thread(Arc<Seat>),
    Call(Done),
}

/// A waiter for all places below a target.
pub(super) struct Waiter {
    pub target: u64,
    pub answer: Answer,
}

/// The commits under way.
pub(super) struct Commits {
    /// Position of the open batch.
    pub open: u64,
    pub closed: VecDeque<Closed>,
    /// A leader seals a batch.
    pub is_sealing: bool,
    /// Threads that seal or write a batch.
    pub leading: usize,
    /// The journal moves to another device: no batch is sealed.
    pub is_moving: bool,
    /// The end of the last sealed batch.
    pub sealed: Boundary,
    pub flying: VecDeque<Flight>,
    /// Behind the last acknowledged batch.
    pub acknowledged: Boundary,
    /// The boundary of a home round: its position, and the whole boundary after the batch before is acknowledged.
    pub wanted: Option<(u64, Option<Boundary>)>,
    pub waiters: Vec<Waiter>,
    /// Threads in [`Log::commit_for_calls`], or promised.
    pub leaders_for_calls: usize,
    /// Mean time of a durable write, in nanoseconds.
    write_ns: u64,
}

impl Commits {
    pub fn new(end: Boundary) -> Commits {
        Commits {
            open: end.position,
            closed: VecDeque::new(),
            is_sealing: false,
            leading: 0,
            is_moving: false,
            sealed: end,
            flying: VecDeque::new(),
            acknowledged: end,
            wanted: None,
            waiters: Vec::new(),
            leaders_for_calls: 0,
            write_ns: 0,
        }
    }

    /// Batches that may be in flight together.
    pub fn most_in_flight(&self) -> usize {
        if self.write_ns < QUICK_NS { MOST_IN_FLIGHT } else { 1 }
    }

    /// A durable write took so long.
    pub fn note_write(&mut self, took_ns: u64) {
        self.write_ns = (self.write_ns * (MEAN_PART - 1) + took_ns) / MEAN_PART;
    }

    /// Whether a batch may be sealed now.
    pub fn may_seal(&self) -> bool {
        !self.is_moving && !self.is_sealing && self.flying.len() < self.most_in_flight()
    }

    /// Begins at a boundary of another device, which has the effect of all places before. Later batches may be closed.
    pub fn restart(&mut self, at: Boundary) {
        assert!(self.open >= at.position, "batches up to {} are open before {}", self.open, at.position);
        self.closed.retain(|batch| batch.start >= at.position);
        self.flying.clear();
        self.is_sealing = false;
        (self.sealed, self.acknowledged) = (at, at);
        self.wanted = None;
        self.write_ns = 0;
    }

    /// Whether a sealed batch ends behind all places below a target.
    pub fn is_sealed(&self, target: u64) -> bool {
        target <= self.sealed.position + BATCH_HEADER_BYTES
    }

    /// The largest target of a call that no sealed batch has.
    pub fn target_of_calls(&self) -> Option<u64> {
        let is_call = |waiter: &&Waiter| matches!(waiter.answer, Answer::Call(_));
        let targets = self.waiters.iter().filter(is_call).map(|waiter| waiter.target);
        targets.filter(|target| !self.is_sealed(*target)).max()
    }

    /// Takes a thread that can seal the next batch, to be woken.
    pub fn take_leader(&mut self) -> Option<Answer> {
        if !self.may_seal() {
            return None;
        }
        let sealed = self.sealed.position + BATCH_HEADER_BYTES;
        let leads = |waiter: &Waiter| matches!(waiter.answer, Answer::Thread(_)) && waiter.target > sealed;
        let index = self.waiters.iter().position(leads)?;
        Some(self.waiters.swap_remove(index).answer)
    }

    /// Takes the waiters for places below a limit.
    pub fn take_waiters(&mut self, limit: u64) -> Vec<Answer> {
        let is_due = |waiter: &mut Waiter| waiter.target <= limit;
        self.waiters.extract_if(.., is_due).map(|waiter| waiter.answer).collect()
    }
}

/// Tells waiters, without locks.
pub(super) fn tell(answers: Vec<Answer>, result: &Result<(), MediaError>) {
    for answer in answers {
        match answer {
            Answer::Thread(seat) => seat.wake(),
            Answer::Call(done) => {
                // Other waiters are not to miss their answers.
                if catch_unwind(AssertUnwindSafe(|| done(result.clone()))).is_err() {
                    tracing::error!("an answer to a waiter of the journal panicked");
                }
            }
        }
    }
}
