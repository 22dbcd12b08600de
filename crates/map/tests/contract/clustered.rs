//! The clustered map: lines, claims, reach, and a full table.

use crate::modelled_map::{Model, ModelledMap, UUID, image};
use rand::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use terrace_format::clustered_map::{Line, Lines, Piece};
use terrace_format::{FileBlock, Geometry, Ino, PmBlock, PmOffset};
use terrace_map::file_map::MapChange;
use terrace_map::{MAPS, MapRow, Mapping};
use terrace_media::PmMedium;
use terrace_media::pm::RecordedPm;
use terrace_runtime::{Clock, SystemClock};
use terrace_wal::{Error, NoSpace, Tx};
use zerocopy::IntoBytes;

fn row() -> &'static MapRow {
    MAPS.iter().find(|row| row.name == "clustered").unwrap()
}

pub fn recorded(size: u64) -> (Arc<RecordedPm>, Geometry) {
    let (bytes, geometry) = image(row().kind, size, u64::MAX / 2);
    (Arc::new(RecordedPm::from_image(bytes)), geometry)
}

pub fn opened(pm: &Arc<RecordedPm>, geometry: Geometry, seed: u64) -> ModelledMap {
    ModelledMap::open(Arc::clone(pm) as Arc<dyn PmMedium>, geometry, row(), seed)
}

/// The lines with keys, by their numbers.
pub fn lines(maps: &ModelledMap) -> BTreeMap<u64, Line> {
    let lines = Lines::new(UUID, maps.wal.geometry());
    let read = |number| {
        let mut line = Line::default();
        maps.pm.read(lines.at(number), line.0.as_mut_bytes()).ok()?;
        (line.key() != 0).then_some((number, line))
    };
    (0..lines.count()).filter_map(read).collect()
}

/// The table holds the blocks of a model behind those in slots once, within the reach, and no line without a block.
pub fn check(maps: &ModelledMap, content: &Model) {
    let geometry = *maps.wal.geometry();
    let (all, reach) = (Lines::new(UUID, &geometry), maps.pm.load_u64(geometry.map_reach()).unwrap());
    let mut blocks = Model::new();
    for (number, line) in lines(maps) {
        let piece = Piece::decode(line.key()).unwrap_or_else(|| panic!("line {number}: {line:x?}"));
        assert!(all.distance(all.home(piece), number) < reach, "line {number} of {piece:?}, reach {reach}");
        assert!(!line.is_empty(), "line {number} of {piece:?} has no block");
        for (index, place) in line.places() {
            assert!(piece.has(index), "line {number} of {piece:?} has block {index}");
            let mapping = Mapping { block: place.block, unwritten: place.unwritten };
            let twice = blocks.insert((piece.ino.0, piece.first().0 + index as u64), mapping);
            assert_eq!(twice, None, "line {number} of {piece:?}");
        }
    }
    let in_table = content.iter().filter(|((_, block), _)| *block >= 8);
    assert!(in_table.eq(&blocks), "{content:?}\n{blocks:?}");
}

/// The address of a word of the table, mostly of a line with a key.
pub fn random_word(maps: &mut ModelledMap) -> PmOffset {
    let all = Lines::new(UUID, maps.wal.geometry());
    let used: Vec<u64> = lines(maps).into_keys().collect();
    let number = match used.is_empty() || maps.rng.random_bool(0.1) {
        true => maps.rng.random_range(0..all.count()),
        false => used[maps.rng.random_range(0..used.len())],
    };
    all.at(number).plus(8 * maps.rng.random_range(0..8))
}

/// The number of a line of a block.
pub fn line_of(maps: &ModelledMap, ino: u64, block: u64) -> Option<u64> {
    let key = Piece::of(Ino(ino), FileBlock(block)).key();
    lines(maps).into_iter().find(|(_, line)| line.key() == key).map(|(number, _)| number)
}

/// Pieces of inode 1 whose home is the line of the first of them.
pub fn colliding(geometry: &Geometry, count: usize) -> Vec<u64> {
    let all = Lines::new(UUID, geometry);
    let home = |block: u64| all.home(Piece::of(Ino(1), FileBlock(block)));
    (1..).map(|piece| piece * 16).filter(|block| home(*block) == home(16)).take(count).collect()
}

#[test]
fn a_file_of_eight_blocks_has_no_line() {
    let (pm, geometry) = recorded(2 << 20);
    let mut maps = opened(&pm, geometry, 1);
    maps.put(1, 0, 8, false).unwrap();
    assert!(lines(&maps).is_empty());
    maps.put(1, 8, 8, false).unwrap();
    maps.put(1, 16, 17, true).unwrap();
    assert_eq!(lines(&maps).len(), 3);
    // The first line goes with its last block.
    maps.clear(1, 8, 8, 1.0).unwrap();
    assert_eq!((lines(&maps).len(), line_of(&maps, 1, 8)), (2, None));
    maps.check_table(&maps.model);
}

