//! Sends the replies of an emulated device, each at its time, from one thread.
//!
//! Invariants: every job handed over is finished exactly once, also when the thread cannot be started, when
//! it ends, and when jobs arrive after its end; the end waits only for a job that is being finished, because
//! jobs that are not due yet are finished at once. No lock is held while a job is finished.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use terrace_media::pace::{Follows, Pace, Transfer};
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};
use terrace_runtime::sync::{Condvar, Mutex};
use terrace_runtime::{Clock, thread};

/// Sends a reply.
pub(crate) type Finish = Box<dyn FnOnce() + Send>;

/// A reply due within this many nanoseconds is awaited by spinning.
const SPIN_NS: u64 = 20_000;
/// Longest sleep, so that a lost wake-up does little harm.
const NAP: Duration = Duration::from_millis(100);
const NEVER: u64 = u64::MAX;

struct Job {
    at_ns: u64,
    /// Jobs of one time keep their order.
    number: u64,
    /// `Some` while pieces are left to reserve.
    transfer: Option<Transfer>,
    finish: Finish,
}

impl PartialEq for Job {
    fn eq(&self, other: &Job) -> bool {
        (self.at_ns, self.number) == (other.at_ns, other.number)
    }
}
impl Eq for Job {}
impl PartialOrd for Job {
    fn partial_cmp(&self, other: &Job) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Job {
    fn cmp(&self, other: &Job) -> std::cmp::Ordering {
        (self.at_ns, self.number).cmp(&(other.at_ns, other.number))
    }
}

#[derive(Default)]
struct State {
    jobs: BinaryHeap<Reverse<Job>>,
    handed_over: u64,
    over: bool,
}

struct Shared {
    pace: Pace,
    /// Nanoseconds after a request during which the processor is kept from sleeping.
    awake_ns: u64,
    /// When the last request came.
    last_ns: AtomicU64,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    changed: Condvar,
    /// Time of the next job, which the spinning thread reads.
    next_ns: AtomicU64,
}

/// Finishes jobs at the pace of a device.
pub(crate) struct Completions {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Completions {
    /// Starts the thread. `awake`: the time after a request during which the thread keeps its processor from
    /// sleeping, so that the next reply does not wait for a wake-up; for a processor without other work.
    ///
    /// # Errors
    /// The operating system's, when no thread can be made.
    pub(crate) fn start(pace: Pace, clock: Arc<dyn Clock>, awake: Duration) -> io::Result<Completions> {
        let shared = Arc::new(Shared {
            pace,
            awake_ns: awake.as_nanos() as u64,
            last_ns: AtomicU64::new(0),
            clock,
            state: Mutex::default(),
            changed: Condvar::new(),
            next_ns: AtomicU64::new(NEVER),
        });
        let theirs = Arc::clone(&shared);
        let thread = thread::spawn("terrace-device", move || theirs.run())?;
        Ok(Completions { shared, thread: Some(thread) })
    }

    /// The device's clock.
    pub(crate) fn now_ns(&self) -> u64 {
        self.shared.clock.monotonic_ns()
    }

    /// The device's pace.
    pub(crate) fn pace(&self) -> &Pace {
        &self.shared.pace
    }

