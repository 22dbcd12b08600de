//! Inodes in DRAM: their locks, free numbers, open files, tier pins, files that wait for removal.
//!
//! Lock order (L1): rename, inode stripes by index, orphan lists, free numbers.

pub mod free_numbers;
pub mod front_end;
pub mod locks;
pub mod name_bytes;
pub mod open_files;
pub mod referenced;
pub mod removal_queue;
pub mod slot_pages;
pub mod tier_pins;

use free_numbers::InodeNumbers;
use locks::InodeLocks;
use name_bytes::NameBytes;
use open_files::OpenFiles;
use removal_queue::ReclaimQueue;
use slot_pages::InodePages;
use terrace_format::inode::ORPHAN_LISTS;
use terrace_runtime::sync::{LockKind, PoolLocks, RankedGuard, RankedMutex};
use tier_pins::Pins;

/// Inodes in DRAM.
pub struct Inodes {
    rename_lock: RankedMutex<()>,
    locks: InodeLocks,
    orphan_locks: Vec<RankedMutex<()>>,
    numbers: RankedMutex<InodeNumbers>,
    slot_pages: InodePages,
    name_bytes: NameBytes,
    open_files: OpenFiles,
    tier_pins: Pins,
    removals: ReclaimQueue,
}

impl Inodes {
    /// With the free inode numbers of a pool.
    pub fn new(numbers: InodeNumbers, locks: PoolLocks) -> Inodes {
        let orphan_list = |list| RankedMutex::new(locks.rank(LockKind::OrphanList, list), ());
        Inodes {
            rename_lock: RankedMutex::new(locks.rank(LockKind::Rename, 0), ()),
            locks: InodeLocks::new(locks),
            orphan_locks: (0..ORPHAN_LISTS as u32).map(orphan_list).collect(),
            numbers: RankedMutex::new(locks.rank(LockKind::InodeNumbers, 0), numbers),
            slot_pages: InodePages::new(),
            name_bytes: NameBytes::default(),
            open_files: OpenFiles::default(),
            tier_pins: Pins::new(),
            removals: ReclaimQueue::new(),
        }
    }

    /// Takes the rename lock, which keeps the directory tree unchanged while a rename checks it.
    #[inline]
    pub fn lock_tree(&self) -> RankedGuard<'_, ()> {
        self.rename_lock.lock()
    }

    /// Locks of inodes, by stripes.
    #[inline]
    pub fn locks(&self) -> &InodeLocks {
        &self.locks
    }

    /// Locks one list of orphans.
    #[inline]
    pub fn lock_orphans(&self, list: usize) -> RankedGuard<'_, ()> {
        self.orphan_locks[list].lock()
    }

    /// Whether somebody holds the lock of a list of orphans: for asserts of its holder.
    #[inline]
    pub(crate) fn are_orphans_locked(&self, list: usize) -> bool {
        self.orphan_locks[list].try_lock().is_none()
    }

    /// Free inode numbers.
    #[inline]
    pub fn numbers(&self) -> &RankedMutex<InodeNumbers> {
        &self.numbers
    }

    /// Addresses of inode pages that were used lately.
    #[inline]
    pub(crate) fn slot_pages(&self) -> &InodePages {
        &self.slot_pages
    }

    /// Bytes of attribute names, of inodes that were used lately.
    #[inline]
    pub fn name_bytes(&self) -> &NameBytes {
        &self.name_bytes
    }

    /// Look-ups and opens of each inode.
    #[inline]
    pub fn open_files(&self) -> &OpenFiles {
        &self.open_files
    }

    /// Volatile knowledge of files that users pinned to tiers.
    #[inline]
    pub fn tier_pins(&self) -> &Pins {
        &self.tier_pins
    }

    /// Files and ranges that wait for their removal.
    #[inline]
    pub fn removals(&self) -> &ReclaimQueue {
        &self.removals
    }
}
