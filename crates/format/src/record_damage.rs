//! Tells a record with damaged bytes from a record whose write a crash cut off (design T3). Both fail their
//! checksum.
//!
//! A record with one wrong bit has a checksum that differs from the expected one by what that bit alone changes, since a
//! CRC is linear: about one torn record of 2^32 / bits looks so by chance, and more do where a word that was not written
//! yet holds an older record's, which differs in one bit. So such a record is never taken for valid by its bytes alone.

use crate::address::Lsn;
use crate::checkpoint::FAR;
use crate::checksum::crc32c;
use crate::record::{HEADER_SIZE, Record, plausible_length};
use std::ops::Range;

/// Castagnoli's polynomial, reflected: the change of a CRC32C when the last bit of the message changes.
const LAST_BIT: u32 = 0x82f6_3b78;
/// The first word: magic number and length. A damaged bit here changes the extent of the record.
const FIRST_WORD: Range<usize> = 0..8;
/// The checksum; while it is computed, the seed stands there.
const CRC_FIELD: Range<usize> = 16..20;

/// The record at this place, with a wrong bit mended, if it is valid but for a single bit and has an LSN
/// above `after`. `header` has the bytes of the header, `read` gives a number of bytes from the beginning of
/// the record.
///
/// # Errors
/// Errors of `read`.
pub fn one_bit_away<E>(
    header: &[u8; HEADER_SIZE],
    (max_record, pm_size): (u64, u64),
    seed: u32,
    after: Lsn,
    mut read: impl FnMut(usize) -> Result<Vec<u8>, E>,
) -> Result<Option<Record>, E> {
    let possible = |record: &Record| record.lsn > after && record.lsn.0 < FAR;
    let lengths = (0..=64).map(|bit| flipped_header(header, bit));
    for (bit, header) in lengths.enumerate() {
        let Some(length) = plausible_length(&header, max_record) else { continue };
        let mut bytes = read(length)?;
        if let Some(place) = bytes.first_chunk_mut::<HEADER_SIZE>() {
            *place = header;
        }
        // 64: the first word as it is, and the wrong bit somewhere behind it.
        if bit == 64 && mend_one_bit(&mut bytes, seed).is_none() {
            continue;
        }
        if let Some(record) = Record::verify(bytes, seed, pm_size).filter(possible) {
            return Ok(Some(record));
        }
    }
    Ok(None)
}

/// A header with one bit of its first word flipped; as it is for 64.
fn flipped_header(header: &[u8; HEADER_SIZE], bit: usize) -> [u8; HEADER_SIZE] {
    let mut flipped = *header;
    if let Some(byte) = flipped.get_mut(bit / 8).filter(|_| bit < 8 * FIRST_WORD.end) {
        *byte ^= 1 << (bit % 8);
    }
    flipped
}

/// Flips the bit behind the first word that makes the checksum right, if one does.
fn mend_one_bit(bytes: &mut [u8], seed: u32) -> Option<()> {
    let field = bytes.get_mut(CRC_FIELD)?;
    let found = u32::from_le_bytes(*field.first_chunk::<4>()?);
    field.copy_from_slice(&seed.to_le_bytes());
    let wrong = crc32c(bytes) ^ found;
    let in_field = wrong.is_power_of_two();
    let mended = if in_field { found ^ wrong } else { found };
    bytes.get_mut(CRC_FIELD)?.copy_from_slice(&mended.to_le_bytes());
    if in_field {
        return Some(());
    }
    let (byte, bit) = bit_that_changes(wrong, bytes.len())?;
    if FIRST_WORD.contains(&byte) || CRC_FIELD.contains(&byte) {
        return None;
    }
    *bytes.get_mut(byte)? ^= 1 << bit;
    Some(())
}

/// The byte, and bit of it, whose change changes the CRC32C of `length` bytes by `difference`.
fn bit_that_changes(difference: u32, length: usize) -> Option<(usize, u32)> {
    let mut effect = LAST_BIT;
    for byte in (0..length).rev() {
        for bit in (0..8).rev() {
            if effect == difference {
                return Some((byte, bit));
            }
            effect = effect >> 1 ^ if effect & 1 == 1 { LAST_BIT } else { 0 };
        }
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing)]
    use super::*;
    use crate::record::seal;

    const PM: u64 = 1 << 30;

    fn record() -> Vec<u8> {
        let mut bytes = vec![0; HEADER_SIZE];
        bytes.extend_from_slice(&(4096u64 | 100 << 48).to_le_bytes());
        bytes.extend((0..100u8).chain([0; 4]));
        seal(&mut bytes, Lsn(77), 1, 0, 0x1234_5678, 0);
        bytes
    }

    fn found(bytes: &[u8], after: u64) -> Option<Record> {
        let header = bytes.first_chunk::<HEADER_SIZE>()?;
        let read = |length: usize| {
            let mut read = bytes.to_vec();
            read.resize(length, 0xee);
            Ok::<_, ()>(read)
        };
        one_bit_away(header, (4096, PM), 0x1234_5678, Lsn(after), read).ok()?
    }

    #[test]
    fn each_flipped_bit_of_a_record_is_found() {
        let sound = record();
        for bit in 0..8 * sound.len() {
            let mut flipped = sound.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(found(&flipped, 76).map(|record| record.lsn), Some(Lsn(77)), "bit {bit}");
            assert!(found(&flipped, 77).is_none(), "a record of an earlier lap, bit {bit}");
        }
    }

    #[test]
    fn torn_records_are_not_one_bit_away() {
        let sound = record();
        for line in 0..sound.len().div_ceil(64) {
            let mut torn = sound.clone();
            let end = (64 * line + 64).min(torn.len());
            torn[64 * line..end].fill(0x55);
            assert!(found(&torn, 0).is_none(), "line {line}");
        }
    }
}
