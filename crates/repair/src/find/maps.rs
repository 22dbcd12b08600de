//! Walks the file maps of all inodes as they were found.

use super::clustered::salvage_clustered;
use super::cuckoo::salvage_cuckoo;
use super::extents::walk_extents;
use super::radix::walk;
use crate::state::Round;
use crate::state::maps::FileMap;
use terrace_format::PmBlock;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::homes::Homes;
use terrace_format::inode::{DIRECT_BLOCKS, ENTRY_UNWRITTEN, InodeSlot};
use terrace_format::map_kind::MapKind;
use terrace_format::table::{Owner, PageKind};

/// Walks the maps of all inodes in use.
pub(crate) fn salvage_maps(round: &mut Round<'_>) {
    let inos: Vec<u32> = round.inodes.slots.keys().chain(round.inodes.residues.keys()).copied().collect();
    if round.pool.geometry.map.is_table() {
        return salvage_table_maps(round);
    }
    if round.pool.geometry.map == MapKind::Cuckoo {
        return salvage_cuckoo(round);
    }
    if round.pool.geometry.map == MapKind::Clustered {
        return salvage_clustered(round);
    }
    let mut again = round.pool.geometry.block_count();
    for ino in inos {
        let Some(slot) = round.inodes.slots.get(&ino).or_else(|| round.inodes.residues.get(&ino)).copied()
        else {
            continue;
        };
        let map = match round.pool.geometry.map {
            MapKind::Radix => walk_radix(round, ino, &slot),
            MapKind::Extent => walk_extents(round, ino, &slot, &mut again),
            _ => continue,
        };
        if map.broken || !map.found.is_empty() || !map.nodes.is_empty() {
            round.maps.insert(ino, map);
        }
    }
}

/// The block table is the only witness. Of a block that the table has twice the entry nearer to its home counts. The words
/// of an unreadable or impossible entry are in no other place: its block is lost.
fn salvage_table_maps(round: &mut Round<'_>) {
    let geometry = round.pool.geometry;
    let (first, end) = (geometry.first_pool_block(), PmBlock(geometry.block_count()));
    let homes = Homes::of(&geometry, round.pool.superblock.hash_key);
    let mut entries = Vec::new();
    for block in first.0..end.0 {
        let Some(Owner::File { ino, block: of, unwritten }) = round.owners.owner(block) else { continue };
        if of <= MAX_FILE_BLOCK
            && let Ok(number) = u32::try_from(ino.0)
        {
            let distance = homes.distance(homes.home(ino, of), PmBlock(block));
            entries.push((distance, number, of.0, block, unwritten));
        }
    }
    // A damaged entry may be that of any block, and lies anywhere: beyond the reach it is not believed. Where many lie
    // beyond it the reach is damaged.
    let reach = round.pool.word(geometry.map_reach()).unwrap_or(0);
    let beyond = entries.iter().filter(|(distance, ..)| *distance >= reach).count();
    if beyond * 4 <= entries.len() {
        entries.retain(|(distance, ..)| *distance < reach);
    }
    entries.sort_unstable();
    for (_, ino, of, block, unwritten) in entries {
        let map = round.maps.entry(ino).or_default();
        if !map.found.contains_key(&of) {
            map.note(of, block, unwritten);
        }
    }
}

fn walk_radix(round: &mut Round<'_>, ino: u32, slot: &InodeSlot) -> FileMap {
    let owner = |_: u64| Owner::Page { kind: PageKind::MapNode, datum: ino };
    let walk = walk(round, slot.root.get(), &owner);
    let mut map = FileMap { broken: walk.broken, ..FileMap::default() };
    map.nodes = walk.nodes.iter().map(|(block, _)| *block).collect();
    for (file_block, pointer) in (0u64..).zip(slot.direct) {
        let pointer = pointer.get();
        let entry = u64::from(pointer & !(1 << 31));
        if pointer != 0 {
            map.note(file_block, entry, pointer >> 31 == 1);
            round.owners.see(entry);
        }
    }
    let direct = round.pool.geometry.block_count() <= 1 << 31;
    for (file_block, entry) in walk.entries {
        let impossible = file_block > MAX_FILE_BLOCK.0 || (direct && file_block < DIRECT_BLOCKS);
        let place = entry & !ENTRY_UNWRITTEN;
        round.owners.see(place);
        if impossible {
            map.broken = true;
        } else {
            map.note(file_block, place, entry & ENTRY_UNWRITTEN != 0);
        }
    }
    map
}
