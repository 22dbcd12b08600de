//! Headers of lower-tier devices: written anew from the superblock's row, but only on a device that proves to be
//! the one meant, because a path may name somebody else's file.

use super::work::{Actions, Stuck};
use crate::Devices;
use terrace_format::DeviceBlock;
use terrace_format::device::{DEVICE_MAGIC, DeviceHeader};
use terrace_format::superblock::Superblock;
use terrace_media::block::AlignedBlock;
use zerocopy::FromZeros;

/// Rewrites headers that are damaged. True when one was.
pub(crate) fn mend(devices: &Devices, superblock: &Superblock, actions: &mut Actions) -> Result<bool, Stuck> {
    let mut mended = false;
    for (index, row) in superblock.device_rows().iter().enumerate() {
        let Some(medium) = devices.block.get(index).and_then(Option::as_ref) else {
            continue;
        };
        let mut header = DeviceHeader::new_zeroed();
        header.magic = DEVICE_MAGIC;
        header.version = 1.into();
        (header.tier, header.role, header.index) = (row.tier, 1, index as u8);
        (header.pool_uuid, header.device_uuid, header.blocks) = (superblock.uuid, row.uuid, row.blocks);
        let wanted = header.encode();
        let mut block = [AlignedBlock::zeroed()];
        if medium.blocks() < row.blocks.get() || medium.read(DeviceBlock(0), &mut block).is_err() {
            continue;
        }
        let [AlignedBlock(found)] = &mut block;
        if wanted.get(..64) == found.get(..64) || !is_meant(found, &header) {
            continue;
        }
        found.copy_from_slice(&wanted);
        let failed = |error: terrace_media::MediaError| Stuck(error.to_string());
        medium.write(DeviceBlock(0), &block).map_err(failed)?;
        medium.flush().map_err(failed)?;
        actions.add(format!("{}: the header is written anew", medium.name()));
        mended = true;
    }
    Ok(mended)
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
