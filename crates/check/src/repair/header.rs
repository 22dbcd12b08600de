//! Headers of lower-tier devices: written anew from the superblock's row, but only on a device that proves to be
//! the one meant, because a path may name somebody else's file.

use super::work::{Actions, Stuck};
use crate::Devices;
use terrace_format::DeviceBlock;
use terrace_format::device::{DEVICE_MAGIC, DeviceHeader};
use terrace_format::superblock::Superblock;
use terrace_media::MediaError;
use terrace_media::block::AlignedBlock;
use zerocopy::FromZeros;

/// What a header that was mended held before: the device's index and its block 0.
pub(crate) type Before = (usize, [AlignedBlock; 1]);

/// Flushes all devices, also for a repair that was killed. Where that fails the damage is put back: the header may be
/// lost, and the next repair must see so.
pub(crate) fn flush(devices: &Devices, mended: &[Before]) -> Result<(), MediaError> {
    let mut result = Ok(());
    for (index, medium) in devices.block.iter().enumerate() {
        let Some(Err(error)) = medium.as_ref().map(|medium| medium.flush()) else { continue };
        for (_, before) in mended.iter().filter(|(mended, _)| *mended == index) {
            let _ = medium.as_ref().map(|medium| medium.write(DeviceBlock(0), before));
        }
        result = result.and(Err(error));
    }
    result
}

/// Rewrites headers that are damaged; [`flush`] makes it durable. Adds what they held to `mended`.
pub(crate) fn mend(
    devices: &Devices,
    superblock: &Superblock,
    actions: &mut Actions,
    mended: &mut Vec<Before>,
) -> Result<(), Stuck> {
    for (index, row) in superblock.device_rows().iter().enumerate() {
        let Some(medium) = devices.block.get(index).and_then(Option::as_ref) else {
            continue;
        };
        let mut header = DeviceHeader::new_zeroed();
        header.magic = DEVICE_MAGIC;
        header.version = 1.into();
        (header.tier, header.role, header.index) = (row.tier, 1, index as u8);
        (header.pool_uuid, header.device_uuid, header.blocks) = (superblock.uuid, row.uuid, row.blocks);
        let mut block = [AlignedBlock::zeroed()];
        if medium.blocks() < row.blocks.get() || medium.read(DeviceBlock(0), &mut block).is_err() {
            continue;
        }
        let [AlignedBlock(found)] = &mut block;
        // Only the device knows it; what is damaged gets it at the next mount.
        header.epoch = DeviceHeader::decode(found).map_or(0.into(), |found| found.epoch);
        let wanted = header.encode();
        if wanted.get(..64) == found.get(..64) || !is_meant(found, &header) {
            continue;
        }
        let before = [AlignedBlock(*found)];
        found.copy_from_slice(&wanted);
        let failed = |error: MediaError| Stuck(error.to_string());
        medium.write(DeviceBlock(0), &block).map_err(failed)?;
        actions.add(format!("{}: the header is written anew", medium.name()));
        mended.push((index, before));
    }
    Ok(())
}

/// The highest epoch of a mount that wrote to one of the pool's devices; 0 for none.
pub(crate) fn highest_epoch(devices: &Devices, superblock: &Superblock) -> u64 {
    let rows = superblock.device_rows().iter().zip(&devices.block);
    let epochs = rows.filter_map(|(row, medium)| {
        let mut block = [AlignedBlock::zeroed()];
        medium.as_ref()?.read(DeviceBlock(0), &mut block).ok()?;
        let header = DeviceHeader::decode(&block[0].0).ok()?;
        let is_ours = header.pool_uuid == superblock.uuid && header.device_uuid == row.uuid;
        is_ours.then(|| u64::from(header.epoch.get()))
    });
    epochs.max().unwrap_or(0)
}

/// Whether block 0 is what is left of this device's header: the pool's or the device's UUID is still in its place,
/// and no sound header of another device is there.
pub(crate) fn is_meant(found: &[u8], wanted: &DeviceHeader) -> bool {
    match DeviceHeader::decode(found) {
        Ok(header) => header.pool_uuid == wanted.pool_uuid && header.device_uuid == wanted.device_uuid,
        Err(_) => {
            found.get(16..32) == Some(&wanted.pool_uuid[..])
                || found.get(32..48) == Some(&wanted.device_uuid[..])
        }
    }
}
