//! Locks and atomics. Not poisoned by a panic: a request that panicked has committed nothing, because a
//! transaction reaches the medium only as a whole.
//!
//! With the feature `shuttle` they are those of a scheduler that tries orders of execution: what is to be tried takes
//! its locks and atomics from here.

#[cfg(feature = "shuttle")]
mod scheduled;
#[cfg(not(feature = "shuttle"))]
mod sleeping;

#[cfg(not(feature = "shuttle"))]
pub use parking_lot::{Condvar, Mutex, MutexGuard, ReentrantMutex};
#[cfg(feature = "shuttle")]
pub use scheduled::{Condvar, Mutex, MutexGuard, ReentrantMutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(feature = "shuttle")]
pub use shuttle::sync::atomic;
#[cfg(not(feature = "shuttle"))]
pub use sleeping::{RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(not(feature = "shuttle"))]
pub use std::sync::atomic;
