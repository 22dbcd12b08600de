//! A reader-writer lock whose waiters sleep: that of the standard library with the interface of the others here.
//!
//! `parking_lot`'s waiters offer the processor some ten times before they sleep. The scheduler takes an offer for the rest
//! of a time slice: on one core a request that met a lock of migration's waited 2 ms for each.
#![allow(clippy::disallowed_types)] // the one place that makes locks

use std::sync::PoisonError;

/// As `parking_lot::RwLock`.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(std::sync::RwLock<T>);

/// As `parking_lot::RwLockReadGuard`.
pub type RwLockReadGuard<'a, T> = std::sync::RwLockReadGuard<'a, T>;
/// As `parking_lot::RwLockWriteGuard`.
pub type RwLockWriteGuard<'a, T> = std::sync::RwLockWriteGuard<'a, T>;

#[allow(missing_docs)] // as parking_lot's
impl<T> RwLock<T> {
    pub const fn new(value: T) -> Self {
        RwLock(std::sync::RwLock::new(value))
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
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}
