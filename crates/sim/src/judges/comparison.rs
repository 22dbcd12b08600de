//! The comparison of pool and reference: both sides side by side, and the attributes of an inode.

use crate::config::Config;
use crate::counts::Counts;
use crate::world::World;
use crate::world::known::Known;
use crate::world::pool::Pool;
use crate::world::tolerance::Tolerance;
use terrace_engine::Attributes;
use terrace_reference::{Id, Node, Reference};

/// Both sides of a world, borrowed for a comparison.
pub(crate) struct Comparison<'a> {
    pub(crate) config: Config,
    pub(crate) pool: &'a Pool,
    pub(crate) model: &'a mut Reference,
    pub(crate) known: &'a mut Known,
    pub(crate) tolerance: &'a Tolerance,
    pub(crate) counts: &'a mut Counts,
}

impl<'a> Comparison<'a> {
    /// The sides of a world.
    pub(crate) fn of(world: &'a mut World) -> Comparison<'a> {
        let World { config, pool, model, known, tolerance, counts, .. } = world;
        Comparison { config: *config, pool, model, known, tolerance, counts }
    }
}

impl Comparison<'_> {
    /// The engine's attributes of an inode against the reference's.
    #[track_caller]
    pub(crate) fn assert_attributes(&mut self, id: Id, found: &Attributes) {
        let expected = self.model.attributes(id).unwrap();
        let (ino, generation) = self.known.numbers[&id];
        let seen = (found.ino, found.generation, found.mode, found.nlink, found.uid, found.gid, found.rdev);
        let wanted =
            (ino, generation, expected.mode, expected.links, expected.uid, expected.gid, expected.rdev);
        // A directory has its parent's number where other inodes have a device number.
        let is_directory = self.model.node(id).unwrap().is_directory();
        let seen = if is_directory { (seen.0, seen.1, seen.2, seen.3, seen.4, seen.5, 0) } else { seen };
        assert_eq!(seen, wanted, "{id:?}: ino, generation, mode, nlink, uid, gid, rdev");
        assert_eq!(found.size, expected.size, "{id:?}: size");
        // Blocks count until background work has finished the removals of an operation or a crash (C12, C20).
        let fewest = expected.blocks - 8 * self.model.node(id).map_or(0, Node::blocks_without_location);
        let blocks_fit = (fewest..=expected.blocks).contains(&found.blocks)
            || self.tolerance.lenient && found.blocks > expected.blocks;
        assert!(blocks_fit, "{id:?}: {} units of st_blocks, expected {}", found.blocks, expected.blocks);
        let times = [
            ("atime", found.atime_ns, expected.atime),
            ("mtime", found.mtime_ns, expected.mtime),
            ("ctime", found.ctime_ns, expected.ctime),
            ("btime", found.btime_ns, expected.btime),
        ];
        for (name, ns, stamp) in times {
            assert!(stamp.allows(ns), "{id:?} {name}: {ns}, expected {stamp:?}");
        }
        if expected.mtime == expected.ctime {
            assert_eq!(found.mtime_ns, found.ctime_ns, "{id:?}: mtime and ctime of one change");
        }
    }

    /// As [`Self::assert_attributes`], with the attributes asked from the engine.
    #[track_caller]
    pub(crate) fn compare_attributes(&mut self, id: Id) {
        if self.model.node(id).is_err() {
            return;
        }
        match self.pool.fs().getattr(self.known.ino(id)) {
            Ok(found) => self.assert_attributes(id, &found),
            Err(error) if self.pool.may_lie_below(&error) => {}
            Err(error) => panic!("getattr {id:?}: {error}"),
        }
    }
}
