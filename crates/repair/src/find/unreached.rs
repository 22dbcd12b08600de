//! Finds metadata pages on lower tiers whose parents are lost.
//!
//! If the parent of a page is lost, a search finds the page again: a chunk bitmap marks its device block, no
//! cold extent holds the block, and the seal proves which page it is. If the chunk bitmap is lost as well,
//! the page cannot be told from an older page in the same block. In a pool without keyed seals every user can
//! write a block with such a seal, so there the search takes no inode page and no key that gives privilege.

use super::below::MAX_READS;
use crate::state::Round;
use crate::state::inodes::known_type;
use crate::state::pool::Bytes;
use std::collections::BTreeSet;
use terrace_format::below::{Below, Identity, Words, unseal};
use terrace_format::device::FIRST_CHUNK_BLOCK;
use terrace_format::inode::{InodeSlot, SLOT_SIZE};
use terrace_format::keys::{ColdExtent, Key, Kind};
use terrace_format::page::Page;
use terrace_format::{DeviceBlock, DeviceId};
use zerocopy::FromBytes;

/// Looks for metadata pages below without a parent, when a page that could be their parent is lost.
pub(crate) fn find_unreached_below(round: &mut Round<'_>) {
    // A node overwritten with zeros looks sound and names no page: only the count of pages tells.
    let fewer = round.pool.word(round.pool.geometry.inode_pages()) != Some(round.inodes.pages.len() as u64);
    let lost =
        round.catalog.cells_lost || round.inodes.tree_broken || fewer || !round.inodes.lost_pages.is_empty();
    if !lost || !round.pool.superblock.has_metadata_below() || round.below.absent.is_some() {
        return;
    }
    let key = round.pool.superblock.seal_key();
    let (words, is_secret) = (Words::new(key), key.is_secret());
    let mut pages: Vec<(DeviceId, DeviceBlock, Bytes)> = Vec::new();
    for (device, block) in unexplained(round) {
        let mut tries = (0..MAX_READS).map(|_| round.pool.device_block(device.0.into(), block.0));
        let Some(bytes) = tries.find_map(|bytes| bytes) else {
            // As in `copy_below`: a device that answers no read may be back tomorrow.
            if round.pool.device_block(device.0.into(), 0).is_none() {
                round.below.absent = Some(device.0);
                return;
            }
            continue;
        };
        let is_leaf = leaf_found(round, &words, device, block, &bytes);
        if !is_leaf && is_secret && is_inode_page(&bytes) {
            pages.push((device, block, bytes));
        }
    }
    inode_pages_found(round, &words, &pages);
}

/// Device blocks that a chunk bitmap marks and no extent or location names: lost metadata pages, and
/// group summaries.
fn unexplained(round: &Round<'_>) -> BTreeSet<(DeviceId, DeviceBlock)> {
    let mut marked = BTreeSet::new();
    let mut named = BTreeSet::new();
    for (key, value) in &round.catalog.cells {
        match Key::split(key) {
            Some((chunk, kind, [device])) if kind == Kind::Chunk as u8 => {
                let blocks = u64::from(round.pool.geometry.chunk_blocks);
                let first = chunk.saturating_mul(blocks).saturating_add(FIRST_CHUNK_BLOCK.0);
                let end = round.pool.device_blocks((*device).into());
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
    named.extend(&round.below.places);
    let left = marked.difference(&named);
    left.map(|(device, block)| (DeviceId(*device), DeviceBlock(*block))).collect()
}

/// Whether a block holds a leaf of the catalog; then its keys are taken, where no tree has them.
fn leaf_found(
    round: &mut Round<'_>,
    words: &Words,
    device: DeviceId,
    block: DeviceBlock,
    bytes: &Bytes,
) -> bool {
    let key = round.pool.superblock.seal_key();
    let first = Page(bytes.clone());
    let first = first.cell(0).ok().and_then(|(key, _)| Key::split(key).map(|(ino, _, _)| ino));
    let Some(shard) = first.map(|ino| (ino % u64::from(round.pool.geometry.catalog_shards)) as u32) else {
        return false;
    };
    let identity = Identity::Catalog { shard };
    let Some(word) = words.find(bytes, identity, device, block) else { return false };
    let mut bytes = bytes.clone();
    if unseal(&mut bytes, &key, identity, word).is_err() {
        return false;
    }
    let Some(mut cells) =
        round.below.take_leaf(round.pool.geometry.catalog_shards.into(), shard, word, bytes)
    else {
        return false;
    };
    round.below.places.insert((device.0, block.0));
    if !key.is_secret() {
        let before = cells.len();
        cells.retain(|(key, _)| !gives_privilege(key));
        if cells.len() < before {
            let count = before - cells.len();
            round.actions.lose_some(format!(
                "catalog shard {shard}: {count} attributes or chunk keys of a page on device {device} are not taken: in \
                 a pool without keyed seals a user can have written them"
            ));
        }
    }
    round.actions.add(format!("catalog shard {shard}: a page on device {device} is found again"));
    if let Some(shard) = round.catalog.shards.get_mut(shard as usize) {
        shard.broken = true;
    }
    for (key, value) in cells {
        round.catalog.cells.entry(key).or_insert(value);
    }
    true
}

/// Finds, for each device block in `pages`, the lost page of the inode file that it holds.
fn inode_pages_found(round: &mut Round<'_>, words: &Words, pages: &[(DeviceId, DeviceBlock, Bytes)]) {
    if pages.is_empty() {
        return;
    }
    let key = round.pool.superblock.seal_key();
    // Page numbers end at the inode file's count, if that count is possible.
    let near =
        round.inodes.pages.last_key_value().map_or(0, |(index, _)| index + 1) + pages.len() as u64 + 64;
    let count = round.pool.word(round.pool.geometry.inode_pages()).filter(|count| (1..=near).contains(count));
    let mut lost: BTreeSet<u64> =
        (0..count.unwrap_or(near)).filter(|index| !round.inodes.pages.contains_key(index)).collect();
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
        round.actions.add(format!("inode file: page {index} is found again on device {device}"));
        round.below.places.insert((device.0, block.0));
        round.inodes.pages.insert(index, word);
        round.inodes.read_slots(index, &bytes);
        round.below.inodes.insert(word, bytes);
    }
    let last = round.inodes.pages.last_key_value().map_or(0, |(index, _)| *index);
    round.inodes.lost_pages.extend(lost.into_iter().filter(|index| *index <= last));
    round.inodes.lost_pages.retain(|index| !round.inodes.pages.contains_key(index));
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
