//! Doing an operation on the engine and on the reference, and comparing what they answer.

use crate::ops::{After, Op};
use crate::world::World;
use rand::Rng;
use std::collections::BTreeMap;
use terrace_format::{FileBlock, Ino};
use terrace_fs::{BlockRange, Caller, FsError, OpenMode, SetAttributes, Wait, WriteFlags};
use terrace_reference as reference;
use terrace_reference::{BLOCK, Change, Id, New, Node, Stamp};

/// What an operation answers.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Done,
    /// An inode was found or made; the engine's attributes are compared apart.
    Found(Option<terrace_fs::Attributes>),
    Bytes(Vec<u8>),
    Number(u64),
    Names(Vec<Vec<u8>>),
    Entries(Vec<(Vec<u8>, Ino, u8)>),
}

/// Long contents are not printed whole.
#[track_caller]
fn assert_same(op: &Op, seen: &Answer, expected: &Answer) {
    if let (Answer::Bytes(seen), Answer::Bytes(expected)) = (seen, expected) {
        assert_eq!(seen.len(), expected.len(), "{op:?}: length");
        if let Some(at) = seen.iter().zip(expected).position(|(a, b)| a != b) {
            let many = seen.iter().zip(expected).filter(|(a, b)| a != b).count();
            panic!("{op:?}: byte {at} is {:#x}, expected {:#x}; {many} differ", seen[at], expected[at]);
        }
    }
    assert_eq!(seen, expected, "{op:?}");
}

type Result<T> = std::result::Result<T, i32>;

