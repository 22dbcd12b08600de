//! Headers of lower-tier devices: written anew from the superblock's row, but only on a device that proves to
//! be a device of this pool. Paths, UUIDs, catalog and secret come out of a PM image that an attacker may
//! have made to have a repair write to a device of his choice: only the bytes on the device itself are proof.
//!
//! A header is written where both UUIDs are in their places and at most one word beside them is damaged, or
//! where the user gave the device's path; and, in both cases, a block on the device matches the catalog's
//! checksum of it, or is a metadata page that the pool names.

use crate::find::{cells, inode_pages};
use crate::media::Media;
use crate::state::Round;
use crate::state::actions::{Actions, Stuck};
use crate::state::fresh::Fresh;
use std::collections::BTreeSet;
use std::sync::Arc;
use terrace_check::report::Findings;
use terrace_check::{PoolView, log};
use terrace_format::DeviceBlock;
use terrace_format::checksum::crc32c;
use terrace_format::device::{DEVICE_MAGIC, DeviceHeader};
use terrace_format::keys::{ColdExtent, Key, Kind};
use terrace_format::superblock::Superblock;
use terrace_media::MediaError;
use terrace_media::block::AlignedBlock;
use zerocopy::{FromZeros, IntoBytes};

/// The state of a device before its header was mended: the device's index and its old block 0.
pub(crate) type Before = (usize, [AlignedBlock; 1]);

/// Flushes all devices, also for a repair that was killed. If a flush fails, the old damaged block 0 is
/// written back: the new header may be lost, and the next repair must see the damage.
pub(crate) fn flush(media: &Media, mended: &[Before]) -> Result<(), MediaError> {
    let mut result = Ok(());
    for (index, medium) in media.block.iter().enumerate() {
        let Some(Err(error)) = medium.as_ref().map(|medium| medium.flush()) else { continue };
        for (_, before) in mended.iter().filter(|(mended, _)| *mended == index) {
            let _ = medium.as_ref().map(|medium| medium.write(DeviceBlock(0), before));
        }
        result = result.and(Err(error));
    }
    result
}

/// Rewrites headers that are damaged; [`flush`] makes it durable. Adds their old blocks to `mended`. Gives
/// the devices for the rest of the repair, without devices of another pool and devices without any proof.
pub(crate) fn mend(
    media: &Media,
    (superblock, given): (&Superblock, &[usize]),
    actions: &mut Actions,
    mended: &mut Vec<Before>,
) -> Result<Media, Stuck> {
    let view = media.view();
    let mut proven = Media { pm: Arc::clone(&media.pm), block: media.block.clone() };
    let mut proof = None;
    for (index, row) in superblock.device_rows().iter().enumerate() {
        let Some(medium) = media.block.get(index).and_then(Option::as_ref) else {
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
        // Only the device knows the epoch; a damaged header gets it at the next mount.
        header.epoch = DeviceHeader::decode(found).map_or(0.into(), |found| found.epoch);
        let wanted = header.encode();
        if is_sound(found, &wanted, row.tier) {
            continue;
        }
        let proof = proof.get_or_insert_with(|| Proof::new(&view, superblock));
        let (stands, content) = (stands_there(found, &header), proof.of(&view, index));
        let (was_given, foreign) = (given.contains(&index), is_another(found, &header));
        let may = content == Content::Fits && (stands || was_given && !foreign)
            || content == Content::Nothing && was_given && !foreign;
        if !may {
            let name = medium.name();
            actions.add(if was_given {
                format!("{name}: the header is not written: it is not the device that this pool means")
            } else {
                format!("{name}: the header is not written: nothing proves that it is the pool's device; if it is, give --tier {name}")
            });
            if foreign || !stands && content != Content::Fits {
                proven.block.get_mut(index).map(Option::take);
            }
            continue;
        }
        let before = [AlignedBlock(*found)];
        found.copy_from_slice(&wanted);
        let failed = |error: MediaError| Stuck(error.to_string());
        medium.write(DeviceBlock(0), &block).map_err(failed)?;
        actions.add(format!("{}: the header is written anew", medium.name()));
        mended.push((index, before));
    }
    Ok(proven)
}

/// The highest epoch of a mount that wrote to one of the pool's devices; 0 for none.
pub(crate) fn highest_epoch(view: &PoolView, superblock: &Superblock) -> u64 {
    let rows = superblock.device_rows().iter().zip(&view.block);
    let epochs = rows.filter_map(|(row, medium)| {
        let mut block = [AlignedBlock::zeroed()];
        medium.as_ref()?.read(DeviceBlock(0), &mut block).ok()?;
        let header = DeviceHeader::decode(&block[0].0).ok()?;
        let is_ours = header.pool_uuid == superblock.uuid && header.device_uuid == row.uuid;
        is_ours.then(|| u64::from(header.epoch.get()))
    });
    epochs.max().unwrap_or(0)
}

/// Whether a header is the wanted header. The tier of a sound one may be from before `terrace tier`: the row
/// decides.
fn is_sound(found: &[u8], wanted: &[u8], tier: u8) -> bool {
    DeviceHeader::decode(found).is_ok_and(|found| {
        let now = DeviceHeader { tier, ..found };
        now.encode().get(..64) == wanted.get(..64)
    })
}

/// A sound header of another device.
fn is_another(found: &[u8], wanted: &DeviceHeader) -> bool {
    DeviceHeader::decode(found)
        .is_ok_and(|header| header.pool_uuid != wanted.pool_uuid || header.device_uuid != wanted.device_uuid)
}

/// Whether block 0 holds this device's header, perhaps with damage: both UUIDs are in their places, and at
/// most one other word is damaged. UUIDs alone are no proof: a PM image may name any 32 bytes of a foreign
/// device as its UUIDs.
pub(crate) fn stands_there(found: &[u8], wanted: &DeviceHeader) -> bool {
    const WORD_BYTES: usize = 8;
    const LAST_WORD_AT: usize = 56;
    let expected = wanted.as_bytes();
    let uuids = 16..48;
    if [wanted.pool_uuid, wanted.device_uuid].contains(&[0; 16])
        || found.get(uuids.clone()) != expected.get(uuids)
    {
        return false;
    }
    // Epoch and checksum are not known: if all other words are right, these two may be damaged.
    if found.get(..LAST_WORD_AT) == expected.get(..LAST_WORD_AT) || DeviceHeader::decode(found).is_ok() {
        return true;
    }
    [0, WORD_BYTES, LAST_WORD_AT - WORD_BYTES].into_iter().any(|at| {
        let mut restored: Vec<u8> = found.iter().take(LAST_WORD_AT + WORD_BYTES).copied().collect();
        let from = expected.get(at..at + WORD_BYTES);
        if let Some((place, from)) = restored.get_mut(at..at + WORD_BYTES).zip(from) {
            place.copy_from_slice(from);
        }
        DeviceHeader::decode(&restored).is_ok()
    })
}

/// Most blocks of a device that are read in the search for a block that fits.
const MAX_BLOCKS_READ: usize = 4096;

/// How the content of a device fits the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// A block has the checksum that its extent names, or is a metadata page.
    Fits,
    /// No block that was read has its checksum.
    Differs,
    /// The catalog names no block of the device.
    Nothing,
}

