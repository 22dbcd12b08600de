//! Processors of threads: a thread stays on the processor that it serves; the threads started by it do not.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::cell::Cell;
use std::io;

thread_local! {
    /// The processors of this thread before it was kept on a single processor.
    static BEFORE: Cell<Option<CpuSet>> = const { Cell::new(None) };
}

/// Numbers of the processors that the calling thread may use.
pub fn allowed_processors() -> Vec<usize> {
    let Ok(allowed) = sched_getaffinity(None) else { return vec![0] };
    (0..CpuSet::MAX_CPU).filter(|processor| allowed.is_set(*processor)).collect()
}

/// Keeps the calling thread on a processor.
///
/// # Errors
/// The operating system's: the thread may not run there.
pub fn stay_on(processor: usize) -> io::Result<()> {
    let before = sched_getaffinity(None)?;
    let mut only = CpuSet::new();
    only.set(processor);
    sched_setaffinity(None, &only)?;
    BEFORE.set(BEFORE.get().or(Some(before)));
    Ok(())
}

/// The processors for threads started by the calling thread; `None` when they inherit the right processors.
pub(crate) fn of_started_threads() -> Option<CpuSet> {
    BEFORE.get()
}

/// Gives the calling thread these processors.
pub(crate) fn take(processors: Option<CpuSet>) {
    if let Some(processors) = processors {
        let _ = sched_setaffinity(None, &processors);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::thread::spawn;

    #[test]
    fn a_thread_started_by_a_kept_thread_is_free() {
        let all = allowed_processors();
        let last = *all.last().unwrap();
        let (kept, started) = spawn("kept", move || {
            stay_on(last).unwrap();
            (allowed_processors(), spawn("started", allowed_processors).unwrap().join().unwrap())
        })
        .unwrap()
        .join()
        .unwrap();
        assert_eq!((kept, started), (vec![last], all));
    }
}
