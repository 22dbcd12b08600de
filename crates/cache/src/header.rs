//! The header of a block in DRAM: 64 bytes, with or without a page.
//!
//! Invariants: a header is in exactly one list; `dirty` is not empty exactly in the list [`List::Dirty`]; lines that are
//! dirty are valid.
//!
//! The header also suits the write buffer of [HiNFS], which is not built: a dirty page names its home, and a
//! header may have no page (a ghost). Today the home of every dirty page is a lower tier, every header has a
//! page, and every page is whole. The write buffer adds a list of ghosts, pages with missing lines (`valid`),
//! and write-back to PM by dirty lines. A ghost has no `birth`: the field can count the lines that an fsync
//! found dirty.

use terrace_format::{BLOCK_SIZE, FileBlock, Ino};

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
}

/// Where the content of a dirty page belongs (design 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    /// On a block tier.
    Block,
    /// In PM: buffered in DRAM because that is faster ([HiNFS]).
    Pm,
}

/// A write-back of the page is under way.
const IN_FLIGHT: u8 = 1;
/// Of a dirty page: its home is PM.
const HOME_PM: u8 = 2;

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
    /// Dirty, by their last write.
    Dirty = 3,
}

/// Number of lists, and each of them.
pub(crate) const LISTS: usize = 4;
pub(crate) const ALL: [List; LISTS] = [List::Ahead, List::Late, List::Stays, List::Dirty];

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
    /// [`IN_FLIGHT`], [`HOME_PM`].
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

    /// Where a dirty page belongs.
    pub fn home(&self) -> Home {
        if self.flags & HOME_PM != 0 { Home::Pm } else { Home::Block }
    }

    /// Sets [`Self::home`].
    pub fn set_home(&mut self, home: Home) {
        self.set(HOME_PM, home == Home::Pm);
    }

    pub fn key(&self) -> PageKey {
        PageKey {
            ino: Ino(self.ino.into()),
            generation: self.generation,
            block: FileBlock(self.block.into()),
        }
    }
}
