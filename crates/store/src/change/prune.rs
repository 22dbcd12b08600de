//! Map nodes that a removal has emptied.

use crate::change::staged::Staged;
use crate::operation::need::Attempt;
use crate::store::Store;
use crate::types::BlockRange;
use crate::types::inode::Inode;
use terrace_map::file_map::Freed;

/// Frees the empty map nodes of a range; true if a node was freed.
pub fn stage_prune(
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
