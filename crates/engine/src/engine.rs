//! A mounted pool.

use crate::memory_source::MemorySource;
use std::sync::Arc;
use terrace_migration::migration::Migration;
use terrace_migration::requested::queue::RequestQueue;
use terrace_runtime::thread::Panics;
use terrace_store::store::Store;
use terrace_wal::RecoveryReport;

/// A mounted pool. Entry points take `&self` and may be called by any number of threads.
pub struct Engine {
    /// The location of each byte. Public for tests: all other callers use methods.
    pub store: Arc<Store>,
    /// The decisions of migration. Public for tests.
    pub migration: Arc<Migration>,
    /// Requested movements.
    pub requests: RequestQueue,
    /// Panics of background steps.
    pub panics: Arc<Panics>,
    /// The memory of the machine for a cache that follows it, and the least size of the cache.
    pub memory: Option<Arc<dyn MemorySource>>,
    pub(crate) least_cache_bytes: u64,
    /// The report of recovery.
    pub recovery: RecoveryReport,
    pub(crate) recovery_ns: u64,
}
