//! Finds the pages of the inode file, by its tree and by the block table, and reads their slots.

use super::below::Copy;
use super::work::{Bytes, FileMap, Work};
use std::collections::{BTreeMap, BTreeSet};
use terrace_format::address::MAX_INO;
use terrace_format::below::Identity;
use terrace_format::inode::{InodeSlot, RADIX_FANOUT, SLOT_SIZE, SLOTS_PER_PAGE, unpack_root};
use terrace_format::table::{Owner, PageKind};
use zerocopy::FromBytes;

/// Height of the highest tree.
pub(crate) const MAX_HEIGHT: u8 = 4;

/// The result of a walk of a radix tree.
#[derive(Default)]
pub(crate) struct Walk {
    /// Leaf entries that are not 0, in order.
    pub entries: Vec<(u64, u64)>,
    /// Nodes that could be read: (block, level).
    pub nodes: Vec<(u64, u64)>,
    /// A node is missing, reached twice or unreadable, or the root word is impossible.
    pub broken: bool,
    /// The block table says of a node that it is free, or does not say its owner.
    doubtful: bool,
    /// Whether the walk follows pointers to such nodes.
    trusting: bool,
}

pub(crate) fn known_type(mode: u32) -> bool {
    matches!(mode >> 12, 0o01 | 0o02 | 0o04 | 0o06 | 0o10 | 0o12 | 0o14)
}

