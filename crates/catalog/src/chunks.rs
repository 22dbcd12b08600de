//! Allocation of lower-tier blocks, the persistent part: a bitmap of used blocks per chunk.
//!
//! Chunk `c` of a device covers device blocks from `1 + c · chunk_blocks` (block 0 is the header); the
//! last chunk may be short. An absent key is a wholly free chunk. Chunk keys lie in the shard of the
//! chunk number (L1); the caller of a mark holds these shards.
//! Invariant: used and free marks of a block alternate; a repeated mark means damage.

use crate::catalog::Catalog;
use crate::edit::Edit;
use crate::shards::ShardsWrite;
use smallvec::SmallVec;
use terrace_blocks::bits::Run;
use terrace_format::keys::{ColdExtent, Key};
use terrace_format::{Corrupt, DeviceBlock, DeviceId};
use terrace_wal::{Error, Tx};

/// Consecutive blocks of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceRun {
    /// The device.
    pub device: DeviceId,
    /// First block.
    pub start: DeviceBlock,
    /// Blocks.
    pub length: u64,
}

impl From<&ColdExtent> for DeviceRun {
    /// Where an extent lies.
    fn from(extent: &ColdExtent) -> DeviceRun {
        DeviceRun { device: extent.device, start: extent.start, length: extent.length.into() }
    }
}

/// The number of a chunk of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChunkIndex(pub u64);

/// The part of a device run inside one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The chunk.
    pub chunk: ChunkIndex,
    /// Its bits: a bit for each block, counted from the first block of the chunk.
    pub bits: Run,
}

impl Piece {
    /// The blocks of the piece on its device.
    pub fn on(self, device: DeviceId, chunk_blocks: u32) -> DeviceRun {
        let start = 1 + self.chunk.0 * u64::from(chunk_blocks) + self.bits.start;
        DeviceRun { device, start: DeviceBlock(start), length: self.bits.length }
    }
}

/// Bytes of a chunk's bitmap.
pub fn bitmap_size(chunk_blocks: u32) -> usize {
    (chunk_blocks as usize).div_ceil(64) * 8
}

/// The chunks that a run touches. Block 0 is the header: it belongs to none and is left out.
pub fn pieces(chunk_blocks: u32, run: DeviceRun) -> impl Iterator<Item = Piece> {
    let size = u64::from(chunk_blocks);
    let end = run.start.0.saturating_add(run.length).saturating_sub(1);
    let mut at = run.start.0.saturating_sub(1);
    std::iter::from_fn(move || {
        let length = end.checked_sub(at)?.min(size - at % size);
        let piece = Piece { chunk: ChunkIndex(at / size), bits: Run::new(at % size, length) };
        at += length;
        (length > 0).then_some(piece)
    })
}

/// The shards to lock for [`mark`]ing a run.
pub fn shards(catalog: &Catalog, run: DeviceRun) -> SmallVec<[u32; 4]> {
    let chunk_blocks = catalog.wal().geometry().chunk_blocks;
    pieces(chunk_blocks, run).map(|piece| catalog.shard_of(piece.chunk.0)).collect()
}

/// The puts that [`mark`] can do, for `make_room_many`.
pub fn mark_puts(catalog: &Catalog, run: DeviceRun) -> Vec<(Key, usize)> {
    let chunk_blocks = catalog.wal().geometry().chunk_blocks;
    let size = bitmap_size(chunk_blocks);
    pieces(chunk_blocks, run).map(|piece| (Key::chunk(piece.chunk.0, run.device), size)).collect()
}

/// Marks blocks used or free. Logs only the changed words, or a whole bitmap for a chunk's first use.
///
/// # Errors
/// `Full`; `Corrupt` when a block is so marked already; the medium's.
pub fn mark(
    guard: &mut ShardsWrite<'_>,
    tx: &mut Tx,
    run: DeviceRun,
    used: bool,
) -> std::result::Result<(), Edit> {
    let chunk_blocks = guard.catalog().wal().geometry().chunk_blocks;
    if run.start.0 == 0 || run.length == 0 || run.start.0.checked_add(run.length).is_none() {
        return Err(wrong(run, "blocks behind the header", "another range").into());
    }
    for piece in pieces(chunk_blocks, run) {
        mark_piece(guard, tx, run, piece, used, bitmap_size(chunk_blocks))?;
    }
    Ok(())
}

fn wrong(run: DeviceRun, expected: &str, found: impl ToString) -> Error {
    let site = format!("device {}, {} blocks from {}", run.device, run.length, run.start);
    Corrupt::new(site, expected, found.to_string()).into()
}

fn mark_piece(
    guard: &mut ShardsWrite<'_>,
    tx: &mut Tx,
    run: DeviceRun,
    piece: Piece,
    used: bool,
    size: usize,
) -> std::result::Result<(), Edit> {
    let Piece { chunk: ChunkIndex(chunk), bits } = piece;
    if chunk > u64::from(u32::MAX) {
        return Err(wrong(run, "a chunk number of 32 bits", chunk).into());
    }
    let key = Key::chunk(chunk, run.device);
    // The caller locked the shards of the extents that the inode's flags announce. An extent in another shard
    // means that the flags are damaged.
    if !guard.holds(guard.catalog().shard_of(chunk)) {
        return Err(wrong(run, "an extent that its inode's flags announce", "no such flag").into());
    }
    let old: Option<SmallVec<[u8; 512]>> = guard.reader(tx).get_with(&key, SmallVec::from_slice)?;
    let absent = old.is_none();
    let mut bitmap = old.unwrap_or_else(|| SmallVec::from_elem(0, size));
    if bitmap.len() != size {
        return Err(wrong(run, &format!("a bitmap of {size} bytes"), bitmap.len()).into());
    }
    for bit in bits.start..bits.end() {
        let mask = 1u8 << (bit % 8);
        let Some(byte) = bitmap.get_mut((bit / 8) as usize) else {
            return Err(wrong(run, "a block inside the chunk", bit).into());
        };
        if (*byte & mask != 0) == used {
            let (expected, found) = if used { ("free", "used") } else { ("used", "free") };
            return Err(wrong(run, expected, format!("{found} bit {bit} of chunk {chunk}")).into());
        }
        *byte ^= mask;
    }
    if absent {
        return guard.put(tx, &key, &bitmap);
    }
    if !used && bitmap.iter().all(|byte| *byte == 0) {
        guard.remove(tx, &key)?;
        return Ok(());
    }
    let first = (bits.start / 64 * 8) as usize;
    let end = (bits.end().div_ceil(64) * 8) as usize;
    guard.update_bytes(tx, &key, first, bitmap.get(first..end).unwrap_or_default())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_cut_into_pieces_at_the_borders_of_chunks() {
        let run = |start, length| DeviceRun { device: DeviceId(0), start: DeviceBlock(start), length };
        let found = |of: DeviceRun| -> Vec<_> {
            let tuple = |piece: Piece| (piece.chunk.0, piece.bits.start, piece.bits.length);
            pieces(16, of).map(tuple).collect()
        };
        assert_eq!(found(run(1, 16)), [(0, 0, 16)]);
        assert_eq!(found(run(15, 20)), [(0, 14, 2), (1, 0, 16), (2, 0, 2)]);
        let back: Vec<_> = pieces(16, run(15, 20)).map(|piece| piece.on(DeviceId(0), 16)).collect();
        assert_eq!(back, [run(15, 2), run(17, 16), run(33, 2)]);
    }
}
