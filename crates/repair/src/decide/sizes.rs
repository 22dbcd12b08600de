//! Decides sizes and block counts of files, which follow from file map and cold map.
//!
//! Invariant: a file's block count is the number of its blocks in PM or below, each once.

use crate::state::Round;
use crate::state::sifted::{Sifted, cut, mapped};
use std::collections::BTreeSet;
use terrace_format::BLOCK_SIZE;
use terrace_format::address::MAX_FILE_SIZE;
use terrace_format::inode::flag;

/// Sizes and block counts of regular files; blocks that a lost intent would have removed go.
pub(crate) fn decide_sizes(round: &mut Round<'_>, sifted: &mut Sifted, made: &BTreeSet<u32>) {
    let regular = round.inodes.slots.iter().filter(|(_, slot)| slot.is_regular());
    for ino in regular.map(|(ino, _)| *ino).collect::<Vec<u32>>() {
        let Some(mut slot) = round.inodes.slots.get(&ino).copied() else {
            continue;
        };
        let intents = sifted.intents.get(&ino).map_or(&[][..], Vec::as_slice);
        let limit = slot.size.get().div_ceil(BLOCK_SIZE);
        let limit = intents.iter().fold(limit, |limit, (_, end)| limit.max(*end));
        let written = written_end(round, ino, sifted);
        if !slot.has(flag::ORPHAN) && (written > limit || made.contains(&ino)) {
            let lost_intent = slot.has(flag::HAS_INTENT) && intents.is_empty() && !made.contains(&ino);
            if lost_intent {
                round.actions.add(format!("inode {ino}: blocks from {limit} on go, as its lost intent says"));
                cut_file(round, ino, limit, sifted);
            } else {
                let size = (written * BLOCK_SIZE).min(MAX_FILE_SIZE);
                let text = format!("size {} becomes {size}, up to its blocks", slot.size);
                round.actions.lose(ino, text);
                slot.size = size.into();
            }
        }
        let mapped = mapped(&round.maps, ino, sifted);
        if slot.blocks.get() > mapped && !slot.has(flag::ORPHAN) {
            let before = slot.blocks;
            let text = format!("{mapped} of {before} blocks; what was not found again reads as zeros");
            round.actions.lose(ino, text);
        }
        slot.blocks = mapped.into();
        round.inodes.slots.insert(ino, slot);
    }
    for slot in round.inodes.slots.values_mut().filter(|slot| !slot.is_regular()) {
        slot.blocks = 0.into();
    }
}

fn written_end(round: &Round<'_>, ino: u32, sifted: &Sifted) -> u64 {
    let map = round.maps.get(&ino).and_then(|map| {
        let written = map.entries.iter().rev().find(|(_, mapped)| !mapped.unwritten);
        written.map(|(file_block, _)| file_block + 1)
    });
    let cold = sifted.extents.get(&ino).and_then(|extents| {
        let written = extents.iter().filter(|extent| !extent.unwritten);
        written.map(|extent| extent.end().0).max()
    });
    map.unwrap_or(0).max(cold.unwrap_or(0))
}

fn cut_file(round: &mut Round<'_>, ino: u32, from: u64, sifted: &mut Sifted) {
    if let Some(map) = round.maps.get_mut(&ino) {
        let gone = map.entries.split_off(&from);
        gone.values().for_each(|mapped| round.owners.release(mapped.block));
    }
    if let Some(extents) = sifted.extents.get_mut(&ino) {
        cut(extents, from, u64::MAX);
    }
}
