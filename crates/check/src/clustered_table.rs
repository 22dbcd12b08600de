//! The lines of a clustered table, as a check has read them.

use terrace_format::clustered_map::{LINE_WORDS, Line, Piece};

/// A line with a key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) piece: Piece,
    pub(crate) line: Line,
    /// Its number.
    pub(crate) number: u64,
}

/// The lines of all files, by inode and piece.
pub(crate) struct ClusteredTable {
    pub(crate) lines: Vec<Found>,
}

impl ClusteredTable {
    /// The lines of a file whose pieces have numbers in a range.
    pub(crate) fn range(&self, ino: u64, (from, end): (u64, u64)) -> &[Found] {
        let before = |key: (u64, u64)| {
            self.lines.partition_point(|found| (found.piece.ino.0, found.piece.number) < key)
        };
        self.lines.get(before((ino, from))..before((ino, end))).unwrap_or(&[])
    }
}

/// The words of a line.
pub fn line_of(bytes: &[u8; 8 * LINE_WORDS]) -> Line {
    let mut line = Line::default();
    let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    line.0.iter_mut().zip(words).for_each(|(place, word)| *place = word);
    line
}
