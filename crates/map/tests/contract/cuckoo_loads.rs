//! Loads of the cuckoo map: buckets of a range are announced before the first load.

use crate::cuckoo::{colliding, line_of};
use crate::modelled_map::{ModelledMap, UUID, image};
use std::sync::Arc;
use terrace_format::cuckoo_map::Buckets;
use terrace_format::map_kind::MapKind;
use terrace_format::{FileBlock, Ino, PmOffset};
use terrace_map::MAPS;
use terrace_media::PmMedium;
use terrace_media::pm::{CountedPm, RecordedPm};

/// A range waits once for the medium for all groups, and a group of single blocks seldom.
#[test]
fn a_range_announces_both_buckets_before_it_reads() {
    let row = MAPS.iter().find(|row| row.kind == MapKind::Cuckoo).unwrap();
    let (bytes, geometry) = image(row.kind, 2 << 20, u64::MAX / 2);
    let log = PmOffset(0)..PmOffset(64);
    let pm = Arc::new(CountedPm::new(Arc::new(RecordedPm::from_image(bytes)), log));
    let mut maps = ModelledMap::open(Arc::clone(&pm) as Arc<dyn PmMedium>, geometry, row, 2);
    maps.put(1, 0, 64, false).unwrap();
    // Each block is a run.
    (128..144).rev().for_each(|block| maps.put(1, block, 1, false).unwrap());
    let colliding = colliding(&geometry, 8);
    colliding[1..].iter().for_each(|block| maps.put(1, *block, 1, false).unwrap());
    let inode = maps.inode(1);
    let rounds = |first, count| {
        let mut out = vec![None; count];
        pm.begin();
        maps.map.lookup_run(&inode, FileBlock(first), &mut out).unwrap();
        let counts = pm.end();
        assert!(out.iter().all(Option::is_some), "blocks from {first}");
        (counts.rounds, counts.read)
    };
    for (first, count, groups) in [(0, 16, 1), (3, 9, 1), (0, 64, 4), (9, 40, 4)] {
        let (rounds, lines) = rounds(first, count);
        assert_eq!(rounds, 1, "{count} blocks from {first}");
        assert!((groups..=2 * groups).contains(&lines), "{count} blocks from {first}: {lines} lines");
    }
    let (rounds_of_singles, lines) = rounds(128, 16);
    assert!(rounds_of_singles <= 3 && lines >= 12, "{rounds_of_singles} rounds, {lines} lines");
    // A range of a block announces nothing: the second bucket counts where it is read.
    let is_second = |block: &u64| {
        let buckets = Buckets::new(UUID, &geometry);
        let pair = buckets.pair(Ino(1), FileBlock(*block));
        line_of(&maps, *block) == pair[1]
    };
    let second = *colliding.iter().find(|block| is_second(block)).unwrap();
    assert_eq!(rounds(second, 1), (2, 2), "block {second}");
}
