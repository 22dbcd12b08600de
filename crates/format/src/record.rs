//! Lane records (design 4.1, T3, T4).
//!
//! ```text
//! 0  magic u32 | length u32 (bytes, unpadded)      16 CRC32C u32 | writes u16 | data checks u16
//! 8  LSN u64                                       24 witness u64: lane + 1 in the low 9 bits, position above
//! 32 data checks: offset u64, length u32, CRC32C u32 each
//!    writes: word u64 (offset in the low 48 bits, length in the high 16), bytes padded to 8
//! ```
//! A record starts at a multiple of 64 in the ring and may wrap around its end. Its CRC is taken
//! with the seed of pool, lane, position and epoch standing in the CRC field.
//!
//! The witness names the newest durable record of any lane at the time of the write: the lane, and the
//! position at which that record ends. So the loss of a record shows even if its own lane has no record
//! behind it (design T3). Pools written by programs without witnesses have zeros in this field.

use crate::address::{Lsn, PmOffset};
use crate::checksum::crc32c;

/// Bytes of the header.
pub const HEADER_SIZE: usize = 32;
/// Bytes of one data check.
pub const DATA_CHECK_SIZE: usize = 16;
/// Records start at multiples of this.
pub const RECORD_ALIGN: u64 = 64;
/// Longest single write; longer ones are split.
pub const MAX_WRITE: usize = 32 << 10;
const MAGIC: u32 = 0x5452_4543; // "CERT"

/// Bytes that a write of `length` bytes takes in a record.
pub const fn write_size(length: usize) -> usize {
    8 + length.next_multiple_of(8)
}

/// Bytes that a record of `length` bytes takes in the ring.
pub const fn padded(length: usize) -> u64 {
    (length as u64).next_multiple_of(RECORD_ALIGN)
}

/// A durable position of a lane: a record ends there that was durable before the record that holds the witness was
/// written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Witness {
    /// The lane.
    pub lane: u32,
    /// Position after the durable record, a multiple of [`RECORD_ALIGN`].
    pub position: u64,
}

/// Bits of a witness word that hold the lane.
const WITNESS_LANE: u64 = (1 << 9) - 1;

impl Witness {
    /// The word in the header: the position counts units of [`RECORD_ALIGN`].
    pub fn encode(self) -> u64 {
        debug_assert!(self.position.is_multiple_of(RECORD_ALIGN) && u64::from(self.lane) < WITNESS_LANE);
        ((self.position / RECORD_ALIGN) << 9) | (u64::from(self.lane) + 1)
    }

    /// Decodes the word; `None` when it is zero or names no lane.
    pub fn decode(word: u64) -> Option<Witness> {
        let lane = (word & WITNESS_LANE).checked_sub(1)? as u32;
        Some(Witness { lane, position: (word >> 9) * RECORD_ALIGN })
    }
}

/// Fills in the header of `record` (whose first [`HEADER_SIZE`] bytes are reserved for it). `witness` is an encoded
/// [`Witness`] or zero.
pub fn seal(record: &mut [u8], lsn: Lsn, writes: u16, checks: u16, seed: u32, witness: u64) {
    let length = record.len() as u32;
    let Some((header, _)) = record.split_first_chunk_mut::<HEADER_SIZE>() else {
        return;
    };
    // Word by word: the checksum reads words, and one made of two stores would have to wait for both.
    let words = [
        u64::from(MAGIC) | u64::from(length) << 32,
        lsn.0,
        u64::from(seed) | u64::from(writes) << 32 | u64::from(checks) << 48,
        witness,
    ];
    for (place, word) in header.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
    let crc = crc32c(record);
    if let Some(place) = record.get_mut(16..20) {
        place.copy_from_slice(&crc.to_le_bytes());
    }
}

/// The length field of a header, when the magic number is right and the length is possible.
pub fn plausible_length(header: &[u8; HEADER_SIZE], max_record: u64) -> Option<usize> {
    let magic = u32::from_le_bytes(*header.first_chunk::<4>()?);
    let length = u32::from_le_bytes(*header.get(4..8)?.first_chunk::<4>()?) as usize;
    (magic == MAGIC && (HEADER_SIZE..=max_record as usize).contains(&length)).then_some(length)
}

/// The LSN in a header.
pub fn header_lsn(header: &[u8; HEADER_SIZE]) -> Lsn {
    Lsn(header.get(8..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word)))
}

/// Checksum of data that a record names (design T4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataCheck {
    /// First byte.
    pub offset: PmOffset,
    /// Bytes.
    pub length: u32,
    /// CRC32C of them.
    pub crc: u32,
}

/// A record whose CRC and structure were verified.
#[derive(Debug, Clone)]
pub struct Record {
    /// The number of the record.
    pub lsn: Lsn,
    /// Bytes it takes in the ring.
    pub ring_bytes: u64,
    /// Data that must match if this is its lane's last record.
    pub checks: Vec<DataCheck>,
    /// The newest durable position at the time of this record's write.
    pub witness: Option<Witness>,
    bytes: Vec<u8>,
    writes_at: usize,
}

impl Record {
    /// Verifies a record's bytes; `None` when it is not a record of this place and epoch.
    pub fn verify(mut bytes: Vec<u8>, seed: u32, pm_size: u64) -> Option<Record> {
        let field = |at: usize| bytes.get(at..at + 8).and_then(|s| s.first_chunk::<8>().copied());
        let lsn = Lsn(u64::from_le_bytes(field(8)?));
        let tail = u64::from_le_bytes(field(16)?);
        let witness = Witness::decode(u64::from_le_bytes(field(24)?));
        let (crc, writes, check_count) = (tail as u32, (tail >> 32) as u16, (tail >> 48) as usize);
        bytes.get_mut(16..20)?.copy_from_slice(&seed.to_le_bytes());
        if crc32c(&bytes) != crc {
            return None;
        }
        let mut checks = Vec::with_capacity(check_count);
        for index in 0..check_count {
            let at = HEADER_SIZE + DATA_CHECK_SIZE * index;
            let raw = bytes.get(at..at + DATA_CHECK_SIZE)?;
            let offset = u64::from_le_bytes(*raw.first_chunk::<8>()?);
            let rest = u64::from_le_bytes(*raw.last_chunk::<8>()?);
            let (length, crc) = (rest as u32, (rest >> 32) as u32);
            if offset.checked_add(u64::from(length))? > pm_size {
                return None;
            }
            checks.push(DataCheck { offset: PmOffset(offset), length, crc });
        }
        let ring_bytes = padded(bytes.len());
        let writes_at = HEADER_SIZE + DATA_CHECK_SIZE * check_count;
        let record = Record { lsn, ring_bytes, checks, witness, bytes, writes_at };
        let mut seen = 0;
        let mut end = writes_at;
        for (offset, content) in record.writes() {
            if offset.0.checked_add(content.len() as u64)? > pm_size {
                return None;
            }
            seen += 1;
            end += write_size(content.len());
        }
        (seen == usize::from(writes) && end == record.bytes.len()).then_some(record)
    }

    /// The writes, in the order in which they are applied.
    pub fn writes(&self) -> impl Iterator<Item = (PmOffset, &[u8])> {
        let mut rest = self.bytes.get(self.writes_at..).unwrap_or(&[]);
        std::iter::from_fn(move || {
            let (word, tail) = rest.split_first_chunk::<8>()?;
            let word = u64::from_le_bytes(*word);
            let length = (word >> 48) as usize;
            let content = tail.get(..length)?;
            rest = tail.get(length.next_multiple_of(8)..)?;
            Some((PmOffset(word & ((1 << 48) - 1)), content))
        })
    }
}
