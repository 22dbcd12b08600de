//! Catalog keys and values: one key space (inode, kind, sub-key), compared as bytes (design 4.3).
//!
//! | kind | sub-key | value |
//! |---|---|---|
//! | 1 dentry | cookie u64 BE | inode u32 LE, file type u8 (mode >> 12), name |
//! | 2 xattr | name, 0, part u16 BE | part 0: total length u32 LE, then bytes; other parts: bytes |
//! | 3 symlink | part u16 BE | bytes of the target |
//! | 4 cold extent | first file block u32 BE | [`ColdExtent`] |
//! | 5 intent | first file block u32 BE | generation u32 LE, end block u64 LE |
//! | 6 chunk | device u8 (the inode field holds the chunk number) | bitmap of used blocks |

use crate::address::{DeviceBlock, DeviceId, FileBlock, Ino, MAX_FILE_BLOCK};
use crate::corrupt::Corrupt;

/// Kinds of keys. Stable numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// Name in a directory.
    Dentry = 1,
    /// Extended attribute.
    Xattr = 2,
    /// Target of a symbolic link.
    Symlink = 3,
    /// Blocks on a lower tier.
    Cold = 4,
    /// Range that a truncation removes in the background.
    Intent = 5,
    /// Allocation of a chunk.
    Chunk = 6,
}

/// Longest value bytes in one key; longer contents are split into parts.
pub const MAX_VALUE: usize = 1024;
/// Longest key: 5 bytes, an xattr name of 255 bytes, a zero and a part number.
pub const MAX_KEY: usize = 5 + 255 + 3;

/// An encoded key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(pub Vec<u8>);

impl Key {
    /// A key of the given parts.
    pub fn new(ino: u64, kind: Kind, sub: &[u8]) -> Key {
        let mut bytes = Vec::with_capacity(5 + sub.len());
        bytes.extend_from_slice(&(ino as u32).to_be_bytes());
        bytes.push(kind as u8);
        bytes.extend_from_slice(sub);
        Key(bytes)
    }
    /// The bytes of an encoded key that name its inode and kind; all bytes of a shorter one.
    pub fn of_kind(key: &[u8]) -> &[u8] {
        key.get(..5).unwrap_or(key)
    }
    /// Name in a directory.
    pub fn dentry(directory: Ino, cookie: u64) -> Key {
        Key::new(directory.0, Kind::Dentry, &cookie.to_be_bytes())
    }
    /// Part of an extended attribute.
    pub fn xattr(ino: Ino, name: &[u8], part: u16) -> Key {
        let mut sub = name.to_vec();
        sub.push(0);
        sub.extend_from_slice(&part.to_be_bytes());
        Key::new(ino.0, Kind::Xattr, &sub)
    }
    /// Part of a symlink's target.
    pub fn symlink(ino: Ino, part: u16) -> Key {
        Key::new(ino.0, Kind::Symlink, &part.to_be_bytes())
    }
    /// Cold extent.
    pub fn cold(ino: Ino, first: FileBlock) -> Key {
        Key::new(ino.0, Kind::Cold, &(first.0 as u32).to_be_bytes())
    }
    /// Truncation intent.
    pub fn intent(ino: Ino, first: FileBlock) -> Key {
        Key::new(ino.0, Kind::Intent, &(first.0 as u32).to_be_bytes())
    }
    /// Chunk allocation.
    pub fn chunk(chunk: u64, device: DeviceId) -> Key {
        Key::new(chunk, Kind::Chunk, &[device.0])
    }
    /// The inode (or chunk) number, kind byte and sub-key; `None` when too short.
    pub fn split(bytes: &[u8]) -> Option<(u64, u8, &[u8])> {
        let (ino, rest) = bytes.split_first_chunk::<4>()?;
        let (kind, sub) = rest.split_first()?;
        Some((u64::from(u32::from_be_bytes(*ino)), *kind, sub))
    }
    /// The sub-key read as a big-endian number.
    pub fn sub_number(bytes: &[u8]) -> Option<u64> {
        let (_, _, sub) = Key::split(bytes)?;
        (sub.len() <= 8).then(|| sub.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }
}

/// Most truncation intents of an inode (design T7).
pub const MAX_INTENTS: usize = 4;

/// Longest cold extent in blocks, so that its value fits [`MAX_VALUE`].
pub const MAX_EXTENT_BLOCKS: u32 = 128;

/// Blocks of a file on a lower tier, with the CRC32C of each (design 4.5). The CRCs lie in the
/// extent's own value: docs/decisions/0001-cold-checksums-inline.md.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColdExtent {
    /// First file block (from the key).
    pub first: FileBlock,
    /// Blocks, 1 to [`MAX_EXTENT_BLOCKS`].
    pub length: u32,
    /// The device.
    pub device: DeviceId,
    /// First block there.
    pub start: DeviceBlock,
    /// Allocated by fallocate: reads as zeros, has no checksums.
    pub unwritten: bool,
    /// CRC32C per block; empty when unwritten.
    pub crcs: Vec<u32>,
}

