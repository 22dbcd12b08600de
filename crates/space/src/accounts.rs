//! The volatile space of lower tiers beside the bitmaps on the medium, for simulators: they judge when nothing is under way.

use crate::chunk::Content;
use crate::chunk_space::ChunkSpace;
use terrace_blocks::bits::{self, Run};
use terrace_catalog::DeviceRun;
use terrace_catalog::chunks::{ChunkIndex, Piece};

/// Blocks of lower tiers whose volatile state their bitmaps do not explain, and what is held of them. When nothing is
/// under way, and the pool is not damaged, both lists of blocks are empty, and `reserved` is what waits in DRAM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChunkAccounts {
    /// Taken, and nobody's: claims that were never released.
    pub claimed: Vec<DeviceRun>,
    /// Somebody's, and free to be taken all the same.
    pub given: Vec<DeviceRun>,
    /// Pinned runs.
    pub pins: Vec<DeviceRun>,
    /// Blocks of space reservations for dirty pages.
    pub reserved: i64,
    /// The free count of each device beside the sum over its chunks, where the two differ.
    pub miscounted: Vec<(u64, u64)>,
}

impl ChunkSpace {
    /// Compares each loaded chunk in DRAM with its bitmap in the catalog. Reads the bitmaps of all loaded
    /// chunks: call it without locks, and while nobody claims or frees.
    pub fn accounts(&self) -> ChunkAccounts {
        let loaded: Vec<_> = {
            let space = self.space.lock();
            let spaces = space.devices.iter().map(|device| &device.space);
            spaces.map(|device| (device.id, device.next_load.min(device.chunks.len()) as u64)).collect()
        };
        let bitmaps: Vec<Vec<_>> = loaded
            .into_iter()
            .map(|(id, end)| {
                let read = |chunk| (ChunkIndex(chunk), self.loader.read_bitmap(id, ChunkIndex(chunk)).words);
                (0..end).map(read).collect()
            })
            .collect();
        let space = self.space.lock();
        let pins = space.pins.runs().copied().collect();
        let reserved = space.reservation.balance();
        let mut accounts = ChunkAccounts { reserved, pins, ..ChunkAccounts::default() };
        for (device, bitmaps) in space.devices.iter().map(|device| &device.space).zip(bitmaps) {
            let mut free = 0;
            for (chunk, bitmap) in bitmaps {
                // A damaged one counts as full.
                let Some(bitmap) = bitmap else { continue };
                let found = device.words(chunk);
                free += found.iter().map(|word| u64::from(word.count_zeros())).sum::<u64>();
                for bit in 0..device.capacity(chunk) {
                    let run = device.run_of(Piece { chunk, bits: Run::new(bit, 1) });
                    if space.waits(run) {
                        continue;
                    }
                    match (bits::is_set(&found, bit), bits::is_set(&bitmap, bit)) {
                        (true, false) => accounts.claimed.push(run),
                        (false, true) => accounts.given.push(run),
                        _ => {}
                    }
                }
            }
            let unknown = device.chunks.iter().any(|chunk| matches!(chunk.content, Content::Unknown));
            if !unknown && free != device.free {
                accounts.miscounted.push((device.free, free));
            }
        }
        accounts
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use terrace_blocks::BlockPool;
    use terrace_catalog::Catalog;
    use terrace_format::{DeviceId, Geometry};
    use terrace_media::PmMedium;
    use terrace_media::pm::RecordedPm;
    use terrace_wal::Wal;

    #[test]
    fn accounts_list_wrong_counts_once_all_chunks_are_loaded() {
        let size = 4 << 20;
        let pm: Arc<dyn PmMedium> = Arc::new(RecordedPm::new(size));
        let geometry = Geometry::choose(size, 16).unwrap();
        Wal::format(Arc::clone(&pm), [7; 16], geometry).unwrap();
        let (wal, _) = Wal::open(pm, [7; 16], geometry).unwrap();
        let catalog = Arc::new(Catalog::new(Arc::new(BlockPool::new(Arc::new(wal)))));
        let space = ChunkSpace::new(catalog, &[(DeviceId(0), 1 + 40)]);
        space.space.lock().devices[0].space.free += 1;
        assert_eq!(space.accounts().miscounted, []);
        space.space.lock().devices[0].space.free -= 1;
        space.totals(&[DeviceId(0)]).unwrap();
        assert_eq!(space.accounts().miscounted, []);
        space.space.lock().devices[0].space.free += 1;
        assert_eq!(space.accounts().miscounted, [(41, 40)]);
    }
}
