//! Reads the clustered table of all files as it was found, and the first blocks of files from their slots.
//!
//! Invariant: of two lines for a piece a block is believed by the line that the block table confirms.

use crate::state::Round;
use crate::state::maps::{FileMap, Mapped};
use terrace_check::clustered_table::line_of;
use terrace_format::clustered_map::{LINE_WORDS, Line, Lines, Piece, Place};
use terrace_format::table::Owner;
use terrace_format::{FileBlock, Ino, PmBlock};

/// The words of a line; `None` when it cannot be read.
pub(crate) fn read_line(round: &Round<'_>, lines: &Lines, number: u64) -> Option<Line> {
    let mut bytes = [0; 8 * LINE_WORDS];
    round.pool.read(lines.at(number), &mut bytes).then(|| line_of(&bytes))
}

/// Notes the blocks of all files.
pub(crate) fn salvage_clustered(round: &mut Round<'_>) {
    let inodes = &round.inodes;
    let files: Vec<u32> = inodes.slots.keys().chain(inodes.residues.keys()).copied().collect();
    for ino in &files {
        let slot = round.inodes.slots.get(ino).or_else(|| round.inodes.residues.get(ino)).copied();
        for (block, pointer) in (0..).zip(slot.map(|slot| slot.direct).unwrap_or_default()) {
            let pointer = pointer.get();
            if pointer != 0 {
                let block_in_pm = PmBlock(u64::from(pointer & !(1 << 31)));
                let place = Place { block: block_in_pm, unwritten: pointer >> 31 == 1 };
                note(round, Ino((*ino).into()), FileBlock(block), place);
            }
        }
    }
    let lines = Lines::new(round.pool.superblock.hash_key, &round.pool.geometry);
    // Blocks of any file may have been in a damaged line.
    let mut is_damaged = false;
    for number in 0..lines.count() {
        let Some(line) = read_line(round, &lines, number) else {
            is_damaged = true;
            continue;
        };
        if line.key() == 0 {
            continue;
        }
        let Some(piece) = Piece::decode(line.key()) else {
            is_damaged = true;
            continue;
        };
        if is_of_another(round, piece, &line) {
            is_damaged = true;
            continue;
        }
        for (index, place) in line.places() {
            if piece.has(index) && round.pool.in_pool(place.block.0) {
                note(round, piece.ino, piece.first().plus(index as u64), place);
            } else {
                is_damaged = true;
            }
        }
    }
    if is_damaged {
        files.into_iter().for_each(|ino| round.maps.entry(ino).or_default().broken = true);
    }
}

fn note(round: &mut Round<'_>, ino: Ino, block: FileBlock, place: Place) {
    let Ok(number) = u32::try_from(ino.0) else { return };
    let owner = Owner::File { ino, block, unwritten: place.unwritten };
    let is_confirmed = round.owners.owner(place.block.0) == Some(owner);
    round.owners.see(place.block.0);
    let map: &mut FileMap = round.maps.entry(number).or_default();
    let is_first = !map.found.contains_key(&block.0);
    map.broken |= !is_first;
    if is_first || is_confirmed {
        map.found.insert(block.0, Mapped { block: place.block.0, unwritten: place.unwritten });
    }
}

/// Whether the block table gives the blocks of a line to another piece, as a whole: then the key is damaged, and not each entry.
fn is_of_another(round: &Round<'_>, piece: Piece, line: &Line) -> bool {
    let of_table = |(index, place): (usize, Place)| match round.owners.owner(place.block.0) {
        Some(Owner::File { ino, block, .. }) => {
            Some(Piece::of(ino, block)).filter(|_| block == Piece::of(ino, block).first().plus(index as u64))
        }
        _ => None,
    };
    let mut pieces = line.places().map(of_table);
    let first = pieces.next().flatten();
    first.is_some_and(|other| other != piece) && pieces.all(|piece| piece == first)
}
