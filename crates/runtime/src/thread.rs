//! Threads: drivers for steps, and a pool for requests that wait for a lower tier (design L2).
#![allow(clippy::disallowed_methods)] // the one place that may start threads

use crate::activity::{self, Work};
use crate::affinity;
use crate::step::{Next, Step};
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::turns::Turns;
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

#[cfg(not(feature = "shuttle"))]
use std::thread::{Builder, JoinHandle};

#[cfg(feature = "shuttle")]
use shuttle::thread::{Builder, JoinHandle};

pub use crate::thread_index::*;

/// Starts a named thread. It may use all processors of the process, also when the calling thread is kept on a processor.
///
/// # Errors
/// The operating system's, when no thread can be made.
pub fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let processors = affinity::of_started_threads();
    Builder::new().name(name.to_string()).spawn(move || {
        affinity::take(processors);
        activity::thread_starts();
        body()
    })
}

/// Urgency of a thread beside the other threads of this process (docs/decisions/0025).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// Takes requests from the kernel: every request, however short, waits for these threads.
    Requests,
    /// Ends requests that left the threads above because they wait or take long.
    Waits,
    /// Works for nobody who waits.
    Background,
}

impl Urgency {
    /// The nice value: each step is a factor of 1.25 in the share of a processor (sched(7)).
    const fn nice(self) -> i32 {
        match self {
            Urgency::Requests => -10,
            Urgency::Waits | Urgency::Background => 5,
        }
    }

    /// Gives the calling thread this urgency, and the threads that it starts afterwards. Without the privilege to be more
    /// urgent than other programs (CAP_SYS_NICE) it stays as it is.
    pub fn take(self) {
        // The threads of shuttle's scheduler are one thread of the system.
        if cfg!(feature = "shuttle") {
            return;
        }
        if let Err(error) = rustix::process::setpriority_process(None, self.nice()) {
            tracing::debug!(?self, %error, "the urgency of a thread stays as it was");
        }
    }
}

/// Processors that this process may run on: at least one. Counted once, because the system reads files of the control
/// group for it.
pub fn processors() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    // An order that was found is to be found again on any machine.
    let count =
        || if cfg!(feature = "shuttle") { 2 } else { available_parallelism().map_or(1, |of| of.get()) };
    *COUNT.get_or_init(count)
}

/// Lets another thread that can run have the processor. A thread that shall not be in others' way calls it after each
/// piece of its work, where it holds no lock.
pub fn offer_processor() {
    #[cfg(not(feature = "shuttle"))]
    std::thread::yield_now();
}

#[derive(Default)]
struct Signal {
    state: Mutex<SignalState>,
    changed: Condvar,
}

#[derive(Default)]
struct SignalState {
    woken: bool,
    stop: bool,
}

/// Wakes a driven step before its time. Cheap to clone.
#[derive(Clone, Default)]
pub struct Waker(Arc<Signal>);

impl Waker {
    /// A waker for a driver that is made later.
    pub fn new() -> Self {
        Self::default()
    }
    /// Asks the driver to call its step soon.
    pub fn wake(&self) {
        self.0.state.lock().woken = true;
        self.0.changed.notify_all();
    }
}

/// Panics of steps, by name.
#[derive(Default)]
pub struct Panics(Mutex<BTreeMap<&'static str, u64>>);

impl Panics {
    fn note(&self, name: &'static str) {
        *self.0.lock().entry(name).or_default() += 1;
    }
    /// The panics of each step that panicked.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        self.0.lock().iter().map(|(name, count)| (*name, *count)).collect()
    }
}

/// Rest of a step after a panic. It doubles with each further panic in a row, up to the longest rest.
const FIRST_REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(60);

/// Runs a step. A step that panics is called again after a rest, just as a panic of one request does not end
/// the serving of requests. Its locks and claims were given back as its values were dropped.
fn run_step(step: &mut dyn Step, rest: &mut Duration, panics: &Panics) -> Next {
    // A scheduler's own panics are to reach it.
    if cfg!(feature = "shuttle") {
        return step.step();
    }
    let _work = Work::begin();
    match catch_unwind(AssertUnwindSafe(|| step.step())) {
        Ok(next) => {
            *rest = FIRST_REST;
            next
        }
        Err(_) => {
            panics.note(step.name());
            tracing::error!(step = step.name(), "background work panicked; it starts again in {rest:?}");
            *rest = (2 * *rest).min(LONGEST_REST);
            Next::Again
        }
    }
}

