//! Checksums of metadata pages in PM: one word for each PM block (feature page-checksums, docs/format.md "Checksum words").

use crate::address::{PmBlock, PmOffset};
use crate::checksum::crc32c;
use crate::geometry::Geometry;
use crate::table::{Owner, TABLE_ENTRY_SIZE};

/// A word of the area of checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChecksumWord {
    /// Zero: the page may be changing, or has never had a checksum.
    Open,
    /// The page has this checksum, but for records above the checkpoint.
    Covers(u32),
    /// No word that is ever written: damage of the word, which says nothing of the page.
    Damaged(u64),
}

impl ChecksumWord {
    /// Decodes a word: the checksum in the low half, its complement in the high half.
    pub fn decode(word: u64) -> ChecksumWord {
        let (low, high) = (word as u32, (word >> 32) as u32);
        match word {
            0 => ChecksumWord::Open,
            _ if high == !low => ChecksumWord::Covers(low),
            _ => ChecksumWord::Damaged(word),
        }
    }

    /// The word.
    pub fn encode(self) -> u64 {
        match self {
            ChecksumWord::Open => 0,
            ChecksumWord::Covers(crc) => u64::from(crc) | u64::from(!crc) << 32,
            ChecksumWord::Damaged(word) => word,
        }
    }
}

/// Checksum of a metadata page: the CRC32C of pool UUID, block number and bytes. A sound page that was
/// written to a wrong block fails it.
pub fn page_checksum(pool_uuid: &[u8; 16], page: PmBlock, bytes: &[u8]) -> u32 {
    let mut place = [0; 24];
    let (uuid, number) = place.split_at_mut(16);
    uuid.copy_from_slice(pool_uuid);
    number.copy_from_slice(&page.0.to_le_bytes());
    crc32c(bytes) ^ crc32c(&place)
}

/// The blocks that become metadata pages by a record's write to the block table: recovery, which replays the
/// record, opens their checksum words.
pub fn new_pages(geometry: &Geometry, offset: PmOffset, content: &[u8]) -> Vec<PmBlock> {
    let table = geometry.table_offset().0..geometry.table_end().0;
    if !table.contains(&offset.0) {
        return Vec::new();
    }
    let first = (offset.0 - table.start).div_ceil(TABLE_ENTRY_SIZE);
    let skip = (table.start + first * TABLE_ENTRY_SIZE - offset.0) as usize;
    let entries = content.get(skip..).unwrap_or_default().chunks(TABLE_ENTRY_SIZE as usize);
    let owners = entries.map(|entry| entry.first_chunk().map(|word| u64::from_le_bytes(*word)));
    let is_page = |word: Option<u64>| matches!(word.and_then(Owner::decode), Some(Owner::Page { .. }));
    (first..geometry.block_count())
        .zip(owners)
        .filter(|(_, word)| is_page(*word))
        .map(|(block, _)| PmBlock(block))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip_and_one_wrong_bit_is_damage() {
        for crc in [0, 1, u32::MAX, 0x1234_5678] {
            let word = ChecksumWord::Covers(crc).encode();
            assert_eq!(ChecksumWord::decode(word), ChecksumWord::Covers(crc));
            for bit in 0..64 {
                assert!(matches!(ChecksumWord::decode(word ^ 1 << bit), ChecksumWord::Damaged(_)));
            }
        }
        assert_eq!(ChecksumWord::decode(ChecksumWord::Open.encode()), ChecksumWord::Open);
    }

    #[test]
    fn a_page_in_another_place_has_another_checksum() {
        let page = [7; 4096];
        assert_ne!(page_checksum(&[1; 16], PmBlock(30), &page), page_checksum(&[1; 16], PmBlock(31), &page));
        assert_ne!(page_checksum(&[1; 16], PmBlock(30), &page), page_checksum(&[2; 16], PmBlock(30), &page));
    }
}
