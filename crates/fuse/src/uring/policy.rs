//! The scheduling policy of the threads of rings.
//!
//! The thread of a ring answers a program that slept on the same processor. The kernel wakes the program on another one
//! that idles, unless nothing but threads of the policy SCHED_IDLE can run on its own (`select_idle_sibling`). Then both
//! processors are woken for each request: 25 µs instead of 10. So a ring's thread has that policy, as long as it is not
//! put behind others by it: the kernel shares a processor among scheduling groups first, and the policy counts among the
//! threads of a group alone. The group is this process's own, and no other thread of the process works.
//!
//! All threads have the same policy. The share of a group on a processor follows the load of its threads there, beside
//! their load on all processors: one lowered ring beside a busy one of another policy would get next to nothing.
//!
//! Invariant: threads are lowered while no work is counted, and raised by the thread that begins to work before it does.
//! Lock order: the lock of the threads is a leaf.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use terrace_runtime::sync::Mutex;
use terrace_runtime::{activity, scheduling_group};

/// Time between two looks whether the scheduling group is still this process's own.
const PAUSE: Duration = Duration::from_secs(5);
/// Time between two changes to SCHED_IDLE, at least, for each thread: each change is a system call.
const REST_NS: u64 = 100_000;

/// The threads of rings, by number.
struct Threads {
    numbers: Vec<i32>,
    /// For what [`watch`] saw.
    is_allowed: bool,
    is_lowered: bool,
    /// Not lowered again before this time.
    next_ns: u64,
}

static THREADS: Mutex<Threads> =
    Mutex::new(Threads { numbers: Vec::new(), is_allowed: false, is_lowered: false, next_ns: 0 });
/// Whether the threads could be lowered: allowed and not lowered. A hint, read without the lock.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

impl Threads {
    fn set_all(&mut self, policy: i32) {
        let failed = self.numbers.iter().filter_map(|thread| set(*thread, policy).err()).next();
        if let Some(error) = failed {
            tracing::warn!(%error, policy, "the scheduling policy of a ring's thread cannot be set");
            // Not tried again before the next look of the watch.
            self.is_allowed = false;
        }
        self.is_lowered = policy == libc::SCHED_IDLE;
        IS_WANTED.store(self.is_allowed && !self.is_lowered, Ordering::Relaxed);
    }

    fn raise(&mut self) {
        if self.is_lowered {
            self.set_all(libc::SCHED_OTHER);
        }
    }

    fn lower(&mut self, now: u64) {
        // The thread that begins to work counts it first, then takes the lock.
        if self.is_allowed && !self.is_lowered && now >= self.next_ns && !activity::is_any() {
            self.next_ns = now + REST_NS * self.numbers.len() as u64;
            self.set_all(libc::SCHED_IDLE);
        }
    }
}

fn set(thread: i32, policy: i32) -> io::Result<()> {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads the structure and keeps nothing.
    let done = unsafe { libc::sched_setscheduler(thread, policy, &raw const priority) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn own_policy() -> i32 {
    // SAFETY: the call has no pointers.
    unsafe { libc::sched_getscheduler(0) }
}

/// A thread started by a lowered thread inherits the policy.
fn started() {
    if own_policy() == libc::SCHED_IDLE && set(0, libc::SCHED_OTHER).is_err() {
        tracing::warn!("a thread started by a ring keeps the scheduling policy SCHED_IDLE");
    }
}

/// The calling thread as a thread of rings, until dropped.
pub(crate) struct Policy(i32);

impl Policy {
    pub(crate) fn of_this_thread() -> Policy {
        activity::when_work_begins(|| THREADS.lock().raise());
        activity::when_a_thread_starts(started);
        let number = rustix::thread::gettid().as_raw_nonzero().get();
        let mut threads = THREADS.lock();
        threads.raise();
        threads.numbers.push(number);
        Policy(number)
    }

    /// Before the thread answers and waits.
    #[inline]
    pub(crate) fn before_wait(&self) {
        if IS_WANTED.load(Ordering::Relaxed) && !activity::is_any() {
            let now = activity::now_ns();
            if !activity::weighs_at(now) {
                THREADS.lock().lower(now);
            }
        }
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        // The number may be that of another thread afterwards.
        let mut threads = THREADS.lock();
        threads.raise();
        threads.numbers.retain(|number| *number != self.0);
    }
}

fn allow(is_allowed: bool) {
    let mut threads = THREADS.lock();
    threads.is_allowed = is_allowed;
    let policy = if threads.is_lowered && is_allowed { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    threads.set_all(policy);
}

/// Watches whether threads of rings may have the policy, until `ends` has no sender. Once they may not they never may
/// again: the kernel leaves threads in their group when autogroup is switched on.
pub(crate) fn watch(ends: &Receiver<()>) {
    // A user without the privilege to return from the policy (RLIMIT_NICE) could not follow a change of groups.
    if set(0, libc::SCHED_IDLE).and_then(|()| set(0, libc::SCHED_OTHER)).is_err() {
        return;
    }
    loop {
        let is_own = scheduling_group::is_own();
        allow(is_own);
        if !is_own || ends.recv_timeout(PAUSE) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use terrace_runtime::activity::Work;
    use terrace_runtime::thread::spawn;
    use terrace_runtime::{Clock, SystemClock};

    #[test]
    fn a_ring_has_the_policy_until_work_begins() {
        let clock = SystemClock::default();
        let thread = spawn("ring", move || {
            if set(0, libc::SCHED_IDLE).and_then(|()| set(0, libc::SCHED_OTHER)).is_err() {
                return;
            }
            let policy = Policy::of_this_thread();
            policy.before_wait();
            assert_eq!(own_policy(), libc::SCHED_OTHER, "not allowed");
            allow(true);
            for _ in 0..2 {
                // Other tests may work.
                for _ in 0..5000 {
                    policy.before_wait();
                    if own_policy() == libc::SCHED_IDLE {
                        break;
                    }
                    clock.sleep(Duration::from_millis(2));
                }
                assert_eq!(own_policy(), libc::SCHED_IDLE);
                assert_eq!(spawn("started", own_policy).unwrap().join().unwrap(), libc::SCHED_OTHER);
                let _work = Work::begin();
                assert_eq!(own_policy(), libc::SCHED_OTHER);
                policy.before_wait();
                assert_eq!(own_policy(), libc::SCHED_OTHER);
            }
            allow(false);
            assert_eq!(own_policy(), libc::SCHED_OTHER);
        });
        thread.unwrap().join().unwrap();
    }
}
