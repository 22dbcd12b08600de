//! Threads for requests that have left their request thread: waiting requests (design L2), and long requests,
//! which take turns.
//!
//! Invariants: a request never waits behind a request of another kind that a stuck tier holds for ever. So
//! reads, writes, fsyncs and changes of metadata have a pool each; and a write that is only slowed, because
//! PM runs low, runs in threads that wait for no device (I10): a write that needs a device is handed on to a
//! second pool. Half of the request threads never wait. Users take turns in each pool. The bytes of users'
//! data that waiting requests hold are bounded (docs/decisions/0025).

use crate::held::{Held, Holds};
use crate::lines::Lines;
use crate::long::{Long, LongQueues};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use terrace_engine::Wait;
use terrace_runtime::thread::{Pool, Queue, processors};

/// Bounds of the number of request threads, of which there are two for each processor.
const LEAST_REQUEST_THREADS: usize = 4;
const MOST_REQUEST_THREADS: usize = 16;
/// Requests of one kind that wait at the same time; further requests queue.
const WAITING_THREADS: usize = 64;
/// Threads that write batches of a journal for others: as many as batches may be in flight.
const COMMITTING_THREADS: usize = 4;
/// Writes that run in the pool for slowed writes at the same time.
const SLOWED_THREADS: usize = 16;
/// Writes to one file that run at the same time in the pool for slowed writes, and (below) in the pool for
/// stuck writes.
const SLOWED_OF_A_FILE: usize = 2;
const STUCK_OF_A_FILE: usize = 4;

/// Threads that take requests from the kernel.
pub fn request_threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(2, |count| count.get());
    (2 * processors).clamp(LEAST_REQUEST_THREADS, MOST_REQUEST_THREADS)
}

/// All pools. They end in the order of the fields, each when its last request is answered.
pub(crate) struct Waiting {
    pub(crate) writes: Writes,
    /// Delayed answers to writes that were taken in part, one after the other.
    paced: Pool,
    /// Reads that wait in request threads.
    pub(crate) here: Here,
    /// Reads that wait when no more request threads may wait.
    pub(crate) reads: Pool,
    /// Turns of long requests: at most as many at a time as half of the processors.
    turns: Pool,
    /// Names and attributes, and turns of long requests that have to wait.
    pub(crate) changes: Pool,
    /// fsync of files with dirty pages.
    pub(crate) syncs: Pool,
    /// Commits of a journal: they wait for its device alone, never behind an fsync that a lower tier holds up.
    pub(crate) commits: Pool,
    held: Arc<Held>,
}

impl Waiting {
    /// `most_held`: bytes of users' data that waiting requests may hold.
    pub(crate) fn new(most_held: u64) -> Waiting {
        let request_threads = request_threads();
        assert!(request_threads >= 2, "half of the request threads never wait");
        Waiting {
            writes: Writes::new(),
            paced: Pool::busy(1),
            here: Here::new(request_threads / 2),
            reads: Pool::new(WAITING_THREADS),
            turns: Pool::busy((processors() / 2).max(1)),
            changes: Pool::new(WAITING_THREADS),
            syncs: Pool::new(WAITING_THREADS),
            commits: Pool::busy(COMMITTING_THREADS),
            held: Held::new(most_held),
        }
    }

    /// The queue for answers to writes that were taken in part.
    pub(crate) fn paced(&self) -> Queue {
        self.paced.queue().clone()
    }

    /// Copies as much of a write as may wait.
    pub(crate) fn hold(&self, user: u32, bytes: &[u8], least: usize) -> Holds {
        self.held.hold(user, bytes, least)
    }

    /// Begins a long request: its first turn runs in this thread, unless long requests of the same user wait
    /// for their turns.
    pub(crate) fn begin<T: 'static>(&self, long: Long<T>) {
        let queues = LongQueues { turns: self.turns.queue().clone(), waits: self.changes.queue().clone() };
        long.begin(queues);
    }
}

/// Counts the request threads that may wait for a device themselves, which spares a hand-over. The other
/// request threads answer requests that need no wait, even while a device hangs.
pub(crate) struct Here {
    free: AtomicUsize,
    most: usize,
}

/// A waiting request thread; when this is dropped, the thread no longer counts as waiting.
pub(crate) struct WaitsHere<'a>(&'a Here);

impl Here {
    fn new(most: usize) -> Here {
        Here { free: AtomicUsize::new(most), most }
    }

    /// No request thread may wait any more.
    pub(crate) fn close(&self) {
        self.free.store(0, Ordering::Release);
    }

