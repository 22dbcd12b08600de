//! The arguments and results of file-system calls.

pub mod inode;
pub mod segment;

use serde::Serialize;
use terrace_format::address::{LINE_SIZE, MAX_FILE_BLOCK};
use terrace_format::{BLOCK_SIZE, FileBlock, Ino};

/// The user of a call. Permissions are checked by the kernel (`default_permissions`); the file system needs
/// the identity for ownership of new files and for set-id rules.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
}

/// Whether an operation may wait for a lower tier or for space (design L2). A request thread asks with
/// `Never` and hands the request to a waiting thread when it gets [`FsError::WouldBlock`](crate::error::FsError::WouldBlock).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Return `WouldBlock` instead of waiting. Nothing has changed then, but that fallocate may have done a
    /// part, which the repeated request completes. A write of several pieces gives what it has written.
    Never,
    /// As `Never`, but a writer that comes too fast for migration is slowed, by some milliseconds: for threads that wait
    /// for no device.
    Briefly,
    /// Wait as long as it takes.
    Allowed,
}

/// Attributes of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number.
    pub ino: Ino,
    /// Rises when the number is reused.
    pub generation: u32,
    /// Type and permissions, as st_mode.
    pub mode: u32,
    /// Links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u32,
    /// Bytes (for a symlink the length of its target, for a directory its number of entries).
    pub size: u64,
    /// 512-byte units allocated on any tier.
    pub blocks: u64,
    /// Nanoseconds since the epoch.
    pub atime_ns: i64,
    /// Nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// Nanoseconds since the epoch.
    pub ctime_ns: i64,
    /// Nanoseconds since the epoch.
    pub btime_ns: i64,
}

/// A timestamp to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The current time.
    Now,
    /// This time, nanoseconds since the epoch.
    At(i64),
}

/// Attributes to change; `None` leaves an attribute as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Truncates or extends.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Remove set-id bits because an unprivileged caller changes the size.
    pub kill_set_id: bool,
}

/// Flags of one write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteFlags {
    /// O_SYNC or O_DSYNC: the write is made durable before the answer.
    pub sync: bool,
    /// The kernel asks to remove set-id bits.
    pub kill_set_id: bool,
    /// Pages of a mapping, gathered by the kernel: on a full pool they may go in as many pieces as it takes (C19).
    pub pages: bool,
}

/// The modes of fallocate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocate {
    /// Mode 0: allocates and extends the file.
    Extend,
    /// FALLOC_FL_KEEP_SIZE.
    KeepSize,
    /// FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE.
    PunchHole,
}

/// SEEK_DATA or SEEK_HOLE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// The next offset that holds data.
    Data,
    /// The next offset that holds none; the end of the file counts as one.
    Hole,
}

/// setxattr's flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace.
    Any,
    /// EEXIST when present.
    Create,
    /// ENODATA when absent.
    Replace,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Inode number.
    pub ino: Ino,
    /// File type: mode >> 12.
    pub file_type: u8,
    /// Reading resumes strictly after this (design C2).
    pub cookie: u64,
    /// Name, any bytes but `/` and NUL.
    pub name: Vec<u8>,
}

/// Space of the whole pool, in 4 KiB blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// All tiers together.
    pub blocks: u64,
    /// Free.
    pub free: u64,
    /// Free for users (without the reserve).
    pub available: u64,
    /// Inode numbers in use or on free slots.
    pub files: u64,
    /// The number of inodes that can still be made.
    pub files_free: u64,
}

/// How access times are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atime {
    /// Updated when not newer than mtime or ctime, or a day old.
    Relative,
    /// Never updated by reads.
    Never,
}

/// Where the blocks of one file are (`terrace where`).
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Whereabouts {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes whose newest copy is on each tier: (tier, bytes), tier 0 first.
    pub tiers: Vec<(u8, u64)>,
    /// Bytes cached in DRAM.
    pub dram_bytes: u64,
    /// Bytes of dirty pages in DRAM: the newest content of their blocks, not yet durable.
    pub dirty_bytes: u64,
    /// Bytes of clean copies kept on lower tiers beneath PM.
    pub clean_bytes: u64,
    /// Blocks for which a sync has chosen between lazy and eager writes,
    pub judged_blocks: u64,
    /// and of them those whose writes are eager.
    pub eager_blocks: u64,
    /// The tier that it is pinned to.
    pub pinned_tier: Option<u8>,
    /// The predictions for the file.
    #[serde(flatten)]
    pub predictions: Predictions,
}

/// The predictions for a file, and its temperature by the times of its PM blocks. `None`: the policy does not
/// ask, no block is in PM, or the inode is no regular file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Predictions {
    /// An fsync is expected soon after a write.
    pub sync_predicted: Option<bool>,
    /// The last write was large and stable.
    pub large_predicted: Option<bool>,
    /// Read more than twice its size since it was last written.
    pub read_dominated: Option<bool>,
    /// When its blocks in PM were written, on average: seconds since the epoch.
    pub average_mtime: Option<f64>,
    /// When those that were read since were read last, on average: seconds since the epoch.
    pub average_rtime: Option<f64>,
    /// write-hot, read-hot, cold.
    pub temperature: Option<&'static str>,
}

/// A range of file blocks, end exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRange {
    /// First block.
    pub first: FileBlock,
    /// The block after the last block.
    pub end: FileBlock,
}

impl BlockRange {
    /// From `first` to before `end`.
    pub fn new(first: FileBlock, end: FileBlock) -> BlockRange {
        BlockRange { first, end }
    }
    /// Number of blocks.
    pub fn count(&self) -> u64 {
        self.end.0.saturating_sub(self.first.0)
    }
    /// True when it holds no block.
    pub fn is_empty(&self) -> bool {
        self.first >= self.end
    }
    /// True when both have a block in common.
    pub fn overlaps(&self, other: &BlockRange) -> bool {
        self.first < other.end && other.first < self.end
    }
}

/// The most unreadable sectors of a piece; after them the rest of the piece is not tried.
pub const MOST_BAD: usize = 8;

/// Bytes of a cache line.
pub const LINE: usize = LINE_SIZE as usize;

/// The block after the last block that a file can have.
pub const FILE_END: FileBlock = FileBlock(MAX_FILE_BLOCK.0 + 1);

/// All blocks that a file can have.
pub const WHOLE_FILE: BlockRange = BlockRange { first: FileBlock(0), end: FILE_END };

/// Bytes of a block.
pub const BLOCK: usize = BLOCK_SIZE as usize;
