//! Writes file maps: a sound map that holds the right entries stays, every other map is built anew.

use super::clustered::emit_clustered;
use super::cuckoo::emit_cuckoo;
use super::extents::build_extents;
use super::radix::build_radix;
use crate::state::Round;
use crate::state::actions::Stuck;
use crate::state::maps::{FileMap, Mapped};
use std::collections::BTreeMap;
use terrace_format::homes::Homes;
use terrace_format::inode::{DIRECT_BLOCKS, ENTRY_UNWRITTEN, InodeSlot};
use terrace_format::map_kind::MapKind;
use terrace_format::table::{Owner, PageKind};
use terrace_format::{FileBlock, Ino, PmBlock};

/// Writes the maps that change, and their roots into the slots.
pub(crate) fn emit_maps(round: &mut Round<'_>) -> Result<(), Stuck> {
    if round.pool.geometry.map.is_table() {
        emit_table_maps(round);
        return Ok(());
    }
    if round.pool.geometry.map == MapKind::Cuckoo {
        clear_slot_words(round);
        return emit_cuckoo(round);
    }
    if round.pool.geometry.map == MapKind::Clustered {
        return emit_clustered(round);
    }
    for ino in round.inodes.slots.keys().copied().collect::<Vec<u32>>() {
        let map = round.maps.remove(&ino);
        let same = map.as_ref().is_some_and(|map| !map.broken && map.found == map.entries);
        let Some(mut slot) = round.inodes.slots.get(&ino).copied().filter(|_| !same) else {
            if let Some(map) = map {
                round.maps.insert(ino, map);
            }
            continue;
        };
        let map = map.unwrap_or_default();
        if !map.found.is_empty() || !map.entries.is_empty() || map.broken {
            let (before, after) = (map.found.len(), map.entries.len());
            let given_up = map.found.keys().filter(|block| !map.entries.contains_key(block)).count();
            if given_up > 0 {
                let text = format!("{given_up} mapped blocks are another's or free; they are given up");
                round.actions.lose(ino, text);
            }
            round
                .actions
                .add(format!("inode {ino}: its map is built anew, {before} blocks before, {after} now"));
        }
        build_map(round, ino, &mut slot, map)?;
        round.inodes.slots.insert(ino, slot);
    }
    Ok(())
}

/// The block table is the map: slots hold none, and the reach takes all blocks.
fn emit_table_maps(round: &mut Round<'_>) {
    let geometry = round.pool.geometry;
    let homes = Homes::of(&geometry, round.pool.superblock.hash_key);
    let mut needed = 1;
    for (ino, map) in &round.maps {
        for (block, mapped) in &map.entries {
            let home = homes.home(Ino((*ino).into()), FileBlock(*block));
            needed = needed.max(homes.distance(home, PmBlock(mapped.block)) + 1);
        }
        let gone = map.found.keys().filter(|block| !map.entries.contains_key(block)).count();
        if gone > 0 && round.inodes.slots.contains_key(ino) {
            round.actions.lose(*ino, format!("{gone} blocks of the block table are given up"));
        }
    }
    let most = homes.most_reach();
    let stored = round.pool.word(geometry.map_reach()).unwrap_or(0);
    if stored < needed || stored > most {
        let new = needed.next_power_of_two().clamp(64, most.max(64)).min(most);
        round.actions.add(format!("the reach of the map is {new}, it was {stored}"));
        round.pool.put(geometry.map_reach(), &new.to_le_bytes());
    }
    clear_slot_words(round);
}

/// Slots hold no words of a map that files share.
fn clear_slot_words(round: &mut Round<'_>) {
    for (ino, slot) in &mut round.inodes.slots {
        if slot.root.get() != 0 || slot.direct.iter().any(|pointer| pointer.get() != 0) {
            round.actions.add(format!("inode {ino}: map words in its slot are cleared"));
            slot.root = 0.into();
            slot.direct = Default::default();
        }
    }
}

fn build_map(round: &mut Round<'_>, ino: u32, slot: &mut InodeSlot, map: FileMap) -> Result<(), Stuck> {
    for block in map.nodes {
        round.owners.release(block);
    }
    let page = Owner::Page { kind: PageKind::MapNode, datum: ino };
    match round.pool.geometry.map {
        MapKind::Radix => build_radix_map(round, slot, &map.entries, page),
        MapKind::Cuckoo | MapKind::HashfsLinear | MapKind::Hashfs | MapKind::Clustered => Ok(()),
        MapKind::Extent => {
            let blocks = map.entries.iter().map(|(block, mapped)| (*block, *mapped));
            build_extents(round, slot, blocks, page)
        }
    }
}

fn build_radix_map(
    round: &mut Round<'_>,
    slot: &mut InodeSlot,
    blocks: &BTreeMap<u64, Mapped>,
    page: Owner,
) -> Result<(), Stuck> {
    let has_direct = round.pool.geometry.block_count() <= 1 << 31;
    slot.direct = Default::default();
    let mut entries = Vec::new();
    for (file_block, Mapped { block, unwritten }) in blocks {
        if has_direct && *file_block < DIRECT_BLOCKS {
            if let Some(place) = slot.direct.get_mut(*file_block as usize) {
                *place = (*block as u32 | u32::from(*unwritten) << 31).into();
            }
        } else {
            entries.push((*file_block, if *unwritten { block | ENTRY_UNWRITTEN } else { *block }));
        }
    }
    slot.root = build_radix(round, entries, &|_| page)?.into();
    Ok(())
}
