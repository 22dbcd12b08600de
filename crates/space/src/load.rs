//! Bitmaps from the catalog, loaded a few at a time.
//!
//! Invariant: a chunk remembers the LSN below which its bitmap was loaded, so that a free reported late, for a record that
//! the load has already seen, does not free a new claim.
//! Lock order: `one_at_a_time`, then either the lock of one catalog shard or the space lock.

use crate::lower_space::LowerSpace;
use std::sync::Arc;
use terrace_catalog::Catalog;
use terrace_catalog::chunks::{ChunkIndex, bitmap_size};
use terrace_format::keys::Key;
use terrace_format::{DeviceId, Lsn};
use terrace_runtime::sync::{Mutex, RankedMutex};
use terrace_wal::{Error, Result};

/// Chunks loaded in one step.
const CHUNKS_PER_STEP: usize = 256;

/// Loads bitmaps.
pub(crate) struct Loader {
    catalog: Arc<Catalog>,
    chunk_blocks: u32,
    one_at_a_time: Mutex<()>,
}

/// A bitmap that was read.
pub(crate) struct Loaded {
    /// Records below this were seen.
    pub lsn: Lsn,
    /// The used words; empty for a wholly free chunk, `None` for a damaged bitmap.
    pub words: Option<Vec<u64>>,
}

impl Loader {
    pub(crate) fn new(catalog: Arc<Catalog>) -> Loader {
        let chunk_blocks = catalog.wal().geometry().chunk_blocks;
        Loader { catalog, chunk_blocks, one_at_a_time: Mutex::new(()) }
    }

    /// The log.
    pub(crate) fn wal(&self) -> &terrace_wal::Wal {
        self.catalog.wal()
    }

    /// Blocks of a chunk.
    pub(crate) fn chunk_blocks(&self) -> u32 {
        self.chunk_blocks
    }

    /// Loads a few more bitmaps; false when all are loaded.
    pub(crate) fn load_some(&self, space: &RankedMutex<LowerSpace>) -> Result<bool> {
        let _one = self.one_at_a_time.lock();
        let (index, id, chunks) = {
            let mut space = space.lock();
            let Some((index, device)) = space
                .devices
                .iter()
                .map(|device| &device.space)
                .enumerate()
                .find(|(_, device)| !device.is_loaded())
            else {
                return Ok(false);
            };
            let end = (device.next_load + CHUNKS_PER_STEP).min(device.chunks.len());
            let work = (index, device.id, device.next_load..end);
            space.is_loading = true;
            work
        };
        let indices = || chunks.clone().map(|chunk| ChunkIndex(chunk as u64));
        let loaded: Vec<_> = indices().map(|chunk| self.read_bitmap(id, chunk)).collect();
        // A bit that was read here may be free by a record that is not durable yet: its run waits since the commit, under the lock
        // of the shard (T6).
        let point = self.wal().pm().point();
        let may_be_lost = !space.lock().waiting.is_empty();
        let persisted = if may_be_lost { self.wal().persist() } else { Ok(()) };
        let mut space = space.lock();
        let space = &mut *space;
        if let Err(error) = persisted {
            space.is_loading = false;
            return Err(error);
        }
        if may_be_lost {
            space.take_over(|waiting| waiting <= point);
        }
        let early = std::mem::take(&mut space.early);
        space.is_loading = false;
        let Some(device) = space.devices.get_mut(index).map(|device| &mut device.space) else {
            return Ok(false);
        };
        assert_eq!(device.next_load, chunks.start, "chunks of device {id} are published once");
        for (chunk, Loaded { lsn, words }) in indices().zip(loaded) {
            space.damaged += u64::from(words.is_none());
            device.publish(chunk, lsn, words);
        }
        device.next_load = chunks.end;
        for (run, lsn) in early {
            space.free_run(run, lsn);
        }
        Ok(true)
    }

    /// Reads the bitmap of a chunk.
    pub(crate) fn read_bitmap(&self, device: DeviceId, chunk: ChunkIndex) -> Loaded {
        let guard = self.catalog.read(self.catalog.shard_of(chunk.0));
        let lsn = self.catalog.wal().next_lsn();
        let size = bitmap_size(self.chunk_blocks);
        let words = guard.reader().get_with(&Key::chunk(chunk.0, device), |value| {
            let words = value.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
            (value.len() == size).then(|| words.collect::<Vec<u64>>())
        });
        let words = match words {
            Ok(Some(words)) => words,
            // A leaf with a chunk key is never below PM.
            Ok(None) | Err(Error::PageBelow(_)) => Some(Vec::new()),
            Err(_) => None,
        };
        Loaded { lsn, words }
    }
}