    /// Finishes a request when its time has come.
    pub(crate) fn hand_over(&self, transfer: Transfer, finish: Finish) {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        if state.over {
            drop(state);
            return finish();
        }
        state.handed_over += 1;
        shared.last_ns.store(shared.clock.monotonic_ns(), Ordering::Relaxed);
        let number = state.handed_over;
        let job = shared.advance(Job { at_ns: 0, number, transfer: Some(transfer), finish });
        state.jobs.push(Reverse(job));
        let first = shared.publish(&state) == number;
        drop(state);
        if first {
            shared.changed.notify_one();
        }
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        self.shared.state.lock().over = true;
        self.shared.next_ns.store(0, Ordering::Release);
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Reserves a job's next piece.
    fn advance(&self, mut job: Job) -> Job {
        if let Some(transfer) = &mut job.transfer {
            match self.pace.advance(transfer) {
                Follows::Piece(at_ns) => job.at_ns = at_ns,
                Follows::End(at_ns) => (job.at_ns, job.transfer) = (at_ns, None),
            }
        }
        job
    }

    /// Tells the spinning thread of the next job; gives its number.
    fn publish(&self, state: &State) -> u64 {
        let next = state.jobs.peek().map_or((NEVER, 0), |Reverse(job)| (job.at_ns, job.number));
        self.next_ns.store(if state.over { 0 } else { next.0 }, Ordering::Release);
        next.1
    }

    fn is_awake(&self, now_ns: u64) -> bool {
        self.awake_ns > 0 && now_ns < self.last_ns.load(Ordering::Relaxed).saturating_add(self.awake_ns)
    }

    fn run(&self) {
        terrace_runtime::clock::sleep_exactly();
        let mut state = self.state.lock();
        loop {
            let now_ns = self.clock.monotonic_ns();
            let over = state.over;
            let due = match state.jobs.peek() {
                None if over => return,
                None => NEVER,
                Some(Reverse(job)) => job.at_ns,
            };
            if over || due <= now_ns {
                let Some(Reverse(job)) = state.jobs.pop() else { continue };
                if job.transfer.is_some() && !over {
                    state.jobs.push(Reverse(self.advance(job)));
                    self.publish(&state);
                    continue;
                }
                self.publish(&state);
                drop(state);
                (job.finish)();
                state = self.state.lock();
            } else if due - now_ns > SPIN_NS && self.is_awake(now_ns) {
                drop(state);
                // The thread that reads the next request gets the processor first.
                while self.is_awake(self.clock.monotonic_ns())
                    && self.clock.monotonic_ns() + SPIN_NS < self.next_ns.load(Ordering::Acquire)
                {
                    thread::offer_processor();
                }
                state = self.state.lock();
            } else if due - now_ns > SPIN_NS {
                let nap = Duration::from_nanos(due - now_ns - SPIN_NS / 2).min(NAP);
                self.changed.wait_for(&mut state, nap);
            } else {
                drop(state);
                while self.clock.monotonic_ns() < self.next_ns.load(Ordering::Acquire).min(due) {
                    std::hint::spin_loop();
                }
                state = self.state.lock();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_media::pace::Direction;
    use terrace_media::speed::Speed;
    use terrace_runtime::ManualClock;

    const SPEED: Speed = Speed {
        read_latency_ns: 1_000_000,
        write_latency_ns: 2_000_000,
        read_bytes_per_s: 1_000_000_000,
        write_bytes_per_s: 1_000_000_000,
    };

    fn completions(clock: &Arc<ManualClock>) -> Completions {
        Completions::start(Pace::new(SPEED), clock.clone(), Duration::ZERO)
            .unwrap_or_else(|error| unreachable!("{error}"))
    }

    /// Hands over a request and notes its name when it is finished.
    fn request(of: &Completions, direction: Direction, name: u64, done: &Arc<(Mutex<Vec<u64>>, Condvar)>) {
        let done = Arc::clone(done);
        let finish = move || {
            done.0.lock().push(name);
            done.1.notify_all();
        };
        of.hand_over(of.pace().begin(of.now_ns(), direction, 4096), Box::new(finish));
    }

    #[test]
    fn replies_are_sent_when_due_and_in_due_order() {
        let clock = Arc::new(ManualClock::new(0));
        let done: Arc<(Mutex<Vec<u64>>, Condvar)> = Arc::default();
        let device = completions(&clock);
        request(&device, Direction::Write, 1, &done);
        request(&device, Direction::Read, 2, &done);
        request(&device, Direction::Read, 3, &done);
        assert_eq!(*done.0.lock(), [], "nothing is due");
        clock.advance(Duration::from_millis(10));
        // The thread naps for at most NAP of real time, independent of the manual clock.
        let mut names = done.0.lock();
        for _ in 0..600 {
            if names.len() == 3 {
                break;
            }
            done.1.wait_for(&mut names, Duration::from_millis(100));
        }
        assert_eq!(*names, [2, 3, 1]);
    }

    #[test]
    fn the_end_finishes_all_at_once() {
        let clock = Arc::new(ManualClock::new(0));
        let done: Arc<(Mutex<Vec<u64>>, Condvar)> = Arc::default();
        let device = completions(&clock);
        for name in 0..100 {
            request(&device, Direction::Read, name, &done);
        }
        let shared = Arc::clone(&device.shared);
        drop(device);
        assert_eq!(done.0.lock().len(), 100);
        // A request after the end is finished by the thread that hands it over.
        let late = Completions { shared, thread: None };
        request(&late, Direction::Read, 100, &done);
        assert_eq!(done.0.lock().len(), 101);
    }
}
