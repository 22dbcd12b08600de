//! Pressure on PM and the movements that relieve it: the throttle mark, groups in flight, waiters for them,
//! and counts of moved blocks.
//!
//! Writers that need PM blocks, workers that demote and the status report meet here, and need not know one
//! another. Atomics, and locks that are held for a few instructions: no other lock is taken under one.

use terrace_runtime::thread;
pub mod cpu_permits;

use crate::error::FsError;
use crate::parts::pressure::cpu_permits::CpuPermits;
use std::time::Duration;
use terrace_format::TierId;
use terrace_media::block::{AlignedBlock, Buffer};
use terrace_runtime::interleave;
use terrace_runtime::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use terrace_runtime::sync::{Condvar, Mutex};
use terrace_runtime::thread::Waker;

/// Migration workers, each with a group: while some groups are being written and flushed another is copied or installed.
/// With three the device rests while all of them compute, or the processor while all of them wait.
pub const WORKERS: usize = 6;

/// Blocks copied through DRAM at once: large enough for the device, small enough to keep.
const SLICE: usize = 512;

/// State that writers, movers and reports share.
pub struct Pressure {
    /// PM blocks for data and metadata.
    usable_blocks: u64,
    /// Writers wait a little while fewer PM blocks are free.
    throttle_below: AtomicU64,
    /// Set when the mount ends: nothing that may take long goes on.
    ending: AtomicBool,
    /// Blocks taken by workers and not yet done.
    in_flight: AtomicU64,
    /// Rises with every group done; waiters for space sleep on it.
    rounds: (Mutex<u64>, Condvar),
    /// Migration workers that run.
    workers: AtomicU32,
    wakers: Vec<Waker>,
    /// Operations that found no PM block and demote by themselves: then the last blocks of open files are
    /// demoted too.
    pressed: AtomicU32,
    /// Calls of `sync --to` under way, which want PM emptied.
    draining: AtomicU32,
    /// The slowest tier that a `sync --to` under way asks for; 0 if any lower tier will do.
    drain_to: AtomicU8,
    /// Why the last attempt to demote could not run; cleared by success.
    reason: Mutex<Option<FsError>>,
    /// A device failed that was sound until then, and another is left: the next round need not wait.
    other_device: AtomicBool,
    /// Copy buffers to use again.
    buffers: Mutex<Vec<Buffer>>,
    /// Permits to compute, of which there are as many as processors.
    permits: CpuPermits,
    moved: MoveCounts,
}

/// Blocks moved since the mount.
#[derive(Default)]
pub struct MoveCounts {
    /// PM blocks demoted.
    pub demoted: AtomicU64,
    /// The share of `demoted` that was written in place.
    pub in_place: AtomicU64,
    /// Clean blocks demoted without a write.
    pub evicted_clean: AtomicU64,
    /// Blocks promoted into PM.
    pub promoted: AtomicU64,
    /// Blocks relocated from a lower tier to another.
    pub relocated: AtomicU64,
    /// The share of `relocated` that was a spill.
    pub spilled: AtomicU64,
    /// Blocks that changed while they were copied.
    pub skipped: AtomicU64,
    /// PM blocks given up.
    pub left: AtomicU64,
    /// When a block last went down, came up, was spilled: nanoseconds, plus one; 0 is never.
    pub last_down: AtomicU64,
    /// When a block last came up.
    pub last_up: AtomicU64,
    /// When a block was last spilled.
    pub last_spill: AtomicU64,
}

impl Pressure {
    /// `throttle_below`: free PM blocks below which writers wait a little.
    pub fn new(usable_blocks: u64, throttle_below: u64) -> Pressure {
        Pressure {
            usable_blocks,
            throttle_below: AtomicU64::new(throttle_below),
            ending: AtomicBool::new(false),
            in_flight: AtomicU64::new(0),
            rounds: (Mutex::new(0), Condvar::new()),
            workers: AtomicU32::new(0),
            wakers: (0..WORKERS).map(|_| Waker::new()).collect(),
            pressed: AtomicU32::new(0),
            draining: AtomicU32::new(0),
            drain_to: AtomicU8::new(0),
            reason: Mutex::new(None),
            other_device: AtomicBool::new(false),
            buffers: Mutex::default(),
            permits: CpuPermits::new(thread::processors()),
            moved: MoveCounts::default(),
        }
    }

    /// PM blocks for data and metadata.
    pub fn usable_blocks(&self) -> u64 {
        self.usable_blocks
    }

    /// Free PM blocks below which writers wait a little.
    pub fn throttle_below(&self) -> u64 {
        self.throttle_below.load(Ordering::Relaxed)
    }

    /// Writers wait below that many free blocks from now on: for tests.
    pub fn set_throttle(&self, below: u64) {
        self.throttle_below.store(below, Ordering::Relaxed);
    }

    /// The mount ends: what may take long gives up.
    pub fn begin_end(&self) {
        self.ending.store(true, Ordering::Release);
    }

    /// Whether the mount ends.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// Counts the blocks of a group as in flight.
    pub fn begin_group(&self, blocks: usize) {
        self.in_flight.fetch_add(blocks as u64, Ordering::AcqRel);
    }

    /// Ends what [`Self::begin_group`] began. Call [`Self::round_done`] when waiters may look again.
    pub fn end_group(&self, blocks: usize) {
        let before = self.in_flight.fetch_sub(blocks as u64, Ordering::AcqRel);
        assert!(before >= blocks as u64, "{blocks} of {before} blocks in flight are done");
    }

