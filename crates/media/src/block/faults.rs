//! The faults that wait for a simulated device: failures, and states of the whole device.
//!
//! Invariants: a failure with a count meets that number of operations and is then forgotten. A loss that a device
//! notices is reported once, by the next flush (design M1); a lie about a flush is a loss that the device does not
//! notice.

use std::ops::Range;
use std::time::Duration;

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
    OnceAfter(u64),
    /// Every operation after this number of operations has passed.
    AlwaysAfter(u64),
    /// As `OnceAfter`; then the block that failed keeps failing, like a worn-out sector.
    WearsOutAfter(u64),
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
        let here = matches!(self, Times::WearsOutAfter(0));
        let (fails, stays) = match self {
            Times::Forever | Times::AlwaysAfter(0) => (true, true),
            Times::WearsOutAfter(0) => {
                *self = Times::Forever;
                (true, true)
            }
            Times::Count(left) => {
                *left = left.saturating_sub(1);
                (true, *left > 0)
            }
            Times::OnceAfter(0) => (true, false),
            Times::OnceAfter(left) | Times::AlwaysAfter(left) | Times::WearsOutAfter(left) => {
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
    pub stall: Option<Stall>,
    /// Operations that wait in a stall.
    pub waiting: u64,
    pub lies: bool,
    /// While it is gone: what operations answer.
    pub gone: Option<i32>,
    /// Unflushed writes were lost, and no flush has said so.
    pub lost: bool,
}

/// A state in which operations take for ever.
#[derive(Clone, Copy)]
pub(super) enum Stall {
    /// Operations wait so long.
    AtMost(Duration),
    /// Operations let others run once, and then fail.
    NoWait,
}

impl Faults {
    /// Lets operations that touch `blocks` fail.
    pub fn fail(&mut self, operation: Operation, blocks: Range<u64>, errno: i32, times: Times) {
        assert!(errno > 0, "a failure without an errno");
        self.failures.push(Failure { operation, blocks, errno, times });
    }

    /// Lets `begins` begin with the operation of this kind that follows the next `after`.
    pub fn begin_after(&mut self, operation: Operation, after: u64, begins: Begins) {
        self.beginnings.push(Beginning { operation, left: after, begins });
    }

    /// Failures that have not ended.
    pub fn failures_left(&self) -> usize {
        self.failures.len()
    }

    /// Forgets failures and states that would begin later.
    pub fn clear(&mut self) {
        self.failures.clear();
        self.beginnings.clear();
    }

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

    /// An operation comes: states of the device that were to begin with it begin.
    pub fn begin(&mut self, operation: Operation) {
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
