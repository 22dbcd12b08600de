//! The requests of users: files and directories are migrated, pinned to a tier and unpinned. Files are also
//! read again and again, so that policies that follow reads move them.
//!
//! A tier pin is durable once its job has set it in an inode; new files and directories inherit it. While a
//! job sets tier pins an inode may have the old tier pin or the new one. After the job, or after a loss of
//! power, the reference takes over the tier pin that it finds.

use crate::happen::{background, with_nesting};
use crate::operate::operate;
use crate::world::{Nesting, Shared, World};
use rand::Rng;
use std::time::Duration;
use terrace_engine::{HandMove, HandReport, HandState, Movements, Simulation};
use terrace_reference::{BLOCK, Id, Kind, Op};
use terrace_runtime::Next;

/// Steps of a job in one action at most.
const MOST_PIECES: usize = 4000;
/// Bytes of a large file read in each second: equation (2) judges no less than 1 MiB.
const READ_IN_A_SECOND: u64 = 5 << 18;
/// Bytes of one read.
const PIECE: u64 = 32 * BLOCK as u64;

/// A user requests a movement or a tier pin, and may wait for the end of its job.
pub fn hand(world: &Shared, id: Id, action: HandMove, finish: bool) {
    let (fs, ino, quiet) = {
        let mut now = world.borrow_mut();
        let node = now.model.node(id).ok();
        let fits = node.is_some_and(|node| node.is_directory() || node.content().is_some());
        if !fits || now.crash.is_taken() {
            return;
        }
        now.note(format!("{action:?} of {id:?}{}", if finish { "" } else { ", not waited for" }));
        let quiet = now.rng.random_ratio(1, 2);
        (now.fs().clone(), now.ino(id), quiet)
    };
    let waits = finish || !matches!(action, HandMove::Migrate { .. });
    if !matches!(action, HandMove::Migrate { .. }) {
        world.borrow_mut().pins_unsure = Some(action.tier());
    }
    let job = match fs.move_by_hand(ino, action) {
        Ok(job) => job,
        Err(error) => panic!("{action:?} of {id:?}: {error}"),
    };
    if !waits {
        return;
    }
    let nesting = if quiet { Nesting::None } else { Nesting::Background };
    let ended = with_nesting(world, nesting, || {
        (0..MOST_PIECES).find_map(|_| {
            if let Next::After(pause) = fs.hand_step() {
                world.borrow().clock.advance(pause);
            }
            fs.hand_report(job).filter(|report| report.state.has_ended())
        })
    });
    drop(fs);
    let mut now = world.borrow_mut();
    now.background_ended();
    if now.crash.is_taken() {
        return;
    }
    let Some(report) = ended else { panic!("{action:?} of {id:?} does not end") };
    now.hand_ended(id, action, &report, quiet);
}

impl World {
    /// Judges a job that has ended.
    fn hand_ended(&mut self, id: Id, action: HandMove, report: &HandReport, quiet: bool) {
        let done = report.state == HandState::Done;
        *if done { &mut self.counts.hand_done } else { &mut self.counts.hand_failed } += 1;
        let reason = report.reason.as_deref().unwrap_or_default();
        if !done && !self.config.faults && !self.may_be_damaged {
            let full = reason.contains("is full") || reason.contains("may take half of it");
            let right = full || reason.contains("pinned to another tier") || reason.contains("vanished");
            assert!(right, "{action:?} of {id:?}: {reason}");
        }
        if quiet && done && report.left_bytes == 0 {
            self.assert_moved(id, action, report);
        }
        if quiet && done && !matches!(action, HandMove::Migrate { .. }) {
            self.pin_below(id, action.tier());
            self.pins_unsure = None;
        }
        self.compare_pins();
        self.pins_unsure = None;
    }

    /// Every block of a file that was moved without other work amid the job lies on the requested tier.
    fn assert_moved(&mut self, id: Id, action: HandMove, report: &HandReport) {
        let (Some(tier), true) = (action.tier(), report.pinned_files == 0) else { return };
        if self.model.node(id).is_ok_and(|node| node.content().is_none()) {
            return;
        }
        let found = self.fs().whereabouts(self.ino(id)).unwrap();
        // Unwritten blocks have no content to move.
        let unwritten = self.unwritten_blocks(id) * BLOCK as u64;
        let elsewhere = found.tiers.iter().filter(|(at, _)| *at != tier).map(|(_, bytes)| bytes);
        let elsewhere: u64 = elsewhere.sum();
        assert!(elsewhere <= unwritten, "{id:?} is not on tier {tier}: {found:?}");
    }

    /// Sets a tier pin in the reference, for an inode and everything below its directory.
    fn pin_below(&mut self, id: Id, tier: Option<u8>) {
        let mut left = vec![id];
        while let Some(id) = left.pop() {
            let Ok(mut node) = self.model.node(id).cloned() else { continue };
            match &node.kind {
                Kind::Directory { entries, .. } => left.extend(entries.values()),
                Kind::Regular(_) => {}
                _ => continue,
            }
            node.pin = tier;
            self.model.put_node(id, node);
        }
    }

    /// Compares the tier pins of all inodes.
    pub fn compare_pins(&mut self) {
        if !self.config.by_hand {
            return;
        }
        let nodes = self.model.nodes().map(|(id, node)| (id, node.pin)).collect::<Vec<_>>();
        for (id, expected) in nodes {
            let found =
                self.fs().pinned(self.ino(id)).unwrap_or_else(|error| panic!("pin of {id:?}: {error}"));
            if found == expected {
                continue;
            }
            assert_eq!(self.pins_unsure, Some(found), "{id:?}: its pin, which should be {expected:?}");
            let mut node = self.model.node(id).cloned().unwrap();
            node.pin = found;
            self.model.put_node(id, node);
        }
    }
}

/// Six seconds in which a file is read whole; a large file is read several times a second.
pub fn read_often(world: &Shared, id: Id) {
    for _ in 0..6 {
        let size = world.borrow().size_of(id).min(8 * PIECE);
        let times = if size < PIECE { 1 } else { READ_IN_A_SECOND.div_ceil(size) };
        for at in (0..times).flat_map(|_| (0..size).step_by(PIECE as usize)) {
            operate(world, Op::Read { id, offset: at, length: PIECE as usize }, true);
        }
        world.borrow().clock.advance(Duration::from_secs(1));
        background(world, 2);
        if world.borrow().crash.is_taken() {
            return;
        }
    }
}
