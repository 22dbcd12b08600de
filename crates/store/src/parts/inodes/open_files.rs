//! References to inodes: the kernel's lookup counts, and open files. They are volatile; a crash drops them
//! all.
//!
//! An inode without a name is removed only when no reference is left (design C3). New references are taken
//! under the lock of the directory or of the inode itself, so that a count of zero under the exclusive locks
//! of both cannot rise again.

use crate::parts::inodes::front_end::Note;
use crate::parts::inodes::referenced::Referenced;
use rustc_hash::FxHashMap;
use terrace_format::Ino;
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::Mutex;

#[derive(Clone, Copy, Default)]
struct Count {
    lookups: u32,
    opens: u32,
    note: Note,
}

impl Count {
    fn is_referenced(&self) -> bool {
        self.lookups > 0 || self.opens > 0
    }
}

/// The references to an inode that are left after a close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// A descriptor is open.
    pub is_open: bool,
    /// A lookup count or a descriptor refers to the inode.
    pub is_referenced: bool,
}

type Counts = FxHashMap<u32, Count>;

const SHARDS: usize = 64;

/// The most inodes that a call looks at one by one: some milliseconds.
const MOST_ASKED: u64 = 1 << 16;

/// All references. 20 bytes and a byte of hash table per inode that the kernel knows.
pub struct OpenFiles {
    shards: Vec<Mutex<Counts>>,
}

impl Default for OpenFiles {
    fn default() -> OpenFiles {
        OpenFiles { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl OpenFiles {
    fn shard(&self, ino: Ino) -> &Mutex<Counts> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// Counts a further lookup of the kernel.
    #[inline]
    pub fn looked_up(&self, ino: Ino) {
        let mut counts = self.shard(ino).lock();
        let count = counts.entry(ino.0 as u32).or_default();
        count.lookups = count.lookups.saturating_add(1);
    }

    /// Takes lookups away; true when the inode has no reference left.
    pub fn forget(&self, ino: Ino, lookups: u64) -> bool {
        let mut counts = self.shard(ino).lock();
        let Some(count) = counts.get_mut(&(ino.0 as u32)) else {
            return true;
        };
        assert!(count.is_referenced(), "inode {ino} is counted without a reference");
        count.lookups = count.lookups.saturating_sub(lookups.min(u64::from(u32::MAX)) as u32);
        if count.is_referenced() {
            return false;
        }
        counts.remove(&(ino.0 as u32));
        if counts.capacity() > 1024 && counts.len() < counts.capacity() / 8 {
            counts.shrink_to_fit();
        }
        true
    }

    /// Counts an open if `admit` does: it gets the note of the inode, and whether no descriptor is open. False: nothing is
    /// counted. `admit` runs under the lock of the inode's shard, so it calls nothing of the store.
    pub fn open(&self, ino: Ino, admit: impl FnOnce(&mut Note, bool) -> bool) -> bool {
        let mut counts = self.shard(ino).lock();
        let count = counts.entry(ino.0 as u32).or_default();
        let is_first = count.opens == 0;
        if !admit(&mut count.note, is_first) {
            if !count.is_referenced() {
                counts.remove(&(ino.0 as u32));
            }
            return false;
        }
        count.opens = count.opens.saturating_add(1);
        true
    }

    /// Closes. After the last close `closed` gets the note of the inode, under the lock of the inode's shard.
    pub fn release(&self, ino: Ino, closed: impl FnOnce(&mut Note)) -> Left {
        let mut counts = self.shard(ino).lock();
        let Some(count) = counts.get_mut(&(ino.0 as u32)) else {
            return Left { is_open: false, is_referenced: false };
        };
        assert!(count.is_referenced(), "inode {ino} is counted without a reference");
        count.opens = count.opens.saturating_sub(1);
        if planted(Mistake::CloseOfOneHandle) && count.opens > 0 {
            *count = Count::default();
        }
        if count.opens == 0 {
            closed(&mut count.note);
        }
        let left = Left { is_open: count.opens > 0, is_referenced: count.is_referenced() };
        if !left.is_referenced {
            counts.remove(&(ino.0 as u32));
        }
        left
    }

    /// Hands out the note of an inode, under the lock of the inode's shard; `None` for an inode without references.
    pub fn with_note<T>(&self, ino: Ino, look: impl FnOnce(&mut Note) -> T) -> Option<T> {
        self.shard(ino).lock().get_mut(&(ino.0 as u32)).map(|count| look(&mut count.note))
    }

    /// True while the inode is open.
    pub fn is_open(&self, ino: Ino) -> bool {
        self.shard(ino).lock().get(&(ino.0 as u32)).is_some_and(|count| count.opens > 0)
    }

    /// True while an inode of `first`, `first + step`, … up to `last` is open. Of more than [`MOST_ASKED`]
    /// inodes it is assumed without a look.
    pub(crate) fn is_any_open(&self, first: u64, last: u64, step: u64) -> bool {
        let count = last.saturating_sub(first) / step.max(1);
        count > MOST_ASKED || (0..=count).any(|index| self.is_open(Ino(first + index * step)))
    }

    /// All inodes with references, by number.
    pub fn all(&self) -> Vec<Referenced> {
        let mut all: Vec<Referenced> = Vec::new();
        for shard in &self.shards {
            let of = |(ino, count): (&u32, &Count)| {
                let ino = Ino(u64::from(*ino));
                Referenced { ino, lookups: count.lookups, opens: count.opens }
            };
            all.extend(shard.lock().iter().map(of));
        }
        all.sort_unstable();
        all
    }

    /// True while the inode has a reference.
    pub fn is_referenced(&self, ino: Ino) -> bool {
        self.shard(ino).lock().contains_key(&(ino.0 as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The count of opens ended at 65,535, and as many closes then closed a file that other descriptors had
    /// open.
    #[test]
    fn many_opens_are_counted() {
        let references = OpenFiles::default();
        (0..70_000).for_each(|_| assert!(references.open(Ino(9), |_, _| true)));
        (0..69_999).for_each(|_| _ = references.release(Ino(9), |_| ()));
        assert!(references.is_open(Ino(9)));
        assert!(references.is_any_open(1, 9, 4) && !references.is_any_open(1, 8, 4));
        assert!(references.is_any_open(1, u64::MAX, 4), "too many to ask");
        references.release(Ino(9), |_| ());
        assert!(!references.is_open(Ino(9)));
    }

    #[test]
    fn a_note_lives_as_long_as_the_references_of_its_inode() {
        let references = OpenFiles::default();
        let written = |note: &mut Note, _| {
            note.0[0] += 1;
            true
        };
        references.looked_up(Ino(7));
        assert!(references.open(Ino(7), written) && references.open(Ino(7), written));
        assert!(!references.open(Ino(7), |_, is_first| is_first), "a refused open is not counted");
        _ = references.release(Ino(7), |_| unreachable!("a descriptor is open"));
        assert_eq!(references.with_note(Ino(7), |note| note.0), Some([2, 0]));
        assert!(references.release(Ino(7), |note| note.0[1] = 3).is_referenced);
        assert_eq!(references.with_note(Ino(7), |note| note.0), Some([2, 3]));
        assert!(references.forget(Ino(7), 1));
        assert_eq!(references.with_note(Ino(7), |note| note.0), None);
        assert!(references.open(Ino(7), |note, _| *note == Note::default()));
    }
}
