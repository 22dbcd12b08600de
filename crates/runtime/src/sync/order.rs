//! The order of locks as an assert (L1): debug builds note the locks that a thread holds, and a thread that takes a
//! lock out of order panics, even if no other thread is there to deadlock with.
//!
//! Invariants: the rank of a lock is its pool, its kind and its number; a thread waits only for a lock whose rank is
//! above the ranks of all locks of the same pool that it holds, and for a lane only while it holds no lane of the pool. A lock that is tried without
//! waiting may be out of order. Release builds note nothing: the guards are as large as without ranks.

use super::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

/// Kinds of locks, first to last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockKind {
    /// The rename lock of a pool.
    Rename,
    /// Inode stripes by index.
    InodeStripe,
    /// Catalog shards by number.
    CatalogShard,
    /// Orphan lists by number.
    OrphanList,
    /// The table of free inode numbers.
    InodeNumbers,
    /// Stripes of a file map that all files share, by number.
    MapStripe,
    /// The allocator of PM blocks, then that of device blocks.
    Allocator,
    /// Lanes of the log, one at a time.
    Lane,
}

/// The locks of one open pool: each pool of a process has locks of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolLocks(u32);

static NEXT_POOL: AtomicU32 = AtomicU32::new(0);

impl PoolLocks {
    /// The locks of another pool.
    #[allow(clippy::new_without_default)] // each call gives another value
    pub fn new() -> PoolLocks {
        PoolLocks(NEXT_POOL.fetch_add(1, Ordering::Relaxed))
    }

    /// The rank of a lock of a kind by its number.
    #[inline]
    pub const fn rank(self, kind: LockKind, number: u32) -> LockRank {
        LockRank { pool: self, kind, number }
    }
}

/// The rank of a lock. Ranks of one pool compare by kind and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRank {
    pool: PoolLocks,
    kind: LockKind,
    number: u32,
}

impl LockRank {
    /// Notes that the calling thread waits for the lock and then holds it, until the result is dropped.
    ///
    /// # Panics
    /// In debug builds, when the thread holds a lock that comes after this lock.
    #[inline]
    #[track_caller]
    pub fn take(self) -> HeldRank {
        tracked::note(self, true)
    }

    /// Notes that the calling thread got the lock without waiting.
    #[inline]
    #[track_caller]
    pub fn tried(self) -> HeldRank {
        tracked::note(self, false)
    }
}

/// A lock that a thread holds.
#[derive(Debug)]
#[must_use]
pub struct HeldRank(#[allow(dead_code)] tracked::Noted); // release builds note nothing

#[cfg(debug_assertions)]
mod tracked {
    use super::{HeldRank, LockKind, LockRank};
    use std::cell::RefCell;

    #[cfg(feature = "shuttle")]
    shuttle::thread_local! {
        static HELD: RefCell<Vec<LockRank>> = RefCell::new(Vec::new());
    }
    #[cfg(not(feature = "shuttle"))]
    thread_local! {
        static HELD: RefCell<Vec<LockRank>> = const { RefCell::new(Vec::new()) };
    }

    #[derive(Debug)]
    pub(super) struct Noted(LockRank);

    #[track_caller]
    pub(super) fn note(rank: LockRank, waits: bool) -> HeldRank {
        HELD.with(|held| {
            let mut held = held.borrow_mut();
            if waits {
                let before = |other: &LockRank| match (other.kind, rank.kind) {
                    _ if other.pool != rank.pool => true,
                    (LockKind::Lane, LockKind::Lane) => false,
                    _ => (other.kind, other.number) < (rank.kind, rank.number),
                };
                assert!(held.iter().all(before), "{rank:?} is taken after {held:?} (L1)");
            }
            held.push(rank);
        });
        HeldRank(Noted(rank))
    }

    impl Drop for Noted {
        fn drop(&mut self) {
            HELD.with(|held| {
                let mut held = held.borrow_mut();
                if let Some(at) = held.iter().rposition(|rank| *rank == self.0) {
                    held.remove(at);
                }
            });
        }
    }
}

#[cfg(not(debug_assertions))]
mod tracked {
    use super::{HeldRank, LockRank};

    #[derive(Debug)]
    pub(super) struct Noted;

    #[inline]
    pub(super) fn note(_rank: LockRank, _waits: bool) -> HeldRank {
        HeldRank(Noted)
    }
}

/// A guard and the note that its lock is held.
#[derive(Debug)]
pub struct Ranked<G> {
    guard: G,
    _held: HeldRank,
}

impl<G> Ranked<G> {
    /// Joins a guard with its note.
    #[inline]
    pub fn new(guard: G, held: HeldRank) -> Ranked<G> {
        Ranked { guard, _held: held }
    }
}

impl<G: Deref> Deref for Ranked<G> {
    type Target = G::Target;
    #[inline]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Ranked<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// A mutex with a rank.
#[derive(Debug)]
pub struct RankedMutex<T> {
    rank: LockRank,
    lock: Mutex<T>,
}

/// A guard of [`RankedMutex`].
pub type RankedGuard<'a, T> = Ranked<MutexGuard<'a, T>>;

impl<T> RankedMutex<T> {
    /// A free mutex.
    pub const fn new(rank: LockRank, value: T) -> RankedMutex<T> {
        RankedMutex { rank, lock: Mutex::new(value) }
    }

    /// Waits for the lock.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> RankedGuard<'_, T> {
        let held = self.rank.take();
        Ranked::new(self.lock.lock(), held)
    }

    /// Takes the lock if it is free.
    #[inline]
    #[track_caller]
    pub fn try_lock(&self) -> Option<RankedGuard<'_, T>> {
        let guard = self.lock.try_lock()?;
        Some(Ranked::new(guard, self.rank.tried()))
    }
}

