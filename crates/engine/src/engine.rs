//! A mounted pool.

use crate::memory::MemorySource;
use std::sync::Arc;
use terrace_migration::migration::Migration;
use terrace_migration::requested::queue::ByHand;
use terrace_runtime::thread::Panics;
use terrace_store::store::Store;
use terrace_wal::RecoveryReport;

/// A mounted pool. Entry points take `&self` and may be called by any number of threads.
pub struct Engine {
    /// Where each byte is. For tests: everything else has a method.
    pub store: Arc<Store>,
    /// What moves, and when. For tests.
    pub migration: Arc<Migration>,
    /// Moves that users asked for.
    pub by_hand: ByHand,
    /// Panics of background steps.
    pub panics: Arc<Panics>,
    /// Memory of which the cache has a share, if it has one, and the size that it keeps at least.
    pub memory: Option<Arc<dyn MemorySource>>,
    pub(crate) least_cache_bytes: u64,
    /// What recovery found.
    pub recovery: RecoveryReport,
    pub(crate) recovery_ns: u64,
}
