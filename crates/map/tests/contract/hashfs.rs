//! The block table as file map: presence beside the scan after a mount, and changes that fail.

use crate::modelled_map::{ModelledMap, UUID, image};
use std::sync::Arc;
use terrace_format::homes::Homes;
use terrace_format::{FileBlock, Ino};
use terrace_map::file_map::MapChange;
use terrace_map::{MAPS, MapRow};
use terrace_media::PmMedium;
use terrace_media::pm::RecordedPm;
use terrace_wal::{Error, Tx};

fn table_maps() -> impl Iterator<Item = &'static MapRow> {
    MAPS.iter().filter(|row| row.kind.is_table())
}

/// A pool with three blocks of a file, mounted again: the scan of the block table has not begun.
fn mounted_again(row: &MapRow) -> ModelledMap {
    mounted_on_recorded(row).0
}

fn mounted_on_recorded(row: &MapRow) -> (ModelledMap, Arc<RecordedPm>) {
    let (bytes, geometry) = image(row.kind, 2 << 20, u64::MAX / 2);
    let recorded = Arc::new(RecordedPm::from_image(bytes));
    let pm: Arc<dyn PmMedium> = Arc::clone(&recorded) as Arc<dyn PmMedium>;
    let mut maps = ModelledMap::open(Arc::clone(&pm), geometry, row, 1);
    maps.put(1, 600, 3, false).unwrap();
    maps.wal.close().unwrap();
    (ModelledMap::open(pm, geometry, row, 1), recorded)
}

fn scan(maps: &ModelledMap) {
    while maps.blocks.scan_step().unwrap() {}
}

fn listed(maps: &ModelledMap) -> Result<usize, Error> {
    let mut found = Vec::new();
    maps.map.mapped(&maps.inode(1), FileBlock(0), FileBlock(u64::MAX), 9, &mut found)?;
    Ok(found.len())
}

#[test]
fn a_listing_waits_for_the_scan_and_lookups_do_not() {
    table_maps().for_each(listing_waits);
}

fn listing_waits(row: &MapRow) {
    let maps = mounted_again(row);
    assert!(matches!(listed(&maps), Err(Error::TableUnread)));
    assert!(!maps.map.is_empty(Ino(1), &maps.slot(1)) && !maps.map.is_empty(Ino(2), &maps.slot(2)));
    let found = |block| maps.map.lookup(&maps.inode(1), FileBlock(block)).unwrap().is_some();
    assert_eq!([599, 600, 602, 603].map(found), [false, true, true, false]);
    scan(&maps);
    assert_eq!(listed(&maps).unwrap(), 3);
    assert_eq!([599, 600, 602, 603].map(found), [false, true, true, false]);
    assert!(!maps.map.is_empty(Ino(1), &maps.slot(1)) && maps.map.is_empty(Ino(2), &maps.slot(2)));
}

/// The scan passes a block that a change has released. When the change failed, its bit was lost, and the block with it.
#[test]
fn a_failed_change_amid_the_scan_leaves_the_blocks_of_the_table() {
    for (row, is_removal) in table_maps().flat_map(|row| [(row, true), (row, false)]) {
        let maps = mounted_again(row);
        let inode = maps.inode(1);
        let old = maps.map.lookup(&inode, FileBlock(600)).unwrap();
        let mut tx = Tx::new();
        maps.blocks.release(&mut tx, old.unwrap().block);
        // A claim would have read the table.
        assert!(matches!(listed(&maps), Err(Error::TableUnread)), "removal {is_removal}");
        let mapping = old.filter(|_| !is_removal);
        let change = MapChange { inode, first: FileBlock(600), mappings: vec![mapping].into() };
        if is_removal {
            let guard = maps.map.change(&mut tx, &[change], 0, &mut Default::default()).unwrap();
            scan(&maps);
            guard.ended(&Err::<(), _>(Error::Refused("a test".into())), false);
        } else {
            scan(&maps);
            drop(maps.map.change(&mut tx, &[change], 0, &mut Default::default()).unwrap());
        }
        assert_eq!(maps.map.lookup(&inode, FileBlock(600)).unwrap(), old, "removal {is_removal}");
        assert_eq!(listed(&maps).unwrap(), 3, "removal {is_removal}");
    }
}

/// The table cannot be asked about a block of a change that failed: the block was not lost, it never came.
#[test]
fn a_hole_stays_a_hole_when_a_change_and_the_look_after_it_fail() {
    table_maps().for_each(hole_stays);
}

fn hole_stays(row: &MapRow) {
    let (maps, pm) = mounted_on_recorded(row);
    scan(&maps);
    let inode = maps.inode(1);
    let place = maps.map.lookup(&inode, FileBlock(600)).unwrap();
    let change = MapChange { inode, first: FileBlock(700), mappings: vec![place].into() };
    let guard = maps.map.change(&mut Tx::new(), &[change], 0, &mut Default::default());
    // Beyond the reach it is refused, and without a bit.
    let Ok(guard) = guard else { panic!("block 700 does not fit") };
    pm.poison(0..pm.size());
    drop(guard);
    pm.clear_poison();
    assert_eq!(maps.map.lookup(&inode, FileBlock(700)).unwrap(), None);
    assert_eq!(listed(&maps).unwrap(), 3);
}

/// Keys of a crafted file share a home: the reach is raised before a block is put farther away, each block is found, also before
/// the scan after a mount, and a removal in the midst cuts no search.
#[test]
fn blocks_of_a_home_raise_the_reach() {
    table_maps().for_each(crafted_keys);
}

fn crafted_keys(row: &MapRow) {
    let (bytes, geometry) = image(row.kind, 2 << 20, u64::MAX / 2);
    let pm: Arc<dyn PmMedium> = Arc::new(RecordedPm::from_image(bytes));
    let mut maps = ModelledMap::open(Arc::clone(&pm), geometry, row, 1);
    let reach = || pm.load_u64(geometry.map_reach()).unwrap();
    let before = reach();
    let homes = Homes::of(&geometry, UUID);
    // Blocks 16 apart are at home in groups of their own.
    let home = |block: &u64| homes.home(Ino(1), FileBlock(*block)).slot;
    let all = (1..).map(|number| number * 16);
    let blocks: Vec<u64> = all.filter(|block| home(block) == home(&16)).take(120).collect();
    for block in &blocks {
        maps.put(1, *block, 1, false).unwrap();
    }
    assert!(reach() > before, "{}: a reach of {before} holds {} blocks of a home", row.name, blocks.len());
    for block in blocks.iter().step_by(7) {
        maps.clear(1, *block, 1, 1.0).unwrap();
    }
    let farthest = |maps: &ModelledMap| {
        let place = |block: &u64| maps.map.lookup(&maps.inode(1), FileBlock(*block)).unwrap();
        for (number, block) in blocks.iter().enumerate() {
            assert_eq!(place(block).is_some(), number % 7 != 0, "{}: block {number}", row.name);
        }
        let placed = blocks.iter().filter_map(|block| Some((block, place(block)?.block)));
        placed.map(|(block, slot)| homes.distance(homes.home(Ino(1), FileBlock(*block)), slot)).max().unwrap()
    };
    assert!(farthest(&maps) < reach());
    maps.wal.close().unwrap();
    drop(maps);
    let again = ModelledMap::open(Arc::clone(&pm), geometry, row, 1);
    assert!(farthest(&again) < reach());
    scan(&again);
    assert_eq!(listed(&again).unwrap(), 9, "{}: a listing of at most 9", row.name);
}
