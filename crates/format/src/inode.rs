//! Inode slots: 128 bytes, 32 to a page of the inode file (design 4.3).
//!
//! The first line holds what a write changes (size and times), the second what it rarely changes.

use crate::address::PmOffset;
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a slot.
pub const SLOT_SIZE: u64 = 128;
/// Slots of an inode page.
pub const SLOTS_PER_PAGE: u64 = 32;
/// Orphan lists, each with its own lock (design L1).
pub const ORPHAN_LISTS: usize = 64;
/// Direct pointers in the slot, for file blocks 0 to 7.
pub const DIRECT_BLOCKS: u64 = 8;
/// Bit of a direct pointer: the block is allocated, and reads as zeros.
pub const DIRECT_UNWRITTEN: u32 = 1 << 31;
/// Entries of a radix node.
pub const RADIX_FANOUT: u64 = 512;

/// Bits of [`InodeSlot::flags`]. Stable numbers.
pub mod flag {
    /// The catalog holds extended attributes of this inode.
    pub const HAS_XATTR: u32 = 1;
    /// The catalog holds cold extents of this inode.
    pub const HAS_COLD: u32 = 2;
    /// The catalog holds truncation intents of this inode (design T7).
    pub const HAS_INTENT: u32 = 4;
    /// Linked into an orphan list: no name left, content not yet removed.
    pub const ORPHAN: u32 = 8;
    /// The catalog holds the symlink's target.
    pub const HAS_SYMLINK: u32 = 16;
    /// All known bits.
    pub const ALL: u32 = 31;
}

/// A file's metadata. `mode` 0 means a free slot; the generation of a free slot is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InodeSlot {
    /// File type and permissions, as st_mode.
    pub mode: U32,
    /// Link count.
    pub nlink: U32,
    /// Owner.
    pub uid: U32,
    /// Group.
    pub gid: U32,
    /// Durable size in bytes; for a directory, the number of its entries.
    pub size: U64,
    /// 4 KiB blocks allocated, on any tier, each counted once.
    pub blocks: U64,
    /// Nanoseconds since the epoch.
    pub mtime: I64,
    /// Nanoseconds since the epoch.
    pub ctime: I64,
    /// Nanoseconds since the epoch.
    pub atime: I64,
    /// [`flag`] bits.
    pub flags: U32,
    /// Rises when the number is reused.
    pub generation: U32,
    /// PM blocks of file blocks 0 to 7: low 31 bits block, top bit unwritten; 0 none.
    pub direct: [U32; 8],
    /// Root of the radix tree: low 56 bits PM block, top 8 bits height (0: no tree).
    pub root: U64,
    /// Next inode in the orphan list.
    pub orphan_next: U32,
    /// Previous inode in the orphan list, 0 at the head.
    pub orphan_previous: U32,
    /// Creation time, nanoseconds since the epoch.
    pub btime: I64,
    /// For a directory its parent's inode number, for a device node its number.
    pub parent_or_rdev: U32,
    /// Zero.
    pub spare: U32,
}

const _: () = assert!(size_of::<InodeSlot>() as u64 == SLOT_SIZE);

impl InodeSlot {
    /// Byte offsets of fields, for transactions that change one of them. All are 8-byte aligned
    /// words except where two 32-bit fields share one.
    pub const MODE: u64 = 0;
    /// See [`Self::MODE`].
    pub const OWNER: u64 = 8;
    /// Size, blocks, mtime and ctime lie side by side.
    pub const SIZE: u64 = 16;
    /// Blocks.
    pub const BLOCKS: u64 = 24;
    /// Modification time.
    pub const MTIME: u64 = 32;
    /// Change time.
    pub const CTIME: u64 = 40;
    /// Access time.
    pub const ATIME: u64 = 48;
    /// Flags and generation.
    pub const FLAGS: u64 = 56;
    /// The eight direct pointers.
    pub const DIRECT: u64 = 64;
    /// Radix root.
    pub const ROOT: u64 = 96;
    /// Orphan links, both in one word.
    pub const ORPHAN: u64 = 104;
    /// Creation time.
    pub const BTIME: u64 = 112;
    /// Parent or device number.
    pub const PARENT: u64 = 120;

    /// A free slot of generation 0.
    pub fn zeroed() -> InodeSlot {
        <InodeSlot as zerocopy::FromZeros>::new_zeroed()
    }
    /// True when no file uses the slot.
    pub fn is_free(&self) -> bool {
        self.mode.get() == 0
    }
    /// True for a directory.
    pub fn is_directory(&self) -> bool {
        self.mode.get() & 0o170000 == 0o040000
    }
    /// True for a regular file.
    pub fn is_regular(&self) -> bool {
        self.mode.get() & 0o170000 == 0o100000
    }
    /// True for a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.mode.get() & 0o170000 == 0o120000
    }
    /// True when a [`flag`] bit is set.
    pub fn has(&self, bit: u32) -> bool {
        self.flags.get() & bit != 0
    }
}

/// A radix-tree root word: height in the top 8 bits, PM block below.
pub fn pack_root(height: u8, block: u64) -> u64 {
    (u64::from(height) << 56) | block
}

/// Height and PM block of a root word.
pub fn unpack_root(word: u64) -> (u8, u64) {
    ((word >> 56) as u8, word & ((1 << 56) - 1))
}

/// Bit of a radix leaf entry (and of a direct pointer, at bit 31): allocated but unwritten.
pub const ENTRY_UNWRITTEN: u64 = 1 << 63;

/// Address of a slot inside its page.
pub fn slot_offset(page: PmOffset, ino: u64) -> PmOffset {
    page.plus((ino % SLOTS_PER_PAGE) * SLOT_SIZE)
}
