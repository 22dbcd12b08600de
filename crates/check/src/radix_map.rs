//! Radix trees: of the inode file, and of each file in a pool with this map (format.md "Radix nodes").

use crate::checker::Checker;
use crate::code::Code;
use crate::inode_record::InodeRecord;
use std::fmt;
use terrace_format::address::MAX_FILE_BLOCK;
use terrace_format::inode::{DIRECT_BLOCKS, DIRECT_UNWRITTEN, ENTRY_UNWRITTEN, RADIX_FANOUT, unpack_root};
use terrace_format::table::{Owner, PageKind};

/// The owner of a radix tree.
#[derive(Clone, Copy)]
pub enum Tree {
    InodeFile,
    File(u32),
}

impl Tree {
    /// 512^4 leaf entries are more than any index; a higher tree is damaged.
    pub const MAX_HEIGHT: u64 = 4;

    fn node_owner(self, level: u64) -> Owner {
        match self {
            Tree::InodeFile => Owner::Page { kind: PageKind::InodeNode, datum: level as u32 },
            Tree::File(ino) => Owner::Page { kind: PageKind::MapNode, datum: ino },
        }
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tree::InodeFile => f.write_str("inode file"),
            Tree::File(ino) => write!(f, "map of inode {ino}"),
        }
    }
}

/// Called with each leaf entry that is not 0 and its index, in ascending order.
type Visit<'v, 'a> = &'v mut dyn FnMut(&mut Checker<'a>, u64, u64);

impl<'a> Checker<'a> {
    /// Visits all entries of a tree, `height` levels from 1 to [`Tree::MAX_HEIGHT`].
    pub(crate) fn walk_tree(&mut self, tree: Tree, root: u64, height: u64, visit: Visit<'_, 'a>) {
        assert!((1..=Tree::MAX_HEIGHT).contains(&height), "{tree}: height {height} was not judged");
        self.walk_node(tree, root, height - 1, 0, visit);
    }

    /// Level 0 is a leaf. Recursion is as deep as the tree is high, at most 4.
    fn walk_node(&mut self, tree: Tree, block: u64, level: u64, base: u64, visit: Visit<'_, 'a>) {
        assert!(level < Tree::MAX_HEIGHT, "{tree}: a walk below the leaves");
        let owner = tree.node_owner(level);
        if !self.claim(block, owner, &format_args!("{tree}, node of level {level}")) {
            return;
        }
        let Some(node) = self.node(block) else {
            return;
        };
        let span = RADIX_FANOUT.pow(level as u32);
        for (index, entry) in (0..).zip(node) {
            let at = base + index * span;
            match (entry, level) {
                (0, _) => {}
                (entry, 0) => visit(self, at, entry),
                (entry, _) => self.walk_node(tree, entry, level - 1, at, visit),
            }
        }
    }

    /// Walks the radix map of a file, counts its blocks into the record.
    pub(crate) fn radix_map(&mut self, record: &mut InodeRecord) {
        for (block, pointer) in (0..).zip(record.direct) {
            if pointer != 0 {
                let unwritten = pointer & DIRECT_UNWRITTEN != 0;
                self.file_block(record, block, u64::from(pointer & !DIRECT_UNWRITTEN), unwritten);
            }
        }
        if record.root == 0 {
            return;
        }
        let (height, root) = unpack_root(record.root);
        if height == 0 || u64::from(height) > Tree::MAX_HEIGHT || root == 0 {
            let (ino, word) = (record.ino, record.root);
            self.report(Code::MapRoot, || format!("inode {ino}: {word:#x}"));
            return;
        }
        let tree = Tree::File(record.ino);
        self.walk_tree(tree, root, u64::from(height), &mut |checker, block, entry| {
            if (block < DIRECT_BLOCKS && checker.has_direct()) || block > MAX_FILE_BLOCK.0 {
                checker.report(Code::MapIndex, || format!("{tree}: entry {entry:#x} for block {block}"));
                return;
            }
            let unwritten = entry & ENTRY_UNWRITTEN != 0;
            checker.file_block(record, block, entry & !ENTRY_UNWRITTEN, unwritten);
        });
    }

    /// Direct pointers hold 31 bits; a larger PM has no direct pointers.
    pub(crate) fn has_direct(&self) -> bool {
        self.geometry.block_count() <= u64::from(DIRECT_UNWRITTEN)
    }
}
