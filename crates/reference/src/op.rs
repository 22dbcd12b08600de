//! Operations as values, so that histories can be recorded, repeated and shrunk.

use crate::{Allocate, Change, Entry, Id, New, Outcome, Reference, Seek, Stamp, XattrMode};

/// An operation on the file system, by the reference's names.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // fields are those of the system calls
pub enum Op {
    /// `id` is the name of the new inode in later operations.
    Make {
        id: Id,
        directory: Id,
        name: Vec<u8>,
        new: New,
        owner: (u32, u32),
    },
    Link {
        id: Id,
        directory: Id,
        name: Vec<u8>,
    },
    Remove {
        directory: Id,
        name: Vec<u8>,
        as_directory: bool,
    },
    Rename {
        from: (Id, Vec<u8>),
        to: (Id, Vec<u8>),
        no_replace: bool,
    },
    Lookup {
        directory: Id,
        name: Vec<u8>,
    },
    Open {
        id: Id,
        truncate: bool,
    },
    Release {
        id: Id,
    },
    Forget {
        id: Id,
        count: u64,
    },
    GetAttributes {
        id: Id,
    },
    Read {
        id: Id,
        offset: u64,
        length: usize,
    },
    Write {
        id: Id,
        offset: u64,
        length: usize,
        seed: u64,
        kill_set_id: bool,
        sync: bool,
    },
    SetAttributes {
        id: Id,
        change: Change,
    },
    Fallocate {
        id: Id,
        offset: u64,
        length: u64,
        mode: Allocate,
    },
    Seek {
        id: Id,
        offset: u64,
        what: Seek,
    },
    SetXattr {
        id: Id,
        name: Vec<u8>,
        length: usize,
        seed: u64,
        mode: XattrMode,
    },
    GetXattr {
        id: Id,
        name: Vec<u8>,
    },
    RemoveXattr {
        id: Id,
        name: Vec<u8>,
    },
    ListXattr {
        id: Id,
    },
    ReadDirectory {
        id: Id,
        after: After,
        limit: usize,
        plus: bool,
    },
    ReadLink {
        id: Id,
    },
    Fsync {
        id: Id,
    },
}

/// Where reading a directory resumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum After {
    /// At its first entry.
    Start,
    /// After the cookie of this entry, which may be gone.
    Name(Vec<u8>),
    /// After a cookie.
    Cookie(u64),
}

/// The successful answer of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Success without a value.
    Done,
    /// An inode was found or made.
    Inode(Id),
    /// Content, a value, a target.
    Bytes(Vec<u8>),
    /// A count or an offset.
    Number(u64),
    /// Names of attributes, sorted.
    Names(Vec<Vec<u8>>),
    /// All entries of a directory, by name.
    Entries(Vec<Entry>),
}

