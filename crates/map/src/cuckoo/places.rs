//! Cuckoo map: a look, without locks, whether the blocks of changes find places.

use super::group::Group;
use super::table::CuckooMap;
use crate::file_map::MapChange;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::cuckoo_map::is_free;

/// Counts of uses of lines, a power of two.
const USES: usize = 1024;

impl CuckooMap {
    /// Whether all blocks of changes would find a place as new ones, by a look without locks: true mostly, and then nothing else
    /// has to be asked. The change looks again.
    pub(super) fn has_places<'c>(&self, changes: impl Iterator<Item = &'c MapChange>) -> bool {
        // Uses of lines by the blocks before, of several lines together.
        let mut uses = [0u8; USES];
        for change in changes {
            let mut group: Option<Group> = None;
            for (block, mapping) in (change.first.0..=MAX_FILE_BLOCK.0).zip(&change.mappings) {
                if mapping.is_none() {
                    continue;
                }
                let known = group.take().filter(|group| group.has(block));
                let known = known.unwrap_or_else(|| Group::of(self, change.inode.ino, block));
                let pair = known.key(change.inode.ino, block).pair;
                group = Some(known);
                let has_place = pair.into_iter().any(|line| {
                    let Some(uses) = uses.get_mut(line as usize % USES) else { return false };
                    let Ok(entries) = self.read_line(line) else { return false };
                    let free = entries.iter().filter(|words| is_free(words)).count();
                    let is_left = free > usize::from(*uses);
                    *uses += u8::from(is_left);
                    is_left
                });
                if !has_place {
                    return false;
                }
            }
        }
        true
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)] // counts by a number below their length
mod tests {
    use super::*;
    use crate::file_map::{MapInode, Mapping};
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};
    use std::sync::Arc;
    use terrace_blocks::BlockPool;
    use terrace_format::cuckoo_map::Entry;
    use terrace_format::map_kind::MapKind;
    use terrace_format::{FileBlock, Geometry, Ino, PmBlock};
    use terrace_media::PmMedium;
    use terrace_media::pm::RecordedPm;
    use terrace_wal::{Tx, Wal};

    const KEY: [u8; 16] = [7; 16];

    /// A table, and the medium below it.
    struct Table {
        pm: Arc<RecordedPm>,
        map: CuckooMap,
        rng: SmallRng,
    }

    impl Table {
        fn new(pm_bytes: u64, seed: u64) -> Table {
            let geometry = Geometry::choose(pm_bytes, 16).and_then(|chosen| chosen.with_map(MapKind::Cuckoo));
            let geometry = geometry.unwrap_or_else(|error| unreachable!("{error}"));
            let pm = Arc::new(RecordedPm::new(pm_bytes));
            let medium = || Arc::clone(&pm) as Arc<dyn PmMedium>;
            let opened =
                Wal::format(medium(), KEY, geometry).and_then(|()| Wal::open(medium(), KEY, geometry));
            let (wal, _) = opened.unwrap_or_else(|error| unreachable!("{error}"));
            let blocks = BlockPool::of_map(Arc::new(wal), KEY);
            let map = CuckooMap::open(Arc::new(blocks)).unwrap_or_else(|error| unreachable!("{error}"));
            Table { pm, map, rng: SmallRng::seed_from_u64(seed) }
        }

        /// The number of free places of a line.
        fn free(&self, line: u64) -> usize {
            self.map
                .read_line(line)
                .map_or(0, |entries| entries.iter().filter(|words| is_free(words)).count())
        }

        /// Puts entries of inode 2 into free places of their buckets, up to a share of all places.
        fn fill(&mut self, percent: u64) {
            let wanted = self.map.buckets.count() * 4 * percent / 100;
            let mut held = 0;
            while held < wanted {
                let block = FileBlock(self.rng.random_range(0..1 << 30));
                let line = self.map.buckets.pair(Ino(2), block)[self.rng.random_range(0..2)];
                let slot = self.map.read_line(line).ok().and_then(|words| words.iter().position(is_free));
                let Some(slot) = slot else { continue };
                let place = PmBlock(100 + held);
                let entry = Entry { ino: Ino(2), block, place, unwritten: false, before: 0, behind: 0 };
                for (word, at) in entry.encode().into_iter().zip([0, 8]) {
                    let at = self.map.buckets.line(line).plus(16 * slot as u64 + at);
                    self.pm.write(at, &word.to_le_bytes()).unwrap_or_else(|error| unreachable!("{error}"));
                }
                held += 1;
            }
        }

        /// A change of blocks of inode 1 from `first` on, which have no entry.
        fn change(&self, first: u64, mappings: impl IntoIterator<Item = bool>) -> MapChange {
            let slot = self.map.pages.blocks.first_block().offset().plus(128);
            let inode = MapInode { ino: Ino(1), slot, has_cold: false };
            let mapping = |(at, is_new): (u64, bool)| is_new.then(|| Mapping::written(PmBlock(200 + 2 * at)));
            let mappings = (0..).zip(mappings).map(mapping).collect();
            MapChange { inode, first: FileBlock(first), mappings }
        }
    }

    #[test]
    fn a_key_has_a_place_unless_both_buckets_are_full() {
        let mut counts = [0; 3];
        // The table of 32 MiB has more lines than counts of uses: some lines share a count.
        for (pm_bytes, percent) in [(2 << 20, 50), (2 << 20, 90), (2 << 20, 97), (32 << 20, 90)] {
            let mut table = Table::new(pm_bytes, percent);
            table.fill(percent);
            for block in (0..2000).map(|block| 5 * block) {
                let free = table.map.buckets.pair(Ino(1), FileBlock(block)).map(|line| table.free(line));
                let full = free.into_iter().filter(|free| *free == 0).count();
                let has_place = table.map.has_places([&table.change(block, [true])].into_iter());
                assert_eq!(has_place, full < 2, "block {block}, {free:?} free places, load of {percent} %");
                counts[full] += 1;
                // A removal takes no place.
                assert!(table.map.has_places([&table.change(block, [false])].into_iter()), "block {block}");
            }
        }
        assert!(counts.into_iter().all(|count| count > 200), "{counts:?} keys by their full buckets");
    }

    /// Blocks of several changes want the same places: no is right in doubt, yes is a promise.
    #[test]
    fn changes_with_places_go_without_room() {
        let mut counts = [0; 2];
        for (seed, pm_bytes) in (0..40).map(|seed| (seed, if seed % 4 == 0 { 32 << 20 } else { 2 << 20 })) {
            let mut table = Table::new(pm_bytes, seed);
            table.fill(40 + 55 * seed / 40);
            for _ in 0..100 {
                let changes: Vec<MapChange> = (0..table.rng.random_range(1..4))
                    .map(|number| {
                        let (first, length) =
                            (table.rng.random_range(0..1000), table.rng.random_range(1..24));
                        let new: Vec<bool> = (0..length).map(|_| table.rng.random_bool(0.7)).collect();
                        table.change(10_000 * number + first, new)
                    })
                    .collect();
                let has_places = table.map.has_places(changes.iter());
                counts[usize::from(has_places)] += 1;
                let changed = table.map.change_entries(&mut Tx::new(), &changes);
                let refused = changed.map(drop).err();
                assert!(!has_places || refused.is_none(), "seed {seed}: {changes:?}: {refused:?}");
                if let (true, Some((last, earlier))) = (has_places, changes.split_last()) {
                    assert!(matches!(table.map.lacking(earlier, last), Ok(None)), "seed {seed}: {changes:?}");
                }
            }
        }
        assert!(counts.into_iter().all(|count| count > 500), "{counts:?} changes without and with places");
    }
}
