//! CPU permits: at most as many workers compute at a time as there are processors.
//!
//! A scheduler shares a processor among all threads that can run. Beside six computing workers the threads of
//! users get a fourth of the processor; beside a single worker they get most of it, and the device is as
//! busy: a worker gives its permit away while it waits for a device, and the next worker copies or installs
//! meanwhile. Invariant: no thread waits for a permit while it holds a lock. A thread without a permit, as a
//! writer that demotes for itself, is not counted. Lock order: the lock of the permits is a leaf.

use terrace_runtime::sync::{Condvar, Mutex};
use terrace_runtime::{interleave, thread};

/// The CPU permits of the workers.
pub struct CpuPermits {
    state: Mutex<State>,
    given_back: Condvar,
}

struct State {
    /// All permits: as many as processors.
    all: usize,
    left: usize,
    /// The threads that hold a permit.
    holders: Vec<usize>,
}

/// A permit of this thread; given back when dropped.
#[must_use]
pub struct CpuPermit<'a>(Option<&'a CpuPermits>);

impl CpuPermits {
    /// `processors` permits, at least one.
    pub fn new(processors: usize) -> CpuPermits {
        let all = processors.max(1);
        let state = State { all, left: all, holders: Vec::new() };
        CpuPermits { state: Mutex::new(state), given_back: Condvar::new() }
    }

    /// Waits for a permit. Call it without locks.
    pub fn take(&self) -> CpuPermit<'_> {
        // In a simulation the same thread drives all workers, so it would wait for itself.
        if interleave::active() {
            return CpuPermit(None);
        }
        self.acquire();
        CpuPermit(Some(self))
    }

    /// Runs `wait`, which waits for a device; a worker with a permit gives it away meanwhile. Call it without
    /// locks.
    pub fn while_waiting<T>(&self, wait: impl FnOnce() -> T) -> T {
        let had = self.release();
        let done = wait();
        if had {
            self.acquire();
        }
        done
    }

    fn acquire(&self) {
        let mut state = self.state.lock();
        while state.left == 0 {
            self.given_back.wait(&mut state);
        }
        state.left -= 1;
        state.holders.push(thread::index());
        let (held, all) = (state.holders.len(), state.all);
        assert_eq!(held + state.left, all, "{held} of {all} permits are held");
    }

    /// False when this thread has no permit.
    fn release(&self) -> bool {
        let mut state = self.state.lock();
        let own = thread::index();
        let Some(at) = state.holders.iter().position(|holder| *holder == own) else { return false };
        state.holders.swap_remove(at);
        state.left += 1;
        drop(state);
        self.given_back.notify_one();
        true
    }
}

impl Drop for CpuPermit<'_> {
    fn drop(&mut self) {
        if let Some(permits) = self.0 {
            permits.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering;

    #[test]
    fn at_most_the_given_number_of_threads_hold_a_cpu_permit() {
        let permits = CpuPermits::new(2);
        let (at_work, most, away) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _permit = permits.take();
                        most.fetch_max(1 + at_work.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
                        std::thread::yield_now();
                        at_work.fetch_sub(1, Ordering::SeqCst);
                        permits.while_waiting(|| {
                            away.fetch_add(1, Ordering::SeqCst);
                            std::thread::yield_now();
                        });
                        most.fetch_max(1 + at_work.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
                        std::thread::yield_now();
                        at_work.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(most.load(Ordering::SeqCst), 2);
        assert_eq!((away.load(Ordering::SeqCst), permits.state.lock().left), (1200, 2));
    }

    #[test]
    fn a_thread_without_a_permit_gives_no_permit_away() {
        let permits = CpuPermits::new(1);
        let permit = permits.take();
        std::thread::scope(|scope| {
            scope.spawn(|| permits.while_waiting(|| ())).join().ok();
        });
        assert_eq!(permits.state.lock().left, 0);
        drop(permit);
        assert_eq!(permits.state.lock().left, 1);
    }
}
