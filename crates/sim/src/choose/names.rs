//! Random operations on names, references, attributes of users, and directories.

use crate::choose::chooser::Chooser;
use rand::Rng;
use rand::seq::IndexedRandom;
use terrace_reference::{After, Id, Kind, New, Op, ROOT, XattrMode};

impl Chooser<'_> {
    /// An operation on names, for a number below 240.
    pub(crate) fn choose_on_names(&mut self, number: u32) -> Op {
        match number {
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
            _ => {
                let (directory, name) = self.entry();
                let dots = self.rng.random_range(0..20);
                let name = [b"..".to_vec(), b".".to_vec()].get(dots).cloned().unwrap_or(name);
                Op::Lookup { directory, name }
            }
        }
    }

    fn count(&self, wanted: impl Fn(&Kind) -> bool) -> usize {
        self.model.nodes().filter(|(_, node)| wanted(&node.kind)).count()
    }

    pub(crate) fn choose_make(&mut self) -> Op {
        let (directory, name) = (self.directory(), self.name());
        let owner = (self.rng.random_range(0..3), self.rng.random_range(0..3));
        let mode = self.rng.random_range(0..0o10000);
        let new = match self.rng.random_range(0..100) {
            0..=14
                if self.count(|kind| matches!(kind, Kind::Directory { .. }))
                    < self.config.tree.directories =>
            {
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
        if files > self.config.tree.files && !matches!(new, New::Directory(_)) {
            let (directory, name) = self.entry();
            return Op::Remove { directory, name, as_directory: false };
        }
        Op::Make { id: self.model.next_id(), directory, name, new, owner }
    }

    pub(crate) fn choose_release(&mut self) -> Op {
        let opened: Vec<Id> = self.known.opens.keys().copied().collect();
        let looked: Vec<(Id, u64)> = self.known.lookups.iter().map(|(id, count)| (*id, *count)).collect();
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

    pub(crate) fn choose_xattr(&mut self) -> Op {
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

    pub(crate) fn choose_read_directory(&mut self) -> Op {
        let id = self.directory();
        let after = match self.rng.random_range(0..5) {
            0 => After::Cookie(self.rng.random::<u64>() >> 1),
            1..=2 => After::Name(self.name()),
            _ => After::Start,
        };
        let limit = if self.rng.random() { usize::MAX } else { self.rng.random_range(0..12) };
        Op::ReadDirectory { id, after, limit, plus: self.rng.random() }
    }
}
