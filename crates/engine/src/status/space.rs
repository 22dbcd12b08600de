//! Free and used space (statfs).

use crate::engine::Engine;
use crate::status::tiers::free_on_host;
use std::collections::HashMap;
use terrace_format::BLOCK_SIZE;
use terrace_format::inode::SLOTS_PER_PAGE;
use terrace_format::keys::MAX_EXTENT_BLOCKS;
use terrace_store::error::FsResult;
use terrace_store::pressure::pm_space::wait_for_scan;
use terrace_store::types::{Space, Wait};

/// Space of all tiers together, once the scan after mount has counted it.
///
/// # Errors
/// `WouldBlock` when it has not and the caller may not wait; EIO.
pub fn statfs(engine: &Engine, wait: Wait) -> FsResult<Space> {
    wait_for_scan(&engine.store, wait)?;
    let usage = engine.store.persistent.blocks().usage();
    let mut space = Space {
        blocks: usage.total,
        free: usage.free + usage.quarantined,
        available: 0,
        files: 0,
        files_free: 0,
    };
    let (mut below, mut left_of_host) = (0, HashMap::new());
    for (index, device) in engine.store.devices.list().iter().enumerate() {
        let id = terrace_format::DeviceId(index as u8);
        let totals = engine.store.devices.space().totals_now(&[id]);
        space.blocks += totals.total;
        space.free += totals.free;
        below += match device.medium.host_room() {
            Some(room) => free_on_host(&totals, &room, &mut left_of_host),
            None => totals.free,
        };
    }
    // Blocks of the space reservation of dirty pages.
    let promised = engine.store.devices.space().reserved();
    space.free = space.free.saturating_sub(promised);
    let in_pm = (usage.free + usage.quarantined).saturating_sub(usage.reserve);
    let metadata = metadata_of(engine, in_pm, below);
    space.available = (in_pm + below).saturating_sub(promised + metadata).min(space.free);
    // New inodes need inode pages in PM: as many more inodes as fit into free blocks.
    let pages = engine.store.inodes.numbers().lock().pages;
    let room = usage.free.saturating_sub(usage.reserve) * SLOTS_PER_PAGE;
    space.files_free = room.min(terrace_format::address::MAX_INO.0 - pages * SLOTS_PER_PAGE);
    space.files = pages * SLOTS_PER_PAGE + space.files_free;
    Ok(space)
}

/// PM blocks that metadata takes until the given numbers of free blocks in PM and on lower tiers hold data.
/// In PM, a map node for 512 blocks. For lower tiers, cold extents and chunk bitmaps in half full leaves, the
/// first leaf of each shard included. And a few for structures that grow by a page, and for claims.
fn metadata_of(engine: &Engine, in_pm: u64, below: u64) -> u64 {
    const BLOCKS_PER_METADATA_BLOCK: u64 = 256;
    const SPARE_BLOCKS: u64 = 16;
    // A cell without its bitmap.
    const CELL_BYTES: u64 = 48;
    let chunk_blocks = u64::from(engine.store.persistent.wal().geometry().chunk_blocks);
    let extents = below.div_ceil(chunk_blocks.min(MAX_EXTENT_BLOCKS.into()));
    let chunks = below.div_ceil(chunk_blocks);
    let bytes = extents * CELL_BYTES + chunks * (CELL_BYTES + chunk_blocks / 8);
    // A chunk lies in the shard of its number, an extent in the shard of its inode.
    let roots = u64::from(engine.store.persistent.catalog().empty_shards()).min(chunks + 1);
    in_pm / BLOCKS_PER_METADATA_BLOCK + bytes * 2 / BLOCK_SIZE + roots + SPARE_BLOCKS
}
