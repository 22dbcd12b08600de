//! Accounts of volatile memory and space, one figure for each part that holds some, for simulators. When no
//! operation and no background work is under way, the state of the files implies every figure; a larger
//! figure proves a leak.

use crate::engine::Engine;
use terrace_blocks::BlockAccounts;
use terrace_format::Ino;
use terrace_placement::Home;
use terrace_space::ChunkAccounts;
use terrace_store::error::FsResult;
use terrace_store::inode::numbers::unsettled_numbers;
use terrace_store::parts::inodes::referenced::Referenced;

/// The accounts of a mount: see the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accounts {
    /// Claims and I/O pins of PM blocks.
    pub blocks: BlockAccounts,
    /// Claims, I/O pins and space reservations of blocks of lower tiers.
    pub below: ChunkAccounts,
    /// I/O pins that DRAM copies of metadata pages hold as long as readers may use the copies.
    pub kept_copies: u64,
    /// Dirty pages with a home below PM: each has a space reservation of one block on a lower tier.
    pub dirty_pages: u64,
    /// Dirty pages with home PM: each has a promise of a PM block.
    pub lazy_pages: u64,
    /// PM blocks promised to dirty pages.
    pub promised_blocks: u64,
    /// Dirty pages with a write-back under way.
    pub in_flight_pages: u64,
    /// Dirty pages that writers may still make.
    pub admitted_pages: u64,
    /// Victims that workers hold.
    pub in_flight_victims: u64,
    /// Inodes with references of the kernel or of open files, by number.
    pub referenced: Vec<Referenced>,
    /// Page pins of operations.
    pub page_pins: u64,
    /// Inode numbers that count as taken although no inode has them, or as free although an inode has them.
    pub numbers: Vec<Ino>,
    /// Bytes of lane reservations.
    pub reserved_bytes: u64,
}

/// The accounts of memory and space at this moment. It reads the block table, the bitmaps and the inode pages
/// in PM.
///
/// # Errors
/// The medium's.
pub fn accounts(engine: &Engine) -> FsResult<Accounts> {
    Ok(Accounts {
        blocks: engine.store.persistent.blocks().accounts()?,
        below: engine.store.devices.space().accounts(),
        kept_copies: engine.store.persistent.metadata_pages().kept_copies(),
        dirty_pages: engine.store.dram.cache().dirty_pages_of(Home::Block),
        lazy_pages: engine.store.dram.cache().dirty_pages_of(Home::Pm),
        promised_blocks: engine.store.persistent.blocks().promises().count(),
        in_flight_pages: engine.store.dram.cache().in_flight_pages(),
        admitted_pages: engine.store.dram.write_back().admitted_pages(),
        in_flight_victims: engine.store.pressure.in_flight(),
        referenced: engine.store.inodes.open_files().all(),
        page_pins: engine.store.persistent.metadata_pages().held_pins(),
        numbers: unsettled_numbers(&engine.store)?,
        reserved_bytes: engine.store.persistent.wal().reserved_bytes(),
    })
}
