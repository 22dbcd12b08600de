//! Decides the chunk bitmaps of the lower tiers.
//!
//! Invariant: a bitmap marks the blocks of extents, metadata pages and group summaries, and no others.

use crate::state::Round;
use crate::state::sifted::Sifted;
use std::collections::BTreeMap;
use terrace_format::device::{FIRST_CHUNK_BLOCK, decode_summary};
use terrace_format::keys::Key;
use terrace_format::{DeviceBlock, DeviceId};

/// Chunk bitmaps that mark exactly the blocks of extents, the metadata pages and the group summaries that
/// were marked.
pub(crate) fn decide_chunks(round: &mut Round<'_>, sifted: &mut Sifted) {
    let chunk_blocks = u64::from(round.pool.geometry.chunk_blocks);
    let place = |block: u64| {
        let within = block - FIRST_CHUNK_BLOCK.0;
        (within / chunk_blocks, within % chunk_blocks)
    };
    let bytes = (chunk_blocks.div_ceil(64) * 8) as usize;
    let mut chunks: BTreeMap<(u64, u8), Vec<u8>> = BTreeMap::new();
    let mark = |chunks: &mut BTreeMap<(u64, u8), Vec<u8>>, device: u8, block: u64| {
        let (chunk, within) = place(block);
        let bitmap = chunks.entry((chunk, device)).or_insert_with(|| vec![0; bytes]);
        if let Some(byte) = bitmap.get_mut((within / 8) as usize) {
            *byte |= 1 << (within % 8);
        }
    };
    for extent in sifted.extents.values().flatten() {
        for block in (extent.start.0..).take(extent.length as usize) {
            mark(&mut chunks, extent.device.0, block);
        }
    }
    for (device, block) in &round.below.places {
        mark(&mut chunks, *device, *block);
    }
    for ((chunk, device), bitmap) in std::mem::take(&mut sifted.chunks) {
        let first = FIRST_CHUNK_BLOCK.0 + chunk * chunk_blocks;
        let blocks = round.pool.device_blocks(device.into());
        if first >= blocks {
            round.actions.add(format!("chunk {chunk} of device {device}: there is no such chunk; dropped"));
            continue;
        }
        chunks.entry((chunk, device)).or_insert_with(|| vec![0; bytes]);
        let bits = (0u64..).zip(&bitmap).flat_map(|(at, byte)| {
            (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| at * 8 + bit)
        });
        for block in bits.filter(|bit| *bit < chunk_blocks).map(|bit| first + bit) {
            if block < blocks && may_be_summary(round, device.into(), block) {
                mark(&mut chunks, device, block);
            }
        }
    }
    for ((chunk, device), bitmap) in chunks {
        sifted.kept.insert(Key::chunk(chunk, DeviceId(device)).0, bitmap);
    }
}

/// Whether a marked device block may hold a group summary. An unreadable block stays marked.
fn may_be_summary(round: &Round<'_>, device: usize, block: u64) -> bool {
    let Some(content) = round.pool.device_block(device, block) else {
        return true;
    };
    let place = (DeviceId(device as u8), DeviceBlock(block));
    decode_summary(&*content, &round.pool.superblock.seal_key(), place).is_ok_and(|(first, entries)| {
        let end = first.0.checked_add(entries.len() as u64);
        first >= FIRST_CHUNK_BLOCK && end.is_some_and(|end| end <= round.pool.device_blocks(device))
    })
}
