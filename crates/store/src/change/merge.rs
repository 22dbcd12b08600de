//! A block of a change: its old content merged with new bytes, into a new block or in place.

use crate::change::staged::Staged;
use crate::lookup::below::completed;
use crate::lookup::cold_read::fetched_block;
use crate::lookup::data_checksum::{covered, is_sound, read_verified};
use crate::lookup::lines::read_lines;
use crate::lookup::partial_shadow::page_below;
use crate::operation::need::Attempt;
use crate::operation::op::Op;
use crate::store::Store;
use crate::types::BLOCK;
use crate::types::inode::Inode;
use std::borrow::Cow;
use terrace_blocks::Target;
use terrace_cache::DirtyPage;
use terrace_format::table::Owner;
use terrace_format::{BLOCK_SIZE, FileBlock, LineMask, PmBlock};
use terrace_map::Mapping;

/// A new block from a dirty page and the segment's part of it, which begins at a byte of the block. `end`: how far
/// the file will be on media.
///
/// # Errors
/// EIO; a cold block is a need where the page lacks lines of it.
#[allow(clippy::too_many_arguments)]
pub fn merge_dirty(
    store: &Store,
    op: &mut Op,
    inode: &Inode,
    dirty: &DirtyPage,
    old: Option<Mapping>,
    (from, data): (usize, &[u8]),
    end: u64,
    staged: &mut Staged<'_>,
) -> Attempt<Mapping> {
    let mut content = completed(store, op, inode, dirty)?;
    content[from..from + data.len()].copy_from_slice(data);
    replace(store, inode, dirty.key.block, old, (content.into(), end), staged)
}

/// A new block from the old content and the segment's part of it.
#[allow(clippy::too_many_arguments)]
pub(crate) fn merge_block(
    store: &Store,
    op: &mut Op,
    inode: &Inode,
    block: FileBlock,
    (old, lines, nothing_there): (Option<Mapping>, LineMask, bool),
    (from, to, end): (usize, usize, u64),
    data: Option<&[u8]>,
    valid: usize,
    staged: &mut Staged<'_>,
) -> Attempt<Option<Mapping>> {
    let mut content = vec![0; BLOCK];
    if !nothing_there && valid > 0 {
        match old {
            Some(old) if lines.is_full() => read_verified(store, old.block, &mut content)?,
            Some(old) => {
                let page = page_below(store, op, inode, block, block.plus(1))?;
                content.copy_from_slice(page.bytes());
                read_lines(store, old.block, lines, &mut content)?;
            }
            None => content.copy_from_slice(fetched_block(store, op, inode, block)?.bytes()),
        }
        // Bytes past the end are undefined on media (S5).
        content[valid..].fill(0);
    }
    match data {
        Some(data) => content[from..to].copy_from_slice(data),
        None => content[from..to].fill(0),
    }
    replace(store, inode, block, old, (content.into(), end), staged).map(Some)
}

/// Replaces a block by a new block with the whole content. `end`: the durable end of the file after the
/// change.
pub fn replace<'a>(
    _store: &Store,
    inode: &Inode,
    block: FileBlock,
    old: Option<Mapping>,
    (content, end): (Cow<'a, [u8]>, u64),
    staged: &mut Staged<'a>,
) -> Attempt<Mapping> {
    let new = staged.take(Target::File { ino: inode.ino, block })?;
    let checksum = staged.store_content(new, content, covered(block.0 * BLOCK_SIZE, end))?;
    staged.own_content(new, Owner::File { ino: inode.ino, block, unwritten: false }, checksum);
    if let Some(old) = old {
        staged.release(old.block);
    }
    Ok(Mapping::written(new))
}

/// Overwrites a PM block in place: past the end of the file (`zeros_from` < `from` clears the gap between),
/// or anywhere under data=ordered. False, without a change, if the block's checksum covers more or fewer
/// bytes than lie before the write: the content then needs a new block.
pub(crate) fn store_in_place<'a>(
    store: &Store,
    (block, owner): (PmBlock, Owner),
    zeros_from: usize,
    from: usize,
    to: usize,
    data: Option<&'a [u8]>,
    staged: &mut Staged<'a>,
) -> Attempt<bool> {
    let first = zeros_from.min(from);
    let bytes: Cow<'a, [u8]> = match data {
        Some(data) if first == from => data.into(),
        data => {
            let mut content = vec![0; to - first];
            if let Some(data) = data {
                content[from - first..].copy_from_slice(data);
            }
            content.into()
        }
    };
    if store.mode.has_checksums
        && let Some(checksum) = store.persistent.blocks().checksum(block)?
    {
        let longer = if checksum.covered() == first { checksum.append(&bytes) } else { None };
        if longer.is_some() {
            store.persistent.blocks().set_checksum(&mut staged.tx, block, owner, longer);
        } else if data.is_some() || is_sound(store, block)? {
            return Ok(false);
        }
        // Zeros past the end are stored into a damaged block too: it stays damaged, and later blocks of the
        // file can become durable.
    }
    staged.store_later(block, first, bytes);
    Ok(true)
}
