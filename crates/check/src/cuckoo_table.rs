//! The entries of a cuckoo table, as a check has read them.

use terrace_format::cuckoo_map::{BUCKET_ENTRIES, Entry};

/// An entry of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) entry: Entry,
    pub(crate) line: u64,
}

/// The entries of all files, by inode and block.
pub(crate) struct CuckooTable {
    pub(crate) entries: Vec<Found>,
}

impl CuckooTable {
    /// The entries of a file in a range of blocks.
    pub(crate) fn range(&self, ino: u64, (from, end): (u64, u64)) -> &[Found] {
        let before = |key: (u64, u64)| {
            self.entries.partition_point(|found| (found.entry.ino.0, found.entry.block.0) < key)
        };
        self.entries.get(before((ino, from))..before((ino, end))).unwrap_or(&[])
    }
}

/// The four entries of a line.
pub fn entries_of(bytes: &[u8; 16 * BUCKET_ENTRIES]) -> impl Iterator<Item = [u64; 2]> {
    let word = |words: &[u8; 16], at: usize| {
        words.as_chunks::<8>().0.get(at).map_or(0, |word| u64::from_le_bytes(*word))
    };
    bytes.as_chunks::<16>().0.iter().map(move |words| [word(words, 0), word(words, 1)])
}
