//! State of migration.

use crate::demote::queue::VictimQueue;
use crate::pace::Pace;
use crate::promote::cursor::Cursor;
use crate::spill::state::Spilling;
use std::sync::Arc;
use std::time::Duration;
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use terrace_store::store::Store;

/// When worker 0 has not come by for this long, another worker leads: worker 0 may hang with a device.
const STUCK_AFTER: Duration = Duration::from_secs(1);

/// Migration's state.
pub struct Migration {
    /// The store whose blocks move.
    pub store: Arc<Store>,
    /// Victims that no worker has taken yet.
    pub victims: VictimQueue,
    pub(crate) not_before_ns: AtomicU64,
    /// The reason that was logged last, and when.
    pub(crate) warned: Mutex<Option<(String, u64)>>,
    /// Rounds in a row in which all victims stayed, and the end of the pause after the last of them.
    pub(crate) stayed: AtomicU32,
    pub(crate) rest_until_ns: AtomicU64,
    /// The time at which worker 0 came by last.
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
            warned: Mutex::default(),
            stayed: AtomicU32::new(0),
            rest_until_ns: AtomicU64::new(0),
            first_came_ns: AtomicU64::new(0),
            spilling: Spilling::new(),
            pace: Mutex::default(),
            reverse: Mutex::default(),
            to_dram: Mutex::default(),
        }
    }

    /// Whether this worker, which comes by now, leads: the leading worker does the common work of all
    /// workers.
    pub(crate) fn leads(&self, worker: usize, now_ns: u64) -> bool {
        if worker == 0 {
            self.first_came_ns.store(now_ns, Ordering::Relaxed);
            return true;
        }
        let since_ns = self.first_came_ns.load(Ordering::Relaxed);
        now_ns.saturating_sub(since_ns) > STUCK_AFTER.as_nanos() as u64
    }
}
