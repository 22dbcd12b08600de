//! The faults of a simulated device, injected by tests.
//!
//! Invariants: an operation that fails because the device is stalled or gone is no event of the clock and
//! leaves the content unchanged. A loss that a device notices is reported once, by the next flush (design
//! M1); `lie_about_flush` is a loss that it does not notice. No thread waits or calls a hook while it holds
//! the state's lock.

use super::AlignedBlock;
use super::simulated::{Shared, SimulatedDevice};
use crate::MediaError;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use terrace_format::DeviceBlock;
use terrace_runtime::interleave;

/// Operations that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Reads.
    Read,
    /// Writes; the first half of a failing write's blocks is written.
    Write,
    /// Flushes (of any range).
    Flush,
}

/// How often an injected failure occurs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    /// This number of times.
    Count(u64),
    /// Until it is ended.
    Forever,
    /// Once, after this number of operations has passed.
    After(u64),
    /// Every operation after this number of operations has passed.
    From(u64),
    /// As `After`; then the block that failed keeps failing, like a worn-out sector.
    Stays(u64),
}

/// The effect of an injected failure on one operation.
pub(crate) struct Strike {
    /// It fails.
    pub fails: bool,
    /// The failure will also meet later operations.
    pub stays: bool,
    /// From now on the failure meets these blocks only.
    pub here: bool,
}

impl Times {
    /// The next operation is met.
    pub(crate) fn strike(&mut self) -> Strike {
        let here = matches!(self, Times::Stays(0));
        let (fails, stays) = match self {
            Times::Forever | Times::From(0) => (true, true),
            Times::Stays(0) => {
                *self = Times::Forever;
                (true, true)
            }
            Times::Count(left) => {
                *left = left.saturating_sub(1);
                (true, *left > 0)
            }
            Times::After(0) => (true, false),
            Times::After(left) | Times::From(left) | Times::Stays(left) => {
                *left -= 1;
                (false, true)
            }
        };
        Strike { fails, stays, here }
    }
}

/// A state of the whole device that begins with an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begins {
    /// The device is gone.
    Gone,
    /// Operations take for ever, see [`SimulatedDevice::stall_without_waiting`].
    Stall,
}

struct Failure {
    operation: Operation,
    blocks: Range<u64>,
    errno: i32,
    times: Times,
}

/// A state of the device that begins with a later operation of one kind.
struct Beginning {
    operation: Operation,
    left: u64,
    begins: Begins,
}

#[derive(Default)]
pub(super) struct Faults {
    failures: Vec<Failure>,
    beginnings: Vec<Beginning>,
    stall: Option<Stall>,
    waiting: u64,
    pub lies: bool,
    /// While it is gone: what operations answer.
    gone: Option<i32>,
    /// Unflushed writes were lost, and no flush has said so.
    pub lost: bool,
}

#[derive(Clone, Copy)]
enum Stall {
    /// Operations wait so long.
    AtMost(Duration),
    /// Operations let others run once, and then fail.
    NoWait,
}

impl Faults {
    /// The errno of an injected failure that this operation meets.
    pub fn injected(&mut self, operation: Operation, blocks: &Range<u64>) -> Option<i32> {
        let meets = |f: &Failure| {
            let touches = f.blocks.start < blocks.end && blocks.start < f.blocks.end;
            f.operation == operation && (touches || operation == Operation::Flush)
        };
        let index = self.failures.iter().position(meets)?;
        let failure = self.failures.get_mut(index)?;
        let errno = failure.errno;
        let strike = failure.times.strike();
        if strike.here && operation != Operation::Flush {
            failure.blocks = blocks.clone();
        }
        if !strike.stays {
            self.failures.remove(index);
        }
        strike.fails.then_some(errno)
    }

    /// An operation comes: what was to begin with it begins.
    fn begin(&mut self, operation: Operation) {
        let (mut gone, mut stalled) = (false, false);
        self.beginnings.retain_mut(|beginning| {
            if beginning.operation != operation || beginning.left > 0 {
                beginning.left -= u64::from(beginning.operation == operation);
                return true;
            }
            gone |= beginning.begins == Begins::Gone;
            stalled |= beginning.begins == Begins::Stall;
            false
        });
        if gone {
            self.gone = Some(libc::ENODEV);
        }
        if stalled {
            self.stall = Some(Stall::NoWait);
        }
    }

    pub fn is_gone(&self) -> bool {
        self.gone.is_some()
    }
}

impl SimulatedDevice {
    /// Makes operations that touch `blocks` fail with `errno`. Flushes ignore the range.
    pub fn fail_next(&self, operation: Operation, blocks: Range<u64>, errno: i32, times: Times) {
        self.shared.state.lock().faults.failures.push(Failure { operation, blocks, errno, times });
    }

