//! Mends the clustered table of all files: a line of a piece that has blocks stays where it is.

use crate::find::clustered::read_line;
use crate::state::Round;
use crate::state::actions::Stuck;
use crate::state::maps::Mapped;
use std::collections::{BTreeMap, BTreeSet};
use terrace_format::clustered_map::{Line, Lines, PIECE_BLOCKS, Piece, Place};
use terrace_format::inode::DIRECT_BLOCKS;
use terrace_format::{FileBlock, Ino, PmBlock};

/// The least reach that a repair writes.
const LEAST_REACH: u64 = 64;

/// Writes slots, lines and reach that change.
pub(crate) fn emit_clustered(round: &mut Round<'_>) -> Result<(), Stuck> {
    let wanted = wanted_lines(round);
    emit_slots(round);
    let lines = Lines::new(round.pool.superblock.hash_key, &round.pool.geometry);
    let stored = round.pool.word(round.pool.geometry.map_reach()).unwrap_or(0);
    let mut places: BTreeMap<Piece, u64> = BTreeMap::new();
    let mut free = BTreeSet::new();
    let mut cleared = 0;
    for number in 0..lines.count() {
        let found = read_line(round, &lines, number);
        let piece = found.and_then(|line| Piece::decode(line.key()));
        let is_right = |piece: &Piece| wanted.contains_key(piece) && !places.contains_key(piece);
        match piece.filter(is_right) {
            Some(piece) => _ = places.insert(piece, number),
            None => {
                free.insert(number);
                if found.is_none_or(|line| line.key() != 0) {
                    cleared += 1;
                    round.pool.put(lines.at(number), &0u64.to_le_bytes());
                }
            }
        }
    }
    let (mut changed, mut needed) = (0, 1);
    for (piece, line) in &wanted {
        let home = lines.home(*piece);
        let number = match places.get(piece) {
            Some(number) => *number,
            None => {
                let next = free.range(home..).next().or_else(|| free.iter().next()).copied();
                let Some(next) = next else {
                    return Err(Stuck(format!("the clustered table has no line for {piece:?}")));
                };
                free.remove(&next);
                next
            }
        };
        needed = needed.max(lines.distance(home, number) + 1);
        if read_line(round, &lines, number) != Some(*line) {
            changed += 1;
            let bytes: Vec<u8> = line.0.iter().flat_map(|word| word.to_le_bytes()).collect();
            round.pool.put(lines.at(number), &bytes);
        }
    }
    if cleared + changed > 0 {
        round.actions.add(format!("the clustered table: {cleared} lines cleared, {changed} written anew"));
    }
    let most = lines.most_reach();
    if stored < needed || stored > most {
        let new = needed.next_power_of_two().max(LEAST_REACH).min(most);
        round.actions.add(format!("the reach of the map is {new}, it was {stored}"));
        round.pool.put(round.pool.geometry.map_reach(), &new.to_le_bytes());
    }
    Ok(())
}

/// The lines that files in use have to have.
fn wanted_lines(round: &mut Round<'_>) -> BTreeMap<Piece, Line> {
    let mut wanted: BTreeMap<Piece, Line> = BTreeMap::new();
    for (ino, map) in &round.maps {
        if !round.inodes.slots.contains_key(ino) {
            continue;
        }
        for (block, mapped) in map.entries.iter().filter(|(block, _)| **block >= DIRECT_BLOCKS) {
            let piece = Piece::of(Ino((*ino).into()), FileBlock(*block));
            let place = Place { block: PmBlock(mapped.block), unwritten: mapped.unwritten };
            let line = wanted.entry(piece).or_insert_with(|| Line::of(piece));
            line.set((block % PIECE_BLOCKS) as usize, Some(place));
        }
        let gone = map.found.keys().filter(|block| !map.entries.contains_key(block)).count();
        if gone > 0 {
            let text = format!("{gone} mapped blocks are another's or free; they are given up");
            round.actions.lose(*ino, text);
        }
    }
    wanted
}

/// Writes the first blocks of files into their slots.
fn emit_slots(round: &mut Round<'_>) {
    for (ino, slot) in &mut round.inodes.slots {
        let entries = round.maps.get(ino).map(|map| &map.entries);
        let pointer = |Mapped { block, unwritten }: &Mapped| *block as u32 | u32::from(*unwritten) << 31;
        let mut direct = slot.direct;
        for (block, place) in (0..).zip(&mut direct) {
            *place = entries.and_then(|entries| entries.get(&block)).map_or(0, pointer).into();
        }
        if slot.root.get() != 0 || slot.direct != direct {
            round.actions.add(format!("inode {ino}: map words in its slot are written anew"));
            slot.root = 0.into();
            slot.direct = direct;
        }
    }
}
