//! Writes the new state into the overlay: a tree that is sound and holds the right entries stays, every other
//! tree is built anew in free blocks.

use super::below::LeafBelow;
use super::keys::Sifted;
use super::work::{Cell, FileMap, Mapped, Stuck, Work};
use std::collections::{BTreeMap, BTreeSet};
use terrace_format::inode::{
    DIRECT_BLOCKS, ENTRY_UNWRITTEN, InodeSlot, ORPHAN_LISTS, RADIX_FANOUT, flag, pack_root, slot_offset,
};
use terrace_format::keys::{ColdExtent, Key};
use terrace_format::page::Page;
use terrace_format::table::{MASK_FULL, Owner, PageKind};
use terrace_format::{BLOCK_SIZE, PmBlock};
use zerocopy::{FromZeros, IntoBytes};

/// Bytes left free in new catalog pages, so that the first new keys need no split.
const SPARE: usize = 400;

impl Work<'_> {
    pub fn emit(&mut self, sifted: &mut Sifted) -> Result<(), Stuck> {
        self.emit_maps()?;
        self.emit_orphans();
        self.raise_changed_pages()?;
        self.emit_inode_file()?;
        self.emit_slots();
        self.emit_catalog(&sifted.kept)?;
        self.settle_partial(sifted);
        self.emit_table();
        Ok(())
    }

    fn put_new(&mut self, block: u64, bytes: &[u8]) {
        self.put(PmBlock(block).offset(), bytes);
    }

    fn emit_inode_file(&mut self) -> Result<(), Stuck> {
        for index in std::mem::take(&mut self.lost_pages) {
            if self.pages.contains_key(&index) {
                continue;
            }
            let owner = Owner::Page { kind: PageKind::InodePage, datum: index as u32 };
            let block = self.allocate(owner)?;
            self.put_new(block, &[0; BLOCK_SIZE as usize]);
            self.pages.insert(index, block);
            self.actions.lose_some(format!("inode file: page {index} is made anew"));
        }
        let count = self.pages.len() as u64;
        self.put(self.geometry.inode_pages(), &count.to_le_bytes());
        if self.inode_tree_broken || self.pages != self.pages_found {
            for (block, _) in std::mem::take(&mut self.inode_nodes) {
                self.release(block);
            }
            let entries = self.pages.iter().map(|(index, block)| (*index, *block)).collect();
            let owner = |level: u64| Owner::Page { kind: PageKind::InodeNode, datum: level as u32 };
            let root = self.build_radix(entries, &owner)?;
            self.put(self.geometry.inode_root(), &root.to_le_bytes());
            self.actions.add("inode file: its tree is built anew".into());
        }
        Ok(())
    }

    /// Builds a radix tree over entries in ascending order; gives its root word.
    fn build_radix(&mut self, entries: Vec<(u64, u64)>, owner: &dyn Fn(u64) -> Owner) -> Result<u64, Stuck> {
        let Some(last) = entries.last().map(|(index, _)| *index) else {
            return Ok(0);
        };
        let (mut level, mut entries) = (0u64, entries);
        loop {
            let mut nodes: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
            for (index, entry) in entries {
                let node =
                    nodes.entry(index / RADIX_FANOUT).or_insert_with(|| vec![0; RADIX_FANOUT as usize]);
                if let Some(place) = node.get_mut((index % RADIX_FANOUT) as usize) {
                    *place = entry;
                }
            }
            entries = Vec::new();
            for (number, words) in nodes {
                let block = self.allocate(owner(level))?;
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                self.put_new(block, &bytes);
                entries.push((number, block));
            }
            level += 1;
            if last < RADIX_FANOUT.saturating_pow(level as u32) {
                let root = entries.first().map_or(0, |(_, block)| *block);
                return Ok(pack_root(level as u8, root));
            }
        }
    }

    fn emit_maps(&mut self) -> Result<(), Stuck> {
        for ino in self.slots.keys().copied().collect::<Vec<u32>>() {
            let map = self.maps.remove(&ino);
            let same = map.as_ref().is_some_and(|map| !map.broken && map.found == map.entries);
            let Some(mut slot) = self.slots.get(&ino).copied().filter(|_| !same) else {
                if let Some(map) = map {
                    self.maps.insert(ino, map);
                }
                continue;
            };
            let map = map.unwrap_or_default();
            if !map.found.is_empty() || !map.entries.is_empty() || map.broken {
                let (before, after) = (map.found.len(), map.entries.len());
                let given_up = map.found.keys().filter(|block| !map.entries.contains_key(block)).count();
                if given_up > 0 {
                    let text = format!("{given_up} mapped blocks are another's or free; they are given up");
                    self.actions.lose(ino, text);
                }
                self.actions
                    .add(format!("inode {ino}: its map is built anew, {before} blocks before, {after} now"));
            }
            self.build_map(ino, &mut slot, map)?;
            self.slots.insert(ino, slot);
        }
        Ok(())
    }

    fn build_map(&mut self, ino: u32, slot: &mut InodeSlot, map: FileMap) -> Result<(), Stuck> {
        for block in map.nodes {
            self.release(block);
        }
        let has_direct = self.geometry.block_count() <= 1 << 31;
        slot.direct = Default::default();
        let mut entries = Vec::new();
        for (file_block, Mapped { block, unwritten }) in &map.entries {
            if has_direct && *file_block < DIRECT_BLOCKS {
                if let Some(place) = slot.direct.get_mut(*file_block as usize) {
                    *place = (*block as u32 | u32::from(*unwritten) << 31).into();
                }
            } else {
                entries.push((*file_block, if *unwritten { block | ENTRY_UNWRITTEN } else { *block }));
            }
        }
        let owner = |_: u64| Owner::Page { kind: PageKind::MapNode, datum: ino };
        slot.root = self.build_radix(entries, &owner)?.into();
        Ok(())
    }

    /// Orphan lists that do not hold their orphans, or not in order, are linked anew.
    fn emit_orphans(&mut self) {
        for list in 0..ORPHAN_LISTS {
            let mine = |ino: &u32| *ino as usize % ORPHAN_LISTS == list;
            let slots = self.slots.iter().filter(|(ino, slot)| mine(ino) && slot.has(flag::ORPHAN));
            let members: BTreeSet<u32> = slots.map(|(ino, _)| *ino).collect();
            if self.is_linked(list, &members) {
                continue;
            }
            self.actions.add(format!("orphan list {list}: linked anew, {} members", members.len()));
            let order: Vec<u32> = members.iter().copied().collect();
            for (ino, slot) in self.slots.iter_mut().filter(|(ino, _)| mine(ino)) {
                let at = order.binary_search(ino).ok();
                let next = at.and_then(|at| order.get(at + 1)).copied().unwrap_or(0);
                let previous = at.and_then(|at| order.get(at.checked_sub(1)?)).copied().unwrap_or(0);
                (slot.orphan_next, slot.orphan_previous) = (next.into(), previous.into());
            }
            let head = u64::from(order.first().copied().unwrap_or(0));
            self.put(self.geometry.orphan_head(list), &head.to_le_bytes());
        }
    }

    fn is_linked(&self, list: usize, members: &BTreeSet<u32>) -> bool {
        let Some(head) = self.word(self.geometry.orphan_head(list)) else {
            return false;
        };
        let mut seen = BTreeSet::new();
        let (mut at, mut previous) = (head, 0);
        while at != 0 {
            let Some(ino) = u32::try_from(at).ok().filter(|ino| members.contains(ino) && seen.insert(*ino))
            else {
                return false;
            };
            let Some(slot) = self.slots.get(&ino).filter(|slot| slot.orphan_previous.get() == previous)
            else {
                return false;
            };
            (at, previous) = (slot.orphan_next.get().into(), ino);
        }
        seen == *members
    }

    fn emit_slots(&mut self) {
        let numbers: BTreeSet<u32> = self.residues.keys().chain(self.slots.keys()).copied().collect();
        for ino in numbers {
            if let Some(slot) = self.settled_slot(ino) {
                self.put_slot(ino, &slot);
            }
        }
    }

    /// The slot of an inode after the repair; `None` where the slot was empty and stays empty.
    pub fn settled_slot(&self, ino: u32) -> Option<InodeSlot> {
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

    fn put_slot(&mut self, ino: u32, slot: &InodeSlot) {
        // A page that still lies below has no changed slot.
        if let Some(page) = self.pages.get(&Self::page_of(ino)).filter(|page| self.in_pool(**page)) {
            let place = slot_offset(PmBlock(*page).offset(), ino.into());
            self.put(place, slot.as_bytes());
        }
    }

    fn emit_catalog(&mut self, kept: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<(), Stuck> {
        let count = self.geometry.catalog_shards as usize;
        let mut cells: Vec<Vec<(&Vec<u8>, &Vec<u8>)>> = vec![Vec::new(); count];
        for (key, value) in kept {
            let home = Key::split(key).map_or(0, |(ino, _, _)| ino as usize % count.max(1));
            if let Some(shard) = cells.get_mut(home) {
                shard.push((key, value));
            }
        }
        for (number, (shard, cells)) in std::mem::take(&mut self.shards).into_iter().zip(cells).enumerate() {
            let found = shard.found.iter().map(|(key, value)| (key, value));
            if !shard.broken && found.eq(cells.iter().copied()) {
                continue;
            }
            for block in shard.pages {
                self.release(block);
            }
            let (before, after) = (shard.found.len(), cells.len());
            self.actions
                .add(format!("catalog shard {number}: built anew, {before} keys before, {after} now"));
            let root = self.build_shard(number as u32, &cells)?;
            self.put(self.geometry.shard_root(number as u32), &root.to_le_bytes());
        }
        Ok(())
    }

    /// Builds a B+tree over cells in key order; gives the location of its root.
    fn build_shard(&mut self, shard: u32, cells: &[(&Vec<u8>, &Vec<u8>)]) -> Result<u64, Stuck> {
        if cells.is_empty() {
            return Ok(0);
        }
        let leaves = self.take_leaves_below(shard);
        let mut children = self.build_leaves(shard, cells, &leaves)?;
        // A root must lie in PM.
        if let [(_, word)] = &children[..]
            && word.last().is_some_and(|device| *device != 0)
        {
            children = self.build_leaves(shard, cells, &BTreeMap::new())?;
        }
        let mut level = 1;
        while children.len() > 1 {
            children = self.build_level(shard, level, children)?;
            level += 1;
        }
        let root = children.pop().and_then(|(_, value)| <[u8; 8]>::try_from(value.as_slice()).ok());
        Ok(root.map_or(0, u64::from_le_bytes))
    }

    /// Builds the leaves of a shard, and leaves unchanged leaves below at their locations; gives the cells of
    /// the next level.
    fn build_leaves(
        &mut self,
        shard: u32,
        cells: &[(&Vec<u8>, &Vec<u8>)],
        below: &BTreeMap<Vec<u8>, LeafBelow>,
    ) -> Result<Vec<Cell>, Stuck> {
        let (mut parents, mut rest) = (Vec::new(), Vec::new());
        let mut at = 0;
        while let Some((key, value)) = cells.get(at) {
            let stays = below.get(*key).filter(|leaf| {
                let found = leaf.cells.iter().map(|(key, value)| (key, value));
                cells.get(at..at + leaf.cells.len()).is_some_and(|cells| found.eq(cells.iter().copied()))
            });
            if let Some(leaf) = stays {
                parents.extend(self.build_level(shard, 0, std::mem::take(&mut rest))?);
                parents.push(((*key).clone(), leaf.word.to_le_bytes().to_vec()));
                at += leaf.cells.len();
            } else {
                rest.push(((*key).clone(), (*value).clone()));
                at += 1;
            }
        }
        parents.extend(self.build_level(shard, 0, rest)?);
        Ok(parents)
    }

    /// Pages of one level; gives the cells of the next.
    fn build_level(&mut self, shard: u32, level: u8, cells: Vec<Cell>) -> Result<Vec<Cell>, Stuck> {
        let owner = Owner::Page { kind: PageKind::CatalogPage, datum: shard };
        let mut parents = Vec::new();
        let mut rest = cells.into_iter().peekable();
        while let Some((first, _)) = rest.peek().cloned() {
            let mut page = Page::new(level);
            // An inner page wants two children at least, or a level may not shrink.
            while let Some((key, value)) = rest.next_if(|(key, value)| {
                let size = Page::cell_size(key, value.len());
                page.count() < 2 && page.gap() >= size || page.gap() >= size + SPARE
            }) {
                let at = page.count();
                let key = if level > 0 && at == 0 { Vec::new() } else { key };
                if !page.insert(at, &key, &value) {
                    return Err(Stuck(format!("a cell of {} bytes fits no page", key.len() + value.len())));
                }
            }
            if page.count() == 0 {
                return Err(Stuck("a cell fits no page".into()));
            }
            let block = self.allocate(owner)?;
            self.put_new(block, &*page.0);
            parents.push((first, block.to_le_bytes().to_vec()));
        }
        Ok(parents)
    }

    /// Leaves in `partial` the blocks that stay partial shadows: written blocks over a written cold copy. A
    /// damaged mask cannot be told from a sound one. If catalog keys were lost, the cold copy may have gone
    /// with them: then the missing lines get zeros, because their bytes in PM may be those of another file.
    /// Otherwise the mask was damaged, and the block counts as whole.
    fn settle_partial(&mut self, sifted: &Sifted) {
        for (block, lines) in std::mem::take(&mut self.partial) {
            let owner = self.new.get(block as usize).and_then(|word| Owner::decode(*word));
            let Some(Owner::File { ino, block: file_block, unwritten: false }) = owner else {
                continue;
            };
            let Ok(ino) = u32::try_from(ino.0) else { continue };
            // A mask beside a damaged owner word is not believed.
            if self.table.get(block as usize) != self.new.get(block as usize) {
                continue;
            }
            let extents = sifted.extents.get(&ino).map_or(&[][..], Vec::as_slice);
            let below = |extent: &ColdExtent| extent.first <= file_block && file_block < extent.end();
            if extents.iter().any(|extent| !extent.unwritten && below(extent)) {
                self.partial.insert(block, lines);
            } else if self.cells_lost && self.slots.get(&ino).is_some_and(|slot| slot.has(flag::HAS_COLD)) {
                let text = format!("lines of block {file_block} went with its cold copy; they read as zeros");
                self.actions.lose(ino, text);
                for run in lines.missing().runs() {
                    self.put(PmBlock(block).offset().plus(run.start as u64), &vec![0; run.len()]);
                }
            }
        }
    }

    /// A block over a cold copy may have been a partial shadow: if its mask is lost, stale lines may show.
    fn note_lost_mask(&mut self, word: u64, mask: u64, entry: &[u8; 16]) {
        let was_whole = entry.ends_with(&MASK_FULL.to_le_bytes()) || self.checksummed(entry).is_some();
        let Some(Owner::File { ino, block, unwritten: false }) = Owner::decode(word) else { return };
        let Ok(ino) = u32::try_from(ino.0) else { return };
        let has_cold = self.slots.get(&ino).is_some_and(|slot| slot.has(flag::HAS_COLD));
        if mask == MASK_FULL && !was_whole && has_cold && self.superblock.has_partial_shadows() {
            self.actions
                .lose(ino, format!("all lines of block {block} are taken: which were written is lost"));
        }
    }

    fn emit_table(&mut self) {
        let fixed = Owner::Page { kind: PageKind::Fixed, datum: 0 }.encode();
        let first = self.geometry.first_pool_block().0;
        let start = self.geometry.table_offset();
        let new = std::mem::take(&mut self.new);
        for (line, words) in (0u64..).zip(new.chunks(4)) {
            let mut found = [0; 64];
            let (found, _) = found.split_at_mut(words.len() * 16);
            let at = start.plus(line * 64);
            let readable = self.overlay.read(&*self.devices.pm, at, found).is_ok();
            let mut wanted = Vec::with_capacity(64);
            for (block, (word, entry)) in (line * 4..).zip(words.iter().zip(found.as_chunks::<16>().0)) {
                let word = if block < first { fixed } else { *word };
                let partial = self.partial.get(&block).map_or(MASK_FULL, |lines| lines.0);
                let mask = if word == 0 { 0 } else { partial };
                let stays = entry.starts_with(&word.to_le_bytes())
                    && (word == 0 || entry.ends_with(&mask.to_le_bytes()))
                    || mask == MASK_FULL
                        && self.checksummed(entry).is_some_and(|owner| owner.encode() == word);
                if readable && stays {
                    wanted.extend_from_slice(entry);
                } else {
                    self.note_lost_mask(word, mask, entry);
                    wanted.extend_from_slice(&word.to_le_bytes());
                    wanted.extend_from_slice(&mask.to_le_bytes());
                }
            }
            self.put(at, &wanted);
        }
        self.new = new;
    }
}
