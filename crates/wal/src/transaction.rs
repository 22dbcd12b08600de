//! A transaction: writes to PM structures, collected until commit; answers reads of what it has
//! already written.

use crate::error::Result;
use smallvec::SmallVec;
use terrace_format::PmOffset;
use terrace_format::record::{DATA_CHECK_SIZE, DataCheck, HEADER_SIZE, MAX_WRITE, write_size};
use terrace_media::PmMedium;

#[derive(Debug, Clone, Copy)]
struct Place {
    offset: u64,
    length: u32,
    at: u32,
}

/// Writes that become visible together.
#[derive(Debug, Default)]
pub struct Tx {
    places: SmallVec<[Place; 16]>,
    bytes: SmallVec<[u8; 512]>,
    checks: SmallVec<[DataCheck; 2]>,
    encoded: usize,
}

impl Tx {
    /// An empty transaction.
    pub fn new() -> Tx {
        Tx::default()
    }

    /// Stores `bytes` at `offset` when the transaction commits. A later write wins.
    pub fn write(&mut self, offset: PmOffset, bytes: &[u8]) {
        let mut offset = offset.0;
        for piece in bytes.chunks(MAX_WRITE) {
            let at = self.bytes.len() as u32;
            self.bytes.extend_from_slice(piece);
            self.places.push(Place { offset, length: piece.len() as u32, at });
            self.encoded += write_size(piece.len());
            offset += piece.len() as u64;
        }
    }

    /// Stores one word.
    pub fn write_u64(&mut self, offset: PmOffset, value: u64) {
        self.write(offset, &value.to_le_bytes());
    }

    /// Names data that was streamed to PM before and is durable by the same fence as the record: it
    /// is judged by its checksum if the record is its lane's last (design T4).
    pub fn name_data(&mut self, offset: PmOffset, length: u32, crc: u32) {
        self.checks.push(DataCheck { offset, length, crc });
        self.encoded += DATA_CHECK_SIZE;
    }

    /// Reads PM as it will be after this transaction.
    ///
    /// # Errors
    /// The medium's.
    pub fn read(&self, pm: &dyn PmMedium, offset: PmOffset, into: &mut [u8]) -> Result<()> {
        pm.read(offset, into)?;
        let (start, end) = (offset.0, offset.0 + into.len() as u64);
        for place in &self.places {
            let (from, to) = (place.offset.max(start), (place.offset + u64::from(place.length)).min(end));
            if from < to {
                let source = place.at as usize + (from - place.offset) as usize;
                let length = (to - from) as usize;
                let target = (from - start) as usize;
                into[target..target + length].copy_from_slice(&self.bytes[source..source + length]);
            }
        }
        Ok(())
    }

    /// Reads one word as it will be after this transaction.
    ///
    /// # Errors
    /// The medium's.
    pub fn read_u64(&self, pm: &dyn PmMedium, offset: PmOffset) -> Result<u64> {
        if self.places.is_empty() {
            return Ok(pm.load_u64(offset)?);
        }
        let mut word = [0; 8];
        self.read(pm, offset, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// True when nothing was written.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Bytes of the record it will make.
    pub fn record_size(&self) -> usize {
        HEADER_SIZE + self.encoded
    }

    /// Forgets everything, keeping the buffers.
    pub fn clear(&mut self) {
        self.places.clear();
        self.bytes.clear();
        self.checks.clear();
        self.encoded = 0;
    }

    pub(crate) fn counts(&self) -> (u16, u16) {
        (self.places.len() as u16, self.checks.len() as u16)
    }

    pub(crate) fn checks(&self) -> &[DataCheck] {
        &self.checks
    }

    pub(crate) fn writes(&self) -> impl Iterator<Item = (PmOffset, &[u8])> {
        self.places.iter().map(|place| {
            let at = place.at as usize;
            (PmOffset(place.offset), &self.bytes[at..at + place.length as usize])
        })
    }

    /// Appends the record's body (checks and writes) behind an already reserved header.
    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        for check in &self.checks {
            into.extend_from_slice(&check.offset.0.to_le_bytes());
            into.extend_from_slice(&check.length.to_le_bytes());
            into.extend_from_slice(&check.crc.to_le_bytes());
        }
        for (offset, content) in self.writes() {
            into.extend_from_slice(&(offset.0 | (content.len() as u64) << 48).to_le_bytes());
            into.extend_from_slice(content);
            into.resize(into.len().next_multiple_of(8), 0);
        }
    }
}
