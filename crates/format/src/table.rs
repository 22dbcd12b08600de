//! Block table: 16 bytes per PM block, the truth about allocation (design 4.2).
//!
//! Entry: owner word (8 bytes), mask of valid cache lines (8 bytes): all ones unless the
//! block is a partial shadow (lines.rs).
//! Owner word, from the top: 31 bits inode or metadata kind, 32 bits file block or kind's datum,
//! 1 bit unwritten. 0 is free.

use crate::address::{FileBlock, Ino, MAX_INO};

/// Bytes of a table entry.
pub const TABLE_ENTRY_SIZE: u64 = 16;
/// Mask of a block whose every line is valid.
pub const MASK_FULL: u64 = u64::MAX;

/// Metadata kinds, at the top of the 31-bit inode space. Stable numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum PageKind {
    /// Superblock, checkpoint, lanes, the table itself.
    Fixed = 0x7fff_ffff,
    /// Page of 32 inode slots; datum: page index in the inode file.
    InodePage = 0x7fff_fffe,
    /// Radix node of the inode file's map; datum: level.
    InodeNode = 0x7fff_fffd,
    /// Page of a catalog B+tree; datum: shard.
    CatalogPage = 0x7fff_fffc,
    /// Node of a file map; datum: inode number.
    MapNode = 0x7fff_fffb,
}

impl PageKind {
    fn from_number(number: u64) -> Option<PageKind> {
        [Self::Fixed, Self::InodePage, Self::InodeNode, Self::CatalogPage, Self::MapNode]
            .into_iter()
            .find(|kind| *kind as u64 == number)
    }
}

/// Who owns a PM block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Nobody.
    Free,
    /// A metadata page.
    Page {
        /// What it holds.
        kind: PageKind,
        /// See [`PageKind`].
        datum: u32,
    },
    /// A block of a file.
    File {
        /// The file.
        ino: Ino,
        /// Which block of it.
        block: FileBlock,
        /// Allocated, but reads as zeros.
        unwritten: bool,
    },
}

impl Owner {
    /// The owner word.
    pub fn encode(self) -> u64 {
        match self {
            Owner::Free => 0,
            Owner::Page { kind, datum } => ((kind as u64) << 33) | (u64::from(datum) << 1),
            Owner::File { ino, block, unwritten } => {
                debug_assert!(ino.0 != 0 && ino <= MAX_INO && block.0 <= u64::from(u32::MAX));
                (ino.0 << 33) | (block.0 << 1) | u64::from(unwritten)
            }
        }
    }

    /// Decodes an owner word; `None` when it names an unknown kind or a free inode with content.
    pub fn decode(word: u64) -> Option<Owner> {
        let (high, datum, unwritten) = (word >> 33, (word >> 1) & 0xffff_ffff, word & 1 == 1);
        if word == 0 {
            Some(Owner::Free)
        } else if high == 0 {
            None
        } else if high <= MAX_INO.0 {
            Some(Owner::File { ino: Ino(high), block: FileBlock(datum), unwritten })
        } else {
            PageKind::from_number(high).map(|kind| Owner::Page { kind, datum: datum as u32 })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_words_round_trip() {
        let owners = [
            Owner::Free,
            Owner::Page { kind: PageKind::Fixed, datum: 0 },
            Owner::Page { kind: PageKind::MapNode, datum: u32::MAX },
            Owner::File { ino: Ino(1), block: FileBlock(0), unwritten: false },
            Owner::File { ino: MAX_INO, block: FileBlock(0xffff_fffe), unwritten: true },
        ];
        for owner in owners {
            assert_eq!(Owner::decode(owner.encode()), Some(owner));
        }
        assert_eq!(Owner::decode(1), None);
        assert_eq!(Owner::decode(0x7fff_ff50 << 33), None);
    }
}
