//! The failure of a log (J12): it stays until the journal goes on on another device.

use crate::MediaError;
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The first failure of a log, if there is one. Lock order: this lock is the last.
#[derive(Default)]
pub(super) struct Failure {
    /// Each store asks.
    has_failed: AtomicBool,
    error: Mutex<Option<MediaError>>,
    /// Failures that ended.
    ended: AtomicU64,
}

impl Failure {
    /// The error of the failure.
    #[inline]
    pub fn refuse(&self) -> Result<(), MediaError> {
        if self.has_failed.load(Ordering::Acquire) { self.found() } else { Ok(()) }
    }

    #[cold]
    fn found(&self) -> Result<(), MediaError> {
        self.error.lock().clone().map_or(Ok(()), Err)
    }

    /// Sets the failure; whether it is the first.
    pub fn set(&self, error: &MediaError) -> bool {
        let mut found = self.error.lock();
        let is_first = found.is_none();
        found.get_or_insert_with(|| error.clone());
        self.has_failed.store(true, Ordering::SeqCst);
        is_first
    }

    /// Ends the failure.
    pub fn take(&self) -> Option<MediaError> {
        let mut found = self.error.lock();
        self.has_failed.store(false, Ordering::SeqCst);
        let ended = found.take();
        self.ended.fetch_add(u64::from(ended.is_some()), Ordering::SeqCst);
        ended
    }

    /// The number of failures that ended.
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
    }
}
