//! State of write-back: room for dirty pages, and the threads that make it.

use crate::parts::dram::lazy_writes::{BufferOptions, MOST_STEPS};
use crate::parts::dram::write_errors::WriteErrors;
use std::time::Duration;
use terrace_format::{BLOCK_SIZE, Ino};
use terrace_runtime::interleave;
use terrace_runtime::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrace_runtime::sync::{Condvar, Mutex};
use terrace_runtime::thread::Waker;

/// Threads, of which those behind the first only work while all before them are held by a device.
pub const STEPS: usize = 3;

/// A step that takes longer is held by a device.
const STUCK_AFTER: Duration = Duration::from_secs(5);

/// Lazy pages take at most this part of PM: each has the promise of a block, and promises of nearly all free blocks would have
/// each direct write wait for a demotion.
const LAZY_PART: u64 = 2;

/// The state of write-back.
pub struct WriteBack {
    /// Most dirty pages; 0: no write goes to DRAM.
    pub limit_pages: u64,
    /// Most lazy pages.
    pub lazy_limit_pages: u64,
    /// Dirty pages in percent at which write-back begins and ends.
    marks: [u64; 2],
    /// Wakes the first thread.
    pub waker: Waker,
    /// Wakers of the threads that write lazy pages back.
    pub lazy_wakers: [Waker; MOST_STEPS],
    /// Failures, and descriptors to be told of them.
    pub errors: WriteErrors,
    /// Pages that writers may make dirty and have not yet.
    admitted: AtomicU64,
    /// Set from the mark at which write-back begins to that at which it ends: by all pages, and by lazy pages.
    draining: AtomicBool,
    draining_lazy: AtomicBool,
    /// Write-backs into PM under way: their pages may give promises back.
    lazy_in_flight: AtomicU64,
    /// Threads that wait for the end of another group.
    waiting: (Mutex<usize>, Condvar),
    /// When each thread began its present step; 0: the thread is idle.
    pub begun_ns: [AtomicU64; STEPS],
}

impl WriteBack {
    /// With room for dirty pages, in front of PM with so many blocks.
    pub fn new(options: &BufferOptions, pm_blocks: u64) -> WriteBack {
        let limit_pages = options.bytes / BLOCK_SIZE;
        WriteBack {
            limit_pages,
            lazy_limit_pages: limit_pages.min((pm_blocks / LAZY_PART).max(1)),
            marks: [options.low_percent, options.high_percent].map(|free| 100 - u64::from(free.min(100))),
            waker: Waker::new(),
            lazy_wakers: Default::default(),
            errors: WriteErrors::new(),
            admitted: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            draining_lazy: AtomicBool::new(false),
            lazy_in_flight: AtomicU64::new(0),
            waiting: Default::default(),
            begun_ns: Default::default(),
        }
    }

