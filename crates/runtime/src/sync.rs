//! Locks. Not poisoned by a panic: a request that panicked has committed nothing, because a
//! transaction reaches the medium only as a whole.

pub use parking_lot::{
    Condvar, Mutex, MutexGuard, ReentrantMutex, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
