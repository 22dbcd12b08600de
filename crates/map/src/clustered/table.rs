//! The table of a clustered map: searches for lines.

use super::claims::Claims;
use crate::file_map::{Mapping, Witness};
use crate::hidden::{is_whole, note_left_of_table};
use crate::pages::Pages;
use crate::radix_tree::RadixTree;
use std::sync::Arc;
use terrace_blocks::BlockPool;
use terrace_blocks::pool::Hashed;
use terrace_format::clustered_map::{Line, Lines, PIECE_BLOCKS, Piece, Place};
use terrace_format::{Corrupt, FileBlock, Ino};
use terrace_runtime::planted::{Mistake, planted};
use terrace_runtime::sync::Mutex;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};
use terrace_wal::{Error, Result};
use zerocopy::little_endian::U64;

/// The clustered table as file map.
pub struct ClusteredMap {
    /// The first eight blocks of files, which lie in slots as those of a radix tree.
    pub(super) slots: RadixTree,
    pub(super) pages: Pages,
    pub(super) lines: Lines,
    pub(super) claims: Claims,
    /// `map_reach` as stored.
    pub(super) reach: AtomicU64,
    /// Held while `map_reach` is raised.
    pub(super) raising: Mutex<()>,
}

/// A line of a piece, and its number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub number: u64,
    pub line: Line,
}

impl ClusteredMap {
    /// The map of a pool with presence.
    ///
    /// # Errors
    /// The medium's; `Corrupt` for a pool without presence or an impossible reach.
    pub fn open(blocks: Arc<BlockPool>) -> Result<ClusteredMap> {
        let lines = Lines::new(hashed_of(&blocks)?.key, blocks.wal().geometry());
        let (slots, pages) = (RadixTree::new(Arc::clone(&blocks)), Pages::new(blocks));
        let mut word = [U64::ZERO];
        pages.table_words(pages.blocks.wal().geometry().map_reach(), &mut word)?;
        let [reach] = word.map(U64::get);
        let most = lines.most_reach();
        if reach == 0 || reach > most {
            return Err(Corrupt::new("map reach", format!("1 to {most}"), reach.to_string()).into());
        }
        let (claims, raising) = (Claims::new(lines.count()), Mutex::new(()));
        Ok(ClusteredMap { slots, pages, lines, claims, reach: AtomicU64::new(reach), raising })
    }

