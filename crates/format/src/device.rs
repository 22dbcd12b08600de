//! Lower-tier devices: header block and group summaries (design 4, 4.5).
//!
//! ```text
//! block 0   header: pool UUID, device UUID, tier, role, capacity
//! block 1.. chunks of `chunk_blocks` blocks; the last may be short
//! ```
//! A summary block lies beside the data blocks of a group: (inode, generation, block, CRC, LSN) of each.
//! Summaries are hints for compaction and repair, never rewritten.

use crate::address::{BLOCK_SIZE, DeviceBlock, DeviceId, FileBlock, Ino, Lsn};
use crate::checksum::crc32c;
use crate::corrupt::Corrupt;
use crate::seal::{SealKey, Sealed, keyed};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// First block of the first chunk.
pub const FIRST_CHUNK_BLOCK: DeviceBlock = DeviceBlock(1);
/// First bytes of a device.
pub const DEVICE_MAGIC: [u8; 8] = *b"TERRDEV0";
/// First bytes of a summary block.
pub const SUMMARY_MAGIC: [u8; 8] = *b"TERRSUM0";

/// Block 0 of a lower-tier device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceHeader {
    /// [`DEVICE_MAGIC`].
    pub magic: [u8; 8],
    /// 1.
    pub version: U32,
    /// Tier number.
    pub tier: u8,
    /// 1 data.
    pub role: u8,
    /// Index in the superblock's device table.
    pub index: u8,
    /// Zero.
    pub spare: u8,
    /// The pool it belongs to.
    pub pool_uuid: [u8; 16],
    /// Itself.
    pub device_uuid: [u8; 16],
    /// Blocks, header included.
    pub blocks: U64,
    /// Epoch of the last mount that could write here; 0 for none. A fast tier whose epoch is smaller is an older copy.
    pub epoch: U32,
    /// CRC32C of all bytes before it.
    pub crc: U32,
}

const _: () = assert!(size_of::<DeviceHeader>() == 64);

/// Where the header block says to others that the device is taken: there they look for a partition table. This is one
/// without partitions, so that the kernel makes no devices of it, and mkfs.ext4, mkfs.xfs, mkfs.btrfs, blkid and wipefs
/// find something. None of them knows a device of Terrace.
pub const TAKEN: (usize, [u8; 2]) = (510, [0x55, 0xaa]);

impl DeviceHeader {
    /// The header block as written.
    pub fn encode(mut self) -> Vec<u8> {
        self.crc = crc32c(self.as_bytes().split_at(60).0).into();
        let mut block = vec![0; BLOCK_SIZE as usize];
        if let Some(place) = block.get_mut(..64) {
            place.copy_from_slice(self.as_bytes());
        }
        if let Some(place) = block.get_mut(TAKEN.0..TAKEN.0 + TAKEN.1.len()) {
            place.copy_from_slice(&TAKEN.1);
        }
        block
    }

    /// Accepts block 0 of a device.
    ///
    /// # Errors
    /// The damage of the header.
    pub fn decode(block: &[u8]) -> Result<DeviceHeader, Corrupt> {
        let (header, _) = DeviceHeader::read_from_prefix(block)
            .map_err(|_| Corrupt::new("device header", "64 bytes", block.len().to_string()))?;
        if header.magic != DEVICE_MAGIC || header.version.get() != 1 {
            return Err(Corrupt::new("device header", "magic and version 1", "something else"));
        }
        let crc = crc32c(header.as_bytes().split_at(60).0);
        if crc != header.crc.get() {
            let found = format!("{:#x}", header.crc.get());
            return Err(Corrupt::new("device header", format!("CRC {crc:#x}"), found));
        }
        Ok(header)
    }
}

