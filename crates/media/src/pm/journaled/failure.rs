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
    /// Ends of a failure, and moves without a failure.
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

    /// Ends the failure, if there is one. The caller holds the state of the log.
    pub fn take(&self) -> Option<MediaError> {
        let mut found = self.error.lock();
        self.has_failed.store(false, Ordering::SeqCst);
        let ended = found.take();
        self.ended.fetch_add(1, Ordering::SeqCst);
        ended
    }

    /// The number of calls of [`Self::take`]: an error from before such a call may be of the old device.
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
    }
}
