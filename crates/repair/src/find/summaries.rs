//! Rebuilds cold extents whose catalog pages are lost from the group summaries on the devices.
//!
//! An entry of a summary counts only if the device block matches the entry's checksum, no surviving extent
//! holds the device block, the file exists with the entry's generation and lacks the file block, and either
//! the chunk bitmap still marks the device block or, if the bitmap is lost as well, the file's block count
//! says that blocks are missing. Of several entries for one file block the newest counts.
//!
//! A summary proves itself by its keyed seal. In an older pool every user can write a block that looks like a
//! summary: there it counts only directly before its own group, in a block that no extent holds, and with
//! entries older than the log's end (docs/decisions/0022).

use crate::state::Round;
use crate::state::sifted::{Sifted, mapped};
use std::collections::{BTreeMap, BTreeSet};
use terrace_format::checksum::crc32c;
use terrace_format::device::{FIRST_CHUNK_BLOCK, SUMMARY_ENTRIES, SummaryEntry, decode_summary};
use terrace_format::inode::flag;
use terrace_format::keys::{ColdExtent, MAX_EXTENT_BLOCKS};
use terrace_format::{BLOCK_SIZE, DeviceBlock, DeviceId, FileBlock, Lsn};
use terrace_media::block::AlignedBlock;

/// Device blocks read at once.
const SLICE_BLOCKS: u64 = 256;

/// A block of a file that a summary names.
struct Found {
    device: u8,
    place: u64,
    crc: u32,
    lsn: Lsn,
}

/// Runs only if the catalog lost cells, because it reads the devices whole.
pub(crate) fn rebuild_extents(round: &mut Round<'_>, sifted: &mut Sifted) {
    let files: BTreeSet<u32> =
        round.inodes.slots.iter().filter(|(_, s)| s.has(flag::HAS_COLD)).map(|(i, _)| *i).collect();
    if !round.catalog.cells_lost || files.is_empty() {
        return;
    }
    let held: BTreeSet<(u8, u64)> = sifted
        .extents
        .values()
        .flatten()
        .flat_map(|extent| {
            (extent.start.0..).take(extent.length as usize).map(|block| (extent.device.0, block))
        })
        .collect();
    let mut newest: BTreeMap<(u8, u64), SummaryEntry> = BTreeMap::new();
    for device in 0..round.pool.superblock.device_rows().len() {
        scan(round, device, &held, &mut newest);
    }
    let mut blocks: BTreeMap<(u32, u64), Found> = BTreeMap::new();
    for ((device, place), entry) in newest {
        let (Ok(ino), file_block) = (u32::try_from(entry.ino.0), entry.block.0) else {
            continue;
        };
        let key = (ino, file_block);
        let newer = blocks.get(&key).is_none_or(|other| other.lsn < entry.lsn);
        if newer && files.contains(&ino) && wants(round, sifted, &entry, device, place) {
            blocks.insert(key, Found { device, place, crc: entry.crc, lsn: entry.lsn });
        }
    }
    add_extents(round, blocks, sifted);
}

fn scan(
    round: &Round<'_>,
    device: usize,
    held: &BTreeSet<(u8, u64)>,
    newest: &mut BTreeMap<(u8, u64), SummaryEntry>,
) {
    let Some(medium) = round.pool.view.block.get(device).cloned().flatten() else {
        return;
    };
    let key = round.pool.superblock.seal_key();
    let end = medium.blocks().min(round.pool.device_blocks(device));
    let mut start = FIRST_CHUNK_BLOCK.0;
    while start < end {
        let mut blocks = vec![AlignedBlock::zeroed(); SLICE_BLOCKS.min(end - start) as usize];
        let together = medium.read(DeviceBlock(start), &mut blocks).is_ok();
        for (at, block) in (start..).zip(&mut blocks) {
            if !together && medium.read(DeviceBlock(at), std::slice::from_mut(block)).is_err() {
                continue;
            }
            let place = (DeviceId(device as u8), DeviceBlock(at));
            let Ok((first, entries)) = decode_summary(&block.0, &key, place) else {
                continue;
            };
            if first.0.checked_add(entries.len() as u64).is_none_or(|past| past > end) {
                continue;
            }
            let is_user_data = held.contains(&(device as u8, at));
            if !key.is_secret() && (is_user_data || !is_likely(round, at, first, &entries)) {
                continue;
            }
            for (place, entry) in (first.0..).zip(entries) {
                let key = (device as u8, place);
                let inside = place >= FIRST_CHUNK_BLOCK.0 && place < end && !held.contains(&key);
                if inside && newest.get(&key).is_none_or(|other| other.lsn < entry.lsn) {
                    newest.insert(key, entry);
                }
            }
        }
        start += SLICE_BLOCKS;
    }
}

