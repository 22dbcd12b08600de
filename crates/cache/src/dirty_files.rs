//! The index of dirty blocks: of each file its dirty blocks in order, each with the time since when it is dirty.
//!
//! Lock order: the lock of a shard of the index is innermost.

use crate::header::PageKey;
use std::collections::{BTreeMap, HashMap};
use terrace_format::{FileBlock, Ino};
use terrace_runtime::sync::Mutex;

const SHARDS: usize = 16;

/// The dirty blocks of one file, with the time since when each block is dirty.
pub(crate) struct File {
    pub(crate) generation: u32,
    pub(crate) blocks: BTreeMap<FileBlock, u64>,
    /// No block is older.
    pub(crate) oldest_ns: u64,
}

/// The index of dirty blocks by file.
pub(crate) struct DirtyFiles {
    pub(crate) shards: Vec<Mutex<HashMap<Ino, File>>>,
}

impl DirtyFiles {
    pub(crate) fn new() -> DirtyFiles {
        DirtyFiles { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    pub(crate) fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, File>> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    pub(crate) fn add(&self, key: PageKey, now_ns: u64) {
        let mut files = self.shard(key.ino).lock();
        let generation = key.generation;
        let file = files.entry(key.ino).or_insert_with(|| File {
            generation,
            blocks: BTreeMap::new(),
            oldest_ns: now_ns,
        });
        assert_eq!(file.generation, generation, "dirty pages of a file that is gone");
        file.blocks.insert(key.block, now_ns);
    }

    pub(crate) fn remove(&self, key: PageKey) {
        let mut files = self.shard(key.ino).lock();
        if let Some(file) = files.get_mut(&key.ino).filter(|file| file.generation == key.generation) {
            file.blocks.remove(&key.block);
            if file.blocks.is_empty() {
                files.remove(&key.ino);
            }
        }
    }
}
