//! TODO header of store/change/prune.rs

use crate::store::change::staged::Staged;
use crate::store::operation::need::Attempt;
use crate::store::store::Store;
use crate::store::types::BlockRange;
use crate::store::types::inode::Inode;
use terrace_map::file_map::Freed;

/// Frees map nodes of a range that hold nothing any more; true when it freed any.
pub(crate) fn stage_prune(
    store: &Store,
    inode: &Inode,
    range: BlockRange,
    staged: &mut Staged<'_>,
) -> Attempt<bool> {
    let mut nodes = Freed::new();
    let count = range.count() as usize;
    let pruned = store.persistent.map().prune(&mut staged.tx, &inode.map(), range.first, count, &mut nodes);
    let freed = !nodes.is_empty();
    staged.released.extend(nodes);
    pruned?;
    Ok(freed)
}
