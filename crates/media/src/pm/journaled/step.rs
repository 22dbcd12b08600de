//! The medium's step: commits that nobody asked for, and home rounds (J6, J14).
//!
//! Invariant: no store waits longer for its commit than `journal_ms` and a quarter of it, while a thread drives the step.

use super::home::Home;
use super::image::Image;
use super::log::Log;
use super::ring::STEP_BYTES;
use std::time::Duration;
use terrace_runtime::Next;
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::Ordering;

/// A round begins when so much of the log is in use: one part of this number.
const ROUND_PART: u64 = 4;
/// A round begins so long after the last, if pages are dirty.
const ROUND_NS: u64 = 60_000_000_000;
/// Rest after an error: the device may come back.
const REST: Duration = Duration::from_secs(1);

/// The times that the step remembers.
struct Timer {
    journal_ms: u64,
    /// The tail that the step saw first while a byte below it was not durable, and when.
    waiting: Option<(u64, u64)>,
    /// End of the last home round.
    round_ns: u64,
    /// The last call of the step.
    now_ns: u64,
}

/// When the medium's step has work.
pub(super) struct Schedule(Mutex<Timer>);

impl Schedule {
    pub fn new(journal_ms: u64) -> Schedule {
        Schedule(Mutex::new(Timer { journal_ms, waiting: None, round_ns: 0, now_ns: 0 }))
    }
}

impl Schedule {
    /// Does a piece of work; says when to come back.
    pub fn step(&self, (image, log, home): (&Image, &Log, &Home), now_ns: u64) -> Next {
        if log.refuse_if_failed().is_err() {
            // The journal may go on on another device (J12).
            return Next::After(REST);
        }
        let mut timer = self.0.lock();
        timer.now_ns = now_ns;
        let rest = Duration::from_millis((timer.journal_ms / 4).max(1));
        let limit_ns = timer.journal_ms.saturating_mul(1_000_000);
        let tail = log.ring.tail();
        if log.is_durable(tail) {
            timer.waiting = None;
        } else {
            let (first, since_ns) = *timer.waiting.get_or_insert((tail, now_ns));
            let is_old = now_ns.saturating_sub(since_ns) >= limit_ns && !log.is_durable(first);
            if is_old || log.waiting() >= STEP_BYTES {
                timer.waiting = None;
                drop(timer);
                if log.commit_to(image, tail).is_err() {
                    return Next::After(REST);
                }
                timer = self.0.lock();
                // Beside a writer that never pauses a round goes on too: else the log would fill, and stores wait for a whole round.
                if log.used() < log.layout.log_bytes() / ROUND_PART {
                    return Next::Again;
                }
            } else if log.is_durable(first) {
                timer.waiting = Some((tail, now_ns));
            }
        }
        let is_due = now_ns.saturating_sub(timer.round_ns) >= ROUND_NS && image.has_dirty_pages();
        if home.is_moving.load(Ordering::Relaxed)
            || !is_due && log.used() < log.layout.log_bytes() / ROUND_PART
        {
            return Next::After(rest);
        }
        drop(timer);
        match home.advance(image, log, 1) {
            Ok(false) => Next::Again,
            Ok(true) => {
                self.0.lock().round_ns = now_ns;
                Next::Again
            }
            Err(error) => {
                tracing::warn!(%error, "a home round failed; it is tried again");
                Next::After(REST)
            }
        }
    }

    /// Milliseconds since the step saw the oldest byte that is not durable.
    pub fn oldest_ms(&self) -> u64 {
        let timer = self.0.lock();
        timer.waiting.map_or(0, |(_, since_ns)| timer.now_ns.saturating_sub(since_ns) / 1_000_000)
    }
}