fn data(length: usize, seed: u64) -> Vec<u8> {
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

fn time(set: reference::SetTime) -> terrace_fs::SetTime {
    match set {
        reference::SetTime::Now => terrace_fs::SetTime::Now,
        reference::SetTime::At(ns) => terrace_fs::SetTime::At(ns),
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

impl World {
    /// Does an operation, first without waiting now and then, and compares.
    pub fn operate(&mut self, op: Op, wait: Wait, prefix: &str) {
        self.note(format!("{prefix}{op:?}"));
        self.counts.operations += 1;
        self.count_cold(&op);
        let from = self.now();
        let mut first = wait;
        if wait == Wait::Allowed && self.rng.random_ratio(1, 8) {
            first = Wait::Never;
        }
        let mut answer = self.in_lane(&op, first);
        if answer == Err(libc::EAGAIN) {
            self.counts.would_block += 1;
            if wait == Wait::Never {
                let when = Stamp { from, to: self.now() };
                self.take_over(&op, when);
                return;
            }
            answer = self.in_lane(&op, wait);
        }
        let when = Stamp { from, to: self.now() };
        if answer == Err(libc::ENOSPC) && !self.too_large(&op) {
            self.no_space(&op, when);
            return;
        }
        let found = match &answer {
            Ok(Answer::Found(Some(found))) => Some(*found),
            _ => None,
        };
        let involved = self.involved(&op);
        let expected = self.reference(&op, when);
        let (seen, id) = match (answer, expected) {
            (Ok(Answer::Found(_)), Ok((expected, id))) => (Ok(Answer::Found(None)), Ok((expected, id))),
            other => other,
        };
        match (seen, id) {
            (Ok(seen), Ok((expected, id))) => {
                assert_same(&op, &seen, &expected);
                if let (Some(id), Some(found)) = (id, found) {
                    self.note_found(id, &found);
                }
            }
            (Err(seen), Err(expected)) => assert_eq!(seen, expected, "{op:?}: errno"),
            (seen, expected) => panic!("{op:?}: {seen:?}, expected {expected:?}"),
        }
        for id in involved {
            self.compare_attributes(id);
        }
        self.forget_gone();
    }

    /// The engine returned this inode with a lookup reference.
    fn note_found(&mut self, id: Id, found: &terrace_fs::Attributes) {
        if !self.numbers.contains_key(&id) {
            let other = self.numbers.iter().find(|(_, (ino, _))| *ino == found.ino);
            assert!(other.is_none(), "{:?} got the number of {other:?}", id);
            let newest = self.generations.insert(found.ino.0, found.generation);
            assert!(newest < Some(found.generation), "{}: generation {newest:?} again", found.ino);
            self.numbers.insert(id, (found.ino, found.generation));
        }
        self.assert_attributes(id, found);
        self.model.refer(id).unwrap();
        *self.lookups.entry(id).or_default() += 1;
        if self.rng.random_ratio(2, 3) {
            self.forget(id, 1);
        }
    }

    fn forget(&mut self, id: Id, count: u64) {
        self.fs().forget(self.ino(id), count);
        self.model.release(id, count).unwrap();
        let left = self.lookups.get(&id).copied().unwrap_or(0) - count;
        if left == 0 {
            self.lookups.remove(&id);
        } else {
            self.lookups.insert(id, left);
        }
    }

    /// Counts operations on contents, and those that meet demoted or shadowed blocks.
    fn count_cold(&mut self, op: &Op) {
        let Some((id, first, end)) = op.blocks(self) else { return };
        let Some(content) = self.model.node(id).ok().and_then(|node| node.content()) else { return };
        let end = end.min(content.size().div_ceil(BLOCK as u64));
        self.counts.file_operations += 1;
        if first >= end {
            return;
        }
        let range = BlockRange::new(FileBlock(first), FileBlock(end));
        let found = self.fs().whereabouts_in(self.ino(id), range).unwrap();
        let below: u64 = found.tiers[1..].iter().map(|(_, bytes)| bytes).sum();
        // What is only set aside there was not demoted.
        let unwritten = self.unwritten_in(id, first, end) * BLOCK as u64;
        self.counts.met_cold += u64::from(below + found.clean_bytes > unwritten);
    }

    /// A value that is over the limit of the pool, for which ENOSPC is the answer.
    fn too_large(&self, op: &Op) -> bool {
        matches!(op, Op::SetXattr { length, .. } if *length > 2048)
    }

    /// Inodes whose attributes the operation may change.
    fn involved(&self, op: &Op) -> Vec<Id> {
        let named = |directory: Id, name: &[u8]| {
            let entries = self.model.node(directory).ok().and_then(|node| node.entries());
            entries.and_then(|entries| entries.get(name)).copied()
        };
        let mut ids = Vec::new();
        match op {
            Op::Make { directory, .. } => ids.push(*directory),
            Op::Link { id, directory, .. } => ids.extend([*id, *directory]),
            Op::Remove { directory, name, .. } | Op::Lookup { directory, name } => {
                ids.push(*directory);
                ids.extend(named(*directory, name));
            }
            Op::Rename { from, to, .. } => {
                ids.extend([from.0, to.0]);
                ids.extend(named(from.0, &from.1));
                ids.extend(named(to.0, &to.1));
            }
            Op::Open { id, .. }
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
            | Op::Fsync { id } => ids.push(*id),
        }
        ids
    }

    /// After a request that failed for lack of space or would have waited: nothing changed, but for what
    /// requests of several transactions (large writes, fallocate, truncation and punch) may have done.
    fn take_over(&mut self, op: &Op, when: Stamp) {
        for id in self.involved(op) {
            self.accept_part(op, id, when);
            self.compare_attributes(id);
        }
    }

    /// ENOSPC is right only when the pool is nearly full, and nothing may have changed, but the whole
    /// pieces that a large request is made of.
    fn no_space(&mut self, op: &Op, when: Stamp) {
        self.counts.no_space += 1;
        let status = self.fs().status().unwrap();
        let full = status.tiers.iter().map(|tier| tier.used_bytes * 100 / tier.capacity_bytes.max(1));
        let full: Vec<u64> = full.collect();
        let pm_full = full[0] >= 80;
        let tier_full = full.get(1).is_none_or(|percent| *percent >= 90);
        assert!(pm_full || tier_full, "{op:?}: ENOSPC with {full:?} percent in use");
        let frees = matches!(op, Op::Remove { .. } | Op::Release { .. } | Op::Forget { .. })
            || matches!(op, Op::RemoveXattr { .. });
        assert!(!frees, "{op:?}: ENOSPC although it gives space back (I9)");
        self.take_over(op, when);
    }

    /// Takes over what a failed request of several transactions did.
    fn accept_part(&mut self, op: &Op, id: Id, when: Stamp) {
        let Ok(old) = self.model.node(id).cloned() else { return };
        if old.content().is_none() {
            return;
        }
        let found = self.fs().getattr(self.ino(id)).unwrap();
        let same = |node: &Node| {
            let expected = node.attributes();
            (found.size, found.blocks) == (expected.size, expected.blocks)
                && expected.mtime.allows(found.mtime_ns)
                && expected.ctime.allows(found.ctime_ns)
        };
        let mut states = vec![old.clone()];
        let b = BLOCK as u64;
        match *op {
            Op::Write { offset, length, seed, kill_set_id, .. } => {
                let bytes = data(length, seed);
                let mut at = 0;
                let mut node = old.clone();
                while at < length {
                    // The atomic write size of the tiny lanes.
                    let room = (56 * b - (offset + at as u64) % b) as usize;
                    let end = length.min(at + room);
                    node.write(offset + at as u64, &bytes[at..end], kill_set_id, when).unwrap();
                    states.push(node.clone());
                    at = end;
                }
                if states.len() > 1 {
                    states.pop();
                }
            }
            Op::Fallocate { offset, length, mode, .. } if mode != reference::Allocate::PunchHole => {
                let mut node = old.clone();
                for block in offset / b..(offset + length).div_ceil(b) {
                    node.allocate(block * b, b, when).unwrap();
                    states.push(node.clone());
                }
            }
            _ => {}
        }
        // Truncation and punch commit first and may then have to wait.
        let mut whole = self.model.clone();
        let truncated = match *op {
            Op::Open { truncate: true, .. } => whole.truncate(id, 0, true, when),
            Op::SetAttributes { change: Change { size: Some(size), kill_set_id, .. }, .. } => {
                whole.truncate(id, size, kill_set_id, when)
            }
            Op::Fallocate { offset, length, mode, .. } if mode == reference::Allocate::PunchHole => {
                whole.fallocate(id, offset, length, mode, when)
            }
            _ => Err(0),
        };
        if truncated.is_ok() {
            states.push(whole.node(id).unwrap().clone());
        }
        let Some(state) = states.iter().position(same) else {
            panic!("{op:?}: ENOSPC left {found:?}; before: {:?}", old.attributes());
        };
        self.model.put_node(id, states.swap_remove(state));
        if let Op::Write { offset, length, .. } = *op {
            self.compare_range(id, offset, length);
        }
    }

    fn in_lane(&mut self, op: &Op, wait: Wait) -> Result<Answer> {
        if self.second_lane {
            crate::on_thread(true, || self.engine(op, wait))
        } else {
            self.engine(op, wait)
        }
    }

    fn engine(&mut self, op: &Op, wait: Wait) -> Result<Answer> {
        let fs = self.fs().clone();
        let ino = |id: &Id| self.ino(*id);
        let found = |found: terrace_fs::Attributes| Answer::Found(Some(found));
        let done = |()| Answer::Done;
        let answer: std::result::Result<Answer, FsError> = match op {
            Op::Make { directory, name, new, owner } => {
                let caller = Caller { uid: owner.0, gid: owner.1 };
                let directory = ino(directory);
                let made = match new {
                    New::Regular(mode) => fs.mknod(directory, name, 0o100000 | mode, 0, caller, wait),
                    New::Directory(mode) => fs.mkdir(directory, name, *mode, caller, wait),
                    New::Symlink(target) => fs.symlink(directory, name, target, caller, wait),
                    New::Special(mode, rdev) => fs.mknod(directory, name, *mode, *rdev, caller, wait),
                };
                made.map(found)
            }
            Op::Link { id, directory, name } => fs.link(ino(id), ino(directory), name, wait).map(found),
            Op::Remove { directory, name, as_directory: false } => {
                fs.unlink(ino(directory), name, wait).map(done)
            }
            Op::Remove { directory, name, as_directory: true } => {
                fs.rmdir(ino(directory), name, wait).map(done)
            }
            Op::Rename { from, to, no_replace } => {
                fs.rename(ino(&from.0), &from.1, ino(&to.0), &to.1, *no_replace, wait).map(done)
            }
            Op::Lookup { directory, name } => fs.lookup(ino(directory), name).map(found),
            Op::Open { id, truncate } => {
                let opened = fs.open(ino(id), *truncate, *truncate, wait);
                opened.map(|mode| {
                    assert!(!truncate || mode == OpenMode::Direct || self.opens.contains_key(id));
                    Answer::Done
                })
            }
            Op::Release { id } => {
                fs.release(ino(id));
                Ok(Answer::Done)
            }
            Op::Forget { .. } => Ok(Answer::Done),
            Op::GetAttributes { id } => fs.getattr(ino(id)).map(|_| Answer::Done),
            Op::Read { id, offset, length } => {
                let mut into = vec![0xaa; *length];
                fs.read(ino(id), *offset, &mut into, wait).map(|count| {
                    assert!(into[count..].iter().all(|byte| *byte == 0xaa), "read stored past its count");
                    into.truncate(count);
                    Answer::Bytes(into)
                })
            }
            Op::Write { id, offset, length, seed, kill_set_id, sync } => {
                let flags = WriteFlags { sync: *sync, kill_set_id: *kill_set_id };
                let bytes = data(*length, *seed);
                let first = fs.write(ino(id), *offset, &bytes, flags, wait);
                // As the adapter does: what would have to wait goes on from where it was.
                let rest = |done: usize| match done < bytes.len() {
                    true => fs.write(ino(id), *offset + done as u64, &bytes[done..], flags, Wait::Allowed),
                    false => Ok(0),
                };
                let all = first.and_then(|done| rest(done).map(|more| done + more));
                all.map(|count| Answer::Number(count as u64))
            }
            Op::SetAttributes { id, change } => {
                fs.setattr(ino(id), &attributes(change), wait).map(|_| Answer::Done)
            }
            Op::Fallocate { id, offset, length, mode } => {
                let mode = match mode {
                    reference::Allocate::Extend => terrace_fs::Allocate::Extend,
                    reference::Allocate::KeepSize => terrace_fs::Allocate::KeepSize,
                    reference::Allocate::PunchHole => terrace_fs::Allocate::PunchHole,
                };
                fs.fallocate(ino(id), *offset, *length, mode, wait).map(done)
            }
            Op::Seek { id, offset, what } => {
                let what = match what {
                    reference::Seek::Data => terrace_fs::Seek::Data,
                    reference::Seek::Hole => terrace_fs::Seek::Hole,
                };
                fs.seek(ino(id), *offset, what).map(Answer::Number)
            }
            Op::SetXattr { id, name, length, seed, mode } => {
                let mode = match mode {
                    reference::XattrMode::Any => terrace_fs::XattrMode::Any,
                    reference::XattrMode::Create => terrace_fs::XattrMode::Create,
                    reference::XattrMode::Replace => terrace_fs::XattrMode::Replace,
                };
                fs.setxattr(ino(id), name, &data(*length, *seed), mode, wait).map(done)
            }
            Op::GetXattr { id, name } => fs.getxattr(ino(id), name).map(Answer::Bytes),
            Op::RemoveXattr { id, name } => fs.removexattr(ino(id), name, wait).map(done),
            Op::ListXattr { id } => fs.listxattr(ino(id)).map(|list| {
                let names = list.split(|byte| *byte == 0).filter(|name| !name.is_empty());
                let mut names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
                names.sort();
                Answer::Names(names)
            }),
            Op::ReadDirectory { id, after, limit, plus } => {
                return self.engine_read_directory(*id, after, *limit, *plus);
            }
            Op::ReadLink { id } => fs.readlink(ino(id)).map(Answer::Bytes),
            Op::Fsync { id } => fs.fsync(ino(id), false).map(done),
        };
        answer.map_err(|error| {
            assert!(error.errno() != libc::EIO, "{op:?}: {error:?}");
            error.errno()
        })
    }

    /// Reads a part of a directory and compares it with the whole, which is what the answer holds.
    fn engine_read_directory(&mut self, id: Id, after: &After, limit: usize, plus: bool) -> Result<Answer> {
        let (fs, ino) = (self.fs().clone(), self.ino(id));
        let mut all = Vec::new();
        let errno = |error: FsError| error.errno();
        fs.readdir(ino, 0, &mut |entry| {
            all.push(entry.clone());
            true
        })
        .map_err(errno)?;
        for entry in all.iter().skip(2) {
            self.assert_cookie(id, &entry.name, entry.cookie);
        }
        let after = match after {
            After::Start => 0,
            After::Cookie(cookie) => *cookie,
            // Of a name that may be gone: resuming after it must work all the same.
            After::Name(name) => {
                all.iter().find(|entry| entry.name == *name).map_or(self.stale_cookie(), |entry| entry.cookie)
            }
        };
        let mut part = Vec::new();
        let mut taken = Vec::new();
        if plus {
            fs.readdir_plus(ino, after, &mut |entry, found| {
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
            })
            .map_err(errno)?;
        } else {
            fs.readdir(ino, after, &mut |entry| {
                let room = part.len() < limit;
                if room {
                    part.push(entry.clone());
                }
                room
            })
            .map_err(errno)?;
        }
        let expected: Vec<_> = all.iter().filter(|entry| entry.cookie > after).take(limit).cloned().collect();
        // The parent of a removed directory may be gone; then ".." has no attributes.
        let removed = self.model.node(id).is_ok_and(|node| node.links == 0);
        let named = |entries: Vec<terrace_fs::DirectoryEntry>| -> Vec<_> {
            entries.into_iter().filter(|entry| !removed || entry.cookie > 2).collect()
        };
        assert_eq!(named(part), named(expected), "{id:?}: entries after {after}");
        let by_ino: BTreeMap<Ino, Id> = self.numbers.iter().map(|(id, (ino, _))| (*ino, *id)).collect();
        for found in taken {
            self.note_found(by_ino[&found.ino], &found);
        }
        let entries = all.into_iter().skip(2).map(|entry| (entry.name, entry.ino, entry.file_type));
        let mut entries: Vec<_> = entries.collect();
        entries.sort();
        Ok(Answer::Entries(entries))
    }

    fn stale_cookie(&mut self) -> u64 {
        let known: Vec<u64> = self.cookies.values().copied().collect();
        if known.is_empty() { 0 } else { known[self.rng.random_range(0..known.len())] }
    }

    /// The reference's answer, and the inode that the engine returned with it.
    fn reference(&mut self, op: &Op, when: Stamp) -> Result<(Answer, Option<Id>)> {
        let model = &mut self.model;
        let found = |id: Id| (Answer::Found(None), Some(id));
        let done = |()| (Answer::Done, None);
        match op {
            Op::Make { directory, name, new, owner } => {
                model.make(*directory, name, new, *owner, when).map(found)
            }
            Op::Link { id, directory, name } => model.link(*id, *directory, name, when).map(|()| found(*id)),
            Op::Remove { directory, name, as_directory } => {
                model.remove(*directory, name, *as_directory, when)?;
                self.cookies.remove(&(*directory, name.clone()));
                Ok((Answer::Done, None))
            }
            Op::Rename { from, to, no_replace } => {
                let same = model.lookup(from.0, &from.1).ok() == model.lookup(to.0, &to.1).ok();
                model.rename((from.0, &from.1), (to.0, &to.1), *no_replace, when)?;
                if !same {
                    self.cookies.remove(&(from.0, from.1.clone()));
                }
                Ok((Answer::Done, None))
            }
            Op::Lookup { directory, name } => model.lookup(*directory, name).map(found),
            Op::Open { id, truncate } => {
                if *truncate {
                    let change = Change { size: Some(0), kill_set_id: true, ..Default::default() };
                    model.set_attributes(*id, &change, when)?;
                }
                model.refer(*id)?;
                *self.opens.entry(*id).or_default() += 1;
                Ok((Answer::Done, None))
            }
            Op::Release { id } => {
                model.release(*id, 1)?;
                let left = self.opens[id] - 1;
                self.opens.insert(*id, left);
                self.opens.retain(|_, count| *count > 0);
                Ok((Answer::Done, None))
            }
            Op::Forget { id, count } => {
                let (id, count) = (*id, *count);
                self.forget(id, count);
                Ok((Answer::Done, None))
            }
            Op::GetAttributes { id } => model.attributes(*id).map(|_| (Answer::Done, None)),
            Op::Read { id, offset, length } => {
                let mut into = vec![0; *length];
                let count = model.read(*id, *offset, &mut into, when)?;
                into.truncate(count);
                Ok((Answer::Bytes(into), None))
            }
            Op::Write { id, offset, length, seed, kill_set_id, .. } => {
                let count = model.write(*id, *offset, &data(*length, *seed), *kill_set_id, when)?;
                Ok((Answer::Number(count as u64), None))
            }
            Op::SetAttributes { id, change } => model.set_attributes(*id, change, when).map(done),
            Op::Fallocate { id, offset, length, mode } => {
                model.fallocate(*id, *offset, *length, *mode, when).map(done)
            }
            Op::Seek { id, offset, what } => {
                model.seek(*id, *offset, *what).map(|at| (Answer::Number(at), None))
            }
            Op::SetXattr { id, name, length, seed, mode } => {
                model.set_xattr(*id, name, &data(*length, *seed), *mode, when).map(done)
            }
            Op::GetXattr { id, name } => model.xattr(*id, name).map(|value| (Answer::Bytes(value), None)),
            Op::RemoveXattr { id, name } => model.remove_xattr(*id, name, when).map(done),
            Op::ListXattr { id } => {
                let names = model.node(*id)?.xattrs.keys().cloned().collect();
                Ok((Answer::Names(names), None))
            }
            Op::ReadDirectory { id, .. } => {
                let entries = model.read_directory(*id, when)?;
                let numbers = &self.numbers;
                let entries = entries.into_iter().map(|entry| {
                    (entry.name, numbers.get(&entry.id).map_or(Ino(0), |(ino, _)| *ino), entry.file_type)
                });
                Ok((Answer::Entries(entries.collect()), None))
            }
            Op::ReadLink { id } => model.read_link(*id, when).map(|target| (Answer::Bytes(target), None)),
            Op::Fsync { id } => model.node(*id).map(|_| (Answer::Done, None)),
        }
    }
}