/// The entry of a group summary for a single block of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SummaryEntry {
    /// The file.
    pub ino: Ino,
    /// Its generation.
    pub generation: u32,
    /// The file block.
    pub block: FileBlock,
    /// CRC32C of the content.
    pub crc: u32,
    /// A newer entry for the same block has a larger one.
    pub lsn: Lsn,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawEntry {
    ino: U32,
    generation: U32,
    block: U32,
    crc: U32,
    lsn: U64,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawSummary {
    magic: [u8; 8],
    version: U32,
    count: U32,
    pool_uuid: [u8; 16],
    first_block: U64,
    spare: [u8; 16],
    entries: [RawEntry; SUMMARY_ENTRIES],
    spare1: [u8; 4096 - 56 - SUMMARY_ENTRIES * 24 - 8],
    /// With a secret the keyed checksum of all before it, else 4 bytes of zeros and CRC32C.
    seal: U64,
}

/// Entries of one summary block; a larger group has several.
pub const SUMMARY_ENTRIES: usize = 168;
const _: () = assert!(size_of::<RawSummary>() == 4096);

/// Version and last eight bytes of a summary in a block of a device. With a secret they bind the summary to
/// this block.
fn summary_seal(raw: &RawSummary, key: &SealKey, device: DeviceId, at: DeviceBlock) -> (u32, u64) {
    match &key.secret {
        Some(secret) => {
            let covered = raw.as_bytes().split_at(4088).0;
            (2, keyed(secret, Sealed::Summary, [device.0.into(), at.0], covered))
        }
        None => (1, u64::from(crc32c(raw.as_bytes().split_at(4092).0)) << 32),
    }
}

/// Encodes a summary, to be written to block `at` of a device, of the blocks that start at `first` there, in order.
pub fn encode_summary(
    key: &SealKey,
    (device, at): (DeviceId, DeviceBlock),
    first: DeviceBlock,
    entries: &[SummaryEntry],
) -> Vec<u8> {
    assert!(entries.len() <= SUMMARY_ENTRIES, "a summary of {} blocks", entries.len());
    let mut raw = RawSummary::new_zeroed();
    raw.magic = SUMMARY_MAGIC;
    raw.pool_uuid = key.pool_uuid;
    raw.first_block = first.0.into();
    let mut count = 0u32;
    for (place, entry) in raw.entries.iter_mut().zip(entries) {
        place.ino = (entry.ino.0 as u32).into();
        place.generation = entry.generation.into();
        place.block = (entry.block.0 as u32).into();
        place.crc = entry.crc.into();
        place.lsn = entry.lsn.0.into();
        count += 1;
    }
    raw.count = count.into();
    raw.version = if key.is_secret() { 2 } else { 1 }.into();
    raw.seal = summary_seal(&raw, key, device, at).1.into();
    raw.as_bytes().to_vec()
}

/// Decodes a summary in block `at` of a device: the first device block it covers, and its entries.
///
/// # Errors
/// The damage of the summary; a summary is only a hint.
pub fn decode_summary(
    block: &[u8],
    key: &SealKey,
    (device, at): (DeviceId, DeviceBlock),
) -> Result<(DeviceBlock, Vec<SummaryEntry>), Corrupt> {
    let wrong = |what: &str| Corrupt::new("group summary", what, "something else");
    let raw = RawSummary::read_from_bytes(block).map_err(|_| wrong("4096 bytes"))?;
    if raw.magic != SUMMARY_MAGIC || raw.pool_uuid != key.pool_uuid {
        return Err(wrong("magic and this pool"));
    }
    if (raw.version.get(), raw.seal.get()) != summary_seal(&raw, key, device, at) {
        return Err(wrong("this pool's version and seal"));
    }
    let count = raw.count.get() as usize;
    let used = raw.entries.get(..count).ok_or_else(|| wrong("at most 168 entries"))?;
    let entries = used.iter().map(|entry| SummaryEntry {
        ino: Ino(entry.ino.get().into()),
        generation: entry.generation.get(),
        block: FileBlock(entry.block.get().into()),
        crc: entry.crc.get(),
        lsn: Lsn(entry.lsn.get()),
    });
    Ok((DeviceBlock(raw.first_block.get()), entries.collect()))
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn a_device_header_and_a_group_summary_round_trip() {
        let mut header = DeviceHeader::new_zeroed();
        (header.magic, header.version, header.tier) = (DEVICE_MAGIC, 1.into(), 1);
        let block = header.encode();
        assert_eq!(DeviceHeader::decode(&block).map(|h| h.tier), Ok(1));
        assert_eq!(
            block[446..512],
            [&[0; 64][..], &[0x55, 0xaa]].concat(),
            "a partition table without partitions"
        );
        // Headers of earlier versions of the program lack it.
        assert_eq!(DeviceHeader::decode(&block[..64]).map(|h| h.tier), Ok(1));
        let entry =
            SummaryEntry { ino: Ino(9), generation: 2, block: FileBlock(3), crc: 0xabcd, lsn: Lsn(77) };
        let at = (DeviceId(1), DeviceBlock(4));
        for secret in [None, Some([3; 16])] {
            let key = SealKey::new([1; 16], secret);
            let block = encode_summary(&key, at, DeviceBlock(5), &[entry; 7]);
            assert_eq!(decode_summary(&block, &key, at), Ok((DeviceBlock(5), vec![entry; 7])));
            assert!(decode_summary(&block, &SealKey::new([2; 16], secret), at).is_err());
            let flipped = (0..64).map(|bit| {
                let mut flipped = block.clone();
                flipped[4088 + bit / 8] ^= 1 << (bit % 8);
                flipped
            });
            assert!(flipped.into_iter().all(|block| decode_summary(&block, &key, at).is_err()));
        }
    }

    /// A summary's only proof was a CRC32C that every user could compute: a block of a file posed as one.
    #[test]
    fn a_summary_counts_with_the_secret_and_in_its_place_only() {
        let entry = SummaryEntry { ino: Ino(9), generation: 2, block: FileBlock(3), crc: 1, lsn: Lsn(77) };
        let at = (DeviceId(1), DeviceBlock(4));
        let key = SealKey::new([1; 16], Some([3; 16]));
        let block = encode_summary(&key, at, DeviceBlock(5), &[entry; 7]);
        for secret in [None, Some([4; 16])] {
            let other = SealKey::new([1; 16], secret);
            assert!(decode_summary(&block, &other, at).is_err());
            let forged = encode_summary(&other, at, DeviceBlock(5), &[entry; 7]);
            assert!(decode_summary(&forged, &key, at).is_err());
        }
        for elsewhere in [(DeviceId(1), DeviceBlock(5)), (DeviceId(0), DeviceBlock(4))] {
            assert!(decode_summary(&block, &key, elsewhere).is_err());
        }
    }
}
