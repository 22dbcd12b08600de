//! Unreadable parts of the tables that tell the blocks of files: slots of the block table, and lines of a table
//! beside.

use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::ops::Range;
use terrace_format::homes::{Home, Homes, Placement};
use terrace_format::{FileBlock, Ino, PmBlock};
use terrace_wal::Error;

/// Neighbouring slots that could not be read.
#[derive(Debug)]
pub(crate) struct Run {
    first: u64,
    end: u64,
    /// Why the first of them could not be read.
    why: Error,
}

/// Unreadable slots and lines.
#[derive(Debug, Default)]
pub(crate) struct Unreadable {
    pub runs: Vec<Run>,
    /// Lost lines of the map, where it is a table beside the block table and was read.
    pub lines: Option<LostLines>,
}

impl Unreadable {
    /// Adds a slot that cannot be read.
    pub fn meet(&mut self, slot: PmBlock, why: Error) {
        let runs = &mut self.runs;
        let at = runs.partition_point(|run| run.end < slot.0);
        match runs.get_mut(at) {
            Some(run) if (run.first..run.end).contains(&slot.0) => {}
            Some(run) if run.end == slot.0 => run.end += 1,
            next => {
                assert!(
                    next.is_none_or(|run| slot.0 < run.first),
                    "slot {slot} is in a run of unreadable ones"
                );
                runs.insert(at, Run { first: slot.0, end: slot.0 + 1, why });
            }
        }
    }

    /// Why a block with this home may be hidden, if it may.
    pub fn why(
        &self,
        homes: &Homes,
        reach: u64,
        (ino, block): (Ino, FileBlock),
        home: Home,
    ) -> Option<Error> {
        let Unreadable { runs, lines } = self;
        if let Some(lines) = lines {
            return lines.why(ino, block);
        }
        let reach = reach.min(homes.length());
        let is_near = |slot| homes.distance(home, PmBlock(slot)) < reach;
        let of_run = |run: &Run, mut slots: Range<u64>| slots.any(is_near).then(|| run.why.clone());
        if homes.placement() == Placement::Groups {
            // The groups of a search lie anywhere.
            return runs.iter().find_map(|run| of_run(run, run.first..run.end));
        }
        let window = home.slot.0..home.slot.0.saturating_add(reach);
        // Behind the last slot the search goes on at the first one.
        let again = window.start.saturating_sub(homes.slots())..window.end.saturating_sub(homes.slots());
        [window, again].into_iter().find_map(|window| {
            let from = runs.partition_point(|run| run.end <= window.start);
            runs[from..]
                .iter()
                .take_while(|run| run.first < window.end)
                .find_map(|run| of_run(run, run.first.max(window.start)..run.end.min(window.end)))
        })
    }
}

/// The lines of a table in which the entry of a block may lie, as ranges.
pub type LinesOf = Box<dyn Fn(Ino, FileBlock) -> SmallVec<[Range<u64>; 3]> + Send + Sync>;

/// Lost lines of a table beside the block table, with the error of each line.
pub struct LostLines {
    lines_of: LinesOf,
    lines: BTreeMap<u64, Error>,
}

impl LostLines {
    /// The lost lines of a table of which all lines were read.
    pub fn new(lines_of: LinesOf, lines: BTreeMap<u64, Error>) -> LostLines {
        LostLines { lines_of, lines }
    }

    /// Why the entry of a block may be lost, if it may.
    pub(crate) fn why(&self, ino: Ino, block: FileBlock) -> Option<Error> {
        let ranges = (self.lines_of)(ino, block);
        ranges.into_iter().find_map(|range| self.lines.range(range).next()).map(|(_, why)| why.clone())
    }
}

impl fmt::Debug for LostLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LostLines").field("lines", &self.lines).finish_non_exhaustive()
    }
}

impl Display for LostLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.lines.iter().next();
        first.map_or(Ok(()), |(line, why)| write!(f, "{} from line {line} on: {why}", self.lines.len()))
    }
}
