//! The cuckoo map: buckets, runs, moves of entries, and the stash.

use crate::crash::judge;
use crate::modelled_map::{Model, ModelledMap, UUID, image};
use rand::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_format::cuckoo_map::{BUCKET_ENTRIES, Buckets, Entry, RUN_BLOCKS, STASH_LINES, is_free};
use terrace_format::table::Owner;
use terrace_format::{FileBlock, Geometry, Ino, PmOffset};
use terrace_map::file_map::MapChange;
use terrace_map::{FileMap, MAPS, Mapping};
use terrace_media::PmMedium;
use terrace_media::crash::EventKind;
use terrace_media::pm::RecordedPm;
use terrace_runtime::sync::Mutex;
use terrace_runtime::{Clock, SystemClock};
use terrace_wal::{Error, NoSpace, Tx};
use zerocopy::IntoBytes;

/// The number of this map in the registry.
fn row() -> usize {
    MAPS.iter().position(|row| row.name == "cuckoo").unwrap()
}

pub fn recorded(size: u64) -> (Arc<RecordedPm>, Geometry) {
    let (bytes, geometry) = image(MAPS[row()].kind, size, u64::MAX / 2);
    (Arc::new(RecordedPm::from_image(bytes)), geometry)
}

pub fn opened(pm: &Arc<RecordedPm>, geometry: Geometry, seed: u64) -> ModelledMap {
    ModelledMap::open(Arc::clone(pm) as Arc<dyn PmMedium>, geometry, &MAPS[row()], seed)
}

/// Entries, by whether they lie in the stash.
pub fn counted(maps: &ModelledMap) -> (usize, usize) {
    let stash = Buckets::new(UUID, maps.wal.geometry()).stash();
    let count = |in_stash: bool| {
        let lines = lines(maps).into_iter().filter(|(line, _)| stash.contains(line) == in_stash);
        lines.flat_map(|(_, words)| words).filter(|words| !is_free(words)).count()
    };
    (count(false), count(true))
}

/// Blocks of inode 1 in the two buckets of block 0.
pub fn colliding(geometry: &Geometry, count: usize) -> Vec<u64> {
    let buckets = Buckets::new(UUID, geometry);
    let mut pair = buckets.pair(Ino(1), FileBlock(0));
    pair.sort_unstable();
    let is_same = |block: &u64| {
        let mut other = buckets.pair(Ino(1), FileBlock(*block));
        other.sort_unstable();
        other == pair
    };
    (0..).filter(is_same).take(count).collect()
}

/// The words of all lines that can be read.
pub fn lines(maps: &ModelledMap) -> BTreeMap<u64, [[u64; 2]; 4]> {
    let buckets = Buckets::new(UUID, maps.wal.geometry());
    let read = |line| {
        let mut words = [[0u64; 2]; 4];
        maps.pm.read(buckets.line(line), words.as_mut_bytes()).ok().map(|()| (line, words))
    };
    buckets.lines().filter_map(read).collect()
}

/// The line of a block of inode 1.
pub fn line_of(maps: &ModelledMap, block: u64) -> u64 {
    let key = Entry::key(Ino(1), FileBlock(block));
    let has = |words: &[[u64; 2]; 4]| words.iter().any(|words| words[0] >> 1 == key);
    lines(maps).into_iter().find(|(_, words)| has(words)).unwrap().0
}

/// The table holds the entries of a model once, in buckets of their keys, and all entries of a run tell the same run.
pub fn check(maps: &ModelledMap, content: &Model) {
    let buckets = Buckets::new(UUID, maps.wal.geometry());
    let mut entries: BTreeMap<(u64, u64), Entry> = BTreeMap::new();
    for (line, words) in lines(maps) {
        for words in words.into_iter().filter(|words| !is_free(words)) {
            let entry = Entry::decode(words).unwrap_or_else(|| panic!("line {line}: {words:x?}"));
            assert!(buckets.is_home(&entry, line), "line {line}: {entry:?}");
            let twice = entries.insert((entry.ino.0, entry.block.0), entry);
            assert_eq!(twice, None, "line {line}");
        }
    }
    assert!(entries.keys().eq(content.keys()), "{entries:?}\n{content:?}");
    for ((ino, block), entry) in &entries {
        let mapping = content[&(*ino, *block)];
        assert_eq!((entry.place, entry.unwritten), (mapping.block, mapping.unwritten), "{entry:?}");
        let (start, end) = (block - u64::from(entry.before), block + u64::from(entry.behind));
        assert_eq!(start / RUN_BLOCKS, end / RUN_BLOCKS, "{entry:?}");
        for other in start..=end {
            let member = entries.get(&(*ino, other)).unwrap_or_else(|| panic!("block {other} of {entry:?}"));
            let run = (other - u64::from(member.before), other + u64::from(member.behind));
            assert_eq!(run, (start, end), "{member:?} in the run of {entry:?}");
            assert_eq!(member.place.0 + block, entry.place.0 + other, "{member:?} beside {entry:?}");
            assert_eq!(member.unwritten, entry.unwritten, "{member:?} beside {entry:?}");
        }
    }
}

