//! What is held in memory at this moment, by the parts that hold it, for simulators: when no operation and no background
//! work is under way, every number is what the state of the files implies, and whatever is more was never given back.

use crate::engine::Engine;
use terrace_blocks::BlockAccounts;
use terrace_catalog::chunk_space::ChunkAccounts;
use terrace_format::Ino;
use terrace_store::error::FsResult;
use terrace_store::inode::numbers::unsettled_numbers;
use terrace_store::parts::inodes::referenced::Referenced;

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

/// What is held now. It reads the block table, the bitmaps and the inode pages in PM.
///
/// # Errors
/// The medium's.
pub fn accounts(engine: &Engine) -> FsResult<Accounts> {
    Ok(Accounts {
        blocks: engine.store.persistent.blocks().accounts()?,
        below: engine.store.devices.space().accounts(),
        kept_copies: engine.store.persistent.metadata_pages().kept_copies(),
        dirty_pages: engine.store.dram.cache().dirty_pages(),
        in_flight_pages: engine.store.dram.cache().in_flight_pages(),
        admitted_pages: engine.store.dram.write_back().admitted_pages(),
        in_flight_victims: engine.store.pressure.in_flight(),
        referenced: engine.store.inodes.open_files().all(),
        page_pins: engine.store.persistent.metadata_pages().held_pins(),
        numbers: unsettled_numbers(&engine.store)?,
        reserved_bytes: engine.store.persistent.wal().reserved_bytes(),
    })
}