    /// Blocks that workers have taken and not yet done.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Acquire)
    }

    /// Wakes waiters for a group.
    pub fn round_done(&self) {
        *self.rounds.0.lock() += 1;
        self.rounds.1.notify_all();
    }

    /// Waits until another round is done, at most `limit`.
    pub fn wait_round(&self, limit: Duration) {
        if interleave::active() {
            return interleave::point("migration:round");
        }
        let mut rounds = self.rounds.0.lock();
        self.rounds.1.wait_for(&mut rounds, limit);
    }

    /// A worker begins; [`Self::worker_ends`] is to follow.
    pub fn worker_begins(&self) {
        self.workers.fetch_add(1, Ordering::Relaxed);
    }

    /// A worker ends.
    pub fn worker_ends(&self) {
        let before = self.workers.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a worker ends that has not begun");
    }

    /// Whether migration workers run: only then a slowed writer waits for a demotion.
    pub(crate) fn has_workers(&self) -> bool {
        self.workers.load(Ordering::Relaxed) > 0
    }

    /// A worker's waker.
    pub fn waker(&self, worker: usize) -> Waker {
        self.wakers.get(worker).cloned().unwrap_or_default()
    }

    /// Wakes all workers.
    pub fn wake(&self) {
        self.wakers.iter().for_each(Waker::wake);
    }

    /// Wakes all workers but the first.
    pub fn wake_others(&self) {
        self.wakers.iter().skip(1).for_each(Waker::wake);
    }

    /// Runs `work` for an operation that found no PM block.
    pub fn pressed<T>(&self, work: impl FnOnce() -> T) -> T {
        self.pressed.fetch_add(1, Ordering::AcqRel);
        let done = work();
        self.pressed.fetch_sub(1, Ordering::AcqRel);
        done
    }

    /// Whether an operation found no PM block and demotes now.
    pub(crate) fn is_pressed(&self) -> bool {
        self.pressed.load(Ordering::Acquire) > 0
    }

    /// From now on what leaves PM goes to `tier` or below, if there is room.
    pub fn begin_drain(&self, tier: u8) {
        self.drain_to.fetch_max(tier, Ordering::AcqRel);
        self.draining.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends what [`Self::begin_drain`] began.
    pub fn end_drain(&self) {
        let before = self.draining.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "a drain of PM ends that has not begun");
        if before == 1 {
            self.drain_to.store(0, Ordering::Release);
        }
    }

    /// Whether a `sync --to` wants PM emptied.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire) > 0
    }

    /// The highest tier on which a `sync --to` under way leaves data; 0 without such a call.
    pub fn drain_to(&self) -> TierId {
        TierId(self.drain_to.load(Ordering::Acquire))
    }

    /// Why the last attempt to demote could not run, unless another one has since.
    pub fn reason(&self) -> Option<FsError> {
        self.reason.lock().clone()
    }

    /// Whether the last attempt to demote could not run.
    pub fn is_stuck(&self) -> bool {
        self.reason.lock().is_some()
    }

    /// Demotion cannot run.
    pub fn set_reason(&self, error: FsError) {
        *self.reason.lock() = Some(error);
    }

    /// Demotion runs.
    pub fn clear_reason(&self) {
        *self.reason.lock() = None;
    }

    /// A device failed that was sound until now, and another one is left.
    pub(crate) fn note_other_device(&self) {
        self.other_device.store(true, Ordering::Release);
    }

    /// Whether that was noted since the last call.
    pub fn take_other_device(&self) -> bool {
        self.other_device.swap(false, Ordering::AcqRel)
    }

    /// A buffer for copies of blocks.
    pub(crate) fn take_buffer(&self) -> Buffer {
        self.buffers.lock().pop().unwrap_or_else(|| vec![AlignedBlock::zeroed(); SLICE])
    }

    /// Keeps a buffer for the next group.
    pub(crate) fn put_buffer(&self, buffer: Buffer) {
        assert_eq!(buffer.len(), SLICE, "blocks of a copy buffer");
        let mut buffers = self.buffers.lock();
        if buffers.len() < WORKERS {
            buffers.push(buffer);
        }
    }

    /// Permits to compute.
    pub fn permits(&self) -> &CpuPermits {
        &self.permits
    }

    /// Counts of blocks moved.
    pub fn moved(&self) -> &MoveCounts {
        &self.moved
    }
}

impl MoveCounts {
    /// Notes that blocks were written below.
    pub(crate) fn note_down(&self, blocks: u64, now_ns: u64) {
        self.demoted.fetch_add(blocks, Ordering::Relaxed);
        self.last_down.store(now_ns + 1, Ordering::Relaxed);
    }

    /// Notes that a block came up.
    pub fn note_up(&self, now_ns: u64) {
        self.promoted.fetch_add(1, Ordering::Relaxed);
        self.last_up.store(now_ns + 1, Ordering::Relaxed);
    }

    /// Notes that a nearly full tier gave blocks away.
    pub(crate) fn note_spill(&self, blocks: u64, now_ns: u64) {
        self.spilled.fetch_add(blocks, Ordering::Relaxed);
        self.last_spill.store(now_ns + 1, Ordering::Relaxed);
    }
}
