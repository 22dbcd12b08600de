//! Decides the owner of each PM block that holds a file block. File map and block table both name the owner;
//! if they differ, one is damaged.

use crate::state::Round;
use crate::state::inodes::page_of;
use crate::state::maps::Mapped;
use crate::state::witness::{count_blocks, is_cold, is_confirmed};
use std::collections::{BTreeMap, BTreeSet};
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::inode::flag;
use terrace_format::table::Owner;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};

/// A block of a file.
type Place = (u32, u64);

/// Gives each PM block to one file block, in this order: blocks on which map and table agree; blocks that
/// only the table names and no map points to; blocks that only a map names, unless the table gives the
/// block to a file with a damaged map; the other blocks that the table names.
pub(crate) fn decide_blocks(round: &mut Round<'_>) {
    confirm(round);
    let pointed = pointed(round);
    let told = told(round);
    let claims: BTreeSet<(Place, u64)> = told.iter().map(|(place, block, _)| (*place, *block)).collect();
    for (place, block, unwritten) in &told {
        if !pointed.contains_key(block) {
            adopt(round, *place, *block, *unwritten);
        }
    }
    for (block, (place, unwritten)) in &pointed {
        let other = round.owners.owner(*block).and_then(|owner| match owner {
            Owner::File { ino, block, .. } => Some((ino.0 as u32, block.0)),
            _ => None,
        });
        let is_theirs = |other: Place| {
            claims.contains(&(other, *block)) && map_is_damaged(round, other.0) && !is_decided(round, other)
        };
        let theirs = other.is_some_and(is_theirs);
        if !theirs && believes(round, *block, *place) {
            adopt(round, *place, *block, *unwritten);
        }
    }
    for (place, block, unwritten) in &told {
        adopt(round, *place, *block, *unwritten);
    }
}

/// Whether a pointer of a file map counts although the table does not confirm it. If the table says that
/// the block is free, pointer or table is damaged, and the inode's block count decides: a pointer beyond
/// the count would show free space as file content. For a cold block the count does not decide, and the
/// PM copy counts because it is newer (S1).
fn believes(round: &Round<'_>, block: u64, (ino, file_block): Place) -> bool {
    let slot = round.inodes.slots.get(&ino).filter(|_| round.owners.owner(block) == Some(Owner::Free));
    let Some(slot) = slot else {
        return true;
    };
    let empty = BTreeMap::new();
    let entries = round.maps.get(&ino).map_or(&empty, |map| &map.entries);
    is_cold(round, Ino(ino.into()), FileBlock(file_block))
        || count_blocks(round, ino, entries) < slot.blocks.get()
}

/// Whether an inode may have blocks that its map does not tell. An inode without a map and a slot may have them where the page
/// of its slot is lost; else it is free, and the block table is damaged that names it.
fn map_is_damaged(round: &Round<'_>, ino: u32) -> bool {
    let in_use = round.inodes.slots.contains_key(&ino);
    let is_lost = !in_use && round.inodes.lost_pages.contains(&page_of(ino));
    round.maps.get(&ino).map_or(is_lost, |map| map.broken)
}

fn is_decided(round: &Round<'_>, (ino, file_block): Place) -> bool {
    round.maps.get(&ino).is_some_and(|map| map.entries.contains_key(&file_block))
}

fn confirm(round: &mut Round<'_>) {
    let mut maps = std::mem::take(&mut round.maps);
    for (ino, map) in &mut maps {
        let (end, mut doubtful) = (end_block(round, *ino), 0_u64);
        for (file_block, mapped) in &map.found {
            let owner = |unwritten| Owner::File {
                ino: Ino(u64::from(*ino)),
                block: FileBlock(*file_block),
                unwritten,
            };
            let found = round.owners.owner(mapped.block);
            let agrees = found == Some(owner(false)) || found == Some(owner(true));
            let differs = agrees && found != Some(owner(mapped.unwritten));
            // Zeros in the place of a written block would be a loss for good. Behind the end of file no block is written.
            let unwritten = if differs { *file_block >= end } else { mapped.unwritten };
            if agrees && round.owners.own(mapped.block, owner(unwritten)) {
                doubtful += u64::from(differs && !unwritten);
                map.entries.insert(*file_block, Mapped { unwritten, ..*mapped });
            }
        }
        if doubtful > 0 {
            let text = format!(
                "{doubtful} blocks are unwritten by the map or by the block table alone; taken for written"
            );
            round.actions.lose(*ino, text);
        }
    }
    round.maps = maps;
}

