//! Locks and atomics. Not poisoned by a panic: a request that panicked has committed nothing, because a
//! transaction reaches the medium only as a whole.
//!
//! With the feature `shuttle` they are those of a scheduler that tries orders of execution: what is to be tried takes
//! its locks and atomics from here.

// ThreadSanitizer does not see what the standard library, compiled beforehand, does when a mutex is contended.
#[cfg_attr(terrace_sanitized, allow(dead_code))] // its mutexes
mod locks;
mod order;
mod outside;

#[cfg(any(feature = "shuttle", not(terrace_sanitized)))]
pub use locks::{Condvar, Mutex, MutexGuard, ReentrantMutex, WaitTimeoutResult};
pub use locks::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use order::{HeldRank, LockKind, LockRank, PoolLocks, Ranked, RankedGuard, RankedMutex, RankedRwLock};
pub use outside::{OutsideMutex, zeroed_words};
#[cfg(all(not(feature = "shuttle"), terrace_sanitized))]
pub use parking_lot::{Condvar, Mutex, MutexGuard, ReentrantMutex, WaitTimeoutResult};
#[cfg(feature = "shuttle")]
pub use shuttle::sync::atomic;
#[cfg(not(feature = "shuttle"))]
pub use std::sync::atomic;

/// Whether the locks are those of a scheduler that tries orders of execution: tables of locks are short then, as each lock is a
/// point of the scheduler.
pub const IN_MODELS: bool = cfg!(feature = "shuttle");
