//! File maps in pools whose block table is the map (format.md "HashFS").

use crate::checker::Checker;
use crate::code::Code;
use crate::inode_record::InodeRecord;
use crate::table_blocks::{TableBlock, TableMap};
use std::rc::Rc;
use terrace_format::PmBlock;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::homes::Homes;
use terrace_format::table::{Entry, Owner, TABLE_ENTRY_SIZE};
use terrace_format::{FileBlock, Ino};

/// Blocks whose entries are read at once.
const PART_BLOCKS: u64 = 256;

/// Reads the table, once. The scan of the table reports lines that cannot be read, and impossible owners.
fn table_map(checker: &mut Checker<'_>) -> Rc<TableMap> {
    if let Some(known) = &checker.table_map {
        return Rc::clone(known);
    }
    let (first, end) = (checker.geometry.first_pool_block(), checker.geometry.block_count());
    let mut blocks = Vec::new();
    for start in (first.0..end).step_by(PART_BLOCKS as usize) {
        let count = PART_BLOCKS.min(end - start);
        let mut bytes = vec![0; (count * TABLE_ENTRY_SIZE) as usize];
        read_part(checker, start, &mut bytes);
        for (place, entry) in (start..).zip(bytes.as_chunks::<16>().0) {
            let found = Entry::decode(Entry::words(entry)).map(|entry| entry.owner);
            if let Some(Owner::File { ino, block, unwritten }) = found {
                blocks.push(TableBlock { ino: ino.0, block: block.0, place, unwritten });
            }
        }
    }
    blocks.sort_unstable_by_key(|found| (found.ino, found.block, found.place));
    let homes = Homes::of(&checker.geometry, checker.superblock.hash_key);
    let reach = checker.word(checker.geometry.map_reach()).unwrap_or(0);
    let most = homes.most_reach();
    if reach == 0 || reach > most {
        checker.report(Code::HashReach, || format!("{reach} of at most {most}"));
    }
    checker.summary.map.reach = Some(reach);
    let map = Rc::new(TableMap { blocks, homes, reach });
    checker.table_map = Some(Rc::clone(&map));
    map
}

/// A line that cannot be read leaves zeros.
fn read_part(checker: &Checker<'_>, start: u64, bytes: &mut [u8]) {
    let at = checker.geometry.table_entry(PmBlock(start));
    if checker.overlay.read(&checker.pool.pm, at, bytes).is_err() {
        for (line, part) in (0..).zip(bytes.chunks_mut(64)) {
            if checker.overlay.read(&checker.pool.pm, at.plus(64 * line), part).is_err() {
                part.fill(0);
            }
        }
    }
}

/// Counts the blocks of a file into its record, and judges where they lie.
pub(crate) fn walk_table_map(checker: &mut Checker<'_>, record: &mut InodeRecord) {
    let ino = record.ino;
    if record.root != 0 || record.direct.iter().any(|pointer| *pointer != 0) {
        let (root, direct) = (record.root, record.direct);
        checker.report(Code::HashSlot, || format!("inode {ino}: root {root:#x}, pointers {direct:x?}"));
    }
    let map = table_map(checker);
    let mut before = None;
    for found in map.range(u64::from(ino), (0, u64::MAX)) {
        let TableBlock { block, place, unwritten, .. } = *found;
        if block > MAX_FILE_BLOCK.0 {
            checker.report(Code::HashFar, || format!("inode {ino}: block {block} in {place}"));
            continue;
        }
        if before.replace(block) == Some(block) {
            checker.report(Code::HashTwice, || format!("inode {ino}: block {block}, again in {place}"));
            continue;
        }
        let home = map.homes.home(Ino(ino.into()), FileBlock(block));
        let distance = map.homes.distance(home, PmBlock(place));
        let longest = &mut checker.summary.map.longest_distance;
        *longest = Some(distance.max(longest.unwrap_or(0)));
        if distance >= map.reach {
            let reach = map.reach;
            checker.report(Code::HashFar, || {
                format!("inode {ino}: block {block} in {place}, {distance} from {home}, reach {reach}")
            });
        }
        assert!(block <= MAX_FILE_BLOCK.0, "block {block} was not judged");
        checker.file_block(record, block, place, unwritten);
    }
    if !record.is_regular() && record.content.mapped > 0 {
        let mode = record.mode;
        checker.report(Code::SlotMap, || format!("inode {ino}: mode {mode:#o}"));
    }
}

/// The blocks of a file in a range.
pub(crate) fn table_blocks_in(
    checker: &mut Checker<'_>,
    record: &InodeRecord,
    range: (u64, u64),
) -> Vec<TableBlock> {
    table_map(checker).range(u64::from(record.ino), range).to_vec()
}
