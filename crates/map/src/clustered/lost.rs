//! Clustered map: look-ups and lists where lines of the table cannot be read.
//!
//! A block without a readable line is absent when memory knows the blocks of its file from the block table. Where entries of
//! the block table are lost, too, the map is read once, and a file is judged by the number of its blocks at its first
//! question (`blocks::hidden`). A block is never taken for absent while it may lie in a lost line (I8).

use super::table::{ClusteredMap, Found, damaged_line};
use crate::hidden::judge_missing;
use smallvec::smallvec;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ops::Range;
use terrace_blocks::pool::{Hashed, Known};
use terrace_blocks::unreadable::LostLines;
use terrace_format::clustered_map::{Line, Piece};
use terrace_format::inode::DIRECT_BLOCKS;
use terrace_format::{FileBlock, Ino};
use terrace_wal::{Error, Result};

impl ClusteredMap {
    /// Refuses blocks of a piece without a readable line, unless they are absent. `error` comes from an unreadable or damaged
    /// line.
    #[cold]
    pub(super) fn judge_missing(
        &self,
        hashed: &Hashed,
        (piece, home): (Piece, u64),
        wanted: u16,
        error: Option<&Error>,
    ) -> Result<Option<Found>> {
        let sound = OnceCell::new();
        for block in piece.blocks(wanted) {
            let is_sound = || *sound.get_or_init(|| self.is_sound_around(home));
            judge_missing(hashed, (piece.ino, block), error, is_sound)?;
        }
        self.refuse_lost(hashed, piece, wanted).map(|()| None)
    }

    /// Whether the keys of a sequence lie within the reach of their homes: a damaged key may be the key of the piece.
    fn is_sound_around(&self, home: u64) -> bool {
        (0..self.reach().min(self.lines.count())).all(|distance| {
            let number = self.lines.ahead(home, distance);
            self.read_key(number).is_ok_and(|key| key == 0 || self.home_piece(number, key).is_some())
        })
    }

    /// The piece of a key, if the line is within the reach of its home.
    fn home_piece(&self, number: u64, key: u64) -> Option<Piece> {
        let is_near = |piece: &Piece| self.lines.distance(self.lines.home(*piece), number) < self.reach();
        Piece::decode(key).filter(is_near)
    }

    /// Enters the blocks of the table in memory, where the scan of the block table has met an unreadable line. Once in a
    /// mount; the change of a block that comes or goes meanwhile enters it or takes it out.
    pub(super) fn learn_all(&self, hashed: &Hashed) -> Result<()> {
        if hashed.known() != Known::Doubtful || hashed.hidden.has_lost_lines() {
            return Ok(());
        }
        let mut lost = BTreeMap::new();
        for number in 0..self.lines.count() {
            let line = match self.read_line(number) {
                Ok(line) => line,
                Err(error) => {
                    lost.insert(number, error);
                    continue;
                }
            };
            match self.home_piece(number, line.key()) {
                Some(piece) => self.learn_line(hashed, number, piece, &line),
                None if line.key() == 0 => {}
                None => _ = lost.insert(number, damaged_line(number, line.key())),
            }
        }
        if lost.is_empty() {
            hashed.learned_from_map();
        } else {
            hashed.hidden.set_lost_lines(LostLines::new(self.lines_of(), lost));
        }
        Ok(())
    }

    fn learn_line(&self, hashed: &Hashed, number: u64, piece: Piece, line: &Line) {
        for (index, _) in line.places().filter(|(index, _)| piece.has(*index)) {
            // A change clears the block first, and takes its bit out afterwards under the lock held here.
            let is_there = || {
                let line = self.read_line(number);
                let is_mapped = line.is_ok_and(|line| line.key() == piece.key() && line.get(index).is_some());
                // Another piece may get the line between the loads of its words.
                is_mapped && self.read_key(number).is_ok_and(|key| key == piece.key())
            };
            hashed.presence.insert_if(piece.ino, piece.first().plus(index as u64), is_there);
        }
    }

    /// The lines where the search for a block looks; a block in the slot has no lines. A sequence goes on at the first line
    /// behind the last.
    fn lines_of(&self) -> terrace_blocks::unreadable::LinesOf {
        let (lines, reach) = (self.lines.clone(), self.reach().min(self.lines.count()));
        Box::new(move |ino: Ino, block: FileBlock| {
            if block.0 < DIRECT_BLOCKS {
                return smallvec![];
            }
            let home = lines.home(Piece::of(ino, block));
            let window: Range<u64> = home..home + reach;
            let again = 0..window.end.saturating_sub(lines.count());
            smallvec![window, again]
        })
    }
}
