//! A file system in memory that says what the real one must answer: the reference of the model tests and
//! of the simulator.
//!
//! It shares no code with the engine (no fs, map, catalog, wal) and is as plain as possible: ordered
//! maps, whole 4 KiB blocks, no locks. Invariants: an inode is in `nodes` exactly while it has a name or a
//! reference; bytes of a last block past the end of the file are zeros; every directory's `parent` is the
//! directory that names it. Inodes are named by [`Id`], which is never reused; callers map the engine's inode
//! numbers to it.
//!
//! Answers that may differ are intervals: times are a [`Stamp`], because the engine reads its clock somewhere
//! within an operation. All other answers are exact. Errors are errno numbers, in the order in which the
//! engine checks (docs/semantics.md). Permissions are the kernel's business and are not judged. Operations on
//! an inode that was removed give ESTALE.
#![forbid(unsafe_code)]

mod attributes;
mod content;
mod crash;
mod file;
mod names;
mod node;
mod op;
mod questions;
mod stamp;
mod unwritten;
mod xattr;

pub use attributes::{Change, SetTime};
pub use content::{BLOCK, Content};
pub use crash::{CrashRules, CrashState, Torn};
pub use file::{Allocate, Seek};
pub use names::{Entry, New};
pub use node::{Attributes, Id, Kind, Node};
pub use op::{After, Answer, Op, data};
pub use stamp::Stamp;
pub use unwritten::{Shown, Unwritten};
pub use xattr::XattrMode;

use std::collections::BTreeMap;

/// An errno number.
pub type Errno = i32;
/// The answer of an operation, or its errno.
pub type Outcome<T> = Result<T, Errno>;

/// The root directory.
pub const ROOT: Id = Id(1);

/// Limits of the pool that is modelled; they depend on its geometry.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest symlink target; ENAMETOOLONG beyond.
    pub target_bytes: usize,
    /// Longest value of an attribute; ENOSPC beyond.
    pub xattr_bytes: usize,
    /// Largest file; EFBIG beyond.
    pub file_bytes: u64,
    /// Most links of an inode; EMLINK beyond.
    pub links: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            target_bytes: 4095,
            xattr_bytes: 65_536,
            file_bytes: 0xffff_ffff * BLOCK as u64,
            links: 65_000,
        }
    }
}

/// The whole file system. Cheap enough to clone for tests that need the state before an operation.
#[derive(Debug, Clone)]
pub struct Reference {
    pub(crate) nodes: BTreeMap<Id, Node>,
    pub(crate) limits: Limits,
    next: u64,
    /// Reads keep relative access times; without it a read changes no access time.
    relatime: bool,
    /// Writes without O_SYNC wait in DRAM.
    buffers: bool,
}

impl Reference {
    /// An empty root directory made at `when`.
    pub fn new(limits: Limits, relatime: bool, when: Stamp) -> Reference {
        let kind = Kind::Directory { entries: BTreeMap::new(), parent: ROOT };
        let root = Node::new(kind, 0o040755, 2, (0, 0), when);
        Reference { nodes: BTreeMap::from([(ROOT, root)]), limits, next: 2, relatime, buffers: false }
    }

    /// Chooses whether later writes without O_SYNC wait in DRAM until they are written back.
    pub fn set_buffers(&mut self, buffers: bool) {
        self.buffers = buffers;
    }

    /// Whether a write waits in DRAM.
    pub fn waits(&self, sync: bool) -> bool {
        self.buffers && !sync
    }

    /// All inodes, oldest first.
    pub fn nodes(&self) -> impl Iterator<Item = (Id, &Node)> {
        self.nodes.iter().map(|(id, node)| (*id, node))
    }

    /// An inode, or ESTALE.
    ///
    /// # Errors
    /// ESTALE.
    pub fn node(&self, id: Id) -> Outcome<&Node> {
        self.nodes.get(&id).ok_or(libc::ESTALE)
    }

    /// Replaces an inode's state. A caller uses it after it found the engine in one of several allowed
    /// states, for example after a failed operation.
    pub fn put_node(&mut self, id: Id, node: Node) {
        self.nodes.insert(id, node);
    }

    pub(crate) fn node_mut(&mut self, id: Id) -> Outcome<&mut Node> {
        self.nodes.get_mut(&id).ok_or(libc::ESTALE)
    }

    pub(crate) fn add(&mut self, node: Node) -> Id {
        let id = Id(self.next);
        self.next += 1;
        self.nodes.insert(id, node);
        id
    }

    /// Attributes of an inode.
    ///
    /// # Errors
    /// ESTALE.
    pub fn attributes(&self, id: Id) -> Outcome<Attributes> {
        Ok(self.node(id)?.attributes())
    }

    /// Adds a reference to an inode (a lookup that is not forgotten, an open file): with a reference the
    /// inode outlives its last name.
    ///
    /// # Errors
    /// ESTALE.
    pub fn refer(&mut self, id: Id) -> Outcome<()> {
        self.node_mut(id)?.references += 1;
        Ok(())
    }

    /// Gives references back; the last one of an inode without a name removes it.
    ///
    /// # Errors
    /// ESTALE.
    pub fn release(&mut self, id: Id, count: u64) -> Outcome<()> {
        let node = self.node_mut(id)?;
        assert!(node.references >= count, "released more than was referred to");
        node.references -= count;
        self.remove_if_unused(id);
        Ok(())
    }

    /// A crash or an unmount ends all references.
    pub fn drop_references(&mut self) {
        self.nodes.values_mut().for_each(|node| node.references = 0);
        self.nodes.retain(|_, node| node.links > 0);
    }

    pub(crate) fn remove_if_unused(&mut self, id: Id) {
        if self.nodes.get(&id).is_some_and(|node| node.links == 0 && node.references == 0) {
            self.nodes.remove(&id);
        }
    }

    /// Blocks of 4 KiB allocated to all files together.
    pub fn allocated_blocks(&self) -> u64 {
        let files = self.nodes.values().filter_map(|node| node.content());
        files.map(Content::allocated_blocks).sum()
    }

    /// A read at `when` under relative access times: it is recorded if the access time is not newer than the
    /// last change, or is a day old.
    pub(crate) fn accessed(&mut self, id: Id, when: Stamp) {
        let relatime = self.relatime;
        if let Some(node) = self.nodes.get_mut(&id).filter(|_| relatime) {
            node.accessed(when);
        }
    }
}