/// A thread that drives one [`Step`] until it is done or the driver is dropped.
pub struct Driver {
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    /// Starts driving `step`; `waker` wakes it early, but from the rest after a panic, which `panics` counts.
    ///
    /// # Errors
    /// The operating system's, when no thread can be made.
    pub fn start(mut step: Box<dyn Step>, waker: Waker, panics: Arc<Panics>) -> io::Result<Driver> {
        let signal = waker.clone();
        let thread = spawn(step.name(), move || {
            Urgency::Background.take();
            let mut rest = FIRST_REST;
            loop {
                let next = run_step(&mut *step, &mut rest, &panics);
                let mut state = signal.0.state.lock();
                if state.stop || next == Next::Done {
                    return;
                }
                if let Next::After(pause) = next
                    && !state.woken
                {
                    signal.0.changed.wait_for(&mut state, pause);
                }
                // A step that panics whenever it is woken would take a processor.
                let until = (rest > FIRST_REST).then(|| Instant::now() + rest / 2);
                while let Some(left) = until.and_then(|until| until.checked_duration_since(Instant::now()))
                    && !state.stop
                    && !left.is_zero()
                {
                    signal.0.changed.wait_for(&mut state, left);
                }
                if state.stop {
                    return;
                }
                state.woken = false;
            }
        })?;
        Ok(Driver { waker, thread: Some(thread) })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.waker.0.state.lock().stop = true;
        self.waker.0.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

struct PoolState {
    /// With when each came.
    jobs: Turns<(Job, Instant)>,
    idle: usize,
    threads: usize,
    /// A thread looks whether the first job waits for too long.
    watched: bool,
    stop: bool,
}

struct PoolShared {
    state: Mutex<PoolState>,
    changed: Condvar,
    limit: usize,
    /// Most threads, including the threads added while jobs wait too long.
    most: usize,
    joins: Mutex<Vec<JoinHandle<()>>>,
}

/// Time that a job waits for one of the usual threads before more threads are added.
const PATIENCE: Duration = Duration::from_millis(500);
/// Threads at most, in multiples of the usual number.
const MOST: usize = 8;

/// Threads for work that may wait for a slow device. Jobs beyond the limit queue, and the users of queued
/// jobs take turns ([`Turns`]); the caller never waits. When the first job of the queue has waited too long,
/// more threads are added, a few at a time: the jobs of a hung device must not hold back the jobs of other
/// devices.
pub struct Pool(Queue);

/// Where jobs of a [`Pool`] queue. Jobs may have it, to queue others: it does not keep the pool from ending.
#[derive(Clone)]
pub struct Queue(Arc<PoolShared>);

impl Pool {
    /// A pool of usually at most `limit` threads, started on demand.
    pub fn new(limit: usize) -> Pool {
        Pool::between(limit, MOST * limit)
    }

    /// A pool for work that keeps a processor busy: never more than `limit` threads.
    pub fn busy(limit: usize) -> Pool {
        Pool::between(limit, limit)
    }

    fn between(limit: usize, most: usize) -> Pool {
        let state = PoolState { jobs: Turns::default(), idle: 0, threads: 0, watched: false, stop: false };
        let joins = Mutex::new(Vec::new());
        let shared = PoolShared { state: Mutex::new(state), changed: Condvar::new(), limit, most, joins };
        Pool(Queue(Arc::new(shared)))
    }

    /// Where its jobs queue.
    pub fn queue(&self) -> &Queue {
        &self.0
    }

    /// Queues a user's job. When no thread can be started and none exists, the job runs in the caller.
    pub fn submit(&self, user: u32, job: Job) {
        self.0.submit(user, job);
    }
}

impl Queue {
    /// Whether a user has a job that waits or runs.
    pub fn has(&self, user: u32) -> bool {
        self.0.state.lock().jobs.has(user)
    }

    /// Whether the pool ends: what is submitted now runs in the caller.
    pub fn is_ending(&self) -> bool {
        self.0.state.lock().stop
    }

    /// Queues a user's job. When the pool ends, or no thread can be started and none exists, the job runs in the caller.
    pub fn submit(&self, user: u32, job: Job) {
        let shared = &self.0;
        let mut state = shared.state.lock();
        if state.stop {
            drop(state);
            return job();
        }
        state.jobs.push(user, (job, Instant::now()));
        if state.idle >= state.jobs.len() {
            // The thread that watches waits there too, and would take the call for itself.
            if state.watched {
                shared.changed.notify_all();
            } else {
                shared.changed.notify_one();
            }
            return;
        }
        if state.threads >= shared.limit {
            let more = shared.most > shared.limit;
            let watch = more && !std::mem::replace(&mut state.watched, true);
            drop(state);
            shared.changed.notify_one();
            if watch {
                self.watch();
            }
            return;
        }
        state.threads += 1;
        drop(state);
        let others = Arc::clone(shared);
        match spawn("terrace-wait", move || wait_thread(&others)) {
            Ok(handle) => shared.joins.lock().push(handle),
            Err(_) => {
                let mut state = shared.state.lock();
                state.threads -= 1;
                let orphan = if state.threads == 0 { state.jobs.pop() } else { None };
                drop(state);
                if let Some((user, (job, _))) = orphan {
                    job();
                    shared.state.lock().jobs.ran(user, Duration::ZERO);
                }
            }
        }
    }

    /// Starts a thread that adds threads while jobs wait too long. If it cannot start, jobs only wait longer.
    fn watch(&self) {
        let shared = Arc::clone(&self.0);
        if spawn("terrace-watch", move || {
            Urgency::Waits.take();
            watch(&shared);
        })
        .is_err()
        {
            self.0.state.lock().watched = false;
        }
    }
}

/// Adds threads, a quarter of the usual number at a time, until no job waits any more.
fn watch(shared: &Arc<PoolShared>) {
    let mut state = shared.state.lock();
    while !state.jobs.is_empty() && !state.stop {
        let late = state.jobs.firsts().any(|(_, since)| since.elapsed() >= PATIENCE);
        let room = shared.most.saturating_sub(state.threads);
        let more = if late { (shared.limit / 4).max(1).min(state.jobs.len()).min(room) } else { 0 };
        for _ in 0..more {
            let others = Arc::clone(shared);
            if spawn("terrace-wait", move || wait_thread(&others)).is_ok() {
                state.threads += 1;
            }
        }
        shared.changed.wait_for(&mut state, PATIENCE / 4);
    }
    state.watched = false;
}

/// A thread that counts, until it ends, also by a panic.
struct Counted<'a>(&'a PoolShared);

impl Counted<'_> {
    /// Stops counting this thread. The lock is still held since the decision to leave, so no more threads
    /// leave than decided to.
    fn leave(self, mut state: MutexGuard<'_, PoolState>) {
        state.threads -= 1;
        drop(state);
        self.0.changed.notify_all();
        std::mem::forget(self);
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.state.lock().threads -= 1;
        self.0.changed.notify_all();
    }
}

