//! Shadows of cold extents: blocks of an extent that PM maps as well.

use crate::checker::{Checker, Node};
use crate::clustered_map::clustered_blocks_in;
use crate::cuckoo_map::cuckoo_blocks_in;
use crate::extent_map::extents_in;
use crate::inode_record::InodeRecord;
use crate::radix_map::Tree;
use crate::table_map::table_blocks_in;
use terrace_format::PmBlock;
use terrace_format::inode::{DIRECT_UNWRITTEN, ENTRY_UNWRITTEN, RADIX_FANOUT, unpack_root};
use terrace_format::map_kind::MapKind;
use terrace_format::table::Entry;

/// Blocks of an extent that have a PM mapping.
#[derive(Default)]
pub struct Shadows {
    /// A bit for each block of the extent that PM maps.
    pub any: u128,
    /// Blocks with written content: bit and PM block.
    pub places: Vec<(usize, u64)>,
}

impl Checker<'_> {
    /// The shadows among the (at most 128) blocks from `first` on.
    pub(crate) fn shadowed(&mut self, record: &InodeRecord, first: u64, count: u32) -> Shadows {
        match self.geometry.map {
            MapKind::Radix => shadowed_by_radix(self, record, first, count),
            MapKind::Cuckoo | MapKind::Clustered => {
                let mut shadows = Shadows::default();
                let end = first.saturating_add(count.min(128).into());
                let blocks = match self.geometry.map {
                    MapKind::Cuckoo => cuckoo_blocks_in(self, record, (first, end)),
                    _ => clustered_blocks_in(self, record, (first, end)),
                };
                for (block, place, unwritten) in blocks {
                    let bit = (block - first) as usize;
                    shadows.any |= 1u128 << bit;
                    if !unwritten {
                        shadows.places.push((bit, place));
                    }
                }
                shadows
            }
            MapKind::HashfsLinear | MapKind::Hashfs => {
                let mut shadows = Shadows::default();
                let end = first.saturating_add(count.min(128).into());
                for found in table_blocks_in(self, record, (first, end)) {
                    let bit = (found.block - first) as usize;
                    shadows.any |= 1u128 << bit;
                    if !found.unwritten {
                        shadows.places.push((bit, found.place));
                    }
                }
                shadows
            }
            MapKind::Extent => {
                let mut shadows = Shadows::default();
                let end = first.saturating_add(count.min(128).into());
                for extent in extents_in(self, record, (first, end)) {
                    for block in extent.first.max(first)..extent.end().min(end) {
                        let bit = (block - first) as usize;
                        shadows.any |= 1u128 << bit;
                        let place = extent.at(block).0;
                        if !extent.unwritten && self.in_pool(place) {
                            shadows.places.push((bit, place));
                        }
                    }
                }
                shadows
            }
        }
    }

    /// The whole shadows of a written extent. Partial shadows need their cold copies, and are noted.
    pub(crate) fn whole_shadows(&mut self, shadows: &Shadows) -> u128 {
        let mut whole = shadows.any;
        if !self.superblock.has_partial_shadows() {
            return whole;
        }
        for (bit, place) in &shadows.places {
            let mut words = [0; 16];
            let is_read = self.read(self.geometry.table_entry(PmBlock(*place)), &mut words);
            if is_read && Entry::may_be_partial(Entry::words(&words)) {
                self.over_cold.insert(*place);
                whole &= !(1u128 << *bit);
            }
        }
        whole
    }
}

fn shadowed_by_radix(checker: &mut Checker<'_>, record: &InodeRecord, first: u64, count: u32) -> Shadows {
    let mut shadows = Shadows::default();
    let mut leaf: Option<(u64, Node)> = None;
    for (bit, block) in (first..first.saturating_add(count.min(128).into())).enumerate() {
        let direct = usize::try_from(block).ok().and_then(|at| record.direct.get(at));
        let direct = direct.filter(|_| checker.has_direct());
        let entry = match direct {
            Some(pointer) => u64::from(*pointer),
            None => {
                let number = block / RADIX_FANOUT;
                if leaf.as_ref().is_none_or(|(at, _)| *at != number) {
                    let node = leaf_of(checker, record.root, number).unwrap_or_default();
                    leaf = Some((number, node));
                }
                let within = (block % RADIX_FANOUT) as usize;
                leaf.as_ref().and_then(|(_, node)| node.get(within)).copied().unwrap_or(0)
            }
        };
        assert!(bit < 128, "a shadow beyond the bits of an extent");
        shadows.any |= u128::from(entry != 0) << bit;
        let place = entry & if direct.is_some() { !u64::from(DIRECT_UNWRITTEN) } else { !ENTRY_UNWRITTEN };
        if entry == place && checker.in_pool(place) {
            shadows.places.push((bit, place));
        }
    }
    shadows
}

/// The leaf node with the given number (index / 512). The walk has reported damage on the path already.
fn leaf_of(checker: &mut Checker<'_>, root: u64, number: u64) -> Option<Node> {
    let (height, mut block) = unpack_root(root);
    let height = u64::from(height);
    if height == 0 || height > Tree::MAX_HEIGHT || number >= RADIX_FANOUT.pow(height as u32 - 1) {
        return None;
    }
    for level in (0..height).rev() {
        if !checker.in_pool(block) {
            return None;
        }
        let node = checker.node(block)?;
        if level == 0 {
            return Some(node);
        }
        let index = number / RADIX_FANOUT.pow(level as u32 - 1) % RADIX_FANOUT;
        block = *node.get(index as usize)?;
    }
    None
}
