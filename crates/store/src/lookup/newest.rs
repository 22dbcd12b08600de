//! The newest copy of a block, in the order of S1: dirty in DRAM, PM, cold.

use crate::error::FsResult;
use crate::lookup::cold_extents::cold_extents;
use crate::lookup::lines::lines_of;
use crate::store::Store;
use crate::types::BlockRange;
use crate::types::inode::Inode;
use terrace_cache::DirtyPage;
use terrace_format::inode::flag;
use terrace_format::{FileBlock, PmBlock};
use terrace_map::Mapping;
use terrace_placement::Home;

/// Whether a written cold extent holds the block.
///
/// # Errors
/// EIO.
#[inline]
pub fn is_written_below(store: &Store, inode: &Inode, block: FileBlock) -> FsResult<bool> {
    if !inode.slot.has(flag::HAS_COLD) {
        return Ok(false);
    }
    let extents = cold_extents(store, inode.ino, BlockRange::new(block, block.plus(1)))?;
    Ok(extents.iter().any(|extent| !extent.unwritten))
}

/// Whether PM has the whole of a block. Under a partial shadow its cold copy still counts.
#[inline]
pub fn is_hidden(store: &Store, inode: &Inode, block: FileBlock) -> FsResult<bool> {
    let mapping = store.persistent.map().lookup(&inode.map(), block)?;
    mapping.map_or(Ok(false), |mapping| Ok(lines_of(store, inode.ino, block, mapping)?.is_full()))
}

/// The mapping of a file block when it is this PM block and no intent has taken it away.
#[inline]
pub fn mapped_to(
    store: &Store,
    inode: &Inode,
    intents: &[BlockRange],
    block: FileBlock,
    pm: PmBlock,
) -> FsResult<Option<Mapping>> {
    if intents.iter().any(|range| range.first <= block && block < range.end) {
        return Ok(None);
    }
    let mapping = store.persistent.map().lookup(&inode.map(), block)?;
    Ok(mapping.filter(|mapping| mapping.block == pm))
}

/// A block's dirty page. The caller holds the inode lock.
#[inline]
pub fn dirty_page(store: &Store, inode: &Inode, block: FileBlock) -> Option<DirtyPage> {
    inode.pending?;
    store.dram.cache().dirty(inode.page_key(block))
}

/// Whether a block stays in PM because its dirty page is written back there, unless PM is to be emptied. The caller holds the
/// inode lock.
#[inline]
pub(crate) fn stays_for_write_back(store: &Store, inode: &Inode, block: FileBlock) -> bool {
    let home = || store.dram.cache().home_of(inode.page_key(block));
    inode.pending.is_some() && home() == Some(Home::Pm) && !store.pressure.is_draining()
}

/// Whether a block has a dirty page. The caller holds the inode lock.
#[inline]
pub fn is_dirty_in(store: &Store, inode: &Inode, block: FileBlock) -> bool {
    inode.pending.is_some() && store.dram.cache().state_of(inode.page_key(block)).is_some()
}