/// For a summary without a keyed seal in block `at`: whether Terrace can have written it there. Summary i
/// of k lies k + 167 i blocks before the blocks that it names, and only the last of a group has less than
/// 168 entries.
fn is_likely(round: &Round<'_>, at: u64, first: DeviceBlock, entries: &[SummaryEntry]) -> bool {
    let most = u64::from(round.pool.geometry.chunk_blocks).div_ceil(SUMMARY_ENTRIES as u64);
    let step = SUMMARY_ENTRIES as u64 - 1;
    let in_place = first.0.checked_sub(at).filter(|distance| *distance > 0).is_some_and(|distance| {
        let (index, count) = ((distance - 1) / step, (distance - 1) % step + 1);
        index < count && count <= most && (index + 1 == count || entries.len() == SUMMARY_ENTRIES)
    });
    in_place && entries.iter().all(|entry| entry.lsn < round.log_end)
}

fn wants(round: &Round<'_>, sifted: &Sifted, entry: &SummaryEntry, device: u8, place: u64) -> bool {
    let ino = entry.ino.0 as u32;
    let Some(slot) = round.inodes.slots.get(&ino) else {
        return false;
    };
    let fits = slot.is_regular()
        && !slot.has(flag::ORPHAN)
        && slot.generation.get() == entry.generation
        && entry.block.0 < slot.size.get().div_ceil(BLOCK_SIZE);
    let shadowed = round.maps.get(&ino).is_some_and(|map| map.entries.contains_key(&entry.block.0));
    let extents = sifted.extents.get(&ino).map_or(&[][..], Vec::as_slice);
    let covered = extents.iter().any(|e| e.first <= entry.block && entry.block < e.end());
    if !fits || shadowed || covered {
        return false;
    }
    let chunk_blocks = u64::from(round.pool.geometry.chunk_blocks);
    let within = place - FIRST_CHUNK_BLOCK.0;
    let marked = match sifted.chunks.get(&(within / chunk_blocks, device)) {
        Some(bitmap) => {
            let bit = within % chunk_blocks;
            bitmap.get((bit / 8) as usize).is_some_and(|byte| byte >> (bit % 8) & 1 == 1)
        }
        None => slot.blocks.get() > mapped(&round.maps, ino, sifted),
    };
    let content = if marked { round.pool.device_block(device.into(), place) } else { None };
    content.is_some_and(|content| crc32c(&*content) == entry.crc)
}

fn add_extents(round: &mut Round<'_>, blocks: BTreeMap<(u32, u64), Found>, sifted: &mut Sifted) {
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    let chunk_blocks = u64::from(round.pool.geometry.chunk_blocks);
    for ((ino, file_block), found) in blocks {
        *counts.entry(ino).or_insert(0) += 1;
        let extents = sifted.extents.entry(ino).or_default();
        let grows = extents.last_mut().filter(|last| {
            !last.unwritten
                && last.length < MAX_EXTENT_BLOCKS
                && last.end().0 == file_block
                && last.device.0 == found.device
                && last.start.0 + u64::from(last.length) == found.place
                && !(found.place - FIRST_CHUNK_BLOCK.0).is_multiple_of(chunk_blocks)
        });
        if let Some(last) = grows {
            last.length += 1;
            last.crcs.push(found.crc);
            continue;
        }
        extents.push(ColdExtent {
            first: FileBlock(file_block),
            length: 1,
            device: DeviceId(found.device),
            start: DeviceBlock(found.place),
            unwritten: false,
            crcs: vec![found.crc],
        });
    }
    for (ino, count) in counts {
        if let Some(extents) = sifted.extents.get_mut(&ino) {
            extents.sort_by_key(|extent| extent.first);
        }
        round.actions.add(format!("inode {ino}: {count} cold blocks found again by group summaries"));
    }
}
