//! Random operations on the content and the attributes of files.

use crate::choose::chooser::{B, Chooser};
use crate::config::Mix;
use rand::Rng;
use rand::seq::IndexedRandom;
use terrace_reference::{Allocate, BLOCK, Change, Id, Kind, New, Op, Reference};

/// The file blocks that an operation touches, when it works on a file's content.
pub fn blocks(op: &Op, model: &Reference) -> Option<(Id, u64, u64)> {
    let span =
        |id: Id, offset: u64, length: u64| Some((id, offset / B, offset.saturating_add(length).div_ceil(B)));
    match *op {
        Op::Read { id, offset, length } | Op::Write { id, offset, length, .. } => {
            span(id, offset, length as u64)
        }
        Op::Fallocate { id, offset, length, .. } => span(id, offset, length),
        Op::Seek { id, offset, .. } => span(id, offset, 1),
        Op::SetAttributes { id, change: Change { size: Some(size), .. } } => {
            let old = model.size_of(id);
            span(id, size.min(old), old.abs_diff(size).max(1))
        }
        Op::Open { id, truncate: true } => span(id, 0, model.size_of(id)),
        _ => None,
    }
}

impl Chooser<'_> {
    /// An operation that the mix of the run calls for.
    pub(crate) fn choose_of_mix(&mut self) -> Option<Op> {
        match self.config.mix {
            Mix::All => None,
            Mix::Streams => self.choose_stream(),
            Mix::Rewrites => {
                let id = self.pick(|kind, _| matches!(kind, Kind::Regular(_)))?;
                Some(match self.rng.random_range(0..3) {
                    0 => Op::Fsync { id },
                    _ => self.rewrite_part(id),
                })
            }
            Mix::Descriptors => {
                let id = self.pick(|kind, _| matches!(kind, Kind::Regular(_)))?;
                Some(match self.rng.random_range(0..8) {
                    0..=1 => Op::Open { id, truncate: false },
                    2 => Op::Release { id: *self.known.opens.keys().next()? },
                    3..=4 => self.rewrite_part(id),
                    _ => Op::Fsync { id: self.known.descriptors.due().unwrap_or(id) },
                })
            }
        }
    }

    /// A write to the first two blocks of a file, to both or to a part.
    fn rewrite_part(&mut self, id: Id) -> Op {
        let (offset, length) =
            if self.rng.random() { (0, 2 * BLOCK) } else { (self.rng.random_range(0..B), BLOCK) };
        Op::Write { id, offset, length, seed: self.rng.random(), kill_set_id: false, sync: false }
    }

    /// A write that continues the last write, or writes its range again.
    fn choose_stream(&mut self) -> Option<Op> {
        if !self.rng.random_ratio(1, 8) {
            return None;
        }
        let (id, end) = self.habits.last_write.filter(|(id, _)| self.model.size_of(*id) > 0)?;
        let length = self.rng.random_range(4..12) * B;
        let offset = if self.rng.random_ratio(3, 4) { end } else { end.saturating_sub(length) / B * B };
        self.habits.last_write = Some((id, offset + length));
        let length = length as usize;
        Some(Op::Write { id, offset, length, seed: self.rng.random(), kill_set_id: false, sync: false })
    }

    pub(crate) fn choose_read(&mut self) -> Op {
        let id = self.file();
        let size = self.model.size_of(id);
        // Continues the last read, so that read-ahead reads more than was asked for.
        if self.config.by_hand
            && let Some((id, offset)) = self.habits.last_read.filter(|(id, _)| self.model.node(*id).is_ok())
            && offset < self.model.size_of(id)
            && self.rng.random_ratio(1, 2)
        {
            let length = self.rng.random_range(1..20 * B);
            self.habits.last_read = Some((id, offset + length));
            return Op::Read { id, offset, length: length as usize };
        }
        let (offset, length) = (self.offset(size), self.length());
        self.habits.last_read = Some((id, offset + length));
        Op::Read { id, offset, length: length as usize }
    }

    /// An operation on the content of one file.
    pub fn choose_of(&mut self, id: Id) -> Op {
        let size = self.model.size_of(id);
        match self.rng.random_range(0..4) {
            0 => self.choose_write(id),
            1 => Op::Write {
                id,
                offset: size,
                length: self.rng.random_range(1..9000),
                seed: self.rng.random(),
                kill_set_id: false,
                sync: false,
            },
            2 => {
                let size = Some(self.rng.random_range(0..=size + 5000));
                Op::SetAttributes { id, change: Change { size, ..Change::default() } }
            }
            _ => Op::Fallocate {
                id,
                offset: self.rng.random_range(0..=size),
                length: self.rng.random_range(1..20_000),
                mode: Allocate::PunchHole,
            },
        }
    }

    pub(crate) fn choose_write(&mut self, id: Id) -> Op {
        let size = self.model.size_of(id);
        let (offset, length) = (self.offset(size), self.length());
        // Rarely an offset near the largest size of a file.
        let offset = if self.rng.random_ratio(1, 2000) { 0xffff_ffff * B - 100 } else { offset };
        // Whole cache lines: over a cold block they make a partial shadow.
        let (offset, length) = match self.rng.random_ratio(1, 4) {
            true => (offset / 64 * 64, self.rng.random_range(1..=16) * 64),
            false => (offset, length),
        };
        let regular = self.model.node(id).is_ok_and(|node| node.content().is_some());
        // A stream does not start far out, because its map nodes would take PM.
        if length >= 4 * B && offset < 1 << 22 {
            self.habits.last_write = Some((id, offset + length));
        }
        Op::Write {
            id,
            offset,
            length: if regular { length as usize } else { length.max(1) as usize },
            seed: self.rng.random(),
            kill_set_id: self.rng.random_ratio(1, 6),
            sync: self.rng.random_ratio(1, 6),
        }
    }

    pub(crate) fn choose_attributes(&mut self) -> Op {
        let mut change = Change::default();
        if self.rng.random_ratio(1, 2) {
            let id = self.file();
            let size = self.model.size_of(id);
            change.size = Some(match self.rng.random_range(0..8) {
                0 => 0,
                1 => size + self.rng.random_range(0..20 * B),
                2 => size,
                3 => self.rng.random_range(0..=size) / B * B,
                4 if self.rng.random_ratio(1, 4) => self.far_offset(),
                _ => self.rng.random_range(0..=size),
            });
            change.kill_set_id = self.rng.random_ratio(1, 4);
            if self.rng.random_ratio(1, 10) {
                change.mtime = Some(self.time());
            }
            return Op::SetAttributes { id, change };
        }
        match self.rng.random_range(0..4) {
            0 => change.mode = Some(self.rng.random_range(0..0o10000)),
            1 => {
                change.uid = self.rng.random_ratio(2, 3).then(|| self.rng.random_range(0..5));
                change.gid = self.rng.random_ratio(2, 3).then(|| self.rng.random_range(0..5));
                change.mode = self.rng.random_ratio(1, 4).then(|| self.rng.random_range(0..0o10000));
            }
            _ => {
                change.atime = self.rng.random_ratio(2, 3).then(|| self.time());
                change.mtime = self.rng.random_ratio(2, 3).then(|| self.time());
            }
        }
        Op::SetAttributes { id: self.any(), change }
    }

    pub(crate) fn choose_fallocate(&mut self) -> Op {
        let id = self.file();
        let size = self.model.size_of(id);
        let mode = match self.rng.random_range(0..5) {
            0 => Allocate::Extend,
            1 => Allocate::KeepSize,
            _ => Allocate::PunchHole,
        };
        let (offset, length) = (self.offset(size), self.length());
        let whole = mode == Allocate::PunchHole && self.rng.random_ratio(1, 12);
        let (offset, length) = if whole { (offset, size + 1) } else { (offset, length) };
        Op::Fallocate { id, offset, length, mode }
    }

    /// An operation that frees blocks: a run fills the pool only if its configuration says so.
    pub(crate) fn shrink(&mut self) -> Option<Op> {
        let large = self
            .model
            .nodes()
            .filter(|(_, node)| node.content().is_some_and(|content| content.allocated_blocks() > 4));
        let ids: Vec<Id> = large.map(|(id, _)| id).collect();
        let id = *ids.choose(&mut self.rng)?;
        let size = self.model.size_of(id);
        Some(match self.rng.random_range(0..3) {
            0 => Op::Fallocate { id, offset: 0, length: size.max(1), mode: Allocate::PunchHole },
            1 => {
                let size = self.rng.random_range(0..=size / 2);
                Op::SetAttributes { id, change: Change { size: Some(size), ..Default::default() } }
            }
            _ => Op::SetAttributes { id, change: Change { size: Some(0), ..Default::default() } },
        })
    }

    pub(crate) fn choose_reuse(&mut self) -> Vec<(bool, Op)> {
        let (old, new) = (self.file(), self.file());
        let size = self.model.size_of(old);
        let blocks = size / 4096;
        let mut ops = Vec::new();
        match self.rng.random_range(0..3) {
            // Map nodes are allocated and freed.
            0 => {
                let far = self.rng.random_range(512..1100);
                ops.push((false, self.rewrite(old, blocks.max(far), 1)));
                let change = Change { size: Some(size), ..Change::default() };
                ops.push((false, Op::SetAttributes { id: old, change }));
            }
            // Rewrites one of two blocks that a record names by checksum, while the record stays the last of
            // its lane.
            1 => {
                ops.push((true, self.rewrite(old, blocks, 2)));
                ops.push((false, self.rewrite(old, blocks, 1)));
            }
            // Makes and removes a directory, whose name may have a catalog page of its own.
            _ => {
                let (directory, name) = (self.directory(), b"alone".to_vec());
                let (new, id) = (New::Directory(0o755), Id(Id::APART.0 + (self.rng.random::<u64>() >> 20)));
                ops.push((false, Op::Make { id, directory, name: name.clone(), new, owner: (0, 0) }));
                ops.push((false, Op::Remove { directory, name, as_directory: true }));
            }
        }
        for _ in 0..self.rng.random_range(1..4) {
            let (first, count) = (self.rng.random_range(0..8), self.rng.random_range(1..3));
            ops.push((false, self.rewrite(new, first, count)));
        }
        ops
    }

    /// A write of whole blocks.
    fn rewrite(&mut self, id: Id, first: u64, blocks: u64) -> Op {
        let (offset, length) = (first * 4096, blocks as usize * 4096);
        Op::Write { id, offset, length, seed: self.rng.random(), kill_set_id: false, sync: false }
    }
}
