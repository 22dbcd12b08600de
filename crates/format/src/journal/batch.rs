//! Batches of the log: a header and entries, in whole blocks (rule J4).
//!
//! ```text
//! header 64 B · entry: header 16 B, bytes, filled to 8 B · entry · … · zeros to the end of the block
//! ```
//! The CRC of a batch is seeded with the journal's UUID and covers header and entries. The header holds the position of
//! the batch and the CRC of the batch before: so a batch of an earlier lap or of another history does not count.

use crate::address::{BLOCK_SIZE, PmOffset};
use crate::checkpoint::FAR;
use crate::checksum::{crc32c, crc32c_append};
use crate::corrupt::Corrupt;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: u32 = 0x3042_4a54; // "TJB0"
/// Bytes of a batch's header.
pub const BATCH_HEADER_BYTES: u64 = 64;
/// Bytes of an entry's header.
pub const ENTRY_HEADER_BYTES: u64 = 16;
/// The largest batch.
pub const MAX_BATCH_BYTES: u64 = 4 << 20;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: U32,
    crc: U32,
    epoch: U64,
    sequence: U64,
    position: U64,
    length: U32,
    previous: U32,
    acknowledged: U64,
    spare: [u8; 16],
}

const _: () = assert!(size_of::<Raw>() as u64 == BATCH_HEADER_BYTES);

/// The header of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHeader {
    /// Epoch of the opening that wrote it.
    pub epoch: u64,
    /// Sequence number: the batch before has the next smaller number.
    pub sequence: u64,
    /// Its position in the log.
    pub position: u64,
    /// Bytes, header included: whole blocks.
    pub length: u64,
    /// CRC of the batch before.
    pub previous: u32,
    /// The log was acknowledged up to this position when the batch was written.
    pub acknowledged: u64,
}

/// Seed of a CRC: it binds a structure to its journal.
pub(super) fn seed(uuid: &[u8; 16]) -> u32 {
    crc32c(uuid)
}

impl BatchHeader {
    fn raw(&self) -> Raw {
        Raw {
            magic: MAGIC.into(),
            crc: 0.into(),
            epoch: self.epoch.into(),
            sequence: self.sequence.into(),
            position: self.position.into(),
            length: (self.length as u32).into(),
            previous: self.previous.into(),
            acknowledged: self.acknowledged.into(),
            spare: [0; 16],
        }
    }

    /// The header as written, and the CRC of the batch whose content behind the header is `pieces`, one behind the
    /// other.
    pub fn encode<'a>(
        &self,
        uuid: &[u8; 16],
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> ([u8; BATCH_HEADER_BYTES as usize], u32) {
        assert!(self.length.is_multiple_of(BLOCK_SIZE), "a batch of {} bytes", self.length);
        assert!((1..=MAX_BATCH_BYTES).contains(&self.length), "a batch of {} bytes", self.length);
        let mut raw = self.raw();
        let head = crc32c_append(seed(uuid), raw.as_bytes());
        let crc = pieces.into_iter().fold(head, crc32c_append);
        raw.crc = crc.into();
        let mut bytes = [0; BATCH_HEADER_BYTES as usize];
        bytes.copy_from_slice(raw.as_bytes());
        (bytes, crc)
    }

    /// Reads the header of a batch at `position`, without a look at the content ([`Self::verify`]).
    pub fn peek(block: &[u8], position: u64) -> Option<BatchHeader> {
        Self::peek_any(block).filter(|header| header.position == position)
    }

    /// Reads the header of a batch at any position, without a look at the content.
    pub fn peek_any(block: &[u8]) -> Option<BatchHeader> {
        let (raw, _) = Raw::read_from_prefix(block).ok()?;
        let length = u64::from(raw.length.get());
        let position = raw.position.get();
        let is_batch = raw.magic.get() == MAGIC
            && position.is_multiple_of(BLOCK_SIZE)
            && length.is_multiple_of(BLOCK_SIZE)
            && (1..=MAX_BATCH_BYTES).contains(&length)
            && [raw.epoch, raw.sequence, raw.acknowledged].iter().all(|number| number.get() < FAR)
            && raw.acknowledged.get() <= position;
        is_batch.then(|| BatchHeader {
            epoch: raw.epoch.get(),
            sequence: raw.sequence.get(),
            position,
            length,
            previous: raw.previous.get(),
            acknowledged: raw.acknowledged.get(),
        })
    }

    /// The CRC of a whole batch, if its bytes match it.
    pub fn verify(&self, uuid: &[u8; 16], batch: &[u8]) -> Option<u32> {
        if batch.len() as u64 != self.length {
            return None;
        }
        let (raw, content) = Raw::read_from_prefix(batch).ok()?;
        let mut unsigned = raw;
        unsigned.crc = 0.into();
        let crc = crc32c_append(crc32c_append(seed(uuid), unsigned.as_bytes()), content);
        (crc == raw.crc.get()).then_some(crc)
    }
}

/// Kinds of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// Bytes of the image at an offset.
    Store,
    /// Pages on their way home: pairs of first page and count, 32 bits each. A crash may tear these pages in home.
    GoingHome,
}

