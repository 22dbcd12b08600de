//! Choosing random operations.

use crate::config::Mix;
use crate::world::World;
use rand::Rng;
use rand::seq::IndexedRandom;
use terrace_reference::{After, Allocate, BLOCK, Change, Id, Kind, New, Op, ROOT, Seek, SetTime, XattrMode};

const B: u64 = BLOCK as u64;

/// The file blocks that an operation touches, when it works on a file's content.
pub fn blocks(op: &Op, world: &World) -> Option<(Id, u64, u64)> {
    let span =
        |id: Id, offset: u64, length: u64| Some((id, offset / B, offset.saturating_add(length).div_ceil(B)));
    match *op {
        Op::Read { id, offset, length } | Op::Write { id, offset, length, .. } => {
            span(id, offset, length as u64)
        }
        Op::Fallocate { id, offset, length, .. } => span(id, offset, length),
        Op::Seek { id, offset, .. } => span(id, offset, 1),
        Op::SetAttributes { id, change: Change { size: Some(size), .. } } => {
            let old = world.size_of(id);
            span(id, size.min(old), old.abs_diff(size).max(1))
        }
        Op::Open { id, truncate: true } => span(id, 0, world.size_of(id)),
        _ => None,
    }
}

impl World {
    /// Size of a regular file, else 0.
    pub fn size_of(&self, id: Id) -> u64 {
        let content = self.model.node(id).ok().and_then(|node| node.content());
        content.map_or(0, |content| content.size())
    }

    fn pick(&mut self, wanted: impl Fn(&Kind, u32) -> bool) -> Option<Id> {
        let matching = self.model.nodes().filter(|(_, node)| wanted(&node.kind, node.links));
        let ids: Vec<Id> = matching.map(|(id, _)| id).collect();
        ids.choose(&mut self.rng).copied()
    }

    fn any(&mut self) -> Id {
        self.pick(|_, _| true).unwrap_or(ROOT)
    }

    /// A regular file in most cases; rarely any inode, for the errors.
    pub fn file(&mut self) -> Id {
        if self.rng.random_ratio(1, 100) {
            return self.any();
        }
        // A hot file is touched more often than the rest.
        if let Some(hot) = self.hot.filter(|hot| self.model.node(*hot).is_ok())
            && self.rng.random_ratio(1, 3)
        {
            return hot;
        }
        let found = self.pick(|kind, _| matches!(kind, Kind::Regular(_)));
        if self.rng.random_ratio(1, 20) {
            self.hot = found;
        }
        found.unwrap_or(ROOT)
    }

    pub fn directory(&mut self) -> Id {
        match self.rng.random_range(0..100) {
            0 => self.any(),
            1..=35 => ROOT,
            _ => self.pick(|kind, _| matches!(kind, Kind::Directory { .. })).unwrap_or(ROOT),
        }
    }

    fn name(&mut self) -> Vec<u8> {
        match self.rng.random_range(0..200) {
            0 => b".".to_vec(),
            1 => b"..".to_vec(),
            2 => vec![b'x'; 256],
            3 => Vec::new(),
            4 => b"a/b".to_vec(),
            5..=15 => vec![b'a' + self.rng.random_range(0..4); 255],
            16..=30 => vec![0xff, 0xfe, self.rng.random_range(0x80..0x88)],
            _ if self.config.many_names => {
                format!("{:0160}", self.rng.random_range(0..self.config.names)).into_bytes()
            }
            _ => format!("n{}", self.rng.random_range(0..self.config.names)).into_bytes(),
        }
    }

    /// A directory and, in most cases, a name that exists in it.
    fn entry(&mut self) -> (Id, Vec<u8>) {
        if self.rng.random_ratio(1, 12) {
            return (self.directory(), self.name());
        }
        let filled = |kind: &Kind, _| matches!(kind, Kind::Directory { entries, .. } if !entries.is_empty());
        let Some(directory) = self.pick(filled) else { return (ROOT, self.name()) };
        let entries = self.model.node(directory).ok().and_then(|node| node.entries());
        let count = entries.map_or(1, |entries| entries.len());
        let index = self.rng.random_range(0..count);
        let name = entries_nth(self, directory, index);
        (directory, name)
    }

