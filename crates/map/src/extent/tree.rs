//! The parts of an extent tree that reading and changing share: sizes, owners.

use crate::pages::Pages;
use std::sync::Arc;
use terrace_blocks::BlockPool;
use terrace_format::extent_map::NODE_ENTRIES;
use terrace_format::record::write_size;
use terrace_format::table::{Owner, PageKind, TABLE_ENTRY_SIZE};
use terrace_format::{Ino, PmBlock};
use terrace_wal::{Result, Tx};

/// Most extents that room is made for: a split leaf has more free places.
pub(super) const MOST_ROOM: usize = NODE_ENTRIES / 2 - 2;
/// Most blocks that a change may map, each an extent of its own, and most runs that it may remove from the midst of
/// extents: less than the room, for the last block of a file that is changed beside.
pub(super) const MOST_BLOCKS: usize = MOST_ROOM - 6;
/// Bytes of a changed entry in a record.
pub(super) const ENTRY_BYTES: usize = write_size(16);
/// Bytes of the changed head of a node in a record: its number of entries, and the whole order.
pub(super) const HEAD_BYTES: usize = write_size(8) + write_size(NODE_ENTRIES);
/// Bytes of a freed node in a record: its owner.
pub(super) const FREED_BYTES: usize = write_size(TABLE_ENTRY_SIZE as usize);

/// The extent-tree file map.
pub struct ExtentTree {
    pub(super) pages: Pages,
}

impl ExtentTree {
    /// The extent trees of a pool.
    pub fn new(blocks: Arc<BlockPool>) -> ExtentTree {
        ExtentTree { pages: Pages::new(blocks) }
    }

    pub(super) fn check_owner(&self, tx: Option<&Tx>, ino: Ino, node: PmBlock) -> Result<()> {
        let page = || format!("extent node {node} of inode {ino}");
        self.pages.check_owner(tx, node, node_owner(ino), &page)
    }
}

pub(super) fn node_owner(ino: Ino) -> Owner {
    Owner::Page { kind: PageKind::MapNode, datum: ino.0 as u32 }
}