/// The address of a word of the table, mostly of an entry.
pub fn random_word(maps: &mut ModelledMap) -> PmOffset {
    let buckets = Buckets::new(UUID, maps.wal.geometry());
    let mut word = || {
        let line = maps.rng.random_range(0..buckets.stash().end);
        buckets.line(line).plus(8 * maps.rng.random_range(0..8))
    };
    let words: Vec<PmOffset> = (0..20).map(|_| word()).collect();
    let is_used = |at: &&PmOffset| maps.pm.load_u64(**at).unwrap() != 0;
    *words.iter().find(is_used).unwrap_or(&words[0])
}

/// A pool of 8 MiB takes blocks until no block is free: a load of 94 % of the table, with moves of entries.
#[test]
fn blocks_find_a_place_until_no_block_is_free() {
    for seed in 0..4 {
        let (pm, geometry) = recorded(8 << 20);
        let mut maps = opened(&pm, geometry, seed);
        let mut blocks = 0;
        loop {
            let (ino, block) = (maps.rng.random_range(1..=3), maps.rng.random_range(0..1 << 30));
            match maps.put(ino, block, 1, false) {
                Ok(()) => blocks += 1,
                Err(Error::NoSpace(NoSpace::Pm)) => break,
                Err(error) => panic!("block {blocks}: {error}"),
            }
        }
        let usage = maps.blocks.usage();
        assert_eq!(
            (usage.free, blocks),
            (0, usage.total - 1),
            "seed {seed}: a block is free, and was not taken"
        );
        let entries = geometry.map_buckets() * BUCKET_ENTRIES as u64;
        assert!(blocks * 100 >= entries * 93, "{blocks} of {entries} entries");
        assert_eq!(maps.content().unwrap(), maps.model);
        maps.check_table(&maps.model);
        assert!(counted(&maps).1 <= 4, "seed {seed}: {} entries in the stash", counted(&maps).1);
    }
}

/// Blocks of a file with the same two buckets: from the ninth on, entries go into the stash, until the stash is full.
#[test]
fn colliding_blocks_fill_the_stash() {
    let (pm, geometry) = recorded(2 << 20);
    let places = 2 * BUCKET_ENTRIES + STASH_LINES as usize * BUCKET_ENTRIES;
    let blocks = colliding(&geometry, places + 1);
    let mut maps = opened(&pm, geometry, 1);
    for (number, block) in blocks.iter().take(places).enumerate() {
        maps.put(1, *block, 1, false).unwrap();
        assert_eq!(counted(&maps), ((number + 1).min(8), (number + 1).saturating_sub(8)));
        // Before the end of the scan the stash is searched for every block without an entry in a bucket.
        assert!(maps.map.lookup(&maps.inode(1), FileBlock(blocks[0])).unwrap().is_some());
        assert_eq!(maps.map.lookup(&maps.inode(1), FileBlock(blocks[places])).unwrap(), None);
    }
    let refused = maps.put(1, blocks[places], 1, false);
    assert!(matches!(refused, Err(Error::NoSpace(NoSpace::Pm))), "{refused:?}");
    // Another block has room all the same.
    maps.put(2, 5, 1, false).unwrap();
    // Overwrites and removals reach entries in the stash, after another mount, too.
    let model = std::mem::take(&mut maps.model);
    maps.wal.close().unwrap();
    for seed in [2, 3] {
        maps = opened(&pm, geometry, seed);
        maps.model.clone_from(&model);
        assert_eq!(maps.content().unwrap(), model);
    }
    for block in &blocks[..40] {
        maps.put(1, *block, 1, true).unwrap();
    }
    assert_eq!(counted(&maps).1, 256);
    for block in &blocks[..places] {
        maps.clear(1, *block, 1, 1.0).unwrap();
        maps.check_table(&maps.model);
    }
    assert_eq!(counted(&maps), (1, 0));
}

