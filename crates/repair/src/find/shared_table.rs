//! Entries of a table that all files share, cuckoo or clustered, and their second witness, the block table.
//!
//! Invariants: 1. Of two entries for a file block the entry is believed that the block table confirms. 2. Where entry and block
//! table give a PM block to two file blocks, the damaged witness is found by other entries, by the ends of files, and by their
//! block counts. 3. Where these tell nothing, both files are named.

use crate::state::Round;
use crate::state::inodes::page_of;
use crate::state::maps::{FileMap, Mapped};
use crate::state::witness::{count_blocks, is_confirmed};
use std::collections::BTreeMap;
use terrace_format::inode::flag;
use terrace_format::table::Owner;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};

/// A block of a file.
pub(crate) type Key = (Ino, FileBlock);

/// An entry whose PM block the block table gives to another file block.
pub(crate) struct Doubt {
    /// By the entry.
    pub key: Key,
    /// By the block table.
    pub told: Key,
    told_unwritten: bool,
    pub mapped: Mapped,
}

impl Doubt {
    /// The doubt about an entry; `None` where the block table confirms it, or names no file block.
    pub fn of(round: &Round<'_>, key: Key, mapped: Mapped) -> Option<Doubt> {
        let Some(Owner::File { ino, block, unwritten }) = round.owners.owner(mapped.block) else {
            return None;
        };
        let told = (ino, block);
        (told != key).then_some(Doubt { key, told, told_unwritten: unwritten, mapped })
    }

    /// Whether the entry is damaged, and not the block table; `None` where both are possible. Asked when all entries without a
    /// doubt are noted.
    fn is_entry_damaged(&self, round: &Round<'_>) -> Option<bool> {
        let told = agreed(round, self.told);
        let has_another_witness = told == Some(self.mapped.block) || agreed(round, self.key).is_some();
        if has_another_witness || !can_have(round, self.key, self.mapped.unwritten) {
            return Some(true);
        }
        let (ino, block) = self.told;
        let owner = Owner::File { ino, block, unwritten: self.told_unwritten };
        if told.is_some()
            || !can_have(round, self.told, self.told_unwritten)
            || !is_confirmed(round, self.mapped.block, owner)
        {
            return Some(false);
        }
        match [self.key, self.told].map(|(ino, _)| lacks_blocks(round, ino)) {
            [Some(true), Some(false)] => Some(false),
            [Some(false), Some(true)] => Some(true),
            _ => None,
        }
    }

    /// Notes the entry unless it is damaged, and tells whether it is. Where nothing decides, `guess` tells so, and both files
    /// are named.
    pub fn settle(&self, round: &mut Round<'_>, guess: bool) -> bool {
        let verdict = self.is_entry_damaged(round);
        let is_damaged = verdict.unwrap_or(guess);
        if verdict.is_none() {
            self.tell(round, is_damaged);
        }
        if !is_damaged {
            note(round, self.key, self.mapped);
        }
        is_damaged
    }

    fn tell(&self, round: &mut Round<'_>, is_damaged: bool) {
        let ((ino, block), (other, told)) = (self.key, self.told);
        let taken = if is_damaged { "second" } else { "first" };
        let text = format!(
            "a block is block {block} of inode {ino} by the map, block {told} of inode {other} by the block table; taken for the \
             {taken}"
        );
        for ino in [ino, other].into_iter().filter_map(|ino| u32::try_from(ino.0).ok()) {
            round.actions.lose(ino, text.clone());
        }
    }
}

/// Whether the entries of a file that were noted are fewer than its block count says; `None` without a slot.
fn lacks_blocks(round: &Round<'_>, ino: Ino) -> Option<bool> {
    let number = u32::try_from(ino.0).ok()?;
    let (slot, empty) = (round.inodes.slots.get(&number)?, BTreeMap::new());
    let found = round.maps.get(&number).map_or(&empty, |map| &map.found);
    Some(count_blocks(round, number, found) < slot.blocks.get())
}

/// The PM block of a file block on which a noted entry and the block table agree.
fn agreed(round: &Round<'_>, key: Key) -> Option<u64> {
    let map = round.maps.get(&u32::try_from(key.0.0).ok()?)?;
    let mapped = map.found.get(&key.1.0)?;
    match round.owners.owner(mapped.block)? {
        Owner::File { ino, block, .. } if (ino, block) == key => Some(mapped.block),
        _ => None,
    }
}

/// Whether a file can have a block there: the file is in use, or its slot is lost, and the block lies before its end.
fn can_have(round: &Round<'_>, (ino, block): Key, unwritten: bool) -> bool {
    let Ok(number) = u32::try_from(ino.0) else { return false };
    match round.inodes.slots.get(&number) {
        Some(slot) => {
            let end = slot.size.get().div_ceil(BLOCK_SIZE);
            slot.is_regular() && (unwritten || slot.has(flag::ORPHAN) || block.0 < end)
        }
        None => round.inodes.lost_pages.contains(&page_of(number)),
    }
}

/// Notes an entry.
pub(crate) fn note(round: &mut Round<'_>, (ino, block): Key, mapped: Mapped) {
    let Ok(number) = u32::try_from(ino.0) else { return };
    let owner = Owner::File { ino, block, unwritten: mapped.unwritten };
    let is_confirmed = round.owners.owner(mapped.block) == Some(owner);
    round.owners.see(mapped.block);
    let map: &mut FileMap = round.maps.entry(number).or_default();
    let is_first = !map.found.contains_key(&block.0);
    map.broken |= !is_first;
    if is_first || is_confirmed {
        map.found.insert(block.0, mapped);
    }
}

/// Entries of any file may have been in a damaged line: all maps may lack blocks.
pub(crate) fn break_all(round: &mut Round<'_>) {
    let inodes = &round.inodes;
    let files: Vec<u32> = inodes.slots.keys().chain(inodes.residues.keys()).copied().collect();
    files.into_iter().for_each(|ino| round.maps.entry(ino).or_default().broken = true);
}
