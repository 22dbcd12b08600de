//! Tables of page checksums: a CRC32C for each page of the image.
//!
//! ```text
//! block of a table: CRC of the rest 4 B · number of the block 4 B · zeros 8 B · 1020 checksums of 4 B
//! ```

use super::batch::seed;
use crate::address::BLOCK_SIZE;
use crate::checksum::crc32c_append;

const HEADER_BYTES: usize = 16;
/// Checksums in a block of a table.
pub const TABLE_ENTRIES: usize = (BLOCK_SIZE as usize - HEADER_BYTES) / 4;

/// The checksum of a page that is in home. Never 0, which stands for a page that was never written there.
pub fn page_checksum(uuid: &[u8; 16], page: u64, content: &[u8]) -> u32 {
    crc32c_append(crc32c_append(seed(uuid), &page.to_le_bytes()), content).max(1)
}

/// A block of a table as written; `number` counts the blocks of a table.
pub fn encode_table(uuid: &[u8; 16], number: u64, checksums: &[u32]) -> Vec<u8> {
    assert!(checksums.len() <= TABLE_ENTRIES, "{} checksums in a block", checksums.len());
    let mut block = vec![0; 4];
    block.extend_from_slice(&(number as u32).to_le_bytes());
    block.resize(HEADER_BYTES, 0);
    checksums.iter().for_each(|checksum| block.extend_from_slice(&checksum.to_le_bytes()));
    block.resize(BLOCK_SIZE as usize, 0);
    let (place, covered) = block.split_at_mut(4);
    place.copy_from_slice(&crc32c_append(seed(uuid), covered).to_le_bytes());
    block
}

/// The checksums in a block of a table; `None` if the block is damaged or another block.
pub fn decode_table(uuid: &[u8; 16], number: u64, block: &[u8]) -> Option<Vec<u32>> {
    let (crc, covered) = block.split_first_chunk::<4>()?;
    let (found, _) = covered.split_first_chunk::<4>()?;
    let is_sound = u32::from_le_bytes(*crc) == crc32c_append(seed(uuid), covered)
        && u32::from_le_bytes(*found) == number as u32
        && block.len() as u64 == BLOCK_SIZE;
    let words = block.get(HEADER_BYTES..)?.as_chunks::<4>().0;
    is_sound.then(|| words.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)] // a test may panic
    use super::*;

    #[test]
    fn a_block_of_a_table_round_trips_and_its_damage_is_found() {
        let checksums: Vec<u32> = (0..TABLE_ENTRIES as u32).collect();
        let block = encode_table(&[1; 16], 3, &checksums);
        assert_eq!(decode_table(&[1; 16], 3, &block), Some(checksums));
        assert_eq!(decode_table(&[1; 16], 4, &block), None);
        assert_eq!(decode_table(&[2; 16], 3, &block), None);
        for at in 0..block.len() {
            let mut damaged = block.clone();
            damaged[at] ^= 1;
            assert_eq!(decode_table(&[1; 16], 3, &damaged), None, "byte {at}");
        }
        assert_eq!(decode_table(&[1; 16], 3, &[]), None);
    }

    #[test]
    fn checksums_of_pages_are_above_zero_and_depend_on_the_page_number() {
        let zeros = [0; 4096];
        assert_ne!(page_checksum(&[1; 16], 0, &zeros), 0);
        assert_ne!(page_checksum(&[1; 16], 0, &zeros), page_checksum(&[1; 16], 1, &zeros));
    }
}
