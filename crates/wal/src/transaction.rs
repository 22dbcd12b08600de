//! A transaction: writes to PM structures, collected until commit; answers reads of what it has
//! already written.

use crate::error::Result;
use smallvec::SmallVec;
use terrace_format::PmOffset;
use terrace_format::record::{DATA_CHECK_SIZE, DataCheck, HEADER_SIZE, MAX_WRITE};
use terrace_media::PmMedium;
use terrace_runtime::planted::{Mistake, planted};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

/// A write of the transaction: its content begins at word `at`.
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
    /// The writes as the record will hold them.
    words: SmallVec<[U64; 64]>,
    checks: SmallVec<[DataCheck; 2]>,
}

impl Tx {
    /// An empty transaction.
    pub fn new() -> Tx {
        Tx::default()
    }

    /// Stores `bytes` at `offset` when the transaction commits. A later write wins.
    #[inline]
    pub fn write(&mut self, offset: PmOffset, bytes: &[u8]) {
        let mut offset = offset.0;
        for piece in bytes.chunks(MAX_WRITE) {
            let at = self.words.len() as u32 + 1;
            self.words.push(U64::new(offset | (piece.len() as u64) << 48));
            let (whole, rest) = piece.split_at(piece.len() & !7);
            self.words.extend_from_slice(<[U64]>::ref_from_bytes(whole).unwrap_or_default());
            if !rest.is_empty() {
                let mut last = [0; 8];
                last[..rest.len()].copy_from_slice(rest);
                self.words.push(U64::from_bytes(last));
            }
            self.places.push(Place { offset, length: piece.len() as u32, at });
            offset += piece.len() as u64;
        }
    }

    /// Stores consecutive words.
    #[inline]
    pub fn write_words<const N: usize>(&mut self, offset: PmOffset, words: [U64; N]) {
        const { assert!(N > 0 && 8 * N <= MAX_WRITE) };
        let at = self.words.len() as u32 + 1;
        self.words.push(U64::new(offset.0 | (8 * N as u64) << 48));
        self.words.extend_from_slice(&words);
        self.places.push(Place { offset: offset.0, length: 8 * N as u32, at });
    }

    /// Stores one word.
    #[inline]
    pub fn write_u64(&mut self, offset: PmOffset, value: u64) {
        self.write_words(offset, [U64::new(value)]);
    }

    /// Names data that was streamed to PM before and is durable by the same fence as the record: it
    /// is judged by its checksum if the record is its lane's last (design T4).
    pub fn name_data(&mut self, offset: PmOffset, length: u32, crc: u32) {
        self.checks.push(DataCheck { offset, length, crc });
    }

    /// Reads PM as it will be after this transaction.
    ///
    /// # Errors
    /// The medium's.
    pub fn read(&self, pm: &dyn PmMedium, offset: PmOffset, into: &mut [u8]) -> Result<()> {
        pm.read(offset, into)?;
        self.overlay(offset, into);
        Ok(())
    }

    /// Puts what was written over bytes read from PM.
    fn overlay(&self, offset: PmOffset, into: &mut [u8]) {
        let (start, end) = (offset.0, offset.0 + into.len() as u64);
        for place in &self.places {
            let (from, to) = (place.offset.max(start), (place.offset + u64::from(place.length)).min(end));
            if from < to {
                let source = (from - place.offset) as usize;
                let length = (to - from) as usize;
                let target = (from - start) as usize;
                into[target..target + length].copy_from_slice(&self.content(place)[source..source + length]);
            }
        }
    }

    /// Reads a word with the stores of this transaction applied.
    ///
    /// # Errors
    /// The medium's.
    #[inline]
    pub fn read_u64(&self, pm: &dyn PmMedium, offset: PmOffset) -> Result<u64> {
        let word = pm.load_u64(offset)?;
        let (start, end) = (offset.0, offset.0 + 8);
        let touches = |place: &Place| place.offset < end && start < place.offset + u64::from(place.length);
        if !self.places.iter().any(touches) {
            return Ok(word);
        }
        let mut word = word.to_le_bytes();
        self.overlay(offset, &mut word);
        Ok(u64::from_le_bytes(word))
    }

    /// Writes so far.
    pub fn write_count(&self) -> u16 {
        self.places.len() as u16
    }

    /// True when nothing was written.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Bytes of the record it will make.
    #[inline]
    pub fn record_size(&self) -> usize {
        HEADER_SIZE + DATA_CHECK_SIZE * self.checks.len() + 8 * self.words.len()
    }

    /// Forgets everything, keeping the buffers.
    pub fn clear(&mut self) {
        self.places.clear();
        self.words.clear();
        self.checks.clear();
    }

    #[inline]
    fn content(&self, place: &Place) -> &[u8] {
        let at = 8 * place.at as usize;
        &self.words.as_bytes()[at..at + place.length as usize]
    }

    pub(crate) fn counts(&self) -> (u16, u16) {
        (self.places.len() as u16, self.checks.len() as u16)
    }

    pub(crate) fn checks(&self) -> &[DataCheck] {
        &self.checks
    }

    #[inline]
    pub(crate) fn writes(&self) -> impl Iterator<Item = (PmOffset, &[u8])> {
        self.places.iter().map(|place| (PmOffset(place.offset), self.content(place)))
    }

    /// Appends the record's body (checks and writes) behind an already reserved header.
    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        for check in &self.checks {
            into.extend_from_slice(&check.offset.0.to_le_bytes());
            // Length and CRC go in as a single word: the record's checksum, computed next, would stall on two
            // halves.
            let crc = if planted(Mistake::DataChecksumNotStored) { 0 } else { check.crc };
            into.extend_from_slice(&(u64::from(check.length) | u64::from(crc) << 32).to_le_bytes());
        }
        into.extend_from_slice(self.words.as_bytes());
    }
}
