//! The scheduling policy of the threads of rings.
//!
//! The thread of a ring answers a program that slept on the same processor. The kernel wakes the program on another one
//! that idles, unless nothing but threads of the policy SCHED_IDLE can run on its own (`select_idle_sibling`). Then both
//! processors are woken for each request: 25 µs instead of 10. So a ring's thread has that policy, as long as it is not
//! put behind others by it: the kernel shares a processor among scheduling groups first, and the policy counts among the
//! threads of a group alone. The group is this process's own, and no other thread of the process works.
//!
//! Invariant: a thread with that policy is known here until work begins, which takes the policy from all of them first.
//! Lock order: the lock of the threads is a leaf.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use terrace_runtime::sync::Mutex;
use terrace_runtime::{Clock, SystemClock, activity, scheduling_group};

/// Time between two looks whether the scheduling group is still this process's own.
const PAUSE: Duration = Duration::from_secs(5);
/// Time between two changes of a thread to SCHED_IDLE, at least: each is a system call.
const REST_NS: u64 = 1_000_000;

/// Whether threads may have the policy, for what [`watch`] saw.
static IS_ALLOWED: AtomicBool = AtomicBool::new(false);
static THREADS: Mutex<Vec<Arc<Thread>>> = Mutex::new(Vec::new());

struct Thread {
    id: i32,
    is_lowered: AtomicBool,
}

impl Thread {
    fn raise(&self) {
        if self.is_lowered.swap(false, Ordering::SeqCst)
            && let Err(error) = set(self.id, libc::SCHED_OTHER)
        {
            tracing::warn!(%error, "the thread of a ring keeps the scheduling policy SCHED_IDLE");
        }
    }
}

fn raise_all() {
    THREADS.lock().iter().for_each(|thread| thread.raise());
}

fn set(thread: i32, policy: i32) -> io::Result<()> {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads the structure and keeps nothing.
    let done = unsafe { libc::sched_setscheduler(thread, policy, &raw const priority) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The policy of the calling thread, until dropped.
pub(super) struct Policy {
    thread: Arc<Thread>,
    /// No change to SCHED_IDLE before this time.
    next_ns: u64,
}

impl Policy {
    pub fn of_this_thread() -> Policy {
        activity::when_work_begins(raise_all);
        let id = rustix::thread::gettid().as_raw_nonzero().get();
        let thread = Arc::new(Thread { id, is_lowered: AtomicBool::new(false) });
        THREADS.lock().push(Arc::clone(&thread));
        Policy { thread, next_ns: 0 }
    }

    /// Before the thread answers and waits.
    #[inline]
    pub fn before_wait(&mut self, clock: &SystemClock) {
        if !self.thread.is_lowered.load(Ordering::Relaxed)
            && IS_ALLOWED.load(Ordering::Relaxed)
            && !activity::is_any()
        {
            self.lower(clock.monotonic_ns());
        }
    }

    fn lower(&mut self, now: u64) {
        if now < self.next_ns {
            return;
        }
        self.next_ns = now + REST_NS;
        if set(self.thread.id, libc::SCHED_IDLE).is_err() {
            return;
        }
        self.thread.is_lowered.store(true, Ordering::SeqCst);
        // Work that has begun meanwhile may not have seen this thread.
        if activity::is_any() || !IS_ALLOWED.load(Ordering::SeqCst) {
            self.thread.raise();
        }
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        // The number may be that of another thread afterwards.
        THREADS.lock().retain(|thread| !Arc::ptr_eq(thread, &self.thread));
    }
}

/// Watches whether threads of rings may have the policy, until `ends` has no sender.
pub(crate) fn watch(ends: &Receiver<()>) {
    // A user without the privilege to return from the policy (RLIMIT_NICE) could not follow a change of groups.
    if set(0, libc::SCHED_IDLE).and_then(|()| set(0, libc::SCHED_OTHER)).is_err() {
        return;
    }
    loop {
        let is_own = scheduling_group::is_own();
        IS_ALLOWED.store(is_own, Ordering::SeqCst);
        if !is_own {
            raise_all();
        }
        if ends.recv_timeout(PAUSE) != Err(RecvTimeoutError::Timeout) {
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

    fn own_policy() -> i32 {
        // SAFETY: the call has no pointers.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn a_ring_has_the_policy_until_work_begins() {
        let clock = SystemClock::default();
        let thread = spawn("ring", move || {
            if set(0, libc::SCHED_IDLE).and_then(|()| set(0, libc::SCHED_OTHER)).is_err() {
                return;
            }
            let mut policy = Policy::of_this_thread();
            policy.before_wait(&clock);
            assert_eq!(own_policy(), libc::SCHED_OTHER, "not allowed");
            IS_ALLOWED.store(true, Ordering::SeqCst);
            for _ in 0..2 {
                // Other tests may work.
                for _ in 0..5000 {
                    policy.before_wait(&clock);
                    if own_policy() == libc::SCHED_IDLE {
                        break;
                    }
                    clock.sleep(Duration::from_millis(2));
                }
                assert_eq!(own_policy(), libc::SCHED_IDLE);
                let _work = Work::begin();
                assert_eq!(own_policy(), libc::SCHED_OTHER);
                policy.before_wait(&clock);
                assert_eq!(own_policy(), libc::SCHED_OTHER);
            }
            IS_ALLOWED.store(false, Ordering::SeqCst);
        });
        thread.unwrap().join().unwrap();
    }
}
