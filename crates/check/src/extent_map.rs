//! Extent maps of files (format.md "Extent map").

use crate::checker::{Checker, Node};
use crate::code::Code;
use crate::inode_record::InodeRecord;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::extent_map::{
    Entry, Extent, ExtentRoot, INLINE_EXTENTS, MAX_HEIGHT, NODE_HEAD_WORDS, NodeHead, entry_word, key_of,
};
use terrace_format::table::{Owner, PageKind};

/// Nodes that extents of 128 blocks may lie in: each an extent of its own, in leaves with a single extent.
const NODES_OF_A_RANGE: u32 = 512;

/// The extents in the slot.
fn inline_of(record: &InodeRecord) -> [Entry; INLINE_EXTENTS] {
    std::array::from_fn(|index| {
        let word = |at: usize| record.direct.get(at).map_or(0, |word| u64::from(*word));
        [word(4 * index) | word(4 * index + 1) << 32, word(4 * index + 2) | word(4 * index + 3) << 32]
    })
}

/// Keys that a node may have.
#[derive(Clone, Copy)]
struct Span {
    from: u64,
    end: u64,
}

/// Walks the extent map of a file, counts its blocks into the record.
pub(crate) fn walk_extents(checker: &mut Checker<'_>, record: &mut InodeRecord) {
    let ino = record.ino;
    let root = ExtentRoot::decode(record.root);
    let inline = inline_of(record);
    let used = match root {
        Some(ExtentRoot::Inline(count)) => count,
        _ => 0,
    };
    let is_sound = root.is_some() && inline.iter().skip(used).all(|entry| *entry == [0; 2]);
    if !is_sound {
        let (word, direct) = (record.root, record.direct);
        checker.report(Code::ExtentRoot, || format!("inode {ino}: {word:#x}, extents {direct:x?}"));
    }
    let all = Span { from: 0, end: MAX_FILE_BLOCK.0 + 1 };
    match root {
        None | Some(ExtentRoot::Empty) => {}
        Some(ExtentRoot::Inline(count)) => judge(checker, record, all, inline.iter().take(count).copied()),
        Some(ExtentRoot::Tree { height, block }) => walk_node(checker, record, block.0, height - 1, all),
    }
}

/// Recursion is as deep as the tree is high.
fn walk_node(checker: &mut Checker<'_>, record: &mut InodeRecord, block: u64, level: u8, span: Span) {
    let ino = record.ino;
    let owner = Owner::Page { kind: PageKind::MapNode, datum: ino };
    if !checker.claim(block, owner, &format_args!("map of inode {ino}, extent node of level {level}")) {
        return;
    }
    assert!(level < MAX_HEIGHT, "inode {ino}: a walk below the leaves");
    let Some(node) = checker.node(block) else { return };
    let Some(head) = head_of(&node).filter(|head| head.level == level && (level == 0 || head.count > 0))
    else {
        checker.report(Code::ExtentNode, || format!("inode {ino}: block {block}, level {level}"));
        return;
    };
    let entry = |position: usize| {
        let at = entry_word(head.place(position));
        [node.get(at).copied().unwrap_or(0), node.get(at + 1).copied().unwrap_or(0)]
    };
    if level == 0 {
        return judge(checker, record, span, (0..head.count).map(entry));
    }
    // The key of the first child is that of its node.
    let key = |position: usize| if position == 0 { span.from } else { key_of(entry(position)) };
    for position in 0..head.count {
        let end = if position + 1 < head.count { key(position + 1) } else { span.end };
        let below = Span { from: key(position), end };
        if below.from >= below.end || below.from < span.from || below.end > span.end {
            let (from, end) = (below.from, below.end);
            checker.report(Code::ExtentNode, || format!("inode {ino}: block {block}, keys {from} to {end}"));
            continue;
        }
        walk_node(checker, record, entry(position)[1], level - 1, below);
    }
}

fn judge(
    checker: &mut Checker<'_>,
    record: &mut InodeRecord,
    span: Span,
    entries: impl Iterator<Item = Entry>,
) {
    let ino = record.ino;
    let mut from = span.from;
    for entry in entries {
        let is_here = |extent: &Extent| extent.first >= from && extent.end() <= span.end;
        let extent = Extent::decode(entry).filter(is_here);
        let Some(extent) = extent.filter(|extent| is_in_pm(checker, extent)) else {
            checker.report(Code::ExtentSpan, || format!("inode {ino}: {entry:x?} behind block {from}"));
            continue;
        };
        assert!(extent.end() > from && extent.end() <= span.end, "inode {ino}: {extent:?} was not judged");
        from = extent.end();
        for block in extent.first..extent.end() {
            // Behind a block that is reached twice the rest would be, too: each PM block is judged once.
            if !checker.file_block(record, block, extent.at(block).0, extent.unwritten) {
                break;
            }
        }
    }
}

/// The extents that reach into a range. The walk of the map has reported damage on the way already.
pub(crate) fn extents_in(checker: &mut Checker<'_>, record: &InodeRecord, range: (u64, u64)) -> Vec<Extent> {
    let mut found = Vec::new();
    let meets = |extent: &Extent| extent.end() > range.0 && extent.first < range.1;
    match ExtentRoot::decode(record.root) {
        None | Some(ExtentRoot::Empty) => {}
        Some(ExtentRoot::Inline(count)) => {
            let inline = inline_of(record);
            found.extend(inline.iter().take(count).filter_map(|entry| Extent::decode(*entry)).filter(meets));
        }
        Some(ExtentRoot::Tree { height, block }) => {
            let mut left = NODES_OF_A_RANGE;
            find_extents(checker, block.0, height - 1, range, &mut left, &mut found);
        }
    }
    found
}

fn find_extents(
    checker: &mut Checker<'_>,
    block: u64,
    level: u8,
    range: (u64, u64),
    left: &mut u32,
    found: &mut Vec<Extent>,
) {
    *left = left.saturating_sub(1);
    if *left == 0 || !checker.in_pool(block) {
        return;
    }
    let Some(node) = checker.node(block) else { return };
    let Some(head) = head_of(&node).filter(|head| head.level == level) else { return };
    let entry = |position: usize| {
        let at = entry_word(head.place(position));
        [node.get(at).copied().unwrap_or(0), node.get(at + 1).copied().unwrap_or(0)]
    };
    for position in 0..head.count {
        if level == 0 {
            let extent = Extent::decode(entry(position));
            found.extend(extent.filter(|extent| extent.end() > range.0 && extent.first < range.1));
        } else {
            let ends_before = position + 1 < head.count && key_of(entry(position + 1)) <= range.0;
            let begins_behind = position > 0 && key_of(entry(position)) >= range.1;
            if !ends_before && !begins_behind {
                find_extents(checker, entry(position)[1], level - 1, range, left, found);
            }
        }
    }
}

fn is_in_pm(checker: &Checker<'_>, extent: &Extent) -> bool {
    checker.in_pool(extent.block.0) && checker.in_pool(extent.block.0 + (extent.length - 1))
}

/// The head of a node with a sound order.
fn head_of(node: &Node) -> Option<NodeHead> {
    let words = node.first_chunk::<NODE_HEAD_WORDS>()?;
    NodeHead::decode(words).filter(NodeHead::is_permutation)
}
