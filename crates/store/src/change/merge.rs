//! A block of a change: its old content merged with new bytes, into a new block or in place.

use crate::change::staged::Staged;
use crate::lookup::below::completed;
use crate::lookup::cold_read::fetched_block;
use crate::lookup::data_checksum::{covered, is_sound, read_verified};
use crate::lookup::lines::{lines_of, read_lines};
use crate::lookup::newest::is_written_below;
use crate::lookup::partial_shadow::page_below;
use crate::operation::need::Attempt;
use crate::operation::op::Op;
use crate::store::Store;
use crate::types::inode::Inode;
use crate::types::{BLOCK, LINE};
use std::borrow::Cow;
use terrace_blocks::Target;
use terrace_cache::DirtyPage;
use terrace_format::table::Owner;
use terrace_format::{BLOCK_SIZE, FileBlock, LineMask, PmBlock};
use terrace_map::Mapping;

/// A new block from a dirty page and the segment's part of it, which begins at a byte of the block. `end`: how far
/// the file will be on media. Over a cold block it holds lines alone where no edge line of the segment lacks its rest, so
/// that no device is read (I10).
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
    let to = from + data.len();
    if let Some((held, lines)) = lines_alone(store, inode, dirty, old, (from, to, end))? {
        let mut content = dirty.page.bytes().to_vec();
        if let Some(old) = old {
            let missing = LineMask(held.0 & !dirty.valid.0);
            read_lines(store, old.block, missing, &mut content)?;
        }
        content[from..to].copy_from_slice(data);
        let new = staged.take(Target::File { ino: inode.ino, block: dirty.key.block })?;
        let hull = lines.hull();
        staged.store(new, hull.start as u64, content[hull].to_vec())?;
        staged.own_lines(
            new,
            Owner::File { ino: inode.ino, block: dirty.key.block, unwritten: false },
            lines,
        );
        old.iter().for_each(|old| staged.release_for(old.block, new));
        return Ok(Mapping::written(new));
    }
    let mut content = completed(store, op, inode, dirty)?;
    content[from..to].copy_from_slice(data);
    replace(store, inode, dirty.key.block, old, (content.into(), end), staged)
}

/// The lines of a cold block that PM holds, and the lines that a new block gets without a read of the cold copy. `None`: the
/// new block is to be whole.
fn lines_alone(
    store: &Store,
    inode: &Inode,
    dirty: &DirtyPage,
    old: Option<Mapping>,
    (from, to, end): (usize, usize, u64),
) -> Attempt<Option<(LineMask, LineMask)>> {
    let block = dirty.key.block;
    assert!(from <= to && to <= BLOCK, "bytes {from}..{to} of block {block}");
    let valid = LineMask(dirty.valid.0);
    let held = match old {
        Some(old) => lines_of(store, inode.ino, block, old)?,
        None => LineMask::EMPTY,
    };
    let makes = store.mode.has_partial && !store.mode.no_partial_shadows;
    let is_cold = match old {
        Some(_) => !held.is_full(),
        None => !valid.is_full() && makes && is_written_below(store, inode, block)?,
    };
    let known = valid.union(held);
    let lacks =
        |at: usize| from < to && !at.is_multiple_of(LINE) && !known.contains(LineMask::touching(at - 1, at));
    let lines = known.union(if from < to { LineMask::touching(from, to) } else { LineMask::EMPTY });
    // Bytes of the cold copy past the durable end become visible, and may be those of a longer file (S5).
    let end_in = |size: u64| size.saturating_sub(block.0 * BLOCK_SIZE).min(BLOCK_SIZE) as usize;
    let (durable, end) = (end_in(inode.durable_size()), end_in(end));
    let hides_all = durable >= end || lines.contains(LineMask::touching(durable, end));
    let is_alone = is_cold && !lines.is_full() && !lacks(from) && !lacks(to) && hides_all;
    Ok(is_alone.then_some((held, lines)))
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
        staged.release_for(old.block, new);
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
