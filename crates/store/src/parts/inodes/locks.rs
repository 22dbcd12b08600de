//! Inode locks: a fixed number of stripes, so that a million known inodes cost no memory.
//!
//! Two inodes of one stripe share a lock; taking several inodes takes their stripes in ascending order,
//! each once: the order "inode stripes by index" of L1.
//!
//! A reader or writer that does not get a lock at once queues before a gate, and only the thread past the
//! gate waits for the lock itself. The lock alone prefers a waiting writer to all readers: while threads
//! wrote to a file without a pause, readers of the file waited for ever, request threads too.
//!
//! *Stores* are a second lock of each stripe. Write-back stores lines of a file into its blocks without the lock itself, under a
//! hold of the stores that was taken under the shared lock. Whoever takes the exclusive lock waits for the end of the stores,
//! but for writers into DRAM ([`InodeLocks::write_into_dram`]), which change no PM. A holder of the stores takes no further lock.
//!
//! A lock owns the cursor of the file map for its inodes: a guard gives the cursor, and nothing else does. Cursors lie apart
//! from the locks: the locks of neighbouring inodes share lines, and a map without cursors touches none.

use smallvec::SmallVec;
use std::ops::Deref;
use terrace_format::Ino;
use terrace_map::Cursor;
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::atomic::{AtomicU32, Ordering};
use terrace_runtime::sync::{
    LockKind, LockRank, Mutex, PoolLocks, Ranked, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

const STRIPES: usize = 1024;

/// The lock of a stripe.
#[derive(Default)]
struct Stripe {
    lock: RwLock<()>,
    gate: Mutex<()>,
    /// Holds of `stores`: most stripes have none.
    storing: AtomicU32,
    stores: RwLock<()>,
}

impl Stripe {
    #[inline]
    fn read(&self) -> RwLockReadGuard<'_, ()> {
        self.lock.try_read().unwrap_or_else(|| {
            let _gate = self.gate.lock();
            self.lock.read()
        })
    }

    #[inline]
    fn write(&self) -> RwLockWriteGuard<'_, ()> {
        self.lock.try_write().unwrap_or_else(|| {
            let _gate = self.gate.lock();
            self.lock.write()
        })
    }

    /// Waits for the end of all stores. The caller holds the lock exclusively: no store begins.
    #[inline]
    fn wait_for_stores(&self) {
        if self.storing.load(Ordering::Acquire) > 0 && !planted(Mistake::StoresNotWaitedFor) {
            drop(self.stores.write());
        }
    }
}

/// Stores of write-back into blocks of a file that are under way.
pub struct Stores<'a> {
    stripe: &'a Stripe,
    _hold: RwLockReadGuard<'a, ()>,
}

impl Drop for Stores<'_> {
    fn drop(&mut self) {
        self.stripe.storing.fetch_sub(1, Ordering::AcqRel);
    }
}

/// All inode locks.
pub struct InodeLocks {
    locks: PoolLocks,
    stripes: Vec<Stripe>,
    /// The cursor of each stripe.
    cursors: Vec<Cursor>,
}

/// A held lock of an inode, which gives the cursor of the lock.
pub struct Held<'a, G> {
    _guard: Ranked<G>,
    cursor: &'a Cursor,
}

/// A shared lock of an inode.
pub type SharedInode<'a> = Held<'a, RwLockReadGuard<'a, ()>>;
/// An exclusive lock of an inode.
pub type ExclusiveInode<'a> = Held<'a, RwLockWriteGuard<'a, ()>>;
/// Exclusive locks of several inodes, whose cursors are not used.
pub type InodeGuards<'a> = SmallVec<[Ranked<RwLockWriteGuard<'a, ()>>; 4]>;

impl<G> Deref for Held<'_, G> {
    type Target = Cursor;
    #[inline]
    fn deref(&self) -> &Cursor {
        self.cursor
    }
}

impl InodeLocks {
    /// All locks free.
    pub(crate) fn new(locks: PoolLocks) -> InodeLocks {
        InodeLocks {
            locks,
            stripes: (0..STRIPES).map(|_| Stripe::default()).collect(),
            cursors: (0..STRIPES).map(|_| Cursor::default()).collect(),
        }
    }

    #[inline]
    fn stripe(ino: Ino) -> usize {
        // Neighbouring numbers differ in the low bits: they get different stripes.
        ino.0 as usize % STRIPES
    }

