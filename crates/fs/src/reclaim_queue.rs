//! What the reclaimer has to do, and when: jobs that failed come back later and later (M6).

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;
use terrace_format::Ino;
use terrace_format::inode::ORPHAN_LISTS;
use terrace_runtime::sync::Mutex;
use terrace_runtime::thread::Waker;

/// Pause after the first failure of a job; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// How often the pause doubles: up to about a minute.
const DOUBLINGS: u32 = 6;

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

#[derive(Default)]
struct Tasks {
    /// By the moment before which they are not tried, and the order in which they came.
    waiting: BTreeMap<(u64, u64), Task>,
    /// The jobs of `waiting`: none is there twice.
    queued: HashSet<Job>,
    next: u64,
}

impl Tasks {
    fn insert(&mut self, due_ns: u64, task: Task) {
        if self.queued.insert(task.job) {
            self.waiting.insert((due_ns, self.next), task);
            self.next += 1;
        }
    }
}

/// The jobs of a mount. Starts with the orphan lists.
pub(crate) struct ReclaimQueue {
    tasks: Mutex<Tasks>,
    pub waker: Waker,
}

impl ReclaimQueue {
    pub fn new() -> ReclaimQueue {
        let queue = ReclaimQueue { tasks: Mutex::default(), waker: Waker::new() };
        (0..ORPHAN_LISTS).for_each(|list| queue.push(Job::OrphanList(list)));
        queue
    }

    /// Queues a job that has not failed yet.
    pub fn push(&self, job: Job) {
        self.tasks.lock().insert(0, Task { job, failures: 0 });
        self.waker.wake();
    }

    /// Takes the next job that is due at `now_ns`.
    pub fn take(&self, now_ns: u64) -> Option<Task> {
        let mut tasks = self.tasks.lock();
        let first = tasks.waiting.first_entry().filter(|first| first.key().0 <= now_ns)?;
        let task = first.remove();
        tasks.queued.remove(&task.job);
        Some(task)
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
        let queue = ReclaimQueue { tasks: Mutex::default(), waker: Waker::new() };
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
}
