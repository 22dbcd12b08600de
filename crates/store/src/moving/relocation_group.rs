//! The blocks of a relocation: cold blocks of files that lie where the destination does not want them, with I/O pins on
//! their device blocks (S6, S7). Blocks with a PM copy or a dirty page are left out (S2).

use crate::attempt::with_pages::with_pages;
use crate::error::{FsError, FsResult};
use crate::inode::tier_pin::pin_of;
use crate::lookup::intents::intents_of;
use crate::lookup::newest::is_hidden;
use crate::moving::destination::Destination;
use crate::moving::file_id::{FileId, load_file};
use crate::store::Store;
use crate::types::inode::Inode;
use crate::types::{FILE_END, Wait};
use std::ops::ControlFlow;
use terrace_catalog::{DeviceRun, cold_map};
use terrace_format::inode::flag;
use terrace_format::{DeviceBlock, DeviceId, FileBlock, TierId};
use terrace_space::Pin;

/// A block on a lower tier that is to be relocated.
pub struct Moving {
    /// The file.
    pub(crate) file: FileId,
    /// The file block.
    pub(crate) block: FileBlock,
    /// Its device block.
    pub(crate) from: (DeviceId, DeviceBlock),
    /// The checksum of its content.
    pub(crate) crc: u32,
    /// The block is unwritten: only its allocation moves.
    pub(crate) unwritten: bool,
    /// Why its content cannot be read. Such a block stays where it is.
    pub(crate) read_error: Option<FsError>,
}

/// Blocks to move and the pins on where they are. The pins end with it.
#[derive(Default)]
pub struct MovingGroup {
    /// The blocks, sorted by file and block.
    pub blocks: Vec<Moving>,
    pub(crate) pins: Vec<Pin>,
}

/// Adds blocks of a file, from `from` on, that lie below PM where `to` does not want them, until the group has
/// `most`. Gives where to go on; `None` at the end of the file, or when it is gone.
///
/// # Errors
/// EIO when the maps cannot be read.
pub fn collect_below(
    store: &Store,
    file: FileId,
    from: FileBlock,
    most: usize,
    to: Destination,
    group: &mut MovingGroup,
) -> FsResult<Option<FileBlock>> {
    with_pages(store, Wait::Allowed, || collect_in_pm(store, file, from, most, to, group))
}

/// As [`collect_below`]; `PageBelow`, with nothing added, where extents lie below themselves.
fn collect_in_pm(
    store: &Store,
    file: FileId,
    from: FileBlock,
    most: usize,
    to: Destination,
    group: &mut MovingGroup,
) -> FsResult<Option<FileBlock>> {
    let _guard = store.inodes.locks().read(file.ino);
    let Some(inode) = load_file(store, file)? else { return Ok(None) };
    if !inode.slot.has(flag::HAS_COLD) {
        return Ok(None);
    }
    if stays(store, &inode, to)? {
        return Ok(None);
    }
    let intents = intents_of(store, &inode)?;
    let gone = |block: FileBlock| intents.iter().any(|range| range.first <= block && block < range.end);
    let mut extents = Vec::new();
    let mut next = None;
    let mut room = most.saturating_sub(group.blocks.len());
    {
        let shard = store.persistent.catalog().read(store.persistent.catalog().shard_of(file.ino.0));
        let end = FILE_END;
        cold_map::scan(shard.reader(), file.ino, from, end, |extent| {
            let Some(extent) = extent.slice(from, end) else { return ControlFlow::Continue(()) };
            if tier_of(store, extent.device).is_some_and(|tier| !to.takes_from(tier)) {
                return ControlFlow::Continue(());
            }
            if room == 0 {
                next = Some(extent.first);
                return ControlFlow::Break(());
            }
            let part = extent.slice(extent.first, extent.first.plus(room as u64));
            let taken = part.as_ref().map_or(0, |part| part.length as usize);
            room -= taken;
            if taken < extent.length as usize {
                next = Some(extent.first.plus(taken as u64));
            }
            extents.extend(part);
            if next.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
    }
    // Few pins: each is looked at by every allocation.
    let runs = extents.iter().map(DeviceRun::from).collect::<Vec<_>>();
    for run in runs.chunk_by(|a, b| a.device == b.device && b.start == a.start.plus(a.length)) {
        let length = run.iter().map(|run| run.length).sum();
        let whole = run.first().map(|first| DeviceRun { length, ..*first });
        group.pins.extend(whole.map(|whole| store.devices.space().pin(whole)));
    }
    for extent in extents {
        for index in 0..u64::from(extent.length) {
            let block = extent.first.plus(index);
            if gone(block) || is_hidden(store, &inode, block)? {
                continue;
            }
            group.blocks.push(Moving {
                file,
                block,
                from: (extent.device, extent.start.plus(index)),
                crc: extent.crcs.get(index as usize).copied().unwrap_or(0),
                unwritten: extent.unwritten,
                read_error: None,
            });
        }
    }
    Ok(next)
}

/// Whether a spill leaves a file at its location because it is pinned. The caller holds the inode lock.
pub(crate) fn stays(store: &Store, inode: &Inode, to: Destination) -> FsResult<bool> {
    Ok(matches!(to, Destination::Below(_)) && pin_of(store, inode)?.is_some())
}

/// The tier of a device.
pub fn tier_of(store: &Store, device: DeviceId) -> Option<TierId> {
    store.devices.list().get(usize::from(device.0)).map(|device| device.tier)
}
