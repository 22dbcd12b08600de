//! Metadata pages on lower tiers in a repair (design C1, docs/decisions/0014): those that are intact stay where they are as
//! long as nothing of them changes; one that has to change comes into PM; one that is damaged counts as lost. No lower tier
//! is written.
//!
//! Where the page that led to one is lost it is found again: its place is marked in a chunk bitmap, no extent has it, and
//! its own seal says what it is. Without that bitmap it cannot be told from what lay there before. In a pool without keyed
//! seals every user can write a block with such a seal: nothing that gives privilege is taken there.

use super::inode_file::known_type;
use super::work::{Bytes, Cell, Work};
use std::collections::{BTreeMap, BTreeSet};
use terrace_check::below::{Found, place_of, read};
use terrace_format::below::{Below, Identity, Words, unseal};
use terrace_format::device::FIRST_CHUNK_BLOCK;
use terrace_format::inode::{InodeSlot, SLOT_SIZE, SLOTS_PER_PAGE};
use terrace_format::keys::{ColdExtent, Key, Kind};
use terrace_format::page::Page;
use terrace_format::table::{Owner, PageKind};
use terrace_format::{DeviceBlock, DeviceId, PmBlock};
use zerocopy::{FromBytes, IntoBytes};

/// How often a page is read that its device does not give.
const TRIES: usize = 3;

/// A leaf below that is intact.
pub(crate) struct LeafBelow {
    /// Its location.
    pub word: u64,
    pub cells: Vec<Cell>,
}

/// What a location leads to.
pub(crate) enum Copy {
    Intact(Bytes),
    /// It is a place below, and the page is not there.
    Lost,
    /// No place below.
    Elsewhere,
}

