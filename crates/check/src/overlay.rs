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
        let (mut at, mut rest) = (offset.0, bytes);
        while !rest.is_empty() {
            let within = (at % LINE_SIZE) as usize;
            let (piece, tail) = rest.split_at((LINE_SIZE as usize - within).min(rest.len()));
            let empty = Line { bytes: [0; LINE_SIZE as usize], written: 0 };
            let line = self.lines.entry(at / LINE_SIZE).or_insert(empty);
            if let Some(place) = line.bytes.get_mut(within..within + piece.len()) {
                place.copy_from_slice(piece);
            }
            line.written |= u64::MAX >> (LINE_SIZE as usize - piece.len()) << within;
            at += piece.len() as u64;
            rest = tail;
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
            let start = number * LINE_SIZE;
            let first = offset.0.saturating_sub(start) as usize;
            let place = start.saturating_sub(offset.0) as usize;
            let (Some(bytes), Some(places)) = (line.bytes.get(first..), into.get_mut(place..)) else {
                continue;
            };
            for ((byte, place), within) in bytes.iter().zip(places).zip(first..) {
                if line.written >> within & 1 == 1 {
                    *place = *byte;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use terrace_media::pm::RecordedPm;

    /// Bytes of the medium.
    const SIZE: usize = 512;

    #[test]
    fn a_range_reads_as_the_medium_with_the_written_bytes() {
        let below: Vec<u8> = (0..SIZE).map(|at| at as u8).collect();
        let pm = PmView::new(Arc::new(RecordedPm::from_image(below.clone())));
        let (mut overlay, mut expected) = (Overlay::default(), below);
        let mut random = 7u64;
        let mut below_size = |bound: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) as usize % bound
        };
        for turn in 0..300u64 {
            let start = below_size(SIZE);
            let bytes = vec![turn as u8 ^ 0xa5; below_size((SIZE - start).min(200) + 1)];
            overlay.write(PmOffset(start as u64), &bytes);
            expected[start..start + bytes.len()].copy_from_slice(&bytes);
            let start = below_size(SIZE);
            let mut found = vec![0; below_size(SIZE - start + 1)];
            overlay.read(&pm, PmOffset(start as u64), &mut found).unwrap();
            assert_eq!(
                found,
                expected[start..start + found.len()],
                "turn {turn}, {} from {start}",
                found.len()
            );
            if turn % 64 == 63 {
                overlay = Overlay::default();
                pm.read(PmOffset(0), &mut expected).unwrap();
            }
        }
    }
}
