//! Small things: owner words, root words, inode slots, and geometries, sound ones of which have room for all of it; searches
//! with a reach of any value, in pools whose block table is the map.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_format::homes::Homes;
use terrace_format::inode::{InodeSlot, SLOT_SIZE, pack_root, unpack_root};
use terrace_format::map_kind::MapKind;
use terrace_format::table::Owner;
use terrace_format::{FileBlock, Geometry, Ino, PmBlock};
use zerocopy::{FromBytes, IntoBytes};

fuzz_target!(|input: &[u8]| {
    for word in input.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)) {
        if let Some(owner) = Owner::decode(word) {
            assert_eq!(Owner::decode(owner.encode()), Some(owner));
        }
        let (height, block) = unpack_root(word);
        assert_eq!(pack_root(height, block), word);
        let _ = Geometry::choose(word, 16);
    }
    if let Some(bytes) = input.first_chunk::<{ SLOT_SIZE as usize }>()
        && let Ok(slot) = InodeSlot::read_from_bytes(bytes)
    {
        assert_eq!(slot.as_bytes(), bytes);
        let _ = (slot.is_free(), slot.is_directory(), slot.is_regular(), slot.is_symlink());
    }
    if let Some(bytes) = input.first_chunk::<28>() {
        let word = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().unwrap_or(&[0; 4]));
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let (pm_size, lane_size) = (long(0), long(8));
        let (lane_count, catalog_shards, chunk_blocks) = (word(16), word(20), word(24));
        let geometry = Geometry {
            pm_size,
            lane_count,
            lane_size,
            catalog_shards,
            chunk_blocks,
            checksummed: pm_size & 4096 != 0,
            map: MapKind::ALL[(lane_count as usize) % MapKind::ALL.len()],
        };
        if geometry.verify().is_ok() {
            let last = PmBlock(geometry.block_count() - 1);
            let end = geometry.table_entry(last).0 + 16;
            assert!(end <= geometry.first_pool_block().offset().0 && end <= pm_size);
            assert!(geometry.shard_root(catalog_shards - 1).0 < geometry.lane_offset(0).0);
            search(&geometry, input);
        }
    }
});

/// Lines of a search lie in the pool, none twice, and have each slot below the reach.
fn search(geometry: &Geometry, input: &[u8]) {
    let mut words = input.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let (Some(reach), Some(name)) = (words.next_back(), words.next_back()) else { return };
    let homes = Homes::of(geometry, [7; 16]);
    let home = homes.home(Ino(name >> 33), FileBlock(name & 0xffff_ffff));
    let (first, end) = (geometry.first_pool_block().0, geometry.block_count());
    let mut passed = Vec::new();
    for slots in homes.lines(home, reach).take(200) {
        assert!(first <= slots.start && slots.start < slots.end && slots.end <= end, "{slots:?}");
        passed.extend(slots);
    }
    let count = passed.len();
    passed.sort_unstable();
    passed.dedup();
    assert_eq!(passed.len(), count, "a slot is passed twice");
    assert!(passed.iter().all(|slot| homes.distance(home, PmBlock(*slot)) < homes.length()));
    let near = homes.near_groups(home, reach).take(50).flatten();
    assert!(near.into_iter().all(|slot| (first..end).contains(&slot)));
}