    /// Counts the caller as waiting; `None` when no more request threads may wait.
    pub(crate) fn enter(&self) -> Option<WaitsHere<'_>> {
        let one_less = |free: usize| free.checked_sub(1);
        let entered = self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less);
        entered.is_ok().then(|| WaitsHere(self))
    }
}

impl Drop for WaitsHere<'_> {
    fn drop(&mut self) {
        let free = self.0.free.fetch_add(1, Ordering::AcqRel);
        debug_assert!(free < self.0.most, "{free} of {} request threads were free to wait", self.0.most);
    }
}

/// Threads for writes.
pub(crate) struct Writes {
    to_slowed: Arc<Lines>,
    to_stuck: Arc<Lines>,
    /// Ends before `_stuck`, because its jobs hand over to that pool.
    _slowed: Pool,
    _stuck: Pool,
}

impl Writes {
    fn new() -> Writes {
        let (slowed, stuck) = (Pool::new(SLOWED_THREADS), Pool::new(WAITING_THREADS));
        Writes {
            to_slowed: Lines::new(slowed.queue().clone(), SLOWED_OF_A_FILE),
            to_stuck: Lines::new(stuck.queue().clone(), STUCK_OF_A_FILE),
            _slowed: slowed,
            _stuck: stuck,
        }
    }

    /// Whether writes to a file stand in line: then a further write has to queue behind them.
    pub(crate) fn stand_in_line(&self, file: u64) -> bool {
        self.to_slowed.is_full(file)
    }

    /// Runs `call` with [`Wait::Briefly`] and, if that gives `None` because the write has to wait for a
    /// device, with [`Wait::Allowed`]; `end` gets the result.
    pub(crate) fn submit<T: 'static>(
        &self,
        user: u32,
        file: u64,
        mut call: impl FnMut(Wait) -> Result<Option<T>, Errno> + Send + 'static,
        end: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        let to_stuck = Arc::clone(&self.to_stuck);
        let slowed = move || match call(Wait::Briefly).transpose() {
            Some(result) => end(result),
            None => to_stuck.submit(user, file, move || {
                let result = call(Wait::Allowed);
                end(result.and_then(|value| value.ok_or(Errno::IO)));
            }),
        };
        self.to_slowed.submit(user, file, slowed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;
    use terrace_runtime::sync::{Condvar, Mutex};

    /// Longer than the slowest machine takes.
    const LONG: Duration = Duration::from_secs(30);

    fn next_file() -> u64 {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) as u64
    }

    /// Writers that waited for room in DRAM beside a device that hung once took all threads; then writes to
    /// PM that were only slowed waited behind them for ever.
    #[test]
    fn a_slowed_write_does_not_wait_behind_stuck_writes() {
        let waiting = Waiting::new(1 << 20);
        let device: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let (tell, told) = channel();
        for _ in 0..2 * WAITING_THREADS {
            let (device, tell) = (Arc::clone(&device), tell.clone());
            let call = move |wait| {
                let mut is_well = device.0.lock();
                while wait == Wait::Allowed && !*is_well {
                    // The test ends even if it fails.
                    let timed_out = device.1.wait_for(&mut is_well, 2 * LONG).timed_out();
                    *is_well = *is_well || timed_out;
                }
                Ok((wait == Wait::Allowed).then_some("stuck"))
            };
            waiting.writes.submit(0, next_file(), call, move |result| tell.send(result).unwrap_or(()));
        }
        let slowed = tell.clone();
        let call = |wait| Ok((wait == Wait::Briefly).then_some("slowed"));
        waiting.writes.submit(0, next_file(), call, move |result| slowed.send(result).unwrap_or(()));
        assert_eq!(told.recv_timeout(LONG), Ok(Ok("slowed")));
        // A write is tried again only once, in the pool that may wait for a device.
        let never = tell.clone();
        let call = |_| -> Result<Option<&str>, Errno> { Ok(None) };
        waiting.writes.submit(0, next_file(), call, move |result| never.send(result).unwrap_or(()));
        *device.0.lock() = true;
        device.1.notify_all();
        drop(waiting);
        drop(tell);
        let mut ends: Vec<_> = told.iter().collect();
        ends.sort_unstable_by_key(|end: &Result<_, Errno>| end.is_err());
        let mut expected = vec![Ok("stuck"); 2 * WAITING_THREADS];
        expected.push(Err(Errno::IO));
        assert_eq!(ends, expected);
    }

    #[test]
    fn at_most_the_allowed_number_of_request_threads_wait() {
        let here = Here::new(2);
        let (one, two) = (here.enter(), here.enter());
        assert!(one.is_some() && two.is_some() && here.enter().is_none());
        drop(one);
        let again = here.enter();
        assert!(again.is_some() && here.enter().is_none());
        assert!(request_threads() / 2 >= 2, "others are left");
    }
}