    /// Lets a writer make `pages` pages dirty, if the limit leaves room beside the pages admitted to other
    /// writers. A write larger than the limit is admitted alone. If several writers ask at once, a write that
    /// would fit may be refused.
    pub fn admit(&self, pages: u64, dirty: u64) -> Option<DirtyRoom<'_>> {
        let before = self.admitted.fetch_add(pages, Ordering::AcqRel).saturating_add(dirty);
        let room = DirtyRoom { write_back: self, pages };
        (before == 0 || before + pages <= self.limit_pages).then_some(room)
    }

    /// As [`Self::admit`], of lazy pages; writers that ask at once may pass the limit of lazy pages by their own.
    pub fn admit_lazy(&self, pages: u64, dirty: u64, lazy: u64) -> Option<DirtyRoom<'_>> {
        (lazy == 0 || lazy + pages <= self.lazy_limit_pages).then(|| self.admit(pages, dirty)).flatten()
    }

    /// Pages that writers may make dirty and have not yet.
    pub fn admitted_pages(&self) -> u64 {
        self.admitted.load(Ordering::Acquire)
    }

    /// Whether the first `count` threads are all held by a device.
    pub fn are_late(&self, count: usize, now_ns: u64) -> bool {
        let late = |begun: &AtomicU64| {
            let begun_ns = begun.load(Ordering::Acquire);
            begun_ns > 0 && now_ns.saturating_sub(begun_ns) > STUCK_AFTER.as_nanos() as u64
        };
        self.begun_ns.iter().take(count).all(late)
    }

    /// Whether some thread is held by a device, and with it the pages that it has in flight.
    pub fn is_one_late(&self, now_ns: u64) -> bool {
        self.are_late(1, now_ns)
    }

    /// Wakes the background when little room is left.
    pub fn wake_if_due(&self, dirty: u64, lazy: u64) {
        if self.is_nearly_full(dirty) {
            self.begin_draining();
        }
        self.is_lazy_draining(lazy);
    }

    /// The first thread that finds little room wakes all threads that make room.
    fn begin_draining(&self) {
        if !self.draining.swap(true, Ordering::AcqRel) {
            self.waker.wake();
            self.lazy_wakers.iter().for_each(Waker::wake);
        }
    }

    fn is_nearly_full(&self, dirty: u64) -> bool {
        dirty.saturating_mul(100) > self.limit_pages.saturating_mul(self.marks[0])
    }

    /// Whether pages have to go for room.
    pub fn is_draining(&self, dirty: u64) -> bool {
        if dirty.saturating_mul(100) <= self.limit_pages.saturating_mul(self.marks[1]) {
            self.draining.store(false, Ordering::Release);
        } else if self.is_nearly_full(dirty) {
            self.begin_draining();
        }
        self.draining.load(Ordering::Acquire)
    }

    /// Whether lazy pages have to go, because they hold promises of too many blocks.
    pub fn is_lazy_draining(&self, lazy: u64) -> bool {
        let (lazy, [begin, end]) =
            (lazy.saturating_mul(100), self.marks.map(|mark| mark * self.lazy_limit_pages));
        if lazy > begin {
            if !self.draining_lazy.swap(true, Ordering::AcqRel) {
                self.lazy_wakers.iter().for_each(Waker::wake);
            }
        } else if lazy <= end && self.draining_lazy.load(Ordering::Relaxed) {
            self.draining_lazy.store(false, Ordering::Release);
        }
        self.draining_lazy.load(Ordering::Acquire)
    }

    /// Begins a write-back into PM, which lasts until the guard is dropped.
    pub fn begin_lazy(&self) -> LazyFlight<'_> {
        self.lazy_in_flight.fetch_add(1, Ordering::AcqRel);
        LazyFlight { write_back: self }
    }

    /// Write-backs into PM under way.
    pub fn lazy_in_flight(&self) -> u64 {
        self.lazy_in_flight.load(Ordering::Acquire)
    }

    /// Waits until another group is done, at most `limit`.
    pub fn wait_round(&self, limit: Duration) {
        if interleave::active() {
            return interleave::point("writeback:round");
        }
        let mut waiting = self.waiting.0.lock();
        *waiting += 1;
        self.waiting.1.wait_for(&mut waiting, limit);
        *waiting -= 1;
    }

    /// Threads in [`Self::wait_round`].
    pub fn waiting_threads(&self) -> usize {
        *self.waiting.0.lock()
    }

    /// Wakes writers that wait for room.
    pub fn round_done(&self) {
        // Without this question each fsync would be a call of the kernel.
        if *self.waiting.0.lock() > 0 {
            self.waiting.1.notify_all();
        }
    }

    /// The file is gone.
    pub fn forget(&self, ino: Ino) {
        self.errors.forget(ino);
    }
}

/// Room for pages that a writer is about to make dirty. Kept until they are: or each of many writers would find the same.
#[must_use]
pub struct DirtyRoom<'a> {
    write_back: &'a WriteBack,
    pages: u64,
}

impl Drop for DirtyRoom<'_> {
    fn drop(&mut self) {
        let before = self.write_back.admitted.fetch_sub(self.pages, Ordering::AcqRel);
        assert!(before >= self.pages, "{} of {before} admitted pages are given back", self.pages);
    }
}

/// A write-back into PM under way.
#[must_use]
pub struct LazyFlight<'a> {
    write_back: &'a WriteBack,
}

impl Drop for LazyFlight<'_> {
    fn drop(&mut self) {
        self.write_back.lazy_in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::WriteBack;
    use crate::parts::dram::lazy_writes::BufferOptions;

    #[test]
    fn lazy_pages_drain_by_the_marks_of_half_of_pm() {
        let write_back = WriteBack::new(&BufferOptions::of(1 << 20), 100);
        assert_eq!((write_back.limit_pages, write_back.lazy_limit_pages), (256, 50));
        for (lazy, expected) in [(47, false), (48, true), (41, true), (40, false), (47, false)] {
            assert_eq!(write_back.is_lazy_draining(lazy), expected, "{lazy} pages");
        }
        assert!(write_back.admit_lazy(10, 200, 40).is_some());
        assert!(write_back.admit_lazy(11, 200, 40).is_none());
        assert!(write_back.admit_lazy(10, 250, 40).is_none(), "pages for devices fill the buffer");
    }
}