impl ColdExtent {
    /// The file block behind the last block of the extent.
    pub fn end(&self) -> FileBlock {
        self.first.plus(u64::from(self.length))
    }

    /// The part of it inside `from..to` (file blocks); `None` when empty.
    pub fn slice(&self, from: FileBlock, to: FileBlock) -> Option<ColdExtent> {
        let (from, to) = (from.max(self.first), to.min(self.end()));
        if from >= to {
            return None;
        }
        let (skip, length) = ((from.0 - self.first.0) as usize, (to.0 - from.0) as usize);
        Some(ColdExtent {
            first: from,
            length: length as u32,
            device: self.device,
            start: self.start.plus(skip as u64),
            unwritten: self.unwritten,
            crcs: self.crcs.iter().skip(skip).take(length).copied().collect(),
        })
    }

    /// The value: length u16, device u8, flags u8 (1 unwritten), spare u32, start u64, CRCs u32 each.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(16 + 4 * self.crcs.len());
        value.extend_from_slice(&(self.length as u16).to_le_bytes());
        value.push(self.device.0);
        value.push(u8::from(self.unwritten));
        value.extend_from_slice(&[0; 4]);
        value.extend_from_slice(&self.start.0.to_le_bytes());
        for crc in &self.crcs {
            value.extend_from_slice(&crc.to_le_bytes());
        }
        value
    }

    /// Decodes a key and value.
    ///
    /// # Errors
    /// A value that cannot be.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<ColdExtent, Corrupt> {
        let wrong =
            |what: &str| Corrupt::new(format!("cold extent {key:02x?}"), what, format!("{value:02x?}"));
        let first = Key::sub_number(key).ok_or_else(|| wrong("a file block as sub-key"))?;
        let (head, crcs) = value.split_first_chunk::<16>().ok_or_else(|| wrong("at least 16 bytes"))?;
        let [l0, l1, device, flags, _, _, _, _, start @ ..] = *head;
        let length = u32::from(u16::from_le_bytes([l0, l1]));
        if length == 0 || length > MAX_EXTENT_BLOCKS || flags > 1 {
            return Err(wrong("1 to 128 blocks and known flags"));
        }
        let crcs: Vec<u32> = crcs.as_chunks::<4>().0.iter().map(|c| u32::from_le_bytes(*c)).collect();
        if crcs.len() != if flags == 1 { 0 } else { length as usize } {
            return Err(wrong("a checksum per written block"));
        }
        let start = u64::from_le_bytes(start);
        // So that no sum of block numbers overflows.
        if first > MAX_FILE_BLOCK.0 || start.checked_add(u64::from(length)).is_none() {
            return Err(wrong("blocks that can be"));
        }
        Ok(ColdExtent {
            first: FileBlock(first),
            length,
            device: DeviceId(device),
            start: DeviceBlock(start),
            unwritten: flags == 1,
            crcs,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_round_trip_and_slice() {
        let extent = ColdExtent {
            first: FileBlock(10),
            length: 4,
            device: DeviceId(1),
            start: DeviceBlock(100),
            unwritten: false,
            crcs: vec![1, 2, 3, 4],
        };
        let key = Key::cold(Ino(3), extent.first);
        assert_eq!(ColdExtent::decode(&key.0, &extent.encode()), Ok(extent.clone()));
        let middle = extent.slice(FileBlock(11), FileBlock(13));
        assert_eq!(middle.as_ref().map(|m| (m.start, m.crcs.clone())), Some((DeviceBlock(101), vec![2, 3])));
        assert_eq!(extent.slice(FileBlock(14), FileBlock(20)), None);
    }

    /// Extents at the end of all numbers decoded, and the sum of start and length overflowed.
    #[test]
    fn extents_of_impossible_blocks_do_not_decode() {
        let value = |start: u64| {
            let mut value = vec![4, 0, 0, 1, 0, 0, 0, 0];
            value.extend_from_slice(&start.to_le_bytes());
            value
        };
        let key = Key::cold(Ino(3), FileBlock(0));
        assert!(ColdExtent::decode(&key.0, &value(u64::MAX - 4)).is_ok());
        assert!(ColdExtent::decode(&key.0, &value(u64::MAX - 3)).is_err());
        let long = Key::new(3, Kind::Cold, &[255; 8]);
        assert!(ColdExtent::decode(&long.0, &value(9)).is_err());
    }

    #[test]
    fn keys_sort_by_inode_kind_and_number() {
        assert!(Key::dentry(Ino(1), 5) < Key::dentry(Ino(1), 256));
        assert!(Key::dentry(Ino(1), u64::MAX) < Key::cold(Ino(1), FileBlock(0)));
        assert!(Key::cold(Ino(1), FileBlock(9)) < Key::dentry(Ino(2), 0));
    }
}
