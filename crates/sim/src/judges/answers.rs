//! The engine's answers against the reference's.

use crate::call::Seen;
use crate::config::Config;
use crate::judges::comparison::Comparison;
use crate::world::World;
use rand::Rng;
use std::collections::BTreeMap;
use terrace_engine::{Attributes, DirectoryEntry, FsError};
use terrace_format::Ino;
use terrace_reference::{Allocate, Answer, Id, Op, Outcome, Stamp};

impl World {
    pub fn judge(&mut self, op: &Op, answer: Result<Seen, FsError>, when: Stamp) {
        match answer {
            Err(FsError::WouldBlock) => return self.take_over(op, when),
            Err(error) if error.errno() == libc::EIO && (self.pool.faulty() || self.pool.may_be_damaged) => {
                self.counts.work.errors += 1;
                assert!(
                    may_meet_device(&self.config, op),
                    "{op:?}: {error} although it needs nothing from the device"
                );
                return self.take_over(op, when);
            }
            Err(error) if error.errno() == libc::ENOSPC && !too_large(op) => {
                return self.no_space(op, when);
            }
            _ => {}
        }
        let involved = self.model.involved(op);
        let expected = self.model.perform(op, when);
        let succeeds = expected.is_ok();
        self.compare_answers(op, answer, expected);
        if succeeds {
            self.note_names(op);
        }
        for id in involved {
            Comparison::of(self).compare_attributes(id);
        }
        self.forget_gone();
    }

    fn compare_answers(&mut self, op: &Op, seen: Result<Seen, FsError>, expected: Outcome<Answer>) {
        match (seen, expected) {
            (Ok(Seen::Inode(found)), Ok(Answer::Inode(id))) => self.note_found(id, &found),
            (Ok(Seen::Bytes(seen)), Ok(Answer::Bytes(expected))) => {
                assert_eq!(seen.len(), expected.len(), "{op:?}: length");
                if let Some(at) = seen.iter().zip(&expected).position(|(a, b)| a != b) {
                    let many = seen.iter().zip(&expected).filter(|(a, b)| a != b).count();
                    panic!(
                        "{op:?}: byte {at} is {:#x}, expected {:#x}; {many} differ",
                        seen[at], expected[at]
                    );
                }
            }
            (Ok(Seen::Number(seen)), Ok(Answer::Number(expected))) => assert_eq!(seen, expected, "{op:?}"),
            (Ok(Seen::Names(seen)), Ok(Answer::Names(expected))) => assert_eq!(seen, expected, "{op:?}"),
            (Ok(Seen::Done), Ok(Answer::Done)) => {}
            (Ok(Seen::Directory { all, part, taken }), Ok(Answer::Entries(expected))) => {
                self.compare_entries(op, &all, part, &taken);
                let mut seen: Vec<(Vec<u8>, Ino, u8)> =
                    all.into_iter().skip(2).map(|entry| (entry.name, entry.ino, entry.file_type)).collect();
                seen.sort();
                let expected: Vec<(Vec<u8>, Ino, u8)> =
                    expected.into_iter().map(|e| (e.name, self.known.ino(e.id), e.file_type)).collect();
                assert_eq!(seen, expected, "{op:?}");
            }
            (Err(seen), Err(expected)) => assert_eq!(seen.errno(), expected, "{op:?}: errno"),
            (seen, expected) => panic!("{op:?}: {seen:?}, expected {expected:?}"),
        }
    }

    /// Compares the requested part of a directory with the whole.
    fn compare_entries(
        &mut self,
        op: &Op,
        all: &[DirectoryEntry],
        part: Vec<DirectoryEntry>,
        taken: &[Attributes],
    ) {
        let Op::ReadDirectory { id, limit, .. } = op else { return };
        for entry in all.iter().skip(2) {
            self.known.assert_cookie(*id, &entry.name, entry.cookie);
        }
        let cookie = self.known.asked_cookie;
        let expected: Vec<_> =
            all.iter().filter(|entry| entry.cookie > cookie).take(*limit).cloned().collect();
        // The parent of a removed directory may be gone; then ".." has no attributes.
        let removed = self.model.node(*id).is_ok_and(|node| node.links == 0);
        let named = |entries: Vec<DirectoryEntry>| -> Vec<_> {
            entries.into_iter().filter(|entry| !removed || entry.cookie > 2).collect()
        };
        assert_eq!(named(part), named(expected), "{id:?}: entries after {cookie}");
        let by_ino: BTreeMap<Ino, Id> = self.known.numbers.iter().map(|(id, (ino, _))| (*ino, *id)).collect();
        for found in taken {
            self.note_found(by_ino[&found.ino], found);
        }
    }

