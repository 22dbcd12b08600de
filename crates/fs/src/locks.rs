//! Inode locks: a fixed number of stripes, so that a million known inodes cost no memory.
//!
//! Two inodes of one stripe share a lock; taking several inodes takes their stripes in ascending order,
//! each once. That is the order "inodes by number" of design L1.

use smallvec::SmallVec;
use terrace_format::Ino;
use terrace_runtime::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

const STRIPES: usize = 1024;

/// All inode locks.
pub(crate) struct InodeLocks {
    stripes: Vec<RwLock<()>>,
}

/// Exclusive locks of several inodes.
pub(crate) type InodeGuards<'a> = SmallVec<[RwLockWriteGuard<'a, ()>; 4]>;

impl InodeLocks {
    pub fn new() -> InodeLocks {
        InodeLocks { stripes: (0..STRIPES).map(|_| RwLock::new(())).collect() }
    }

    fn stripe(ino: Ino) -> usize {
        // Neighbouring numbers differ in the low bits: they get different stripes.
        ino.0 as usize % STRIPES
    }

    /// Shared lock of one inode.
    pub fn read(&self, ino: Ino) -> RwLockReadGuard<'_, ()> {
        self.stripes[Self::stripe(ino)].read()
    }

    /// Exclusive lock of one inode.
    pub fn write(&self, ino: Ino) -> RwLockWriteGuard<'_, ()> {
        self.stripes[Self::stripe(ino)].write()
    }

    /// Exclusive locks of several inodes.
    pub fn write_many(&self, inos: &[Ino]) -> InodeGuards<'_> {
        let mut indices: SmallVec<[usize; 4]> = inos.iter().map(|ino| Self::stripe(*ino)).collect();
        indices.sort_unstable();
        indices.dedup();
        indices.into_iter().map(|index| self.stripes[index].write()).collect()
    }
}
