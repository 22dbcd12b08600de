//! The actions of a history on a world: operations, background work, movements with operations in their
//! middle, remounts, faults of the lower tiers.
//!
//! A run has one thread: background work and waiting operations pass interleaving points
//! (`terrace_runtime::interleave`), and other operations run there from beginning to end. All choices come
//! from the seeds of the actions.

use crate::action::{Action, Entry, Fault};
use crate::bounds;
use crate::config::Mix;
use crate::hand::{hand, read_often};
use crate::media::Media;
use crate::operate::operate;
use crate::pm_fault::poisoned;
use crate::power::Crash;
use crate::world::{Nesting, Shared, World};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;
use terrace_engine::Movements;
use terrace_engine::Simulation;
use terrace_engine::Wait;
use terrace_reference::{Allocate, Change, Id, New, Op, ROOT, Stamp};
use terrace_runtime::{Next, interleave, thread};

/// Bytes of a file block.
const BLOCK: u64 = terrace_reference::BLOCK as u64;

/// A dirty page older than this is written back (design 8: 30 s, looked at every 5 s).
pub const DUE: Duration = Duration::from_secs(40);

/// Runs work of the engine, with other work at its interleaving points as `nesting` allows.
pub(crate) fn with_nesting<R>(world: &Shared, nesting: Nesting, run: impl FnOnce() -> R) -> R {
    world.borrow_mut().nesting = nesting;
    let result = run();
    world.borrow_mut().nesting = Nesting::None;
    result
}

/// Installs the hook that runs operations at the engine's interleaving points.
pub fn install_hook(world: &Shared) {
    let weak = Rc::downgrade(world);
    interleave::set_hook(Some(Rc::new(move |point| {
        if let Some(world) = weak.upgrade() {
            at_point(&world, point);
        }
    })));
}

fn at_point(world: &Shared, point: &'static str) {
    bounds::passed(point);
    let planned = {
        let Ok(mut now) = world.try_borrow_mut() else { return };
        now.read_amid_intent(point);
        if now.nesting == Nesting::None || now.depth >= 2 || now.crash.is_taken() {
            return;
        }
        let count = if now.rng.random_ratio(1, 3) { now.rng.random_range(1..4) } else { 0 };
        let again = now.choose_again(point);
        now.depth += 1;
        (count, again, now.nesting)
    };
    let (count, again, nesting) = planned;
    if let Some(op) = again {
        operate(world, op, false);
    }
    for _ in 0..count {
        let step = nesting == Nesting::Background && point != "device:flush" && {
            let mut now = world.borrow_mut();
            now.rng.random_ratio(1, 4)
        };
        if step {
            world.borrow_mut().nesting = Nesting::Operations;
            let which = world.borrow_mut().rng.random_range(0..16);
            step_once(world, which);
            continue;
        }
        let Some(op) = world.borrow_mut().choose_amid() else { continue };
        let waits = world.borrow().may_wait_amid(&op);
        world.borrow_mut().remember_amid(point, &op);
        operate(world, op, waits);
    }
    let mut now = world.borrow_mut();
    now.nesting = nesting;
    now.depth -= 1;
}

/// Runs a step of one kind of background work; the last kind is the requested movements.
fn step_once(world: &Shared, which: usize) -> Next {
    let taken = {
        let mut now = world.borrow_mut();
        let at = which % now.kinds();
        match now.steps.get_mut(at) {
            Some(step) => Ok((at, step.take())),
            None => Err(now.fs.clone()),
        }
    };
    let (at, mut step) = match taken {
        Ok((at, Some(step))) => (at, step),
        Err(Some(fs)) => return fs.hand_step(),
        _ => return Next::Done,
    };
    let next = step.step();
    if let Some(place) = world.borrow_mut().steps.get_mut(at) {
        *place = Some(step);
    }
    next
}

