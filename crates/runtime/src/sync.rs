//! Locks and atomics. Not poisoned by a panic: a request that panicked has committed nothing, because a
//! transaction reaches the medium only as a whole.
//!
//! With the feature `shuttle` they are those of a scheduler that tries orders of execution: what is to be tried takes
//! its locks and atomics from here.

mod locks;

pub use locks::{
    Condvar, Mutex, MutexGuard, ReentrantMutex, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult,
};
#[cfg(feature = "shuttle")]
pub use shuttle::sync::atomic;
#[cfg(not(feature = "shuttle"))]
pub use std::sync::atomic;
