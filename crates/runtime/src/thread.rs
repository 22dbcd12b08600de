//! Threads: drivers for steps, and a pool for requests that wait for a lower tier (design L2).
#![allow(clippy::disallowed_methods)] // the one place that may start threads

use crate::step::{Next, Step};
use crate::sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

#[cfg(not(feature = "shuttle"))]
use std::thread::{Builder, JoinHandle};

#[cfg(feature = "shuttle")]
use shuttle::thread::{Builder, JoinHandle};

#[cfg(not(feature = "shuttle"))]
mod number {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static NEXT_INDEX: AtomicUsize = AtomicUsize::new(0);
    const NO_INDEX: usize = usize::MAX;
    thread_local! {
        static INDEX: Cell<usize> = const { Cell::new(NO_INDEX) };
    }

    /// A small number that identifies the calling thread; used to spread threads over lanes.
    #[inline]
    pub fn index() -> usize {
        match INDEX.get() {
            NO_INDEX => first_index(),
            index => index,
        }
    }

    /// Gives the calling thread an index, and with it its lane.
    #[cfg(feature = "simulation")]
    pub fn set_index(index: usize) {
        INDEX.set(index);
    }

    #[cold]
    fn first_index() -> usize {
        let index = NEXT_INDEX.fetch_add(1, Ordering::Relaxed);
        INDEX.set(index);
        index
    }
}

#[cfg(feature = "shuttle")]
mod number {
    /// A small number that identifies the calling thread, the same in every run of a schedule.
    pub fn index() -> usize {
        shuttle::current::me().into()
    }
}

pub use number::*;

/// Starts a named thread.
///
/// # Errors
/// The operating system's, when no thread can be made.
pub fn spawn<F: FnOnce() + Send + 'static>(name: &str, body: F) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.to_string()).spawn(body)
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

/// A thread that drives one [`Step`] until it is done or the driver is dropped.
pub struct Driver {
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    /// Starts driving `step`; `waker` wakes it early.
    ///
    /// # Errors
    /// The operating system's, when no thread can be made.
    pub fn start(mut step: Box<dyn Step>, waker: Waker) -> io::Result<Driver> {
        let signal = waker.clone();
        let thread = spawn(step.name(), move || {
            loop {
                let next = step.step();
                let mut state = signal.0.state.lock();
                if state.stop || next == Next::Done {
                    return;
                }
                if let Next::After(pause) = next
                    && !state.woken
                {
                    signal.0.changed.wait_for(&mut state, pause);
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
    jobs: VecDeque<Job>,
    idle: usize,
    threads: usize,
    stop: bool,
}

struct PoolShared {
    state: Mutex<PoolState>,
    changed: Condvar,
    limit: usize,
}

/// Threads for work that may wait for a slow device. Jobs beyond the limit queue; the caller
/// never waits.
pub struct Pool {
    shared: Arc<PoolShared>,
    joins: Mutex<Vec<JoinHandle<()>>>,
}

impl Pool {
    /// A pool of at most `limit` threads, started on demand.
    pub fn new(limit: usize) -> Pool {
        let state = PoolState { jobs: VecDeque::new(), idle: 0, threads: 0, stop: false };
        let shared = PoolShared { state: Mutex::new(state), changed: Condvar::new(), limit };
        Pool { shared: Arc::new(shared), joins: Mutex::new(Vec::new()) }
    }

    /// Queues a job. When no thread can be started and none exists, the job runs in the caller.
    pub fn submit(&self, job: Job) {
        let mut state = self.shared.state.lock();
        state.jobs.push_back(job);
        if state.idle >= state.jobs.len() || state.threads >= self.shared.limit {
            drop(state);
            self.shared.changed.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let shared = Arc::clone(&self.shared);
        match spawn("terrace-wait", move || worker(&shared)) {
            Ok(handle) => self.joins.lock().push(handle),
            Err(_) => {
                let mut state = self.shared.state.lock();
                state.threads -= 1;
                let orphan = if state.threads == 0 { state.jobs.pop_back() } else { None };
                drop(state);
                if let Some(job) = orphan {
                    job();
                }
            }
        }
    }
}

fn worker(shared: &PoolShared) {
    let mut state = shared.state.lock();
    loop {
        if let Some(job) = state.jobs.pop_front() {
            drop(state);
            job();
            state = shared.state.lock();
        } else if state.stop {
            return;
        } else {
            state.idle += 1;
            shared.changed.wait(&mut state);
            state.idle -= 1;
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.state.lock().stop = true;
        self.shared.changed.notify_all();
        for handle in self.joins.lock().drain(..) {
            let _ = handle.join();
        }
    }
}
