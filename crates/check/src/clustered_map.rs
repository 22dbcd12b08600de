//! File maps in pools with a clustered table of all files (format.md "Clustered map").

use crate::checker::Checker;
use crate::clustered_table::{ClusteredTable, Found, line_of};
use crate::code::Code;
use crate::inode_record::InodeRecord;
use crate::report::percent;
use std::rc::Rc;
use terrace_format::clustered_map::{LINE_WORDS, Lines, PIECE_BLOCKS, Piece};
use terrace_format::inode::DIRECT_UNWRITTEN;
use terrace_format::map_kind::MapKind;

/// Reads the table, once, and reports lines that cannot be, or lie where they may not.
fn table(checker: &mut Checker<'_>) -> Rc<ClusteredTable> {
    if let Some(known) = &checker.clustered {
        return Rc::clone(known);
    }
    let lines = Lines::new(checker.superblock.hash_key, &checker.geometry);
    let reach = checker.word(checker.geometry.map_reach()).unwrap_or(0);
    let most = lines.most_reach();
    if reach == 0 || reach > most {
        checker.report(Code::ClusterReach, || format!("{reach} of at most {most}"));
    }
    checker.summary.map.reach = Some(reach);
    let mut found = Vec::new();
    let mut longest = 0;
    for number in 0..lines.count() {
        let mut bytes = [0; 8 * LINE_WORDS];
        if !checker.read(lines.at(number), &mut bytes) {
            continue;
        }
        let line = line_of(&bytes);
        if line.key() == 0 {
            continue;
        }
        let Some(piece) = Piece::decode(line.key()) else {
            checker.report(Code::ClusterKey, || format!("line {number}: {:#x}", line.key()));
            continue;
        };
        let home = lines.home(piece);
        let distance = lines.distance(home, number);
        longest = longest.max(distance);
        if distance >= reach {
            checker.report(Code::ClusterFar, || {
                let Piece { ino, number: of } = piece;
                format!("inode {ino}: piece {of} in line {number}, {distance} from {home}, reach {reach}")
            });
        }
        found.push(Found { piece, line, number });
    }
    checker.summary.map.longest_distance = Some(longest);
    checker.summary.map.load_percent = percent(found.len() as u64, lines.count());
    found.sort_unstable_by_key(|found| (found.piece, found.number));
    let table = Rc::new(ClusteredTable { lines: found });
    checker.clustered = Some(Rc::clone(&table));
    table
}

/// Counts the blocks of a file, in its slot and in lines, into its record.
pub(crate) fn walk_clustered(checker: &mut Checker<'_>, record: &mut InodeRecord) {
    let ino = record.ino;
    if record.root != 0 {
        let root = record.root;
        checker.report(Code::ClusterSlot, || format!("inode {ino}: root {root:#x}"));
    }
    for (block, pointer) in (0..).zip(record.direct).filter(|(_, pointer)| *pointer != 0) {
        let unwritten = pointer & DIRECT_UNWRITTEN != 0;
        checker.file_block(record, block, u64::from(pointer & !DIRECT_UNWRITTEN), unwritten);
    }
    let table = table(checker);
    let mut before = None;
    for Found { piece, line, number } in table.range(u64::from(ino), (0, u64::MAX)).iter().copied() {
        assert_eq!(piece.ino.0, u64::from(ino), "line {number} of another file");
        if before.replace(piece) == Some(piece) {
            let of = piece.number;
            checker.report(Code::ClusterTwice, || format!("inode {ino}: piece {of}, again in line {number}"));
            continue;
        }
        if line.is_empty() {
            checker.report(Code::ClusterValue, || format!("inode {ino}: line {number} maps no block"));
        }
        for (index, place) in line.places() {
            let block = piece.first().0 + index as u64;
            if piece.has(index) && checker.in_pool(place.block.0) {
                checker.file_block(record, block, place.block.0, place.unwritten);
            } else {
                checker.report(Code::ClusterValue, || {
                    format!("inode {ino}: block {block} in {}, by line {number}", place.block)
                });
            }
        }
    }
    if !record.is_regular() && record.content.mapped > 0 {
        let mode = record.mode;
        checker.report(Code::SlotMap, || format!("inode {ino}: mode {mode:#o}"));
    }
}

/// The places of a file's blocks in a range: block, PM block, and whether it is unwritten.
pub(crate) fn clustered_blocks_in(
    checker: &mut Checker<'_>,
    record: &InodeRecord,
    (first, end): (u64, u64),
) -> Vec<(u64, u64, bool)> {
    let table = table(checker);
    let pieces = (first / PIECE_BLOCKS, end.div_ceil(PIECE_BLOCKS));
    let in_slot = (0..).zip(record.direct).filter(|(_, pointer)| *pointer != 0).map(|(block, pointer)| {
        (block, u64::from(pointer & !DIRECT_UNWRITTEN), pointer & DIRECT_UNWRITTEN != 0)
    });
    let in_lines = table.range(u64::from(record.ino), pieces).iter().flat_map(|found| {
        let places = found.line.places().filter(|(index, _)| found.piece.has(*index));
        places.map(|(index, place)| (found.piece.first().0 + index as u64, place.block.0, place.unwritten))
    });
    in_slot.chain(in_lines).filter(|(block, ..)| (first..end).contains(block)).collect()
}

/// Reports lines of the clustered table whose inode is not in use.
pub(crate) fn clustered_rest(checker: &mut Checker<'_>) {
    if checker.geometry.map != MapKind::Clustered {
        return;
    }
    for Found { piece, number, .. } in &table(checker).lines {
        if checker.find(piece.ino.0).is_none() {
            let (ino, of) = (piece.ino, piece.number);
            checker.report(Code::ClusterInode, || format!("inode {ino}: piece {of} in line {number}"));
        }
    }
}