/// Evidence, beside the header, that a device belongs to the pool.
struct Proof {
    /// Written cold extents.
    extents: Vec<ColdExtent>,
    /// Devices on which a metadata page lies where a location names it.
    pages: BTreeSet<u8>,
}

impl Proof {
    fn new(view: &PoolView, superblock: &Superblock) -> Proof {
        let (geometry, pm) = (superblock.geometry(), &view.pm);
        let log = log::for_repair(pm, &superblock.uuid, &geometry, &mut Findings::default());
        let (mut actions, mut fresh) = (Actions::default(), Fresh::default());
        let state = (log.overlay, log.next.lsn);
        let mut round = Round::new(view, *superblock, state, &mut actions, &mut fresh);
        inode_pages::salvage_inode_file(&mut round);
        cells::salvage_catalog(&mut round);
        let cold = round
            .catalog
            .cells
            .iter()
            .filter(|(key, _)| Key::split(key).is_some_and(|(_, kind, _)| kind == Kind::Cold as u8));
        let extents = cold.filter_map(|(key, value)| ColdExtent::decode(key, value).ok());
        Proof {
            extents: extents.filter(|extent| !extent.unwritten).collect(),
            pages: round.below.places.iter().map(|(device, _)| *device).collect(),
        }
    }

    /// Compares a device's blocks with the catalog. A block of only zeros or only ones is on every device, so
    /// it is no proof.
    fn of(&self, view: &PoolView, index: usize) -> Content {
        if u8::try_from(index).is_ok_and(|device| self.pages.contains(&device)) {
            return Content::Fits;
        }
        let Some(medium) = view.block.get(index).and_then(Option::as_ref) else {
            return Content::Nothing;
        };
        let here = self.extents.iter().filter(|extent| usize::from(extent.device.0) == index);
        let blocks = here.flat_map(|extent| (extent.start.0..).zip(&extent.crcs));
        let mut content = Content::Nothing;
        for (at, crc) in blocks.take(MAX_BLOCKS_READ) {
            content = Content::Differs;
            let mut block = [AlignedBlock::zeroed()];
            if at >= medium.blocks() || medium.read(DeviceBlock(at), &mut block).is_err() {
                continue;
            }
            let [AlignedBlock(bytes)] = &block;
            let is_blank = [0, u8::MAX].iter().any(|blank| bytes.iter().all(|byte| byte == blank));
            if !is_blank && crc32c(bytes) == *crc {
                return Content::Fits;
            }
        }
        content
    }
}