/// Crashes while a nearly full table makes room by moves leave each entry once.
#[test]
fn crashes_amid_moves_leave_each_entry_once() {
    for collides in [false, true] {
        let (pm, geometry) = recorded(2 << 20);
        let mut maps = opened(&pm, geometry, 2);
        let blocks = match collides {
            true => colliding(&geometry, 12),
            false => (0..470).map(|block| 3 * block).collect(),
        };
        let (first, last) = blocks.split_at(blocks.len() - if collides { 5 } else { 30 });
        first.iter().for_each(|block| maps.put(1, *block, 1, false).unwrap());
        let allowed = Arc::clone(&maps.allowed);
        let (judged, moved) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (count, weak) = (Arc::clone(&judged), Arc::downgrade(&pm));
        pm.clock().on_event(Some(Box::new(move |event| {
            let Some(pm) = weak.upgrade() else { return };
            if !matches!(event.kind, EventKind::Order | EventKind::Persist) && event.number % 4 != 0 {
                return;
            }
            let (snapshot, allowed) = (pm.snapshot(), allowed.lock().clone());
            for number in 0..3 {
                let image = match number {
                    0 => snapshot.image_oldest(),
                    1 => snapshot.image_newest(),
                    _ => snapshot.image_random(event.number),
                };
                judge(image, geometry, row(), &allowed, &format!("event {}, image {number}", event.number));
                count.fetch_add(1, Ordering::Relaxed);
            }
        })));
        for block in last {
            let wanted = maps.wanted(1, *block, 1);
            moved.fetch_add(
                u64::from(maps.map.missing_room(&[], &wanted).unwrap().is_some()),
                Ordering::Relaxed,
            );
            maps.put(1, *block, 1, false).unwrap();
        }
        pm.clock().on_event(None);
        let (judged, moved) = (judged.load(Ordering::Relaxed), moved.load(Ordering::Relaxed));
        assert!(judged > 40 && moved >= 3, "{judged} images, room was made {moved} times");
    }
}

/// New blocks of file 2 push entries of file 1 to other buckets. Before each event of the moves a reader begins: it finds
/// every block of file 1, or waits for the end of the move.
#[test]
#[allow(clippy::disallowed_methods)] // threads that outlive the event
fn readers_find_moving_entries() {
    let (pm, geometry) = recorded(2 << 20);
    let mut maps = opened(&pm, geometry, 2);
    (0..400).for_each(|block| maps.put(1, 3 * block, 1, false).unwrap());
    let blocks = maps.model.iter().map(|((_, block), mapping)| (*block, *mapping));
    let expected: Arc<Vec<(u64, Mapping)>> = Arc::new(blocks.collect());
    let (mut moves, mut readers) = (0, 0);
    for block in (0..70).map(|block| 3 * block) {
        let wanted = maps.wanted(2, block, 1);
        if maps.map.missing_room(&[], &wanted).unwrap().is_some() {
            moves += 1;
            let begun = Arc::new(Mutex::new(Vec::new()));
            let (map, inode, all) = (Arc::clone(&maps.map), maps.inode(1), Arc::clone(&expected));
            let list = Arc::clone(&begun);
            pm.clock().on_event(Some(Box::new(move |_| {
                let (map, all): (Arc<dyn FileMap>, _) = (Arc::clone(&map), Arc::clone(&all));
                let reader = std::thread::spawn(move || {
                    for (block, mapping) in all.iter() {
                        let found = map.lookup(&inode, FileBlock(*block)).unwrap();
                        assert_eq!(found, Some(*mapping), "block {block}");
                    }
                });
                let clock = SystemClock::default();
                let begin = clock.monotonic_ns();
                while !reader.is_finished() && clock.monotonic_ns() - begin < 5_000_000 {
                    std::thread::yield_now();
                }
                list.lock().push(reader);
            })));
            maps.ensure_room(2, block, 1).unwrap();
            pm.clock().on_event(None);
            let begun = std::mem::take(&mut *begun.lock());
            readers += begun.len();
            begun.into_iter().for_each(|reader| reader.join().unwrap());
        }
        maps.put(2, block, 1, false).unwrap();
    }
    assert!(moves >= 3 && readers > 10, "{moves} moves, {readers} readers");
}

