//! The inode file: its pages, and the slots of its inodes.
//!
//! Invariant: where an inode has both a slot in use and a residue, the slot counts.

use super::pool::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use terrace_format::inode::{InodeSlot, SLOT_SIZE, SLOTS_PER_PAGE, flag};
use zerocopy::{FromBytes, FromZeros};

/// Levels of the highest radix tree.
pub(crate) const MAX_HEIGHT: u8 = 4;

/// Pages and slots.
#[derive(Default)]
pub(crate) struct Inodes {
    /// Pages of the inode file as its tree names them.
    pub pages_found: BTreeMap<u64, u64>,
    /// Pages after the repair.
    pub pages: BTreeMap<u64, u64>,
    /// Pages that are made anew.
    pub lost_pages: BTreeSet<u64>,
    /// Nodes of the tree: block and level.
    pub nodes: Vec<(u64, u64)>,
    /// The tree has to be built anew.
    pub tree_broken: bool,
    /// Slots of inodes in use.
    pub slots: BTreeMap<u32, InodeSlot>,
    /// Slots of mode 0 with other bytes in them.
    pub residues: BTreeMap<u32, InodeSlot>,
}

impl Inodes {
    /// The slots of a page.
    pub fn read_slots(&mut self, index: u64, bytes: &Bytes) {
        for (ino, bytes) in (index * SLOTS_PER_PAGE..).zip(bytes.as_chunks::<{ SLOT_SIZE as usize }>().0) {
            let (Ok(slot), Ok(ino)) = (InodeSlot::read_from_bytes(bytes), u32::try_from(ino)) else {
                continue;
            };
            if slot.is_free() {
                if bytes.iter().any(|byte| *byte != 0) {
                    self.residues.insert(ino, slot);
                }
            } else {
                self.slots.insert(ino, slot);
            }
        }
    }

    /// Frees an inode's slot; names of it are dropped later.
    pub fn free_slot(&mut self, ino: u32) {
        if let Some(slot) = self.slots.remove(&ino) {
            self.residues.insert(ino, slot);
        }
    }

    /// The slot of an inode after the repair; `None` where the slot was empty and stays empty.
    pub fn decided_slot(&self, ino: u32) -> Option<InodeSlot> {
        if let Some(slot) = self.slots.get(&ino) {
            return Some(*slot);
        }
        let old = self.residues.get(&ino)?;
        let junk = old.nlink.get() != 0
            || old.blocks.get() != 0
            || old.root.get() != 0
            || old.direct.iter().any(|pointer| pointer.get() != 0)
            || (old.orphan_next.get(), old.orphan_previous.get()) != (0, 0)
            || old.has(flag::ORPHAN)
            || !old.is_free();
        if !junk {
            return Some(*old);
        }
        let mut free = InodeSlot::new_zeroed();
        free.generation = old.generation;
        Some(free)
    }
}

/// The page that has an inode's slot.
pub(crate) fn page_of(ino: u32) -> u64 {
    u64::from(ino) / SLOTS_PER_PAGE
}

/// Whether a mode has a type that the format knows.
pub(crate) fn known_type(mode: u32) -> bool {
    matches!(mode >> 12, 0o01 | 0o02 | 0o04 | 0o06 | 0o10 | 0o12 | 0o14)
}
