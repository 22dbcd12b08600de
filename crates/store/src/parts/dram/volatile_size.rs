//! The volatile size and times of a file: its visible size, and the time of its last write into DRAM (design
//! S5).
//!
//! The inode slot holds the *durable* size: all bytes up to it are on media. The *visible* size may be
//! larger, while dirty pages lie past the durable end. Records never carry the visible size. Invariant: a
//! file with dirty pages has an entry; size and times of a file without an entry are all in its inode slot.
//! Lock order: an entry is read and changed under the inode's lock; the locks here are innermost.

use crate::types::inode::Pending;
use rustc_hash::FxHashMap;
use terrace_format::Ino;
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicUsize, Ordering};

const SHARDS: usize = 16;

/// The entries of all files.
pub struct Unwritten {
    shards: Vec<Mutex<FxHashMap<Ino, Pending>>>,
    files: AtomicUsize,
}

impl Unwritten {
    /// No file has a volatile size.
    pub(crate) fn new() -> Unwritten {
        Unwritten { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), files: AtomicUsize::new(0) }
    }

    #[inline]
    fn shard(&self, ino: Ino) -> &Mutex<FxHashMap<Ino, Pending>> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// An inode's entry. One load while no file has any.
    #[inline]
    pub fn get(&self, ino: Ino) -> Option<Pending> {
        if self.files.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.shard(ino).lock().get(&ino).copied()
    }

    /// Sets a file's volatile size and times.
    pub fn set(&self, ino: Ino, pending: Pending) {
        if self.shard(ino).lock().insert(ino, pending).is_none() {
            self.files.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Forgets a file's volatile size and times: they are durable, or the file is gone.
    pub fn remove(&self, ino: Ino) {
        if self.shard(ino).lock().remove(&ino).is_some() {
            let before = self.files.fetch_sub(1, Ordering::AcqRel);
            assert!(before > 0, "inode {ino} had a volatile size, and no file has any (S5)");
        }
    }

    /// All files that have an entry, by number.
    pub fn files(&self) -> Vec<Ino> {
        let mut found: Vec<Ino> = Vec::new();
        if self.files.load(Ordering::Acquire) > 0 {
            self.shards.iter().for_each(|shard| found.extend(shard.lock().keys()));
        }
        found.sort_unstable();
        found
    }
}
