//! Cold extents of a file.

use crate::error::{FsError, FsResult};
use crate::store::Store;
use crate::types::BlockRange;
use crate::types::inode::Inode;
use terrace_format::inode::flag;
use terrace_format::keys::ColdExtent;
use terrace_format::{Corrupt, FileBlock, Ino};

/// The cold extents that overlap a range, whole. The caller holds the inode lock.
pub fn cold_extents(store: &Store, ino: Ino, range: BlockRange) -> FsResult<Vec<ColdExtent>> {
    let shard = store.persistent.catalog().read(store.persistent.catalog().shard_of(ino.0));
    Ok(terrace_catalog::cold_map::range(shard.reader(), ino, range.first, range.end)?)
}

/// The cold extent under a partial shadow, cut to its block. In a sound pool each partial shadow has a cold
/// extent, so a missing extent is damage.
pub(crate) fn extent_below(store: &Store, inode: &Inode, block: FileBlock) -> FsResult<ColdExtent> {
    let range = BlockRange::new(block, block.plus(1));
    let extents = match inode.slot.has(flag::HAS_COLD) {
        true => cold_extents(store, inode.ino, range)?,
        false => Vec::new(),
    };
    let found = extents.iter().filter(|extent| !extent.unwritten);
    found.filter_map(|extent| extent.slice(range.first, range.end)).next().ok_or_else(|| {
        let site = format!("inode {} block {block}", inode.ino);
        let corrupt = Corrupt::new(site, "a cold copy under a partial block", "none");
        FsError::Engine(corrupt.into())
    })
}
