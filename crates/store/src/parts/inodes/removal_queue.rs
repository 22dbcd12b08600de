//! The jobs of the reclaimer and their times: a failed job comes back after growing pauses (M6).
//!
//! Invariants: a job is queued once. A job that must wait for a device or for PM space is handed over to the
//! step that may wait. Until that step takes the job, the reclaimer tries it again now and then: its need may
//! be provided by then.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;
use terrace_format::Ino;
use terrace_format::inode::ORPHAN_LISTS;
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};
use terrace_runtime::thread::Waker;

/// Pause after the first failure of a job; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// How often the pause doubles: up to about a minute.
const DOUBLINGS: u32 = 6;

/// The pause before the reclaimer tries a handed-over job again: the step that may wait can be stuck at a
/// device that hangs.
const HANDED_PAUSE: Duration = Duration::from_secs(60);

/// A due job that failed before is taken once in `ONE_IN` turns: it would otherwise wait until no new job
/// is left.
const ONE_IN: u64 = 16;

/// How long the kernel takes at most to give back the references of a file whose name is gone.
const REFERENCES_LINGER: Duration = Duration::from_secs(1);

/// A piece of the reclaimer's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Job {
    /// Queue the members of an orphan list, after mount.
    OrphanList(usize),
    /// Finish the intents of an inode.
    Intents(Ino),
    /// Remove an orphan without references.
    Orphan(Ino),
}

/// A job with the number of its failures.
#[derive(Debug)]
pub struct Task {
    /// The removal.
    pub job: Job,
    failures: u32,
}

/// The moment before which a job is not tried, and the order in which they came.
type Place = (u64, u64);

#[derive(Default)]
struct Tasks {
    waiting: BTreeMap<Place, Task>,
    /// The jobs of `waiting` that were handed over.
    handed: BTreeSet<Place>,
    /// The jobs of `waiting`. No job is queued twice.
    queued: HashSet<Job>,
    next: u64,
    /// Jobs that a thread has taken and not ended.
    at_work: usize,
    /// Jobs of `waiting` that have neither failed nor been handed over.
    fresh: usize,
    taken: u64,
}

/// Jobs due from here on failed once, or were handed over.
const AGAIN: Place = (1, 0);

impl Tasks {
    /// The new key in `waiting`; `None` if the job is queued already.
    fn insert(&mut self, due_ns: u64, task: Task) -> Option<Place> {
        let place = (due_ns, self.next);
        let new = self.queued.insert(task.job);
        new.then(|| {
            self.waiting.insert(place, task);
            self.fresh += usize::from(place < AGAIN);
            self.next += 1;
            let (waiting, queued) = (self.waiting.len(), self.queued.len());
            assert_eq!(waiting, queued, "a removal waits twice");
            place
        })
    }

    /// The caller has it in hand until [`ReclaimQueue::ended`].
    fn take(&mut self, place: Place) -> Option<Task> {
        self.handed.remove(&place);
        let task = self.waiting.remove(&place)?;
        let was_queued = self.queued.remove(&task.job);
        assert!(was_queued, "{:?} waits and is not queued", task.job);
        let (fresh, tried) = (self.fresh, usize::from(place < AGAIN));
        assert!(fresh >= tried, "{fresh} removals are left that were not tried, and one is taken");
        self.fresh -= tried;
        self.at_work += 1;
        Some(task)
    }

    /// The first job that is due; now and then a job that failed before goes first.
    fn due(&mut self, now_ns: u64) -> Option<Place> {
        self.taken += 1;
        let again = || self.waiting.range(AGAIN..=(now_ns, u64::MAX)).next();
        let turn = self.taken.is_multiple_of(ONE_IN) && now_ns >= AGAIN.0;
        let place = *turn.then(again).flatten().or_else(|| self.waiting.first_key_value())?.0;
        (place.0 <= now_ns).then_some(place)
    }
}

/// The jobs of a mount. Starts with the orphan lists.
pub struct ReclaimQueue {
    tasks: Mutex<Tasks>,
    /// Wakes the thread that removes.
    pub waker: Waker,
    /// Wakes the step that may wait.
    pub handed_waker: Waker,
    /// The number of ended jobs: after a failed search for space an operation knows by it whether a job has
    /// freed some since.
    ended: AtomicU64,
    /// When a file with references lost its last name, if references are given back late.
    left_behind_ns: AtomicU64,
}

impl ReclaimQueue {
    /// The orphan lists wait, each as a job.
    pub(crate) fn new() -> ReclaimQueue {
        let queue = ReclaimQueue::empty();
        let mut tasks = queue.tasks.lock();
        tasks.queued.reserve(ORPHAN_LISTS);
        for list in 0..ORPHAN_LISTS {
            tasks.insert(0, Task { job: Job::OrphanList(list), failures: 0 });
        }
        drop(tasks);
        queue.waker.wake();
        queue
    }

    fn empty() -> ReclaimQueue {
        ReclaimQueue {
            tasks: Mutex::default(),
            waker: Waker::new(),
            handed_waker: Waker::new(),
            ended: AtomicU64::new(0),
            left_behind_ns: AtomicU64::new(0),
        }
    }

