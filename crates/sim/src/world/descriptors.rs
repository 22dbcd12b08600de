//! Descriptors, and the errors of write-back that each has to be told once (I5).
//!
//! The test does not see when a write-back failed. It knows three rules. A descriptor is told of failures
//! since it was opened or told last (its window). A descriptor is told only if a failure was possible; data
//! that a device lost before it came back fails its next flush. When one descriptor is told, every other
//! whose window began earlier must be told too. An fsync without a descriptor reports its own failure only.

use terrace_reference::Id;

/// An open descriptor.
#[derive(Debug, Clone)]
struct Descriptor {
    id: Id,
    handle: u64,
    /// The time at which it was opened, or told last.
    since: u64,
    /// An fsync of the descriptor must return the failure.
    due: bool,
    /// An fsync of the descriptor may return the failure.
    may: bool,
}

/// The asker of an fsync.
#[derive(Debug, Clone, Copy)]
pub struct Asking {
    id: Id,
    /// The descriptor; `None` is an fsync without a descriptor.
    pub handle: Option<u64>,
    since: u64,
}

/// All open descriptors.
#[derive(Debug, Default)]
pub struct Descriptors {
    list: Vec<Descriptor>,
    /// A clock that rises at each open, close, fsync and reported failure.
    now: u64,
}

impl Descriptors {
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Opens a descriptor. `may`: write-backs may fail at present.
    pub fn open(&mut self, id: Id, handle: u64, may: bool) {
        let since = self.tick();
        self.list.push(Descriptor { id, handle, since, due: false, may });
    }

    /// Closes the oldest or the newest descriptor of a file, in turn.
    pub fn close(&mut self, id: Id) {
        let of_file = |found: &Descriptor| found.id == id;
        let newest = self.tick().is_multiple_of(2);
        let at =
            if newest { self.list.iter().rposition(of_file) } else { self.list.iter().position(of_file) };
        if let Some(at) = at {
            self.list.remove(at);
        }
    }

    /// A file with a descriptor that must be told.
    pub fn due(&self) -> Option<Id> {
        self.list.iter().find(|found| found.due).map(|found| found.id)
    }

    /// Closes all descriptors.
    pub fn clear(&mut self) {
        self.list.clear();
    }

    /// Notes that write-backs may fail from this moment.
    pub fn may_fail(&mut self) {
        self.list.iter_mut().for_each(|descriptor| descriptor.may = true);
    }

    /// The next asker of a file's fsync: each of its descriptors, and no descriptor, in turn.
    pub fn asks(&mut self, id: Id) -> Asking {
        let since = self.tick();
        let of_file: Vec<&Descriptor> = self.list.iter().filter(|found| found.id == id).collect();
        // Every other time a descriptor that must be told.
        let due = of_file.iter().find(|found| found.due && since.is_multiple_of(2));
        let chosen = due.or_else(|| of_file.get(since as usize / 3 % (of_file.len() + 1)));
        let (handle, since) = chosen.map_or((None, since), |found| (Some(found.handle), found.since));
        Asking { id, handle, since }
    }

    /// Judges an fsync that succeeded.
    pub fn succeeded(&mut self, asking: Asking) {
        let found = self.list.iter().find(|found| Some(found.handle) == asking.handle);
        assert!(
            !found.is_some_and(|found| found.due),
            "{:?}: a write-back failed while a descriptor was open, and its fsync does not say so (I5)",
            asking.id
        );
    }

    /// Judges an fsync that failed. True if a descriptor was told; the failure need not be its own.
    pub fn failed(&mut self, asking: Asking, failing: bool) -> bool {
        let now = self.tick();
        for other in self.list.iter_mut().filter(|other| other.id == asking.id) {
            other.due |= other.since < asking.since;
        }
        let Some(found) = self.list.iter_mut().find(|found| Some(found.handle) == asking.handle) else {
            return false;
        };
        let allowed = found.due || found.may;
        assert!(allowed, "{:?}: a descriptor is told of a failure again, or of none (I5)", asking.id);
        (found.since, found.due, found.may) = (now, false, failing);
        true
    }
}
