//! Decides the cold extents: each file block and each device block lies in at most one extent.

use crate::state::Round;
use crate::state::sifted::{Sifted, cut};
use std::collections::BTreeSet;
use terrace_check::sets::Sparse;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::checksum::crc32c;
use terrace_format::device::FIRST_CHUNK_BLOCK;
use terrace_format::inode::flag;
use terrace_format::keys::{ColdExtent, Key};
use terrace_format::{FileBlock, Ino};

/// Cuts and drops extents until each file block and each device block lies in at most one extent.
pub(crate) fn decide_extents(round: &mut Round<'_>, sifted: &mut Sifted) {
    let mut used: Vec<Sparse> =
        round.pool.superblock.device_rows().iter().map(|_| Sparse::default()).collect();
    let mut shared: BTreeSet<(u8, u64)> = BTreeSet::new();
    for (ino, extents) in &mut sifted.extents {
        let mut end = 0;
        for extent in std::mem::take(extents) {
            let start = extent.start.0;
            let fits = start >= FIRST_CHUNK_BLOCK.0
                && start
                    .checked_add(extent.length.into())
                    .is_some_and(|end| end <= round.pool.device_blocks(extent.device.0.into()))
                && extent.end().0 <= MAX_FILE_BLOCK.0 + 1;
            let left = extent.slice(FileBlock(end), FileBlock(u64::MAX)).filter(|_| fits);
            if left.as_ref() != Some(&extent) {
                round.catalog.cells_lost = true;
                round.actions.lose(*ino, format!("cold extent at block {} cut or dropped", extent.first));
            }
            let Some(extent) = left else {
                continue;
            };
            end = extent.end().0;
            for block in (extent.start.0..).take(extent.length as usize) {
                let device = usize::from(extent.device.0);
                if used.get_mut(device).is_some_and(|used| !used.insert(block)) {
                    shared.insert((extent.device.0, block));
                }
            }
            extents.push(extent);
        }
    }
    for place in shared {
        unshare(round, place, sifted);
    }
    for (device, block) in round.below.places.clone() {
        if used.get(usize::from(device)).is_some_and(|used| used.contains(block)) {
            leave_to_metadata(round, (device, block), sifted);
        }
    }
    sifted.extents.retain(|_, extents| !extents.is_empty());
}

/// Leaves a device block to the extent whose checksum it matches.
fn unshare(round: &mut Round<'_>, (device, block): (u8, u64), sifted: &mut Sifted) {
    let holds = |extent: &ColdExtent| {
        let first = extent.start.0;
        extent.device.0 == device && first <= block && block - first < u64::from(extent.length)
    };
    let crc = round.pool.device_block(device.into(), block).map(|content| crc32c(&*content));
    let mut holders: Vec<(u32, u64, bool)> = Vec::new();
    for (ino, extents) in &sifted.extents {
        for extent in extents.iter().filter(|extent| holds(extent)) {
            let at = block - extent.start.0;
            let matches = crc.is_some() && extent.crcs.get(at as usize).copied() == crc;
            holders.push((*ino, extent.first.0 + at, matches));
        }
    }
    let winner = holders.iter().position(|(_, _, matches)| *matches).unwrap_or(0);
    for (at, (ino, file_block, _)) in holders.iter().enumerate() {
        if at != winner {
            let text = format!("block {file_block} was another's on device {device}; cut out");
            round.actions.lose(*ino, text);
            cut(sifted.extents.entry(*ino).or_default(), *file_block, *file_block + 1);
        }
    }
}

/// Cuts a device block that holds a metadata page out of all extents: a seal is longer than an extent's
/// checksum, so it proves more.
fn leave_to_metadata(round: &mut Round<'_>, (device, block): (u8, u64), sifted: &mut Sifted) {
    for (ino, extents) in &mut sifted.extents {
        let holder = extents.iter().find(|extent| {
            extent.device.0 == device
                && extent.start.0 <= block
                && block - extent.start.0 < u64::from(extent.length)
        });
        if let Some(at) = holder.map(|extent| extent.first.0 + (block - extent.start.0)) {
            let text = format!("block {at} was metadata on device {device}; cut out");
            round.actions.lose(*ino, text);
            cut(extents, at, at + 1);
        }
    }
}

/// Writes extents into the cells.
pub(crate) fn put_extents(round: &mut Round<'_>, sifted: &mut Sifted) {
    for (ino, extents) in &sifted.extents {
        for extent in extents {
            sifted.kept.insert(Key::cold(Ino((*ino).into()), extent.first).0, extent.encode());
            *sifted.flags.entry(*ino).or_insert(0) |= flag::HAS_COLD;
        }
    }
    for (ino, flags) in &sifted.flags {
        if let Some(slot) = round.inodes.slots.get_mut(ino) {
            slot.flags = (slot.flags.get() | flags).into();
        }
    }
}
