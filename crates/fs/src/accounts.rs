//! What is held in memory at this moment, by the parts that hold it, for simulators: when no operation and no background
//! work is under way, every number is what the state of the files implies, and whatever is more was never given back.

use crate::errno::FsResult;
use crate::fs::Fs;
use terrace_blocks::BlockAccounts;
use terrace_catalog::chunk_space::ChunkAccounts;
use terrace_format::Ino;

/// References to an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Referenced {
    /// The inode.
    pub ino: Ino,
    /// Lookups that were not forgotten.
    pub lookups: u32,
    /// Opens that were not released.
    pub opens: u32,
}

/// What is held: see the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accounts {
    /// Claims and pins of PM blocks.
    pub blocks: BlockAccounts,
    /// Claims, pins and promises of blocks of lower tiers.
    pub below: ChunkAccounts,
    /// Pins that copies of metadata pages keep as long as these are of use to readers.
    pub kept_copies: u64,
    /// Dirty pages: each has a block of a lower tier promised to it.
    pub dirty_pages: u64,
    /// Dirty pages of which a write-back is under way.
    pub in_flight_pages: u64,
    /// Dirty pages that writers may still make.
    pub admitted_pages: u64,
    /// Blocks picked to leave PM that a worker has.
    pub in_flight_victims: u64,
    /// Inodes that are referred to, by number.
    pub referenced: Vec<Referenced>,
    /// Pins of metadata pages by operations.
    pub page_pins: u64,
    /// Inode numbers that are taken and of no inode, or free and of one.
    pub numbers: Vec<Ino>,
    /// Bytes of lanes reserved for records.
    pub reserved_bytes: u64,
}

impl Fs {
    /// What is held now. It reads the block table, the bitmaps and the inode pages in PM.
    ///
    /// # Errors
    /// The medium's.
    pub fn accounts(&self) -> FsResult<Accounts> {
        Ok(Accounts {
            blocks: self.blocks.accounts()?,
            below: self.devices.space.accounts(),
            kept_copies: self.metadata.kept_copies(),
            dirty_pages: self.cache.dirty_pages(),
            in_flight_pages: self.cache.in_flight_pages(),
            admitted_pages: self.write_back.admitted_pages(),
            in_flight_victims: self.pressure.in_flight(),
            referenced: self.references.all(),
            page_pins: self.metadata.held_pins(),
            numbers: self.unsettled_numbers()?,
            reserved_bytes: self.wal.reserved_bytes(),
        })
    }
}
