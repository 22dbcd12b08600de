//! The engine's side of an operation. No part of the world is borrowed during it: at the engine's
//! interleaving points other operations run in its middle.

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use terrace_engine::{
    Attributes, Caller, DirectoryEntry, Durability, Durable, Engine, FsError, FsResult, SetAttributes, Wait,
    WriteFlags,
};
use terrace_format::Ino;
use terrace_reference as reference;
use terrace_reference::{Change, Id, New, Op, data};

/// The engine's answer.
#[derive(Debug)]
pub enum Seen {
    /// Success without a value.
    Done,
    /// An inode, with a lookup reference.
    Inode(Attributes),
    /// Content, a value, a target.
    Bytes(Vec<u8>),
    /// A count or an offset.
    Number(u64),
    /// Names of attributes, sorted.
    Names(Vec<Vec<u8>>),
    /// A directory: all its entries, the requested part, and the inodes returned with lookup references.
    Directory { all: Vec<DirectoryEntry>, part: Vec<DirectoryEntry>, taken: Vec<Attributes> },
}

/// An operation as the engine gets it.
pub struct Call {
    /// The operation.
    pub op: Op,
    /// The engine's numbers of the inodes in the operation; 0 for a removed inode.
    pub numbers: BTreeMap<Id, Ino>,
    /// The cookie after which a directory is read.
    pub cookie: u64,
    /// The descriptor of an fsync.
    pub handle: Option<u64>,
}

fn time(set: reference::SetTime) -> terrace_engine::SetTime {
    match set {
        reference::SetTime::Now => terrace_engine::SetTime::Now,
        reference::SetTime::At(ns) => terrace_engine::SetTime::At(ns),
    }
}

fn attributes(change: &Change) -> SetAttributes {
    SetAttributes {
        mode: change.mode,
        uid: change.uid,
        gid: change.gid,
        size: change.size,
        atime: change.atime.map(time),
        mtime: change.mtime.map(time),
        kill_set_id: change.kill_set_id,
    }
}

impl Call {
    fn ino(&self, id: &Id) -> Ino {
        self.numbers.get(id).copied().unwrap_or(Ino(0))
    }

    /// Runs the operation.
    pub fn run(&self, fs: &Engine, wait: Wait) -> Result<Seen, FsError> {
        let done = |()| Seen::Done;
        match &self.op {
            Op::Make { .. } | Op::Link { .. } | Op::Remove { .. } | Op::Rename { .. } | Op::Lookup { .. } => {
                self.names(fs, wait)
            }
            Op::Open { id, truncate } => {
                fs.open(self.ino(id), *truncate, *truncate, wait).map(|_| Seen::Done)
            }
            Op::Release { id } => {
                fs.release(self.ino(id));
                Ok(Seen::Done)
            }
            Op::Forget { id, count } => {
                fs.forget(self.ino(id), *count);
                Ok(Seen::Done)
            }
            Op::GetAttributes { id } => fs.getattr(self.ino(id)).map(|_| Seen::Done),
            Op::Read { id, offset, length } => {
                let mut into = vec![0xaa; *length];
                let count = fs.read(self.ino(id), *offset, &mut into, wait)?;
                into.truncate(count);
                Ok(Seen::Bytes(into))
            }
            Op::Write { id, offset, length, seed, kill_set_id, sync } => {
                let flags = WriteFlags { sync: *sync, kill_set_id: *kill_set_id, pages: false };
                let bytes = data(*length, *seed);
                let mut done = fs.write(self.ino(id), *offset, &bytes, flags, wait)?;
                // A program continues a short write, and meets a failure in the next call.
                while done < bytes.len() {
                    let rest = (*offset + done as u64, &bytes[done..]);
                    match fs.write(self.ino(id), rest.0, rest.1, flags, Wait::Allowed) {
                        // The rest lies past the largest size, so the write is done.
                        Err(FsError::TooLarge) if done > 0 => break,
                        more => done += more?,
                    }
                }
                Ok(Seen::Number(done as u64))
            }
            Op::SetAttributes { id, change } => {
                fs.setattr(self.ino(id), &attributes(change), wait).map(|_| Seen::Done)
            }
            Op::Fallocate { id, offset, length, mode } => {
                let mode = match mode {
                    reference::Allocate::Extend => terrace_engine::Allocate::Extend,
                    reference::Allocate::KeepSize => terrace_engine::Allocate::KeepSize,
                    reference::Allocate::PunchHole => terrace_engine::Allocate::PunchHole,
                };
                fs.fallocate(self.ino(id), *offset, *length, mode, wait).map(done)
            }
            Op::Seek { id, offset, what } => {
                let what = match what {
                    reference::Seek::Data => terrace_engine::Seek::Data,
                    reference::Seek::Hole => terrace_engine::Seek::Hole,
                };
                fs.seek(self.ino(id), *offset, what).map(Seen::Number)
            }
            Op::SetXattr { .. } | Op::GetXattr { .. } | Op::RemoveXattr { .. } | Op::ListXattr { .. } => {
                self.xattrs(fs, wait)
            }
            Op::ReadDirectory { id, limit, plus, .. } => self.directory(fs, *id, *limit, *plus),
            Op::ReadLink { id } => fs.readlink(self.ino(id)).map(Seen::Bytes),
            Op::Fsync { id } => match self.handle {
                Some(handle) => fsync_handle(fs, self.ino(id), handle, wait).map(done),
                None => fs.fsync(self.ino(id), false, wait).map(done),
            },
        }
    }

