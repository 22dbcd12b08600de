//! Victims that wait for a worker.
//!
//! Lock order: the right to pick, then the queue.

use std::collections::VecDeque;
use terrace_runtime::sync::{Mutex, MutexGuard};
use terrace_store::moving::victim::Victim;
use terrace_store::parts::pressure::Pressure;
use terrace_wal::Error;

/// Victims picked and not yet taken by a worker, sorted by file and block.
#[derive(Default)]
pub struct VictimQueue {
    queue: Mutex<VecDeque<Victim>>,
    /// Held by the thread that fills the queue; never waited for. Taken before the queue's.
    picking: Mutex<()>,
    /// Why owners of blocks could not be read when victims were picked the last time. Damage for good is not told here: a
    /// full PM is a full PM then, and writes go on into DRAM (I9).
    hidden: Mutex<Option<Error>>,
}

impl VictimQueue {
    /// The next group of those that were picked; `None` while so many blocks are in flight. Judged under the lock: writers
    /// that waited for it while others picked would all get one, and all be held by a device that hangs.
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

    /// Whether no victim waits for a worker.
    pub fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }

    /// Takes all of them; the caller gives them back.
    pub fn take_all(&self) -> Vec<Victim> {
        self.queue.lock().drain(..).collect()
    }

    /// The right to fill the queue; `None` while another thread has it.
    pub fn try_pick(&self) -> Option<MutexGuard<'_, ()>> {
        self.picking.try_lock()
    }

    /// Puts what was picked there. The caller has the right to, and found the queue empty.
    pub fn fill(&self, picked: VecDeque<Victim>) {
        *self.queue.lock() = picked;
    }

    /// Notes why owners of blocks could not be read.
    pub(crate) fn set_hidden(&self, hidden: Option<Error>) {
        *self.hidden.lock() = hidden;
    }

    /// Why owners of blocks could not be read when victims were picked the last time.
    pub fn hidden(&self) -> Option<Error> {
        self.hidden.lock().clone()
    }
}
