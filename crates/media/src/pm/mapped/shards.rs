//! Counters of a mapped PM, apart by thread.
//!
//! Invariant: two threads with one shard may lose counts, other threads count exactly.

use crate::pm::PmCounters;
use std::sync::atomic::{AtomicU64, Ordering};

const COUNTER_SHARDS: usize = 64;

/// Counts of one thread, on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Shard {
    pub fences: AtomicU64,
    pub lines: AtomicU64,
}

impl Shard {
    /// A load and a store instead of a locked add: a locked instruction would wait for streaming stores.
    #[inline]
    pub fn add(counter: &AtomicU64, count: u64) {
        counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }
}

/// The shards of all threads.
pub(super) struct Shards(Box<[Shard; COUNTER_SHARDS]>);

impl Default for Shards {
    fn default() -> Shards {
        Shards(Box::new(std::array::from_fn(|_| Shard::default())))
    }
}

impl Shards {
    /// The shard of this thread.
    #[inline]
    pub fn mine(&self) -> &Shard {
        &self.0[terrace_runtime::thread::index() % COUNTER_SHARDS]
    }

    /// Sums over all threads.
    pub fn sums(&self) -> PmCounters {
        let sum = |field: fn(&Shard) -> &AtomicU64| {
            let values = self.0.iter().map(|s| field(s).load(Ordering::Relaxed));
            values.sum()
        };
        PmCounters { fences: sum(|s| &s.fences), lines: sum(|s| &s.lines) }
    }
}