impl EntryKind {
    fn number(self) -> u16 {
        match self {
            EntryKind::Store => 1,
            EntryKind::GoingHome => 2,
        }
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawEntry {
    kind: U16,
    spare: U16,
    length: U32,
    offset: U64,
}

const _: () = assert!(size_of::<RawEntry>() as u64 == ENTRY_HEADER_BYTES);

/// Bytes that an entry of so many bytes takes in a batch.
#[inline]
pub fn entry_bytes(length: usize) -> u64 {
    ENTRY_HEADER_BYTES + (length as u64).next_multiple_of(8)
}

/// An entry of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its kind.
    pub kind: EntryKind,
    /// Place of the bytes in the image; 0 for other kinds than [`EntryKind::Store`].
    pub offset: PmOffset,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl Entry<'_> {
    /// The header as written before the bytes.
    #[inline]
    pub fn header(&self) -> [u8; ENTRY_HEADER_BYTES as usize] {
        let raw = RawEntry {
            kind: self.kind.number().into(),
            spare: 0.into(),
            length: (self.bytes.len() as u32).into(),
            offset: self.offset.0.into(),
        };
        let mut bytes = [0; ENTRY_HEADER_BYTES as usize];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }
}

/// The entries of a batch whose CRC is right, for an image of so many bytes.
///
/// # Errors
/// An entry that no medium writes.
pub fn entries(batch: &[u8], image_bytes: u64) -> Result<Vec<Entry<'_>>, Corrupt> {
    let mut found = Vec::new();
    let mut rest = batch.get(BATCH_HEADER_BYTES as usize..).unwrap_or_default();
    while let Ok((raw, behind)) = RawEntry::read_from_prefix(rest) {
        let length = raw.length.get() as usize;
        let kind = match raw.kind.get() {
            0 => break,
            1 => EntryKind::Store,
            2 => EntryKind::GoingHome,
            other => return Err(Corrupt::new("journal entry", "a kind of entry", other.to_string())),
        };
        let bytes = behind.get(..length);
        let is_inside = kind != EntryKind::Store
            || length > 0
                && raw.offset.get().checked_add(length as u64).is_some_and(|end| end <= image_bytes);
        let Some(bytes) = bytes.filter(|_| is_inside) else {
            let found = format!("{length} bytes at {}", raw.offset.get());
            return Err(Corrupt::new("journal entry", "bytes inside batch and image", found));
        };
        found.push(Entry { kind, offset: PmOffset(raw.offset.get()), bytes });
        rest = behind.get(length.next_multiple_of(8)..).unwrap_or_default();
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)] // a test may panic
    use super::*;

    const UUID: [u8; 16] = [9; 16];

    fn header() -> BatchHeader {
        BatchHeader { epoch: 2, sequence: 5, position: 8192, length: 4096, previous: 77, acknowledged: 4096 }
    }

    fn batch(list: &[Entry<'_>]) -> Vec<u8> {
        let mut content = Vec::new();
        for entry in list {
            content.extend_from_slice(&entry.header());
            content.extend_from_slice(entry.bytes);
            content.resize(content.len().next_multiple_of(8), 0);
        }
        content.resize(4096 - 64, 0);
        let (head, crc) = header().encode(&UUID, [content.as_slice()]);
        let batch = [head.as_slice(), &content].concat();
        assert_eq!(header().verify(&UUID, &batch), Some(crc));
        batch
    }

    #[test]
    fn a_batch_round_trips_and_its_damage_is_found() {
        let list = [
            Entry { kind: EntryKind::Store, offset: PmOffset(100), bytes: b"five!" },
            Entry { kind: EntryKind::GoingHome, offset: PmOffset(0), bytes: &[1; 16] },
            Entry { kind: EntryKind::Store, offset: PmOffset(4088), bytes: &[7; 8] },
        ];
        let bytes = batch(&list);
        assert_eq!(BatchHeader::peek(&bytes, 8192), Some(header()));
        assert_eq!(BatchHeader::peek(&bytes, 4096), None, "another place");
        assert_eq!(entries(&bytes, 4096).unwrap(), list);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            let found = BatchHeader::peek(&damaged, 8192).and_then(|header| header.verify(&UUID, &damaged));
            assert_eq!(found, None, "byte {at}");
        }
        assert_eq!(header().verify(&[8; 16], &bytes), None, "another journal");
    }

    #[test]
    fn entries_outside_of_image_or_batch_are_damage() {
        let outside = Entry { kind: EntryKind::Store, offset: PmOffset(4090), bytes: &[7; 8] };
        assert!(entries(&batch(&[outside]), 4096).is_err());
        let mut bytes = batch(&[Entry { kind: EntryKind::Store, offset: PmOffset(0), bytes: &[7; 8] }]);
        bytes[68..72].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(entries(&bytes, 1 << 40).is_err(), "longer than the batch");
        let empty = Entry { kind: EntryKind::Store, offset: PmOffset(4096), bytes: &[] };
        assert!(entries(&batch(&[empty]), 4096).is_err(), "no byte");
        bytes[64] = 9;
        assert!(entries(&bytes, 4096).is_err(), "an unknown kind");
        assert!(entries(&[], 4096).unwrap().is_empty());
    }
}