    /// Lets `begins` begin with the operation of this kind that follows the next `after`.
    pub fn begin_after(&self, operation: Operation, after: u64, begins: Begins) {
        self.shared.state.lock().faults.beginnings.push(Beginning { operation, left: after, begins });
    }

    /// Injected failures that have not ended yet.
    pub fn failures_left(&self) -> usize {
        self.shared.state.lock().faults.failures.len()
    }

    /// Ends all injected failures.
    pub fn clear_failures(&self) {
        let mut state = self.shared.state.lock();
        state.faults.failures.clear();
        state.faults.beginnings.clear();
    }

    /// Makes reads, writes and flushes wait until `unstall`. After 30 s a waiting operation fails with
    /// ETIMEDOUT, so that a broken test ends.
    pub fn stall(&self) {
        self.stall_at_most(Duration::from_secs(30));
    }

    /// As `stall`, with another limit.
    pub fn stall_at_most(&self, limit: Duration) {
        self.shared.state.lock().faults.stall = Some(Stall::AtMost(limit));
    }

    /// A stall for simulations on one thread, where nobody could end it meanwhile: operations come once to the
    /// interleaving point "device:stalled" and then, if the stall goes on, fail with ETIMEDOUT at once.
    pub fn stall_without_waiting(&self) {
        self.shared.state.lock().faults.stall = Some(Stall::NoWait);
    }

    /// Lets stalled operations go on.
    pub fn unstall(&self) {
        self.shared.state.lock().faults.stall = None;
        self.shared.changed.notify_all();
    }

    /// Operations that wait in a stall now.
    pub fn waiting(&self) -> u64 {
        self.shared.state.lock().faults.waiting
    }

    /// The device is gone, as one that was pulled or whose link is down: every operation fails with `errno`
    /// (ENODEV or EIO) until [`Self::come_back`].
    pub fn vanish(&self, errno: i32) {
        self.shared.state.lock().faults.gone = Some(errno);
    }

    /// Whether unflushed writes were lost and no flush has reported the loss yet: the next flush will fail,
    /// although the device is present.
    pub fn has_loss_to_tell(&self) -> bool {
        self.shared.state.lock().faults.lost
    }

    /// The device is present again. With a seed the device has lost power meanwhile: its unflushed writes are
    /// kept, lost or torn as in a crash, and the next flush fails with EIO if it had such writes. Without a
    /// seed all writes are kept.
    pub fn come_back(&self, lost_power: Option<u64>) {
        let mut state = self.shared.state.lock();
        state.faults.gone = None;
        let Some(seed) = lost_power.filter(|_| !state.unflushed.is_empty()) else { return };
        let left = self.shared.photograph(&state).image_random(seed);
        state.visible = left.clone();
        state.durable = left;
        state.unflushed.clear();
        state.faults.lost = true;
    }

    /// Whether flushes answer without doing anything.
    pub fn lie_about_flush(&self, lies: bool) {
        self.shared.state.lock().faults.lies = lies;
    }

    /// Flips bits of one byte on the medium, as a disk that rots: reads succeed with wrong data.
    pub fn corrupt(&self, block: DeviceBlock, byte: usize, flip: u8) {
        let mut state = self.shared.state.lock();
        let rot = |content: Option<&Arc<AlignedBlock>>| {
            let mut changed = content.map_or_else(AlignedBlock::zeroed, |c| AlignedBlock::clone(c));
            if let Some(target) = changed.0.get_mut(byte) {
                *target ^= flip;
            }
            Arc::new(changed)
        };
        let visible = rot(state.visible.content.get(&block.0));
        state.visible.put(block.0, visible);
        let durable = rot(state.durable.content.get(&block.0));
        state.durable.put(block.0, durable);
        for write in &mut state.unflushed {
            if write.block == block.0 {
                write.content = rot(Some(&write.content));
            }
        }
    }
}

impl Shared {
    /// Waits out a stall; an error when that takes too long, or when the device is gone.
    pub(super) fn pass(
        &self,
        kind: Operation,
        operation: &'static str,
        blocks: &Range<u64>,
    ) -> Result<(), MediaError> {
        let mut state = self.state.lock();
        state.faults.begin(kind);
        match state.faults.stall {
            None => {}
            Some(Stall::NoWait) => {
                drop(state);
                interleave::point("device:stalled");
                state = self.state.lock();
            }
            Some(Stall::AtMost(limit)) => {
                state.faults.waiting += 1;
                self.changed.wait_while_for(&mut state, |state| state.faults.stall.is_some(), limit);
                state.faults.waiting -= 1;
            }
        }
        if let Some(errno) = state.faults.gone {
            return Err(self.error(&mut state, operation, blocks, errno));
        }
        if state.faults.stall.is_some() {
            return Err(self.error(&mut state, operation, blocks, libc::ETIMEDOUT));
        }
        Ok(())
    }
}
