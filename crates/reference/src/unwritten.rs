//! Writes whose home is a lower tier: they wait in DRAM until write-back, and a crash loses any part of them
//! (docs/semantics.md).
//!
//! A file keeps its durable content and the writes since. After a crash each aligned 8 bytes hold one of the
//! versions that these bytes had since then, and the size is one that the file had since then, or the end of
//! the bytes written back. Bytes that no version had below that size are wrong: bytes of another file, older
//! bytes, or zeros that no version had. Truncate, punch, fallocate, changes of attributes and writes with
//! O_SYNC are durable when they return: they change the durable content, and cut the waiting versions. A size
//! raised behind waiting bytes becomes durable with these bytes.

use crate::content::{BLOCK, Content};
use crate::stamp::Stamp;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

const B: u64 = BLOCK as u64;
/// Bytes that a crash leaves old or new as a whole.
const WORD: usize = 8;

/// Bytes of a write that no durable change has replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Piece {
    offset: u64,
    bytes: Arc<[u8]>,
}

impl Piece {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    /// The part of the piece inside a range.
    fn slice(&self, range: Range<u64>) -> Option<Piece> {
        let (from, to) = (self.offset.max(range.start), self.end().min(range.end));
        let bytes = self.bytes.get((from.checked_sub(self.offset)?) as usize..)?;
        let bytes = bytes.get(..to.checked_sub(from)? as usize)?;
        (!bytes.is_empty()).then(|| Piece { offset: from, bytes: bytes.into() })
    }
}

/// A waiting write, or a raise of the size that waits with the writes before it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Waiting {
    serial: u64,
    pieces: Vec<Piece>,
    /// The size of the file after this write.
    size: u64,
    /// The times of the write, unless a durable change set later times.
    mtime: Option<Stamp>,
    ctime: Option<Stamp>,
}

/// Durable content and waiting writes of a file; the module says how they are judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unwritten {
    durable: Content,
    mtime: Stamp,
    ctime: Stamp,
    writes: Vec<Waiting>,
    /// Blocks that write-back may have given a location, and the last write to each.
    touched: BTreeMap<u64, u64>,
}

/// The file that a mount shows, for [`Unwritten::judge`].
#[derive(Debug, Clone, Default)]
pub struct Shown {
    /// Its size.
    pub size: u64,
    /// Modification time.
    pub mtime: i64,
    /// Change time.
    pub ctime: i64,
    /// Its data, as SEEK_DATA tells, block by block, before the size.
    pub blocks: BTreeMap<u64, Vec<u8>>,
}

impl Unwritten {
    pub(crate) fn new(durable: Content, mtime: Stamp, ctime: Stamp) -> Unwritten {
        Unwritten { durable, mtime, ctime, writes: Vec::new(), touched: BTreeMap::new() }
    }

    /// Adds a waiting write; `size` is the size of the file after it.
    pub(crate) fn add(&mut self, serial: u64, offset: u64, data: &[u8], size: u64, when: Stamp) {
        let piece = Piece { offset, bytes: data.into() };
        let blocks = offset / B..piece.end().div_ceil(B);
        self.touched.extend(blocks.map(|block| (block, serial)));
        let (mtime, ctime) = (Some(when), Some(when));
        self.writes.push(Waiting { serial, pieces: vec![piece], size, mtime, ctime });
    }

    /// Makes the writes before `serial` durable: they were written back.
    pub(crate) fn written_back(&mut self, serial: u64) {
        let count = self.writes.partition_point(|write| write.serial < serial);
        for write in self.writes.drain(..count) {
            write.pieces.iter().for_each(|piece| self.durable.write(piece.offset, &piece.bytes));
            self.durable.raise_size(write.size);
            self.mtime = write.mtime.unwrap_or(self.mtime);
            self.ctime = write.ctime.unwrap_or(self.ctime);
        }
        self.touched.retain(|block, last| {
            if *last < serial {
                self.durable.give_place(*block);
            }
            *last >= serial
        });
    }

