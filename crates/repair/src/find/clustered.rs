//! Reads the clustered table of all files as it was found, and the first blocks of files from their slots.
//!
//! Invariants: 1. Of two lines for a piece a block is believed by the line that the block table confirms. 2. A line whose blocks
//! are all another piece's by the block table has a damaged key. A line of a single block may be right: the nearer home decides.

use super::shared_table::{Doubt, Key, break_all, note};
use crate::state::Round;
use crate::state::maps::Mapped;
use terrace_check::clustered_table::line_of;
use terrace_format::clustered_map::{LINE_WORDS, Line, Lines, PIECE_BLOCKS, Piece, Place};
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
                note(round, (Ino((*ino).into()), FileBlock(block)), mapped(place));
            }
        }
    }
    let lines = Lines::new(round.pool.superblock.hash_key, &round.pool.geometry);
    let (mut is_damaged, mut doubts) = (false, Vec::new());
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
        let told = told_of_another(round, piece, &line);
        if !told.is_empty() {
            match <[Doubt; 1]>::try_from(told) {
                Ok([doubt]) if piece.has((doubt.key.1.0 % PIECE_BLOCKS) as usize) => {
                    doubts.push((number, doubt))
                }
                _ => is_damaged = true,
            }
            continue;
        }
        for (index, place) in line.places() {
            if piece.has(index) && round.pool.in_pool(place.block.0) {
                note(round, key_of(piece, index), mapped(place));
            } else {
                is_damaged = true;
            }
        }
    }
    for (number, doubt) in doubts {
        let distance = |(ino, block)| lines.distance(lines.home(Piece::of(ino, block)), number);
        is_damaged |= doubt.settle(round, distance(doubt.told) <= distance(doubt.key));
    }
    if is_damaged {
        break_all(round);
    }
}

fn key_of(piece: Piece, index: usize) -> Key {
    (piece.ino, piece.first().plus(index as u64))
}

fn mapped(place: Place) -> Mapped {
    Mapped { block: place.block.0, unwritten: place.unwritten }
}

/// The doubts about the blocks of a line, if the block table gives all of them to one other piece: then the key is damaged, and
/// not each entry of the block table.
fn told_of_another(round: &Round<'_>, piece: Piece, line: &Line) -> Vec<Doubt> {
    let doubt = |(index, place): (usize, Place)| {
        let doubt = Doubt::of(round, key_of(piece, index), mapped(place))?;
        let (ino, block) = doubt.told;
        let other = Piece::of(ino, block);
        (other != piece && doubt.told == key_of(other, index)).then_some((other, doubt))
    };
    let doubts: Option<Vec<(Piece, Doubt)>> = line.places().map(doubt).collect();
    let doubts = doubts.unwrap_or_default();
    let is_same = doubts.iter().zip(doubts.iter().skip(1)).all(|((piece, _), (next, _))| piece == next);
    doubts.into_iter().filter(|_| is_same).map(|(_, doubt)| doubt).collect()
}