/// A false number of blocks in a run is damage when the run is changed, and the other blocks stay.
#[test]
fn a_change_refuses_a_damaged_run() {
    for (block, counts) in [(17, 3u64 << 52 | 1 << 48), (18, 0), (16, 15 << 52)] {
        let (pm, geometry) = recorded(2 << 20);
        let mut maps = opened(&pm, geometry, 2);
        maps.put(1, 16, 4, false).unwrap();
        let buckets = Buckets::new(UUID, &geometry);
        let key = Entry::key(Ino(1), FileBlock(block));
        let (line, slot) = lines(&maps)
            .into_iter()
            .find_map(|(line, words)| Some((line, words.iter().position(|words| words[0] >> 1 == key)?)))
            .unwrap();
        let at = buckets.line(line).plus(16 * slot as u64 + 8);
        let place = pm.load_u64(at).unwrap() & ((1 << 48) - 1);
        pm.write(at, &(place | counts).to_le_bytes()).unwrap();
        let inode = maps.inode(1);
        let change = MapChange { inode, first: FileBlock(17), mappings: vec![None].into() };
        let mut tx = Tx::new();
        let refused = maps.map.change(&mut tx, &[change], 0, &mut Default::default());
        let Err(Error::Corrupt(corrupt)) = refused.map(|_| ()) else { panic!("block {block} was believed") };
        assert!(corrupt.site.contains("of inode 1") && tx.is_empty(), "{corrupt}");
    }
}

/// A change of a block within a run writes the other entries of the run, and no owner or entry besides.
#[test]
fn a_change_within_a_run_corrects_its_other_entries() {
    let (pm, geometry) = recorded(2 << 20);
    let mut maps = opened(&pm, geometry, 2);
    maps.put(1, 32, 16, false).unwrap();
    let inode = maps.inode(1);
    for (block, others) in [(32, 15), (40, 14), (47, 7)] {
        let mut tx = Tx::new();
        let change = MapChange { inode, first: FileBlock(block), mappings: vec![None].into() };
        let empty = tx.record_size();
        drop(maps.map.change(&mut tx, &[change], 0, &mut Default::default()).unwrap());
        let bytes = tx.record_size() - empty;
        let expected = 24 + 16 * others;
        assert!(
            bytes <= expected && bytes > expected / 2,
            "block {block}: {bytes} bytes, {expected} expected"
        );
        maps.clear(1, block, 1, 1.0).unwrap();
    }
    maps.check_table(&maps.model);
    let owner = maps.blocks.owner(maps.model[&(1, 33)].block).unwrap();
    assert_eq!(owner, Owner::File { ino: Ino(1), block: FileBlock(33), unwritten: false });
}

/// A bucket that cannot be read hurts the blocks in it, and no others with a place in their second bucket.
#[test]
fn blocks_beside_an_unreadable_bucket_come_and_go() {
    let (pm, geometry) = recorded(2 << 20);
    let mut maps = opened(&pm, geometry, 2);
    maps.put(1, 0, 1, false).unwrap();
    let hit =
        lines(&maps).into_iter().find(|(_, words)| words.iter().any(|words| !is_free(words))).unwrap().0;
    let buckets = Buckets::new(UUID, &geometry);
    let at = buckets.line(hit).0;
    pm.poison(at..at + 64);
    assert!(maps.map.lookup(&maps.inode(1), FileBlock(0)).is_err());
    let beside: Vec<u64> =
        (1..).filter(|block| buckets.pair(Ino(1), FileBlock(*block)).contains(&hit)).take(12).collect();
    for block in &beside {
        maps.put(1, *block, 1, false).unwrap();
        assert!(maps.map.lookup(&maps.inode(1), FileBlock(*block)).unwrap().is_some(), "block {block}");
    }
    for block in beside {
        maps.clear(1, block, 1, 1.0).unwrap();
        assert_eq!(maps.map.lookup(&maps.inode(1), FileBlock(block)).unwrap(), None, "block {block}");
    }
    pm.clear_poison();
    assert!(maps.map.lookup(&maps.inode(1), FileBlock(0)).unwrap().is_some());
}

/// Two changes of a transaction that want the same last place: the room for the second took nothing from the first, found
/// the place free, and was made over and over without an effect.
#[test]
fn room_is_made_for_all_changes_of_a_transaction() {
    for placed in 5..8 {
        let (pm, geometry) = recorded(2 << 20);
        let blocks = colliding(&geometry, 10);
        let mut maps = opened(&pm, geometry, 2);
        blocks[..placed].iter().for_each(|block| maps.put(1, *block, 1, false).unwrap());
        let mut changes: Vec<MapChange> =
            blocks[placed..].iter().map(|block| maps.wanted(1, *block, 1)).collect();
        let last = changes.pop().unwrap();
        let mut rounds = 0;
        while let Some(room) = maps.map.missing_room(&changes, &last).unwrap() {
            maps.make_room(1, &room).unwrap();
            rounds += 1;
            assert!(rounds < 50, "{placed} placed: {room:?}");
        }
        assert!(rounds > 0, "{placed} placed");
    }
}