impl World {
    /// An operation for the middle of another action: it must not need to wait for that action.
    fn choose_amid(&mut self) -> Option<Op> {
        self.counts.amid += 1;
        let mut op = match self.under_way.last().copied() {
            // As through a second descriptor of the file.
            Some(id) if self.rng.random_ratio(1, 4) => self.choose_of(id),
            _ => self.choose(),
        };
        match &mut op {
            // A second piece of a longer write may have to wait.
            Op::Write { length, .. } => *length = (*length).min(50 * 4096),
            // Under data=ordered a punch may have zeroed one edge in place when the other edge has to wait;
            // the kernel then repeats the request.
            Op::Fallocate { mode: Allocate::PunchHole, .. } if self.config.data_ordered => return None,
            Op::Make { id, .. } => *id = Id(Id::APART.0 + (self.rng.random::<u64>() >> 20)),
            // The kernel holds the inode of a request that is under way.
            Op::Remove { .. } | Op::Rename { .. } | Op::Release { .. } | Op::Forget { .. } => {
                let involved = self.model.involved(&op);
                if self.under_way.iter().any(|id| involved.contains(id)) {
                    return None;
                }
            }
            _ => {}
        }
        Some(op)
    }

    fn remember_amid(&mut self, point: &'static str, op: &Op) {
        if self.depth == 1 {
            self.last_amid = Some((point, op.clone()));
        }
    }

    /// The operation that ran last at this point, to run there again in most cases. A fetch begins anew when
    /// a block has changed, and so passes its point several times. A repeated truncation or punch moves on by
    /// a block, so that it changes a new block.
    fn choose_again(&mut self, point: &'static str) -> Option<Op> {
        let (_, op) = self.last_amid.clone().filter(|(at, _)| *at == point && self.depth == 0)?;
        let fits = matches!(op, Op::Write { .. } | Op::SetAttributes { .. } | Op::Fallocate { .. });
        let op = (fits && self.rng.random_ratio(3, 4)).then_some(op)?;
        self.counts.amid += 1;
        let op = match op {
            Op::Write { id, offset, length, kill_set_id, sync, .. } => {
                Op::Write { id, offset, length, seed: self.rng.random(), kill_set_id, sync }
            }
            Op::Fallocate { id, offset, length, mode: Allocate::PunchHole } => {
                Op::Fallocate { id, offset: offset + 4096, length, mode: Allocate::PunchHole }
            }
            Op::SetAttributes { id, change: Change { size: Some(size), .. } } => {
                let change = Change { size: Some(size.saturating_sub(4096)), ..Change::default() };
                Op::SetAttributes { id, change }
            }
            other => other,
        };
        self.last_amid = Some((point, op.clone()));
        Some(op)
    }

    /// Reads a file before and between the pieces of its truncation or punch: it must read as after the whole
    /// operation.
    fn read_amid_intent(&mut self, point: &str) {
        let is_open = point.starts_with("intent:") && self.depth == 0 && self.nesting == Nesting::None;
        let Some((op, from)) = self.alone.clone().filter(|_| is_open && !self.crash.is_taken()) else {
            return;
        };
        let Some(id) = op.target().filter(|_| !self.faulty() && !self.may_be_damaged) else { return };
        let mut after = self.model.clone();
        let when = Stamp { from, to: self.now() };
        if after.perform(&op, when).is_err() {
            return;
        }
        self.counts.amid_intents += 1;
        let Some(content) = after.node(id).ok().and_then(|node| node.content()).cloned() else { return };
        // A file of terabytes has little more than holes. Blocks allocated before or after the operation are
        // read with their neighbours; so are the edges of the operation.
        let before = self.model.node(id).ok().and_then(|node| node.content()).cloned();
        let end = content.size().div_ceil(BLOCK);
        let mut blocks: BTreeSet<u64> = content.allocated(0, end).collect();
        blocks.extend(before.iter().flat_map(|before| before.allocated(0, end)));
        let (mut at, mut found) = (0, Vec::new());
        for block in blocks {
            let until = content.size().min((block + 2) * BLOCK);
            at = at.max(block.saturating_sub(1) * BLOCK);
            while at < until {
                let wanted = (until - at) as usize;
                let read = self.fs().read_to(self.ino(id), at, wanted, &mut found, false, Wait::Allowed);
                let count = read.unwrap_or_else(|error| panic!("{op:?}: read at {at} amid it: {error}"));
                let mut expected = vec![0xaa; count];
                assert_eq!(
                    after.read(id, at, &mut expected, when),
                    Ok(count),
                    "{op:?}: read at {at} amid it"
                );
                let differs = found.iter().zip(&expected).position(|(found, expected)| found != expected);
                assert_eq!(differs, None, "{op:?}: byte {at} and so many differ amid it");
                assert_ne!(count, 0, "{op:?}: the end at {at} amid it");
                at += count as u64;
            }
        }
    }

