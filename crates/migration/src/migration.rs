//! State of migration.

use crate::demote::queue::VictimQueue;
use crate::pace::Pace;
use crate::planner::LATE;
use crate::promote::cursor::Cursor;
use crate::spill::state::Spilling;
use std::sync::Arc;
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use terrace_store::store::Store;

/// Migration's state.
pub struct Migration {
    /// The store whose blocks move.
    pub store: Arc<Store>,
    /// Victims picked and not yet taken.
    pub victims: VictimQueue,
    pub(crate) not_before_ns: AtomicU64,
    /// Rounds in a row in which all that was picked stayed, and until when the policy rests after the last of them.
    pub(crate) stayed: AtomicU32,
    pub(crate) rest_until_ns: AtomicU64,
    /// When worker 0 came by last.
    pub(crate) first_came_ns: AtomicU64,
    pub(crate) spilling: Spilling,
    pub(crate) pace: Mutex<Pace>,
    pub(crate) reverse: Mutex<Cursor>,
    pub(crate) to_dram: Mutex<Cursor>,
}

impl Migration {
    /// Migration of a store, before its first round.
    pub fn new(store: Arc<Store>) -> Migration {
        Migration {
            store,
            victims: VictimQueue::default(),
            not_before_ns: AtomicU64::new(0),
            stayed: AtomicU32::new(0),
            rest_until_ns: AtomicU64::new(0),
            first_came_ns: AtomicU64::new(0),
            spilling: Spilling::new(),
            pace: Mutex::default(),
            reverse: Mutex::default(),
            to_dram: Mutex::default(),
        }
    }

    /// Whether a worker, which comes by now, does what one of them does for all.
    pub(crate) fn leads(&self, worker: usize, now_ns: u64) -> bool {
        if worker == 0 {
            self.first_came_ns.store(now_ns, Ordering::Relaxed);
            return true;
        }
        let since_ns = self.first_came_ns.load(Ordering::Relaxed);
        now_ns.saturating_sub(since_ns) > LATE.as_nanos() as u64
    }
}
