//! Orderly remounts, comparisons between actions, and the end of a history.

use crate::action::Fault;
use crate::actions::operate::operate;
use crate::judges::comparison::Comparison;
use crate::media::Media;
use crate::world::power::Crash;
use crate::world::{Shared, World};
use rand::Rng;
use terrace_engine::{Simulation, Wait};
use terrace_reference::{CrashState, Id, Op, ROOT, Reference};

impl World {
    /// Compares the whole tree, unless a fault may make cold content unreadable.
    pub(crate) fn compare_when_well(&mut self) {
        self.judge_leaks();
        if !self.pool.faulty() {
            Comparison::of(self).compare_all();
        }
    }

    /// Unmounts, checks, mounts and compares.
    pub(crate) fn remount(&mut self) {
        if self.pool.faulty() {
            return;
        }
        self.note("remount".into());
        self.counts.remounts += 1;
        self.pool.steps.clear();
        self.judge_leaks();
        self.pool.unmount_engine();
        if self.take_crash() {
            let states = vec![CrashState::now(&self.model)];
            return self.power_failed(states);
        }
        self.end_mount();
        self.assert_clean();
        self.model.all_written_back();
        self.model.drop_references();
        self.forget_volatile();
        if self.config.trouble.flips {
            let media = Media::after(&self.pool.media.now(), 1, self.pool.media.setup());
            let seed = self.rng.random();
            self.flip(&media, seed);
        }
        self.remount_media();
        // The cost of a mount depends on the lanes, never on the size of the pool (T8): it reads two
        // checkpoint copies, the roots and the first record of each lane.
        let read = self.pool.mount_read.get();
        assert!(read <= 4 * 4096, "the mount read {read} bytes of PM before it answered");
        assert!(self.pool.fs().status().unwrap().recovery.clean);
        Comparison::of(self).compare_all();
    }

    /// Judges a pool from which every name was removed.
    fn assert_empty(&mut self) {
        self.pool.steps.clear();
        self.pool.fs().run_background(10_000);
        self.judge_leaks();
        let status = self.pool.fs().status().unwrap();
        // The inode file does not shrink; its pages may lie on a lower tier.
        let inode_pages = status.metadata.below_bytes;
        for tier in &status.tiers[1..] {
            assert!(
                tier.used_bytes <= inode_pages,
                "{} bytes of an empty file system below PM",
                tier.used_bytes
            );
        }
        let space = self.pool.fs().statfs(Wait::Allowed).unwrap();
        let used = space.blocks - space.free;
        // The inode file does not shrink; 32 inodes share a page.
        let inodes = (self.config.tree.files + self.config.tree.directories) as u64 / 8 + 16;
        assert!(used <= self.fresh_blocks + inodes, "{used} blocks of an empty file system are in use");
        self.pool.unmount_engine();
        self.end_mount();
        self.assert_clean();
    }
}

/// The operations that remove every name, after which all space must be free (I6, I7).
fn remove_everything(model: &Reference) -> Vec<Op> {
    let mut left: Vec<Id> = vec![ROOT];
    let mut ops: Vec<Op> = Vec::new();
    while let Some(id) = left.pop() {
        let entries = model.node(id).ok().and_then(|node| node.entries()).cloned();
        for (name, child) in entries.unwrap_or_default() {
            let as_directory = model.node(child).is_ok_and(|node| node.is_directory());
            ops.push(Op::Remove { directory: id, name, as_directory });
            if as_directory {
                left.push(child);
            }
        }
    }
    ops.reverse();
    ops
}

/// The end of a history: faults heal, all is compared, every name is removed, and all space must be free.
pub fn end(world: &Shared) {
    {
        let mut now = world.borrow_mut();
        now.pool.media.clock.set_crash_at(None);
        now.power.crash = Crash::None;
        if now.pool.faulty() {
            now.inject(Fault::Heals);
        }
        now.note("the end: compare, remount, remove everything".into());
        Comparison::of(&mut now).compare_all();
        now.remount();
    }
    let ops = remove_everything(&world.borrow().model);
    for op in ops {
        operate(world, op, true);
    }
    world.borrow_mut().assert_empty();
}
