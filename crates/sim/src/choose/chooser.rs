//! The parts of random operations: inodes, names, offsets, lengths, times.

use crate::config::Config;
use crate::world::World;
use crate::world::habits::Habits;
use crate::world::known::Known;
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use terrace_reference::{BLOCK, Id, Kind, ROOT, Reference, SetTime};

/// Bytes of a file block.
pub(crate) const B: u64 = BLOCK as u64;

/// Draws operations from the state of the reference. It never asks the engine.
pub struct Chooser<'a> {
    pub(crate) rng: &'a mut SmallRng,
    pub(crate) config: Config,
    pub(crate) model: &'a Reference,
    pub(crate) known: &'a Known,
    pub(crate) habits: &'a mut Habits,
}

impl<'a> Chooser<'a> {
    /// A chooser that draws from the world's own seed.
    pub fn of(world: &'a mut World) -> Chooser<'a> {
        let World { rng, config, model, known, habits, .. } = world;
        Chooser { rng, config: *config, model, known, habits }
    }

    /// A chooser that draws from another seed.
    pub fn drawing(rng: &'a mut SmallRng, world: &'a mut World) -> Chooser<'a> {
        Chooser { rng, ..Chooser::of(world) }
    }
}

impl Chooser<'_> {
    pub(crate) fn pick(&mut self, wanted: impl Fn(&Kind, u32) -> bool) -> Option<Id> {
        let matching = self.model.nodes().filter(|(_, node)| wanted(&node.kind, node.links));
        let ids: Vec<Id> = matching.map(|(id, _)| id).collect();
        ids.choose(&mut self.rng).copied()
    }

    pub(crate) fn any(&mut self) -> Id {
        self.pick(|_, _| true).unwrap_or(ROOT)
    }

    /// A regular file in most cases; rarely any inode, for the errors.
    pub fn file(&mut self) -> Id {
        if self.rng.random_ratio(1, 100) {
            return self.any();
        }
        // A hot file is touched more often than the rest.
        if let Some(hot) = self.habits.hot.filter(|hot| self.model.node(*hot).is_ok())
            && self.rng.random_ratio(1, 3)
        {
            return hot;
        }
        let found = self.pick(|kind, _| matches!(kind, Kind::Regular(_)));
        if self.rng.random_ratio(1, 20) {
            self.habits.hot = found;
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

    pub(crate) fn name(&mut self) -> Vec<u8> {
        match self.rng.random_range(0..200) {
            0 => b".".to_vec(),
            1 => b"..".to_vec(),
            2 => vec![b'x'; 256],
            3 => Vec::new(),
            4 => b"a/b".to_vec(),
            5..=15 => vec![b'a' + self.rng.random_range(0..4); 255],
            16..=30 => vec![0xff, 0xfe, self.rng.random_range(0x80..0x88)],
            _ if self.config.tree.many_names => {
                format!("{:0160}", self.rng.random_range(0..self.config.tree.names)).into_bytes()
            }
            _ => format!("n{}", self.rng.random_range(0..self.config.tree.names)).into_bytes(),
        }
    }

    /// A directory and, in most cases, a name that exists in it.
    pub(crate) fn entry(&mut self) -> (Id, Vec<u8>) {
        if self.rng.random_ratio(1, 12) {
            return (self.directory(), self.name());
        }
        let filled = |kind: &Kind, _| matches!(kind, Kind::Directory { entries, .. } if !entries.is_empty());
        let Some(directory) = self.pick(filled) else { return (ROOT, self.name()) };
        let entries = self.model.node(directory).ok().and_then(|node| node.entries());
        let count = entries.map_or(1, |entries| entries.len());
        let index = self.rng.random_range(0..count);
        let name = entries_nth(self.model, directory, index);
        (directory, name)
    }

    pub(crate) fn offset(&mut self, size: u64) -> u64 {
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
    pub(crate) fn far_offset(&mut self) -> u64 {
        let far = self.model.nodes().filter(|(_, node)| node.content().is_some_and(|c| c.size() > 1 << 26));
        if far.count() >= 3 {
            return 0;
        }
        let exponent = self.rng.random_range(22..44);
        self.rng.random_range(0..1u64 << exponent)
    }

    pub(crate) fn length(&mut self) -> u64 {
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

    pub(crate) fn time(&mut self) -> SetTime {
        match self.rng.random_range(0..4) {
            0 => SetTime::Now,
            1 => SetTime::At(-self.rng.random_range(0..1i64 << 60)),
            2 => SetTime::At(self.rng.random_range(0..1i64 << 60)),
            // Later than the test's clock ever gets.
            _ => SetTime::At((2 << 60) + self.rng.random_range(0..1i64 << 60)),
        }
    }
}

fn entries_nth(model: &Reference, directory: Id, index: usize) -> Vec<u8> {
    let entries = model.node(directory).ok().and_then(|node| node.entries());
    entries.and_then(|entries| entries.keys().nth(index)).cloned().unwrap_or_default()
}
