//! Metadata pages on lower tiers that the walks found intact.
//!
//! Invariant: a device block is the location of one page at most.

use super::catalog::Cell;
use super::pool::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use terrace_format::below::Below;
use terrace_format::keys::{Key, Kind};
use terrace_format::page::Page;

/// An intact catalog leaf on a lower tier.
pub(crate) struct LeafBelow {
    /// Its location.
    pub word: u64,
    pub cells: Vec<Cell>,
}

/// Intact pages below.
#[derive(Default)]
pub(crate) struct PagesBelow {
    /// Locations of intact metadata pages below: device and block.
    pub places: BTreeSet<(u8, u64)>,
    /// Intact pages of the inode file below, by location.
    pub inodes: BTreeMap<u64, Bytes>,
    /// Leaves of each shard, by their first key.
    pub leaves: BTreeMap<u32, BTreeMap<Vec<u8>, LeafBelow>>,
    /// A device that holds metadata and does not answer.
    pub absent: Option<u8>,
}

impl PagesBelow {
    /// The cells of a leaf below; `None` when the page is no leaf. The leaf may stay on its device if its
    /// cells stay the same.
    pub fn take_leaf(&mut self, shards: u64, shard: u32, word: u64, bytes: Bytes) -> Option<Vec<Cell>> {
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
        // A leaf with a chunk key or with a key of another shard must not lie below: its cells go into PM
        // with the rest.
        let stays = cells.iter().all(|(key, _)| {
            Key::split(key).is_some_and(|(ino, kind, _)| ino % shards == home && kind != Kind::Chunk as u8)
        });
        if let Some((first, _)) = cells.first().filter(|_| stays) {
            let leaves = self.leaves.entry(shard).or_default();
            leaves.insert(first.clone(), LeafBelow { word, cells: cells.clone() });
        }
        Some(cells)
    }

    /// Forgets the leaves below of a shard, before the shard is walked again.
    pub fn forget_leaves(&mut self, shard: u32) {
        for leaf in self.take_leaves(shard).into_values() {
            self.forget(leaf.word);
        }
    }

    /// Forgets that a metadata page lies at a location: other content may have the device block.
    pub fn forget(&mut self, word: u64) {
        if let Some(place) = Below::decode(word) {
            self.places.remove(&(place.device.0, place.block.0));
        }
    }

    /// Leaves below of a shard by their first key, while it is built anew.
    pub fn take_leaves(&mut self, shard: u32) -> BTreeMap<Vec<u8>, LeafBelow> {
        self.leaves.remove(&shard).unwrap_or_default()
    }
}
