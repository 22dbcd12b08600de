//! Bytes behind the end of a file: zeros before the size is raised (S5).

use crate::change::stage_block::stage;
use crate::change::staged::Staged;
use crate::operation::need::Attempt;
use crate::operation::op::Op;
use crate::store::Store;
use crate::types::inode::Inode;
use crate::types::segment::Segment;
use terrace_format::BLOCK_SIZE;

/// A size raised to or past `from` exposes bytes of the old last block past the old end: they become zeros in
/// the same transaction (design S5). A write that starts in the old last block clears the bytes itself.
pub fn stage_tail_zeros(
    store: &Store,
    op: &mut Op,
    inode: &Inode,
    from: u64,
    staged: &mut Staged<'_>,
) -> Attempt<()> {
    let block_end = inode.durable_size().next_multiple_of(BLOCK_SIZE);
    if from < block_end { Ok(()) } else { stage_raised(store, op, inode, from, staged) }
}

/// As [`stage_tail_zeros`] when the size is raised to `size` without a write.
pub fn stage_raised(
    store: &Store,
    op: &mut Op,
    inode: &Inode,
    size: u64,
    staged: &mut Staged<'_>,
) -> Attempt<()> {
    let old = inode.durable_size();
    let end = old.next_multiple_of(BLOCK_SIZE).min(size);
    if old >= end {
        return Ok(());
    }
    stage(store, op, inode, Segment { offset: old, length: end - old, data: None }, staged)
}
