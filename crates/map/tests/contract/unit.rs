//! Answers of single calls at the edges.

use crate::modelled_map::{ModelledMap, exchange, image, next_mapped, set};
use crate::{Row, for_each_map};
use std::sync::Arc;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::table::Owner;
use terrace_format::{FileBlock, Ino, PmBlock};
use terrace_map::{MapInode, Mapping};
use terrace_media::pm::RecordedPm;
use terrace_wal::Tx;

/// A pool of the smallest size.
pub fn modelled(row: &Row, seed: u64) -> ModelledMap {
    let (bytes, geometry) = image(row.kind, 2 << 20, u64::MAX / 2);
    ModelledMap::open(Arc::new(RecordedPm::from_image(bytes)), geometry, row, seed)
}

/// An overwrite exchanges a block of the map; tried at the edges of direct pointers, leaves and the tree.
#[test]
fn an_exchange_equals_a_lookup_followed_by_a_set() {
    for_each_map(0..1, |row, seed| {
        let mut maps = modelled(row, seed);
        let inode = maps.inode(1);
        let mut model = std::collections::BTreeMap::new();
        let blocks = [0, 1, 2, 6, 7, 8, 9, 511, 512, 513, 1024, 1025, 1 << 18, (1 << 18) + 1];
        for round in 0..3u64 {
            for (number, block) in (0..).zip(blocks) {
                let unwritten = (round + number) % 2 == 0;
                let new = Mapping { block: PmBlock(50 + 100 * round + number), unwritten };
                let mut tx = Tx::new();
                if exchange(&*maps.map, &mut tx, &inode, FileBlock(block), new).unwrap().is_none() {
                    assert!(tx.is_empty(), "nothing is logged without room");
                    maps.ensure_room(1, block, 1).unwrap();
                }
                tx.clear();
                let exchanged =
                    exchange(&*maps.map, &mut tx, &inode, FileBlock(block), new).unwrap().unwrap();
                assert_eq!(exchanged.old, model.insert(block, new), "block {block}");
                let owner = Owner::File { ino: Ino(1), block: FileBlock(block), unwritten };
                maps.blocks.set_owner(&mut tx, new.block, owner);
                if let Some(old) = exchanged.old {
                    maps.blocks.set_owner(&mut tx, old.block, Owner::Free);
                }
                let reservation = maps.wal.reserve(tx.record_size()).unwrap();
                maps.wal.commit(reservation, &tx).unwrap();
                exchanged.guard.committed();
                for at in blocks {
                    let seen = maps.map.lookup(&inode, FileBlock(at)).unwrap();
                    assert_eq!(seen.as_ref(), model.get(&at), "block {at} after {block}");
                }
            }
        }
        let new = Mapping::written(PmBlock(60));
        let absent = if row.name == "radix" { &[1536, 1 << 19, MAX_FILE_BLOCK.0][..] } else { &[] };
        for absent in absent.iter().chain(&[MAX_FILE_BLOCK.0 + 1]) {
            let mut tx = Tx::new();
            assert!(exchange(&*maps.map, &mut tx, &inode, FileBlock(*absent), new).unwrap().is_none());
            assert!(tx.is_empty(), "nothing is logged without a leaf");
        }
    });
}

#[test]
fn an_inode_at_nowhere_has_no_blocks_and_refuses_sets() {
    for_each_map(0..1, |row, seed| {
        let maps = modelled(row, seed);
        assert!(maps.pm.load_u64(MapInode::NOWHERE).is_err(), "outside of every medium");
        let inode = MapInode { ino: Ino(1), slot: MapInode::NOWHERE, has_cold: false };
        assert!(inode.is_nowhere() && !maps.inode(1).is_nowhere());
        let mut out = [Some(Mapping::written(PmBlock(60))); 3];
        maps.map.lookup_run(&inode, FileBlock(6), &mut out).unwrap();
        assert_eq!(out, [None; 3]);
        assert_eq!(maps.map.lookup(&inode, FileBlock(0)).unwrap(), None);
        assert_eq!(next_mapped(&*maps.map, &inode, 0, u64::MAX).unwrap(), None);
        let some = [Some(Mapping::written(PmBlock(60)))];
        assert!(row.kind.is_shared() || set(&*maps.map, &mut Tx::new(), &inode, 0, &some).is_err());
    });
}

#[test]
fn the_next_mapped_block_is_before_the_end_of_the_range() {
    for_each_map(0..1, |row, seed| {
        let mut maps = modelled(row, seed);
        let inode = maps.inode(1);
        maps.put(1, 600, 1, false).unwrap();
        let mapping = maps.map.lookup(&inode, FileBlock(600)).unwrap().unwrap();
        let next = |from, to| next_mapped(&*maps.map, &inode, from, to).unwrap();
        assert_eq!([next(9, 600), next(600, 600), next(601, u64::MAX)], [None; 3]);
        assert_eq!([next(9, 601), next(600, 601)], [Some((FileBlock(600), mapping)); 2]);
    });
}
