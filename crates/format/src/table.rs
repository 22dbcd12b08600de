//! Block table: 16 bytes per PM block, the truth about allocation (design 4.2).
//!
//! Entry: owner word (8 bytes), mask of valid cache lines (8 bytes): all ones unless the block is a partial
//! shadow (lines.rs).
//! Owner word, from the top: 31 bits inode or metadata kind, 32 bits file block or kind's datum, 1 bit
//! unwritten. 0 is free.
//! With the feature data-checksums the second word of a whole written block may be the checksum of its data
//! instead of the mask. The unwritten bit is set then. Unwritten blocks have this bit, too, but always beside
//! a full mask.

use crate::address::{BLOCK_SIZE, FileBlock, Ino, MAX_INO};
use crate::checksum::{crc32c, crc32c_append};
use crate::lines::LineMask;

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

/// The owner of a PM block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Nobody.
    Free,
    /// A metadata page.
    Page {
        /// The kind of metadata.
        kind: PageKind,
        /// See [`PageKind`].
        datum: u32,
    },
    /// A block of a file.
    File {
        /// The file.
        ino: Ino,
        /// The file block.
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

    /// Decodes an owner word; `None` when it names an unknown kind or a free inode with content. A block with a checksum
    /// looks unwritten: only [`Entry::decode`] tells the two apart.
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

/// Checksum of the data in a PM block (feature data-checksums): CRC32C of its first `length` bytes, 1 to 4096. Bytes behind
/// them lie past the end of the file; appends store there in place, which a checksum of the whole block would not survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataChecksum {
    length: u16,
    crc: u32,
}

impl DataChecksum {
    /// Of the first `length` bytes of a block's content; `None` of no bytes.
    pub fn of(content: &[u8], length: usize) -> Option<DataChecksum> {
        let covered = content.get(..length.min(BLOCK_SIZE as usize))?;
        DataChecksum::from_crc(covered.len(), crc32c(covered))
    }
    /// From a CRC that is known already; `None` of no bytes, or of more than a block has.
    pub fn from_crc(length: usize, crc: u32) -> Option<DataChecksum> {
        let length = u16::try_from(length).ok().filter(|l| (1..=BLOCK_SIZE).contains(&u64::from(*l)))?;
        Some(DataChecksum { length, crc })
    }
    /// With the bytes that are stored behind those covered; `None` when the block would be longer than a block.
    #[must_use]
    pub fn append(self, bytes: &[u8]) -> Option<DataChecksum> {
        DataChecksum::from_crc(self.covered() + bytes.len(), crc32c_append(self.crc, bytes))
    }
    /// Bytes from the start of the block that it covers.
    pub fn covered(self) -> usize {
        usize::from(self.length)
    }
    /// The CRC of the covered bytes.
    pub fn crc(self) -> u32 {
        self.crc
    }
    /// The second word of the entry: length above, CRC below. Never all ones.
    pub fn encode(self) -> u64 {
        u64::from(self.length) << 32 | u64::from(self.crc)
    }
    /// The opposite; `None` of a word that is no checksum.
    pub fn decode(word: u64) -> Option<DataChecksum> {
        DataChecksum::from_crc((word >> 32) as usize, word as u32)
    }
}

/// An entry of the block table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The owner of the block.
    pub owner: Owner,
    /// The lines that it holds.
    pub lines: LineMask,
    /// Checksum of its data; only of written blocks of files that hold all lines.
    pub checksum: Option<DataChecksum>,
}

impl Entry {
    /// An entry without a checksum; a free block holds no lines.
    pub fn new(owner: Owner, lines: LineMask) -> Entry {
        let lines = if owner == Owner::Free { LineMask::EMPTY } else { lines };
        Entry { owner, lines, checksum: None }
    }
    /// Of a written block that holds all lines.
    pub fn with_checksum(owner: Owner, checksum: Option<DataChecksum>) -> Entry {
        Entry { owner, lines: LineMask::FULL, checksum }
    }
    /// The two words in the bytes of an entry.
    #[inline]
    pub fn words(bytes: &[u8; TABLE_ENTRY_SIZE as usize]) -> [u64; 2] {
        [bytes.first_chunk(), bytes.last_chunk()]
            .map(|word: Option<&[u8; 8]>| word.map_or(0, |word| u64::from_le_bytes(*word)))
    }
    /// Its two words.
    pub fn encode(self) -> [u64; 2] {
        match self.checksum {
            None => [self.owner.encode(), self.lines.0],
            Some(checksum) => {
                let can_have = matches!(self.owner, Owner::File { unwritten: false, .. });
                assert!(can_have && self.lines.is_full(), "checksum of {self:?}");
                [self.owner.encode() | 1, checksum.encode()]
            }
        }
    }
    /// Decodes two words; `None` where [`Owner::decode`] gives none. A mask is not judged.
    #[inline]
    pub fn decode([word, second]: [u64; 2]) -> Option<Entry> {
        let owner = Owner::decode(word)?;
        if let Owner::File { ino, block, unwritten: true } = owner
            && let Some(checksum) = DataChecksum::decode(second)
        {
            let owner = Owner::File { ino, block, unwritten: false };
            return Some(Entry::with_checksum(owner, Some(checksum)));
        }
        Some(Entry { owner, lines: LineMask(second), checksum: None })
    }
    /// Whether the two words may be those of a block that holds some lines only. Cheaper than to decode them.
    #[inline]
    pub fn may_be_partial([word, second]: [u64; 2]) -> bool {
        second != MASK_FULL && !(word & 1 == 1 && DataChecksum::decode(second).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_round_trip() {
        let file = |unwritten| Owner::File { ino: Ino(7), block: FileBlock(3), unwritten };
        let content = [9; BLOCK_SIZE as usize];
        for length in [1, 63, 4096] {
            let checksum = DataChecksum::of(&content, length);
            assert!(checksum.is_some());
            let entry = Entry::with_checksum(file(false), checksum);
            assert_eq!(Entry::decode(entry.encode()), Some(entry));
            assert!(!Entry::may_be_partial(entry.encode()));
        }
        assert_eq!(DataChecksum::of(&content, 0), None);
        for entry in [
            Entry::new(Owner::Free, LineMask::FULL),
            Entry::new(file(true), LineMask::FULL),
            Entry::new(file(false), LineMask(5)),
            Entry::new(file(false), LineMask(0x0000_1000_1234_5678)),
        ] {
            assert_eq!(Entry::decode(entry.encode()), Some(entry));
        }
        assert!(Entry::may_be_partial(Entry::new(file(false), LineMask(0x1000_1234_5678)).encode()));
        assert_eq!(DataChecksum::decode(u64::MAX), None);
        assert_eq!(DataChecksum::decode(0x1001 << 32), None);
    }

    #[test]
    fn appended_bytes_extend_a_checksum() {
        let content: Vec<u8> = (0..BLOCK_SIZE).map(|i| (i * 7) as u8).collect();
        let (begin, rest) = content.split_at(100);
        let begun = DataChecksum::of(begin, 100);
        assert_eq!(begun.and_then(|c| c.append(rest)), DataChecksum::of(&content, 4096));
        assert_eq!(begun.and_then(|c| c.append(&content)), None, "longer than a block");
    }

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
