//! A mutex that the scheduler of models does not see, and memory for the words that it does see.

#![allow(clippy::disallowed_types)] // the scheduler's mutex cannot be in a static

use super::atomic::AtomicU64;
use std::ops::DerefMut;

#[cfg(not(feature = "shuttle"))]
use super::Mutex as Inner;
#[cfg(feature = "shuttle")]
use std::sync::Mutex as Inner;

/// A mutex unknown to a model's scheduler: for a static, which outlives the executions of a model, and for
/// state whose changes no other thread can observe. A thread that holds it never waits.
#[derive(Debug, Default)]
pub struct OutsideMutex<T>(Inner<T>);

impl<T> OutsideMutex<T> {
    /// A mutex around a value.
    pub const fn new(value: T) -> OutsideMutex<T> {
        OutsideMutex(Inner::new(value))
    }

    /// Waits for it.
    pub fn lock(&self) -> impl DerefMut<Target = T> + '_ {
        #[cfg(not(feature = "shuttle"))]
        return self.0.lock();
        #[cfg(feature = "shuttle")]
        return self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    }
}

/// Words of zeros. Those that never change take no memory.
pub fn zeroed_words(count: usize) -> Vec<AtomicU64> {
    #[cfg(not(feature = "shuttle"))]
    if let Ok(words) = <AtomicU64 as zerocopy::FromZeros>::new_vec_zeroed(count) {
        return words;
    }
    (0..count).map(|_| AtomicU64::new(0)).collect()
}
