//! Requested movements: a file, or a directory with everything in it, is moved to a tier (`terrace migrate`),
//! pinned to it (`pin`), or unpinned (`unpin`).
//!
//! Jobs run one at a time, in bounded pieces: [`RequestQueue::step`] does a piece, and a thread or a test calls it
//! again and again. No caller waits for a job inside the file system: the [`RequestReport`] shows its progress.
//! M6: a job has a state, and a reason while it cannot run. After a failure that may pass it tries again
//! after a pause, a few times, then fails; blocks moved so far stay moved. Jobs are volatile: a crash or
//! unmount ends them. Their work (walk, order of the pieces) is in [`super::job`].

use crate::migration::Migration;
use crate::requested::job::Job;
use crate::requested::pinned::{Sweep, sweep_step};
use crate::requested::progress::{MovePlan, MoveRequest, Progress, RequestReport};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use terrace_format::{Ino, TierId};
use terrace_fs::sync::is_stopped;
use terrace_runtime::Next;
use terrace_runtime::sync::Mutex;
use terrace_runtime::thread::Waker;
use terrace_store::error::{FsError, FsResult};
use terrace_store::inode::attributes::getattr;

/// Most jobs that may wait.
const MOST_QUEUED: usize = 1024;

/// Ended jobs whose reports are kept.
const MOST_ENDED: usize = 64;

/// The time between looks at the queue when no request wakes the step.
const IDLE: Duration = Duration::from_secs(1);

/// The running job between two steps.
enum Slot {
    /// No job is under way.
    Empty,
    /// A thread does a step of the job.
    Busy,
    /// The job waits for its next step, not before this moment (monotonic nanoseconds).
    Ready(Box<Job>, u64),
}

struct State {
    sweep: Option<Box<Sweep>>,
    queued: VecDeque<Box<Job>>,
    running: Slot,
    reports: BTreeMap<u64, Arc<Mutex<Progress>>>,
    next_id: u64,
}

/// The jobs of a mount.
pub struct RequestQueue {
    state: Mutex<State>,
    /// Wakes the thread of requested movements.
    pub waker: Waker,
}

impl Default for RequestQueue {
    fn default() -> RequestQueue {
        let state = State {
            sweep: Some(Box::default()),
            queued: VecDeque::new(),
            running: Slot::Empty,
            reports: BTreeMap::new(),
            next_id: 1,
        };
        RequestQueue { state: Mutex::new(state), waker: Waker::new() }
    }
}

impl RequestQueue {
    /// The job that is due for a step, or the time to wait.
    fn take(&self, now_ns: u64) -> Result<Box<Job>, Duration> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut state.running, Slot::Busy) {
            Slot::Ready(job, due_ns) if due_ns <= now_ns => Ok(job),
            Slot::Ready(job, due_ns) => {
                state.running = Slot::Ready(job, due_ns);
                Err(Duration::from_nanos(due_ns - now_ns))
            }
            Slot::Busy => Err(IDLE),
            Slot::Empty => state.queued.pop_front().ok_or_else(|| {
                state.running = Slot::Empty;
                IDLE
            }),
        }
    }

    fn put_back(&self, job: Box<Job>, due_ns: u64) {
        self.state.lock().running = Slot::Ready(job, due_ns);
    }

    fn ended(&self) {
        let mut state = self.state.lock();
        state.running = Slot::Empty;
        let ended = |progress: &Arc<Mutex<Progress>>| progress.lock().report.state.has_ended();
        let old: Vec<u64> =
            state.reports.iter().filter(|(_, report)| ended(report)).map(|(id, _)| *id).collect();
        for id in old.iter().take(old.len().saturating_sub(MOST_ENDED)) {
            state.reports.remove(id);
        }
    }
}

impl RequestQueue {
    /// Requests a movement of a file, or of a directory with everything in it, in the background. Gives the
    /// number of the request.
    ///
    /// # Errors
    /// EINVAL when there is no such tier; EROFS; ESTALE; EAGAIN when too many wait already.
    pub fn request(&self, migration: &Migration, ino: Ino, action: MoveRequest) -> FsResult<u64> {
        RequestQueue::check(migration, action)?;
        let attributes = getattr(&migration.store, ino)?;
        let mut state = self.state.lock();
        if state.queued.len() >= MOST_QUEUED {
            return Err(FsError::WouldBlock);
        }
        let id = state.next_id;
        state.next_id += 1;
        let job = Box::new(Job::new(id, &attributes, action));
        state.reports.insert(id, job.progress());
        state.queued.push_back(job);
        drop(state);
        self.waker.wake();
        Ok(id)
    }

    /// The files and bytes that a requested movement would move, without moving them. Looks at all files
    /// below the path first.
    ///
    /// # Errors
    /// As [`Self::request`]; EIO.
    pub fn plan(migration: &Migration, ino: Ino, action: MoveRequest) -> FsResult<MovePlan> {
        RequestQueue::check(migration, action)?;
        let mut job = Job::new(0, &getattr(&migration.store, ino)?, action);
        while job.look(migration)? {}
        job.plan(migration)
    }

    fn check(migration: &Migration, action: MoveRequest) -> FsResult<()> {
        if action.tier().is_some_and(|to| to > 0 && !migration.store.devices.tiers().contains(&TierId(to))) {
            return Err(FsError::Invalid);
        }
        if migration.store.mode.read_only { Err(FsError::ReadOnly) } else { Ok(()) }
    }

    /// The report of a requested movement; `None` for an unknown number, or one that ended too long ago.
    pub fn report(&self, id: u64) -> Option<RequestReport> {
        let progress = self.state.lock().reports.get(&id).cloned()?;
        let report = progress.lock().report.clone();
        Some(report)
    }

    /// The requested movements that wait, are under way, or ended lately.
    pub fn reports(&self) -> Vec<RequestReport> {
        let reports: Vec<Arc<Mutex<Progress>>> = self.state.lock().reports.values().cloned().collect();
        reports.iter().map(|progress| progress.lock().report.clone()).collect()
    }

    /// Does one bounded part of the requested movements. Of several threads that call it only one works at a
    /// time.
    pub fn step(&self, migration: &Migration) -> Next {
        // Taken out of the lock, because other threads may run in the middle of a piece.
        let sweep = self.state.lock().sweep.take();
        let mut more = false;
        if let Some(mut sweep) = sweep {
            more = !is_stopped(&migration.store) && sweep_step(migration, &mut sweep);
            self.state.lock().sweep = Some(sweep);
        }
        let mut job = match self.take(migration.store.clock.monotonic_ns()) {
            Ok(job) => job,
            Err(_) if more => return Next::Again,
            Err(pause) => return Next::After(pause),
        };
        match job.step(migration) {
            Next::Again => self.put_back(job, 0),
            Next::After(pause) => {
                self.put_back(job, migration.store.clock.monotonic_ns() + pause.as_nanos() as u64);
                return Next::After(pause);
            }
            Next::Done => self.ended(),
        }
        Next::Again
    }
}
