//! The header of a block in DRAM: 64 bytes, with or without a page.
//!
//! Invariants: a header is in exactly one list; a page is in [`List::Dirty`] or [`List::Lazy`] exactly while it is dirty, by
//! its home; lines that are dirty are valid; a line of a dirty page that is not valid was never written, and is zero.

use std::ops::Range;
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};
use terrace_placement::Home;

/// Bytes of a cache line, the grain of the masks.
const LINE: usize = 64;
/// No header.
pub(crate) const NONE: u32 = u32::MAX;

/// The key of a page: block, inode and generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageKey {
    /// The file.
    pub ino: Ino,
    /// Its generation.
    pub generation: u32,
    /// The block.
    pub block: FileBlock,
}

/// A set of the cache lines of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lines(pub u64);

impl Lines {
    /// Every line.
    pub const ALL: Lines = Lines(u64::MAX);

    /// The lines that bytes `from..to` of a block touch.
    pub fn touched(from: usize, to: usize) -> Lines {
        let (first, end) = (from / LINE, to.min(BLOCK_SIZE as usize).div_ceil(LINE));
        match end.saturating_sub(first) {
            0 => Lines(0),
            count => Lines((u64::MAX >> (64 - count)) << first),
        }
    }

    /// The lines of both sets.
    pub fn union(self, other: Lines) -> Lines {
        Lines(self.0 | other.0)
    }

    /// The lines that are in both sets.
    pub fn intersection(self, other: Lines) -> Lines {
        Lines(self.0 & other.0)
    }

    /// Whether it has all lines of another set.
    pub fn contains(self, other: Lines) -> bool {
        other.0 & !self.0 == 0
    }

    /// Bytes `from..to` of a block cut where lines of the set follow lines outside of it, or the other way round; `true`: in
    /// the set.
    pub fn cut(self, from: usize, to: usize) -> impl Iterator<Item = (Range<usize>, bool)> {
        let mut at = from;
        std::iter::from_fn(move || {
            let first = (at < to).then_some(at / LINE)?;
            let is_in = self.0 >> first & 1 == 1;
            let same = if is_in { !(self.0 >> first) } else { self.0 >> first };
            let end = ((first + same.trailing_zeros() as usize).min(64) * LINE).min(to);
            let begin = std::mem::replace(&mut at, end);
            Some((begin..end, is_in))
        })
    }
}

/// A write-back of the page is under way.
const IN_FLIGHT: u8 = 1;

/// The lists of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum List {
    /// Read ahead and not yet asked for, by the time they came.
    Ahead = 0,
    /// Clean, came lately.
    Late = 1,
    /// Clean, and stays unless something else is asked for more often.
    Stays = 2,
    /// Dirty, with a home below PM, by their last write.
    Dirty = 3,
    /// Dirty, with home PM, by their last write ([HiNFS] section 4.1).
    Lazy = 4,
}

impl List {
    /// The list of dirty pages of a home.
    pub fn of_home(home: Home) -> List {
        match home {
            Home::Block => List::Dirty,
            Home::Pm => List::Lazy,
        }
    }

    /// Whether its pages are dirty.
    pub fn is_dirty(self) -> bool {
        matches!(self, List::Dirty | List::Lazy)
    }
}

/// Number of lists, and each of them.
pub(crate) const LISTS: usize = 5;
pub(crate) const ALL: [List; LISTS] = [List::Ahead, List::Late, List::Stays, List::Dirty, List::Lazy];

/// The header of a block.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Header {
    /// Of a clean page: the version of its block when it was read. Of a dirty one: rises with every write.
    pub version: u64,
    /// Birth of a dirty page. Write-back, which copied the page, knows by an unchanged birth that the page
    /// was not dropped meanwhile.
    pub birth: u64,
    /// Lines not yet written back.
    pub dirty: Lines,
    /// Lines that the page holds.
    pub valid: Lines,
    /// Dirty: when it was written last. Read ahead: when its lifetime ends. Nanoseconds.
    pub time_ns: u64,
    pub ino: u32,
    pub generation: u32,
    pub block: u32,
    pub next: u32,
    pub previous: u32,
    /// Uses of the page.
    pub touches: u16,
    pub list: List,
    /// [`IN_FLIGHT`].
    flags: u8,
}

const _: () = assert!(size_of::<Header>() == 64);

impl Header {
    pub fn new(key: PageKey, list: List, version: u64, time_ns: u64) -> Header {
        Header {
            version,
            birth: 0,
            dirty: Lines(0),
            valid: Lines::ALL,
            time_ns,
            ino: key.ino.0 as u32,
            generation: key.generation,
            block: key.block.0 as u32,
            next: NONE,
            previous: NONE,
            touches: 0,
            list,
            flags: 0,
        }
    }

    fn set(&mut self, flag: u8, value: bool) {
        self.flags = if value { self.flags | flag } else { self.flags & !flag };
    }

    /// Whether a write-back of it is under way.
    pub fn is_in_flight(&self) -> bool {
        self.flags & IN_FLIGHT != 0
    }

    /// Sets [`Self::is_in_flight`].
    pub fn set_in_flight(&mut self, in_flight: bool) {
        self.set(IN_FLIGHT, in_flight);
    }

    /// The home of a dirty page.
    pub fn home(&self) -> Home {
        if self.list == List::Lazy { Home::Pm } else { Home::Block }
    }

    pub fn key(&self) -> PageKey {
        PageKey {
            ino: Ino(self.ino.into()),
            generation: self.generation,
            block: FileBlock(self.block.into()),
        }
    }
}
