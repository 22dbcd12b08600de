//! Victims that wait for a worker.
//!
//! Lock order: the right to search for victims, then the queue.

use std::collections::VecDeque;
use std::ops::Range;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};
use terrace_runtime::sync::{Mutex, MutexGuard};
use terrace_store::moving::victim::Victim;
use terrace_store::parts::pressure::Pressure;
use terrace_wal::Error;

/// Victims that no worker has taken yet, sorted by file and block.
#[derive(Default)]
pub struct VictimQueue {
    queue: Mutex<VecDeque<Victim>>,
    /// Held by the thread that fills the queue; no thread waits for it. Taken before the lock of the queue.
    picking: Mutex<()>,
    /// The error that hid owners of blocks in the last search for victims. Lasting damage is left out: PM
    /// counts as full then, and writes go to DRAM (I9).
    hidden: Mutex<Option<Error>>,
    /// The blocks of PM that searches for blocks over hidden copies have passed, all turns together.
    passed: AtomicU64,
}

impl VictimQueue {
    /// The next group of queued victims; `None` while too many blocks are in flight. That is decided under
    /// the lock: otherwise every writer that waited for the lock during a search would get a group, and a
    /// device that hangs would hold all writers.
    pub(crate) fn pop_group(&self, pressure: &Pressure, most: u64, in_flight: u64) -> Option<Vec<Victim>> {
        let mut queue = self.queue.lock();
        if pressure.in_flight() >= in_flight {
            return None;
        }
        let count = queue.len().min(most as usize);
        let group: Vec<Victim> = queue.drain(..count).collect();
        pressure.begin_group(count);
        Some(group)
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }

    /// Takes all queued victims; the caller gives them back.
    pub fn take_all(&self) -> Vec<Victim> {
        self.queue.lock().drain(..).collect()
    }

    /// The right to fill the queue; `None` while another thread has it.
    pub fn try_pick(&self) -> Option<MutexGuard<'_, ()>> {
        self.picking.try_lock()
    }

    /// Fills the queue with new victims. The caller holds the right to search, and found the queue empty.
    pub fn fill(&self, picked: VecDeque<Victim>) {
        *self.queue.lock() = picked;
    }

    /// The next `stride` blocks, or fewer, of `all` for a search for blocks over hidden copies: each search goes on where
    /// the last one ended.
    pub(crate) fn next_to_pass(&self, all: Range<u64>, stride: u64) -> Range<u64> {
        let length = (all.end - all.start).max(1);
        let at =
            all.start + self.passed.fetch_add(stride, Ordering::Relaxed) % length.next_multiple_of(stride);
        at..(at + stride).min(all.end)
    }

    /// Notes the error that hid owners of blocks.
    pub(crate) fn set_hidden(&self, hidden: Option<Error>) {
        *self.hidden.lock() = hidden;
    }

    /// Why owners of blocks could not be read when victims were picked the last time.
    pub fn hidden(&self) -> Option<Error> {
        self.hidden.lock().clone()
    }
}
