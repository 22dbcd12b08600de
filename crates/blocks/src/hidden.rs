//! Entries of the block table that the scan after the mount could not read or understand, where the table is the file
//! map: which blocks of files may be hidden in them.
//!
//! A block lies at a distance below the reach from its home, so a block can be hidden only if an unreadable slot lies as
//! near to its home: few blocks have such a home. Of a file that asks for such a block the blocks are counted once: the
//! slot of the inode has the number of all its blocks, and when those that are known add up to it, a hidden block can lie
//! only over a cold block.
//!
//! Where a table beside is the map (cuckoo, clustered), that is read once, too: a block can be hidden only if a line that may
//! have its entry is lost as well ([`LostLines`]).
//!
//! Invariants:
//! 1. What is said of a file stays true until the unmount: no entry becomes hidden after the scan, a hidden entry is never
//!    removed, and an inode number with a hidden block is not given to another file.
//! 2. A block that is known is not hidden: a key is in the table once.
//!
//! Lock order: the locks of this file are last locks, and one is held at a time.

use crate::presence::Presence;
use crate::unreadable::{LostLines, Unreadable};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::homes::{Home, Homes};
use terrace_format::table::Owner;
use terrace_format::{Corrupt, FileBlock, Ino, PmBlock};
use terrace_runtime::sync::RwLock;
use terrace_runtime::sync::atomic::{AtomicU64, Ordering};
use terrace_wal::{Error, Result};

/// Homes that are computed together, all of one multiple of 16 blocks.
const BATCH: u64 = 16;
/// Homes that one call computes at most.
const MOST_HOMES: u64 = 1 << 18;
/// Homes that a call computes before the blocks of a file are counted.
const FEW_HOMES: u64 = 1 << 10;
/// Cold blocks of a file under which a hidden block may lie, at most; more are taken for all blocks.
const MOST_COLD: usize = 1 << 16;
/// Blocks that memory keeps as known to be gone, at most.
const MOST_GONE: usize = 1 << 16;
/// Whether an owner word of the block table is one that a sound table may have.
pub fn is_possible(word: u64) -> bool {
    match Owner::decode(word) {
        Some(Owner::File { block, .. }) => block <= MAX_FILE_BLOCK,
        owner => owner.is_some(),
    }
}

/// The error of an owner word that no sound table has.
pub fn impossible(block: PmBlock, word: u64) -> Error {
    Corrupt::new(format!("block table entry {block}"), "a known owner", format!("{word:#x}")).into()
}

/// The hidden blocks that a file may have.
#[derive(Debug)]
enum Verdict {
    /// Some of these cold blocks.
    Over(BTreeSet<FileBlock>),
    /// Any block whose home is near to an unreadable slot: blocks are missing, or more cold blocks are in question than memory
    /// keeps.
    Any,
}

/// Files that were judged.
#[derive(Debug, Default)]
struct Judged {
    /// Files without a hidden block: bits of 64 inode numbers.
    sound: HashMap<u32, u64>,
    /// Blocks that were known and are gone: a block that was known is not hidden.
    gone: HashSet<(Ino, FileBlock)>,
    others: HashMap<u32, Verdict>,
}

/// Unreadable entries of a block table, and the files that were judged.
#[derive(Debug)]
pub struct Hidden {
    /// No entry that was there at the mount lies as far from its home.
    reach: AtomicU64,
    unreadable: RwLock<Unreadable>,
    judged: RwLock<Judged>,
}

impl Default for Hidden {
    fn default() -> Self {
        Hidden { reach: AtomicU64::new(u64::MAX), unreadable: RwLock::default(), judged: RwLock::default() }
    }
}

impl Hidden {
    /// The reach at the mount, in slots.
    pub fn set_reach(&self, reach: u64) {
        self.reach.store(reach, Ordering::Release);
    }

    /// Whether every entry could be read.
    pub fn is_empty(&self) -> bool {
        self.unreadable.read().runs.is_empty()
    }

    /// The lines of a table beside that are lost: the others have told their blocks.
    pub fn set_lost_lines(&self, lines: LostLines) {
        tracing::error!("lines of the map are lost, and entries of the block table: {lines}");
        self.unreadable.write().lines.get_or_insert(lines);
    }

