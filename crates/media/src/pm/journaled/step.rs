//! The medium's step: commits that nobody asked for, and home rounds (J6, J14); and the figures for status.
//!
//! Invariant: no store waits longer for its commit than `journal_ms` and a quarter of it, while a thread drives the step.

use super::JournaledPm;
use super::ring::STEP_BYTES;
use serde::Serialize;
use std::time::Duration;
use terrace_runtime::Next;
use terrace_runtime::sync::atomic::Ordering;

/// A round begins when so much of the log is in use: one part of this number.
const ROUND_PART: u64 = 4;
/// A round begins so long after the last, if pages are dirty.
const ROUND_NS: u64 = 60_000_000_000;
/// Rest after an error: the device may come back.
const REST: Duration = Duration::from_secs(1);

/// The times that the step remembers.
pub(super) struct Timer {
    journal_ms: u64,
    /// The tail that the step saw first while a byte below it was not durable, and when.
    waiting: Option<(u64, u64)>,
    /// End of the last home round.
    round_ns: u64,
    /// The last call of the step.
    now_ns: u64,
}

impl Timer {
    pub fn new(journal_ms: u64) -> Timer {
        Timer { journal_ms, waiting: None, round_ns: 0, now_ns: 0 }
    }
}

/// The state of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JournalStatus {
    /// The journal device.
    pub device: String,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Bytes of the log that an opening would apply.
    pub log_used_bytes: u64,
    /// Bytes of stores and their headers that no commit has made durable.
    pub waiting_bytes: u64,
    /// Milliseconds since the step saw the oldest of these bytes; 0 without any.
    pub oldest_ms: u64,
    /// Pages that are not in home as they are in memory.
    pub dirty_pages: u64,
    /// Commits since mount, and the bytes that they wrote.
    pub commits: u64,
    /// Bytes that commits wrote.
    pub committed_bytes: u64,
    /// Pages written home since mount.
    pub home_pages: u64,
    /// Pages that the mount put together again after a crash had torn them.
    pub healed_pages: u64,
    /// Pages that are damaged: their reads fail.
    pub condemned_pages: u64,
    /// The error that ended the journal.
    pub failed: Option<String>,
}

impl JournaledPm {
    /// Does a piece of work; says when to come back.
    pub(super) fn do_step(&self, now_ns: u64) -> Next {
        if !self.writable.load(Ordering::Relaxed) || self.commit.refuse_if_failed().is_err() {
            return Next::Done;
        }
        let mut timer = self.timer.lock();
        timer.now_ns = now_ns;
        let rest = Duration::from_millis((timer.journal_ms / 4).max(1));
        let limit_ns = timer.journal_ms.saturating_mul(1_000_000);
        let tail = self.ring.tail();
        if self.commit.is_durable(tail) {
            timer.waiting = None;
        } else {
            let (first, since_ns) = *timer.waiting.get_or_insert((tail, now_ns));
            let is_old = now_ns.saturating_sub(since_ns) >= limit_ns && !self.commit.is_durable(first);
            if is_old || self.waiting_bytes() >= STEP_BYTES {
                timer.waiting = None;
                drop(timer);
                return if self.commit_to(tail).is_ok() { Next::Again } else { Next::After(REST) };
            }
            if self.commit.is_durable(first) {
                timer.waiting = Some((tail, now_ns));
            }
        }
        let is_due = now_ns.saturating_sub(timer.round_ns) >= ROUND_NS && self.has_dirty_pages();
        if !is_due && self.log_used() < self.layout.log_bytes() / ROUND_PART {
            return Next::After(rest);
        }
        drop(timer);
        match self.advance(1) {
            Ok(false) => Next::Again,
            Ok(true) => {
                self.timer.lock().round_ns = now_ns;
                Next::Again
            }
            Err(error) => {
                tracing::warn!(%error, "a home round failed; it is tried again");
                Next::After(REST)
            }
        }
    }

    fn has_dirty_pages(&self) -> bool {
        !self.dirty.list(&self.image, 0, 1).is_empty()
    }

    /// Bytes that an opening would apply.
    fn log_used(&self) -> u64 {
        self.ring.tail() - self.log_start.load(Ordering::Acquire)
    }

    /// Bytes that no commit has made durable.
    fn waiting_bytes(&self) -> u64 {
        self.ring.tail().saturating_sub(self.commit.durable())
    }

    /// The figures for status.
    pub(super) fn status(&self) -> JournalStatus {
        let timer = self.timer.lock();
        let age_ns = timer.waiting.map_or(0, |(_, since_ns)| timer.now_ns.saturating_sub(since_ns));
        drop(timer);
        JournalStatus {
            device: self.device.name().to_string(),
            log_bytes: self.layout.log_bytes(),
            log_used_bytes: self.log_used(),
            waiting_bytes: self.waiting_bytes(),
            oldest_ms: age_ns / 1_000_000,
            dirty_pages: self.dirty.count(&self.image),
            commits: self.commit.batches.load(Ordering::Relaxed),
            committed_bytes: self.commit.bytes.load(Ordering::Relaxed),
            home_pages: self.home_pages.load(Ordering::Relaxed),
            healed_pages: self.healed,
            condemned_pages: self.condemned,
            failed: self.commit.refuse_if_failed().err().map(|error| error.to_string()),
        }
    }
}