impl Work<'_> {
    /// Walks a radix tree; every node once.
    pub fn walk(&mut self, root_word: u64, owner: &dyn Fn(u64) -> Owner) -> Walk {
        let mut walk = Walk { trusting: true, ..Walk::default() };
        if root_word == 0 {
            return walk;
        }
        let (height, root) = unpack_root(root_word);
        if height == 0 || height > MAX_HEIGHT {
            walk.broken = true;
            return walk;
        }
        self.walk_node(root, u64::from(height) - 1, 0, owner, &mut walk);
        if walk.doubtful && (0..u64::from(MAX_HEIGHT)).any(|level| self.has_unreached(owner(level))) {
            // The table names further nodes of this tree: so a pointer is damaged, and not the table.
            walk.nodes.iter().for_each(|(block, _)| self.release(*block));
            walk = Walk::default();
            self.walk_node(root, u64::from(height) - 1, 0, owner, &mut walk);
        }
        walk
    }

    /// Whether the block table names pages of this owner that no walk has reached.
    pub fn has_unreached(&self, owner: Owner) -> bool {
        let pages = self.pages_of.get(&owner.encode());
        pages.is_some_and(|blocks| blocks.iter().any(|block| self.is_open(*block)))
    }

    fn walk_node(
        &mut self,
        block: u64,
        level: u64,
        base: u64,
        owner: &dyn Fn(u64) -> Owner,
        walk: &mut Walk,
    ) {
        // If the table gives the block another owner, the pointer counts as damaged: the nodes that it should
        // have led to are in the table as well.
        let trusted = match self.owner(block) {
            Some(found) if found == owner(level) => true,
            Some(Owner::Free) | None => {
                walk.doubtful = true;
                walk.trusting
            }
            Some(_) => false,
        };
        self.see(block);
        let node = if trusted { self.node(block) } else { None };
        let Some(node) = node.filter(|_| self.own(block, owner(level))) else {
            walk.broken = true;
            return;
        };
        walk.nodes.push((block, level));
        let span = RADIX_FANOUT.pow(level as u32);
        for (index, entry) in (0..).zip(node) {
            match (entry, level) {
                (0, _) => {}
                (entry, 0) => walk.entries.push((base + index * span, entry)),
                (entry, _) => self.walk_node(entry, level - 1, base + index * span, owner, walk),
            }
        }
    }

    /// Finds pages and reads slots.
    pub fn salvage_inode_file(&mut self) {
        let root = self.word(self.geometry.inode_root()).unwrap_or(0);
        let count = self.word(self.geometry.inode_pages());
        let owner = |level: u64| Owner::Page { kind: PageKind::InodeNode, datum: level as u32 };
        let walk = self.walk(root, &owner);
        self.inode_tree_broken = walk.broken || root == 0;
        self.inode_nodes = walk.nodes;
        let most = MAX_INO.0 / SLOTS_PER_PAGE;
        let page = |index: u64| Owner::Page { kind: PageKind::InodePage, datum: index as u32 };
        let mut claims: BTreeMap<u64, u64> = BTreeMap::new();
        let raised = self.raised_pages(&walk.entries);
        for (index, block) in &walk.entries {
            self.see(*block);
            self.pages_found.insert(*index, *block);
            if let Copy::Intact(bytes) = self.copy_below(*block, Identity::Inodes { index: *index })
                && *index <= most
            {
                if let Some(later) = raised.get(index).filter(|later| self.follows(**later, &bytes))
                    && self.own(*later, page(*index))
                {
                    self.forget_below(*block);
                    self.actions.add(format!("inode file: page {index} came up; its old copy below goes"));
                    claims.insert(*index, *later);
                    continue;
                }
                self.inodes_below.insert(*block, bytes);
                claims.insert(*index, *block);
            }
        }
        // First the pages on which tree and table agree, then the pages that only the table names, then the
        // pages that only the tree names.
        for (index, block) in walk.entries.iter().filter(|(index, _)| *index <= most) {
            if self.owner(*block) == Some(page(*index)) && self.is_open(*block) && !claims.contains_key(index)
            {
                self.own(*block, page(*index));
                claims.insert(*index, *block);
            }
        }
        let agreed = claims.last_key_value().map_or(0, |(index, _)| index + 1);
        let mut told: Vec<(u64, u64)> = Vec::new();
        for (block, owner) in self.owned() {
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
            if fits && self.is_open(block) && self.block(block).is_some_and(|bytes| plausible(&bytes)) {
                self.own(block, page(index));
                claims.insert(index, block);
            }
        }
        self.pages = claims;
        self.read_pages();
    }

    /// Pages that only the block table names, by index. A fetch of a page leaves its copy below intact, and a
    /// demotion gives the PM block back: if both copies are there, the copy in PM is newer or equal.
    fn raised_pages(&self, entries: &[(u64, u64)]) -> BTreeMap<u64, u64> {
        let named: BTreeSet<u64> = entries.iter().map(|(_, block)| *block).collect();
        let owned = self.owned().into_iter().filter_map(|(block, owner)| match owner {
            Owner::Page { kind: PageKind::InodePage, datum } => Some((u64::from(datum), block)),
            _ => None,
        });
        // A block that the tree names as another page has a damaged table entry.
        owned.filter(|(_, block)| !named.contains(block)).collect()
    }

    /// Whether a block can hold a newer state of a page: the generation of a slot never falls.
    fn follows(&self, block: u64, before: &Bytes) -> bool {
        let generations = |bytes: &Bytes| {
            let slots = bytes.as_chunks::<{ SLOT_SIZE as usize }>().0.iter();
            let slots = slots.filter_map(|slot| InodeSlot::read_from_bytes(slot).ok());
            slots.map(|slot| slot.generation.get()).collect::<Vec<u32>>()
        };
        self.block(block).filter(|after| plausible(after)).is_some_and(|after| {
            generations(&after).iter().zip(generations(before)).all(|(after, before)| *after >= before)
        })
    }

    fn read_pages(&mut self) {
        let mut last = self.pages.last_key_value().map_or(0, |(index, _)| *index);
        let count = self.word(self.geometry.inode_pages()).unwrap_or(0);
        if count > last && count <= last + 64 {
            last = count - 1; // pages that neither tree nor table name
        }
        for index in 0..=last {
            let Some(bytes) = self.inode_page(index) else {
                if let Some(block) = self.pages.remove(&index)
                    && let Some(place) = self.new.get_mut(block as usize)
                {
                    *place = 0; // its content cannot be read: another block takes its place
                }
                self.lost_pages.insert(index);
                continue;
            };
            self.read_slots(index, &bytes);
        }
    }

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

    /// Walks the maps of all inodes in use.
    pub fn salvage_maps(&mut self) {
        let inos: Vec<u32> = self.slots.keys().chain(self.residues.keys()).copied().collect();
        for ino in inos {
            let Some(slot) = self.slots.get(&ino).or_else(|| self.residues.get(&ino)).copied() else {
                continue;
            };
            let map = self.walk_map(ino, &slot);
            if map.broken || !map.found.is_empty() || !map.nodes.is_empty() {
                self.maps.insert(ino, map);
            }
        }
    }

    fn walk_map(&mut self, ino: u32, slot: &InodeSlot) -> FileMap {
        let owner = |_: u64| Owner::Page { kind: PageKind::MapNode, datum: ino };
        let walk = self.walk(slot.root.get(), &owner);
        let mut map = FileMap { broken: walk.broken, ..FileMap::default() };
        map.nodes = walk.nodes.iter().map(|(block, _)| *block).collect();
        for (file_block, pointer) in (0u64..).zip(slot.direct) {
            let pointer = pointer.get();
            let entry = u64::from(pointer & !(1 << 31));
            if pointer != 0 {
                map.note(file_block, entry, pointer >> 31 == 1);
                self.see(entry);
            }
        }
        let direct = self.geometry.block_count() <= 1 << 31;
        for (file_block, entry) in walk.entries {
            let impossible = file_block > terrace_format::address::MAX_FILE_BLOCK.0
                || (direct && file_block < terrace_format::inode::DIRECT_BLOCKS);
            let place = entry & !terrace_format::inode::ENTRY_UNWRITTEN;
            self.see(place);
            if impossible {
                map.broken = true;
            } else {
                map.note(file_block, place, entry & terrace_format::inode::ENTRY_UNWRITTEN != 0);
            }
        }
        map
    }
}

impl FileMap {
    fn note(&mut self, file_block: u64, block: u64, unwritten: bool) {
        self.found.insert(file_block, super::work::Mapped { block, unwritten });
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