    /// Updates the cookies, references and descriptors that the world keeps besides the reference.
    fn note_names(&mut self, op: &Op) {
        match op {
            Op::Remove { directory, name, .. } if self.model.lookup(*directory, name).is_err() => {
                self.known.cookies.remove(&(*directory, name.clone()));
            }
            Op::Rename { from, .. } if self.model.lookup(from.0, &from.1).is_err() => {
                self.known.cookies.remove(&(from.0, from.1.clone()));
            }
            Op::Open { id, .. } if self.model.node(*id).is_ok() => {
                *self.known.opens.entry(*id).or_default() += 1;
                let handle = self.pool.fs().new_handle();
                let failing = self.pool.may_fail() || self.config.tree.fills;
                self.known.descriptors.open(*id, handle, failing);
            }
            Op::Release { id } => {
                if let Some(count) = self.known.opens.get_mut(id) {
                    *count -= 1;
                }
                self.known.opens.retain(|_, count| *count > 0);
                self.known.descriptors.close(*id);
            }
            Op::Forget { id, count } => {
                if let Some(left) = self.known.lookups.get_mut(id) {
                    *left -= count;
                }
                self.known.lookups.retain(|_, count| *count > 0);
            }
            _ => {}
        }
    }

    /// Notes an inode that the engine returned with a lookup reference.
    fn note_found(&mut self, id: Id, found: &Attributes) {
        if !self.known.numbers.contains_key(&id) {
            let other = self.known.numbers.iter().find(|(_, (ino, _))| *ino == found.ino);
            assert!(other.is_none(), "{:?} got the number of {other:?}", id);
            let newest = self.known.generations.insert(found.ino.0, found.generation);
            assert!(newest < Some(found.generation), "{}: generation {newest:?} again", found.ino);
            self.known.numbers.insert(id, (found.ino, found.generation));
        }
        Comparison::of(self).assert_attributes(id, found);
        self.model.refer(id).unwrap();
        *self.known.lookups.entry(id).or_default() += 1;
        if self.rng.random_ratio(2, 3) {
            self.pool.fs().forget(self.known.ino(id), 1);
            self.model.release(id, 1).unwrap();
            self.note_names(&Op::Forget { id, count: 1 });
        }
    }

    /// Judges an ENOSPC: the pool must be nearly full, and the request changed nothing, except that whole
    /// pieces of a large request may be there.
    fn no_space(&mut self, op: &Op, when: Stamp) {
        self.counts.work.no_space += 1;
        let status = self.pool.fs().status().unwrap();
        let full = status.tiers.iter().map(|tier| tier.used_bytes * 100 / tier.capacity_bytes.max(1));
        let full: Vec<u64> = full.collect();
        let pm_full = full[0] >= 80;
        let tier_full = full[1..].iter().all(|percent| *percent >= 90);
        assert!(pm_full || tier_full || self.pool.faulty(), "{op:?}: ENOSPC with {full:?} percent in use");
        let frees = match op {
            Op::Remove { .. } | Op::Release { .. } | Op::Forget { .. } | Op::RemoveXattr { .. } => true,
            Op::Fallocate { mode, .. } => *mode == Allocate::PunchHole,
            Op::Open { truncate, .. } => *truncate,
            Op::SetAttributes { id, change } => {
                change.size.is_none_or(|size| size <= self.model.size_of(*id))
            }
            _ => false,
        };
        assert!(!frees, "{op:?}: ENOSPC although it gives space back (I9)");
        assert!(!only_reads(op), "{op:?}: ENOSPC although it needs no space (P1)");
        self.take_over(op, when);
    }
}

/// Whether an operation may have to read or write the device: its content is not all in PM, or it needs
/// space in a full PM.
pub(crate) fn may_meet_device(config: &Config, op: &Op) -> bool {
    if config.has_metadata_below() {
        return !matches!(op, Op::Release { .. } | Op::Forget { .. });
    }
    if matches!(op, Op::Fsync { .. }) {
        return config.buffers();
    }
    !matches!(
        op,
        Op::GetAttributes { .. }
            | Op::Lookup { .. }
            | Op::GetXattr { .. }
            | Op::ListXattr { .. }
            | Op::ReadDirectory { .. }
            | Op::ReadLink { .. }
            | Op::Seek { .. }
            | Op::Release { .. }
            | Op::Forget { .. }
    )
}

/// Whether an operation never changes content or attributes, apart from access times.
fn only_reads(op: &Op) -> bool {
    matches!(
        op,
        Op::Read { .. }
            | Op::GetAttributes { .. }
            | Op::Lookup { .. }
            | Op::GetXattr { .. }
            | Op::ListXattr { .. }
            | Op::ReadDirectory { .. }
            | Op::ReadLink { .. }
            | Op::Seek { .. }
            | Op::Open { truncate: false, .. }
    )
}

/// Whether a value exceeds the limit of the pool, so that ENOSPC is the right answer.
fn too_large(op: &Op) -> bool {
    matches!(op, Op::SetXattr { length, .. } if *length > 2048)
}
