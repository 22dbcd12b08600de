//! Descriptors, and the errors of write-back that each is to be told, once (I5).
//!
//! When a write-back failed is not seen from outside. What is known: a descriptor is told of failures since it was
//! opened or was told last (its window); nobody is told when nothing can have failed (what a device lost before it came
//! back fails its next flush); and when one is told, so must be every other whose window began before the teller's. An fsync
//! without a descriptor tells of its own failure only.

use terrace_reference::Id;

/// One open descriptor.
#[derive(Debug, Clone)]
struct Descriptor {
    id: Id,
    handle: u64,
    /// When it was opened, or was told last.
    since: u64,
    /// It must be told.
    due: bool,
    /// It may be told.
    may: bool,
}

/// Who makes a file durable.
#[derive(Debug, Clone, Copy)]
pub struct Asking {
    id: Id,
    /// `None`: without a descriptor.
    pub handle: Option<u64>,
    since: u64,
}

/// All that are open.
#[derive(Debug, Default)]
pub struct Descriptors {
    list: Vec<Descriptor>,
    /// Rises with every event that counts.
    now: u64,
}

impl Descriptors {
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// One is opened. `may`: something fails at present.
    pub fn open(&mut self, id: Id, handle: u64, may: bool) {
        let since = self.tick();
        self.list.push(Descriptor { id, handle, since, due: false, may });
    }

    /// One of a file is closed: the oldest and the newest in turns.
    pub fn close(&mut self, id: Id) {
        let of_file = |found: &Descriptor| found.id == id;
        let newest = self.tick().is_multiple_of(2);
        let at =
            if newest { self.list.iter().rposition(of_file) } else { self.list.iter().position(of_file) };
        if let Some(at) = at {
            self.list.remove(at);
        }
    }

    /// A file with a descriptor that is to be told.
    pub fn due(&self) -> Option<Id> {
        self.list.iter().find(|found| found.due).map(|found| found.id)
    }

    /// Nobody has anything open.
    pub fn clear(&mut self) {
        self.list.clear();
    }

    /// From now on write-backs may fail.
    pub fn may_fail(&mut self) {
        self.list.iter_mut().for_each(|descriptor| descriptor.may = true);
    }

    /// Who asks next for a file to be durable: each of its descriptors, and none, in turns.
    pub fn asks(&mut self, id: Id) -> Asking {
        let since = self.tick();
        let of_file: Vec<&Descriptor> = self.list.iter().filter(|found| found.id == id).collect();
        // Who is to be told, every other time.
        let due = of_file.iter().find(|found| found.due && since.is_multiple_of(2));
        let chosen = due.or_else(|| of_file.get(since as usize / 3 % (of_file.len() + 1)));
        let (handle, since) = chosen.map_or((None, since), |found| (Some(found.handle), found.since));
        Asking { id, handle, since }
    }

    /// It was answered that all is durable.
    pub fn succeeded(&mut self, asking: Asking) {
        let found = self.list.iter().find(|found| Some(found.handle) == asking.handle);
        assert!(
            !found.is_some_and(|found| found.due),
            "{:?}: a write-back failed while a descriptor was open, and its fsync does not say so (I5)",
            asking.id
        );
    }

    /// It was answered with an error. Whether a descriptor was told of a failure that need not be its own.
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
