//! Pages of a file map that a crash left empty.

use crate::change::staged::Staged;
use crate::operation::need::Attempt;
use crate::store::Store;
use crate::types::BlockRange;
use crate::types::inode::Inode;
use terrace_map::file_map::Freed;

/// Frees the empty pages of the map of a range; true if a page was freed.
pub fn stage_prune(
    store: &Store,
    inode: &Inode,
    range: BlockRange,
    limit: usize,
    staged: &mut Staged<'_>,
) -> Attempt<bool> {
    let mut nodes = Freed::new();
    let range = (range.first, range.count() as usize);
    let pruned = store.persistent.map().prune(&mut staged.tx, &inode.map(), range, limit, &mut nodes);
    let freed = !nodes.is_empty();
    staged.released.extend(nodes);
    pruned?;
    Ok(freed)
}