    /// Queues a job that has not failed yet.
    pub fn push(&self, job: Job) {
        self.tasks.lock().insert(0, Task { job, failures: 0 });
        self.waker.wake();
    }

    /// A file with references has lost its last name. It is queued when the last reference is given back.
    pub fn left_behind(&self, now_ns: u64) {
        self.left_behind_ns.fetch_max(now_ns.max(1), Ordering::AcqRel);
    }

    /// Whether a file has lost its last name so lately that its last reference may be about to be given back.
    pub fn was_left_behind_lately(&self, now_ns: u64) -> bool {
        let since = self.left_behind_ns.load(Ordering::Acquire);
        since > 0 && now_ns.saturating_sub(since) < REFERENCES_LINGER.as_nanos() as u64
    }

    /// A job that was taken is done, or is in the queue again.
    pub fn ended(&self) {
        let mut tasks = self.tasks.lock();
        assert!(tasks.at_work > 0, "a removal ends that no thread has taken");
        tasks.at_work -= 1;
        self.ended.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether a thread has a job in hand.
    pub fn is_at_work(&self) -> bool {
        self.tasks.lock().at_work > 0
    }

    /// The number of ended jobs.
    pub fn ended_so_far(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }

    /// Takes the next job that is due at `now_ns`.
    pub fn take(&self, now_ns: u64) -> Option<Task> {
        let mut tasks = self.tasks.lock();
        let place = tasks.due(now_ns)?;
        tasks.take(place)
    }

    /// Jobs that wait and were not tried yet.
    pub fn backlog(&self) -> usize {
        self.tasks.lock().fresh
    }

    /// Takes the first orphan that was not tried yet, even if other jobs wait before it.
    pub fn take_orphan(&self) -> Option<(Ino, Task)> {
        let mut tasks = self.tasks.lock();
        let mut fresh = tasks.waiting.range(..AGAIN);
        let (place, ino) = fresh.find_map(|(place, task)| match task.job {
            Job::Orphan(ino) => Some((*place, ino)),
            _ => None,
        })?;
        tasks.take(place).map(|task| (ino, task))
    }

    /// Hands a job over that would have had to wait at `now_ns`. That is no failure.
    pub fn hand_over(&self, task: Task, now_ns: u64) {
        let mut tasks = self.tasks.lock();
        let place = tasks.insert(now_ns + HANDED_PAUSE.as_nanos() as u64, task);
        tasks.handed.extend(place);
        drop(tasks);
        self.handed_waker.wake();
    }

    /// Takes the job that was handed over first, even if it is not due.
    pub fn take_handed(&self) -> Option<Task> {
        let mut tasks = self.tasks.lock();
        let place = *tasks.handed.first()?;
        tasks.take(place)
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
        assert!(!queue.is_at_work());
        let failed = queue.take(0);
        assert!(queue.is_at_work() && queue.ended_so_far() == 0);
        assert_eq!(failed.as_ref().map(|task| task.job), Some(job));
        failed.into_iter().for_each(|task| queue.retry(task, 5));
        queue.ended();
        assert!(!queue.is_at_work() && queue.ended_so_far() == 1);
        queue.push(job);
        assert_eq!(queue.take(0).map(|task| task.job), Some(other));
        let due = 5 + FIRST_PAUSE.as_nanos() as u64;
        assert!(queue.take(due - 1).is_none());
        assert_eq!(queue.take(due).map(|task| task.job), Some(job));
        assert!(queue.take(u64::MAX).is_none());
    }

    /// A failed job waited until all new removals had ended.
    #[test]
    fn a_failed_job_gets_its_turn_beside_new_jobs() {
        let queue = ReclaimQueue::empty();
        let job = Job::Intents(Ino(7));
        queue.push(job);
        queue.take(0).into_iter().for_each(|task| queue.retry(task, 0));
        let later = FIRST_PAUSE.as_nanos() as u64;
        let mut numbers = (8..).map(|number| Job::Orphan(Ino(number)));
        numbers.by_ref().take(20).for_each(|orphan| queue.push(orphan));
        assert_eq!(queue.backlog(), 20, "it is not new");
        let taken = (0..100).position(|_| {
            numbers.next().into_iter().for_each(|orphan| queue.push(orphan));
            queue.take(later).is_some_and(|task| task.job == job)
        });
        assert!(taken.is_some_and(|turns| turns < 2 * ONE_IN as usize), "{taken:?}");
    }

    /// Jobs queued at the mount kept operations that remove files from helping.
    #[test]
    fn an_orphan_is_found_behind_other_jobs_and_not_when_it_failed() {
        let queue = ReclaimQueue::new();
        let orphan = || queue.take_orphan().map(|(ino, task)| (ino, task.job));
        assert_eq!(orphan(), None);
        queue.push(Job::Orphan(Ino(7)));
        assert_eq!(orphan(), Some((Ino(7), Job::Orphan(Ino(7)))));
        assert_eq!((orphan(), queue.backlog()), (None, ORPHAN_LISTS));
        queue.hand_over(Task { job: Job::Orphan(Ino(8)), failures: 0 }, 0);
        assert_eq!((orphan(), queue.backlog()), (None, ORPHAN_LISTS));
    }

    #[test]
    fn a_handed_over_job_is_taken_once_and_tried_again_after_its_pause() {
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
