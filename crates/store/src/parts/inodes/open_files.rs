//! References to inodes: the kernel's lookup counts, and open files. They are volatile; a crash drops them
//! all.
//!
//! An inode without a name is removed only when no reference is left (design C3). New references are taken
//! under the lock of the directory or of the inode itself, so that a count of zero under the exclusive locks
//! of both cannot rise again.

use crate::parts::inodes::referenced::Referenced;
use crate::types::Wait;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use terrace_format::Ino;
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};
use terrace_runtime::sync::{Condvar, Mutex};

/// How the kernel treats an open file (design 6): one mode from first open to last close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Every read and write reaches the file system.
    Direct,
    /// The kernel caches pages, and keeps those it has: files that are only read (decision 0020).
    Cached,
}

/// The mode that an open prefers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefer {
    /// [`OpenMode::Direct`].
    Direct,
    /// [`OpenMode::Cached`].
    Cached,
    /// [`OpenMode::Cached`], if the share of the kernel's cache for such files has room for this file.
    CachedWhileRoom {
        /// Blocks of the file.
        blocks: u64,
    },
}

/// The answer to an open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// It is open.
    Open(OpenMode),
    /// The file is open, and is cached once the kernel has dropped its old pages: the caller asks the kernel
    /// for that, then calls [`References::dropped`].
    Drops,
    /// Another caller is dropping pages, or this caller would have to drop pages and may not wait. The open
    /// was not counted.
    Waits,
}

#[derive(Clone, Copy, Default)]
struct Count {
    lookups: u32,
    opens: u32,
    /// Blocks that the file takes of the kernel's cache under [`Prefer::CachedWhileRoom`], until its last
    /// close.
    kept_blocks: u32,
    cached: bool,
    /// The file was open in [`OpenMode::Direct`] since the kernel last dropped its pages: a mapping may have
    /// filled a page during a direct write, so the page may be old. The pages are dropped only while no
    /// descriptor but that of the opening reader exists. The kernel does not lock pages during a write
    /// through the cache, so a drop beside such a write would let a reader bring the old page back for good.
    was_direct: bool,
    /// The only descriptor is having the pages dropped; further opens wait.
    drops: bool,
}

