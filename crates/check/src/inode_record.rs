//! The record of an inode in use: fields of its slot, and facts that the phases gather.

use terrace_format::inode::{DIRECT_BLOCKS, InodeSlot};

/// The facts gathered about an inode in use.
#[derive(Default, Clone)]
pub(crate) struct InodeRecord {
    pub(crate) ino: u32,
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) flags: u32,
    pub(crate) generation: u32,
    pub(crate) parent: u32,
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    pub(crate) direct: [u32; DIRECT_BLOCKS as usize],
    pub(crate) root: u64,
    pub(crate) orphan: OrphanFacts,
    pub(crate) content: ContentFacts,
    pub(crate) names: NameFacts,
    /// The path to the root was followed: not yet, now, good, bad.
    pub(crate) path: Path,
}

/// Neighbours on an orphan list.
#[derive(Default, Clone)]
pub(crate) struct OrphanFacts {
    pub(crate) next: u32,
    pub(crate) previous: u32,
    /// Found on an orphan list.
    pub(crate) listed: bool,
}

/// Facts about the content of a file or symbolic link.
#[derive(Default, Clone)]
pub(crate) struct ContentFacts {
    /// Blocks mapped in PM or below, each once.
    pub(crate) mapped: u64,
    /// End of the last written block, in PM or below.
    pub(crate) written_end: u64,
    /// Largest end of an intent.
    pub(crate) intent_end: u64,
    /// Bytes of the symlink target found in the catalog.
    pub(crate) target_bytes: u64,
}

/// Facts about directory entries that name the inode, and of the entries in a directory.
#[derive(Default, Clone)]
pub(crate) struct NameFacts {
    /// Directory entries that name the inode.
    pub(crate) count: u32,
    /// The directory that names the inode (the last directory, if several do).
    pub(crate) named_by: u32,
    /// Entries of this directory that name directories.
    pub(crate) subdirectories: u32,
    /// Entries of this directory.
    pub(crate) entries: u64,
}

/// How far the path of a directory to the root was followed.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Path {
    #[default]
    Unknown,
    Walking,
    Good,
    Bad,
}

impl InodeRecord {
    pub(crate) fn from_slot(ino: u32, slot: &InodeSlot) -> InodeRecord {
        InodeRecord {
            ino,
            mode: slot.mode.get(),
            nlink: slot.nlink.get(),
            flags: slot.flags.get(),
            generation: slot.generation.get(),
            parent: slot.parent_or_rdev.get(),
            orphan: OrphanFacts {
                next: slot.orphan_next.get(),
                previous: slot.orphan_previous.get(),
                listed: false,
            },
            size: slot.size.get(),
            blocks: slot.blocks.get(),
            direct: slot.direct.map(|pointer| pointer.get()),
            root: slot.root.get(),
            ..InodeRecord::default()
        }
    }
    pub(crate) fn file_type(&self) -> u32 {
        self.mode >> 12
    }
    pub(crate) fn is_directory(&self) -> bool {
        self.file_type() == 0o04
    }
    pub(crate) fn is_regular(&self) -> bool {
        self.file_type() == 0o10
    }
    pub(crate) fn is_symlink(&self) -> bool {
        self.file_type() == 0o12
    }
    pub(crate) fn has(&self, bit: u32) -> bool {
        self.flags & bit != 0
    }
}
