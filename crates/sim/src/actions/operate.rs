//! Runs an operation on the engine and on the reference, and compares the answers.
//!
//! The world is borrowed before and after the engine's part, not during it (see `call`). Operations that
//! ran in the middle of an operation come before it in the reference, because it takes effect in its last
//! attempt, and no other operation runs in that attempt. This holds for operations of one transaction; no
//! operation runs amid a longer one.

use crate::call::{Call, Seen};
use crate::choose::content::blocks;
use crate::judges::answers::may_meet_device;
use crate::world::amid::Nesting;
use crate::world::descriptors::Asking;
use crate::world::{Shared, World};
use rand::Rng;
use std::sync::Arc;
use terrace_engine::{BlockRange, Engine, FsError, Wait};
use terrace_format::FileBlock;
use terrace_reference::{BLOCK, Id, Op, Stamp};

/// The state of an operation while the engine runs it.
struct Begun {
    call: Call,
    from: i64,
    nesting: Nesting,
    /// The number of waiting changes of the file when the operation began.
    written: u64,
    /// The asker, if the operation is an fsync.
    asking: Option<Asking>,
    /// Whether a write-back could fail when the operation began.
    may_fail: bool,
    /// The number of inodes that the operation uses.
    involved: usize,
}

/// Runs an operation on both, sometimes first without waiting, and compares. `waits` is false for an
/// operation amid background work that it would have to wait for.
pub fn operate(world: &Shared, op: Op, waits: bool) {
    let Some((fs, begun, first)) = begin(world, op, waits) else { return };
    let mut answer = begun.call.run(&fs, first);
    if let Err(FsError::WouldBlock) = answer {
        world.borrow_mut().counts.work.would_block += 1;
        if waits {
            answer = begun.call.run(&fs, Wait::Allowed);
        }
    }
    drop(fs);
    world.borrow_mut().finish(begun, answer);
}

fn begin(world: &Shared, op: Op, waits: bool) -> Option<(Arc<Engine>, Begun, Wait)> {
    let mut world = world.borrow_mut();
    if world.power.crash.is_taken() || !world.known.can_do(&world.model, &op) {
        return None;
    }
    world.note(format!("{op:?}"));
    world.durable_start();
    world.counts.work.operations += 1;
    world.count_cold(&op);
    let from = world.pool.now();
    let first = if waits && !world.rng.random_ratio(1, 8) { Wait::Allowed } else { Wait::Never };
    world.known.asked_cookie = world.known.cookie_of(&op);
    let asking = match &op {
        Op::Fsync { id } => Some(world.known.descriptors.asks(*id)),
        _ => None,
    };
    let call = Call { handle: asking.and_then(|asking| asking.handle), ..world.known.call(&op) };
    let one_transaction = match &op {
        // A new inode first gets a number from an inode page, and the page may be demoted meanwhile.
        Op::Read { .. } | Op::Make { .. } => true,
        // An fsync waits for the write-back of dirty pages.
        Op::Fsync { .. } => world.config.buffers(),
        // On a full PM the write goes to DRAM and is written back: two steps.
        Op::Write { sync: true, .. } if world.config.buffers() => false,
        // The removal of capabilities comes before the write.
        Op::Write { id, .. } if op.takes_privileges() && world.model.has_capability(*id) => false,
        Op::Write { offset, length, sync, .. } => {
            let most = if world.model.waits(*sync) {
                world.config.waiting_blocks()
            } else {
                world.config.atomic_blocks()
            };
            (*offset as usize % BLOCK + length).div_ceil(BLOCK) <= most as usize
        }
        _ => false,
    };
    let nesting = std::mem::replace(
        &mut world.amid.nesting,
        match (one_transaction && waits, &op) {
            (true, Op::Make { .. }) => Nesting::Background,
            (true, _) => Nesting::Operations,
            (false, _) => Nesting::None,
        },
    );
    let makes = matches!(op, Op::Make { .. });
    let involved: Vec<Id> =
        op.target().into_iter().chain(op.directories().into_iter().filter(|_| makes)).collect();
    world.amid.under_way.extend(&involved);
    if world.amid.depth == 0 {
        world.amid.last_amid = None;
        world.amid.alone = Some((op.clone(), from.max(world.last_end)));
    }
    let fs = world.pool.fs().clone();
    let written = op.target().map_or(0, |id| world.model.waited(id));
    let may_fail = world.pool.may_fail();
    let involved = involved.len();
    Some((fs, Begun { call, from, nesting, written, asking, may_fail, involved }, first))
}

impl World {
    fn finish(&mut self, begun: Begun, answer: Result<Seen, FsError>) {
        let Begun { call: Call { op, .. }, from, nesting, written, asking, may_fail, involved } = begun;
        self.amid.nesting = nesting;
        self.amid.under_way.truncate(self.amid.under_way.len() - involved);
        if self.amid.depth == 0 {
            self.amid.alone = None;
        }
        if self.power.crash.is_taken() {
            return; // power failed in work amid this operation, which had not taken effect
        }
        let when = Stamp { from: from.max(self.last_end), to: self.pool.now() };
        if self.take_crash() {
            let states = self.states_of(&op, when);
            self.power_failed(states);
            return;
        }
        let succeeded = answer.is_ok();
        let told = asking.is_some_and(|asking| self.told(asking, &answer));
        let inside = if self.config.persist_only() { self.states_of(&op, when) } else { Vec::new() };
        match told {
            true => self.take_over(&op, when),
            // The operation's flush reported writes that a device lost before it came back.
            false if may_fail && answer.as_ref().is_err_and(|error| error.errno() == libc::EIO) => {
                self.counts.work.errors += 1;
                assert!(
                    may_meet_device(&self.config, &op),
                    "{op:?}: an error although it needs nothing from the device"
                );
                self.take_over(&op, when);
            }
            false => self.judge(&op, answer, when),
        }
        if let Op::Fsync { id } = op
            && succeeded
        {
            self.model.written_back(id, written);
        }
        self.last_end = self.pool.now();
        self.durable_history(&op, inside, succeeded);
    }

    /// Judges the answer to an fsync (I5). True if the answer is the error of a write-back.
    fn told(&mut self, asking: Asking, answer: &Result<Seen, FsError>) -> bool {
        match answer {
            Ok(_) => self.known.descriptors.succeeded(asking),
            Err(error) if matches!(error.errno(), libc::EIO | libc::ENOSPC) => {
                let failing = self.pool.may_fail() || self.config.tree.fills;
                let told = self.known.descriptors.failed(asking, failing);
                self.counts.trouble.told += u64::from(told && !self.pool.faulty());
                return told;
            }
            Err(_) => {}
        }
        false
    }

    /// Counts operations on contents, and those that meet cold or shadowed blocks.
    fn count_cold(&mut self, op: &Op) {
        let Some((id, first, end)) = blocks(op, &self.model) else { return };
        let Some(content) = self.model.node(id).ok().and_then(|node| node.content()) else { return };
        let end = end.min(content.size().div_ceil(BLOCK as u64));
        self.counts.work.file_operations += 1;
        if first >= end {
            return;
        }
        let range = BlockRange::new(FileBlock(first), FileBlock(end));
        let Ok(found) = self.pool.fs().whereabouts_in(self.known.ino(id), range) else { return };
        let below: u64 = found.tiers[1..].iter().map(|(_, bytes)| bytes).sum();
        // Unwritten extents on a lower tier were not demoted.
        let unwritten = self.model.unwritten_in(id, first, end) * BLOCK as u64;
        self.counts.work.met_cold += u64::from(below + found.clean_bytes > unwritten);
    }
}
