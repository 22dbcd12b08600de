//! Address types: every number says its space.

use std::fmt;

/// Bytes in a block, on every tier.
pub const BLOCK_SIZE: u64 = 4096;
/// Bytes in a cache line, the unit in which PM becomes durable.
pub const LINE_SIZE: u64 = 64;

macro_rules! address {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

address!(
    /// Block of a file: offset in the file / 4096. At most 2^32 - 1 (16 TiB).
    FileBlock(u64)
);
address!(
    /// Block of persistent memory: PM offset / 4096. 0 is the superblock, so 0 means "none".
    PmBlock(u64)
);
address!(
    /// Block of a lower-tier device: device offset / 4096. 0 is the header.
    DeviceBlock(u64)
);
address!(
    /// Byte offset in persistent memory.
    PmOffset(u64)
);
address!(
    /// Log sequence number: order of transactions over all lanes. 0 is none.
    Lsn(u64)
);
address!(
    /// Inode number, 31 bits. 0 is none, 1 the root directory.
    Ino(u64)
);
address!(
    /// Tier: 0 is persistent memory, 1 the fastest block tier.
    TierId(u8)
);
address!(
    /// Index of a lower-tier device in the superblock's device table.
    DeviceId(u8)
);

impl PmBlock {
    /// Offset of the block's first byte.
    pub fn offset(self) -> PmOffset {
        PmOffset(self.0 * BLOCK_SIZE)
    }
}

impl PmOffset {
    /// The offset `bytes` further.
    pub fn plus(self, bytes: u64) -> PmOffset {
        PmOffset(self.0 + bytes)
    }
    /// The block that holds this byte.
    pub fn block(self) -> PmBlock {
        PmBlock(self.0 / BLOCK_SIZE)
    }
}

impl FileBlock {
    /// The block `blocks` further.
    pub fn plus(self, blocks: u64) -> FileBlock {
        FileBlock(self.0 + blocks)
    }
}

impl DeviceBlock {
    /// The block `blocks` further.
    pub fn plus(self, blocks: u64) -> DeviceBlock {
        DeviceBlock(self.0 + blocks)
    }
    /// Byte offset on the device.
    pub fn byte_offset(self) -> u64 {
        self.0 * BLOCK_SIZE
    }
}

/// The root directory.
pub const ROOT_INO: Ino = Ino(1);
/// Largest inode number: the owner word of the block table holds 31 bits, and metadata kinds sit
/// at the top of that range (design 4.2).
pub const MAX_INO: Ino = Ino(0x7fff_feff);
/// Largest block of a file.
pub const MAX_FILE_BLOCK: FileBlock = FileBlock(0xffff_fffe);
/// Largest file size in bytes; beyond it operations answer EFBIG.
pub const MAX_FILE_SIZE: u64 = (MAX_FILE_BLOCK.0 + 1) * BLOCK_SIZE;
