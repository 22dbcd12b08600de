//! Writes the inode file: its pages, its tree and its slots.

use super::radix::build_radix;
use crate::state::Round;
use crate::state::actions::Stuck;
use crate::state::inodes::page_of;
use std::collections::BTreeSet;
use terrace_format::inode::{InodeSlot, SLOT_SIZE, SLOTS_PER_PAGE, slot_offset};
use terrace_format::table::{Owner, PageKind};
use terrace_format::{BLOCK_SIZE, PmBlock};
use zerocopy::IntoBytes;

/// Brings into PM the pages of the inode file below in which a slot changes.
pub(crate) fn promote_changed_pages(round: &mut Round<'_>) -> Result<(), Stuck> {
    for (word, bytes) in std::mem::take(&mut round.below.inodes) {
        let Some(index) =
            round.inodes.pages.iter().find(|(_, place)| **place == word).map(|(index, _)| *index)
        else {
            continue;
        };
        let slots = bytes.as_chunks::<{ SLOT_SIZE as usize }>().0;
        let mut numbers = (index * SLOTS_PER_PAGE..).zip(slots);
        let same = numbers.all(|(ino, found)| {
            let decided = u32::try_from(ino).ok().and_then(|ino| round.inodes.decided_slot(ino));
            decided.is_none_or(|slot| slot.as_bytes() == found)
        });
        if same {
            continue;
        }
        let block = round.allocate(Owner::Page { kind: PageKind::InodePage, datum: index as u32 })?;
        round.pool.put(PmBlock(block).offset(), bytes.as_slice());
        round.inodes.pages.insert(index, block);
        round.actions.add(format!("inode file: page {index} comes up from a lower tier"));
    }
    Ok(())
}

/// Writes lost pages as zeros, the count of pages, and the tree if it changes.
pub(crate) fn emit_inode_file(round: &mut Round<'_>) -> Result<(), Stuck> {
    for index in std::mem::take(&mut round.inodes.lost_pages) {
        if round.inodes.pages.contains_key(&index) {
            continue;
        }
        let owner = Owner::Page { kind: PageKind::InodePage, datum: index as u32 };
        let block = round.allocate(owner)?;
        round.pool.put(PmBlock(block).offset(), &[0; BLOCK_SIZE as usize]);
        round.inodes.pages.insert(index, block);
        round.actions.lose_some(format!("inode file: page {index} is made anew"));
    }
    let count = round.inodes.pages.len() as u64;
    let last = round.inodes.pages.last_key_value().map_or(0, |(index, _)| index + 1);
    assert_eq!(last, count, "the inode file has no page for some of its inodes");
    round.pool.put(round.pool.geometry.inode_pages(), &count.to_le_bytes());
    if round.inodes.tree_broken || round.inodes.pages != round.inodes.pages_found {
        for (block, _) in std::mem::take(&mut round.inodes.nodes) {
            round.owners.release(block);
        }
        let entries = round.inodes.pages.iter().map(|(index, block)| (*index, *block)).collect();
        let owner = |level: u64| Owner::Page { kind: PageKind::InodeNode, datum: level as u32 };
        let root = build_radix(round, entries, &owner)?;
        round.pool.put(round.pool.geometry.inode_root(), &root.to_le_bytes());
        round.actions.add("inode file: its tree is built anew".into());
    }
    Ok(())
}

/// Writes the slots of all inodes that were or are in use.
pub(crate) fn emit_slots(round: &mut Round<'_>) {
    let numbers: BTreeSet<u32> =
        round.inodes.residues.keys().chain(round.inodes.slots.keys()).copied().collect();
    for ino in numbers {
        if let Some(slot) = round.inodes.decided_slot(ino) {
            put_slot(round, ino, &slot);
        }
    }
}

fn put_slot(round: &mut Round<'_>, ino: u32, slot: &InodeSlot) {
    // A page that still lies below has no changed slot.
    if let Some(page) = round.inodes.pages.get(&page_of(ino)).filter(|page| round.pool.in_pool(**page)) {
        let place = slot_offset(PmBlock(*page).offset(), ino.into());
        round.pool.put(place, slot.as_bytes());
    }
}
