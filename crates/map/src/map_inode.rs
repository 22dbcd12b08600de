//! The arguments and answers of a file map: an inode as the map sees it, and the place of a block.

use terrace_format::{Ino, PmBlock, PmOffset};

/// Where a block of a file lies in PM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mapping {
    /// The PM block.
    pub block: PmBlock,
    /// Allocated, but reads as zeros.
    pub unwritten: bool,
}

impl Mapping {
    /// A block with content.
    pub fn written(block: PmBlock) -> Mapping {
        Mapping { block, unwritten: false }
    }
}

/// The inode as a file map sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapInode {
    /// Its number.
    pub ino: Ino,
    /// Address of its 128-byte slot, whose direct pointers and root word belong to the map.
    pub slot: PmOffset,
    /// Whether blocks of it lie below PM. Most look-ups are then for absent blocks, and a table of all files asks memory
    /// before it reads PM.
    pub has_cold: bool,
}

impl MapInode {
    /// The slot of an inode whose page lies below PM and is read from a copy: such an inode maps no block of PM, and its map
    /// is read only. The address lies outside of every medium, so a store to it fails.
    pub const NOWHERE: PmOffset = PmOffset(1 << 62);

    /// Whether the inode maps no block, known without a look at PM.
    #[inline]
    pub fn is_nowhere(&self) -> bool {
        self.slot == MapInode::NOWHERE
    }
}
