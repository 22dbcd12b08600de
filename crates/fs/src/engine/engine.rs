//! A mounted pool.

use crate::migration::migration::Migration;
use crate::migration::requested::queue::ByHand;
use crate::store::parts::pressure::memory_source::MemorySource;
use crate::store::store::Store;
use std::sync::Arc;
use terrace_runtime::thread::Panics;
use terrace_wal::RecoveryReport;

/// A mounted pool. Entry points take `&self` and may be called by any number of threads.
pub struct Engine {
    pub(crate) store: Arc<Store>,
    pub(crate) migration: Arc<Migration>,
    pub(crate) by_hand: ByHand,
    /// Panics of background steps.
    pub(crate) panics: Arc<Panics>,
    /// Memory of which the cache has a share, if it has one, and the size that it keeps at least.
    pub(crate) memory: Option<Arc<dyn MemorySource>>,
    pub(crate) least_cache_bytes: u64,
    pub(crate) recovery: RecoveryReport,
    pub(crate) recovery_ns: u64,
}