/// Blocks of pieces of their own take all blocks of a pool, lines included, and no insertion takes long.
#[test]
fn blocks_find_a_line_until_no_block_is_free() {
    for seed in 0..2 {
        let (pm, geometry) = recorded(8 << 20);
        let mut maps = opened(&pm, geometry, seed);
        let (clock, mut longest) = (SystemClock::default(), 0);
        let mut pieces = 0;
        loop {
            let (ino, block) = (1 + pieces % 3, 16 * (pieces + 1));
            let begin = clock.monotonic_ns();
            match maps.put(ino, block, 1, false) {
                Ok(()) => pieces += 1,
                Err(Error::NoSpace(NoSpace::Pm)) => break,
                Err(error) => panic!("piece {pieces}: {error}"),
            }
            longest = longest.max(clock.monotonic_ns() - begin);
        }
        let usage = maps.blocks.usage();
        assert_eq!((usage.free, pieces), (0, usage.total - 1), "seed {seed}: a block is free");
        assert!(pieces * 100 >= geometry.map_lines() * 98, "{pieces} of {} lines", geometry.map_lines());
        assert_eq!(maps.content().unwrap(), maps.model);
        maps.check_table(&maps.model);
        assert!(longest < 100_000_000, "an insertion took {longest} ns");
        // Lines that become free are found again.
        for piece in (0..pieces).step_by(3) {
            maps.clear(1 + piece % 3, 16 * (piece + 1), 1, 1.0).unwrap();
        }
        for number in 0..pieces / 4 {
            maps.put(1, 1_000_000 + 16 * number, 1, false).unwrap();
        }
        maps.check_table(&maps.model);
    }
}

/// A reach of 16 is raised before the seventeenth piece of a home gets a line; a removal in the midst cuts no search.
#[test]
fn pieces_of_a_home_raise_the_reach() {
    let (pm, geometry) = recorded(2 << 20);
    let mut maps = opened(&pm, geometry, 1);
    let blocks = colliding(&geometry, 20);
    let reach = |maps: &ModelledMap| maps.pm.load_u64(geometry.map_reach()).unwrap();
    for (number, block) in blocks.iter().enumerate() {
        let wanted = maps.wanted(1, *block, 1);
        let room = maps.map.missing_room(&[], &wanted).unwrap();
        assert_eq!(room.map(|room| room.runs), (number == 16).then_some(17), "piece {number}");
        maps.put(1, *block, 1, false).unwrap();
        assert_eq!(reach(&maps), if number < 16 { 16 } else { 32 });
    }
    for number in [0, 7, 18] {
        maps.clear(1, blocks[number], 1, 1.0).unwrap();
    }
    for (number, block) in blocks.iter().enumerate() {
        let found = maps.map.lookup(&maps.inode(1), FileBlock(*block)).unwrap();
        assert_eq!(found.is_some(), ![0, 7, 18].contains(&number), "piece {number}");
    }
    // A change that does not know of the room is refused, and leaves nothing.
    maps.put(1, blocks[0], 1, false).unwrap();
    maps.check_table(&maps.model);
}

/// Two changes under way take different free lines; the line of one that is given up is free again.
#[test]
fn changes_under_way_take_different_lines() {
    let (pm, geometry) = recorded(2 << 20);
    let maps = opened(&pm, geometry, 1);
    let blocks = colliding(&geometry, 2);
    let change = |block: u64, place: u64| MapChange {
        inode: maps.inode(1),
        first: FileBlock(block),
        mappings: [Some(Mapping::written(PmBlock(place)))].into_iter().collect(),
    };
    let line = |block: u64| {
        let mut tx = Tx::new();
        let before = tx.record_size();
        let guard = maps.map.change(&mut tx, &[change(block, 300)], 4096, &mut Default::default()).unwrap();
        assert_eq!(tx.record_size() - before, 72, "a line is written whole");
        let all = Lines::new(UUID, &geometry);
        let has_key = |number: &u64| tx.read_u64(&*pm, all.at(*number)).unwrap() != 0;
        ((0..all.count()).find(has_key).unwrap(), guard)
    };
    let (first, held) = line(blocks[0]);
    let (second, other) = line(blocks[1]);
    assert_eq!(second, first + 1);
    drop((held, other));
    assert_eq!(line(blocks[1]).0, first);
    assert!(lines(&maps).is_empty());
}

/// A piece whose line cannot be read is an error, and a block that was never there is not.
#[test]
fn an_unreadable_line_fails_its_own_blocks_alone() {
    let (pm, geometry) = recorded(2 << 20);
    let mut maps = opened(&pm, geometry, 2);
    let blocks = colliding(&geometry, 4);
    for block in &blocks[..3] {
        maps.put(1, *block, 2, false).unwrap();
    }
    maps.put(1, 3, 2, false).unwrap();
    let lost = line_of(&maps, 1, blocks[1]).unwrap();
    let at = Lines::new(UUID, &geometry).at(lost).0;
    pm.poison(at..at + 64);
    let found =
        |block: u64| maps.map.lookup(&maps.inode(1), FileBlock(block)).map(|found| found.is_some()).ok();
    let expected = [Some(true), None, Some(true), Some(false)];
    assert_eq!(blocks.iter().map(|block| found(*block)).collect::<Vec<_>>(), expected);
    let error = maps.map.lookup(&maps.inode(1), FileBlock(blocks[1]));
    assert!(matches!(error, Err(Error::Media(_))), "the error names the medium: {error:?}");
    assert_eq!([3, 4, 5].map(found), [Some(true), Some(true), Some(false)]);
    assert_eq!([blocks[1] + 2, blocks[0] + 2].map(found), [Some(false); 2]);
}