/// A reader-writer lock with a rank.
#[derive(Debug)]
pub struct RankedRwLock<T> {
    rank: LockRank,
    lock: RwLock<T>,
}

impl<T> RankedRwLock<T> {
    /// A free lock.
    pub const fn new(rank: LockRank, value: T) -> RankedRwLock<T> {
        RankedRwLock { rank, lock: RwLock::new(value) }
    }

    /// Waits for the shared lock.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> Ranked<RwLockReadGuard<'_, T>> {
        let held = self.rank.take();
        Ranked::new(self.lock.read(), held)
    }

    /// Waits for the exclusive lock.
    #[inline]
    #[track_caller]
    pub fn write(&self) -> Ranked<RwLockWriteGuard<'_, T>> {
        let held = self.rank.take();
        Ranked::new(self.lock.write(), held)
    }
}

#[cfg(all(test, debug_assertions, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    fn mutex(kind: LockKind, number: u32) -> RankedMutex<()> {
        RankedMutex::new(PoolLocks(u32::MAX).rank(kind, number), ())
    }

    #[test]
    fn locks_are_taken_by_rising_rank() {
        let (stripe, shard, lane) =
            (mutex(LockKind::InodeStripe, 9), mutex(LockKind::CatalogShard, 1), mutex(LockKind::Lane, 3));
        let held = (stripe.lock(), shard.lock(), lane.lock());
        drop(held);
        let _shard = shard.lock();
    }

    #[test]
    fn a_lock_of_an_earlier_kind_is_refused() {
        let (stripe, shard) = (mutex(LockKind::InodeStripe, 9), mutex(LockKind::CatalogShard, 1));
        assert!(catch_unwind(|| drop((shard.lock(), stripe.lock()))).is_err());
        // The panic gave back the notes.
        drop((stripe.lock(), shard.lock()));
    }

    #[test]
    fn a_second_lock_of_a_kind_has_a_larger_number() {
        let (low, high) = (mutex(LockKind::OrphanList, 1), mutex(LockKind::OrphanList, 2));
        drop((low.lock(), high.lock()));
        assert!(catch_unwind(|| drop((high.lock(), low.lock()))).is_err());
        assert!(catch_unwind(|| drop((low.lock(), low.lock()))).is_err(), "a lock waits for its own holder");
    }

    #[test]
    fn locks_of_another_pool_have_no_order() {
        let (own, other) = (PoolLocks::new(), PoolLocks::new());
        let lane = RankedMutex::new(own.rank(LockKind::Lane, 1), ());
        let stripe = RankedMutex::new(other.rank(LockKind::InodeStripe, 1), ());
        drop((lane.lock(), stripe.lock()));
    }

    #[test]
    fn a_second_lane_is_refused_but_may_be_tried() {
        let (first, second) = (mutex(LockKind::Lane, 1), mutex(LockKind::Lane, 2));
        assert!(catch_unwind(|| drop((first.lock(), second.lock()))).is_err());
        let _second = second.lock();
        assert!(first.try_lock().is_some());
    }
}