impl Count {
    fn mode(&self) -> OpenMode {
        if self.cached { OpenMode::Cached } else { OpenMode::Direct }
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

/// Multiplicative hash: keys are inode numbers, not attacker-chosen strings.
#[derive(Default)]
pub struct NumberHasher(u64);

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

/// The most inodes that a call looks at one by one: some milliseconds.
const MOST_ASKED: u64 = 1 << 16;

/// All references. 20 bytes and a byte of hash table per inode that the kernel knows.
pub struct References {
    shards: Vec<Mutex<Counts>>,
    /// Blocks of files that are kept in the kernel's cache while they are open, and the most that may be.
    kept_blocks: AtomicU64,
    most_kept_blocks: u64,
    /// Told whenever pages were dropped; with the lock of the inode's shard.
    dropped: Vec<Condvar>,
}

impl References {
    /// With `most_kept_blocks` blocks of the kernel's cache for files in PM.
    pub fn new(most_kept_blocks: u64) -> References {
        References {
            kept_blocks: AtomicU64::new(0),
            most_kept_blocks,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            dropped: (0..SHARDS).map(|_| Condvar::default()).collect(),
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Counts> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// Counts a further lookup of the kernel.
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

    /// Opens a file. `prefer` decides the mode of the first open; further opens share its mode. `can_drop`:
    /// the caller can have the kernel drop pages; without it a file that was open directly stays direct.
    pub fn open(&self, ino: Ino, prefer: Prefer, can_drop: bool, wait: Wait) -> Opening {
        let mut counts = self.shard(ino).lock();
        let count = counts.entry(ino.0 as u32).or_default();
        let mut prefers_cached = prefer != Prefer::Direct && (can_drop || !count.was_direct);
        // Every open waits for the drop, or the kernel, which drops the pages, would wait for requests that
        // hold some of them.
        if count.drops {
            return Opening::Waits;
        }
        if count.opens == 0 {
            let drops = prefers_cached && count.was_direct;
            if drops && wait != Wait::Allowed {
                return Opening::Waits;
            }
            if prefers_cached && let Prefer::CachedWhileRoom { blocks } = prefer {
                count.kept_blocks = self.keep(blocks).unwrap_or(0);
                prefers_cached = count.kept_blocks > 0;
            }
            count.drops = drops && prefers_cached;
            count.cached = prefers_cached && !count.was_direct;
            count.was_direct |= !count.cached;
        }
        count.opens = count.opens.saturating_add(1);
        if count.drops { Opening::Drops } else { Opening::Open(count.mode()) }
    }

    /// Takes room in the kernel's cache for `blocks` blocks; `None` if there is none.
    fn keep(&self, blocks: u64) -> Option<u32> {
        let taken = u32::try_from(blocks).ok()?;
        let more = |kept: u64| kept.checked_add(blocks).filter(|kept| *kept <= self.most_kept_blocks);
        self.kept_blocks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok().then_some(taken)
    }

    /// Blocks of files that are kept in the kernel's cache while there is room, and the most.
    pub fn kept_blocks(&self) -> (u64, u64) {
        (self.kept_blocks.load(Ordering::Relaxed), self.most_kept_blocks)
    }

    /// Ends what [`Opening::Drops`] began: `done` when the kernel has dropped all pages. The mode.
    pub fn dropped(&self, ino: Ino, done: bool) -> OpenMode {
        let mut counts = self.shard(ino).lock();
        let count = counts.entry(ino.0 as u32).or_default();
        assert!(count.drops, "inode {ino} ends a drop of pages that no open began");
        count.drops = false;
        if done {
            count.cached = true;
            count.was_direct = false;
        }
        self.dropped[ino.0 as usize % SHARDS].notify_all();
        count.mode()
    }

    /// Waits while another caller has pages dropped.
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
        if count.opens == 0 {
            let taken = u64::from(std::mem::take(&mut count.kept_blocks));
            let before = self.kept_blocks.fetch_sub(taken, Ordering::Relaxed);
            assert!(before >= taken, "{taken} of {before} kept blocks are given back");
        }
        let left = Left { is_open: count.opens > 0, is_referenced: count.lookups > 0 || count.opens > 0 };
        if !left.is_referenced {
            counts.remove(&(ino.0 as u32));
        }
        left
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

    const W: Wait = Wait::Allowed;

    /// A mapping beside direct writes left old pages in the kernel's cache, and a later open that only read kept them.
    #[test]
    fn the_kernel_does_not_cache_a_directly_written_file() {
        let references = References::new(10);
        let open = |prefer| references.open(Ino(7), prefer, false, W);
        references.looked_up(Ino(7));
        assert_eq!(open(Prefer::Cached), Opening::Open(OpenMode::Cached));
        // The mode stays until the last close.
        assert_eq!(open(Prefer::Direct), Opening::Open(OpenMode::Cached));
        (0..2).for_each(|_| assert!(references.release(Ino(7)).is_referenced));
        assert_eq!(open(Prefer::Direct), Opening::Open(OpenMode::Direct));
        assert!(references.release(Ino(7)).is_referenced);
        assert_eq!([0, 1].map(|_| open(Prefer::Cached)), [Opening::Open(OpenMode::Direct); 2]);
        // The kernel forgets the inode, and its pages with it.
        (0..2).for_each(|_| assert!(references.release(Ino(7)).is_referenced));
        assert!(references.forget(Ino(7), 1));
        assert_eq!(open(Prefer::Cached), Opening::Open(OpenMode::Cached));
    }

    /// Pages are dropped once, while no other descriptor is open; a further open waits meanwhile, also for
    /// writing.
    #[test]
    fn kernel_pages_are_dropped_once_while_no_other_descriptor_is_open() {
        let references = References::new(10);
        let open = |prefer, wait| references.open(Ino(7), prefer, true, wait);
        let close = || _ = references.release(Ino(7));
        let (cached, direct) = (Opening::Open(OpenMode::Cached), Opening::Open(OpenMode::Direct));
        references.looked_up(Ino(7));
        assert_eq!(open(Prefer::Direct, W), direct);
        // A writer has the file open already, so the mode stays direct.
        assert_eq!(open(Prefer::Cached, W), direct);
        (0..2).for_each(|_| close());
        assert_eq!(open(Prefer::Cached, Wait::Never), Opening::Waits);
        assert_eq!(open(Prefer::Cached, W), Opening::Drops);
        // Further opens wait for the drop, and are counted afterwards.
        assert_eq!([Prefer::Cached, Prefer::Direct].map(|prefer| open(prefer, W)), [Opening::Waits; 2]);
        assert_eq!(references.dropped(Ino(7), true), OpenMode::Cached);
        references.wait_for_dropped(Ino(7));
        assert_eq!(open(Prefer::Direct, Wait::Never), cached);
        (0..2).for_each(|_| close());
        // The kernel has no old page until the file was open directly again.
        assert_eq!(open(Prefer::Cached, Wait::Never), cached);
        close();
        assert_eq!(open(Prefer::Direct, W), direct);
        close();
        // The kernel failed to drop the pages.
        assert_eq!(open(Prefer::Cached, W), Opening::Drops);
        assert_eq!(references.dropped(Ino(7), false), OpenMode::Direct);
        close();
        assert_eq!(open(Prefer::Cached, W), Opening::Drops);
        assert!(references.is_open(Ino(7)));
    }

    /// Evenly read beyond what the kernel has room for, files in its cache were read at half the speed of direct ones.
    #[test]
    fn files_are_kept_in_the_kernel_while_there_is_room() {
        let references = References::new(10);
        let open = |ino, blocks| references.open(Ino(ino), Prefer::CachedWhileRoom { blocks }, true, W);
        let (cached, direct) = (Opening::Open(OpenMode::Cached), Opening::Open(OpenMode::Direct));
        assert_eq!([open(1, 6), open(2, 6), open(3, 4)], [cached, direct, cached]);
        // A second open shares the mode; `Prefer::Cached` takes no counted room.
        assert_eq!([open(1, 6), references.open(Ino(4), Prefer::Cached, true, W)], [cached; 2]);
        assert_eq!(references.kept_blocks(), (10, 10));
        _ = references.release(Ino(1));
        assert_eq!(references.kept_blocks(), (10, 10), "another has it open");
        [1, 2, 3].iter().for_each(|ino| _ = references.release(Ino(*ino)));
        assert_eq!(references.kept_blocks(), (0, 10));
        references.looked_up(Ino(5));
        assert_eq!(references.open(Ino(5), Prefer::Direct, true, W), direct);
        _ = references.release(Ino(5));
        // The file takes its room before its pages are dropped, and holds it until the close, even if the
        // drop fails.
        assert_eq!([open(5, 10), open(1, 1)], [Opening::Drops, direct]);
        assert_eq!(references.dropped(Ino(5), false), OpenMode::Direct);
        _ = references.release(Ino(5));
        assert_eq!([open(5, u64::MAX), open(6, 11)], [direct; 2]);
        assert_eq!(references.kept_blocks(), (0, 10));
    }

    /// The count of opens ended at 65,535, and as many closes then closed a file that other descriptors had
    /// open.
    #[test]
    fn many_opens_are_counted() {
        let references = References::new(10);
        (0..70_000).for_each(|_| _ = references.open(Ino(9), Prefer::Direct, true, W));
        (0..69_999).for_each(|_| _ = references.release(Ino(9)));
        assert!(references.is_open(Ino(9)));
        assert!(references.is_any_open(1, 9, 4) && !references.is_any_open(1, 8, 4));
        assert!(references.is_any_open(1, u64::MAX, 4), "too many to ask");
        references.release(Ino(9));
        assert!(!references.is_open(Ino(9)));
    }
}
