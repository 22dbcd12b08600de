//! PM as it will be after recovery: the medium, and the writes of valid records in memory.

use std::collections::BTreeMap;
use terrace_format::PmOffset;
use terrace_format::address::LINE_SIZE;
use terrace_media::{MediaError, PmMedium};

/// Bytes of one cache line that records have written, and which of them.
struct Line {
    bytes: [u8; LINE_SIZE as usize],
    written: u64,
}

/// Written lines over a medium that is never written.
#[derive(Default)]
pub(crate) struct Overlay {
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

    /// Reads the medium and lays the written bytes over it.
    pub fn read(&self, pm: &dyn PmMedium, offset: PmOffset, into: &mut [u8]) -> Result<(), MediaError> {
        pm.read(offset, into)?;
        if self.lines.is_empty() || into.is_empty() {
            return Ok(());
        }
        let last = (offset.0 + (into.len() as u64 - 1)) / LINE_SIZE;
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
        Ok(())
    }
}
