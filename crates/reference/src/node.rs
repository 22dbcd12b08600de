//! Inodes.

use crate::content::Content;
use crate::stamp::Stamp;
use crate::unwritten::Unwritten;
use std::collections::BTreeMap;

/// The attribute that holds the capabilities of a program: privileges that its user need not have.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

const DAY_NS: i64 = 86_400_000_000_000;

/// Names an inode of the reference; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u64);

impl Id {
    /// The first name that callers give out themselves; the reference counts its own names below it.
    pub const APART: Id = Id(1 << 48);
}

/// The type of an inode, with its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    Regular(Content),
    /// A directory.
    Directory {
        /// Names and what they name.
        entries: BTreeMap<Vec<u8>, Id>,
        /// The directory that ".." names.
        parent: Id,
    },
    /// A symbolic link and its target.
    Symlink(Vec<u8>),
    /// A FIFO, socket or device node.
    Special {
        /// Device number.
        rdev: u32,
    },
}

/// An inode of the reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Type, with its content.
    pub kind: Kind,
    /// st_mode.
    pub mode: u32,
    /// Names; for a directory 2 and one for each subdirectory.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access.
    pub atime: Stamp,
    /// Last change of content.
    pub mtime: Stamp,
    /// Last change of content or attributes.
    pub ctime: Stamp,
    /// When it was made.
    pub btime: Stamp,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Lookups and opens that were not given back.
    pub references: u64,
    /// Content of writes that wait in DRAM.
    pub unwritten: Option<Box<Unwritten>>,
    /// Writes that waited in DRAM so far.
    pub(crate) waited: u64,
    /// The inode's tier pin; new files and directories inherit it from their directory.
    pub pin: Option<u8>,
}

/// The attributes that stat tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// st_mode.
    pub mode: u32,
    /// Links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// Bytes; for a symlink of its target, for a directory the number of its entries.
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Stamp,
    /// Last change of content.
    pub mtime: Stamp,
    /// Last change of content or attributes.
    pub ctime: Stamp,
    /// When it was made.
    pub btime: Stamp,
}

impl Node {
    pub(crate) fn new(kind: Kind, mode: u32, links: u32, (uid, gid): (u32, u32), when: Stamp) -> Node {
        Node {
            kind,
            mode,
            links,
            uid,
            gid,
            atime: when,
            mtime: when,
            ctime: when,
            btime: when,
            xattrs: BTreeMap::new(),
            references: 0,
            unwritten: None,
            waited: 0,
            pin: None,
        }
    }

    /// Content of a regular file.
    pub fn content(&self) -> Option<&Content> {
        match &self.kind {
            Kind::Regular(content) => Some(content),
            _ => None,
        }
    }

    /// Entries of a directory.
    pub fn entries(&self) -> Option<&BTreeMap<Vec<u8>, Id>> {
        match &self.kind {
            Kind::Directory { entries, .. } => Some(entries),
            _ => None,
        }
    }

    /// True for a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self.kind, Kind::Directory { .. })
    }

    /// The attributes that stat tells.
    pub fn attributes(&self) -> Attributes {
        let (size, blocks, rdev) = match &self.kind {
            Kind::Regular(content) => (content.size(), content.allocated_blocks() * 8, 0),
            Kind::Directory { entries, .. } => (entries.len() as u64, 0, 0),
            Kind::Symlink(target) => (target.len() as u64, 0, 0),
            Kind::Special { rdev } => (0, 0, *rdev),
        };
        Attributes {
            mode: self.mode,
            links: self.links,
            uid: self.uid,
            gid: self.gid,
            rdev,
            size,
            blocks,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
        }
    }

    /// Content or entries changed.
    pub(crate) fn modified(&mut self, when: Stamp) {
        self.set_mtime(when);
        self.changed(when);
    }

    /// Durably.
    pub(crate) fn set_mtime(&mut self, when: Stamp) {
        self.mtime = when;
        self.unwritten.iter_mut().for_each(|unwritten| unwritten.set_mtime(when));
    }

    /// Records a durable change of content or attributes at `when`.
    pub(crate) fn changed(&mut self, when: Stamp) {
        self.ctime = when;
        self.unwritten.iter_mut().for_each(|unwritten| unwritten.set_ctime(when));
    }

    /// See [`crate::Reference`]: relative access times.
    pub(crate) fn accessed(&mut self, when: Stamp) {
        let old = when.from.saturating_sub(self.atime.from) >= DAY_NS;
        if self.atime.not_after(self.mtime) || self.atime.not_after(self.ctime) || old {
            self.atime = when.max(self.mtime.max(self.ctime).plus(1));
        }
    }

    /// Removes the capabilities of a file, as a change of its own before a change by a caller without
    /// privilege. True if the file had capabilities.
    pub fn drop_capability(&mut self, when: Stamp) -> bool {
        let is_file = matches!(self.kind, Kind::Regular(_));
        let had = is_file && self.xattrs.remove(CAPABILITY).is_some();
        if had {
            self.changed(when);
        }
        had
    }

    /// Removes the set-id bits that a change by a caller without privilege removes: set-uid, and set-gid
    /// where the group may execute.
    pub(crate) fn kill_set_id(&mut self) {
        self.mode &= !0o4000;
        if self.mode & 0o010 != 0 {
            self.mode &= !0o2000;
        }
    }
}