/// A thread of a pool.
fn wait_thread(shared: &Arc<PoolShared>) {
    Urgency::Waits.take();
    worker(shared);
}

fn worker(shared: &PoolShared) {
    let counted = Counted(shared);
    let mut state = shared.state.lock();
    loop {
        if state.threads > shared.limit && state.jobs.is_empty() {
            return counted.leave(state);
        } else if let Some((user, (job, _))) = state.jobs.pop() {
            drop(state);
            let begun = Instant::now();
            let work = Work::begin();
            job();
            drop(work);
            state = shared.state.lock();
            state.jobs.ran(user, begun.elapsed());
        } else if state.stop {
            return counted.leave(state);
        } else {
            state.idle += 1;
            shared.changed.wait(&mut state);
            state.idle -= 1;
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let shared = &self.0.0;
        shared.state.lock().stop = true;
        shared.changed.notify_all();
        let started = std::mem::take(&mut *shared.joins.lock());
        for handle in started {
            let _ = handle.join();
        }
        // Threads that were added after the handles were taken.
        let mut state = shared.state.lock();
        while state.threads > 0 {
            shared.changed.wait(&mut state);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// Request threads that shared the processors evenly with migration and with long requests kept a user's fsync waiting
    /// for milliseconds beside six busy users.
    #[test]
    fn threads_of_pools_and_steps_leave_processors_to_request_threads() {
        struct Tells(std::sync::mpsc::Sender<i32>);
        impl Step for Tells {
            fn name(&self) -> &'static str {
                "tells"
            }
            fn step(&mut self) -> Next {
                self.0.send(nice()).unwrap();
                Next::Done
            }
        }
        fn nice() -> i32 {
            rustix::process::getpriority_process(None).unwrap()
        }
        let (tell, told) = channel();
        let pool = Pool::new(1);
        let of_pool = tell.clone();
        pool.submit(0, Box::new(move || of_pool.send(nice()).unwrap()));
        // Where all of this runs at a higher value, whether a thread may have a lower one is the system's to say.
        let taken = |urgency: Urgency| {
            let (tell, told) = channel();
            let body = move || {
                urgency.take();
                tell.send(nice()).unwrap();
            };
            spawn("takes", body).unwrap().join().unwrap();
            told.recv().unwrap()
        };
        let least = |urgency: Urgency| {
            let found = taken(urgency);
            assert!(found == urgency.nice() || found == nice(), "{urgency:?}: {found}");
            found
        };
        assert_eq!(told.recv().unwrap(), least(Urgency::Waits));
        let driver = Driver::start(Box::new(Tells(tell)), Waker::new(), Arc::default()).unwrap();
        assert_eq!(told.recv().unwrap(), least(Urgency::Background));
        drop((driver, pool));
        assert!(Urgency::Requests.nice() < Urgency::Waits.nice());
    }

    /// The thread that watches took the call that was for an idle one: a job waited for the next look, or half a second.
    #[test]
    fn a_job_after_a_backlog_does_not_wait() {
        let pool = Pool::new(2);
        let slowest = (0..20).map(|_| {
            let (hold, held) = channel::<()>();
            let held = Arc::new(Mutex::new(held));
            let (tell, told) = channel();
            for _ in 0..3 {
                let (held, tell) = (Arc::clone(&held), tell.clone());
                pool.submit(
                    0,
                    Box::new(move || {
                        let _ = held.lock().recv();
                        tell.send(()).unwrap();
                    }),
                );
            }
            drop((hold, tell));
            assert_eq!(told.iter().count(), 3);
            std::thread::sleep(Duration::from_millis(20));
            let (begin, (done, well)) = (Instant::now(), channel());
            pool.submit(0, Box::new(move || done.send(()).unwrap()));
            well.recv().unwrap();
            begin.elapsed()
        });
        // On a busy machine a few of the twenty may be slow for other reasons.
        let slow = slowest.filter(|took| *took > Duration::from_millis(90)).count();
        assert!(slow < 5, "{slow} of 20 waited");
    }

    /// A panic of a background step used to end its thread: the pool went on without demotion or reclaiming,
    /// and status did not show it.
    #[test]
    fn a_panicking_step_starts_again_and_is_counted() {
        struct Sometimes(u32, std::sync::mpsc::Sender<u32>);
        impl Step for Sometimes {
            fn name(&self) -> &'static str {
                "sometimes"
            }
            fn step(&mut self) -> Next {
                self.0 += 1;
                assert!(self.0 > 3, "on purpose");
                self.1.send(self.0).unwrap();
                Next::After(Duration::from_secs(3600))
            }
        }
        let (tell, told) = channel();
        let (panics, waker) = (Arc::new(Panics::default()), Waker::new());
        let driver = Driver::start(Box::new(Sometimes(0, tell)), waker.clone(), Arc::clone(&panics)).unwrap();
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(4));
        assert_eq!(panics.counts(), [("sometimes", 3)]);
        // And it is well again.
        waker.wake();
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(5));
        drop(driver);
    }

    /// Readers of a hung device used to fill all threads, and held back the reads of all other devices for
    /// ever.
    #[test]
    fn hanging_jobs_do_not_delay_other_jobs() {
        let pool = Pool::new(4);
        let (hold, held) = channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let (tell, told) = channel();
        for number in 0..12 {
            let (held, tell) = (Arc::clone(&held), tell.clone());
            pool.submit(
                0,
                Box::new(move || {
                    let _ = held.lock().recv();
                    tell.send(number).unwrap();
                }),
            );
        }
        let (done, well) = channel();
        pool.submit(0, Box::new(move || done.send("well").unwrap()));
        assert_eq!(well.recv_timeout(Duration::from_secs(60)), Ok("well"));
        drop(hold);
        drop((pool, tell));
        let mut ended: Vec<i32> = told.iter().collect();
        ended.sort_unstable();
        assert_eq!(ended, (0..12).collect::<Vec<i32>>());
    }
}
