//! Walks an extent map as it was found.
//!
//! Invariants: every node is followed once, because a walked node has an owner after that; a walk is at most as deep as
//! the highest tree. Blocks that are named again and again are noted as often as PM has blocks, over all files.

use crate::state::Round;
use crate::state::maps::FileMap;
use std::ops::Range;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::extent_map::{
    Entry, Extent, ExtentRoot, INLINE_EXTENTS, MAX_HEIGHT, NODE_HEAD_WORDS, NodeHead, entry_word, key_of,
};
use terrace_format::inode::InodeSlot;
use terrace_format::table::{Owner, PageKind};

/// Walks the map of a file; `again`: how often blocks that were seen before may still be noted.
pub(crate) fn walk_extents(round: &mut Round<'_>, ino: u32, slot: &InodeSlot, again: &mut u64) -> FileMap {
    let mut walk = Walk { map: FileMap::default(), ino, again };
    let words = slot.direct.as_chunks::<4>().0;
    let inline = words.iter().map(|[a, b, c, d]| -> Entry {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        [pair(a.get(), b.get()), pair(c.get(), d.get())]
    });
    let inline: Vec<Entry> = inline.take(INLINE_EXTENTS).collect();
    let used = match ExtentRoot::decode(slot.root.get()) {
        None => {
            walk.map.broken = true;
            0
        }
        Some(ExtentRoot::Empty) => 0,
        Some(ExtentRoot::Inline(count)) => count,
        Some(ExtentRoot::Tree { height, block }) => {
            walk.node(round, block.0, height - 1, 0..MAX_FILE_BLOCK.0 + 1);
            0
        }
    };
    for (number, entry) in inline.into_iter().enumerate() {
        if number < used {
            walk.extent(round, entry, &(0..MAX_FILE_BLOCK.0 + 1));
        } else if entry != [0; 2] {
            walk.map.broken = true;
        }
    }
    walk.map
}

struct Walk<'a> {
    map: FileMap,
    ino: u32,
    again: &'a mut u64,
}

impl Walk<'_> {
    /// `keys`: the file blocks that belong here.
    fn node(&mut self, round: &mut Round<'_>, block: u64, level: u8, keys: Range<u64>) {
        assert!(level < MAX_HEIGHT, "a walk below the leaves");
        let owner = Owner::Page { kind: PageKind::MapNode, datum: self.ino };
        // If the table gives the block another owner, the pointer counts as damaged.
        let is_trusted = matches!(round.owners.owner(block), None | Some(Owner::Free))
            || round.owners.owner(block) == Some(owner);
        round.owners.see(block);
        let node = if is_trusted { round.pool.node(block) } else { None };
        let found =
            node.and_then(|node| Some((NodeHead::decode(node.first_chunk::<NODE_HEAD_WORDS>()?)?, node)));
        let is_sound = |head: &NodeHead| head.level == level && head.is_permutation();
        let found = found.filter(|(head, _)| is_sound(head) && round.owners.own(block, owner));
        let Some((head, node)) = found else {
            self.map.broken = true;
            return;
        };
        self.map.nodes.push(block);
        let entry = |position: usize| {
            let at = entry_word(head.place(position));
            [at, at + 1].map(|at| node.get(at).copied().unwrap_or(0))
        };
        // The key of the first child is that of its node.
        let key = |position: usize| if position == 0 { keys.start } else { key_of(entry(position)) };
        self.map.broken |= level > 0 && head.count == 0;
        for position in 0..head.count {
            if level == 0 {
                self.extent(round, entry(position), &keys);
                continue;
            }
            let end = if position + 1 < head.count { key(position + 1) } else { keys.end };
            let below = key(position)..end;
            self.map.broken |= below.is_empty() || below.start < keys.start || below.end > keys.end;
            self.node(round, entry(position)[1], level - 1, below);
        }
    }

    fn extent(&mut self, round: &mut Round<'_>, entry: Entry, keys: &Range<u64>) {
        let is_in_pm = |extent: &Extent| {
            extent.block.0 + extent.length <= round.pool.geometry.block_count()
                && extent.block >= round.pool.geometry.first_pool_block()
        };
        let Some(extent) = Extent::decode(entry).filter(is_in_pm) else {
            self.map.broken = true;
            return;
        };
        let is_behind = self.map.found.last_key_value().is_none_or(|(last, _)| *last < extent.first);
        self.map.broken |= !is_behind || extent.first < keys.start || extent.end() > keys.end;
        for block in extent.first..extent.end() {
            let place = extent.at(block).0;
            if round.owners.is_seen(place) {
                let Some(left) = self.again.checked_sub(1) else {
                    self.map.broken = true;
                    return;
                };
                *self.again = left;
            }
            round.owners.see(place);
            self.map.note(block, place, extent.unwritten);
        }
    }
}
