//! The content of a block on media: PM, cold copies, zeros. Dirty pages lie above it (S1).

use crate::lookup::cold_read::fetched_block;
use crate::lookup::intents::intents_of;
use crate::lookup::lines::{Shadow, lines_of};
use crate::lookup::newest::is_written_below;
use crate::lookup::partial_shadow::read_shadow;
use crate::operation::need::Attempt;
use crate::operation::op::Op;
use crate::store::Store;
use crate::types::BLOCK;
use crate::types::inode::Inode;
use terrace_cache::{DirtyPage, Lines};
use terrace_format::{BLOCK_SIZE, FileBlock};

/// Reads a block on media from byte `skip` on; zeros past the durable end, in holes and in unwritten blocks. The caller
/// holds the inode's lock.
///
/// # Errors
/// EIO; a cold block that is not in DRAM is a need.
pub fn read_below(
    store: &Store,
    op: &mut Op,
    inode: &Inode,
    block: FileBlock,
    skip: usize,
    target: &mut [u8],
) -> Attempt<()> {
    let (end, start) = (skip + target.len(), block.0 * BLOCK_SIZE);
    assert!(end <= BLOCK, "bytes {skip}..{end} of block {block} of inode {}", inode.ino);
    let valid = inode.durable_size().saturating_sub(start).min(BLOCK_SIZE) as usize;
    let (target, past) = target.split_at_mut(valid.clamp(skip, end) - skip);
    past.fill(0);
    if target.is_empty() {
        return Ok(());
    }
    let is_gone = intents_of(store, inode)?.iter().any(|range| range.first <= block && block < range.end);
    let mapping = store.persistent.map().lookup(&inode.map(), block)?;
    match mapping {
        Some(mapping) if !is_gone && !mapping.unwritten => {
            let (until, pm) = (block.plus(1), mapping.block);
            let lines = lines_of(store, inode.ino, block, mapping)?;
            read_shadow(store, op, inode, &Shadow { block, until, pm, lines }, skip, target)
        }
        None if !is_gone && is_written_below(store, inode, block)? => {
            let cold = fetched_block(store, op, inode, block)?;
            target.copy_from_slice(&cold.bytes()[skip..skip + target.len()]);
            Ok(())
        }
        _ => {
            target.fill(0);
            Ok(())
        }
    }
}

/// The whole content of a block with a dirty page: its lines, and the rest as it is on media. The caller holds the inode's
/// lock.
///
/// # Errors
/// As [`read_below`].
pub(crate) fn completed(store: &Store, op: &mut Op, inode: &Inode, dirty: &DirtyPage) -> Attempt<Vec<u8>> {
    let mut content = dirty.page.bytes().to_vec();
    if dirty.valid != Lines::ALL {
        for (part, _) in dirty.valid.cut(0, BLOCK).filter(|(_, is_valid)| !is_valid) {
            read_below(store, op, inode, dirty.key.block, part.start, &mut content[part])?;
        }
    }
    Ok(content)
}
