//! The lines that a write has, and the lines that it stores to PM the direct way.

use crate::error::FsResult;
use crate::store::Store;
use crate::types::inode::Inode;
use terrace_cache::{Lines, WrittenLines};
use terrace_format::inode::flag;
use terrace_format::{BLOCK_SIZE, FileBlock};

/// The lines of a write to bytes `from` to `to` of a block, and those that it stores to PM the direct way: all of a new block, as
/// write-back does, and all under data=atomic where a part of the bytes of a block is overwritten. Lines over a cold block count
/// as stored alone, and whole pages (checksums of data) cost the same either way.
pub(crate) fn written_lines(
    store: &Store,
    inode: &Inode,
    block: FileBlock,
    (from, to): (usize, usize),
) -> WrittenLines {
    let (start, size) = (block.0 * BLOCK_SIZE, inode.size());
    let (lines, is_new) = (Lines::touched(from, to), start >= size);
    let is_append = start + from as u64 >= size;
    let replaces = || {
        let is_in_place = store.mode.data_ordered || store.mode.has_checksums;
        !is_in_place
            && !is_append
            && lines != Lines::ALL
            && (!inode.slot.has(flag::HAS_COLD) || has_all_lines(store, inode, block).unwrap_or(false))
    };
    assert!(from < to && to <= BLOCK_SIZE as usize, "bytes {from}..{to} of block {block}");
    let direct = if is_new || replaces() { Lines::ALL } else { lines };
    WrittenLines { lines, direct: direct.0.count_ones(), is_new, is_append }
}

/// Whether PM has all lines of a block.
fn has_all_lines(store: &Store, inode: &Inode, block: FileBlock) -> FsResult<bool> {
    let Some(mapping) = store.persistent.map().lookup(&inode.map(), block)? else { return Ok(false) };
    let blocks = store.persistent.blocks();
    Ok(mapping.unwritten || blocks.lines(mapping.block, inode.ino, block)?.is_full())
}
