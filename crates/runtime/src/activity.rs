//! Work of this process for which no thread of requests stands: whether there is any now.
//!
//! Invariant: a function that is to run when work begins has run before that work does.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

static WORKING: AtomicUsize = AtomicUsize::new(0);
static BEGINS: OnceLock<fn()> = OnceLock::new();

/// Work of the calling thread, until dropped.
#[must_use]
pub struct Work(());

impl Work {
    /// Work begins. The caller holds no lock.
    pub fn begin() -> Work {
        if WORKING.fetch_add(1, Ordering::SeqCst) == 0
            && let Some(begins) = BEGINS.get()
        {
            begins();
        }
        Work(())
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let before = WORKING.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "work ends that was not counted");
    }
}

/// Whether a thread works.
#[inline]
pub fn is_any() -> bool {
    WORKING.load(Ordering::SeqCst) > 0
}

/// Sets the function that runs in the first thread that begins to work; it stays for good.
pub fn when_work_begins(begins: fn()) {
    BEGINS.get_or_init(|| begins);
}

#[cfg(test)]
mod tests {
    use super::*;

    static BEGUN: AtomicUsize = AtomicUsize::new(0);

    #[test]
    fn begin_of_work_runs_the_function_first() {
        when_work_begins(|| {
            BEGUN.fetch_add(1, Ordering::SeqCst);
        });
        let first = Work::begin();
        let begun = BEGUN.load(Ordering::SeqCst);
        assert!(is_any() && begun >= 1);
        let second = Work::begin();
        drop(first);
        assert!(is_any());
        drop(second);
    }
}
