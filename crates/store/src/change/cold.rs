//! Cold extents that a change installs. Only this module changes an extent, the device blocks that it
//! replaces, and its chunk bits together (I6).

use crate::change::shards::stage_device_free;
use crate::change::staged::Staged;
use crate::operation::need::Attempt;
use crate::store::Store;
use terrace_catalog::{DeviceRun, ShardsWrite, chunks, cold_map};
use terrace_format::Ino;
use terrace_format::keys::{ColdExtent, MAX_EXTENT_BLOCKS};

/// Inserts extents of a file frees the device blocks that they replace, and marks their own as used.
/// Neighbours on a device are marked together. The caller holds the inode's lock and the shards of all of these runs.
///
/// # Errors
/// Room in a catalog page is lacking; EIO.
pub fn stage_cold_extents(
    store: &Store,
    ino: Ino,
    extents: &[ColdExtent],
    shards: &mut ShardsWrite<'_>,
    staged: &mut Staged<'_>,
) -> Attempt<()> {
    assert!(store.inodes.locks().is_exclusive(ino), "extents of inode {ino} change unlocked (T2)");
    for extent in extents {
        let crcs = if extent.unwritten { 0 } else { extent.length as usize };
        assert_eq!(
            extent.crcs.len(),
            crcs,
            "checksums of the extent at {} of inode {ino} (M4)",
            extent.first
        );
        assert!(extent.length <= MAX_EXTENT_BLOCKS, "an extent of {} blocks (design 4.5)", extent.length);
        let mut replaced = Vec::new();
        cold_map::install(shards, &mut staged.tx, ino, extent, &mut replaced)?;
        for (device, start, length) in replaced {
            stage_device_free(store, DeviceRun { device, start, length }, shards, staged)?;
        }
    }
    let adjoins =
        |a: &ColdExtent, b: &ColdExtent| a.device == b.device && b.start == a.start.plus(u64::from(a.length));
    for neighbours in extents.chunk_by(adjoins) {
        let length = neighbours.iter().map(|extent| u64::from(extent.length)).sum();
        let run = DeviceRun { length, ..DeviceRun::from(&neighbours[0]) };
        chunks::mark(shards, &mut staged.tx, run, true)?;
    }
    Ok(())
}