    #[inline]
    pub(super) fn reach(&self) -> u64 {
        self.reach.load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn hashed(&self) -> Result<&Hashed> {
        hashed_of(&self.pages.blocks)
    }

    #[inline]
    pub(super) fn read_line(&self, number: u64) -> Result<Line> {
        self.pages.table_line(self.lines.at(number)).map(Line)
    }

    /// The key of a line, perhaps of another inode and amid its change.
    #[inline]
    pub(super) fn read_key(&self, number: u64) -> Result<u64> {
        self.pages.table_word(self.lines.at(number))
    }

    /// The line of a piece: its home, or a later line of its sequence, as far as the reach. `is_absent` is asked when another
    /// piece has the home. An unreadable or damaged line is an error unless the piece is found.
    #[inline]
    pub(super) fn search(
        &self,
        piece: Piece,
        home: u64,
        is_absent: impl FnOnce() -> bool,
    ) -> Result<Option<Found>> {
        let first = self.read_line(home);
        if let Ok(line) = first
            && line.key() == piece.key()
        {
            return Ok(Some(Found { number: home, line }));
        }
        let is_free = || first.as_ref().is_ok_and(|line| line.key() == 0);
        if is_absent() || planted(Mistake::ProbeEndsAtFreeSlot) && is_free() {
            return Ok(None);
        }
        self.search_on(piece, home, first.and_then(|line| verify_key(home, line.key())).err())
    }

    fn search_on(&self, piece: Piece, home: u64, mut error: Option<Error>) -> Result<Option<Found>> {
        for distance in 1..self.reach().min(self.lines.count()) {
            let number = self.lines.ahead(home, distance);
            match self.read_key(number) {
                Ok(key) if key == piece.key() => {
                    return Ok(Some(Found { number, line: self.read_line(number)? }));
                }
                key => error = error.or(key.and_then(|key| verify_key(number, key)).err()),
            }
        }
        error.map_or(Ok(None), Err)
    }

    /// The line of a piece; `wanted` are the bits of the blocks in question. `None` says that these blocks are absent.
    #[inline]
    pub(super) fn find(&self, piece: Piece, home: u64, wanted: u16) -> Result<Option<Found>> {
        let hashed = self.hashed()?;
        // Before the search: the scan may end during it.
        let is_whole = is_whole(hashed, piece.ino);
        let mut known_absent = false;
        let answer = self.search(piece, home, || {
            known_absent = is_whole && hashed.presence.sixteen(piece.ino, piece.number) & wanted == 0;
            known_absent
        });
        match answer {
            Ok(None) if !known_absent => self.judge_missing(hashed, (piece, home), wanted, None),
            Err(error) => self.judge_missing(hashed, (piece, home), wanted, Some(&error)),
            answer => answer,
        }
    }

    /// Refuses the answer "absent" for blocks of a piece: a block in memory without a mapping is damage.
    pub(super) fn refuse_lost(&self, hashed: &Hashed, piece: Piece, blocks: u16) -> Result<()> {
        let lost = hashed.presence.sixteen(piece.ino, piece.number) & blocks;
        match piece.blocks(lost).find(|block| hashed.presence.requires(piece.ino, *block)) {
            None => Ok(()),
            Some(block) => {
                let site = format!("clustered table, block {block} of inode {}", piece.ino);
                let expected =
                    format!("a line within {} lines from {}", self.reach(), self.lines.home(piece));
                Err(Corrupt::new(site, expected, "none").into())
            }
        }
    }

    /// The mapping that a line tells of a block.
    #[inline]
    pub(super) fn mapping(&self, place: Place) -> Result<Mapping> {
        let block = self.pages.verify(place.block.0, "value of the clustered table")?;
        Ok(Mapping { block, unwritten: place.unwritten })
    }

    /// The mappings of blocks of a piece, from number `from` on.
    #[inline]
    pub(super) fn look_up(
        &self,
        piece: Piece,
        home: u64,
        from: usize,
        out: &mut [Option<Mapping>],
    ) -> Result<()> {
        let wanted = (u16::MAX >> (PIECE_BLOCKS as usize - out.len())) << from;
        out.fill(None);
        let Some(Found { line, .. }) = self.find(piece, home, wanted)? else { return Ok(()) };
        let mut missing = wanted;
        for (index, out) in (from..).zip(out) {
            if let Some(place) = line.get(index) {
                *out = Some(self.mapping(place)?);
                missing &= !(1 << index);
            }
        }
        if missing == 0 { Ok(()) } else { self.refuse_lost(self.hashed()?, piece, missing) }
    }
}

/// Refuses the key word of a damaged line.
#[inline]
fn verify_key(number: u64, key: u64) -> Result<()> {
    if key == 0 || Piece::decode(key).is_some() { Ok(()) } else { Err(damaged_line(number, key)) }
}

/// The error of a damaged line.
#[cold]
pub(super) fn damaged_line(number: u64, key: u64) -> Error {
    let site = format!("clustered table, line {number}");
    Corrupt::new(site, "a piece of a file near its home", format!("{key:#x}")).into()
}

fn hashed_of(blocks: &BlockPool) -> Result<&Hashed> {
    let missing = || Corrupt::new("block pool", "presence of file blocks", "none").into();
    blocks.hashed().ok_or_else(missing)
}

impl Witness for ClusteredMap {
    fn table(&self) -> Option<&Hashed> {
        self.pages.blocks.hashed()
    }

    fn has_entry(&self, ino: Ino, block: FileBlock) -> Result<bool> {
        let piece = Piece::of(ino, block);
        let found = self.search(piece, self.lines.home(piece), || false)?;
        Ok(found.is_some_and(|found| found.line.get((block.0 % PIECE_BLOCKS) as usize).is_some()))
    }

    fn left(&self, ino: Ino, block: FileBlock) {
        if let Ok(hashed) = self.hashed() {
            note_left_of_table(hashed, ino, block);
        }
    }
}