/// The first block behind the end of a regular file.
fn end_block(round: &Round<'_>, ino: u32) -> u64 {
    let slot = round.inodes.slots.get(&ino).filter(|slot| slot.is_regular());
    slot.map_or(u64::MAX, |slot| slot.size.get().div_ceil(BLOCK_SIZE))
}

/// Blocks that maps point to and no file block has yet; the first pointer counts.
fn pointed(round: &Round<'_>) -> BTreeMap<u64, (Place, bool)> {
    let mut pointed = BTreeMap::new();
    for (ino, map) in &round.maps {
        // A pointer beyond the end of file does not count without the table.
        let end = end_block(round, *ino);
        for (file_block, mapped) in &map.found {
            let beyond = !mapped.unwritten && *file_block >= end;
            if !beyond && !map.entries.contains_key(file_block) && round.owners.is_open(mapped.block) {
                pointed.entry(mapped.block).or_insert(((*ino, *file_block), mapped.unwritten));
            }
        }
    }
    pointed
}

/// Table entries of blocks that no file block has yet, if the file can hold such a block.
fn told(round: &Round<'_>) -> Vec<(Place, u64, bool)> {
    let mut told = Vec::new();
    // Where the table is the map, an entry that the search for maps left out is damaged.
    if round.pool.geometry.map.is_table() {
        return told;
    }
    let partial = round.owners.partial_blocks().filter(|block| round.pool.in_pool(*block));
    let shadows = partial.filter_map(|block| Some((block, round.owners.owner(block)?)));
    let shadows = shadows.filter(|(block, owner)| is_confirmed(round, *block, *owner));
    for (block, owner) in round.owners.owned().into_iter().chain(shadows) {
        let Owner::File { ino, block: file_block, unwritten } = owner else {
            continue;
        };
        let Ok(ino) = u32::try_from(ino.0) else {
            continue;
        };
        let fits = match round.inodes.slots.get(&ino) {
            Some(slot) if slot.is_regular() && !slot.has(flag::ORPHAN) => {
                unwritten || file_block.0 < slot.size.get().div_ceil(BLOCK_SIZE)
            }
            _ => true, // an orphan, or an inode that is lost itself
        };
        if fits && file_block <= MAX_FILE_BLOCK && round.owners.is_open(block) {
            told.push(((ino, file_block.0), block, unwritten));
        }
    }
    told
}

fn adopt(round: &mut Round<'_>, (ino, file_block): Place, block: u64, unwritten: bool) {
    if is_decided(round, (ino, file_block)) {
        return;
    }
    let owner = Owner::File { ino: Ino(ino.into()), block: FileBlock(file_block), unwritten };
    if round.owners.own(block, owner) {
        let entries = &mut round.maps.entry(ino).or_default().entries;
        entries.insert(file_block, Mapped { block, unwritten });
    }
}

/// Gives back the blocks and map nodes of inodes that are no file in use.
pub(crate) fn drop_maps(round: &mut Round<'_>, keep: &BTreeSet<u32>) {
    let gone: Vec<u32> = round.maps.keys().filter(|ino| !keep.contains(ino)).copied().collect();
    for ino in gone {
        if let Some(map) = round.maps.remove(&ino) {
            let blocks = map.entries.values().map(|mapped| mapped.block).chain(map.nodes);
            blocks.for_each(|block| round.owners.release(block));
            let dropped = map.entries.len();
            if dropped > 0 {
                let text = format!("{dropped} blocks given back: no file in use has them");
                round.actions.lose(ino, text);
            }
        }
    }
}