    /// Whether a table beside has told its lost lines.
    pub fn has_lost_lines(&self) -> bool {
        self.unreadable.read().lines.is_some()
    }

    /// Adds a slot that cannot be read.
    pub(crate) fn meet(&self, slot: PmBlock, why: Error) {
        self.unreadable.write().meet(slot, why);
    }

    /// Why a block with this home may be hidden, if it may.
    fn why(&self, unreadable: &Unreadable, homes: &Homes, at: (Ino, FileBlock), home: Home) -> Option<Error> {
        unreadable.why(homes, self.reach.load(Ordering::Acquire), at, home)
    }

    /// Whether no block of a file is hidden; false also of a file that was not judged.
    pub fn is_sound(&self, ino: Ino) -> bool {
        self.judged.read().is_sound(ino)
    }

    /// Notes that a block that was known has left PM. More blocks than memory keeps may be hidden again.
    pub fn left(&self, homes: &Homes, ino: Ino, block: FileBlock) {
        let at = (ino, block);
        if !self.is_sound(ino)
            && self.why(&self.unreadable.read(), homes, at, homes.home(ino, block)).is_some()
        {
            self.note_gone(ino, block);
        }
    }

    /// As [`Self::left`], while the lost lines of a table beside are not known yet.
    pub fn note_gone(&self, ino: Ino, block: FileBlock) {
        let mut judged = self.judged.write();
        if judged.gone.len() < MOST_GONE {
            judged.gone.insert((ino, block));
        }
    }

    /// Refuses a block that is not known and may be hidden.
    ///
    /// # Errors
    /// `Hidden` for a file that was not judged; the error of the slots.
    pub fn refuse(&self, homes: &Homes, presence: &Presence, at: (Ino, FileBlock), home: Home) -> Result<()> {
        let Some(why) = self.why(&self.unreadable.read(), homes, at, home) else { return Ok(()) };
        let (ino, block) = at;
        let judged = self.judged.read();
        if presence.contains(ino, block) || judged.gone.contains(&at) {
            return Ok(());
        }
        match judged.others.get(&(ino.0 as u32)) {
            Some(Verdict::Over(blocks)) if !blocks.contains(&block) => Ok(()),
            Some(_) => Err(why),
            None if judged.is_sound(ino) => Ok(()),
            None => Err(Error::Hidden(ino)),
        }
    }

    /// The block up to which no block of `from..to` is hidden: `to`, or earlier, as far as a call looks.
    ///
    /// # Errors
    /// `Hidden` for a file that was not judged; the error of the slots.
    pub fn shown(
        &self,
        homes: &Homes,
        presence: &Presence,
        ino: Ino,
        (from, to): (FileBlock, FileBlock),
    ) -> Result<FileBlock> {
        let is_judged = {
            let judged = self.judged.read();
            if judged.is_sound(ino) {
                return Ok(to);
            }
            match judged.others.get(&(ino.0 as u32)) {
                Some(Verdict::Over(blocks)) => {
                    let Some(block) = blocks.range(from..to.max(from)).next() else { return Ok(to) };
                    let home = homes.home(ino, *block);
                    let why = self.why(&self.unreadable.read(), homes, (ino, *block), home);
                    return why.map_or(Ok(to), Err);
                }
                verdict => verdict.is_some(),
            }
        };
        assert!(from <= to, "blocks {from} to {to} of inode {ino}");
        let end = to.0.min(MAX_FILE_BLOCK.0 + 1);
        let most = if is_judged { MOST_HOMES } else { FEW_HOMES };
        let looked = end.min(from.0.saturating_add(most));
        let mut first = None;
        self.visit(homes, (ino, from.0..looked), |block, why| {
            let is_known = presence.contains(ino, block) || self.judged.read().gone.contains(&(ino, block));
            first = (!is_known).then_some(why);
            is_known
        });
        match first {
            Some(why) if is_judged => Err(why),
            None if looked >= end => Ok(to),
            None if is_judged => Ok(FileBlock(looked)),
            _ => Err(Error::Hidden(ino)),
        }
    }

