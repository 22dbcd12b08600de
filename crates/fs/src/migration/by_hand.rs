//! What a user asked for: a file or a directory with all below it moved to one tier (`terrace migrate`), kept there
//! (`pin`), or no more (`unpin`).
//!
//! A queue of jobs, one at a time, each in bounded pieces: [`Fs::hand_step`] does one, a thread calls it again and
//! again, a test by hand. Nobody waits inside the file system: who wants to know asks for the [`HandReport`].
//! M6: a job has a state, and a reason where it cannot run; what fails for a reason that may pass is tried again after
//! a pause, a few times, then the job fails. What moved stays moved. Jobs are volatile: a crash or unmount ends them.
//! The jobs themselves (walk, order of the pieces) are in [`super::job`].

use super::job::{Job, Progress};
use super::sweep::Sweep;
use crate::errno::{FsError, FsResult};
use crate::fs::Fs;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;
use terrace_format::{Ino, TierId};
use terrace_runtime::sync::Mutex;
use terrace_runtime::thread::Waker;
use terrace_runtime::{Next, Step};

/// Jobs that may wait.
const MOST_QUEUED: usize = 1024;
/// Ended jobs whose reports are kept.
const MOST_ENDED: usize = 64;
/// How often the queue is looked at without being woken.
const IDLE: Duration = Duration::from_secs(1);

/// What is to be done with a file or a directory with all below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandMove {
    /// Every block to this tier.
    Migrate {
        /// 0 is PM.
        to: u8,
    },
    /// Kept on this tier from now on, and every block there.
    Pin {
        /// 0 is PM.
        tier: u8,
    },
    /// Kept on no tier any more; nothing moves.
    Unpin,
}

impl HandMove {
    /// The tier it is about.
    pub fn tier(self) -> Option<u8> {
        match self {
            HandMove::Migrate { to } => Some(to),
            HandMove::Pin { tier } => Some(tier),
            HandMove::Unpin => None,
        }
    }

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            HandMove::Migrate { .. } => "migrate",
            HandMove::Pin { .. } => "pin",
            HandMove::Unpin => "unpin",
        }
    }
}

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HandState {
    /// Others are before it.
    Queued,
    /// Files are counted.
    Looking,
    /// Pins are set or taken away.
    Pinning,
    /// Blocks are moved.
    Moving,
    /// Something failed and is tried again in a moment; see the reason.
    Waiting,
    /// Ended; blocks that changed meanwhile may be left.
    Done,
    /// Ended; the reason says why. What moved stays moved.
    Failed,
}

impl HandState {
    /// Whether nothing more will be done.
    pub fn has_ended(self) -> bool {
        matches!(self, HandState::Done | HandState::Failed)
    }
}

/// What is known of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HandReport {
    /// Its number since mount.
    pub id: u64,
    /// migrate, pin or unpin.
    pub action: &'static str,
    /// To which tier.
    pub tier: Option<u8>,
    /// How far it is.
    pub state: HandState,
    /// Why it waits or has failed, or what was left.
    pub reason: Option<String>,
    /// Files and directories found.
    pub files: u64,
    /// Files left alone because they are pinned to another tier.
    pub pinned_files: u64,
    /// Bytes that were elsewhere when it looked.
    pub total_bytes: u64,
    /// Bytes moved.
    pub done_bytes: u64,
    /// Bytes still elsewhere when it ended: they changed while they were moved, or the job failed.
    pub left_bytes: u64,
}

/// What a job would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HandPlan {
    /// Files and directories found.
    pub files: u64,
    /// Files that would be left alone because they are pinned to another tier.
    pub pinned_files: u64,
    /// Bytes on each tier: (tier, bytes), tier 0 first.
    pub tiers: Vec<(u8, u64)>,
    /// Bytes that would move.
    pub move_bytes: u64,
    /// Why it would be refused.
    pub refused: Option<String>,
}

/// Where a job stands between two steps.
enum Slot {
    /// None is under way.
    Empty,
    /// Somebody does a step of it.
    Busy,
    /// It waits for its next step, not before this moment (monotonic nanoseconds).
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
pub(crate) struct ByHand {
    state: Mutex<State>,
    pub waker: Waker,
}

impl ByHand {
    pub fn new() -> ByHand {
        let state = State {
            sweep: Some(Box::default()),
            queued: VecDeque::new(),
            running: Slot::Empty,
            reports: BTreeMap::new(),
            next_id: 1,
        };
        ByHand { state: Mutex::new(state), waker: Waker::new() }
    }