    /// Whether an operation in the middle of another may wait: an fsync in the middle of a write-back writes
    /// the same dirty pages back a second time. In the middle of this fsync no further one waits.
    fn may_wait_amid(&self, op: &Op) -> bool {
        self.config.mix == Mix::Rewrites && self.depth == 1 && matches!(op, Op::Fsync { .. })
    }

    /// Kinds of background work.
    fn kinds(&self) -> usize {
        self.steps.len().max(1) + usize::from(self.config.by_hand && self.fs.is_some())
    }

    /// After background work: if power failed in it, the present state is the only one allowed.
    pub(crate) fn background_ended(&mut self) {
        if self.take_crash() {
            self.counts.crashes_amid_background += 1;
            let states = self.state_now();
            self.power_failed(states);
        }
    }
}

/// Runs an action of a history.
pub fn apply(world: &Shared, entry: &Entry) {
    bounds::begin();
    world.borrow_mut().rng = SmallRng::seed_from_u64(entry.seed);
    match &entry.action {
        Action::Op(op) => operate(world, op.clone(), true),
        Action::Background(rounds) => background(world, *rounds),
        Action::Step(which) => {
            world.borrow_mut().note(format!("step {which}"));
            world.borrow().clock.advance(Duration::from_millis(11));
            with_nesting(world, Nesting::Background, || step_once(world, *which));
            world.borrow_mut().background_ended();
        }
        Action::WriteBack => write_back(world),
        Action::Sync => sync(world),
        Action::SyncDown => sync_down(world),
        Action::LowerMetadata => lower_metadata(world),
        Action::Hand { id, action, finish } => hand(world, *id, *action, *finish),
        Action::ReadOften(id) => read_often(world, *id),
        Action::Remount => world.borrow_mut().remount(),
        Action::Unmount => world.borrow_mut().unmount_and_check(),
        Action::Compare => world.borrow_mut().compare_when_well(),
        Action::Advance(time) => world.borrow().clock.advance(*time),
        Action::Reuse => reuse(world),
        Action::PowerFails(events) => world.borrow_mut().arm(*events, entry.seed),
        Action::Crash => world.borrow_mut().crash_now(entry.seed),
        Action::Fault(fault) => world.borrow_mut().inject(*fault),
        Action::Poisoned { access, times, action } => poisoned(world, entry.seed, (*access, *times), action),
    }
    recover_if_taken(world);
    world.borrow_mut().judge_leaks_at_times();
}

fn recover_if_taken(world: &Shared) {
    if world.borrow().crash.is_taken() {
        world.borrow_mut().recover();
    }
}

pub(crate) fn background(world: &Shared, rounds: usize) {
    world.borrow_mut().note(format!("background work, {rounds} rounds"));
    world.borrow().clock.advance(Duration::from_millis(20));
    let kinds = world.borrow().kinds();
    let ended = with_nesting(world, Nesting::Background, || {
        (0..rounds).any(|_| {
            let again =
                (0..kinds).fold(false, |again, which| again | (step_once(world, which) == Next::Again));
            !again || world.borrow().crash.is_taken()
        })
    });
    // A movement that cannot run waits before its next try (M6), and 512 blocks are the most that can move.
    assert!(ended || rounds < 200, "background work does not come to rest in {rounds} rounds");
    world.borrow_mut().background_ended();
}

/// All waiting writes become due, and are written back unless a device fails.
fn write_back(world: &Shared) {
    let written = {
        let now = world.borrow();
        now.clock.advance(DUE);
        now.written()
    };
    background(world, 400);
    let mut now = world.borrow_mut();
    // A file that changed meanwhile has new waiting writes.
    let unchanged: Vec<(Id, u64)> =
        written.into_iter().filter(|(id, waited)| now.model.waited(*id) == *waited).collect();
    if !now.crash.is_taken() && !now.faulty() {
        now.written_back(&unchanged);
    }
}

