//! Finds the pages of the inode file, by its tree and by the block table, and reads their slots.

use super::below::{Copy, copy_below};
use super::radix::walk;
use crate::state::Round;
use crate::state::inodes::known_type;
use crate::state::pool::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use terrace_format::address::MAX_INO;
use terrace_format::below::Identity;
use terrace_format::inode::{InodeSlot, SLOT_SIZE, SLOTS_PER_PAGE};
use terrace_format::table::{Owner, PageKind};
use zerocopy::FromBytes;

/// Finds pages and reads slots.
pub(crate) fn salvage_inode_file(round: &mut Round<'_>) {
    let root = round.pool.word(round.pool.geometry.inode_root()).unwrap_or(0);
    let count = round.pool.word(round.pool.geometry.inode_pages());
    let owner = |level: u64| Owner::Page { kind: PageKind::InodeNode, datum: level as u32 };
    let walk = walk(round, root, &owner);
    round.inodes.tree_broken = walk.broken || root == 0;
    round.inodes.nodes = walk.nodes;
    let most = MAX_INO.0 / SLOTS_PER_PAGE;
    let page = |index: u64| Owner::Page { kind: PageKind::InodePage, datum: index as u32 };
    let mut claims: BTreeMap<u64, u64> = BTreeMap::new();
    let fetched = fetched_pages(round, &walk.entries);
    for (index, block) in &walk.entries {
        round.owners.see(*block);
        round.inodes.pages_found.insert(*index, *block);
        if let Copy::Intact(bytes) = copy_below(round, *block, Identity::Inodes { index: *index })
            && *index <= most
        {
            if let Some(later) = fetched.get(index).filter(|later| follows(round, **later, &bytes))
                && round.owners.own(*later, page(*index))
            {
                round.below.forget(*block);
                round.actions.add(format!("inode file: page {index} came up; its old copy below goes"));
                claims.insert(*index, *later);
                continue;
            }
            round.below.inodes.insert(*block, bytes);
            claims.insert(*index, *block);
        }
    }
    // First the pages on which tree and table agree, then the pages that only the table names, then the
    // pages that only the tree names.
    for (index, block) in walk.entries.iter().filter(|(index, _)| *index <= most) {
        if round.owners.owner(*block) == Some(page(*index))
            && round.owners.is_open(*block)
            && !claims.contains_key(index)
        {
            round.owners.own(*block, page(*index));
            claims.insert(*index, *block);
        }
    }
    let agreed = claims.last_key_value().map_or(0, |(index, _)| index + 1);
    let mut told: Vec<(u64, u64)> = Vec::new();
    for (block, owner) in round.owners.owned() {
        if let Owner::Page { kind: PageKind::InodePage, datum } = owner {
            told.push((datum.into(), block));
        }
    }
    told.extend(walk.entries.iter().copied());
    // Each page below the count needs a block: a page with a far too high number would ask for all pages
    // in between.
    let near = agreed + told.len() as u64 + 64;
    let bound = count.filter(|count| *count > 0).unwrap_or(near).clamp(agreed, near);
    for (index, block) in told {
        let fits = index < bound && index <= most && !claims.contains_key(&index);
        if fits
            && round.owners.is_open(block)
            && round.pool.block(block).is_some_and(|bytes| plausible(&bytes))
        {
            round.owners.own(block, page(index));
            claims.insert(index, block);
        }
    }
    round.inodes.pages = claims;
    read_pages(round);
}

/// Pages that only the block table names, by index. A fetch of a page leaves its copy below intact, and a
/// demotion gives the PM block back: if both copies are there, the copy in PM is newer or equal.
fn fetched_pages(round: &Round<'_>, entries: &[(u64, u64)]) -> BTreeMap<u64, u64> {
    let named: BTreeSet<u64> = entries.iter().map(|(_, block)| *block).collect();
    let owned = round.owners.owned().into_iter().filter_map(|(block, owner)| match owner {
        Owner::Page { kind: PageKind::InodePage, datum } => Some((u64::from(datum), block)),
        _ => None,
    });
    // A block that the tree names as another page has a damaged table entry.
    owned.filter(|(_, block)| !named.contains(block)).collect()
}

/// Whether a block can hold a newer state of a page: the generation of a slot never falls.
fn follows(round: &Round<'_>, block: u64, before: &Bytes) -> bool {
    let generations = |bytes: &Bytes| {
        let slots = bytes.as_chunks::<{ SLOT_SIZE as usize }>().0.iter();
        let slots = slots.filter_map(|slot| InodeSlot::read_from_bytes(slot).ok());
        slots.map(|slot| slot.generation.get()).collect::<Vec<u32>>()
    };
    round.pool.block(block).filter(|after| plausible(after)).is_some_and(|after| {
        generations(&after).iter().zip(generations(before)).all(|(after, before)| *after >= before)
    })
}

fn read_pages(round: &mut Round<'_>) {
    let mut last = round.inodes.pages.last_key_value().map_or(0, |(index, _)| *index);
    let count = round.pool.word(round.pool.geometry.inode_pages()).unwrap_or(0);
    if count > last && count <= last + 64 {
        last = count - 1; // pages that neither tree nor table name
    }
    for index in 0..=last {
        let Some(bytes) = round.inode_page(index) else {
            if let Some(block) = round.inodes.pages.remove(&index) {
                round.owners.release(block); // its content cannot be read: another block takes its place
            }
            round.inodes.lost_pages.insert(index);
            continue;
        };
        round.inodes.read_slots(index, &bytes);
    }
}

/// Looks like a page of the inode file: every slot is free or has a known type and no unknown bits.
fn plausible(bytes: &[u8; 4096]) -> bool {
    bytes.as_chunks::<{ SLOT_SIZE as usize }>().0.iter().all(|bytes| {
        InodeSlot::read_from_bytes(bytes).is_ok_and(|slot| {
            slot.spare.get() == 0
                && (slot.is_free() || known_type(slot.mode.get()))
                && slot.flags.get() & !terrace_format::inode::flag::ALL == 0
        })
    })
}
