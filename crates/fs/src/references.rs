//! Who knows an inode: the kernel's lookup counts and open files. Volatile; a crash drops them all.
//!
//! An inode whose last name is gone is removed only when nobody refers to it (design C3). New references
//! are taken under the lock of the directory or of the inode itself, so that a count of zero under the
//! exclusive locks of both cannot rise again.

use crate::Wait;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use terrace_format::Ino;
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::{Condvar, Mutex};

/// How the kernel treats an open file (design 6): one mode from first open to last close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Every read and write reaches the file system.
    Direct,
    /// The kernel caches pages, and keeps those it has: files that are only read (decision 0020).
    Cached,
}

/// What comes of asking to open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    /// It is open.
    Open(OpenMode),
    /// It is open, and is cached once the kernel has dropped the pages it has: the caller sees to that and says so to
    /// [`References::dropped`].
    Drops,
    /// Another caller drops pages, or this one would have to and may not wait. Nothing was counted.
    Waits,
}

#[derive(Clone, Copy, Default)]
struct Count {
    lookups: u32,
    opens: u32,
    cached: bool,
    /// It was open in [`OpenMode::Direct`] since the kernel last dropped its pages: one that was mapped then may have been
    /// filled while a write was on its way. They are dropped while nobody but who opens it to read has it open: beside
    /// writes of others through the cache, whose pages the kernel does not lock while they are on their way, a reader
    /// brought back what was there before, for good.
    was_direct: bool,
    /// The only one that has it open has its pages dropped, and nobody else has opened it since.
    drops: bool,
}

impl Count {
    fn mode(&self) -> OpenMode {
        if self.cached { OpenMode::Cached } else { OpenMode::Direct }
    }
}

/// Who knows an inode after one closed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left {
    /// Somebody has it open.
    pub is_open: bool,
    /// Somebody refers to it.
    pub is_referenced: bool,
}

/// Multiplicative hash: keys are inode numbers, not attacker-chosen strings.
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 29;
    }
}

type Counts = HashMap<u32, Count, BuildHasherDefault<NumberHasher>>;
const SHARDS: usize = 64;
/// Inodes that are looked at one by one: some milliseconds.
const MOST_ASKED: u64 = 1 << 16;

/// All references. 16 bytes and a byte of hash table per inode that the kernel knows.
pub(crate) struct References {
    shards: Vec<Mutex<Counts>>,
    /// Told whenever pages were dropped; with the lock of the inode's shard.
    dropped: Vec<Condvar>,
}