    /// Visits the blocks of a range whose home is near to an unreadable slot, until `visit` says false.
    fn visit(
        &self,
        homes: &Homes,
        (ino, blocks): (Ino, Range<u64>),
        mut visit: impl FnMut(FileBlock, Error) -> bool,
    ) {
        let unreadable = self.unreadable.read();
        let (mut at, mut batch) = (blocks.start, [Home::default(); BATCH as usize]);
        while at < blocks.end {
            let count = (BATCH - at % BATCH).min(blocks.end - at);
            let (of, _) = batch.split_at_mut(count as usize);
            homes.homes(ino, FileBlock(at), of);
            for (block, home) in (at..).zip(&*of) {
                let block = FileBlock(block);
                if let Some(why) = self.why(&unreadable, homes, (ino, block), *home)
                    && !visit(block, why)
                {
                    return;
                }
            }
            at += count;
        }
    }

    /// Judges a file by the number of its blocks, in PM or below, those that its slot has beside presence, and its cold blocks
    /// as runs: first block and length. The caller holds its lock, at least shared.
    pub fn judge(
        &self,
        homes: &Homes,
        presence: &Presence,
        ino: Ino,
        (blocks, in_slot): (u64, &[FileBlock]),
        cold: &[(FileBlock, u32)],
    ) {
        let mut known = presence.count(ino, FileBlock(0), FileBlock(u64::MAX)) + in_slot.len() as u64;
        let mut over = BTreeSet::new();
        for (first, length) in cold {
            let end = first.plus(u64::from(*length));
            assert!(*first < end, "a run of no cold blocks at block {first} of inode {ino}");
            let in_both = in_slot.iter().filter(|block| (*first..end).contains(block)).count() as u64;
            let in_pm = presence.count(ino, *first, end) + in_both;
            assert!(
                in_pm <= u64::from(*length),
                "{in_pm} of {length} blocks from {first} of inode {ino} lie in PM"
            );
            known += u64::from(*length) - in_pm;
            self.visit(homes, (ino, first.0..end.0), |block, _| {
                if !presence.contains(ino, block) && !self.judged.read().gone.contains(&(ino, block)) {
                    over.insert(block);
                }
                over.len() <= MOST_COLD
            });
        }
        let number = ino.0 as u32;
        let mut judged = self.judged.write();
        if known != blocks || over.len() > MOST_COLD {
            tracing::error!("blocks of inode {ino} may lie in unreadable entries of the block table");
            judged.others.insert(number, Verdict::Any);
        } else if over.is_empty() {
            *judged.sound.entry(number / 64).or_default() |= 1 << (number % 64);
        } else {
            judged.others.insert(number, Verdict::Over(over));
        }
    }
}

