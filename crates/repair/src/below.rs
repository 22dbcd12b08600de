//! Metadata pages on lower tiers in a repair (design C1, docs/decisions/0014): an intact page stays at its
//! location while its content stays the same; a page that has to change gets a block in PM; a damaged page
//! counts as lost. This module writes no lower tier.
//!
//! If the parent of a page is lost, a search finds the page again: a chunk bitmap marks its device block, no
//! cold extent holds the block, and the seal proves which page it is. If the chunk bitmap is lost as well,
//! the page cannot be told from an older page in the same block. In a pool without keyed seals every user can
//! write a block with such a seal, so there the search takes no inode page and no key that gives privilege.

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

/// Reads of a page before its device counts as not answering.
const TRIES: usize = 3;

/// An intact catalog leaf on a lower tier.
pub(crate) struct LeafBelow {
    /// Its location.
    pub word: u64,
    pub cells: Vec<Cell>,
}

/// The page on a lower tier to which a location leads.
pub(crate) enum Copy {
    Intact(Bytes),
    /// The location is on a lower tier, and its page is not there.
    Lost,
    /// The location is not on a lower tier.
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
            // The first pointer to a page gets it; of two pointers to one page one is damaged.
            Found::Page(bytes) if self.places_below.insert((device.0, at.0)) => return Copy::Intact(bytes),
            Found::Page(_) | Found::Nowhere => "named twice".to_string(),
            Found::Other(what) => what,
            // A device that answers no read may be back tomorrow; a single unreadable block stays unreadable.
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

    /// The cells of a leaf below; `None` when the page is no leaf. The leaf may stay on its device if its
    /// cells stay the same.
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
        // A leaf with a chunk key or with a key of another shard must not lie below: its cells go into PM
        // with the rest.
        let stays = cells.iter().all(|(key, _)| {
            Key::split(key).is_some_and(|(ino, kind, _)| ino % shards == home && kind != Kind::Chunk as u8)
        });
        if let Some((first, _)) = cells.first().filter(|_| stays) {
            let leaves = self.leaves_below.entry(shard).or_default();
            leaves.insert(first.clone(), LeafBelow { word, cells: cells.clone() });
        }
        Some(cells)
    }

    /// Looks for metadata pages below without a parent, when a page that could be their parent is lost.
    pub fn find_unreached_below(&mut self) {
        // A node overwritten with zeros looks sound and names no page: only the count of pages tells.
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
                // As in `copy_below`: a device that answers no read may be back tomorrow.
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

    /// Device blocks that a chunk bitmap marks and no extent or location names: lost metadata pages, and
    /// group summaries.
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

    /// Finds, for each device block in `pages`, the lost page of the inode file that it holds.
    fn inode_pages_found(&mut self, words: &Words, pages: &[(DeviceId, DeviceBlock, Bytes)]) {
        if pages.is_empty() {
            return;
        }
        let key = self.superblock.seal_key();
        // Page numbers end at the inode file's count, if that count is possible.
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

    /// Forgets the leaves below of a shard, before the shard is walked again.
    pub fn forget_leaves_below(&mut self, shard: u32) {
        for leaf in self.take_leaves_below(shard).into_values() {
            self.forget_below(leaf.word);
        }
    }

    /// Forgets that a metadata page lies at a location: other content may have the device block.
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

/// Whether a key gives privilege: an attribute that grants rights, or a chunk bitmap, which guards blocks of
/// other files.
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

/// Whether each slot is free or has a known type.
fn is_inode_page(bytes: &Bytes) -> bool {
    slots(bytes).all(|slot| slot.is_free() || known_type(slot.mode.get()))
}