/// The bytes that a write of this seed writes.
pub fn data(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

impl Op {
    /// Whether the operation removes a file's capabilities as its first change. A new size comes before their
    /// removal, a new owner comes after it.
    pub fn takes_privileges(&self) -> bool {
        match self {
            Op::Write { length, kill_set_id, .. } => *kill_set_id && *length > 0,
            Op::SetAttributes { change, .. } => {
                change.kill_set_id || change.size.is_none() && change.changes_owner()
            }
            Op::Open { truncate, .. } => *truncate,
            _ => false,
        }
    }

    /// The inode that the operation is given, if it is given one.
    pub fn target(&self) -> Option<Id> {
        match self {
            Op::Make { .. } | Op::Remove { .. } | Op::Rename { .. } | Op::Lookup { .. } => None,
            Op::Link { id, .. }
            | Op::Open { id, .. }
            | Op::Release { id }
            | Op::Forget { id, .. }
            | Op::GetAttributes { id }
            | Op::Read { id, .. }
            | Op::Write { id, .. }
            | Op::SetAttributes { id, .. }
            | Op::Fallocate { id, .. }
            | Op::Seek { id, .. }
            | Op::SetXattr { id, .. }
            | Op::GetXattr { id, .. }
            | Op::RemoveXattr { id, .. }
            | Op::ListXattr { id }
            | Op::ReadDirectory { id, .. }
            | Op::ReadLink { id }
            | Op::Fsync { id } => Some(*id),
        }
    }

    /// The directories in which the operation looks up names.
    pub fn directories(&self) -> Vec<Id> {
        match self {
            Op::Make { directory, .. }
            | Op::Link { directory, .. }
            | Op::Remove { directory, .. }
            | Op::Lookup { directory, .. } => vec![*directory],
            Op::Rename { from, to, .. } => vec![from.0, to.0],
            _ => Vec::new(),
        }
    }
}

impl Reference {
    /// The name of the next inode.
    pub fn next_id(&self) -> Id {
        Id(self.next)
    }

    /// The existing inodes whose attributes an operation may change.
    pub fn involved(&self, op: &Op) -> Vec<Id> {
        let named = |directory: Id, name: &[u8]| {
            let entries = self.node(directory).ok().and_then(|node| node.entries());
            entries.and_then(|entries| entries.get(name)).copied()
        };
        let mut ids: Vec<Id> = op.target().into_iter().chain(op.directories()).collect();
        match op {
            Op::Remove { directory, name, .. } | Op::Lookup { directory, name } => {
                ids.extend(named(*directory, name));
            }
            Op::Rename { from, to, .. } => {
                ids.extend(named(from.0, &from.1));
                ids.extend(named(to.0, &to.1));
            }
            _ => {}
        }
        ids.retain(|id| self.node(*id).is_ok());
        ids
    }

    /// Does an operation.
    ///
    /// # Errors
    /// The errno that the file system answers.
    pub fn perform(&mut self, op: &Op, when: Stamp) -> Outcome<Answer> {
        let done = |()| Answer::Done;
        match op {
            Op::Make { id, directory, name, new, owner } => {
                assert!(!self.nodes.contains_key(id), "{id:?} is never used again");
                let next = std::mem::replace(&mut self.next, id.0);
                let made = self.make(*directory, name, new, *owner, when);
                self.next = if id.0 < Id::APART.0 { next.max(self.next) } else { next };
                made.map(Answer::Inode)
            }
            Op::Link { id, directory, name } => {
                self.link(*id, *directory, name, when).map(|()| Answer::Inode(*id))
            }
            Op::Remove { directory, name, as_directory } => {
                self.remove(*directory, name, *as_directory, when).map(done)
            }
            Op::Rename { from, to, no_replace } => {
                self.rename((from.0, &from.1), (to.0, &to.1), *no_replace, when).map(done)
            }
            Op::Lookup { directory, name } => self.lookup(*directory, name).map(Answer::Inode),
            Op::Open { id, truncate } => {
                if *truncate {
                    let change = Change { size: Some(0), kill_set_id: true, ..Default::default() };
                    self.set_attributes(*id, &change, when)?;
                }
                self.refer(*id).map(done)
            }
            Op::Release { id } => self.release(*id, 1).map(done),
            Op::Forget { id, count } => self.release(*id, *count).map(done),
            Op::GetAttributes { id } => self.attributes(*id).map(|_| Answer::Done),
            Op::Read { id, offset, length } => {
                let mut into = vec![0; *length];
                let count = self.read(*id, *offset, &mut into, when)?;
                into.truncate(count);
                Ok(Answer::Bytes(into))
            }
            Op::Write { id, offset, length, seed, kill_set_id, sync } => {
                let bytes = data(*length, *seed);
                let count = if self.waits(*sync) {
                    self.write_waiting(*id, *offset, &bytes, *kill_set_id, when)?
                } else {
                    self.write(*id, *offset, &bytes, *kill_set_id, when)?
                };
                Ok(Answer::Number(count as u64))
            }
            Op::SetAttributes { id, change } => self.set_attributes(*id, change, when).map(done),
            Op::Fallocate { id, offset, length, mode } => {
                self.fallocate(*id, *offset, *length, *mode, when).map(done)
            }
            Op::Seek { id, offset, what } => self.seek(*id, *offset, *what).map(Answer::Number),
            Op::SetXattr { id, name, length, seed, mode } => {
                self.set_xattr(*id, name, &data(*length, *seed), *mode, when).map(done)
            }
            Op::GetXattr { id, name } => self.xattr(*id, name).map(Answer::Bytes),
            Op::RemoveXattr { id, name } => self.remove_xattr(*id, name, when).map(done),
            Op::ListXattr { id } => Ok(Answer::Names(self.node(*id)?.xattrs.keys().cloned().collect())),
            Op::ReadDirectory { id, .. } => self.read_directory(*id, when).map(Answer::Entries),
            Op::ReadLink { id } => self.read_link(*id, when).map(Answer::Bytes),
            Op::Fsync { id } => self.node(*id).map(|_| Answer::Done),
        }
    }
}
