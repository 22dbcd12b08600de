//! Cold extents that a change installs. Only this module changes an extent, the device blocks that it
//! replaces, and its chunk bits together (I6). It takes a [`NewExtent`] alone: its copies are durable (M1).

use crate::change::new_extent::NewExtent;
use crate::change::shards::stage_device_free;
use crate::change::staged::Staged;
use crate::operation::need::Attempt;
use crate::store::Store;
use terrace_catalog::{DeviceRun, ShardsWrite, chunks, cold_map};
use terrace_format::keys::MAX_EXTENT_BLOCKS;
use terrace_format::{DeviceBlock, DeviceId, Ino};

/// Inserts extents of a file, frees the device blocks that they replace, and marks their own as used.
/// Neighbours on a device are marked together. The caller holds the inode's lock and the shards of all of these runs.
///
/// # Errors
/// Room in a catalog page is lacking; EIO.
pub fn stage_cold_extents(
    store: &Store,
    ino: Ino,
    extents: &[NewExtent],
    shards: &mut ShardsWrite<'_>,
    staged: &mut Staged<'_>,
) -> Attempt<()> {
    for extent in extents {
        for (device, start, length) in stage_extent(store, ino, extent, shards, staged)? {
            stage_device_free(store, DeviceRun { device, start, length }, shards, staged)?;
        }
    }
    let run_of = |extent: &NewExtent| DeviceRun::from(extent.get());
    let adjoins = |a: &NewExtent, b: &NewExtent| {
        let (a, b) = (run_of(a), run_of(b));
        a.device == b.device && b.start == a.start.plus(a.length)
    };
    for neighbours in extents.chunk_by(adjoins) {
        let length = neighbours.iter().map(|extent| run_of(extent).length).sum();
        let run = DeviceRun { length, ..run_of(&neighbours[0]) };
        chunks::mark(shards, &mut staged.tx, run, true)?;
    }
    Ok(())
}

/// Inserts extents in place of extents at the same device blocks, which stay used: blocks that were written over
/// (M5). The caller holds the inode's lock and its shard.
///
/// # Errors
/// Room in a catalog page is lacking; EIO.
pub(crate) fn stage_overwritten(
    store: &Store,
    ino: Ino,
    extents: &[NewExtent],
    shards: &mut ShardsWrite<'_>,
    staged: &mut Staged<'_>,
) -> Attempt<()> {
    for extent in extents {
        stage_extent(store, ino, extent, shards, staged)?;
    }
    Ok(())
}

/// Inserts an extent; returns the device blocks that it replaces.
fn stage_extent(
    store: &Store,
    ino: Ino,
    extent: &NewExtent,
    shards: &mut ShardsWrite<'_>,
    staged: &mut Staged<'_>,
) -> Attempt<Vec<(DeviceId, DeviceBlock, u64)>> {
    assert!(store.inodes.locks().is_exclusive(ino), "extents of inode {ino} change unlocked (T2)");
    let extent = extent.get();
    let crcs = if extent.unwritten { 0 } else { extent.length as usize };
    assert_eq!(extent.crcs.len(), crcs, "checksums of the extent at {} of inode {ino} (M4)", extent.first);
    assert!(extent.length <= MAX_EXTENT_BLOCKS, "an extent of {} blocks (design 4.5)", extent.length);
    let mut replaced = Vec::new();
    cold_map::install(shards, &mut staged.tx, ino, extent, &mut replaced)?;
    Ok(replaced)
}