    /// Whether no write waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Writes durable bytes.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        self.cut(offset..offset + data.len() as u64);
        self.durable.write(offset, data);
    }

    /// Sets the size of a file whose visible size is `visible`. An end behind waiting bytes becomes durable
    /// with these bytes.
    pub(crate) fn truncate(&mut self, serial: u64, size: u64, visible: u64) {
        let durable = self.durable.size();
        if size >= visible {
            return self.raise_size(serial, size, visible);
        }
        self.cut(size..u64::MAX);
        self.touched.split_off(&size.div_ceil(B));
        self.writes.iter_mut().for_each(|write| write.size = write.size.min(size));
        self.durable.raise_size(visible);
        self.durable.truncate(size);
        self.durable.lower_size(durable.min(size));
    }

    /// Makes a hole in a file whose visible size is `size`.
    pub(crate) fn punch(&mut self, offset: u64, length: u64, size: u64) {
        let end = offset + length;
        self.cut(offset..end);
        let last = if end >= size { end.div_ceil(B) } else { end / B };
        self.touched.retain(|block, _| !(offset.div_ceil(B)..last).contains(block));
        // The visible size decides whether the hole frees the block of its end.
        let durable = self.durable.size();
        self.durable.raise_size(size);
        self.durable.punch(offset, length);
        self.durable.lower_size(durable);
    }

    /// Allocates blocks; true if blocks were missing, and the times may have changed.
    pub(crate) fn allocate(&mut self, offset: u64, length: u64, when: Stamp) -> bool {
        let added = self.durable.allocate(offset, length) > 0;
        if added {
            (self.mtime, self.ctime) = (self.mtime.or(when), self.ctime.or(when));
            // Waiting writes are older than this change: when they are written back, their times do not
            // replace its time.
            for write in &mut self.writes {
                write.mtime = write.mtime.map(|mtime| mtime.or(when));
                write.ctime = write.ctime.map(|ctime| ctime.or(when));
            }
        }
        added
    }

    /// Raises the size of a file whose visible size is `visible`.
    pub(crate) fn raise_size(&mut self, serial: u64, size: u64, visible: u64) {
        if visible > self.durable.size() {
            self.writes.push(Waiting { serial, pieces: Vec::new(), size, mtime: None, ctime: None });
        } else {
            self.durable.raise_size(size);
        }
    }

    pub(crate) fn set_mtime(&mut self, when: Stamp) {
        self.mtime = when;
        self.writes.iter_mut().for_each(|write| write.mtime = None);
    }

    pub(crate) fn set_ctime(&mut self, when: Stamp) {
        self.ctime = when;
        self.writes.iter_mut().for_each(|write| write.ctime = None);
    }

    /// Removes the bytes of a range from all waiting writes.
    fn cut(&mut self, range: Range<u64>) {
        for write in &mut self.writes {
            let kept = write.pieces.iter().flat_map(|piece| {
                [piece.slice(0..range.start), piece.slice(range.end..u64::MAX)].into_iter().flatten()
            });
            write.pieces = kept.collect();
        }
    }

    /// The smallest size that a crash leaves.
    pub fn durable_size(&self) -> u64 {
        self.durable.size()
    }

    /// Blocks of a range that have a location on a medium.
    pub(crate) fn placed(&self, first: u64, end: u64) -> impl Iterator<Item = u64> {
        self.durable.allocated(first, end)
    }

    /// Blocks that may have no location on a medium yet.
    pub fn without_place(&self) -> u64 {
        self.touched.keys().filter(|block| !self.durable.has_place(**block)).count() as u64
    }

    /// Whether every byte of a range waits in DRAM: then a read of the range needs no medium.
    pub fn holds(&self, range: Range<u64>) -> bool {
        let mut at = range.start;
        while at < range.end {
            let pieces = self.writes.iter().flat_map(|write| &write.pieces);
            let next = pieces.filter(|piece| piece.offset <= at && at < piece.end()).map(Piece::end).max();
            match next {
                Some(next) => at = next,
                None => return false,
            }
        }
        true
    }

    /// Whether a crash may leave the shown file.
    ///
    /// # Errors
    /// A description of the first difference from every file that a crash may leave.
    pub fn judge(&self, shown: &Shown) -> Result<(), String> {
        let newest = self.newest_size();
        if !(self.durable.size()..=newest).contains(&shown.size) {
            let durable = self.durable.size();
            return Err(format!("size {}, durable is {durable}, the newest {newest}", shown.size));
        }
        self.judge_times(shown)?;
        let end = shown.size.div_ceil(B);
        let of_durable = self.durable.allocated(0, end);
        let mut blocks: Vec<u64> = of_durable.chain(self.touched.range(..end).map(|(at, _)| *at)).collect();
        blocks.extend(shown.blocks.keys());
        // Behind an end that was raised a crash may show zeros that no write wrote.
        blocks.extend(self.writes.iter().map(|write| write.size / B).filter(|block| *block < end));
        blocks.extend([self.durable.size() / B].into_iter().filter(|block| *block < end));
        blocks.sort_unstable();
        blocks.dedup();
        blocks.into_iter().try_for_each(|block| self.judge_block(block, shown))
    }

    fn newest_size(&self) -> u64 {
        let sizes = self.writes.iter().map(|write| write.size);
        sizes.max().unwrap_or(0).max(self.durable.size())
    }

    fn judge_times(&self, shown: &Shown) -> Result<(), String> {
        let (mut mtimes, mut ctimes) = (vec![self.mtime], vec![self.ctime]);
        mtimes.extend(self.writes.iter().filter_map(|write| write.mtime));
        ctimes.extend(self.writes.iter().filter_map(|write| write.ctime));
        for (name, stamps, found) in [("mtime", mtimes, shown.mtime), ("ctime", ctimes, shown.ctime)] {
            if !stamps.iter().any(|stamp| stamp.allows(found)) {
                return Err(format!("{name} {found}, expected one of {stamps:?}"));
            }
        }
        Ok(())
    }

    fn judge_block(&self, block: u64, shown: &Shown) -> Result<(), String> {
        let data = shown.blocks.get(&block);
        if data.is_none() && self.durable.is_written(block) {
            return Err(format!("block {block} is a hole, and was durable"));
        }
        if data.is_some() && !self.durable.is_written(block) && !self.touched.contains_key(&block) {
            return Err(format!("block {block} has data, and was never written"));
        }
        let end = shown.size.min((block + 1) * B).saturating_sub(block * B) as usize;
        let zeros = [0; BLOCK];
        let found = data.map_or(&zeros[..], |bytes| &bytes[..]);
        let versions = self.versions(block);
        for at in (0..end).step_by(WORD) {
            let to = end.min(at + WORD);
            let word = found.get(at..to).unwrap_or_default();
            let is_of = |version: &&Version| version.length >= to && version.bytes.get(at..to) == Some(word);
            if !versions.iter().any(|version| is_of(&version)) {
                return Err(self.describe(block, at, word, &versions, shown.size));
            }
        }
        Ok(())
    }

    fn describe(&self, block: u64, at: usize, word: &[u8], versions: &[Version], size: u64) -> String {
        let mut seen: Vec<String> = versions
            .iter()
            .map(|version| {
                let known = version.length.saturating_sub(at).min(word.len());
                let bytes = version.bytes.get(at..at + known).unwrap_or_default();
                if known == 0 { "nothing".into() } else { format!("{bytes:02x?}") }
            })
            .collect();
        seen.dedup();
        let byte = block * B + at as u64;
        let sizes = (self.durable.size(), self.newest_size());
        format!(
            "bytes at {byte} are {word:02x?} (size {size}, durable and newest {sizes:?}); they were: {}",
            seen.join(", ")
        )
    }

    /// The versions of a block, the durable one first.
    fn versions(&self, block: u64) -> Vec<Version> {
        let start = block * B;
        let length = |size: u64| size.saturating_sub(start).min(B) as usize;
        let mut bytes = self.durable.block(block);
        let mut size = self.durable.size();
        let mut versions = vec![Version { bytes, length: length(size), size }];
        for write in &self.writes {
            let mut inside = write.pieces.iter().filter_map(|piece| piece.slice(start..start + B)).peekable();
            let ends_elsewhere = inside.peek().is_none();
            let mut changed = length(write.size.max(size)) > length(size);
            for piece in inside {
                let at = (piece.offset - start) as usize;
                bytes[at..at + piece.bytes.len()].copy_from_slice(&piece.bytes);
                changed = true;
            }
            // A size raised without bytes in this block becomes durable with the end before it, no matter
            // which bytes wait below that end.
            if ends_elsewhere && write.size > size {
                let at_end = versions.iter().filter(|version| version.size == size);
                let raised = at_end.map(|version| Version {
                    bytes: version.bytes,
                    length: length(write.size),
                    size: write.size,
                });
                let raised: Vec<Version> = raised.collect();
                versions.extend(raised);
            }
            size = size.max(write.size);
            if changed {
                versions.push(Version { bytes, length: length(size), size });
            }
        }
        versions
    }

    /// The content that a mount showed: it is durable from then on. Judge it first.
    pub(crate) fn shown(&self, shown: &Shown) -> Content {
        let mut content = self.durable.clone();
        content.raise_size(shown.size);
        for (block, bytes) in &shown.blocks {
            let end = shown.size.min((block + 1) * B).saturating_sub(block * B) as usize;
            content.write(block * B, bytes.get(..end).unwrap_or(bytes));
        }
        content
    }
}

/// A block as it could be read at one time.
struct Version {
    bytes: [u8; BLOCK],
    /// Bytes of it before the end of the file.
    length: usize,
    /// The size of the file.
    size: u64,
}

#[cfg(test)]
mod tests;