    /// Runs an operation on extended attributes.
    fn xattrs(&self, fs: &Engine, wait: Wait) -> Result<Seen, FsError> {
        match &self.op {
            Op::SetXattr { id, name, length, seed, mode } => {
                let mode = match mode {
                    reference::XattrMode::Any => terrace_engine::XattrMode::Any,
                    reference::XattrMode::Create => terrace_engine::XattrMode::Create,
                    reference::XattrMode::Replace => terrace_engine::XattrMode::Replace,
                };
                fs.setxattr(self.ino(id), name, &data(*length, *seed), mode, wait).map(|()| Seen::Done)
            }
            Op::GetXattr { id, name } => fs.getxattr(self.ino(id), name).map(Seen::Bytes),
            Op::RemoveXattr { id, name } => fs.removexattr(self.ino(id), name, wait).map(|()| Seen::Done),
            Op::ListXattr { id } => fs.listxattr(self.ino(id)).map(|list| {
                let names = list.split(|byte| *byte == 0).filter(|name| !name.is_empty());
                let mut names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
                names.sort();
                Seen::Names(names)
            }),
            other => unreachable!("{other:?} is not about extended attributes"),
        }
    }

    /// Runs an operation on names.
    fn names(&self, fs: &Engine, wait: Wait) -> Result<Seen, FsError> {
        let ino = |id: &Id| self.ino(id);
        match &self.op {
            Op::Make { directory, name, new, owner, .. } => {
                let caller = Caller { uid: owner.0, gid: owner.1 };
                let directory = ino(directory);
                let made = match new {
                    New::Regular(mode) => fs.mknod(directory, name, 0o100000 | mode, 0, caller, wait),
                    New::Directory(mode) => fs.mkdir(directory, name, *mode, caller, wait),
                    New::Symlink(target) => fs.symlink(directory, name, target, caller, wait),
                    New::Special(mode, rdev) => fs.mknod(directory, name, *mode, *rdev, caller, wait),
                };
                made.map(Seen::Inode)
            }
            Op::Link { id, directory, name } => fs.link(ino(id), ino(directory), name, wait).map(Seen::Inode),
            Op::Remove { directory, name, as_directory: false } => {
                fs.unlink(ino(directory), name, wait).map(|()| Seen::Done)
            }
            Op::Remove { directory, name, as_directory: true } => {
                fs.rmdir(ino(directory), name, wait).map(|()| Seen::Done)
            }
            Op::Rename { from, to, no_replace } => {
                let renamed = fs.rename(ino(&from.0), &from.1, ino(&to.0), &to.1, *no_replace, wait);
                renamed.map(|()| Seen::Done)
            }
            Op::Lookup { directory, name } => fs.lookup(ino(directory), name).map(Seen::Inode),
            other => unreachable!("{other:?} is not about names"),
        }
    }

    /// Reads a directory whole, and the requested part of it.
    fn directory(&self, fs: &Engine, id: Id, limit: usize, plus: bool) -> Result<Seen, FsError> {
        let ino = self.ino(&id);
        let (mut all, mut taken) = (Vec::new(), Vec::<Attributes>::new());
        let mut part: Vec<DirectoryEntry> = Vec::new();
        fs.readdir(ino, 0, &mut |entry| {
            all.push(entry.clone());
            true
        })?;
        if plus {
            // A program reads on after the last entry, until no more entries come.
            loop {
                let (before, from) = (part.len(), part.last().map_or(self.cookie, |last| last.cookie));
                let read = fs.readdir_plus(ino, from, &mut |entry, found| {
                    if part.len() == limit {
                        return false;
                    }
                    assert_eq!(entry.ino, found.ino);
                    assert_eq!(u32::from(entry.file_type), found.mode >> 12);
                    part.push(entry.clone());
                    if entry.cookie > 2 {
                        taken.push(*found);
                    }
                    true
                });
                if let Err(error) = read {
                    taken.iter().for_each(|found| fs.forget(found.ino, 1));
                    return Err(error);
                }
                if part.len() == before || part.len() == limit {
                    break;
                }
            }
        } else {
            fs.readdir(ino, self.cookie, &mut |entry| {
                let room = part.len() < limit;
                if room {
                    part.push(entry.clone());
                }
                room
            })?;
        }
        Ok(Seen::Directory { all, part, taken })
    }
}

/// An fsync as a front end does it: begun without a wait, and answered by the journal's commit.
fn fsync_handle(fs: &Engine, ino: Ino, handle: u64, wait: Wait) -> FsResult<()> {
    if wait != Wait::Allowed {
        return fs.fsync_handle(ino, handle, false, wait);
    }
    match fs.begin_fsync_handle(ino, handle) {
        Err(FsError::WouldBlock) => fs.fsync_handle(ino, handle, false, wait),
        Err(error) => Err(error),
        Ok(Durable::Now) => Ok(()),
        Ok(Durable::Later) => {
            let (tell, told) = channel();
            if fs.persist_then(move |result| tell.send(result).unwrap()) {
                fs.persist_waiting();
            }
            told.try_recv().expect("an answer")
        }
    }
}
