//! Witnesses about the blocks of files beside the file map: line masks of the block table, the cold map, and block counts.

use crate::state::Round;
use crate::state::maps::Mapped;
use std::collections::BTreeMap;
use terrace_format::keys::{ColdExtent, Key};
use terrace_format::table::Owner;
use terrace_format::{FileBlock, Ino};

/// The cold extents of an inode up to a file block.
fn extents(round: &Round<'_>, ino: Ino, to: FileBlock) -> impl DoubleEndedIterator<Item = ColdExtent> {
    let cells = round.catalog.cells.range(Key::cold(ino, FileBlock(0)).0..Key::cold(ino, to.plus(1)).0);
    cells.filter_map(|(key, value)| ColdExtent::decode(key, value).ok())
}

/// The extent with a file block.
fn extent_of(round: &Round<'_>, ino: Ino, block: FileBlock) -> Option<ColdExtent> {
    extents(round, ino, block).next_back().filter(|extent| block < extent.end())
}

/// Whether a file block lies below.
pub(crate) fn is_cold(round: &Round<'_>, ino: Ino, block: FileBlock) -> bool {
    extent_of(round, ino, block).is_some()
}

/// Whether the line mask of a PM block fits its owner by the block table: little damage makes a free entry look owned. A partial
/// shadow lies over a written cold block.
pub(crate) fn is_confirmed(round: &Round<'_>, block: u64, owner: Owner) -> bool {
    if round.owners.is_whole(block) {
        return true;
    }
    let Owner::File { ino, block: place, unwritten: false } = owner else { return false };
    round.owners.partial(block).is_some()
        && extent_of(round, ino, place).is_some_and(|extent| !extent.unwritten)
}

/// The number of blocks of an inode with these in PM: in PM or below, each once.
pub(crate) fn count_blocks(round: &Round<'_>, ino: u32, in_pm: &BTreeMap<u64, Mapped>) -> u64 {
    let cold = extents(round, Ino(ino.into()), FileBlock(u64::from(u32::MAX) - 1)).map(|extent| {
        let shadows = in_pm.range(extent.first.0..extent.end().0).count() as u64;
        u64::from(extent.length) - shadows
    });
    in_pm.len() as u64 + cold.sum::<u64>()
}
