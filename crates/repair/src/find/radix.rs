//! Walks a radix tree as it was found: of the inode file, or of a file's map.
//!
//! Invariants: every node is followed once, because a walked node has an owner after that. A walk is at most
//! [`MAX_HEIGHT`] levels deep.

use crate::state::Round;
use crate::state::inodes::MAX_HEIGHT;
use terrace_format::inode::{RADIX_FANOUT, unpack_root};
use terrace_format::table::Owner;

/// The result of a walk of a radix tree.
#[derive(Default)]
pub(crate) struct Walk {
    /// Leaf entries that are not 0, in order.
    pub entries: Vec<(u64, u64)>,
    /// Nodes that could be read: (block, level).
    pub nodes: Vec<(u64, u64)>,
    /// A node is missing, reached twice or unreadable, or the root word is impossible.
    pub broken: bool,
    /// The block table says of a node that it is free, or does not say its owner.
    doubtful: bool,
    /// Whether the walk follows pointers to such nodes.
    trusting: bool,
}

/// Walks a radix tree; every node once.
pub(crate) fn walk(round: &mut Round<'_>, root_word: u64, owner: &dyn Fn(u64) -> Owner) -> Walk {
    let mut walk = Walk { trusting: true, ..Walk::default() };
    if root_word == 0 {
        return walk;
    }
    let (height, root) = unpack_root(root_word);
    if height == 0 || height > MAX_HEIGHT {
        walk.broken = true;
        return walk;
    }
    walk_node(round, root, u64::from(height) - 1, 0, owner, &mut walk);
    if walk.doubtful && (0..u64::from(MAX_HEIGHT)).any(|level| round.owners.has_unreached(owner(level))) {
        // The table names further nodes of this tree: so a pointer is damaged, and not the table.
        walk.nodes.iter().for_each(|(block, _)| round.owners.release(*block));
        walk = Walk::default();
        walk_node(round, root, u64::from(height) - 1, 0, owner, &mut walk);
    }
    walk
}

fn walk_node(
    round: &mut Round<'_>,
    block: u64,
    level: u64,
    base: u64,
    owner: &dyn Fn(u64) -> Owner,
    walk: &mut Walk,
) {
    assert!(level < u64::from(MAX_HEIGHT), "a walk below the leaves");
    // If the table gives the block another owner, the pointer counts as damaged: the nodes that it should
    // have led to are in the table as well.
    let trusted = match round.owners.owner(block) {
        Some(found) if found == owner(level) => true,
        Some(Owner::Free) | None => {
            walk.doubtful = true;
            walk.trusting
        }
        Some(_) => false,
    };
    round.owners.see(block);
    let node = if trusted { round.pool.node(block) } else { None };
    let Some(node) = node.filter(|_| round.owners.own(block, owner(level))) else {
        walk.broken = true;
        return;
    };
    walk.nodes.push((block, level));
    let span = RADIX_FANOUT.pow(level as u32);
    for (index, entry) in (0..).zip(node) {
        match (entry, level) {
            (0, _) => {}
            (entry, 0) => walk.entries.push((base + index * span, entry)),
            (entry, _) => walk_node(round, entry, level - 1, base + index * span, owner, walk),
        }
    }
}