/// `terrace sync`: all writes that returned before it are durable.
fn sync(world: &Shared) {
    let (fs, written) = {
        let mut now = world.borrow_mut();
        now.note("sync".into());
        now.durable_start();
        (now.fs().clone(), now.written())
    };
    let result = with_nesting(world, Nesting::Background, || fs.sync());
    drop(fs);
    let mut now = world.borrow_mut();
    now.background_ended();
    if now.crash.is_taken() {
        return;
    }
    match result {
        Ok(()) => {
            now.written_back(&written);
            now.unpersisted.clear();
        }
        // A sync whose write-back fails must report the failure (I5).
        Err(error) => {
            let told = matches!(error.errno(), libc::EIO | libc::ENOSPC);
            let expected = now.config.faults && now.config.buffers() && told;
            assert!(expected, "sync: {error}");
        }
    }
}

fn sync_down(world: &Shared) {
    let (fs, tier) = {
        let mut now = world.borrow_mut();
        if now.config.device_blocks == 0 {
            assert_eq!(now.fs().sync_to(1, &mut |_| {}).map_err(|e| e.errno()), Err(libc::EINVAL));
            return;
        }
        let lowest = now.config.lowest_tier();
        let tier = if lowest > 1 { now.rng.random_range(1..=lowest) } else { 1 };
        now.note(format!("sync to tier {tier}"));
        // With a failing device `sync --to` would try for ever.
        if now.faulty() {
            return;
        }
        (now.fs().clone(), tier)
    };
    let written = world.borrow().written();
    let quiet = world.borrow_mut().rng.random_ratio(1, 2);
    let nesting = if quiet { Nesting::None } else { Nesting::Background };
    let result = with_nesting(world, nesting, || fs.sync_to(tier, &mut |_| {}));
    drop(fs);
    let mut now = world.borrow_mut();
    now.background_ended();
    if now.crash.is_taken() {
        return;
    }
    match result {
        Ok(_) if quiet => now.assert_all_below(tier),
        Ok(_) => {}
        // A flush that failed for one group counts against every group in flight (M1).
        Err(error) if now.config.faults && error.errno() == libc::EIO => return,
        // Tier pins and other movements may promote blocks meanwhile; `sync --to` demotes them again, but
        // gives up some time.
        Err(error) if now.config.by_hand && !quiet && error.errno() == libc::EAGAIN => return,
        Err(error) => {
            let full = now.config.fills && error.errno() == libc::ENOSPC;
            assert!(full, "sync to tier {tier}: {error}");
        }
    }
    now.written_back(&written);
    now.unpersisted.clear();
}

/// Demotes every metadata page that may be demoted, with operations in the middle.
fn lower_metadata(world: &Shared) {
    let fs = {
        let mut now = world.borrow_mut();
        now.note("metadata moves down".into());
        now.fs().clone()
    };
    let result = with_nesting(world, Nesting::Background, || fs.lower_metadata_now());
    drop(fs);
    let mut now = world.borrow_mut();
    now.background_ended();
    if let Err(error) = result
        && !now.crash.is_taken()
    {
        assert!(now.config.faults || now.config.pm_faults, "metadata moves down: {error}");
    }
}

/// Frees blocks and claims new ones at once, through both lanes: records above the checkpoint still name or
/// write the freed blocks (T6).
fn reuse(world: &Shared) {
    world.borrow_mut().note("blocks freed and wanted again at once:".into());
    let times = world.borrow_mut().rng.random_range(1..4);
    for _ in 0..times {
        let ops = world.borrow_mut().choose_reuse();
        for (second_lane, op) in ops {
            thread::set_index(usize::from(second_lane));
            operate(world, op, true);
        }
        thread::set_index(0);
    }
}

