//! Failed write-backs (I5): each descriptor that was open at the failure gets the error from its next fsync,
//! once. The pages stay dirty and are tried again after growing pauses, those of each home (PM, devices) after their own.
//!
//! Handles and failures take their numbers from the same sequence: a failure is due to a handle if its number
//! is higher and the handle was not told of it. So an open costs only an addition.

use crate::error::FsError;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use terrace_format::Ino;
use terrace_placement::Home;
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};

/// Pause after the first failure of a file; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// How often the pause of pages for devices doubles: to about half a minute. PM answers at once.
const DOUBLINGS: u32 = 5;

struct Failure {
    error: FsError,
    /// The number of the last failure.
    number: u64,
    told: HashSet<u64>,
    pauses: [Pause; 2],
}

/// The pause of a file's pages of one home.
#[derive(Default)]
struct Pause {
    /// Failures since the last success.
    count: u32,
    not_before_ns: u64,
}

impl Failure {
    /// No failure is counted yet. A failure of `number` 0 is due to no handle.
    fn new(error: &FsError, number: u64) -> Failure {
        Failure { error: error.clone(), number, told: HashSet::new(), pauses: Default::default() }
    }

    /// Counts a further failure: the pause before the next try grows.
    fn back_off(&mut self, home: Option<Home>, now_ns: u64) {
        for home in [Home::Pm, Home::Block].into_iter().filter(|each| home.is_none_or(|home| home == *each)) {
            let pause = &mut self.pauses[place(home)];
            let doublings = if home == Home::Pm { 0 } else { pause.count.min(DOUBLINGS) };
            pause.count = pause.count.saturating_add(1);
            pause.not_before_ns = now_ns + (FIRST_PAUSE * (1 << doublings)).as_nanos() as u64;
        }
    }

    /// The pauses of a home; of both, where it is not known.
    fn pauses_of(&mut self, home: Option<Home>) -> &mut [Pause] {
        match home {
            None => &mut self.pauses,
            Some(home) => std::slice::from_mut(&mut self.pauses[place(home)]),
        }
    }

    fn is_failing(&self) -> bool {
        self.pauses.iter().any(|pause| pause.count > 0)
    }
}

fn place(home: Home) -> usize {
    usize::from(home == Home::Block)
}

/// The failures of all files.
pub struct WriteErrors {
    sequence: AtomicU64,
    failures: Mutex<HashMap<Ino, Failure>>,
}

impl WriteErrors {
    /// Nothing failed.
    pub(crate) fn new() -> WriteErrors {
        WriteErrors { sequence: AtomicU64::new(1), failures: Mutex::default() }
    }

    /// A handle of a descriptor that is opened now.
    pub fn new_handle(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::AcqRel)
    }

    /// Notes that a write-back of a file's pages of a home failed; of both homes, where it is not known.
    pub fn note(&self, ino: Ino, home: Option<Home>, error: &FsError, now_ns: u64) {
        self.note_with(ino, error, |failure| failure.back_off(home, now_ns));
    }

    /// Notes that pages of a file failed beside pages for PM that were written: there is no pause.
    pub fn note_beside_progress(&self, ino: Ino, error: &FsError) {
        self.note_with(ino, error, |failure| {
            let pause = &mut failure.pauses[place(Home::Pm)];
            pause.count = pause.count.max(1);
        });
    }

    fn note_with(&self, ino: Ino, error: &FsError, count: impl FnOnce(&mut Failure)) {
        let mut failures = self.failures.lock();
        let number = self.new_handle();
        let failure = failures.entry(ino).or_insert_with(|| Failure::new(error, number));
        let last = failure.number;
        assert!(last <= number, "failure {number} of inode {ino} comes after {last} (I5)");
        if !failure.is_failing() {
            tracing::warn!("write-back of inode {ino} failed: {error}; tried again later");
        }
        (failure.error, failure.number) = (error.clone(), number);
        failure.told.clear();
        count(failure);
    }

    /// Notes that a write-back waits for reserved device blocks that are under I/O pins for a moment. No
    /// descriptor is told an error.
    pub fn postpone(&self, ino: Ino, home: Option<Home>, error: &FsError, now_ns: u64) {
        let mut failures = self.failures.lock();
        let failure = failures.entry(ino).or_insert_with(|| Failure::new(error, 0));
        failure.back_off(home, now_ns);
    }

    /// Notes that a write-back of a file's pages of a home, or of both, succeeded. What is due to handles stays so.
    pub fn succeeded(&self, ino: Ino, home: Option<Home>) {
        let mut failures = self.failures.lock();
        if let Some(failure) = failures.get_mut(&ino) {
            failure.pauses_of(home).fill_with(Pause::default);
        }
    }

    /// The error that is due to a handle; it is told now.
    pub fn tell(&self, ino: Ino, handle: u64) -> Option<FsError> {
        let mut failures = self.failures.lock();
        let failure = failures.get_mut(&ino).filter(|failure| failure.number > handle)?;
        if planted(Mistake::ErrorToldOnce) && !failure.told.is_empty() {
            return None;
        }
        failure.told.insert(handle).then(|| failure.error.clone())
    }

    /// Whether the write-back of a file's pages of a home failed and is not to be tried yet.
    pub fn is_waiting(&self, ino: Ino, home: Home, now_ns: u64) -> bool {
        let failures = self.failures.lock();
        failures.get(&ino).is_some_and(|failure| failure.pauses[place(home)].not_before_ns > now_ns)
    }

    /// The last error of the files that could not be written back, while there are any.
    pub fn last(&self) -> Option<FsError> {
        let failures = self.failures.lock();
        let failing = failures.values().filter(|failure| failure.is_failing());
        failing.max_by_key(|failure| failure.number).map(|failure| failure.error.clone())
    }

    /// The file is gone.
    pub fn forget(&self, ino: Ino) {
        self.failures.lock().remove(&ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_home_wait_after_failures_of_this_home_alone() {
        let (errors, ino, second) = (WriteErrors::new(), Ino(7), 1_000_000_000);
        let waits = |now| [Home::Pm, Home::Block].map(|home| errors.is_waiting(ino, home, now));
        errors.note(ino, Some(Home::Block), &FsError::ReadOnly, 0);
        assert_eq!(waits(1), [false, true]);
        errors.succeeded(ino, Some(Home::Pm));
        assert_eq!(waits(1), [false, true]);
        assert!(errors.last().is_some());
        // The pause doubles, although pages of the other home were written in between.
        errors.note(ino, Some(Home::Block), &FsError::ReadOnly, 0);
        assert_eq!(waits(second + 1), [false, true]);
        errors.succeeded(ino, Some(Home::Block));
        assert_eq!(waits(1), [false, false]);
        errors.note(ino, None, &FsError::ReadOnly, 0);
        assert_eq!(waits(1), [true, true]);
        errors.succeeded(ino, None);
        assert_eq!(waits(1), [false, false]);
        assert!(errors.last().is_none());
    }
}
