//! Locks without poison whose waiters sleep: the locks of the standard library, with the interface of
//! `parking_lot`. In models they are the locks of `shuttle`, whose scheduler chooses the next thread at every
//! lock.
//!
//! `parking_lot`'s own waiters offer the processor some ten times before they sleep. The scheduler takes an offer for the
//! rest of a time slice: on one core a request that met a lock of migration's waited 2 to 3 ms for each.
//!
//! Under `shuttle` a wait with a limit ends at once, as if its time had passed: whoever waits so may not count on being
//! woken.
#![allow(clippy::disallowed_types)] // the one place that makes locks

#[cfg(feature = "shuttle")]
use shuttle::sync as under;
#[cfg(not(feature = "shuttle"))]
use std::sync as under;

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// As `parking_lot::Mutex`.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(under::Mutex<T>);

/// As `parking_lot::MutexGuard`. Empty only inside [`Condvar`].
#[derive(Debug)]
pub struct MutexGuard<'a, T: ?Sized> {
    #[cfg(feature = "shuttle")]
    lock: &'a under::Mutex<T>,
    held: Option<under::MutexGuard<'a, T>>,
}

#[allow(missing_docs)] // as parking_lot's
impl<T> Mutex<T> {
    pub const fn new(value: T) -> Self {
        Mutex(under::Mutex::new(value))
    }
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

#[allow(missing_docs)] // as parking_lot's
impl<T: ?Sized> Mutex<T> {
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.guard(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let held = match self.0.try_lock() {
            Ok(held) => held,
            Err(under::TryLockError::Poisoned(held)) => held.into_inner(),
            Err(under::TryLockError::WouldBlock) => return None,
        };
        Some(self.guard(held))
    }
    #[inline]
    fn guard<'a>(&'a self, held: under::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard {
            #[cfg(feature = "shuttle")]
            lock: &self.0,
            held: Some(held),
        }
    }
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

const HELD: &str = "the guard is empty only while it waits";

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        self.held.as_ref().expect(HELD)
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect(HELD)
    }
}

/// As `parking_lot::WaitTimeoutResult`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

#[allow(missing_docs)] // as parking_lot's
impl WaitTimeoutResult {
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

/// As `parking_lot::Condvar`.
#[derive(Debug, Default)]
pub struct Condvar(under::Condvar);

#[allow(missing_docs)] // as parking_lot's
impl Condvar {
    pub const fn new() -> Self {
        Condvar(under::Condvar::new())
    }
    pub fn notify_one(&self) {
        self.0.notify_one();
    }
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.held.take().expect(HELD);
        guard.held = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
    }
    #[cfg(feature = "shuttle")]
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, _limit: Duration) -> WaitTimeoutResult {
        drop(guard.held.take());
        shuttle::thread::yield_now();
        guard.held = Some(guard.lock.lock().unwrap_or_else(PoisonError::into_inner));
        WaitTimeoutResult(true)
    }
    #[cfg(not(feature = "shuttle"))]
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, limit: Duration) -> WaitTimeoutResult {
        let held = guard.held.take().expect(HELD);
        let (held, ended) = self.0.wait_timeout(held, limit).unwrap_or_else(PoisonError::into_inner);
        guard.held = Some(held);
        WaitTimeoutResult(ended.timed_out())
    }
    #[cfg(feature = "shuttle")]
    pub fn wait_while_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
        limit: Duration,
    ) -> WaitTimeoutResult {
        if condition(&mut **guard) {
            self.wait_for(guard, limit);
        }
        WaitTimeoutResult(condition(&mut **guard))
    }
    #[cfg(not(feature = "shuttle"))]
    pub fn wait_while_for<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        condition: impl FnMut(&mut T) -> bool,
        limit: Duration,
    ) -> WaitTimeoutResult {
        let held = guard.held.take().expect(HELD);
        let waited = self.0.wait_timeout_while(held, limit, condition);
        let (held, ended) = waited.unwrap_or_else(PoisonError::into_inner);
        guard.held = Some(held);
        WaitTimeoutResult(ended.timed_out())
    }
}

/// As `parking_lot::RwLock`.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(under::RwLock<T>);

/// As `parking_lot::RwLockReadGuard`.
pub type RwLockReadGuard<'a, T> = under::RwLockReadGuard<'a, T>;
/// As `parking_lot::RwLockWriteGuard`.
pub type RwLockWriteGuard<'a, T> = under::RwLockWriteGuard<'a, T>;

#[allow(missing_docs)] // as parking_lot's
impl<T> RwLock<T> {
    pub const fn new(value: T) -> Self {
        RwLock(under::RwLock::new(value))
    }
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

#[allow(missing_docs)] // as parking_lot's
impl<T: ?Sized> RwLock<T> {
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        match self.0.try_read() {
            Ok(held) => Some(held),
            Err(under::TryLockError::Poisoned(held)) => Some(held.into_inner()),
            Err(under::TryLockError::WouldBlock) => None,
        }
    }
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        match self.0.try_write() {
            Ok(held) => Some(held),
            Err(under::TryLockError::Poisoned(held)) => Some(held.into_inner()),
            Err(under::TryLockError::WouldBlock) => None,
        }
    }
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As `parking_lot::ReentrantMutex`.
#[derive(Debug)]
pub struct ReentrantMutex<T> {
    lock: under::Mutex<()>,
    /// The thread that holds the lock, plus one; 0 is nobody.
    holder: AtomicUsize,
    value: T,
}

/// As `parking_lot::ReentrantMutexGuard`.
#[derive(Debug)]
pub struct ReentrantMutexGuard<'a, T> {
    mutex: &'a ReentrantMutex<T>,
    /// The outermost guard of a thread holds the lock.
    held: Option<under::MutexGuard<'a, ()>>,
}

#[allow(missing_docs)] // as parking_lot's
impl<T> ReentrantMutex<T> {
    pub const fn new(value: T) -> Self {
        ReentrantMutex { lock: under::Mutex::new(()), holder: AtomicUsize::new(0), value }
    }
    pub fn lock(&self) -> ReentrantMutexGuard<'_, T> {
        let me = crate::thread_index::index() + 1;
        if self.holder.load(Ordering::Relaxed) == me {
            return ReentrantMutexGuard { mutex: self, held: None };
        }
        let held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.holder.store(me, Ordering::Relaxed);
        ReentrantMutexGuard { mutex: self, held: Some(held) }
    }
    pub fn try_lock(&self) -> Option<ReentrantMutexGuard<'_, T>> {
        let me = crate::thread_index::index() + 1;
        if self.holder.load(Ordering::Relaxed) == me {
            return Some(ReentrantMutexGuard { mutex: self, held: None });
        }
        let held = match self.lock.try_lock() {
            Ok(held) => held,
            Err(under::TryLockError::Poisoned(held)) => held.into_inner(),
            Err(under::TryLockError::WouldBlock) => return None,
        };
        self.holder.store(me, Ordering::Relaxed);
        Some(ReentrantMutexGuard { mutex: self, held: Some(held) })
    }
}

impl<T> Deref for ReentrantMutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.mutex.value
    }
}

impl<T> Drop for ReentrantMutexGuard<'_, T> {
    fn drop(&mut self) {
        if self.held.is_some() {
            self.mutex.holder.store(0, Ordering::Relaxed);
        }
    }
}
