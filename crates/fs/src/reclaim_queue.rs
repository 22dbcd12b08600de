//! What the reclaimer has to do, and when: jobs that failed come back later and later (M6).
//!
//! Invariants: a job is there once. One that has to wait, for a device or for room in PM, is handed over to the step that may
//! wait; until that takes it, the reclaimer tries it again now and then, for what it lacked may have come.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;
use terrace_format::Ino;
use terrace_format::inode::ORPHAN_LISTS;
use terrace_runtime::sync::Mutex;
use terrace_runtime::thread::Waker;

/// Pause after the first failure of a job; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// How often the pause doubles: up to about a minute.
const DOUBLINGS: u32 = 6;
/// When the reclaimer tries a job again that was handed over and not taken: each of those may be behind a device that hangs.
const HANDED_PAUSE: Duration = Duration::from_secs(60);

/// A piece of the reclaimer's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Job {
    /// Queue the members of an orphan list, after mount.
    OrphanList(usize),
    /// Finish the intents of an inode.
    Intents(Ino),
    /// Remove an orphan that nobody refers to.
    Orphan(Ino),
}

/// A job with the failures it had.
#[derive(Debug)]
pub(crate) struct Task {
    pub job: Job,
    failures: u32,
}

/// The moment before which a job is not tried, and the order in which they came.
type Place = (u64, u64);

#[derive(Default)]
struct Tasks {
    waiting: BTreeMap<Place, Task>,
    /// Those of `waiting` that were handed over.
    handed: BTreeSet<Place>,
    /// The jobs of `waiting`: none is there twice.
    queued: HashSet<Job>,
    next: u64,
}

impl Tasks {
    /// The new place; none when the job is there already.
    fn insert(&mut self, due_ns: u64, task: Task) -> Option<Place> {
        let place = (due_ns, self.next);
        let new = self.queued.insert(task.job);
        new.then(|| {
            self.waiting.insert(place, task);
            self.next += 1;
            place
        })
    }

    fn remove(&mut self, place: Place) -> Option<Task> {
        self.handed.remove(&place);
        let task = self.waiting.remove(&place)?;
        self.queued.remove(&task.job);
        Some(task)
    }
}

/// The jobs of a mount. Starts with the orphan lists.
pub(crate) struct ReclaimQueue {
    tasks: Mutex<Tasks>,
    pub waker: Waker,
    /// Wakes the step that may wait.
    pub handed_waker: Waker,
}

impl ReclaimQueue {
    pub fn new() -> ReclaimQueue {
        let queue = ReclaimQueue::empty();
        (0..ORPHAN_LISTS).for_each(|list| queue.push(Job::OrphanList(list)));
        queue
    }

    fn empty() -> ReclaimQueue {
        ReclaimQueue { tasks: Mutex::default(), waker: Waker::new(), handed_waker: Waker::new() }
    }

    /// Queues a job that has not failed yet.
    pub fn push(&self, job: Job) {
        self.tasks.lock().insert(0, Task { job, failures: 0 });
        self.waker.wake();
    }

    /// Takes the next job that is due at `now_ns`.
    pub fn take(&self, now_ns: u64) -> Option<Task> {
        let mut tasks = self.tasks.lock();
        let place = *tasks.waiting.first_key_value()?.0;
        (place.0 <= now_ns).then(|| tasks.remove(place)).flatten()
    }

    /// Jobs that wait, those that failed included.
    pub fn backlog(&self) -> usize {
        self.tasks.lock().waiting.len()
    }

    /// As [`Self::take`], when the next job is an orphan.
    pub fn take_orphan(&self, now_ns: u64) -> Option<(Ino, Task)> {
        let mut tasks = self.tasks.lock();
        let (place, task) = tasks.waiting.first_key_value()?;
        let (place, job) = (*place, task.job);
        let Job::Orphan(ino) = job else { return None };
        (place.0 <= now_ns).then(|| tasks.remove(place)).flatten().map(|task| (ino, task))
    }

    /// Hands a job over that would have had to wait at `now_ns`. That is no failure.
    pub fn hand_over(&self, task: Task, now_ns: u64) {
        let mut tasks = self.tasks.lock();
        let place = tasks.insert(now_ns + HANDED_PAUSE.as_nanos() as u64, task);
        tasks.handed.extend(place);
        drop(tasks);
        self.handed_waker.wake();
    }

    /// Takes the job that was handed over first, whatever its time.
    pub fn take_handed(&self) -> Option<Task> {
        let mut tasks = self.tasks.lock();
        let place = *tasks.handed.first()?;
        tasks.remove(place)
    }

    /// Puts a job back that failed at `now_ns`.
    pub fn retry(&self, task: Task, now_ns: u64) {
        let pause = FIRST_PAUSE * (1 << task.failures.min(DOUBLINGS));
        let failures = task.failures.saturating_add(1);
        self.tasks.lock().insert(now_ns + pause.as_nanos() as u64, Task { failures, ..task });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_queued_once_and_comes_back_later_when_it_failed() {
        let queue = ReclaimQueue::empty();
        let (job, other) = (Job::Intents(Ino(7)), Job::Orphan(Ino(7)));
        [job, other, job].into_iter().for_each(|job| queue.push(job));
        let failed = queue.take(0);
        assert_eq!(failed.as_ref().map(|task| task.job), Some(job));
        failed.into_iter().for_each(|task| queue.retry(task, 5));
        queue.push(job);
        assert_eq!(queue.take(0).map(|task| task.job), Some(other));
        let due = 5 + FIRST_PAUSE.as_nanos() as u64;
        assert!(queue.take(due - 1).is_none());
        assert_eq!(queue.take(due).map(|task| task.job), Some(job));
        assert!(queue.take(u64::MAX).is_none());
    }

    #[test]
    fn a_job_that_was_handed_over_is_taken_once_and_tried_again_when_nobody_takes_it() {
        let queue = ReclaimQueue::empty();
        let jobs = [Job::Orphan(Ino(7)), Job::Orphan(Ino(8))];
        jobs.into_iter().for_each(|job| queue.push(job));
        while let Some(task) = queue.take(5) {
            queue.hand_over(task, 5);
        }
        queue.push(jobs[0]);
        assert_eq!(queue.take_handed().map(|task| task.job), Some(jobs[0]));
        let due = 5 + HANDED_PAUSE.as_nanos() as u64;
        assert!(queue.take(due - 1).is_none());
        assert_eq!(queue.take(due).map(|task| task.job), Some(jobs[1]));
        assert!(queue.take_handed().is_none() && queue.take(u64::MAX).is_none());
    }
}