impl Work<'_> {
    /// Follows a location.
    pub fn copy_below(&mut self, word: u64, identity: Identity) -> Copy {
        let Some(place) = place_of(&self.superblock, word) else { return Copy::Elsewhere };
        let (device, at) = (place.device, place.block);
        let mut found = Found::Nowhere;
        for _ in 0..TRIES {
            found = read(self.devices, &self.superblock, word, identity);
            if !matches!(found, Found::Unreadable(Some(_))) {
                break;
            }
        }
        let why = match found {
            // Of two that name it one is damaged.
            Found::Page(bytes) if self.places_below.insert((device.0, at.0)) => return Copy::Intact(bytes),
            Found::Page(_) | Found::Nowhere => "named twice".to_string(),
            Found::Other(what) => what,
            // A device that gives nothing may be back tomorrow: one block that cannot be read will not.
            Found::Unreadable(Some(error)) if self.device_block(device.0.into(), 0).is_some() => error,
            Found::Unreadable(_) => {
                self.absent.get_or_insert(device.0);
                return Copy::Lost;
            }
        };
        self.actions.lose_some(format!("a metadata page on device {device}, block {at}, is lost: {why}"));
        Copy::Lost
    }

    /// The content of a page of the inode file, wherever it lies.
    pub fn inode_page(&self, index: u64) -> Option<Bytes> {
        let place = *self.pages.get(&index)?;
        self.inodes_below.get(&place).cloned().or_else(|| self.block(place))
    }

    /// The cells of a leaf below; `None` when it is no leaf. It may stay there if what it says does not change.
    pub fn take_leaf_below(&mut self, shard: u32, word: u64, bytes: Bytes) -> Option<Vec<Cell>> {
        let page = Page(bytes);
        if page.verify_header("").is_err() || page.level() != 0 {
            return None;
        }
        let cells = (0..page.count()).map(|index| {
            let (key, value) = page.cell(index).ok()?;
            Some((key.to_vec(), value.to_vec()))
        });
        let cells: Vec<Cell> = cells.collect::<Option<_>>()?;
        let home = u64::from(shard);
        let shards = u64::from(self.geometry.catalog_shards);
        // What may not lie below, or not in this tree, is written into PM with the rest.
        let stays = cells.iter().all(|(key, _)| {
            Key::split(key).is_some_and(|(ino, kind, _)| ino % shards == home && kind != Kind::Chunk as u8)
        });
        if let Some((first, _)) = cells.first().filter(|_| stays) {
            let leaves = self.leaves_below.entry(shard).or_default();
            leaves.insert(first.clone(), LeafBelow { word, cells: cells.clone() });
        }
        Some(cells)
    }

    /// Looks for pages below that nothing leads to, when something that leads to such pages is lost.
    pub fn find_unreached_below(&mut self) {
        // A node of zeros is sound, and leads nowhere.
        let fewer = self.word(self.geometry.inode_pages()) != Some(self.pages.len() as u64);
        let lost = self.cells_lost || self.inode_tree_broken || fewer || !self.lost_pages.is_empty();
        if !lost || !self.superblock.has_metadata_below() || self.absent.is_some() {
            return;
        }
        let key = self.superblock.seal_key();
        let (words, is_secret) = (Words::new(key), key.is_secret());
        let mut pages: Vec<(DeviceId, DeviceBlock, Bytes)> = Vec::new();
        for (device, block) in self.unexplained() {
            let mut tries = (0..TRIES).map(|_| self.device_block(device.0.into(), block.0));
            let Some(bytes) = tries.find_map(|bytes| bytes) else {
                // As where a pointer leads: what a device that gives nothing holds may be back tomorrow.
                if self.device_block(device.0.into(), 0).is_none() {
                    self.absent = Some(device.0);
                    return;
                }
                continue;
            };
            let is_leaf = self.leaf_found(&words, device, block, &bytes);
            if !is_leaf && is_secret && is_inode_page(&bytes) {
                pages.push((device, block, bytes));
            }
        }
        self.inode_pages_found(&words, &pages);
    }

    /// Device blocks that chunk bitmaps say are in use and nothing found names: lost metadata, and group summaries.
    fn unexplained(&self) -> BTreeSet<(DeviceId, DeviceBlock)> {
        let mut marked = BTreeSet::new();
        let mut named = BTreeSet::new();
        for (key, value) in &self.cells {
            match Key::split(key) {
                Some((chunk, kind, [device])) if kind == Kind::Chunk as u8 => {
                    let blocks = u64::from(self.geometry.chunk_blocks);
                    let first = chunk.saturating_mul(blocks).saturating_add(FIRST_CHUNK_BLOCK.0);
                    let end = self.device_blocks((*device).into());
                    let bits = (0u64..).zip(value).flat_map(|(at, byte)| {
                        (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| at * 8 + bit)
                    });
                    let places = bits.filter(|bit| *bit < blocks).map(|bit| first.saturating_add(bit));
                    marked.extend(places.filter(|place| *place < end).map(|place| (*device, place)));
                }
                Some((_, kind, _)) if kind == Kind::Cold as u8 => {
                    if let Ok(extent) = ColdExtent::decode(key, value) {
                        let places = (extent.start.0..).take(extent.length as usize);
                        named.extend(places.map(|place| (extent.device.0, place)));
                    }
                }
                _ => {}
            }
        }
        named.extend(&self.places_below);
        let left = marked.difference(&named);
        left.map(|(device, block)| (DeviceId(*device), DeviceBlock(*block))).collect()
    }

    /// Whether a block holds a leaf of the catalog; then its keys are taken, where no tree has them.
    fn leaf_found(&mut self, words: &Words, device: DeviceId, block: DeviceBlock, bytes: &Bytes) -> bool {
        let key = self.superblock.seal_key();
        let first = Page(bytes.clone());
        let first = first.cell(0).ok().and_then(|(key, _)| Key::split(key).map(|(ino, _, _)| ino));
        let Some(shard) = first.map(|ino| (ino % u64::from(self.geometry.catalog_shards)) as u32) else {
            return false;
        };
        let identity = Identity::Catalog { shard };
        let Some(word) = words.find(bytes, identity, device, block) else { return false };
        let mut bytes = bytes.clone();
        if unseal(&mut bytes, &key, identity, word).is_err() {
            return false;
        }
        let Some(mut cells) = self.take_leaf_below(shard, word, bytes) else { return false };
        self.places_below.insert((device.0, block.0));
        if !key.is_secret() {
            let before = cells.len();
            cells.retain(|(key, _)| !gives_privilege(key));
            if cells.len() < before {
                let count = before - cells.len();
                self.actions.lose_some(format!(
                    "catalog shard {shard}: {count} attributes or chunk keys of a page on device {device} are not taken: in \
                     a pool without keyed seals a user can have written them"
                ));
            }
        }
        self.actions.add(format!("catalog shard {shard}: a page on device {device} is found again"));
        if let Some(shard) = self.shards.get_mut(shard as usize) {
            shard.broken = true;
        }
        for (key, value) in cells {
            self.cells.entry(key).or_insert(value);
        }
        true
    }

    /// Which pages of the inode file these are, among those that are lost.
    fn inode_pages_found(&mut self, words: &Words, pages: &[(DeviceId, DeviceBlock, Bytes)]) {
        if pages.is_empty() {
            return;
        }
        let key = self.superblock.seal_key();
        // As many as the count says, if there can be as many.
        let near = self.pages.last_key_value().map_or(0, |(index, _)| index + 1) + pages.len() as u64 + 64;
        let count = self.word(self.geometry.inode_pages()).filter(|count| (1..=near).contains(count));
        let mut lost: BTreeSet<u64> =
            (0..count.unwrap_or(near)).filter(|index| !self.pages.contains_key(index)).collect();
        for (device, block, bytes) in pages {
            let found = lost.iter().find_map(|index| {
                let word = words.find(bytes, Identity::Inodes { index: *index }, *device, *block)?;
                let free = has_free_slot(bytes) == Below::decode(word)?.free_slots;
                free.then_some((*index, word))
            });
            let Some((index, word)) = found else { continue };
            let mut bytes = bytes.clone();
            if unseal(&mut bytes, &key, Identity::Inodes { index }, word).is_err() {
                continue;
            }
            lost.remove(&index);
            self.actions.add(format!("inode file: page {index} is found again on device {device}"));
            self.places_below.insert((device.0, block.0));
            self.pages.insert(index, word);
            self.read_slots(index, &bytes);
            self.inodes_below.insert(word, bytes);
        }
        let last = self.pages.last_key_value().map_or(0, |(index, _)| *index);
        self.lost_pages.extend(lost.into_iter().filter(|index| *index <= last));
        self.lost_pages.retain(|index| !self.pages.contains_key(index));
    }

    /// Brings into PM the pages of the inode file below in which a slot changes.
    pub fn raise_changed_pages(&mut self) -> Result<(), super::work::Stuck> {
        for (word, bytes) in std::mem::take(&mut self.inodes_below) {
            let Some(index) = self.pages.iter().find(|(_, place)| **place == word).map(|(index, _)| *index)
            else {
                continue;
            };
            let slots = bytes.as_chunks::<{ SLOT_SIZE as usize }>().0;
            let mut numbers = (index * SLOTS_PER_PAGE..).zip(slots);
            let same = numbers.all(|(ino, found)| {
                let settled = u32::try_from(ino).ok().and_then(|ino| self.settled_slot(ino));
                settled.is_none_or(|slot| slot.as_bytes() == found)
            });
            if same {
                continue;
            }
            let block = self.allocate(Owner::Page { kind: PageKind::InodePage, datum: index as u32 })?;
            self.put(PmBlock(block).offset(), bytes.as_slice());
            self.pages.insert(index, block);
            self.actions.add(format!("inode file: page {index} comes up from a lower tier"));
        }
        Ok(())
    }

    /// Before a shard is walked again.
    pub fn forget_leaves_below(&mut self, shard: u32) {
        for leaf in self.take_leaves_below(shard).into_values() {
            self.forget_below(leaf.word);
        }
    }

    /// Leaves a place to others.
    pub fn forget_below(&mut self, word: u64) {
        if let Some(place) = Below::decode(word) {
            self.places_below.remove(&(place.device.0, place.block.0));
        }
    }

    /// Leaves below of a shard by their first key, while it is built anew.
    pub fn take_leaves_below(&mut self, shard: u32) -> BTreeMap<Vec<u8>, LeafBelow> {
        self.leaves_below.remove(&shard).unwrap_or_default()
    }
}

fn slots(bytes: &Bytes) -> impl Iterator<Item = InodeSlot> {
    bytes
        .as_chunks::<{ SLOT_SIZE as usize }>()
        .0
        .iter()
        .filter_map(|slot| InodeSlot::read_from_bytes(slot).ok())
}

/// A key that decides what somebody may do, or where others' blocks lie.
fn gives_privilege(key: &[u8]) -> bool {
    const SPACES: [&[u8]; 3] = [b"security.", b"trusted.", b"terrace."];
    Key::split(key).is_none_or(|(_, kind, sub)| {
        let of_system = SPACES.iter().any(|space| sub.starts_with(space));
        kind == Kind::Chunk as u8 || kind == Kind::Xattr as u8 && of_system
    })
}

fn has_free_slot(bytes: &Bytes) -> bool {
    slots(bytes).any(|slot| slot.is_free())
}

/// Slots that can be.
fn is_inode_page(bytes: &Bytes) -> bool {
    slots(bytes).all(|slot| slot.is_free() || known_type(slot.mode.get()))
}