impl Judged {
    fn is_sound(&self, ino: Ino) -> bool {
        let number = ino.0 as u32;
        self.sound.get(&(number / 64)).is_some_and(|bits| bits >> (number % 64) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_format::homes::Placement;

    const INO: Ino = Ino(7);

    /// Homes over 500 slots, and entries that cannot be read in a short reach around the end of the pool.
    fn unreadable(placement: Placement, slots: &[u64]) -> (Homes, Presence, Hidden) {
        let hidden = Hidden::default();
        hidden.set_reach(8);
        slots.iter().for_each(|slot| hidden.meet(PmBlock(*slot), impossible(PmBlock(*slot), 5)));
        (Homes::over([3; 16], placement, PmBlock(19), PmBlock(519)), Presence::default(), hidden)
    }

    fn blocks_near(homes: &Homes, slots: &[u64], blocks: u64) -> Vec<u64> {
        let is_near = |block: &u64| {
            let home = homes.home(INO, FileBlock(*block));
            slots.iter().any(|slot| homes.distance(home, PmBlock(*slot)) < 8)
        };
        (0..blocks).filter(is_near).collect()
    }

    #[test]
    fn blocks_with_a_home_near_an_unreadable_slot_are_refused() {
        let unreadable_slots = [&[100, 101, 102, 103][..], &[19], &[518, 517], &[20, 300, 301, 516]];
        let both = unreadable_slots.map(|slots| [(Placement::Linear, slots), (Placement::Groups, slots)]);
        for (placement, slots) in both.into_iter().flatten() {
            let (homes, presence, hidden) = unreadable(placement, slots);
            hidden.judge(&homes, &presence, INO, (1, &[]), &[]);
            let refused = |block: &u64| {
                let home = homes.home(INO, FileBlock(*block));
                hidden.refuse(&homes, &presence, (INO, FileBlock(*block)), home).is_err()
            };
            let near = blocks_near(&homes, slots, 3000);
            assert_eq!((0..3000).filter(refused).collect::<Vec<_>>(), near, "{slots:?}");
            assert!(near.len() > 30, "{slots:?}");
            let shown = |from, to| hidden.shown(&homes, &presence, INO, (FileBlock(from), FileBlock(to)));
            assert_eq!(shown(0, near[0]).unwrap(), FileBlock(near[0]));
            assert!(matches!(shown(0, near[0] + 1), Err(Error::Corrupt(_))));
            assert_eq!(shown(near[0] + 1, near[1]).unwrap(), FileBlock(near[1]));
            // A block that is known, or was, is not hidden.
            presence.insert(INO, FileBlock(near[0]));
            hidden.left(&homes, INO, FileBlock(near[1]));
            assert_eq!(shown(0, near[2]).unwrap(), FileBlock(near[2]));
            assert!(!refused(&near[0]) && !refused(&near[1]) && refused(&near[2]));
        }
    }

    #[test]
    fn a_file_is_judged_by_the_number_of_its_blocks() {
        let (homes, presence, hidden) = unreadable(Placement::Linear, &[100, 101, 102, 103]);
        let near = blocks_near(&homes, &[100, 101, 102, 103], 3000);
        let shown = |ino, to| hidden.shown(&homes, &presence, ino, (FileBlock(0), FileBlock(to)));
        assert!(matches!(shown(INO, u64::MAX), Err(Error::Hidden(INO))));
        assert!(!hidden.is_sound(INO));
        // Five blocks: two in PM, of which one lies over a run of four.
        presence.insert(INO, FileBlock(near[0]));
        presence.insert(INO, FileBlock(9000));
        let cold = [(FileBlock(near[0]), 4)];
        hidden.judge(&homes, &presence, INO, (5, &[]), &cold);
        let over: Vec<u64> =
            near.iter().copied().filter(|b| (near[0] + 1..near[0] + 4).contains(b)).collect();
        assert_eq!(shown(INO, u64::MAX).is_ok(), over.is_empty());
        assert_eq!(shown(INO, near[0] + 1).unwrap(), FileBlock(near[0] + 1));
        hidden.judge(&homes, &presence, Ino(8), (0, &[]), &[]);
        assert_eq!((shown(Ino(8), u64::MAX).unwrap(), hidden.is_sound(Ino(8))), (FileBlock(u64::MAX), true));
        // A block too few, and a block too many: a damaged count.
        for (ino, blocks) in [(Ino(9), 1), (Ino(10), 3)] {
            presence.insert(ino, FileBlock(0));
            presence.insert(ino, FileBlock(1));
            hidden.judge(&homes, &presence, ino, (blocks, &[]), &[]);
            assert!(matches!(shown(ino, u64::MAX), Err(Error::Corrupt(_))) && !hidden.is_sound(ino));
        }
    }

    #[test]
    fn a_listing_of_a_sparse_file_looks_at_a_bounded_number_of_homes() {
        let slots = 1 << 24;
        let (homes, hidden) =
            (Homes::over([3; 16], Placement::Linear, PmBlock(0), PmBlock(slots)), Hidden::default());
        hidden.set_reach(2);
        hidden.meet(PmBlock(77), impossible(PmBlock(77), 5));
        hidden.judge(&homes, &Presence::default(), INO, (1, &[]), &[]);
        let (mut at, mut calls) = (FileBlock(0), 0);
        let end = loop {
            match hidden.shown(&homes, &Presence::default(), INO, (at, FileBlock(u64::MAX))) {
                Ok(next) => {
                    assert_eq!(next.0 - at.0, MOST_HOMES);
                    (at, calls) = (next, calls + 1);
                }
                end => break end,
            }
        };
        assert!(matches!(end, Err(Error::Corrupt(_))) && calls > 4, "{calls} calls");
    }
}