    /// The job to do a step of, or how long to wait.
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

impl ByHand {
    /// Asks for a move of a file, or of a directory with all below it, in the background. Gives its number.
    ///
    /// # Errors
    /// EINVAL when there is no such tier; EROFS; ESTALE; EAGAIN when too many wait already.
    pub fn request(&self, fs: &Fs, ino: Ino, action: HandMove) -> FsResult<u64> {
        ByHand::check(fs, action)?;
        let attributes = fs.getattr(ino)?;
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

    /// What a move would do. Takes as long as it takes to look at all files.
    ///
    /// # Errors
    /// As [`Self::request`]; EIO.
    pub fn plan(fs: &Fs, ino: Ino, action: HandMove) -> FsResult<HandPlan> {
        ByHand::check(fs, action)?;
        let mut job = Job::new(0, &fs.getattr(ino)?, action);
        while job.look(fs)? {}
        job.plan(fs)
    }

    fn check(fs: &Fs, action: HandMove) -> FsResult<()> {
        if action.tier().is_some_and(|to| to > 0 && !fs.devices.tiers().contains(&TierId(to))) {
            return Err(FsError::Invalid);
        }
        if fs.read_only { Err(FsError::ReadOnly) } else { Ok(()) }
    }

    /// What is known of a move; `None` when it is not known (any more).
    pub fn report(&self, id: u64) -> Option<HandReport> {
        let progress = self.state.lock().reports.get(&id).cloned()?;
        let report = progress.lock().report.clone();
        Some(report)
    }

    /// The moves that wait, are under way, or ended lately.
    pub fn reports(&self) -> Vec<HandReport> {
        let reports: Vec<Arc<Mutex<Progress>>> = self.state.lock().reports.values().cloned().collect();
        reports.iter().map(|progress| progress.lock().report.clone()).collect()
    }

    /// Does one bounded piece of the moves that were asked for. Several threads may call it: one works.
    pub fn step(&self, fs: &Fs) -> Next {
        // Taken out, because others may run in the middle of a piece.
        let sweep = self.state.lock().sweep.take();
        let mut more = false;
        if let Some(mut sweep) = sweep {
            more = !fs.is_stopped() && fs.sweep_step(&mut sweep);
            self.state.lock().sweep = Some(sweep);
        }
        let mut job = match self.take(fs.clock.monotonic_ns()) {
            Ok(job) => job,
            Err(_) if more => return Next::Again,
            Err(pause) => return Next::After(pause),
        };
        match job.step(fs) {
            Next::Again => self.put_back(job, 0),
            Next::After(pause) => {
                self.put_back(job, fs.clock.monotonic_ns() + pause.as_nanos() as u64);
                return Next::After(pause);
            }
            Next::Done => self.ended(),
        }
        Next::Again
    }
}

impl Fs {
    /// Asks for a move of a file, or of a directory with all below it, in the background. Gives its number.
    ///
    /// # Errors
    /// EINVAL when there is no such tier; EROFS; ESTALE; EAGAIN when too many wait already.
    pub fn move_by_hand(&self, ino: Ino, action: HandMove) -> FsResult<u64> {
        self.by_hand.request(self, ino, action)
    }

    /// What a move would do. Takes as long as it takes to look at all files.
    ///
    /// # Errors
    /// As [`Self::move_by_hand`]; EIO.
    pub fn plan_by_hand(&self, ino: Ino, action: HandMove) -> FsResult<HandPlan> {
        ByHand::plan(self, ino, action)
    }

    /// What is known of a move; `None` when it is not known (any more).
    pub fn hand_report(&self, id: u64) -> Option<HandReport> {
        self.by_hand.report(id)
    }

    /// The moves that wait, are under way, or ended lately.
    pub fn hand_reports(&self) -> Vec<HandReport> {
        self.by_hand.reports()
    }

    /// Does one bounded piece of the moves that were asked for. Several threads may call it: one works.
    pub fn hand_step(&self) -> Next {
        self.by_hand.step(self)
    }

    /// The step that a thread drives.
    pub(crate) fn hand_background(self: &Arc<Fs>) -> (Box<dyn Step>, Waker) {
        (Box::new(HandStep { fs: Arc::downgrade(self) }), self.by_hand.waker.clone())
    }
}

/// Background: one piece of what users asked for per step.
struct HandStep {
    fs: Weak<Fs>,
}

impl Step for HandStep {
    fn name(&self) -> &'static str {
        "terrace-by-hand"
    }

    fn step(&mut self) -> Next {
        self.fs.upgrade().map_or(Next::Done, |fs| fs.hand_step())
    }
}