    fn offset(&mut self, size: u64) -> u64 {
        match self.rng.random_range(0..20) {
            0..=4 => size,
            5 => size + self.rng.random_range(0..64 * B),
            6 if self.rng.random_ratio(1, 10) => self.far_offset(),
            7..=11 => self.rng.random_range(0..=size) / B * B,
            12..=13 => 0,
            _ => self.rng.random_range(0..=size),
        }
    }

    /// An offset far beyond the written bytes, for deep maps. Few files have one, because map nodes take PM.
    fn far_offset(&mut self) -> u64 {
        let far = self.model.nodes().filter(|(_, node)| node.content().is_some_and(|c| c.size() > 1 << 26));
        if far.count() >= 3 {
            return 0;
        }
        let exponent = self.rng.random_range(22..44);
        self.rng.random_range(0..1u64 << exponent)
    }

    fn length(&mut self) -> u64 {
        match self.rng.random_range(0..100) {
            0 => 0,
            1..=29 => self.rng.random_range(1..200),
            30..=64 => B * self.rng.random_range(1..5),
            65..=84 => self.rng.random_range(1..5 * B),
            85..=96 => self.rng.random_range(1..20 * B),
            // Beyond the atomic write size of the tiny lanes (56 blocks).
            _ => self.rng.random_range(50 * B..80 * B),
        }
    }

    /// Chooses the next operation.
    pub fn choose(&mut self) -> Op {
        if self.model.allocated_blocks() > self.config.most_blocks
            && let Some(op) = self.shrink()
        {
            return op;
        }
        if self.config.many_names && self.rng.random_ratio(1, 4) {
            return self.choose_make();
        }
        if self.rng.random_ratio(3, 4)
            && let Some(op) = self.choose_of_mix()
        {
            return op;
        }
        match self.rng.random_range(0..1000) {
            0..=89 => self.choose_make(),
            90..=109 => {
                let (directory, name) = (self.directory(), self.name());
                Op::Link { id: self.any(), directory, name }
            }
            110..=159 => {
                let (directory, name) = self.entry();
                let ratio = self.rng.random_ratio(1, 10);
                let target = self.model.lookup(directory, &name).and_then(|id| self.model.node(id).cloned());
                let as_directory = target.is_ok_and(|node| node.is_directory()) ^ ratio;
                Op::Remove { directory, name, as_directory }
            }
            160..=209 => {
                let from = self.entry();
                let to =
                    if self.rng.random_ratio(1, 3) { self.entry() } else { (self.directory(), self.name()) };
                Op::Rename { from, to, no_replace: self.rng.random_ratio(1, 5) }
            }
            210..=239 => {
                let (directory, name) = self.entry();
                let dots = self.rng.random_range(0..20);
                let name = [b"..".to_vec(), b".".to_vec()].get(dots).cloned().unwrap_or(name);
                Op::Lookup { directory, name }
            }
            240..=259 => {
                let (id, truncate) = (self.file(), self.rng.random_ratio(1, 8));
                // Opens a further descriptor of an open file.
                let other = self
                    .opens
                    .keys()
                    .next()
                    .copied()
                    .filter(|_| self.config.by_hand && id.0.is_multiple_of(2));
                Op::Open { id: other.unwrap_or(id), truncate }
            }
            260..=329 => self.choose_release(),
            330..=339 => Op::GetAttributes { id: self.any() },
            340..=519 => self.choose_read(),
            520..=739 => {
                let id = self.file();
                self.choose_write(id)
            }
            740..=819 => self.choose_attributes(),
            820..=859 => self.choose_fallocate(),
            860..=889 => {
                let id = self.file();
                let size = self.size_of(id);
                let offset = self.rng.random_range(0..=size.saturating_add(size / 8 + 1));
                let what = if self.rng.random() { Seek::Data } else { Seek::Hole };
                Op::Seek { id, offset, what }
            }
            890..=939 => self.choose_xattr(),
            940..=979 => self.choose_read_directory(),
            980..=989 => {
                let link = self.pick(|kind, _| matches!(kind, Kind::Symlink(_)));
                Op::ReadLink { id: link.unwrap_or(ROOT) }
            }
            _ => {
                let id = self.any();
                Op::Fsync { id: self.descriptors.due().filter(|_| self.config.by_hand).unwrap_or(id) }
            }
        }
    }