    /// Shared lock of one inode.
    #[inline]
    pub fn read(&self, ino: Ino) -> SharedInode<'_> {
        let index = Self::stripe(ino);
        let held = self.rank(index).take();
        Held { _guard: Ranked::new(self.stripes[index].read(), held), cursor: &self.cursors[index] }
    }

    /// Exclusive lock of one inode. No store into its blocks is under way.
    #[inline]
    pub fn write(&self, ino: Ino) -> ExclusiveInode<'_> {
        let index = Self::stripe(ino);
        Held { _guard: self.write_stripe(index), cursor: &self.cursors[index] }
    }

    /// Exclusive lock of one inode beside [`Stores`], for changes of DRAM alone.
    #[inline]
    pub fn write_into_dram(&self, ino: Ino) -> ExclusiveInode<'_> {
        let index = Self::stripe(ino);
        let held = self.rank(index).take();
        Held { _guard: Ranked::new(self.stripes[index].write(), held), cursor: &self.cursors[index] }
    }

    /// Begins stores into blocks of an inode, that go on when the shared lock is given back.
    pub fn begin_stores(&self, ino: Ino, _shared: &SharedInode<'_>) -> Stores<'_> {
        let stripe = &self.stripes[Self::stripe(ino)];
        stripe.storing.fetch_add(1, Ordering::AcqRel);
        Stores { stripe, _hold: stripe.stores.read() }
    }

    #[inline]
    fn write_stripe(&self, index: usize) -> Ranked<RwLockWriteGuard<'_, ()>> {
        let held = self.rank(index).take();
        let guard = Ranked::new(self.stripes[index].write(), held);
        self.stripes[index].wait_for_stores();
        guard
    }

    #[inline]
    fn rank(&self, index: usize) -> LockRank {
        self.locks.rank(LockKind::InodeStripe, index as u32)
    }

    /// Whether a thread holds the exclusive lock of an inode: for asserts of the holder, to whom this is a load. To any
    /// other thread the answer may be out of date at once.
    #[inline]
    pub(crate) fn is_exclusive(&self, ino: Ino) -> bool {
        self.stripes[Self::stripe(ino)].lock.try_read().is_none()
    }

    /// Exclusive locks of several inodes.
    #[inline]
    pub fn write_many(&self, inos: &[Ino]) -> InodeGuards<'_> {
        let mut indices: SmallVec<[usize; 4]> = inos.iter().map(|ino| Self::stripe(*ino)).collect();
        indices.sort_unstable();
        indices.dedup();
        indices.into_iter().map(|index| self.write_stripe(index)).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::time::Duration;
    use terrace_runtime::Clock;
    use terrace_runtime::SystemClock;
    use terrace_runtime::sync::atomic::AtomicBool;
    use terrace_runtime::thread::spawn;

    #[test]
    fn an_exclusive_lock_waits_for_stores_but_one_for_dram_does_not() {
        let locks = Arc::new(InodeLocks::new(PoolLocks::new()));
        let stores = locks.begin_stores(Ino(7), &locks.read(Ino(7)));
        drop(locks.write_into_dram(Ino(7)));
        drop(locks.write(Ino(8)));
        let (tell, told) = channel();
        let writer = {
            let locks = Arc::clone(&locks);
            spawn("writer", move || {
                drop(locks.write(Ino(7)));
                tell.send(()).unwrap();
            })
        };
        assert!(told.recv_timeout(Duration::from_millis(100)).is_err(), "the stores have not ended");
        drop(stores);
        assert!(told.recv_timeout(Duration::from_secs(30)).is_ok());
        writer.unwrap().join().unwrap();
    }

    /// When each writer handed the lock to the next writer, readers of the file waited for all writers: 350
    /// threads that wrote to the same file held back every other request.
    #[test]
    fn a_reader_gets_the_lock_although_writers_never_pause() {
        let (locks, end) = (Arc::new(InodeLocks::new(PoolLocks::new())), Arc::new(AtomicBool::new(false)));
        let writers: Vec<_> = (0..8)
            .map(|_| {
                let (locks, end) = (Arc::clone(&locks), Arc::clone(&end));
                let write = move || {
                    let clock = SystemClock::default();
                    while !end.load(Ordering::Relaxed) {
                        let _guard = locks.write(Ino(7));
                        clock.sleep(Duration::from_millis(1));
                    }
                };
                spawn("writer", write).unwrap()
            })
            .collect();
        let (tell, told) = channel();
        let reader = spawn("reader", move || {
            for _ in 0..20 {
                drop(locks.read(Ino(7)));
            }
            tell.send(()).unwrap();
        });
        let read = told.recv_timeout(Duration::from_secs(30));
        end.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        reader.unwrap().join().unwrap();
        assert!(read.is_ok(), "a reader waited for as long as there were writers");
    }
}
