//! PM as it will be after recovery or repair: the medium, and the writes of valid records and of repair in
//! memory.

use std::collections::BTreeMap;
use terrace_format::PmOffset;
use terrace_format::address::LINE_SIZE;
use terrace_media::{MediaError, PmView};

/// The bytes of a line, and a mask of the bytes that records (or repair) have written.
#[derive(Clone)]
struct Line {
    bytes: [u8; LINE_SIZE as usize],
    written: u64,
}

/// Written lines over a medium that is never written.
#[derive(Default, Clone)]
pub struct Overlay {
    lines: BTreeMap<u64, Line>,
}

impl Overlay {
    /// Stores bytes in memory.
    pub fn write(&mut self, offset: PmOffset, bytes: &[u8]) {
        for (at, byte) in (offset.0..).zip(bytes) {
            let line = self
                .lines
                .entry(at / LINE_SIZE)
                .or_insert(Line { bytes: [0; LINE_SIZE as usize], written: 0 });
            let within = (at % LINE_SIZE) as usize;
            line.written |= 1 << within;
            if let Some(place) = line.bytes.get_mut(within) {
                *place = *byte;
            }
        }
    }

    /// The lines with written bytes, by address: (first byte, bytes, which of them are written).
    pub fn lines(&self) -> impl Iterator<Item = (PmOffset, &[u8; LINE_SIZE as usize], u64)> {
        self.lines.iter().map(|(number, line)| (PmOffset(number * LINE_SIZE), &line.bytes, line.written))
    }

    /// Reads the medium and lays the written bytes over it.
    pub fn read(&self, pm: &PmView, offset: PmOffset, into: &mut [u8]) -> Result<(), MediaError> {
        if let Err(error) = pm.read(offset, into) {
            return self.read_by_line(pm, offset, into).ok_or(error);
        }
        if self.lines.is_empty() || into.is_empty() {
            return Ok(());
        }
        self.lay_over(offset, into);
        Ok(())
    }

    /// A range that the medium cannot give whole: lines written whole are read from memory alone.
    fn read_by_line(&self, pm: &PmView, offset: PmOffset, into: &mut [u8]) -> Option<()> {
        let mut at = offset;
        let mut rest = &mut *into;
        while !rest.is_empty() {
            let take = (LINE_SIZE - at.0 % LINE_SIZE).min(rest.len() as u64);
            let (piece, tail) = rest.split_at_mut_checked(take as usize)?;
            let line = self.lines.get(&(at.0 / LINE_SIZE));
            if line.is_none_or(|line| line.written != u64::MAX) {
                pm.read(at, piece).ok()?;
            }
            (at, rest) = (at.plus(take), tail);
        }
        self.lay_over(offset, into);
        Some(())
    }

    fn lay_over(&self, offset: PmOffset, into: &mut [u8]) {
        let last = (offset.0 + (into.len() as u64).saturating_sub(1)) / LINE_SIZE;
        for (number, line) in self.lines.range(offset.0 / LINE_SIZE..=last) {
            for (within, byte) in line.bytes.iter().enumerate() {
                let at = number * LINE_SIZE + within as u64;
                if line.written >> within & 1 == 1
                    && at >= offset.0
                    && let Some(place) = into.get_mut((at - offset.0) as usize)
                {
                    *place = *byte;
                }
            }
        }
    }
}