    /// An operation that the mix of the run calls for.
    fn choose_of_mix(&mut self) -> Option<Op> {
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
                    2 => Op::Release { id: *self.opens.keys().next()? },
                    3..=4 => self.rewrite_part(id),
                    _ => Op::Fsync { id: self.descriptors.due().unwrap_or(id) },
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
        let (id, end) = self.last_write.filter(|(id, _)| self.size_of(*id) > 0)?;
        let length = self.rng.random_range(4..12) * B;
        let offset = if self.rng.random_ratio(3, 4) { end } else { end.saturating_sub(length) / B * B };
        self.last_write = Some((id, offset + length));
        let length = length as usize;
        Some(Op::Write { id, offset, length, seed: self.rng.random(), kill_set_id: false, sync: false })
    }

    fn count(&self, wanted: impl Fn(&Kind) -> bool) -> usize {
        self.model.nodes().filter(|(_, node)| wanted(&node.kind)).count()
    }

    fn choose_make(&mut self) -> Op {
        let (directory, name) = (self.directory(), self.name());
        let owner = (self.rng.random_range(0..3), self.rng.random_range(0..3));
        let mode = self.rng.random_range(0..0o10000);
        let new = match self.rng.random_range(0..100) {
            0..=14 if self.count(|kind| matches!(kind, Kind::Directory { .. })) < self.config.directories => {
                New::Directory(mode)
            }
            15..=24 => {
                let length = *[0, 1, 20, 60, 500, 1500, 2048, 2049].choose(&mut self.rng).unwrap_or(&1);
                New::Symlink((0..length).map(|index| b'a' + (index % 26) as u8).collect())
            }
            25..=28 => New::Special(0o010000 | mode, 0),
            29..=31 => New::Special(0o020000 | mode, self.rng.random()),
            _ => New::Regular(mode),
        };
        let files = self.count(|kind| !matches!(kind, Kind::Directory { .. }));
        if files > self.config.files && !matches!(new, New::Directory(_)) {
            let (directory, name) = self.entry();
            return Op::Remove { directory, name, as_directory: false };
        }
        Op::Make { id: self.model.next_id(), directory, name, new, owner }
    }

    fn choose_release(&mut self) -> Op {
        let opened: Vec<Id> = self.opens.keys().copied().collect();
        let looked: Vec<(Id, u64)> = self.lookups.iter().map(|(id, count)| (*id, *count)).collect();
        if self.rng.random_ratio(1, 3)
            && let Some(id) = opened.choose(&mut self.rng)
        {
            return Op::Release { id: *id };
        }
        match looked.choose(&mut self.rng) {
            Some((id, count)) => {
                let all = self.rng.random_ratio(3, 4);
                Op::Forget { id: *id, count: if all { *count } else { 1 } }
            }
            None => Op::GetAttributes { id: ROOT },
        }
    }

    fn choose_read(&mut self) -> Op {
        let id = self.file();
        let size = self.size_of(id);
        // Continues the last read, so that read-ahead reads more than was asked for.
        if self.config.by_hand
            && let Some((id, offset)) = self.last_read.filter(|(id, _)| self.model.node(*id).is_ok())
            && offset < self.size_of(id)
            && self.rng.random_ratio(1, 2)
        {
            let length = self.rng.random_range(1..20 * B);
            self.last_read = Some((id, offset + length));
            return Op::Read { id, offset, length: length as usize };
        }
        let (offset, length) = (self.offset(size), self.length());
        self.last_read = Some((id, offset + length));
        Op::Read { id, offset, length: length as usize }
    }

