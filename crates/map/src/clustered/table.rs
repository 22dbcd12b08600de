//! The table of a clustered map: searches for lines.

use super::claims::Claims;
use crate::file_map::{Mapping, Witness};
use crate::pages::Pages;
use crate::radix_tree::RadixTree;
use std::sync::Arc;
use terrace_blocks::pool::{Hashed, Known};
use terrace_blocks::{BlockPool, Presence};
use terrace_format::clustered_map::{LINE_WORDS, Line, Lines, PIECE_BLOCKS, Piece, Place};
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
        let mut words = [U64::ZERO; LINE_WORDS];
        self.pages.table_words(self.lines.at(number), &mut words)?;
        Ok(Line(words.map(U64::get)))
    }

    /// The key of a line, perhaps of another inode and amid its change.
    #[inline]
    pub(super) fn read_key(&self, number: u64) -> Result<u64> {
        let mut word = [U64::ZERO];
        self.pages.table_words(self.lines.at(number), &mut word)?;
        let [key] = word.map(U64::get);
        Ok(key)
    }

    /// The line of a piece: its home, or a later one of its sequence, as far as the reach. `is_absent` is asked when the home
    /// does not have it. A line that cannot be read is an error where the piece is in no other.
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
        self.search_on(piece, home, first.err())
    }

    fn search_on(&self, piece: Piece, home: u64, mut unreadable: Option<Error>) -> Result<Option<Found>> {
        for distance in 1..self.reach().min(self.lines.count()) {
            let number = self.lines.ahead(home, distance);
            match self.read_key(number) {
                Ok(key) if key == piece.key() => {
                    return Ok(Some(Found { number, line: self.read_line(number)? }));
                }
                Ok(_) => {}
                Err(error) => unreadable = unreadable.or(Some(error)),
            }
        }
        unreadable.map_or(Ok(None), Err)
    }

    /// The line of a piece of which `wanted` blocks are asked for, by bits.
    #[inline]
    pub(super) fn find(&self, piece: Piece, home: u64, wanted: u16) -> Result<Option<Found>> {
        let hashed = self.hashed()?;
        // Before the search: the scan may end during it.
        let known = hashed.known();
        let is_absent =
            || known == Known::All && hashed.presence.sixteen(piece.ino, piece.number) & wanted == 0;
        self.search(piece, home, is_absent)
    }

    /// Judges blocks that no line maps: a block that has to be there is damage.
    fn refuse_lost(&self, piece: Piece, blocks: u16) -> Result<()> {
        let presence = &self.hashed()?.presence;
        let lost = presence.sixteen(piece.ino, piece.number) & blocks;
        let first = piece.first().0;
        let mut lost = (0..PIECE_BLOCKS).filter(|index| lost >> index & 1 == 1).map(|index| first + index);
        match lost.find(|block| presence.requires(piece.ino, FileBlock(*block))) {
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
        let found = self.find(piece, home, wanted)?;
        let mut missing = wanted;
        out.fill(None);
        if let Some(Found { line, .. }) = found {
            for (index, out) in (from..).zip(out) {
                if let Some(place) = line.get(index) {
                    *out = Some(self.mapping(place)?);
                    missing &= !(1 << index);
                }
            }
        }
        if missing == 0 { Ok(()) } else { self.refuse_lost(piece, missing) }
    }

    /// Enters the blocks of all lines, where the scan of the block table has met a line that it could not read. Once in a
    /// mount; a block that comes or goes meanwhile is entered or taken out by its change.
    pub(super) fn learn_all(&self, hashed: &Hashed) -> Result<()> {
        for number in 0..self.lines.count() {
            let line = self.read_line(number)?;
            if line.key() == 0 {
                continue;
            }
            let Some(piece) = Piece::decode(line.key()) else {
                let site = format!("clustered table, line {number}");
                return Err(Corrupt::new(site, "a piece of a file", format!("{:#x}", line.key())).into());
            };
            for (index, _) in line.places().filter(|(index, _)| piece.has(*index)) {
                // A change that clears the block takes its bit out afterwards, under the lock that is held here.
                let is_there = || {
                    let line = self.read_line(number);
                    line.is_ok_and(|line| line.key() == piece.key() && line.get(index).is_some())
                };
                hashed.presence.insert_if(piece.ino, piece.first().plus(index as u64), is_there);
            }
        }
        hashed.learned_from_map();
        Ok(())
    }
}

fn hashed_of(blocks: &BlockPool) -> Result<&Hashed> {
    let missing = || Corrupt::new("block pool", "presence of file blocks", "none").into();
    blocks.hashed().ok_or_else(missing)
}

impl Witness for ClusteredMap {
    fn presence(&self) -> Option<&Presence> {
        self.pages.blocks.hashed().map(|hashed| &hashed.presence)
    }

    fn has_entry(&self, ino: Ino, block: FileBlock) -> Result<bool> {
        let piece = Piece::of(ino, block);
        let found = self.search(piece, self.lines.home(piece), || false)?;
        Ok(found.is_some_and(|found| found.line.get((block.0 % PIECE_BLOCKS) as usize).is_some()))
    }

    /// The table itself is read again after an unreadable line.
    fn left(&self, _: Ino, _: FileBlock) {}
}