impl References {
    pub fn new() -> References {
        References {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            dropped: (0..SHARDS).map(|_| Condvar::default()).collect(),
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Counts> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// One more lookup.
    pub fn looked_up(&self, ino: Ino) {
        let mut counts = self.shard(ino).lock();
        let count = counts.entry(ino.0 as u32).or_default();
        count.lookups = count.lookups.saturating_add(1);
    }

    /// Fewer lookups; true when nobody refers to the inode any more.
    pub fn forget(&self, ino: Ino, lookups: u64) -> bool {
        let mut counts = self.shard(ino).lock();
        let Some(count) = counts.get_mut(&(ino.0 as u32)) else {
            return true;
        };
        count.lookups = count.lookups.saturating_sub(lookups.min(u64::from(u32::MAX)) as u32);
        if count.lookups > 0 || count.opens > 0 {
            return false;
        }
        counts.remove(&(ino.0 as u32));
        if counts.capacity() > 1024 && counts.len() < counts.capacity() / 8 {
            counts.shrink_to_fit();
        }
        true
    }

    /// Opens; `prefer` decides the mode of the first open, later ones keep it. `can_drop`: the caller can have the kernel
    /// drop pages; without, what was open directly stays direct.
    pub fn open(&self, ino: Ino, prefer: OpenMode, can_drop: bool, wait: Wait) -> Opening {
        let mut counts = self.shard(ino).lock();
        let count = counts.entry(ino.0 as u32).or_default();
        let prefers_cached = prefer == OpenMode::Cached;
        let mut opening = None;
        if count.drops {
            if prefers_cached {
                return Opening::Waits;
            }
            // Who writes does not wait, and all are direct.
            count.drops = false;
        } else if count.opens == 0 {
            if prefers_cached && count.was_direct && can_drop {
                if wait != Wait::Allowed {
                    return Opening::Waits;
                }
                count.drops = true;
                opening = Some(Opening::Drops);
            }
            count.cached = prefers_cached && !count.was_direct;
            count.was_direct |= !count.cached;
        }
        count.opens = count.opens.saturating_add(1);
        opening.unwrap_or(Opening::Open(count.mode()))
    }

    /// Ends what [`Opening::Drops`] began: `done` when the kernel has dropped all pages. The mode, which is not cached when
    /// somebody opened it to write meanwhile.
    pub fn dropped(&self, ino: Ino, done: bool) -> OpenMode {
        let mut counts = self.shard(ino).lock();
        let count = counts.entry(ino.0 as u32).or_default();
        if std::mem::take(&mut count.drops) && done {
            count.cached = true;
            count.was_direct = false;
        }
        self.dropped[ino.0 as usize % SHARDS].notify_all();
        count.mode()
    }

    /// Waits while another caller drops pages.
    pub fn wait_for_dropped(&self, ino: Ino) {
        let mut counts = self.shard(ino).lock();
        while counts.get(&(ino.0 as u32)).is_some_and(|count| count.drops) {
            self.dropped[ino.0 as usize % SHARDS].wait(&mut counts);
        }
    }

    /// Closes.
    pub fn release(&self, ino: Ino) -> Left {
        let mut counts = self.shard(ino).lock();
        let Some(count) = counts.get_mut(&(ino.0 as u32)) else {
            return Left { is_open: false, is_referenced: false };
        };
        count.opens = count.opens.saturating_sub(1);
        if planted(Mistake::CloseOfOneHandle) && count.opens > 0 {
            *count = Count::default();
        }
        let left = Left { is_open: count.opens > 0, is_referenced: count.lookups > 0 || count.opens > 0 };
        if !left.is_referenced {
            counts.remove(&(ino.0 as u32));
        }
        left
    }

    /// True while somebody has the inode open.
    pub fn is_open(&self, ino: Ino) -> bool {
        self.shard(ino).lock().get(&(ino.0 as u32)).is_some_and(|count| count.opens > 0)
    }

    /// True while somebody has an inode of `first`, `first + step`, … up to `last` open. Of more than [`MOST_ASKED`] it is
    /// said unseen.
    pub fn is_any_open(&self, first: u64, last: u64, step: u64) -> bool {
        let count = last.saturating_sub(first) / step.max(1);
        count > MOST_ASKED || (0..=count).any(|index| self.is_open(Ino(first + index * step)))
    }

    /// True when somebody refers to the inode.
    pub fn is_referenced(&self, ino: Ino) -> bool {
        self.shard(ino).lock().contains_key(&(ino.0 as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: Wait = Wait::Allowed;

    /// A mapping beside direct writes left old pages in the kernel's cache, and a later open that only read kept them.
    #[test]
    fn what_was_written_directly_is_not_kept_in_the_kernel() {
        let references = References::new();
        let open = |prefer| references.open(Ino(7), prefer, false, W);
        references.looked_up(Ino(7));
        assert_eq!(open(OpenMode::Cached), Opening::Open(OpenMode::Cached));
        // As long as somebody has it open, its mode stays.
        assert_eq!(open(OpenMode::Direct), Opening::Open(OpenMode::Cached));
        (0..2).for_each(|_| assert!(references.release(Ino(7)).is_referenced));
        assert_eq!(open(OpenMode::Direct), Opening::Open(OpenMode::Direct));
        assert!(references.release(Ino(7)).is_referenced);
        assert_eq!([0, 1].map(|_| open(OpenMode::Cached)), [Opening::Open(OpenMode::Direct); 2]);
        // The kernel forgets the inode, and its pages with it.
        (0..2).for_each(|_| assert!(references.release(Ino(7)).is_referenced));
        assert!(references.forget(Ino(7), 1));
        assert_eq!(open(OpenMode::Cached), Opening::Open(OpenMode::Cached));
    }

    /// Pages are dropped while nobody else has the file open, once, and who opens it to write meanwhile keeps it direct.
    #[test]
    fn pages_are_dropped_beside_nobody() {
        let references = References::new();
        let open = |prefer, wait| references.open(Ino(7), prefer, true, wait);
        let close = || _ = references.release(Ino(7));
        let (cached, direct) = (Opening::Open(OpenMode::Cached), Opening::Open(OpenMode::Direct));
        references.looked_up(Ino(7));
        assert_eq!(open(OpenMode::Direct, W), direct);
        // The writer is there: as it has it.
        assert_eq!(open(OpenMode::Cached, W), direct);
        (0..2).for_each(|_| close());
        assert_eq!(open(OpenMode::Cached, Wait::Never), Opening::Waits);
        assert_eq!(open(OpenMode::Cached, W), Opening::Drops);
        // Readers wait for it and count when they have.
        assert_eq!(open(OpenMode::Cached, W), Opening::Waits);
        assert_eq!(references.dropped(Ino(7), true), OpenMode::Cached);
        references.wait_for_dropped(Ino(7));
        assert_eq!(open(OpenMode::Cached, Wait::Never), cached);
        (0..2).for_each(|_| close());
        // Nothing to drop now, until it was direct again.
        assert_eq!(open(OpenMode::Cached, Wait::Never), cached);
        close();
        assert_eq!(open(OpenMode::Direct, W), direct);
        close();
        // A writer comes while pages are dropped; it may have gone again.
        for stays in [true, false] {
            assert_eq!(open(OpenMode::Cached, W), Opening::Drops);
            assert_eq!(open(OpenMode::Direct, W), direct);
            assert_eq!(open(OpenMode::Cached, W), direct);
            close();
            if !stays {
                close();
            }
            assert_eq!(references.dropped(Ino(7), true), OpenMode::Direct);
            close();
            if stays {
                close();
            }
        }
        // The kernel could not.
        assert_eq!(open(OpenMode::Cached, W), Opening::Drops);
        assert_eq!(references.dropped(Ino(7), false), OpenMode::Direct);
        close();
        assert_eq!(open(OpenMode::Cached, W), Opening::Drops);
        assert!(references.is_open(Ino(7)));
    }

    /// The count of opens ended at 65,535, and as many closes made a file closed that others had open.
    #[test]
    fn many_opens_are_counted() {
        let references = References::new();
        (0..70_000).for_each(|_| _ = references.open(Ino(9), OpenMode::Direct, true, W));
        (0..69_999).for_each(|_| _ = references.release(Ino(9)));
        assert!(references.is_open(Ino(9)));
        assert!(references.is_any_open(1, 9, 4) && !references.is_any_open(1, 8, 4));
        assert!(references.is_any_open(1, u64::MAX, 4), "too many to ask");
        references.release(Ino(9));
        assert!(!references.is_open(Ino(9)));
    }
}