    /// An operation on the content of one file.
    pub fn choose_of(&mut self, id: Id) -> Op {
        let size = self.size_of(id);
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

    fn choose_write(&mut self, id: Id) -> Op {
        let size = self.size_of(id);
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
            self.last_write = Some((id, offset + length));
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

    fn time(&mut self) -> SetTime {
        match self.rng.random_range(0..4) {
            0 => SetTime::Now,
            1 => SetTime::At(-self.rng.random_range(0..1i64 << 60)),
            2 => SetTime::At(self.rng.random_range(0..1i64 << 60)),
            // Later than the test's clock ever gets.
            _ => SetTime::At((2 << 60) + self.rng.random_range(0..1i64 << 60)),
        }
    }

    fn choose_attributes(&mut self) -> Op {
        let mut change = Change::default();
        if self.rng.random_ratio(1, 2) {
            let id = self.file();
            let size = self.size_of(id);
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

    fn choose_fallocate(&mut self) -> Op {
        let id = self.file();
        let size = self.size_of(id);
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

    fn choose_xattr(&mut self) -> Op {
        let id = if self.rng.random() { self.any() } else { self.file() };
        let name: &[u8] = match self.rng.random_range(0..60) {
            0 => b"system.posix_acl_access",
            1 => b"user.",
            2 => &[b'u'; 256],
            3..=8 => b"trusted.overlay",
            9..=14 => b"security.capability",
            index => [&b"user.a"[..], b"user.b", b"user.b2", b"user.long-name-of-an-attribute"][index % 4],
        };
        let name = name.to_vec();
        match self.rng.random_range(0..10) {
            0..=4 => {
                let length = *[0, 1, 10, 600, 1024, 1025, 2048, 2049].choose(&mut self.rng).unwrap_or(&0);
                // Few inodes have large values, because these take PM.
                let length = if id.0 % 8 == 0 { length } else { length.min(100) };
                let mode = [XattrMode::Any, XattrMode::Any, XattrMode::Create, XattrMode::Replace]
                    [self.rng.random_range(0..4)];
                Op::SetXattr { id, name, length, seed: self.rng.random(), mode }
            }
            5..=6 => Op::RemoveXattr { id, name },
            7..=8 => Op::GetXattr { id, name },
            _ => Op::ListXattr { id },
        }
    }

    fn choose_read_directory(&mut self) -> Op {
        let id = self.directory();
        let after = match self.rng.random_range(0..5) {
            0 => After::Cookie(self.rng.random::<u64>() >> 1),
            1..=2 => After::Name(self.name()),
            _ => After::Start,
        };
        let limit = if self.rng.random() { usize::MAX } else { self.rng.random_range(0..12) };
        Op::ReadDirectory { id, after, limit, plus: self.rng.random() }
    }

    /// An operation that frees blocks: a run fills the pool only if its configuration says so.
    fn shrink(&mut self) -> Option<Op> {
        let large = self
            .model
            .nodes()
            .filter(|(_, node)| node.content().is_some_and(|content| content.allocated_blocks() > 4));
        let ids: Vec<Id> = large.map(|(id, _)| id).collect();
        let id = *ids.choose(&mut self.rng)?;
        let size = self.size_of(id);
        Some(match self.rng.random_range(0..3) {
            0 => Op::Fallocate { id, offset: 0, length: size.max(1), mode: Allocate::PunchHole },
            1 => {
                let size = self.rng.random_range(0..=size / 2);
                Op::SetAttributes { id, change: Change { size: Some(size), ..Default::default() } }
            }
            _ => Op::SetAttributes { id, change: Change { size: Some(0), ..Default::default() } },
        })
    }
}

fn entries_nth(world: &World, directory: Id, index: usize) -> Vec<u8> {
    let entries = world.model.node(directory).ok().and_then(|node| node.entries());
    entries.and_then(|entries| entries.keys().nth(index)).cloned().unwrap_or_default()
}