impl World {
    fn choose_reuse(&mut self) -> Vec<(bool, Op)> {
        let (old, new) = (self.file(), self.file());
        let size = self.size_of(old);
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

    /// After a sync to a tier every block on a faster tier is a clean copy, or was never written.
    fn assert_all_below(&mut self, tier: u8) {
        let ids: Vec<Id> = self.model.nodes().map(|(id, _)| id).collect();
        for id in ids {
            let found = self.fs().whereabouts(self.ino(id)).unwrap();
            let unwritten = self.unwritten_blocks(id) * 4096;
            let above = found.tiers.iter().filter(|(at, _)| *at < tier).map(|(_, bytes)| bytes);
            let above: u64 = above.sum();
            assert!(above <= found.clean_bytes + unwritten, "{id:?}: {found:?}");
        }
    }

    /// Compares the whole tree, unless a fault may make cold content unreadable.
    fn compare_when_well(&mut self) {
        self.judge_leaks();
        if !self.faulty() {
            self.compare_all();
        }
    }

    /// Unmounts, checks, mounts and compares.
    fn remount(&mut self) {
        if self.faulty() {
            return;
        }
        self.note("remount".into());
        self.counts.remounts += 1;
        self.steps.clear();
        self.judge_leaks();
        self.unmount_engine();
        if self.take_crash() {
            let states = self.state_now();
            return self.power_failed(states);
        }
        self.end_mount();
        self.assert_clean();
        self.model.all_written_back();
        self.model.drop_references();
        self.forget_volatile();
        if self.config.flips {
            let media = Media::after(&self.media.now(), 1, self.media.setup());
            let seed = self.rng.random();
            self.flip(&media, seed);
        }
        self.remount_media();
        // The cost of a mount depends on the lanes, never on the size of the pool (T8): it reads two
        // checkpoint copies, the roots and the first record of each lane.
        let read = self.mount_read.get();
        assert!(read <= 4 * 4096, "the mount read {read} bytes of PM before it answered");
        assert!(self.fs().status().unwrap().recovery.clean);
        self.compare_all();
    }
}

impl World {
    /// The operations that remove every name, after which all space must be free (I6, I7).
    pub fn remove_everything(&mut self) -> Vec<Op> {
        let mut left: Vec<Id> = vec![ROOT];
        let mut ops: Vec<Op> = Vec::new();
        while let Some(id) = left.pop() {
            let entries = self.model.node(id).ok().and_then(|node| node.entries()).cloned();
            for (name, child) in entries.unwrap_or_default() {
                let as_directory = self.model.node(child).is_ok_and(|node| node.is_directory());
                ops.push(Op::Remove { directory: id, name, as_directory });
                if as_directory {
                    left.push(child);
                }
            }
        }
        ops.reverse();
        ops
    }

    /// Judges a pool from which every name was removed.
    fn assert_empty(&mut self) {
        self.steps.clear();
        self.fs().run_background(10_000);
        self.judge_leaks();
        let status = self.fs().status().unwrap();
        // The inode file does not shrink; its pages may lie on a lower tier.
        let inode_pages = status.metadata.below_bytes;
        for tier in &status.tiers[1..] {
            assert!(
                tier.used_bytes <= inode_pages,
                "{} bytes of an empty file system below PM",
                tier.used_bytes
            );
        }
        let space = self.fs().statfs(Wait::Allowed).unwrap();
        let used = space.blocks - space.free;
        // The inode file does not shrink; 32 inodes share a page.
        let inodes = (self.config.files + self.config.directories) as u64 / 8 + 16;
        assert!(used <= self.fresh_blocks + inodes, "{used} blocks of an empty file system are in use");
        self.unmount_engine();
        self.end_mount();
        self.assert_clean();
    }
}

/// The end of a history: faults heal, all is compared, every name is removed, and all space must be free.
pub fn end(world: &Shared) {
    {
        let mut now = world.borrow_mut();
        now.media.clock.set_crash_at(None);
        now.crash = Crash::None;
        if now.faulty() {
            now.inject(Fault::Heals);
        }
        now.note("the end: compare, remount, remove everything".into());
        now.compare_all();
        now.remount();
    }
    let ops = world.borrow_mut().remove_everything();
    for op in ops {
        operate(world, op, true);
    }
    world.borrow_mut().assert_empty();
}
