//! The engine's error: what transactions, block table, maps and catalog can meet.

use terrace_format::{Corrupt, FileBlock, Ino};
use terrace_media::MediaError;

/// Result of an engine operation.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the layers below the file system.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A medium failed.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// A persistent structure is damaged.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// Space ran out.
    #[error(transparent)]
    NoSpace(#[from] NoSpace),
    /// An earlier failure of PM stopped all changes; reads go on.
    #[error("the pool takes no changes since persistent memory failed")]
    Stopped,
    /// A transaction larger than a quarter lane: our own mistake, reported and not committed.
    #[error("transaction of {bytes} bytes is larger than the largest record, {limit}")]
    RecordTooLarge {
        /// The size of its record.
        bytes: usize,
        /// A quarter lane.
        limit: usize,
    },
    /// A metadata page lies below PM: it is fetched, without locks, and what met it starts again (design C1).
    #[error("{0} lies on a lower tier")]
    PageBelow(Box<PageBelow>),
    /// A change of a file map lacks room in its pages: it is made, without locks, and the change starts again (T7).
    #[error("{0}")]
    MapRoom(Box<MapRoom>),
    /// The block table, which is the file map, was not read to its end since the mount: it is read, without locks, and the
    /// operation starts again.
    #[error("the block table was not read yet")]
    TableUnread,
    /// Blocks of a file may lie in entries of the block table that cannot be read: the file is judged, without locks, and the
    /// operation starts again.
    #[error("blocks of inode {0} may lie in unreadable entries of the block table")]
    Hidden(Ino),
    /// The pool cannot be used.
    #[error("{0}")]
    Refused(Box<str>),
}

// Results are moved on every path: what is large in an error is boxed.
const _: () = assert!(size_of::<Error>() <= 24);

/// A metadata page on a lower tier, named so that it is found again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum PageBelow {
    /// The leaf that covers a key.
    #[error("catalog leaf of {key:02x?} in shard {shard}")]
    Leaf {
        /// The shard.
        shard: u32,
        /// A key, or a lower bound of keys, in its range.
        key: Vec<u8>,
    },
    /// A page of the inode file.
    #[error("inode page {index}")]
    Inodes {
        /// Its index.
        index: u64,
    },
}

impl From<PageBelow> for Error {
    fn from(page: PageBelow) -> Error {
        Error::PageBelow(Box::new(page))
    }
}

/// Room that a change of a file map lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the map of inode {ino} lacks room for {count} blocks at block {first}")]
pub struct MapRoom {
    /// The file.
    pub ino: Ino,
    /// The first block.
    pub first: FileBlock,
    /// Blocks.
    pub count: usize,
    /// Runs of PM blocks in which they lie; 0 where they are removed.
    pub runs: usize,
    /// PM blocks that the room takes.
    pub pages: usize,
    /// Blocks that get their places before these in the same transaction, where a map needs to know them: file, first block
    /// and number.
    pub before: Vec<(Ino, FileBlock, usize)>,
}

impl From<MapRoom> for Error {
    fn from(room: MapRoom) -> Error {
        Error::MapRoom(Box::new(room))
    }
}

/// Where space ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoSpace {
    /// No PM block for this purpose.
    #[error("no free block in persistent memory")]
    Pm,
    /// No lower tier can take the blocks.
    #[error("no free space on any lower tier")]
    Tier,
    /// Inode numbers or directory cookies ran out.
    #[error("no free number")]
    Numbers,
}
